"""Hosts that carry items to each other over real sockets on loopback, in one loop.

Tests tell their data planes what to do. What a host makes of its plane is in `host/test_fetches.py`.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline.core.items import Item
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Span
from paceline.net import tcp
from paceline.net.control import Hello
from paceline.net.handshake import Keys
from paceline.net.listener import HostListener
from paceline.transfer.item_names import fields_of
from paceline.transfer.messages import (
    Asked,
    BeginSegment,
    Brought,
    Connected,
    Event,
    Lost,
    Meet,
    Named,
    Peer,
    Range,
    Released,
    Send,
    Want,
)
from paceline.transfer.movers import InLoop, Mover
from support import clusters
from support.clusters import KEYS

Told = TypeVar("Told", bound=Event)
NUMBERS = itertools.count()
HEAD, OTHER = Peer("a", 1), Peer("b", 3)


def hello(host: str, incarnation: int, run: bytes = b"run") -> Hello:
    return Hello(host, run, incarnation, 0)


def contents(size: int, seed: int = 0) -> bytearray:
    return bytearray((bytes(range(seed, 251)) * (size // (251 - seed) + 1))[:size])


@dataclass(frozen=True)
class Got:
    """What a host wants: its memory, and what its plane has told of it."""

    side: Side
    number: int
    memory: bytearray

    @property
    def done(self) -> int:
        return sum(one.number == self.number and one.whole for one in self.side.heard(Brought))

    @property
    def lost(self) -> list[str]:
        return [one.why for one in self.side.heard(Lost) if one.number == self.number]


class Side:
    """One host. It keeps what its plane tells, in order, and sends what it has once that is asked for."""

    def __init__(self, peer: Peer, mover: Mover) -> None:
        self.peer, self.mover = peer, mover
        self.has: dict[Item, bytearray] = {}
        self.told: list[Event] = []
        self.begins()

    def begins(self) -> None:
        """An incarnation of the host begins."""
        self.held: dict[int, Asked] = {}
        """What others have asked for, and is not released."""
        self.plane: Any = self.mover.plane(self._hear)
        self.plane.tell(Meet(self.peer))
        self.plane.tell(BeginSegment(0))

    def is_over(self) -> None:
        """This incarnation of the host is over."""
        self.plane.close()
        self.mover.close(lambda: None)

    def meets(self, host: str, incarnation: int) -> Peer:
        """Another host takes part, which may dial if this one listens."""
        self.plane.tell(Meet(peer := Peer(host, incarnation)))
        self.mover.expect(peer)
        return peer

    def fetch(self, item: Item, size: int, of: Peer | None = None) -> Got:
        """Want all bytes of an item, which the other host has."""
        got = Got(self, next(NUMBERS), bytearray(size))
        ranges = (Range(*(of or self.peer), 0, size),)
        self.plane.tell(Want(got.number, Named(0, fields_of(item)), ranges, False), Span(memoryview(got.memory)))
        return got

    def make(self, item: Item, data: bytearray) -> None:
        """It has the item now, and sends it to those who have asked."""
        self.has[item] = data
        for asked in self.held.values():
            self._send(asked)

    def heard(self, kind: type[Told]) -> list[Told]:
        """What the plane has told of that kind."""
        return [one for one in self.told if isinstance(one, kind)]

    @property
    def connection(self) -> Any:
        """That with the other host. None: there is none."""
        return self.plane.exchanges[self.peer]._connection

    def _hear(self, event: Event) -> None:
        self.told.append(event)
        if isinstance(event, Asked):
            self.held[event.number] = event
            self._send(event)
        elif isinstance(event, Released):
            del self.held[event.number]

    def _send(self, asked: Asked) -> None:
        for item, data in self.has.items():
            if fields_of(item) == asked.named.item:
                self.plane.tell(Send(asked.number), Span(memoryview(data)[asked.begin : asked.end]))


class Two(clusters.InLoop):
    """The head `a`, which listens, and host `b`, which dials it, in one loop."""

    side: type[Side] = Side

    def __init__(self, keys: Keys = KEYS, makes: Callable[[Loop, list[str]], Mover] | None = None) -> None:
        """`makes`: what moves a host's bytes. None: the loop does."""
        self.loop, self.keys, self.lines = Loop(), keys, list[str]()
        movers = [
            InLoop(self.loop, keys, self.lines.append) if makes is None else makes(self.loop, self.lines)
            for _ in range(2)
        ]
        self.a, self.b = (self.side(peer, mover) for peer, mover in zip((OTHER, HEAD), movers, strict=True))
        self.door = HostListener(tcp.listen(), self.loop, keys, self.lines.append)
        self.a.mover.listen(self.door, hello(*HEAD), 15.0)
        self.a.mover.expect(OTHER)

    def dial(self, said: Hello | None = None, to: Peer = HEAD) -> None:
        """Have `b` dial."""
        self.b.mover.dial(to, self.door.address, said or hello(*OTHER), 15.0)

    def connect(self) -> None:
        """Have them connected, as if nothing had been told before."""
        self.dial()
        self.until(lambda: self.a.heard(Connected) and self.b.heard(Connected))
        self.a.told.clear()
        self.b.told.clear()

    def cut(self) -> None:
        """The connection breaks, as far as both ends can tell."""
        self.b.connection.stream._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Leave nothing."""
        self.door.close()
        for side in (self.a, self.b):
            side.is_over()
        self.loop.close()
