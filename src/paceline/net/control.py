"""Control messages between the head and the other hosts, over connections that break and come back.

A host has one `HostEnd`. The head has one `HeadEnd` for all hosts. Both are pure: no socket, no clock, no thread. A
driver tells them what has happened, and carries out what they return:

    fact, by the driver                 orders and events, in the order in which they are to be handled
    connected(connection, now, …)       DialHead    connect to the head (hosts only), as this connection
    received(connection, data, now)     Write       send these bytes
    lost(connection, why, now)          Close       write what there is room for, and close
    tick(now), at the latest at due()   HostConnected, HostDisconnected, HeardFrom, BeatAcknowledged: the host's state
    send(..., now)                      Delivered   a message, once and in order
                                        HostCame    a new host: answer with `admit` or `refuse` before the next fact
                                        IncarnationEnded  nothing more can be exchanged with this incarnation

`connection` is a number: at the head any that the driver has not used before, at a host the one in `DialHead`. A fact
about a closed connection has no effect. `now` is in seconds on any clock that never goes back. At a host the clock
should keep running while the machine sleeps.

The host dials and sends `Hello`. The head answers with its own `Hello`, or with `Refused`. A new host has incarnation
0, and the head assigns it one. From then on its `Hello` names that incarnation, and each side says how many messages it
has received. Both then resend the rest (see `net.numbered`). So a message is delivered at most once, and exactly once
if the incarnation lives long enough. A newer connection of an incarnation replaces the older one.

The host sends a beat every fifth of its timeout. The head answers each beat, so the host knows that it was heard.
`core.host_liveness` judges which hosts are lost, not these ends. A host whose connection is silent for three beats
dials again.

An unreadable frame closes the connection, with one line in `Close`. A message that is none of `kinds` ends the
incarnation, as it would be resent over every connection. An end keeps at most `MOST_MESSAGES` messages and `MOST_KEPT`
bytes that are not acknowledged. One more ends the incarnation, as the other side has stopped reading.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import msgspec

from paceline.errors import MessageUnreadable
from paceline.ipc.endpoint import Count, Frames
from paceline.net.numbered import (
    LONGEST,
    LONGEST_SAID,
    Acknowledged,
    Beat,
    BeatHeard,
    Data,
    Frame,
    Full,
    Line,
    NeverReadable,
    written,
)

HANDSHAKE = 5.0
"""Seconds that a connection has for its `Hello`."""
LONGEST_HELLO = 4 << 10
"""Bytes of the longest message before both sides have sent `Hello`."""
ANOTHER_RUN = "the head that listens there has another run than the one that this host has taken part in"
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds before a host dials again. The pause doubles after each failure."""


class Hello(Frame):
    """The first frame each way."""

    host: str
    """The sender's name."""
    nonce: bytes
    """Random bytes. A host draws them for each incarnation, so another host of the same name is told apart. The head's
    stand for the run, as do all hosts' where hosts exchange data."""
    incarnation: Count
    """The one that the head has assigned to the host. 0: the host is new."""
    received: Count
    """The number of the last message that has come."""
    named: bool = True
    """Whether the user has named the host. If not, it has its machine's name, or another if that is taken."""
    run: bytes = b""
    """The nonce of the head in whose run the host has taken part before. Empty: it may join any run."""


class Refused(Frame):
    """The head refuses this host for good."""

    why: str


_FRAMES = msgspec.msgpack.Decoder(Hello | Refused | Data | Acknowledged | Beat | BeatHeard)


# orders to the driver
@dataclass(frozen=True, slots=True)
class DialHead:
    """Open a connection to the head. Tell `connected`, or `lost` if that fails."""

    connection: int


