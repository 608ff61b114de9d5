"""Items between two hosts by chance: fetched, cancelled, impossible, in segments, over connections that break."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from paceline.core.items import Item, Version
from paceline.host.claims import Owner
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Span
from paceline.net import tcp
from paceline.net.listener import HostListener
from paceline.records.times import FetchTimes
from paceline.transfer import data_connection
from paceline.transfer.data_connection import Dialler, Port
from paceline.transfer.data_plane import DataPlane, Hear, Plane
from paceline.transfer.fetch_table import Where
from paceline.transfer.manager import TransferManager
from support.carriers import hello
from support.clusters import KEYS
from support.planes import CrossingPlane, meet
from support.seeds import each_seed

ITEMS = [Version(number) for number in range(8)]
PATIENCE = 60.0


def size(item: Item) -> int:
    return [3, 1, 100, 70_000, 1_000_000, (1 << 20) + 1, 3_000_000, 5][ITEMS.index(item)]  # type: ignore[arg-type]


def contents(segment: int, item: Item, host: str) -> bytes:
    return (f"{host} {segment} {item} ".encode() * (size(item) // 8 + 1))[: size(item)]


@dataclass(eq=False)
class Fetched:
    """A fetch, and what was told of it."""

    segment: int
    item: Item
    told: list[str] = field(default_factory=list)
    cancelled: bool = False


class Side:
    """One host: what it has made, and what it fetches from the other."""

    def __init__(self, name: str, other: str, plane: Callable[[Hear], Plane]) -> None:
        self.name, self.other = name, other
        self.segment = 0
        self.made: set[Item] = set()
        self.impossible: set[Item] = set()
        self.gots: list[Fetched] = []
        self.came: list[tuple[int, Item]] = []
        self.places: dict[Item, bytearray] = {}
        self.numbers: dict[int, bytearray] = {}
        """By number: memory to which something may be written."""
        self.freed: list[bytearray] = []
        """Memory of what came here once, which nothing may be written to any more."""
        self.holds: dict[Owner, Item] = {}
        """What is claimed for the other."""
        self.views: dict[Item, list[bytearray]] = {}
        """What is read of what is claimed."""
        self.carrier = TransferManager(name, time.monotonic, plane)
        self.carrier.begins(0, self)
        self.bulk = meet(self.carrier, other, 1)

    # --- its items

    def ranges(self, item: Item) -> list[tuple[str, int, int]]:
        return [(self.other, 0, size(item))]

    def lay(self, item: Item, number: int) -> Span:
        assert item not in self.places
        self.places[item] = self.numbers[number] = bytearray(size(item))
        return Span(memoryview(self.places[item]))

    def free(self, item: Item, whole: bool) -> None:
        del self.places[item]

    def settled(self, number: int) -> None:
        memory = self.numbers.pop(number)
        memory[:] = bytes(len(memory))
        self.freed.append(memory)

    def fetched(self, fetch: FetchTimes) -> None:
        assert fetch.number is not None
        item = Version(fetch.number)
        assert (fetch.host, fetch.source, fetch.bytes) == (self.name, self.other, size(item))
        self.came.append((self.segment, item))

    def look(self, item: Item, begin: int, end: int) -> Where:
        return "here" if item in self.made else "gone" if item in self.impossible else "coming"

    def claim(self, item: Item, owner: Owner) -> None:
        assert owner not in self.holds
        self.holds[owner] = item

    def release(self, item: Item, owner: Owner) -> None:
        assert self.holds.pop(owner) == item
        if item not in self.holds.values():
            for view in self.views.pop(item, []):
                view[:] = b"-" * len(view)

    def view(self, item: Item) -> Span:
        assert item in self.holds.values()
        view = bytearray(contents(self.segment, item, self.name))
        self.views.setdefault(item, []).append(view)
        return Span(memoryview(view))

    # --- what happens

    def make(self, item: Item) -> None:
        if item not in self.impossible:
            self.made.add(item)
            self.carrier.made(item)

    def give_up(self, item: Item) -> None:
        if item not in self.made:
            self.impossible.add(item)
            self.carrier.never(item, "its worker has died")

    def fetch(self, item: Item) -> None:
        one = Fetched(self.segment, item)
        self.gots.append(one)
        self.carrier.fetch(item, ("step", len(self.gots)), lambda: self.done(one), one.told.append)

    def done(self, one: Fetched) -> None:
        assert self.places[one.item] == contents(one.segment, one.item, self.other)
        assert (one.segment, one.item) in self.came
        one.told.append("done")

    def cancel(self, rng: Random, item: Item) -> None:
        """All who wait for the item leave, or some."""
        most = rng.choice((1, 100))
        for number, one in enumerate(self.gots, 1):
            if one.item == item and not one.told and not one.cancelled and most:
                most -= 1
                one.cancelled = True
                self.carrier.cancel(("step", number))

    def begins(self, segment: int) -> None:
        self.made.clear()
        self.impossible.clear()
        self.segment = segment
        self.carrier.begins(segment, self)

    def outstanding(self) -> list[Fetched]:
        return [one for one in self.gots if not one.told and not one.cancelled]


def walk(seed: int, plane: type[DataPlane] | type[CrossingPlane]) -> None:
    rng = Random(seed)
    loop = Loop()
    a, b = (Side(*names, plane) for names in ("ab", "ba"))
    planes = [one.carrier._plane for one in (a, b) if isinstance(one.carrier._plane, CrossingPlane)]
    lines: list[str] = []

    def wait(seconds: float, most: int) -> None:
        loop.wait(0.0 if planes else seconds)
        for one in planes:
            one.deliver(rng, most)

    door = HostListener(tcp.listen(), loop, KEYS, lines.append)
    port = Port(door, loop, hello("a", 1), lines.append)
    port.expect(a.bulk)
    dialler = Dialler(b.bulk, door.address, KEYS, loop, hello("b", 1), lines.append)
    for _ in range(rng.randrange(50, 300)):
        one, item = rng.choice((a, b)), rng.choice(ITEMS)
        match rng.randrange(20):
            case 0 | 1 | 2 | 3 | 4:
                one.fetch(item)
            case 5 | 6 | 7:
                one.make(item)
            case 8:
                one.cancel(rng, item)
            case 9 if rng.random() < 0.3:
                one.give_up(item)
            case 10 if rng.random() < 0.3 and one.bulk._connection is not None:
                with contextlib.suppress(OSError):  # it has broken already, and the loop has not seen that
                    one.bulk._connection.stream._end.shutdown(rng.choice((socket.SHUT_RDWR, socket.SHUT_WR)))
            case 11 if rng.random() < 0.2 and not planes:  # in a run there is one segment
                other = a if one is b else b
                one.begins(max(one.segment + 1, other.segment))
            case 12 if rng.random() < 0.3 and one.bulk._connection is not None:
                one.bulk._connection.stream._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            case _:
                wait(rng.choice((0.0, 0.0, 0.002)), 8)
    if rng.random() < 0.3:
        for one, other in ((a, b), (b, a)):
            one.carrier.ended(other.name, "it is silent")
            assert not one.outstanding()
    last = max(a.segment, b.segment)
    for one in (a, b):
        if one.segment < last:
            one.begins(last)
        for item in ITEMS:
            one.make(item)
    end = time.monotonic() + PATIENCE
    while a.outstanding() or b.outstanding() or a.holds or b.holds or a.numbers or b.numbers:
        assert time.monotonic() < end, f"{a.carrier.pending()}, {b.carrier.pending()}"
        wait(1.0, 100)
    for one in (a, b):
        for fetched in one.gots:
            assert len(fetched.told) == (0 if fetched.cancelled else 1), fetched.told
        assert all(memory.count(0) == len(memory) for memory in one.freed)
        assert not one.places
        assert not one.carrier.pending()
    assert not lines
    dialler.close()
    door.close()
    port.close()
    a.carrier.close()
    b.carrier.close()
    loop.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_connection, "SHORTEST_PAUSE", 0.001)
    monkeypatch.setattr(data_connection, "LONGEST_PAUSE", 0.002)


PLANES = pytest.mark.parametrize("plane", [DataPlane, CrossingPlane])


@PLANES
@each_seed(range(6))
def test_each_fetch_is_told_one_thing_and_nothing_is_left_over(
    seed: int, plane: type[DataPlane] | type[CrossingPlane]
) -> None:
    walk(seed, plane)


@pytest.mark.long
@PLANES
@each_seed(range(6, 400))
def test_each_fetch_is_told_one_thing_in_many_histories(
    seed: int, plane: type[DataPlane] | type[CrossingPlane]
) -> None:
    walk(seed, plane)
