"""The process that moves bytes of items for a host. It has the host's connections for data, and maps its memory.

    the host's TransferManager          this process
    Tell: a command, and memory  ───►   DataPlane, Dialler, Port    ◄───►  other hosts
    what the plane tells         ◄───

So orders and beats go on while bytes are encrypted and copied.
"""

from __future__ import annotations

import gc
import mmap
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from paceline.errors import PeerLost
from paceline.ipc.channel import Channel
from paceline.ipc.endpoint import Message
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Span
from paceline.net.control import Hello
from paceline.net.handshake import Answered, Keys
from paceline.net.listener import HostListener
from paceline.net.tcp import Address
from paceline.transfer.data_connection import Dialler, Port
from paceline.transfer.data_plane import DataPlane
from paceline.transfer.messages import (
    Brought,
    Came,
    Command,
    EndPeer,
    Event,
    Lost,
    Peer,
    Settled,
    Want,
)

NAME = "paceline-data"
"""What `ps` and `top` show."""
TOLD = 1 << 20
"""The host is told of bytes that have come when they are so many, or all."""


# --- what the host says -------------------------------------------------------------------------------


class AcceptHosts(Message):
    """Say this to hosts that dial."""

    hello: Hello
    timeout: float


class Took(Message):
    """A connection that a host has opened up to its answer comes along. Do the rest. See `handshake.Answered`."""

    descriptors: ClassVar[int] = 1
    purpose: str
    theirs: bytes
    ours: bytes


class Expect(Message):
    """That host, which the plane has met, may dial."""

    peer: Peer


class Dial(Message):
    """Stay connected with it."""

    peer: Peer
    address: Address
    hello: Hello
    timeout: float


class Place(Message, tag=False):
    """Bytes of a file. Where the process does not know the file, it comes along."""

    file: int
    stays: bool
    """Whether to remember the file by its number. Otherwise it comes along each time."""
    start: int
    size: int


class Tell(Message):
    """Tell the plane that. See `Plane`."""

    descriptors: ClassVar[int] = 1
    command: Command
    place: Place | None = None
    """The memory that comes along."""


class Forget(Message):
    """This incarnation of the host is over. Leave its memory alone, and answer with `Forgotten`."""


class Ping(Message):
    """Answer with `Pong`."""


ToProcess = AcceptHosts | Took | Expect | Dial | Tell | Forget | Ping


# --- what the process says, besides what its plane tells ----------------------------------------------


class Said(Message):
    """A line for the user."""

    line: str


class Forgotten(Message):
    """The memory of that incarnation is free. What is said from here on is about the next one."""


class Pong(Message):
    """This process does what it is told."""


FromProcess = Event | Said | Forgotten | Pong


def serve(end: socket.socket, keys: Keys) -> int:
    """Move bytes for the host at the other end until it has gone. Return the exit code."""
    Path("/proc/self/comm").write_text(NAME)
    gc.freeze()  # what is inherited is never garbage, and looking at it would copy it
    process = _Process(Channel(end, ToProcess, "the host"), keys)
    try:
        while True:
            process.loop.wait()
    except PeerLost:
        return 0


class _ToHost:
    """Says to the host what its plane tells.

    The host hears of an item's first bytes at once, as its fetch begins with them, and of others when they are many, or
    all.
    """

    def __init__(self, say: Callable[[Message], None]) -> None:
        self._say = say
        self._untold: dict[tuple[int, int], int] = {}
        """By number of what is wanted, and end of what has come: where that begins. The host was not told of it."""
        self._begun: set[int] = set()
        """Numbers of what is wanted, and of which some bytes have come."""

    def hear(self, event: Event) -> None:
        """The plane tells that."""
        match event:
            case Came(number, begin, end):
                begin = self._untold.pop((number, begin), begin)
                if end - begin < TOLD and number in self._begun:
                    self._untold[number, end] = begin
                else:
                    self._begun.add(number)
                    self._say(Came(number, begin, end))
                return
            case Brought(number=number, whole=whole):
                if whole:
                    self._begun.discard(number)
                for begin, end in self._take_untold(number):
                    self._say(Came(number, begin, end))
            case Lost(number=number) | Settled(number=number):
                self._begun.discard(number)
                self._take_untold(number)
        self._say(event)

    def _take_untold(self, number: int) -> list[tuple[int, int]]:
        ends = [end for one, end in self._untold if one == number]
        return [(self._untold.pop((number, end)), end) for end in ends]


class _Process:
    """Does what the host says."""

    def __init__(self, channel: Channel, keys: Keys) -> None:
        self.loop = Loop()
        self._keys = keys
        self._channel = channel
        self._door = HostListener(None, self.loop, keys, self._show)
        self._port: Port | None = None
        self._diallers: dict[Peer, Dialler] = {}
        self._files: dict[int, memoryview] = {}
        self._begin_anew()
        self.loop.watch(channel, self._heard)

    def _begin_anew(self) -> None:
        self._plane = DataPlane(_ToHost(self._say).hear)

    def _say(self, message: Message) -> None:
        """Tell the host. Where it is slow to read, no more bytes are moved meanwhile."""
        self._channel.send(message)

    def _show(self, line: str) -> None:
        self._say(Said(line))

    def _heard(self) -> None:
        message, descriptors = self._channel.receive()
        self._obey(message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _obey(self, message: Message, descriptors: list[int]) -> None:
        match message:
            case AcceptHosts(hello=hello, timeout=timeout):
                self._port = Port(self._door, self.loop, hello, self._show, timeout)
            case Took(purpose=purpose, theirs=theirs, ours=ours):
                end = socket.socket(fileno=descriptors.pop())
                self._door.takes(Answered(end, purpose, theirs, ours))
            case Expect(peer):
                assert self._port is not None
                self._port.expect(self._plane.exchanges[peer])
            case Dial(peer, address, hello, timeout):
                to = self._plane.exchanges[peer], address, self._keys
                self._diallers[peer] = Dialler(*to, self.loop, hello, self._show, timeout)
            case Tell(command, place):
                writes = isinstance(command, Want)
                self._plane.tell(command, None if place is None else self._mapped(place, descriptors, writes=writes))
                if isinstance(command, EndPeer) and (dialler := self._diallers.pop(command.peer, None)) is not None:
                    dialler.close()
            case Forget():
                self._forget()
            case Ping():
                self._say(Pong())

    def _forget(self) -> None:
        self._plane.close()
        for dialler in self._diallers.values():
            dialler.close()
        self._diallers.clear()
        self._files.clear()
        self._begin_anew()
        self._say(Forgotten())

    def _mapped(self, place: Place, descriptors: list[int], *, writes: bool) -> Span:
        """Map the file once, if it stays, and return those bytes of it."""
        if descriptors:
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writes or place.stays else 0)
            whole = memoryview(mmap.mmap(descriptors[0], os.fstat(descriptors[0]).st_size, prot=protection))
            if place.stays:
                self._files[place.file] = whole
        else:
            whole = self._files[place.file]
        return Span(whole[place.start : place.start + place.size])