@dataclass(frozen=True, slots=True)
class Write:
    """Send these bytes, after those of earlier orders."""

    connection: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Write what there is room for now, and close the connection. Drop what it still brings."""

    connection: int
    why: str
    """One line to show, or an empty one."""


# events; `host` and `incarnation` name the host at both ends


@dataclass(frozen=True, slots=True)
class HostCame:
    """At the head: a host asks to take part. Call `admit` or `refuse` before telling any other fact."""

    connection: int
    host: str


@dataclass(frozen=True, slots=True)
class HostConnected:
    """Messages can go both ways now."""

    host: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class HostDisconnected:
    """The connection was lost. The incarnation goes on over the next one."""

    host: str
    incarnation: int
    why: str


@dataclass(frozen=True, slots=True)
class HeardFrom:
    """At the head: bytes have come from this host."""

    host: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class BeatAcknowledged:
    """At a host: the head has heard a beat, or the first `Hello`, which was sent at `sent`."""

    sent: float


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message has come from this host, or to it."""

    host: str
    incarnation: int
    message: Any


@dataclass(frozen=True, slots=True)
class IncarnationEnded:
    """This incarnation can exchange nothing more.

    A host's workers have to end. A new `HostEnd` may begin then, best after a second, as it dials at once.
    """

    host: str
    incarnation: int
    why: str


Order = DialHead | Write | Close
Event = HostCame | HostConnected | HostDisconnected | HeardFrom | BeatAcknowledged | Delivered | IncarnationEnded
Outcome = list[Order | Event]


