"""The process that moves bytes of items for a host. It has the host's connections for data, and maps its memory.

    the host's TransferManager               this process
    Ask, Send, with the bytes' span   ───►   PeerExchange, Dialler, Port    ◄───►  other hosts
    Came, Asked, Sent                 ◄───

What the bytes are, and who wants them, the host alone knows. So orders and beats go on while bytes are encrypted and
copied. A connection has a number, which no other one gets. What is said about a connection that has gone means nothing.
"""

from __future__ import annotations

import gc
import mmap
import os
import socket
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import ClassVar

from paceline.errors import MessageUnreadable, PeerLost
from paceline.ipc.channel import Channel
from paceline.ipc.endpoint import Message
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Span
from paceline.net.control import Hello
from paceline.net.handshake import Answered, Keys
from paceline.net.listener import HostListener
from paceline.net.tcp import Address
from paceline.transfer.data_connection import Dialler, PeerExchange, Port
from paceline.transfer.fetch_table import Named, Peer
from paceline.transfer.item_names import Fields, fields_of, item_of

NAME = "paceline-data"
"""What `ps` and `top` show."""
TOLD = 1 << 20
"""The host is told of bytes that have come when they are so many, or all."""


# --- what the host says -------------------------------------------------------------------------------


class Listen(Message):
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
    """That incarnation of a host may dial. Its pipe is known by this number."""

    pipe: int
    host: str
    incarnation: int


class Dial(Message):
    """Stay connected with that incarnation of a host."""

    pipe: int
    host: str
    incarnation: int
    address: Address
    hello: Hello
    timeout: float


class End(Message):
    """That host has ended. `Disconnected` says that nothing is moved for it any more, if it was connected."""

    pipe: int


class Break(Message):
    """The other host has said what it may not, over that connection: close it."""

    connection: int
    why: str


class Place(Message, tag=False):
    """Bytes of a file. Where the process does not know the file, it comes along."""

    file: int
    stays: bool
    """Whether to remember the file by its number. Otherwise it comes along each time."""
    start: int
    size: int


class Ask(Message):
    """Ask for these bytes, which go there."""

    descriptors: ClassVar[int] = 1
    connection: int
    request: int
    segment: int
    item: Fields
    begin: int
    end: int
    place: Place


class Cancel(Message):
    """Nobody wants the rest of what was asked for. Answer with `Settled`."""

    connection: int
    request: int


class Send(Message):
    """Send these bytes to who has asked for them."""

    descriptors: ClassVar[int] = 1
    connection: int
    request: int
    place: Place


class Stop(Message):
    """Send no more of that."""

    connection: int
    request: int


class Refuse(Message):
    """There is no more of what the other host has asked for."""

    connection: int
    request: int
    why: str


class Forget(Message):
    """This incarnation of the host is over, all its pipes have ended, and its memory is free."""


class Beat(Message):
    """Answer with `BeatHeard`."""


ToProcess = Listen | Took | Expect | Dial | End | Break | Ask | Cancel | Send | Stop | Refuse | Forget | Beat


# --- what the process says: see `BulkNews` ------------------------------------------------------------


class Connected(Message):
    """There is a connection for that pipe, and this is its number."""

    pipe: int
    connection: int


class Disconnected(Message):
    """It has gone. Nothing is written or read for it any more."""

    connection: int


class Asked(Message):
    """The other host asks for these bytes."""

    connection: int
    request: int
    segment: int
    item: Fields
    begin: int
    end: int


class Cancelled(Message):
    """It wants no more of that."""

    connection: int
    request: int


class Sent(Message):
    """All that was to be sent of that is written."""

    connection: int
    request: int


class Refused(Message):
    """It has no more of what it was asked for."""

    connection: int
    request: int
    why: str


class Came(Message):
    """So many more bytes are there."""

    connection: int
    request: int
    count: int


class Said(Message):
    """A line for the user."""

    line: str


class Settled(Message):
    """Nothing is written any more for that request, which was cancelled.

    What asks over a connection that has gone is not answered: `Disconnected` has said it.
    """

    connection: int
    request: int


class BeatHeard(Message):
    """This process does what it is told."""


FromProcess = Connected | Disconnected | Asked | Cancelled | Sent | Refused | Came | Said | Settled | BeatHeard


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


@dataclass(slots=True)
class _Coming:
    """What is asked for: where its next bytes go, and how many have come that the host was not told of."""

    left: Span
    untold: int = 0


