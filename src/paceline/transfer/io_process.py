"""The process that moves bytes of items for a host. It has the host's connections for data, and maps its memory.

    the host's TransferManager               this process
    Want, with the bytes' span   ───►   DataPlane, Dialler, Port    ◄───►  other hosts
    Came, ItemBrought, ItemLost  ◄───

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

from paceline.core.items import Item
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
from paceline.transfer.fetch_table import Named, Peer, Range
from paceline.transfer.item_names import Fields, fields_of, item_of

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


class Meet(Message):
    """That incarnation of a host takes part."""

    host: str
    incarnation: int


class Expect(Message):
    """It may dial."""

    host: str
    incarnation: int


class Dial(Message):
    """Stay connected with it."""

    host: str
    incarnation: int
    address: Address
    hello: Hello
    timeout: float


class End(Message):
    """It takes no part any more, and why."""

    host: str
    incarnation: int
    why: str


class BeginSegment(Message):
    """This segment of the run begins."""

    segment: int


class Place(Message, tag=False):
    """Bytes of a file. Where the process does not know the file, it comes along."""

    file: int
    stays: bool
    """Whether to remember the file by its number. Otherwise it comes along each time."""
    start: int
    size: int


class Want(Message):
    """This item is wanted there. See `Plane.want`."""

    descriptors: ClassVar[int] = 1
    number: int
    segment: int
    item: Fields
    ranges: tuple[Range, ...]
    place: Place
    parts: bool


class DropItem(Message):
    """It is not wanted any more. Answer with `Settled`."""

    number: int


class Send(Message):
    """Send these bytes, which were asked for by that number."""

    descriptors: ClassVar[int] = 1
    number: int
    place: Place


class Refuse(Message):
    """They will not be there."""

    number: int
    why: str


class Forget(Message):
    """This incarnation of the host is over. Leave its memory alone, and answer with `Forgotten`."""


class Ping(Message):
    """Answer with `Pong`."""


ToProcess = (
    AcceptHosts | Took | Meet | Expect | Dial | End | BeginSegment | Want | DropItem | Send | Refuse | Forget | Ping
)


# --- what the process says: see `PlaneEvents` ---------------------------------------------------------


class Connected(Message):
    """There is a connection with that host."""

    host: str
    incarnation: int


class Disconnected(Message):
    """It has gone."""

    host: str
    incarnation: int


class Came(Message):
    """These bytes are there."""

    number: int
    begin: int
    end: int


class ItemBrought(Message):
    """All that this host has of the item is there, and the item is whole, or not yet."""

    number: int
    host: str
    incarnation: int
    size: int
    whole: bool


class ItemLost(Message):
    """The item will not come. See `PlaneEvents`."""

    number: int
    why: str
    refused_by: str | None


class Settled(Message):
    """No byte comes any more of what was dropped."""

    number: int


class Asked(Message):
    """By that number another host asks for these bytes."""

    number: int
    item: Fields
    begin: int
    end: int


class Released(Message):
    """What was asked for by that number is read no more."""

    number: int


class Said(Message):
    """A line for the user."""

    line: str


class Forgotten(Message):
    """The memory of that incarnation is free. What is said from here on is about the next one."""


class Pong(Message):
    """This process does what it is told."""


FromProcess = (
    Connected | Disconnected | Came | ItemBrought | ItemLost | Settled | Asked | Released | Said | Forgotten | Pong
)


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
    """See `PlaneEvents`. Says to the host what its plane tells."""

    def __init__(self, say: Callable[[Message], None]) -> None:
        self._say = say
        self._untold: dict[tuple[int, int], int] = {}
        """By number of what is wanted, and end of what has come: where that begins. The host was not told of it."""

    def connected(self, peer: Peer) -> None:
        """See `PlaneEvents`."""
        self._say(Connected(*peer))

    def disconnected(self, peer: Peer) -> None:
        """See `PlaneEvents`."""
        self._say(Disconnected(*peer))

    def came(self, number: int, begin: int, end: int) -> None:
        """See `PlaneEvents`. The host is told when they are many, or all."""
        begin = self._untold.pop((number, begin), begin)
        if end - begin < TOLD:
            self._untold[number, end] = begin
        else:
            self._say(Came(number, begin, end))

    def brought(self, number: int, peer: Peer, size: int, whole: bool) -> None:
        """See `PlaneEvents`."""
        for begin, end in self._take_untold(number):
            self._say(Came(number, begin, end))
        self._say(ItemBrought(number, *peer, size, whole))

    def lost(self, number: int, why: str, refused_by: str | None) -> None:
        """See `PlaneEvents`."""
        self._take_untold(number)
        self._say(ItemLost(number, why, refused_by))

    def settled(self, number: int) -> None:
        """See `PlaneEvents`."""
        self._take_untold(number)
        self._say(Settled(number))

    def asked(self, number: int, item: Item, begin: int, end: int) -> None:
        """See `PlaneEvents`."""
        self._say(Asked(number, fields_of(item), begin, end))

    def released(self, number: int) -> None:
        """See `PlaneEvents`."""
        self._say(Released(number))

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
        self._plane = DataPlane(_ToHost(self._say))

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
            case Meet(host=host, incarnation=incarnation):
                self._plane.meet(Peer(host, incarnation))
            case Expect(host=host, incarnation=incarnation):
                assert self._port is not None
                self._port.expect(self._plane.exchanges[Peer(host, incarnation)])
            case Dial(host=host, incarnation=incarnation, address=address, hello=hello, timeout=timeout):
                to = self._plane.exchanges[Peer(host, incarnation)], address, self._keys
                self._diallers[Peer(host, incarnation)] = Dialler(*to, self.loop, hello, self._show, timeout)
            case End(host=host, incarnation=incarnation, why=why):
                self._plane.end(Peer(host, incarnation), why)
                if (dialler := self._diallers.pop(Peer(host, incarnation), None)) is not None:
                    dialler.close()
            case BeginSegment(segment=segment):
                self._plane.begin(segment)
            case Want(number=number, segment=segment, item=item, ranges=ranges, place=place, parts=parts):
                there = self._mapped(place, descriptors, mmap.PROT_READ | mmap.PROT_WRITE)
                self._plane.want(number, Named(segment, item_of(item)), ranges, there, parts=parts)
            case DropItem(number=number):
                self._plane.drop(number)
            case Send(number=number, place=place):
                protection = mmap.PROT_READ | (mmap.PROT_WRITE if place.stays else 0)
                self._plane.send(number, self._mapped(place, descriptors, protection))
            case Refuse(number=number, why=why):
                self._plane.refuse(number, why)
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

    def _mapped(self, place: Place, descriptors: list[int], protection: int) -> Span:
        """Map the file once, if it stays, and return those bytes of it."""
        if descriptors:
            whole = memoryview(mmap.mmap(descriptors[0], os.fstat(descriptors[0]).st_size, prot=protection))
            if place.stays:
                self._files[place.file] = whole
        else:
            whole = self._files[place.file]
        return Span(whole[place.start : place.start + place.size])