class HostEnd:
    """A host's end, for one incarnation. It dials the head until the incarnation has ended."""

    def __init__(
        self, host: str, nonce: bytes, kinds: Any, *, timeout: float = 15.0, named: bool = True, run: bytes = b""
    ) -> None:
        """`kinds`: the union of what the head may send. `timeout`: seconds after which silence means a loss.

        `named`, `run`: see `Hello`.
        """
        self.host = host
        self.run = run
        """The run that it belongs to. Empty until a head has admitted it."""
        self._named = named
        self.incarnation = 0
        """0 until the head has assigned one."""
        self._nonce = nonce
        self._every = timeout / 5
        self._line = Line(kinds, LONGEST_SAID)
        self._frames = Frames(LONGEST_HELLO)
        self._connection = 0
        self._stage = "away"
        """`away`, `dialling`, `greeting`, `open`, and `away` again; or `ended`."""
        self._since = 0.0
        """When the stage began, or bytes last came."""
        self._dial_at = float("-inf")
        self._pause = SHORTEST_PAUSE
        self._beat = 0
        self._beat_at = 0.0
        self._beats: deque[tuple[int, float]] = deque()
        """This connection's unanswered beats, and when each was sent."""

    @property
    def unacknowledged(self) -> int:
        """How many messages the head has not acknowledged."""
        return self._line.unacknowledged

    def connected(self, connection: int, now: float) -> Outcome:
        """The connection is opened."""
        if connection != self._connection or self._stage != "dialling":
            return []
        self._stage, self._since, self._frames = "greeting", now, Frames(LONGEST_HELLO)
        hello = Hello(self.host, self._nonce, self.incarnation, self._line.received, self._named, self.run)
        return [Write(connection, written(hello))]

    def received(self, connection: int, data: bytes, now: float) -> Outcome:
        """These bytes have come."""
        if connection != self._connection or self._stage not in ("greeting", "open"):
            return []
        self._since = now if self._stage == "open" else self._since
        outcome: Outcome = []
        try:
            for body in self._frames.receive(data):
                self._frame(_read(body), now, outcome)
                if connection != self._connection or self._stage not in ("greeting", "open"):
                    return outcome
        except NeverReadable as error:
            outcome += self._end(f"the head has sent what can't be read: {error}", show=True)
        except MessageUnreadable as error:
            outcome += self._close(f"connection to the head closed: {error}", now)
        else:
            outcome += self._acknowledge(now)
        return outcome

    def lost(self, connection: int, why: str, now: float) -> Outcome:
        """The connection has gone, or was never made."""
        if connection != self._connection or self._stage in ("away", "ended"):
            return []
        return self._away(why, now)

    def send(self, message: msgspec.Struct, now: float) -> Outcome:
        """Send the message to the head, now or after a reconnect. Raises ValueError if it is too long."""
        if self._stage == "ended":
            return []
        try:
            data = self._line.send(message)
        except Full as error:
            return self._end(f"the head does not take what this host sends: {error}", show=True)
        return [Write(self._connection, data)] if self._stage == "open" else []

    def goes_by(self, timeout: float, now: float) -> Outcome:
        """Send beats by this timeout from now on, which is the head's."""
        self._every = timeout / 5
        return self._beats_on(now) if self._stage == "open" else []

    def end(self, why: str) -> Outcome:
        """End this host's incarnation."""
        return [] if self._stage == "ended" else self._end(why)

    def tick(self, now: float) -> Outcome:
        """See to what is due."""
        if self._stage == "away" and now >= self._dial_at:
            self._stage, self._since = "dialling", now
            self._connection += 1
            return [DialHead(self._connection)]
        if self._stage in ("dialling", "greeting") and now >= self._since + HANDSHAKE:
            return self._close("", now, why=f"the head has not answered for {HANDSHAKE:.0f} s")
        if self._stage != "open":
            return []
        if now >= self._since + 3 * self._every:
            return self._close("", now, why=f"the head has been silent for {now - self._since:.1f} s")
        outcome = self._beats_on(now) if now >= self._beat_at else []
        return outcome + self._acknowledge(now)

    def due(self) -> float | None:
        """When `tick` has something to do, if nothing else happens before."""
        match self._stage:
            case "ended":
                return None
            case "away":
                return self._dial_at
            case "open":
                acknowledge_at = self._line.acknowledge_at
                times = [self._beat_at, self._since + 3 * self._every]
                return min(times if acknowledge_at is None else [*times, acknowledge_at])
            case _:
                return self._since + HANDSHAKE

    # --- inside -------------------------------------------------------------------------------------

    def _frame(self, frame: Frame, now: float, outcome: Outcome) -> None:
        match frame:
            case Refused(why):
                outcome += self._end(one_line(why))
            case Hello() if self._stage == "greeting":
                outcome += self._greeted(frame, now)
            case Data() if self._stage == "open":
                self._line.acknowledged(frame.received)
                if (message := self._line.take(frame, now)) is not None:
                    outcome.append(Delivered(self.host, self.incarnation, message))
            case Acknowledged(received) if self._stage == "open":
                self._line.acknowledged(received)
            case BeatHeard(beat, received) if self._stage == "open":
                self._line.acknowledged(received)
                outcome.append(BeatAcknowledged(self._answered(beat)))
            case _:
                raise MessageUnreadable(f"a {type(frame).__name__} may not come now")

    def _greeted(self, hello: Hello, now: float) -> Outcome:
        if hello.incarnation == 0 or self.incarnation not in (0, hello.incarnation):
            why = f"the head takes incarnation {self.incarnation} of this host for {hello.incarnation}"
            return self._end(why, show=True)
        again = self._line.again(hello.received)
        # a host that was just admitted was heard
        outcome: Outcome = [] if self.incarnation else [BeatAcknowledged(self._since)]
        self.incarnation, self.run = hello.incarnation, hello.nonce
        self._stage, self._since, self._frames.most = "open", now, _longest(LONGEST)
        outcome += [HostConnected(self.host, self.incarnation), *self._beats_on(now)]  # no message delays the beat
        return [*outcome, Write(self._connection, again)] if again else outcome

    def _beats_on(self, now: float) -> Outcome:
        self._beat += 1
        self._beat_at = now + self._every
        self._beats.append((self._beat, now))
        return [Write(self._connection, self._line.beat(self._beat))]

    def _answered(self, beat: int) -> float:
        while self._beats:
            number, sent = self._beats.popleft()
            if number == beat:
                self._pause = SHORTEST_PAUSE
                return sent
        raise MessageUnreadable(f"beat {beat:,} is answered, and was not sent or is answered already")

    def _acknowledge(self, now: float) -> Outcome:
        at = self._line.acknowledge_at
        if self._stage != "open" or at is None or now < at:
            return []
        return [Write(self._connection, self._line.acknowledgement())]

    def _close(self, line: str, now: float, why: str = "") -> Outcome:
        return [Close(self._connection, line), *self._away(why or line, now)]

    def _away(self, why: str, now: float) -> Outcome:
        was_open = self._stage == "open"
        self._stage, self._dial_at = "away", now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._beats.clear()
        return [HostDisconnected(self.host, self.incarnation, why)] if was_open else []

    def _end(self, why: str, show: bool = False) -> Outcome:
        closes = self._stage in ("dialling", "greeting", "open")
        self._stage = "ended"
        ended = IncarnationEnded(self.host, self.incarnation, why)
        return [Close(self._connection, why if show else ""), ended] if closes else [ended]


