"""Raw bytes between two hosts: one TCP connection a pair, used both ways, in the loop.

    ask, cancel          ── Fetch, Cancel ───────────────►    asked, cancelled
    memory, came         ◄── BytesFrame, and raw bytes ───    send, stop
    refused              ◄── Never ───────────────────────    refuse

A `PeerExchange` is what one host exchanges with one incarnation of another, over whichever connection there is. A
`Dialler` gives it one, and another after a loss. At the other side a `Port` does, behind the door. Both sides say
`Hello` first, as in control. Which items are wanted, and what becomes of a request when its connection breaks, is not
known here: see `transfer.data_plane`.

Bytes go from the owner's memory into the receiver's, a part at a time, and are copied by the kernel alone. A request
names the segment and the incarnation that it is for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from paceline.errors import MessageUnreadable
from paceline.ipc.endpoint import LENGTH, Count, too_long
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Span
from paceline.net.control import (
    HANDSHAKE,
    LONGEST_HELLO,
    LONGEST_PAUSE,
    SHORTEST_PAUSE,
    Hello,
    Refused,
    one_line,
)
from paceline.net.handshake import Handshake, Keys, Opened, dial
from paceline.net.listener import HostListener
from paceline.net.numbered import Frame, written
from paceline.net.tcp import AT_ONCE, Address, Lines, Stream
from paceline.transfer.item_names import Fields, item_of
from paceline.transfer.messages import Named, Peer

PURPOSE = "data"
"""What connections are opened for."""
PART = 1 << 20
"""Bytes that are sent without a look at what else there is. A fetch is cancelled between two parts."""
MOST_SENT = 128 << 30
"""Bytes that are sent over one connection before a new one takes its place. A key of AES-GCM is good for 24 million
records (RFC 8446, 5.5), which hold 388 GB, and OpenSSL does not draw another one by itself."""
MOST_WAITING = 16 << 20
"""Bytes that may wait for one connection: one part, and small frames beside it."""


class Fetch(Frame):
    """Send these bytes of the item, once it is there."""

    number: Count
    segment: Count
    incarnation: Count
    """Of the host that is asked."""
    item: Fields
    begin: Count
    end: Count


class Cancel(Frame):
    """Send no more of that fetch."""

    number: Count


class BytesFrame(Frame):
    """So many raw bytes of that fetch come right after this frame: the next ones."""

    number: Count
    length: Count


class Never(Frame):
    """That fetch gets no more."""

    number: Count
    why: str


_FRAMES = msgspec.msgpack.Decoder(Hello | Refused | Fetch | Cancel | BytesFrame | Never)
_SCRATCH = memoryview(bytearray(64 << 10))
"""Where bytes go that nobody wants any more."""


class BulkNews(Protocol):
    """What a connection with another host tells. What the other host may not say raises MessageUnreadable."""

    def connected(self, peer: Peer) -> None:
        """There is a connection, over which nothing was asked."""

    def disconnected(self, peer: Peer) -> None:
        """The connection is lost, with all that was asked over it. Nothing waits to be written."""

    def asked(self, peer: Peer, request: int, named: Named, begin: int, end: int) -> None:
        """That host asks for these bytes."""

    def cancelled(self, peer: Peer, request: int) -> None:
        """That host wants no more of what it has asked for."""

    def sent(self, peer: Peer, request: int) -> None:
        """None of the request's bytes waits to be written: its memory may change."""

    def refused(self, peer: Peer, request: int, why: str) -> None:
        """That host has no more of what it was asked for."""

    def memory(self, peer: Peer, request: int) -> Span | None:
        """Where the bytes go that have not come yet, if anybody here still wants them."""

    def came(self, peer: Peer, request: int, count: int) -> None:
        """So many more bytes are there."""


@dataclass(slots=True, eq=False)
class Sending:
    """What is sent of one request."""

    request: int
    left: memoryview


