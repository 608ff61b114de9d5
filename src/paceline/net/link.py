"""Control messages between hosts over TCP: drives the pure ends of `net.control` in the loop.

    news ◄── events ── HeadLink ── facts ──► HeadEnd        HostEnd ◄── facts ── HostLink ── events ──► news
                          │ ◄──── orders ────                  ──── orders ────►    │
                          └──────────────────────── TCP ───────────────────────────┘

A link calls `news` with one event after the other. What a callback asks of the link is carried out after that callback.
Outside of callbacks, `send` and `end` may call `ended` before they return. Messages of an incarnation that the caller
has just ended may still be delivered, so the caller has to check for that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from paceline.ipc.loop import Alarm, Loop
from paceline.net.control import (
    BeatAcknowledged,
    Close,
    Delivered,
    DialHead,
    Event,
    HeadEnd,
    HeardFrom,
    HostCame,
    HostConnected,
    HostDisconnected,
    HostEnd,
    IncarnationEnded,
    Outcome,
    Write,
)
from paceline.net.handshake import Handshake, Keys, dial
from paceline.net.listener import HostListener
from paceline.net.numbered import LONGEST_SAID, MOST_KEPT
from paceline.net.tcp import Address, Lines, Stream, peer_of, told

PURPOSE = "control"
"""The purpose of these connections."""
READ = 64 << 10
"""Bytes read from one connection before others have their turn."""
MOST_WAITING = MOST_KEPT + (4 << 20)
"""Bytes that may wait for one connection: all unacknowledged messages, and beats and acknowledgements."""
AT_ONCE = 16
"""The most messages that are written together. A round of 512 workers on 64 hosts is a message for each host, and the
first hosts need not wait for the last (benchmarks/results/scale.md)."""


class HeadNews(Protocol):
    """The events of the head's link."""

    def came(self, connection: int, host: str) -> None:
        """A host asks to take part. Call the link's `admit` or `refuse` before this returns."""

    def connected(self, host: str, incarnation: int) -> None:
        """Messages can go both ways."""

    def heard(self, host: str, incarnation: int) -> None:
        """Bytes have come from this host."""

    def delivered(self, host: str, incarnation: int, message: Any) -> None:
        """A message has come, once and in order."""

    def disconnected(self, host: str, incarnation: int, why: str) -> None:
        """The connection was lost. The host may dial again."""

    def ended(self, host: str, incarnation: int, why: str) -> None:
        """Nothing more can be exchanged with this incarnation."""

    def show(self, line: str) -> None:
        """Show this line, which is mostly about strangers."""


class HostNews(Protocol):
    """The events of a host's link."""

    def connected(self, incarnation: int) -> None:
        """Messages can go both ways. The head has assigned this incarnation."""

    def acknowledged(self, sent: float) -> None:
        """The head has heard a beat that was sent then, by the link's `now`."""

    def delivered(self, message: Any) -> None:
        """A message has come, once and in order."""

    def disconnected(self, why: str) -> None:
        """The connection was lost. The link dials again."""

    def ended(self, why: str) -> None:
        """Nothing more can be exchanged, so the host's workers have to end. A new link may begin after a second."""

    def show(self, line: str) -> None:
        """Show this line."""


AnEnd = TypeVar("AnEnd", bound=HeadEnd | HostEnd)


class _Link(ABC, Generic[AnEnd]):
    """What both links share: a stream for each connection, and the orders and events that are still to be handled."""

    def __init__(self, end: AnEnd, loop: Loop, timeout: float, lines: Lines) -> None:
        self._end = end
        self._loop = loop
        self._timeout = timeout
        self._lines = lines
        self._streams: dict[int, Stream | Handshake[Any]] = {}
        self._outcome: deque[Any] = deque()
        self._unwritten: dict[int, list[bytes]] = {}
        """By connection: messages to write before the loop waits. One write costs more than many messages in it."""
        self._messages = 0
        """How many these are."""
        self._handling = False
        self._closed = False
        self._alarm = Alarm(loop, self._tick)
        loop.after(0.0, self._tick)

    @abstractmethod
    def now(self) -> float:
        """Return the time by this end's clock."""

    def close(self) -> None:
        """Send what there is room for, and close all connections. No event follows."""
        self._closed = True
        self._alarm.turn_off()
        while self._outcome:
            if isinstance(order := self._outcome.popleft(), Write | Close):
                self._handle(order)
        self._write()
        for one in self._streams.values():
            one.close()
        self._streams.clear()

    @abstractmethod
    def _connected(self, connection: int, end: Any) -> Outcome: ...

    @abstractmethod
    def _happened(self, event: Event) -> None: ...

    def _dial(self, connection: int) -> None:
        raise AssertionError("the head dials nobody")

    def _carry_out(self, outcome: Outcome) -> None:
        """Handle these orders and events after those that wait already."""
        if self._closed:
            return
        self._outcome += outcome
        if self._handling:
            return
        self._handling = True
        try:
            while self._outcome:
                self._handle(self._outcome.popleft())
        finally:
            self._handling = False
        if not self._closed and (due := self._end.due()) is not None:
            self._alarm.set(self._loop.now() + due - self.now())

    def _handle(self, one: Any) -> None:
        match one:
            case Write(connection, data):
                if not self._unwritten:
                    self._loop.soon(self._write)
                self._unwritten.setdefault(connection, []).append(data)
                self._messages += 1
                if self._messages >= AT_ONCE:
                    self._write()
            case Close(connection, why):
                self._write()
                if (one := self._streams.pop(connection, None)) is not None:
                    one.close()
                if why:
                    self._lines.show(why)
            case DialHead(connection):
                self._dial(connection)
            case _:
                self._happened(one)

    def _write(self) -> None:
        unwritten, self._unwritten, self._messages = self._unwritten, {}, 0
        for connection, data in unwritten.items():
            if isinstance(stream := self._streams.get(connection), Stream):
                stream.write(b"".join(data))

    def _opened(self, connection: int, end: Any) -> None:
        stream = self._streams[connection] = Stream(
            end,
            self._loop,
            timeout=self._timeout,
            most=MOST_WAITING,
            heard=lambda: self._heard(connection, stream),
            lost=partial(self._lost, connection),
            urgent=True,
        )
        self._carry_out(self._connected(connection, end))

    def _heard(self, connection: int, stream: Stream) -> None:
        data = stream.receive(READ)
        if data:
            self._carry_out(self._end.received(connection, data, self.now()))

    def _lost(self, connection: int, why: str) -> None:
        self._streams.pop(connection, None)
        self._carry_out(self._end.lost(connection, why, self.now()))

    def _tick(self) -> None:
        if not self._closed:
            self._carry_out(self._end.tick(self.now()))