class _Pipe:
    """What is exchanged with one incarnation of another host. It passes on what its `PeerExchange` tells."""

    def __init__(self, number: int, peer: Peer, process: _Process) -> None:
        self.bulk = PeerExchange(peer, self)
        self.connection = -1
        self.coming: dict[int, _Coming] = {}
        self.dialler: Dialler | None = None
        self._number = number
        self._process = process
        self._say = process.say

    def connected(self, peer: Peer) -> None:
        """See `BulkNews`."""
        self.connection = next(self._process.connections)
        self._process.by_connection[self.connection] = self
        self._say(Connected(self._number, self.connection))

    def disconnected(self, peer: Peer) -> None:
        """See `BulkNews`."""
        self.coming.clear()
        del self._process.by_connection[self.connection]
        self._say(Disconnected(self.connection))

    def asked(self, peer: Peer, request: int, named: Named, begin: int, end: int) -> None:
        """See `BulkNews`."""
        self._say(Asked(self.connection, request, named.segment, fields_of(named.item), begin, end))

    def cancelled(self, peer: Peer, request: int) -> None:
        """See `BulkNews`."""
        self._say(Cancelled(self.connection, request))

    def sent(self, peer: Peer, request: int) -> None:
        """See `BulkNews`."""
        self._say(Sent(self.connection, request))

    def refused(self, peer: Peer, request: int, why: str) -> None:
        """See `BulkNews`."""
        self.coming.pop(request, None)
        self._say(Refused(self.connection, request, why))

    def memory(self, peer: Peer, request: int) -> Span | None:
        """See `BulkNews`."""
        if request > self._process.asked:
            raise MessageUnreadable(f"request {request:,} is answered, and there were {self._process.asked:,}")
        return None if (one := self.coming.get(request)) is None else one.left

    def came(self, peer: Peer, request: int, count: int) -> None:
        """See `BulkNews`."""
        one = self.coming[request]
        one.left = one.left.part(count, one.left.nbytes)
        one.untold += count
        if not one.left.nbytes:
            del self.coming[request]
        if one.untold >= TOLD or not one.left.nbytes:
            self._say(Came(self.connection, request, one.untold))
            one.untold = 0


class _Process:
    """Does what the host says."""

    def __init__(self, channel: Channel, keys: Keys) -> None:
        self.loop = Loop()
        self.connections = count()
        self.by_connection: dict[int, _Pipe] = {}
        self.asked = 0
        """The highest number of a request."""
        self._keys = keys
        self._channel = channel
        self._door = HostListener(None, self.loop, keys, self._show)
        self._port: Port | None = None
        self._pipes: dict[int, _Pipe] = {}
        self._files: dict[int, memoryview] = {}
        self.loop.watch(channel, self._heard)

    def say(self, message: Message) -> None:
        """Tell the host. Where it is slow to read, no more bytes are moved meanwhile."""
        self._channel.send(message)

    def _show(self, line: str) -> None:
        self.say(Said(line))

    def _heard(self) -> None:
        message, descriptors = self._channel.receive()
        self._obey(message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _obey(self, message: Message, descriptors: list[int]) -> None:
        match message:
            case Listen(hello=hello, timeout=timeout):
                self._port = Port(self._door, self.loop, hello, self._show, timeout)
            case Took(purpose=purpose, theirs=theirs, ours=ours):
                end = socket.socket(fileno=descriptors.pop())
                self._door.takes(Answered(end, purpose, theirs, ours))
            case Expect(pipe=number, host=host, incarnation=incarnation):
                assert self._port is not None
                self._port.expect(self._meets(number, host, incarnation).bulk)
            case Dial(pipe=number, host=host, incarnation=incarnation):
                new = self._meets(number, host, incarnation)
                to = new.bulk, message.address, self._keys
                new.dialler = Dialler(*to, self.loop, message.hello, self._show, message.timeout)
            case End(pipe=number):
                pipe = self._pipes.pop(number)
                pipe.bulk.end()
                if pipe.dialler is not None:
                    pipe.dialler.close()
            case Forget():
                self._files.clear()
                self.asked = 0
            case Beat():
                self.say(BeatHeard())
            case Break() | Ask() | Cancel() | Send() | Stop() | Refuse():
                if (one := self.by_connection.get(message.connection)) is not None:
                    self._obey_about(one, message, descriptors)
                elif descriptors and isinstance(message, Ask | Send) and message.place.stays:
                    self._mapped(message.place, descriptors, mmap.PROT_READ | mmap.PROT_WRITE)

    def _obey_about(self, pipe: _Pipe, message: Message, descriptors: list[int]) -> None:
        match message:
            case Break(why=why):
                pipe.bulk.break_off(why)
            case Ask(request=request, segment=segment, item=item, begin=begin, end=end, place=place):
                self.asked = request
                pipe.coming[request] = _Coming(self._mapped(place, descriptors, mmap.PROT_READ | mmap.PROT_WRITE))
                pipe.bulk.ask(request, Named(segment, item_of(item)), begin, end)
            case Cancel(connection=connection, request=request):
                if pipe.coming.pop(request, None) is not None:
                    pipe.bulk.cancel(request)
                self.say(Settled(connection, request))
            case Send(request=request, place=place):
                protection = mmap.PROT_READ | (mmap.PROT_WRITE if place.stays else 0)
                pipe.bulk.send(request, self._mapped(place, descriptors, protection))
            case Stop(request=request):
                pipe.bulk.stop(request)
            case Refuse(request=request, why=why):
                pipe.bulk.refuse(request, why)

    def _meets(self, number: int, host: str, incarnation: int) -> _Pipe:
        pipe = self._pipes[number] = _Pipe(number, Peer(host, incarnation), self)
        return pipe

    def _mapped(self, place: Place, descriptors: list[int], protection: int) -> Span:
        """Map the file once, if it stays, and return those bytes of it."""
        if descriptors:
            whole = memoryview(mmap.mmap(descriptors[0], os.fstat(descriptors[0]).st_size, prot=protection))
            if place.stays:
                self._files[place.file] = whole
        else:
            whole = self._files[place.file]
        return Span(whole[place.start : place.start + place.size])