class PeerExchange:
    """What this host exchanges with one incarnation of another host."""

    def __init__(self, peer: Peer, news: BulkNews) -> None:
        self.peer = peer
        self.ended = False
        """Whether the other host has ended. There is no connection with it any more."""
        self._news = news
        self._connection: _Connection | None = None
        self._own = 0
        """This host's incarnation, as it has told the other."""
        self._sending: deque[Sending] = deque()
        self._over: list[int] = []
        """Requests that are sent or stopped, while their last bytes may wait for room."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    def end(self) -> None:
        """The other host has ended. Ending twice does no harm."""
        self.ended = True
        if self._connection is not None:
            self._connection.close()

    def break_off(self, why: str) -> None:
        """The other host has said what it may not: close the connection, and say so. It may dial again."""
        if self._connection is not None:
            self._connection.break_off(why)

    # --- what is asked: nothing, where there is no connection ---------------------------------------

    def ask(self, request: int, named: Named, begin: int, end: int) -> None:
        """Ask for these bytes. Requests are numbered, and no number is used again."""
        self._say(Fetch(request, named.segment, self.peer.incarnation, named.item, begin, end))

    def cancel(self, request: int) -> None:
        """Nobody wants the rest of the request. What comes of it from now on goes nowhere."""
        self._say(Cancel(request))

    # --- what is served -----------------------------------------------------------------------------

    def send(self, request: int, span: Span) -> None:
        """Send these bytes, after those of other requests. They must not change until `sent` is told."""
        self._sending.append(Sending(request, span.memory))
        self._pump()

    def stop(self, request: int) -> None:
        """Send no more of the request. `sent` is told when nothing of it waits to be written."""
        for one in list(self._sending):
            if one.request == request:
                self._sending.remove(one)
                self._over.append(request)
                self._pump()

    def refuse(self, request: int, why: str) -> None:
        """There is no more of what was asked for."""
        self._say(Never(request, why))

    # --- for connections ----------------------------------------------------------------------------

    def attach(self, connection: _Connection, own: int) -> None:
        """Both sides have said hello: use this connection. `own`: this host's incarnation."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._own = connection, own
        self._news.connected(self.peer)

    def detach(self, connection: _Connection) -> None:
        """The connection has gone."""
        if connection is self._connection:
            self._connection = None
            self._forget()
            self._news.disconnected(self.peer)

    def frame(self, frame: Frame) -> None:
        """The other host has said this. Raises MessageUnreadable."""
        match frame:
            case Fetch(number, segment, incarnation, fields, begin, end):
                item_of(fields)  # what names no item breaks this connection
                if incarnation == self._own:
                    self._news.asked(self.peer, number, Named(segment, fields), begin, end)
                else:
                    self.refuse(number, f"incarnation {incarnation} has ended")
            case Cancel(number):
                self._news.cancelled(self.peer, number)
            case Never(number, why):
                self._news.refused(self.peer, number, one_line(why))
            case _:
                raise MessageUnreadable(f"a {type(frame).__name__} may not come now")

    def begins(self, part: BytesFrame) -> None:
        """These bytes come now. Raises MessageUnreadable."""
        if part.length > PART:
            raise MessageUnreadable(f"a part would have {part.length:,} bytes, and may have {PART:,}")
        memory = self.memory(part.number)
        if memory is not None and not 0 < part.length <= memory.nbytes:
            raise MessageUnreadable(f"a part has {part.length:,} bytes, and {memory.nbytes:,} are missing")

    def memory(self, request: int) -> memoryview | None:
        """See `BulkNews`."""
        there = self._news.memory(self.peer, request)
        return None if there is None else there.memory

    def came(self, request: int, count: int) -> None:
        """See `BulkNews`."""
        self._news.came(self.peer, request, count)

    def drained(self) -> bool:
        """Nothing waits for room: write the next part. Return whether there is more to write."""
        over, self._over = self._over, []
        for request in over:
            self._news.sent(self.peer, request)
        if self._sending and self._connection is not None:
            if self._connection.sent >= MOST_SENT:
                self._connection.renew()
                return False
            one = self._sending[0]
            most = self._may_leave(one)
            if not most:
                return False
            part, one.left = one.left[:most], one.left[most:]
            if not one.left:
                self._sending.popleft()
                self._over.append(one.request)
            self._say(BytesFrame(one.request, part.nbytes))
            self._connection.stream.write(part)
            self._connection.sent += part.nbytes
        return bool(self._sending or self._over)

    # --- inside -------------------------------------------------------------------------------------

    def _may_leave(self, one: Sending) -> int:
        """How many of these bytes may be written now. If none may, `_pump` is called once some may."""
        return PART

    def _forget(self) -> None:
        """The connection is lost, with all that was asked over it."""
        self._sending.clear()
        self._over.clear()

    def _pump(self) -> None:
        if self._connection is not None:
            self._connection.stream.pump()

    def _say(self, frame: Frame) -> None:
        if self._connection is not None:
            self._connection.stream.write(written(frame))


