"""Items between two hosts: one TCP connection a pair, used both ways, in the loop.

    fetch(item, into, done, lost)   Bulk ── Fetch ──────────────────────►  Bulk   find(item)
                                      │  ◄── Part, and its raw bytes ──     │     there(item), never(item, why)
                                      └───── Cancel ─────────────────►      │     served(item)

A `Bulk` is what one host exchanges with one incarnation of another, over whichever connection there is. A `Dialler`
gives it one, and another after a loss. At the other side a `Port` does, which listens. Both sides say `Hello` first, as
in control. A fetch that is under way when a connection breaks begins again over the next.

Bytes go from the owner's memory into the receiver's, a part at a time, and are copied by the kernel alone. Answers come
in the order in which items are there. A fetch names the segment and the incarnation that it is for. When either ends,
`lost` is told.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, cast

import msgspec

from paceline.core.items import Beginning, Blob, Item, Mean, Replica, Update, Version
from paceline.errors import MessageUnreadable
from paceline.fabric.control import (
    HANDSHAKE,
    LONGEST_HELLO,
    LONGEST_PAUSE,
    MOST_STRANGERS,
    PROTOCOL,
    SHORTEST_PAUSE,
    Check,
    Hello,
    Refused,
    one_line,
)
from paceline.fabric.endpoint import LENGTH, too_long
from paceline.fabric.numbered import Count, Frame, written
from paceline.host.loop import Alarm, Loop
from paceline.host.tcp import AT_ONCE, Address, Lines, Listener, Stream

PART = 1 << 20
"""Bytes that are sent without a look at what else there is. A fetch is cancelled between two parts."""
MOST_ASKED = 10_000
"""Items that the other host may ask for at a time. A run has a few for each worker."""
MOST_WAITING = 16 << 20
"""Bytes that may wait for one connection: one part, and small frames beside it."""


_KINDS: dict[str, type[Any]] = {
    "version": Version,
    "update": Update,
    "replica": Replica,
    "mean": Mean,
    "beginning": Beginning,
    "blob": Blob,
}
Fields = Annotated[tuple[Count | Annotated[str, msgspec.Meta(max_length=200)], ...], msgspec.Meta(max_length=8)]


class Fetch(Frame):
    """Send this item, once it is there."""

    number: Count
    segment: Count
    incarnation: Count
    """Of the host that is asked."""
    item: Fields
    size: Count


class Cancel(Frame):
    """Send no more of that fetch."""

    number: Count


class Part(Frame):
    """So many raw bytes of that fetch come right after this frame."""

    number: Count
    length: Count


class Never(Frame):
    """That fetch gets no more."""

    number: Count
    why: str


_FRAMES = msgspec.msgpack.Decoder(Hello | Refused | Fetch | Cancel | Part | Never)
_SCRATCH = memoryview(bytearray(64 << 10))
"""Where bytes go that nobody wants any more."""


@dataclass(slots=True, eq=False)
class _Fetched:
    """An item that is fetched."""

    number: int
    item: Item
    memory: memoryview
    waiting: list[tuple[Callable[[], object], Callable[[str], object]]] = field(default_factory=list)
    came: int = 0
    live: bool = True
    """Whether anybody waits for it. Its memory isn't written to otherwise."""


@dataclass(slots=True, eq=False)
class _Asked:
    """An item that the other host has asked for."""

    number: int
    segment: int
    item: Item
    size: int
    memory: memoryview | None = None
    """None: it is not there yet."""
    sent: int = 0


