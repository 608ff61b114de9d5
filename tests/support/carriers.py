"""Hosts that carry items to each other over real sockets on loopback, in one loop."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable

from paceline.core.items import Item
from paceline.host.claims import Owner
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Span
from paceline.net import tcp
from paceline.net.control import Hello
from paceline.net.handshake import Keys
from paceline.net.listener import HostListener
from paceline.records.times import FetchTimes
from paceline.transfer.data_connection import Dialler, PeerExchange, Port
from paceline.transfer.fetch_table import Where
from paceline.transfer.manager import TransferManager
from support.clusters import KEYS
from support.planes import meet

PATIENCE = 30.0
"""Seconds after which a test that waits has failed."""
NUMBERS = itertools.count()


def hello(host: str, incarnation: int, run: bytes = b"run") -> Hello:
    return Hello(host, run, incarnation, 0)


def contents(size: int, seed: int = 0) -> bytearray:
    return bytearray((bytes(range(seed, 251)) * (size // (251 - seed) + 1))[:size])


class Got:
    """A fetch: its memory, and what was told of it."""

    def __init__(self, item: Item, owner: Owner, memory: bytearray) -> None:
        self.item = item
        self.owner = owner
        self.memory = memory
        self.waits = True
        self.done = 0
        self.lost: list[str] = []

    def is_done(self) -> None:
        self.waits = False
        self.done += 1

    def is_lost(self, why: str) -> None:
        self.waits = False
        self.lost.append(why)


class Side:
    """One host: what it has, what was asked of it, and what comes."""

    def __init__(self, other: str, incarnation: int) -> None:
        self.other = other
        self.has: dict[Item, bytearray] = {}
        self.gone: set[Item] = set()
        self.asked: list[Item] = []
        """What was claimed for others, ever."""
        self.held: dict[Owner, Item] = {}
        """What is claimed for others."""
        self.gots: list[Got] = []
        self.places: list[Item] = []
        """What has a place."""
        self.hosts: dict[Item, list[tuple[str, int, int]]] = {}
        """By item: who has it, if that is not the other host alone."""
        self.fetches: list[FetchTimes] = []
        """What has come."""
        self.carrier = TransferManager("here", time.monotonic)
        self.carrier.begins(0, self)
        self.bulk = meet(self.carrier, other, incarnation)

    @property
    def connected(self) -> bool:
        return self.bulk.connected

    # --- what the test has it do

    def make(self, item: Item, data: bytearray) -> None:
        self.has[item] = data
        self.carrier.made(item)

    def fetch(self, item: Item, size: int) -> Got:
        memory = bytearray(size) if (under_way := self.under_way(item)) is None else under_way.memory
        got = Got(item, ("step", next(NUMBERS)), memory)
        self.gots.append(got)
        self.carrier.fetch(item, got.owner, got.is_done, got.is_lost)
        return got

    def cancel(self, got: Got) -> None:
        got.waits = False
        self.carrier.cancel(got.owner)

    def under_way(self, item: Item) -> Got | None:
        return next((got for got in self.gots if got.item == item and got.waits), None)

    def coming(self, item: Item) -> bytearray:
        """The memory of an item that is fetched."""
        got = self.under_way(item)
        assert got is not None
        return got.memory

    # --- its items

    def ranges(self, item: Item) -> list[tuple[str, int, int]]:
        return self.hosts.get(item) or [(self.other, 0, len(self.coming(item)))]

    def lay(self, item: Item, number: int) -> Span:
        assert item not in self.places
        self.places.append(item)
        return Span(memoryview(self.coming(item)))

    def free(self, item: Item, whole: bool) -> None:
        self.places.remove(item)

    def settled(self, number: int) -> None:
        pass

    def fetched(self, fetch: FetchTimes) -> None:
        self.fetches.append(fetch)

    def look(self, item: Item, begin: int, end: int) -> Where:
        return "here" if item in self.has else "gone" if item in self.gone else "coming"

    def claim(self, item: Item, owner: Owner) -> None:
        self.asked.append(item)
        self.held[owner] = item

    def release(self, item: Item, owner: Owner) -> None:
        assert self.held.pop(owner) == item

    def view(self, item: Item) -> Span:
        assert item in self.held.values(), "it might change"
        return Span(memoryview(self.has[item]))


class Two:
    """The head `a`, which listens, and host `b`, which dials it, in one loop."""

    def __init__(self, keys: Keys = KEYS) -> None:
        self.loop = Loop()
        self.keys = keys
        self.a, self.b = Side("b", 3), Side("a", 1)
        self.lines: list[str] = []
        self.listen(tcp.listen())
        self.diallers: list[Dialler] = []

    def listen(self, listener: socket.socket) -> None:
        self.door = HostListener(listener, self.loop, self.keys, self.lines.append)
        self.port = Port(self.door, self.loop, hello("a", 1), self.lines.append)
        self.port.expect(self.a.bulk)

    def dial(
        self,
        said: Hello | None = None,
        bulk: PeerExchange | None = None,
        address: tcp.Address | None = None,
        keys: Keys | None = None,
    ) -> Dialler:
        to = bulk or self.b.bulk, address or self.door.address, keys or self.keys
        dialler = Dialler(*to, self.loop, said or hello("b", 3), self.lines.append)
        self.diallers.append(dialler)
        return dialler

    def until(self, there: Callable[[], object]) -> None:
        """Let the loop go round until that is so."""
        end = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < end, "it never came to that"
            self.loop.wait(0.02)  # what it waits for may be at a socket that the loop does not watch

    def connect(self) -> None:
        self.dial()
        self.until(lambda: self.a.connected and self.b.connected)

    def cut(self) -> None:
        """The connection breaks, as far as both ends can tell."""
        connection = self.b.bulk._connection
        assert connection is not None
        connection.stream._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Leave nothing."""
        self.door.close()
        self.port.close()
        for dialler in self.diallers:
            dialler.close()
        for side in (self.a, self.b):
            side.carrier.close()
            assert not side.held
        self.loop.close()