class _Connection:
    """One connection: frames, and the raw bytes that follow a `BytesFrame`. Not a byte more is read than is wanted."""

    def __init__(
        self,
        end: Any,
        loop: Loop,
        timeout: float,
        *,
        greeted: Callable[[_Connection, Hello | Refused], object],
        lost: Callable[[_Connection], object],
        show: Callable[[str], object],
    ) -> None:
        """`greeted` takes the first frame, and calls `open` or `close`. `lost` is not called after `close`."""
        self.sent = 0
        """Bytes of parts."""
        self._greeted = greeted
        self._lost = lost
        self._show = show
        self._bulk: PeerExchange | None = None
        self._head = memoryview(bytearray(LENGTH.size + LONGEST_HELLO))
        self._filled, self._wanted = 0, LENGTH.size
        self._request, self._left = 0, 0
        """The present part: its request, and its bytes that have not come."""
        self.stream = Stream(
            end,
            loop,
            timeout=timeout,
            most=MOST_WAITING,
            heard=self._heard,
            lost=self._gone,
            drained=self._drained,
        )

    def open(self, bulk: PeerExchange, own: int) -> None:
        """Both sides have said hello."""
        self._bulk = bulk
        bulk.attach(self, own)

    def close(self, line: str = "") -> None:
        """Close the connection, and show this line."""
        self.stream.close()
        if line:
            self._show(line)
        if self._bulk is not None:
            self._bulk.detach(self)

    def renew(self) -> None:
        """Close the connection, so that whoever has dialled dials again. What was asked for is asked for once more."""
        self._gone("")

    def break_off(self, why: str) -> None:
        """Close the connection, as the other side has said what it may not."""
        bulk = self._bulk
        what = "connection refused" if bulk is None else f"data connection to host {bulk.peer.host} closed"
        self.close(f"{what}: {one_line(why)}")
        self._lost(self)

    def _gone(self, why: str) -> None:
        self.close()
        self._lost(self)

    def _drained(self) -> bool:
        return self._bulk is not None and self._bulk.drained()

    def _heard(self) -> None:
        room = AT_ONCE
        try:
            while room > 0 and not self.stream.closed:
                came = self._payload(room) if self._left else self._frame()
                if not came:
                    return
                room -= came
        except MessageUnreadable as error:
            self.break_off(str(error))

    def _payload(self, most: int) -> int:
        assert self._bulk is not None
        most = min(most, self._left)
        memory = self._bulk.memory(self._request)
        came = self.stream.receive_into((_SCRATCH if memory is None else memory)[:most])
        self._left -= came
        if came and memory is not None:
            self._bulk.came(self._request, came)
        return came

    def _frame(self) -> int:
        came = self.stream.receive_into(self._head[self._filled : self._wanted])
        self._filled += came
        if not came or self._filled < self._wanted:
            return came
        if self._wanted == LENGTH.size:
            (length,) = LENGTH.unpack_from(self._head)
            if not 0 < length <= LONGEST_HELLO:
                raise MessageUnreadable(too_long(length, LONGEST_HELLO) if length else "it is empty")
            self._wanted += length
        else:
            body = self._head[LENGTH.size : self._wanted]
            self._filled, self._wanted = 0, LENGTH.size
            self._read(body)
        return came

    def _read(self, body: memoryview) -> None:
        try:
            frame = _FRAMES.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise MessageUnreadable(str(error)) from error
        if self._bulk is None:
            if not isinstance(frame, Hello | Refused):
                raise MessageUnreadable(f"a {type(frame).__name__} may not come now")
            self._greeted(self, frame)
        elif isinstance(frame, BytesFrame):
            self._bulk.begins(frame)
            self._request, self._left = frame.number, frame.length
        else:
            self._bulk.frame(frame)