class Bulk:
    """What this host exchanges with one incarnation of another host."""

    def __init__(
        self,
        loop: Loop,
        host: str,
        incarnation: int,
        find: Callable[[Item], memoryview | None],
        served: Callable[[Item], object],
        segment: int = 0,
    ) -> None:
        """`host` and `incarnation` are the other's.

        `find` returns where an item lies that the other host asks for. None: it isn't there yet; call `there` when it
        is. What it has returned must not change until `served` is called, which happens once for each. An item may
        be found once more before that, if the other host asks for it again.
        """
        self.host = host
        self.incarnation = incarnation
        self.segment = segment
        self._loop = loop
        self._find = find
        self._served = served
        self._connection: _Connection | None = None
        self._own = 0
        """This host's incarnation, as it has told the other."""
        self._why = ""
        """Why the other host has ended."""
        self._number = 0
        self._fetched: dict[Item, _Fetched] = {}
        self._fetched_by: dict[int, _Fetched] = {}
        self._asked: dict[Item, _Asked] = {}
        self._asked_by: dict[int, _Asked] = {}
        self._sending: deque[_Asked] = deque()
        self._sent: list[Item] = []
        """What is sent or cancelled, while its last bytes may wait for room."""

    # --- what is fetched ----------------------------------------------------------------------------

    def fetch(self, item: Item, into: memoryview, done: Callable[[], object], lost: Callable[[str], object]) -> None:
        """Bring the item into this memory, whose size is the item's. Then call `done`, or `lost` with why it can't.

        A second fetch of an item that is under way joins the first, into the first one's memory.
        """
        one = self._fetched.get(item)
        if one is None:
            self._number += 1
            one = _Fetched(self._number, item, into.cast("B"))
            self._fetched[item] = self._fetched_by[one.number] = one
            if self._why:
                self._loop.after(0.0, partial(self._lose, one, self._why))
            else:
                self._ask(one)
        assert one.memory.nbytes == into.nbytes, f"{item} has one size"
        one.waiting.append((done, lost))

    def cancel(self, item: Item) -> None:
        """Nobody needs the item any more. Its memory isn't written to from now on, and nobody is told anything."""
        if (one := self._fetched.get(item)) is not None:
            self._forget(one)
            self._say(Cancel(one.number))

    # --- what is served -----------------------------------------------------------------------------

    def there(self, item: Item) -> None:
        """`find` returns the item from now on."""
        one = self._asked.get(item)
        if one is not None and one.memory is None and one.segment == self.segment:
            self._look(one)

    def never(self, item: Item, why: str) -> None:
        """The item can't come any more."""
        if (one := self._asked.get(item)) is not None:
            self._refuse(one, why)

    # --- ends ---------------------------------------------------------------------------------------

    def begins(self, segment: int) -> None:
        """This segment begins, and the one before has ended. Who is ahead of this host has waited for that."""
        self.segment = segment
        for fetched in list(self._fetched.values()):
            self._say(Cancel(fetched.number))
            self._lose(fetched, f"segment {segment} has begun")
        for asked in list(self._asked.values()):
            if asked.segment < segment:
                self._refuse(asked, f"segment {segment} has begun")
            elif asked.segment == segment and asked.memory is None:
                self._look(asked)

    def end(self, why: str) -> None:
        """The other host has ended: nothing is fetched or served any more."""
        if self._why:
            return
        self._why = why
        if self._connection is not None:
            self._connection.close()
        for one in list(self._fetched.values()):
            self._lose(one, why)

    @property
    def ended(self) -> bool:
        """Whether the other host has ended."""
        return bool(self._why)

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None

    # --- for connections ----------------------------------------------------------------------------

    def attach(self, connection: _Connection, own: int) -> None:
        """Both sides have said hello: use this connection. `own`: this host's incarnation."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._own = connection, own
        for one in list(self._fetched.values()):
            one.came = 0
            self._ask(one)

    def detach(self, connection: _Connection) -> None:
        """The connection has gone."""
        if connection is not self._connection:
            return
        self._connection = None
        over = [one.item for one in self._asked.values() if one.memory is not None]
        over, self._sent = self._sent + over, []
        self._asked.clear()
        self._asked_by.clear()
        self._sending.clear()
        for item in over:
            self._served(item)

    def frame(self, frame: Frame) -> None:
        """The other host has said this. Raises MessageUnreadable."""
        match frame:
            case Fetch():
                self._is_asked(frame)
            case Cancel(number):
                if (asked := self._asked_by.get(number)) is not None:
                    self._drop(asked)
            case Never(number, why):
                if (fetched := self._known(number)) is not None:
                    self._lose(fetched, one_line(why))
            case _:
                raise MessageUnreadable(f"a {type(frame).__name__} may not come now")

    def begins_part(self, part: Part) -> _Fetched | None:
        """These bytes come now. Return what for, or None if nobody waits for them. Raises MessageUnreadable."""
        if part.length > PART:
            raise MessageUnreadable(f"a part would have {part.length:,} bytes, and may have {PART:,}")
        one = self._known(part.number)
        if one is not None:
            left = one.memory.nbytes - one.came
            if part.length > left or (left and not part.length):
                raise MessageUnreadable(f"a part has {part.length:,} bytes, and {left:,} are left of {one.item}")
        return one

    def part_came(self, one: _Fetched) -> None:
        """A part is whole."""
        if one.live and one.came == one.memory.nbytes:
            self._forget(one)
            for done, _ in one.waiting:
                done()

    def drained(self) -> bool:
        """Nothing waits for room: write the next part. Return whether there is more to write."""
        sent, self._sent = self._sent, []
        for item in sent:
            self._served(item)
        if self._sending and self._connection is not None:
            one = self._sending[0]
            assert one.memory is not None
            part = one.memory[one.sent : one.sent + PART]
            one.sent += part.nbytes
            self._say(Part(one.number, part.nbytes))
            self._connection.stream.write(part)
            if one.sent == one.size:
                self._drop(one)
        return bool(self._sending or self._sent)

    # --- inside -------------------------------------------------------------------------------------

    def _ask(self, one: _Fetched) -> None:
        self._say(Fetch(one.number, self.segment, self.incarnation, _fields(one.item), one.memory.nbytes))

    def _known(self, number: int) -> _Fetched | None:
        if number > self._number:
            raise MessageUnreadable(f"fetch {number:,} is answered, and there were {self._number:,}")
        return self._fetched_by.get(number)

    def _lose(self, one: _Fetched, why: str) -> None:
        if one.live:
            self._forget(one)
            for _, lost in one.waiting:
                lost(why)

    def _forget(self, one: _Fetched) -> None:
        one.live = False
        del self._fetched[one.item], self._fetched_by[one.number]

    def _is_asked(self, fetch: Fetch) -> None:
        item = _item(fetch.item)
        if item in self._asked or fetch.number in self._asked_by:
            raise MessageUnreadable(f"{item} is asked for twice")
        if len(self._asked) >= MOST_ASKED:
            raise MessageUnreadable(f"it asks for more than {MOST_ASKED:,} items at a time")
        one = _Asked(fetch.number, fetch.segment, item, fetch.size)
        self._asked[item] = self._asked_by[one.number] = one
        if fetch.incarnation != self._own:
            self._refuse(one, f"incarnation {fetch.incarnation} has ended")
        elif fetch.segment < self.segment:
            self._refuse(one, f"segment {self.segment} has begun")
        elif fetch.segment == self.segment:
            self._look(one)

    def _look(self, one: _Asked) -> None:
        memory = self._find(one.item)
        if memory is None:
            return
        one.memory = memory.cast("B")
        if one.memory.nbytes != one.size:
            self._refuse(one, f"{one.item} has {one.memory.nbytes:,} bytes here, and {one.size:,} were asked for")
            return
        self._sending.append(one)
        self._pump()

    def _refuse(self, one: _Asked, why: str) -> None:
        self._drop(one)
        self._say(Never(one.number, why))

    def _drop(self, one: _Asked) -> None:
        """It is over, but for its bytes that wait for room."""
        del self._asked[one.item], self._asked_by[one.number]
        if one.memory is not None:
            if one in self._sending:
                self._sending.remove(one)
            self._sent.append(one.item)
            self._pump()

    def _pump(self) -> None:
        if self._connection is not None:
            self._connection.stream.pump()

    def _say(self, frame: Frame) -> None:
        if self._connection is not None:
            self._connection.stream.write(written(frame))


class _Connection:
    """One connection: frames, and the raw bytes that follow a `Part`. Not a byte more is read than is wanted."""

    def __init__(
        self,
        end: socket.socket,
        loop: Loop,
        timeout: float,
        *,
        greeted: Callable[[_Connection, Hello | Refused], object],
        lost: Callable[[_Connection], object],
        show: Callable[[str], object],
        dialled: Callable[[], object] | None = None,
    ) -> None:
        """`greeted` takes the first frame, and calls `open` or `close`. `lost` is not called after `close`."""
        self.since = loop.now()
        self._greeted = greeted
        self._lost = lost
        self._show = show
        self._bulk: Bulk | None = None
        self._head = memoryview(bytearray(LENGTH.size + LONGEST_HELLO))
        self._filled, self._wanted = 0, LENGTH.size
        self._left = 0
        """Bytes of the present part that have not come."""
        self._part: _Fetched | None = None
        self.stream = Stream(
            end,
            loop,
            timeout=timeout,
            most=MOST_WAITING,
            heard=self._heard,
            lost=self._gone,
            dialled=dialled,
            drained=self._drained,
        )

    def open(self, bulk: Bulk, own: int) -> None:
        """The other end is who it says to be."""
        self._bulk = bulk
        bulk.attach(self, own)

    def close(self, line: str = "") -> None:
        """Close the connection, and show this line."""
        self.stream.close()
        if line:
            self._show(line)
        if self._bulk is not None:
            self._bulk.detach(self)

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
            who = "connection refused" if self._bulk is None else f"data connection to host {self._bulk.host} closed"
            self.close(f"{who}: {one_line(str(error))}")
            self._lost(self)

    def _payload(self, most: int) -> int:
        most = min(most, self._left)
        part = self._part
        if part is not None and part.live:
            came = self.stream.receive_into(part.memory[part.came : part.came + most])
            part.came += came
        else:
            came = self.stream.receive_into(_SCRATCH[:most])
        self._left -= came
        if came and not self._left:
            self._part_came()
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
        elif isinstance(frame, Part):
            self._part, self._left = self._bulk.begins_part(frame), frame.length
            if not frame.length:
                self._part_came()
        else:
            self._bulk.frame(frame)

    def _part_came(self) -> None:
        part, self._part = self._part, None
        if part is not None and self._bulk is not None:
            self._bulk.part_came(part)


class Port:
    """Where other hosts dial."""

    def __init__(
        self,
        listener: socket.socket,
        loop: Loop,
        hello: Hello,
        check: Check,
        show: Callable[[str], object],
        timeout: float = 15.0,
    ) -> None:
        """`hello`: this host's. `check` says what is wrong with another's. `listener`: see `tcp.listen`."""
        self._loop = loop
        self._hello = hello
        self._check = check
        self._timeout = timeout
        self._expected: dict[str, Bulk] = {}
        self._strangers: dict[_Connection, None] = {}
        self._lines = Lines(show, loop.now)
        self._alarm = Alarm(loop, self._see_to_silence)
        self._listener = Listener(listener, loop, self._accepted, show)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._listener.address

    def expect(self, bulk: Bulk) -> None:
        """That host may dial, and no other incarnation of it."""
        self._expected[bulk.host] = bulk

    def close(self) -> None:
        """Listen no more. Hosts that have dialled stay connected until their `Bulk` ends."""
        self._alarm.turn_off()
        self._listener.close()
        for stranger in list(self._strangers):
            stranger.close()
        self._strangers.clear()

    def _accepted(self, end: socket.socket) -> None:
        if len(self._strangers) >= MOST_STRANGERS:
            self._turn_away(next(iter(self._strangers)), "too many connections have said nothing")
        stranger = _Connection(
            end, self._loop, self._timeout, greeted=self._greeted, lost=self._lost, show=self._lines.show
        )
        self._strangers[stranger] = None
        self._alarm.set(stranger.since + HANDSHAKE)

    def _greeted(self, stranger: _Connection, hello: Hello | Refused) -> None:
        if isinstance(hello, Refused):
            raise MessageUnreadable("a Refused may not come now")
        bulk = self._expected.get(hello.host)
        why = _wrong(hello, self._check)
        if why is None and (bulk is None or bulk.ended or bulk.incarnation != hello.incarnation):
            why = f"incarnation {hello.incarnation} of host {hello.host} is not expected here"
        if why is not None or bulk is None:
            stranger.stream.write(written(Refused(why or "")))
            self._turn_away(stranger, one_line(why or ""))
            return
        del self._strangers[stranger]
        stranger.stream.write(written(self._hello))
        stranger.open(bulk, self._hello.incarnation)

    def _lost(self, stranger: _Connection) -> None:
        self._strangers.pop(stranger, None)

    def _turn_away(self, stranger: _Connection, why: str) -> None:
        del self._strangers[stranger]
        stranger.close(f"connection refused: {why}")

    def _see_to_silence(self) -> None:
        for stranger in list(self._strangers):
            if self._loop.now() < stranger.since + HANDSHAKE:
                self._alarm.set(stranger.since + HANDSHAKE)
                return
            self._turn_away(stranger, f"it has said nothing for {HANDSHAKE:.0f} s")


class Dialler:
    """Connects a `Bulk` with the host that it is for, and again after each loss, until either ends."""

    def __init__(
        self,
        bulk: Bulk,
        address: Address,
        loop: Loop,
        hello: Hello,
        check: Check,
        show: Callable[[str], object],
        timeout: float = 15.0,
    ) -> None:
        """`address`: where the other host listens. `hello`: this host's. `check` says what is wrong with the other."""
        self._bulk = bulk
        self._address = address
        self._loop = loop
        self._hello = hello
        self._check = check
        self._timeout = timeout
        self._lines = Lines(show, loop.now)
        self._connection: _Connection | None = None
        """One that has not been opened."""
        self._opened_at: float | None = None
        self._pause = SHORTEST_PAUSE
        self._closed = False
        loop.after(0.0, self._dial)

    def close(self) -> None:
        """Dial no more. A connection that is open stays so until its `Bulk` ends."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def _dial(self) -> None:
        if self._closed or self._bulk.ended:
            return
        self._opened_at = None
        try:
            end = self._loop.dial(self._address)
        except OSError:
            self._again()
            return
        connection = self._connection = _Connection(
            end,
            self._loop,
            self._timeout,
            greeted=self._greeted,
            lost=lambda _: self._again(),
            show=self._lines.show,
            dialled=lambda: connection.stream.write(written(self._hello)),
        )
        self._loop.after(HANDSHAKE, partial(self._overdue, connection))

    def _greeted(self, connection: _Connection, hello: Hello | Refused) -> None:
        why = one_line(hello.why) if isinstance(hello, Refused) else _wrong(hello, self._check)
        other = (self._bulk.host, self._bulk.incarnation)
        if why is None and isinstance(hello, Hello) and (hello.host, hello.incarnation) != other:
            why = f"incarnation {hello.incarnation} of host {hello.host} answers for {other[1]} of {other[0]}"
        if why is not None:
            connection.close(f"no data connection to host {self._bulk.host}: {one_line(why)}")
            self._again()
            return
        self._connection, self._opened_at = None, self._loop.now()
        connection.open(self._bulk, self._hello.incarnation)

    def _overdue(self, connection: _Connection) -> None:
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


def _fields(item: Item) -> Fields:
    return cast(Fields, tuple(item))


def _item(fields: Fields) -> Item:
    kind = _KINDS.get(str(fields[-1])) if fields else None
    if kind is None:
        raise MessageUnreadable("it names no item")
    try:
        return cast(Item, msgspec.convert(fields, kind))
    except msgspec.ValidationError as error:
        raise MessageUnreadable(f"it names no {kind.__name__}: {error}") from error


def _wrong(hello: Hello, check: Check) -> str | None:
    if hello.protocol != PROTOCOL:
        return f"it speaks version {hello.protocol} of what hosts say to each other, and this one speaks {PROTOCOL}"
    return check(hello)