@dataclass(slots=True)
class HostSession:
    """What the head knows of one incarnation."""

    host: str
    nonce: bytes
    incarnation: int
    line: Line
    most: int
    """Bytes of the longest message that is read."""
    connection: int | None = None


@dataclass(slots=True)
class _Connection:
    """What the head knows of one connection."""

    since: float
    peer: str
    """Where it comes from, for the user."""
    frames: Frames = field(default_factory=lambda: Frames(LONGEST_HELLO))
    hello: Hello | None = None
    """Of a host that is neither admitted nor refused."""
    seat: HostSession | None = None


class HeadEnd:
    """The head's end, for all hosts. Each host that is admitted has one incarnation at a time."""

    def __init__(self, name: str, nonce: bytes, kinds: Any) -> None:
        """`nonce` stands for the run, which keeps it when it is resumed. `kinds`: the union of what hosts may send."""
        self._name = name
        self._nonce = nonce
        self._kinds = kinds
        self._seats: dict[str, HostSession] = {}
        self._connections: dict[int, _Connection] = {}
        self._dues: list[tuple[float, int]] = []
        """A heap of (moment, connection) at which something may be due. With many hosts, looking through all of them
        after each message would take longer than the message."""

    def unacknowledged(self, host: str) -> int:
        """Return how many messages the host has not acknowledged, 0 for an unknown host."""
        return self._seats[host].line.unacknowledged if host in self._seats else 0

    def connected(self, connection: int, now: float, peer: str = "a stranger") -> Outcome:
        """A connection is opened. `peer`: where it comes from, for the user."""
        assert connection not in self._connections, f"connection {connection} is not new"
        self._connections[connection] = _Connection(now, peer)
        heappush(self._dues, (now + HANDSHAKE, connection))
        return []

    def received(self, connection: int, data: bytes, now: float) -> Outcome:
        """These bytes have come."""
        one = self._connections.get(connection)
        if one is None:
            return []
        outcome: Outcome = [HeardFrom(one.seat.host, one.seat.incarnation)] if one.seat else []
        try:
            for body in one.frames.receive(data):
                self._frame(connection, one, _read(body), now, outcome)
                if connection not in self._connections:
                    return outcome
        except NeverReadable as error:
            assert one.seat is not None
            outcome += self._end(one.seat, f"host {one.seat.host} has sent what can't be read: {error}", show=True)
        except MessageUnreadable as error:
            outcome += self._turn_away(connection, str(error))
        else:
            outcome += self._acknowledge(one.seat, now)
        return outcome

    def lost(self, connection: int, why: str, now: float) -> Outcome:
        """The connection has gone."""
        return self._gone(connection, why)

    def admit(self, connection: int, incarnation: int, now: float, most: int = LONGEST_SAID) -> Outcome:
        """Admit the host that has come over this connection, as this incarnation. It ends the one before.

        `most`: bytes of the longest message that is read, until `takes_part`.
        """
        one = self._connections.get(connection)
        if one is None:  # closed since, as more came than `Hello`
            return []
        hello = one.hello
        assert hello is not None, f"connection {connection} has not come"
        before = self._seats.get(hello.host)
        assert incarnation > (before.incarnation if before else 0), f"incarnation {incarnation} is not new"
        outcome = self.end(before.host, before.incarnation, "it has come again") if before else []
        self._seats[hello.host] = HostSession(hello.host, hello.nonce, incarnation, Line(self._kinds), most)
        return outcome + self._greet(connection, self._seats[hello.host], hello)

    def takes_part(self, host: str) -> None:
        """The host takes part from now on, and may send longer messages."""
        if (seat := self._seats.get(host)) is not None:
            seat.most = LONGEST_SAID
            if seat.connection is not None:
                self._connections[seat.connection].frames.most = _longest(seat.most)

    def refuse(self, connection: int, why: str) -> Outcome:
        """Tell the host that has come over this connection why it can't take part."""
        if (one := self._connections.get(connection)) is None:
            return []
        return self._refuse(connection, why, show=one.hello is None or one.hello.named)

    def end(self, host: str, incarnation: int, why: str) -> Outcome:
        """End this incarnation. The host is told why, now or when it dials again."""
        seat = self._seats.get(host)
        if seat is None or seat.incarnation != incarnation:
            return []
        del self._seats[host]
        return [] if seat.connection is None else self._refuse(seat.connection, _has_ended(host, incarnation, why))

    def send(self, host: str, incarnation: int, message: msgspec.Struct, now: float) -> Outcome:
        """Send the message to this incarnation, now or after a reconnect, unless it has ended.

        Raises ValueError for a message that is too long.
        """
        seat = self._seats.get(host)
        if seat is None or seat.incarnation != incarnation:
            return []
        try:
            data = seat.line.send(message)
        except Full as error:
            return self._end(seat, f"host {host} does not take what it is sent: {error}", show=False)
        return [] if seat.connection is None else [Write(seat.connection, data)]

    def tick(self, now: float) -> Outcome:
        """See to what is due."""
        outcome: Outcome = []
        while (due := self.due()) is not None and due <= now:
            _, connection = heappop(self._dues)
            if (seat := self._connections[connection].seat) is None:
                outcome += self._turn_away(connection, f"it has said nothing for {HANDSHAKE:.0f} s")
            else:
                outcome += self._acknowledge(seat, now)
        return outcome

    def due(self) -> float | None:
        """When `tick` has something to do, if nothing else happens before."""
        while self._dues and not self._is_due(*self._dues[0]):
            heappop(self._dues)
        return self._dues[0][0] if self._dues else None

    # --- inside -------------------------------------------------------------------------------------

    def _frame(self, connection: int, one: _Connection, frame: Frame, now: float, outcome: Outcome) -> None:
        match frame, one.seat:
            case Hello(), None if one.hello is None:
                outcome += self._met(connection, one, frame)
            case Data(), HostSession() as seat:
                seat.line.acknowledged(frame.received)
                owed_before = seat.line.acknowledge_at is not None
                if (message := seat.line.take(frame, now)) is not None:
                    outcome.append(Delivered(seat.host, seat.incarnation, message))
                if not owed_before:
                    self._owes(seat)
            case Acknowledged(received), HostSession() as seat:
                seat.line.acknowledged(received)
            case Beat(beat, received), HostSession() as seat:
                seat.line.acknowledged(received)
                outcome.append(Write(connection, seat.line.beat_heard(beat)))
            case _:
                raise MessageUnreadable(f"a {type(frame).__name__} may not come now")

    def _met(self, connection: int, one: _Connection, hello: Hello) -> Outcome:
        if hello.run != (self._nonce if hello.run or hello.incarnation else b""):
            return self._refuse(connection, ANOTHER_RUN, show=True)
        seat = self._seats.get(hello.host)
        known = seat is not None and seat.nonce == hello.nonce
        if seat is not None and known and hello.incarnation in (0, seat.incarnation):
            return self._greet(connection, seat, hello)
        if hello.incarnation:
            return self._refuse(connection, _has_ended(hello.host, hello.incarnation, "it came too late"))
        one.hello = hello
        return [HostCame(connection, hello.host)]

    def _greet(self, connection: int, seat: HostSession, hello: Hello) -> Outcome:
        """Give this connection to the incarnation."""
        outcome: Outcome = []
        if seat.connection is not None:
            outcome = [Close(seat.connection, ""), *self._gone(seat.connection, "a newer connection has replaced it")]
        one = self._connections[connection]
        one.hello, one.seat, one.frames.most = None, seat, _longest(seat.most)
        seat.connection = connection
        self._owes(seat)
        received = seat.line.received
        try:
            again = seat.line.again(hello.received)
        except NeverReadable as error:
            return outcome + self._end(seat, f"host {seat.host} does not fit in: {error}", show=True)
        answer = Hello(self._name, self._nonce, seat.incarnation, received)
        return [
            *outcome,
            Write(connection, written(answer) + again),
            HostConnected(seat.host, seat.incarnation),
        ]

    def _owes(self, seat: HostSession) -> None:
        """Note when the host's next acknowledgement is due."""
        if seat.connection is not None and (at := seat.line.acknowledge_at) is not None:
            heappush(self._dues, (at, seat.connection))

    def _is_due(self, at: float, connection: int) -> bool:
        """Return whether something is still due about this connection at that moment."""
        one = self._connections.get(connection)
        if one is None or one.seat is None:
            return one is not None
        owed = one.seat.line.acknowledge_at
        return owed is not None and owed <= at

    def _acknowledge(self, seat: HostSession | None, now: float) -> Outcome:
        if seat is None or seat.connection is None or (at := seat.line.acknowledge_at) is None or now < at:
            return []
        return [Write(seat.connection, seat.line.acknowledgement())]

    def _refuse(self, connection: int, why: str, show: bool = False) -> Outcome:
        """Send the refusal, and close the connection."""
        one = self._connections.pop(connection)
        return [Write(connection, written(Refused(why))), Close(connection, _refused(one, why) if show else "")]

    def _turn_away(self, connection: int, why: str) -> Outcome:
        """Close the connection without a word to the other side."""
        one = self._connections[connection]
        line = _refused(one, why) if one.seat is None else f"connection to host {one.seat.host} closed: {why}"
        return [Close(connection, line), *self._gone(connection, why)]

    def _gone(self, connection: int, why: str) -> Outcome:
        one = self._connections.pop(connection, None)
        if one is None or one.seat is None:
            return []
        one.seat.connection = None
        return [HostDisconnected(one.seat.host, one.seat.incarnation, why)]

    def _end(self, seat: HostSession, why: str, show: bool) -> Outcome:
        """End an incarnation of which the membership does not know yet that it can't go on."""
        outcome = self.end(seat.host, seat.incarnation, why)
        if show:
            outcome = [Close(one.connection, why) if isinstance(one, Close) else one for one in outcome]
        return [*outcome, IncarnationEnded(seat.host, seat.incarnation, why)]


def _read(body: bytes) -> Frame:
    try:
        return _FRAMES.decode(body)  # type: ignore[no-any-return]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MessageUnreadable(one_line(str(error))) from error


def _longest(most: int) -> int:
    """Return the bytes of the longest frame: a message of so many bytes, and what is around it."""
    return most + 64


def _refused(one: _Connection, why: str) -> str:
    return f"connection from {one.peer} refused: {why}"


def _has_ended(host: str, incarnation: int, why: str) -> str:
    return f"incarnation {incarnation} of host {host} has ended: {why}"


def one_line(text: str) -> str:
    """Return what a stranger says as one line that a terminal can show."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:300]