class Port:
    """The side of the host that is dialled."""

    def __init__(
        self, door: HostListener, loop: Loop, hello: Hello, show: Callable[[str], object], timeout: float = 15.0
    ) -> None:
        """`hello`: this host's. `door`: where other hosts dial. It is to be closed before the port."""
        self._loop = loop
        self._hello = hello
        self._timeout = timeout
        self._expected: dict[str, PeerExchange] = {}
        self._strangers: dict[_Connection, None] = {}
        self._lines = Lines(show, loop.now)
        door.serves(PURPOSE, self._opened)

    def expect(self, bulk: PeerExchange) -> None:
        """That host may dial, and no other incarnation of it."""
        self._expected[bulk.peer.host] = bulk

    def close(self) -> None:
        """Take no more connections. Hosts that have dialled stay connected until their `PeerExchange` ends."""
        for stranger in list(self._strangers):
            stranger.close()
        self._strangers.clear()

    def _opened(self, end: Any) -> None:
        stranger = _Connection(
            end, self._loop, self._timeout, greeted=self._greeted, lost=self._lost, show=self._lines.show
        )
        self._strangers[stranger] = None
        self._loop.after(HANDSHAKE, partial(self._overdue, stranger))

    def _greeted(self, stranger: _Connection, hello: Hello | Refused) -> None:
        if isinstance(hello, Refused):
            raise MessageUnreadable("a Refused may not come now")
        same_run = hello.nonce == self._hello.nonce
        bulk = self._expected.get(hello.host) if same_run else None
        if bulk is None or bulk.ended or bulk.peer.incarnation != hello.incarnation:
            which = f"incarnation {hello.incarnation} of host {hello.host}"
            why = f"{which} is not expected here" if same_run else f"host {hello.host} has another run than this one"
            stranger.stream.write(written(Refused(why)))
            over = bulk is not None and bulk.ended and hello.incarnation == bulk.peer.incarnation
            self._turn_away(stranger, "" if over else one_line(why))
            return
        del self._strangers[stranger]
        stranger.stream.write(written(self._hello))
        stranger.open(bulk, self._hello.incarnation)

    def _lost(self, stranger: _Connection) -> None:
        self._strangers.pop(stranger, None)

    def _turn_away(self, stranger: _Connection, why: str) -> None:
        """`why` is shown. Empty: it is known that its host is over, which hears of that only now."""
        del self._strangers[stranger]
        stranger.close(why and f"connection refused: {why}")

    def _overdue(self, stranger: _Connection) -> None:
        if stranger in self._strangers:
            self._turn_away(stranger, f"it has said nothing for {HANDSHAKE:.0f} s")


class Dialler:
    """Connects a `PeerExchange` with the host that it is for, and again after each loss, until either ends."""

    def __init__(
        self,
        bulk: PeerExchange,
        address: Address,
        keys: Keys,
        loop: Loop,
        hello: Hello,
        show: Callable[[str], object],
        timeout: float = 15.0,
    ) -> None:
        """`address`: where the other host listens. `hello`: this host's."""
        self._bulk = bulk
        self._address = address
        self._keys = keys
        self._loop = loop
        self._hello = hello
        self._timeout = timeout
        self._lines = Lines(show, loop.now)
        self._connection: _Connection | Handshake[Opened] | None = None
        """One over which hello is still to be said."""
        self._opened_at: float | None = None
        self._pause = SHORTEST_PAUSE
        self._closed = False
        loop.after(0.0, self._dial)

    def close(self) -> None:
        """Dial no more. A connection that is open stays so until its `PeerExchange` ends."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def _dial(self) -> None:
        if self._closed or self._bulk.ended:
            return
        self._opened_at = None
        try:
            opening = dial(self._address, self._keys, PURPOSE, self._loop, opened=self._opened, failed=self._not_opened)
        except OSError:
            self._again()
            return
        self._connection = opening
        self._loop.after(HANDSHAKE, partial(self._overdue, opening))

    def _not_opened(self, why: str, final: bool) -> None:
        if final:
            self._lines.show(f"no data connection to host {self._bulk.peer.host}: {why}")
        self._again()

    def _opened(self, end: Any) -> None:
        connection = self._connection = _Connection(
            end,
            self._loop,
            self._timeout,
            greeted=self._greeted,
            lost=lambda _: self._again(),
            show=self._lines.show,
        )
        connection.stream.write(written(self._hello))
        self._loop.after(HANDSHAKE, partial(self._overdue, connection))

    def _greeted(self, connection: _Connection, hello: Hello | Refused) -> None:
        why = None
        host, incarnation = self._bulk.peer
        if isinstance(hello, Refused):
            why = hello.why
        elif (hello.host, hello.incarnation) != (host, incarnation):
            why = f"incarnation {hello.incarnation} of host {hello.host} answers for {incarnation} of {host}"
        if why is not None:
            connection.close(f"no data connection to host {host}: {one_line(why)}")
            self._again()
            return
        self._connection, self._opened_at = None, self._loop.now()
        connection.open(self._bulk, self._hello.incarnation)

    def _overdue(self, connection: _Connection | Handshake[Opened]) -> None:
        if connection is self._connection:
            connection.close()
            self._again()

    def _again(self) -> None:
        """Dial after a pause: a short one if the connection was good for a while."""
        self._connection = None
        if self._opened_at is not None and self._loop.now() >= self._opened_at + LONGEST_PAUSE:
            self._pause = SHORTEST_PAUSE
        self._loop.after(self._pause, self._dial)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