class HeadLink(_Link[HeadEnd]):
    """The head's side, for all hosts."""

    def __init__(self, end: HeadEnd, door: HostListener, loop: Loop, news: HeadNews, timeout: float = 15.0) -> None:
        """`door`: where hosts dial. Close it before the link."""
        super().__init__(end, loop, timeout, Lines(news.show, loop.now))
        self._news = news
        self._numbers = count(1)
        door.serves(PURPOSE, lambda end: self._opened(next(self._numbers), end))

    def now(self) -> float:
        """Return the time by the loop's clock."""
        return self._loop.now()

    def admit(self, connection: int, incarnation: int, most: int = LONGEST_SAID) -> None:
        """Admit the host that has come over this connection. `most`: see `HeadEnd`."""
        self._carry_out(self._end.admit(connection, incarnation, self.now(), most))

    def takes_part(self, host: str) -> None:
        """See `HeadEnd`."""
        self._end.takes_part(host)

    def refuse(self, connection: int, why: str) -> None:
        """Tell the host that has come over this connection why it can't take part."""
        self._carry_out(self._end.refuse(connection, why))

    def send(self, host: str, incarnation: int, message: msgspec.Struct) -> None:
        """Send the message to this incarnation, now or after a reconnect, unless it has ended."""
        self._carry_out(self._end.send(host, incarnation, message, self.now()))

    def end(self, host: str, incarnation: int, why: str) -> None:
        """End this incarnation. `ended` is not called."""
        self._carry_out(self._end.end(host, incarnation, why))

    def _connected(self, connection: int, end: Any) -> Outcome:
        return self._end.connected(connection, self.now(), peer_of(end))

    def _happened(self, event: Event) -> None:
        match event:
            case HeardFrom(host, incarnation):
                self._news.heard(host, incarnation)
            case Delivered(host, incarnation, message):
                self._news.delivered(host, incarnation, message)
            case HostCame(connection, host):
                self._news.came(connection, host)
            case HostConnected(host, incarnation):
                self._news.connected(host, incarnation)
            case HostDisconnected(host, incarnation, why):
                self._news.disconnected(host, incarnation, why)
            case IncarnationEnded(host, incarnation, why):
                self._news.ended(host, incarnation, why)


class HostLink(_Link[HostEnd]):
    """A host's side, for one incarnation. It dials at once, and again whenever the connection is lost."""

    def __init__(
        self, end: HostEnd, address: Address, keys: Keys, loop: Loop, news: HostNews, timeout: float = 15.0
    ) -> None:
        """`address`: the head's. `timeout`: the one of `end`."""
        super().__init__(end, loop, timeout, Lines(news.show, loop.now))
        self._address = address
        self._keys = keys
        self._news = news

    def now(self) -> float:
        """Return the time by a clock that runs while the machine sleeps."""
        return self._loop.since_boot()

    def send(self, message: msgspec.Struct) -> None:
        """Send the message to the head, now or after a reconnect."""
        self._carry_out(self._end.send(message, self.now()))

    def goes_by(self, timeout: float) -> None:
        """Send beats by this timeout from now on."""
        self._carry_out(self._end.goes_by(timeout, self.now()))

    def end(self, why: str) -> None:
        """End this host's incarnation: `ended` is called, and the link no longer dials."""
        self._carry_out(self._end.end(why))

    def _dial(self, connection: int) -> None:
        opened, failed = partial(self._opened, connection), partial(self._failed, connection)
        try:
            opening = dial(self._address, self._keys, PURPOSE, self._loop, opened=opened, failed=failed)
        except OSError as error:
            self._lost(connection, told(error))
            return
        self._streams[connection] = opening

    def _connected(self, connection: int, end: Any) -> Outcome:
        return self._end.connected(connection, self.now())

    def _failed(self, connection: int, why: str, final: bool) -> None:
        """Try again, unless the host was never admitted and another try would fail as well."""
        if final and not self._end.incarnation:
            self.end(f"no connection to the head: {why}")
            return
        if final:
            self._lines.show(f"no connection to the head: {why}")
        self._lost(connection, why)

    def _happened(self, event: Event) -> None:
        match event:
            case Delivered(message=message):
                self._news.delivered(message)
            case BeatAcknowledged(sent):
                self._news.acknowledged(sent)
            case HostConnected(incarnation=incarnation):
                self._news.connected(incarnation)
            case HostDisconnected(why=why):
                self._news.disconnected(why)
            case IncarnationEnded(why=why):
                self._news.ended(why)
