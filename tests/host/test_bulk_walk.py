"""Items between two hosts by chance: fetched, cancelled, impossible, in segments, over connections that break."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, field
from random import Random

import pytest

from paceline.core.items import Item, Version
from paceline.fabric.control import PROTOCOL, Hello
from paceline.host import bulk, tcp
from paceline.host.bulk import Bulk, Dialler, Port
from paceline.host.loop import Loop
from support.seeds import each_seed

ITEMS = [Version(number) for number in range(8)]
PATIENCE = 60.0


def size(item: Item) -> int:
    return [0, 1, 100, 70_000, 1_000_000, (1 << 20) + 1, 3_000_000, 5][ITEMS.index(item)]  # type: ignore[arg-type]


def contents(segment: int, item: Item, host: str) -> bytes:
    return (f"{host} {segment} {item} ".encode() * (size(item) // 8 + 1))[: size(item)]


@dataclass(eq=False)
class Fetched:
    """A fetch, and what was told of it."""

    segment: int
    item: Item
    memory: bytearray
    told: list[str] = field(default_factory=list)
    cancelled: bool = False


class Side:
    """One host: what it has made, and what it fetches from the other."""

    def __init__(self, name: str, loop: Loop, other: str) -> None:
        self.name, self.other = name, other
        self.made: set[Item] = set()
        self.impossible: set[Item] = set()
        self.fetched: list[Fetched] = []
        self.bulk = Bulk(loop, other, 1, self.find, self.served)
        self.holds = 0
        """How much of it is being sent."""

    def find(self, item: Item) -> memoryview | None:
        if item in self.impossible:
            self.bulk.never(item, "its worker has died")
        if item not in self.made:
            return None
        self.holds += 1
        return memoryview(contents(self.bulk.segment, item, self.name))

    def served(self, item: Item) -> None:
        self.holds -= 1

    def make(self, item: Item) -> None:
        if item not in self.impossible:
            self.made.add(item)
            self.bulk.there(item)

    def give_up(self, item: Item) -> None:
        if item not in self.made:
            self.impossible.add(item)
            self.bulk.never(item, "its worker has died")

    def fetch(self, item: Item) -> None:
        under_way = [one for one in self.fetched if one.item == item and not one.told and not one.cancelled]
        memory = under_way[0].memory if under_way else bytearray(size(item))
        one = Fetched(self.bulk.segment, item, memory)
        self.fetched.append(one)
        self.bulk.fetch(item, memoryview(memory), lambda: self.done(one), one.told.append)

    def done(self, one: Fetched) -> None:
        assert one.memory == contents(one.segment, one.item, self.other)
        one.told.append("done")

    def cancel(self, item: Item) -> None:
        self.bulk.cancel(item)
        for one in self.fetched:
            if one.item == item and not one.told and not one.cancelled:
                one.cancelled = True
                one.memory[:] = bytes(len(one.memory))

    def begins(self, segment: int) -> None:
        self.made.clear()
        self.impossible.clear()
        self.bulk.begins(segment)

    def outstanding(self) -> list[Fetched]:
        return [one for one in self.fetched if not one.told and not one.cancelled]


def walk(seed: int) -> None:
    rng = Random(seed)
    loop = Loop()
    a, b = Side("a", loop, "b"), Side("b", loop, "a")
    lines: list[str] = []
    port = Port(tcp.listen(), loop, hello("a"), lambda hello: None, lines.append)
    port.expect(a.bulk)
    dialler = Dialler(b.bulk, port.address, loop, hello("b"), lambda hello: None, lines.append)
    for _ in range(rng.randrange(50, 300)):
        one, item = rng.choice((a, b)), rng.choice(ITEMS)
        match rng.randrange(20):
            case 0 | 1 | 2 | 3 | 4:
                one.fetch(item)
            case 5 | 6 | 7:
                one.make(item)
            case 8:
                one.cancel(item)
            case 9 if rng.random() < 0.3:
                one.give_up(item)
            case 10 if rng.random() < 0.3 and one.bulk._connection is not None:
                with contextlib.suppress(OSError):  # it has broken already, and the loop has not seen that
                    one.bulk._connection.stream._end.shutdown(rng.choice((socket.SHUT_RDWR, socket.SHUT_WR)))
            case 11 if rng.random() < 0.2:
                other = a if one is b else b
                one.begins(max(one.bulk.segment + 1, other.bulk.segment))
            case 12 if rng.random() < 0.3 and one.bulk._connection is not None:
                one.bulk._connection.stream._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            case _:
                loop.wait(rng.choice((0.0, 0.0, 0.002)))
    last = max(a.bulk.segment, b.bulk.segment)
    for one in (a, b):
        if one.bulk.segment < last:
            one.begins(last)
        for item in ITEMS:
            one.make(item)
    end = time.monotonic() + PATIENCE
    while a.outstanding() or b.outstanding() or a.holds or b.holds:
        assert time.monotonic() < end, f"{a.outstanding()}, {b.outstanding()} wait; held: {a.holds}, {b.holds}"
        loop.wait(1.0)
    for one in (a, b):
        for fetched in one.fetched:
            assert len(fetched.told) == (0 if fetched.cancelled else 1), fetched.told
            assert not fetched.cancelled or fetched.memory == bytes(len(fetched.memory))
        assert not one.bulk._fetched
        assert not one.bulk._asked
    assert not lines
    dialler.close()
    port.close()
    a.bulk.end("over")
    b.bulk.end("over")
    loop.close()


def hello(host: str) -> Hello:
    return Hello(PROTOCOL, host, b"", 1, 0, b"")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "SHORTEST_PAUSE", 0.001)
    monkeypatch.setattr(bulk, "LONGEST_PAUSE", 0.002)


@each_seed(range(6))
def test_each_fetch_is_told_one_thing_and_nothing_is_left_over(seed: int) -> None:
    walk(seed)


@pytest.mark.long
@each_seed(range(6, 400))
def test_each_fetch_is_told_one_thing_in_many_histories(seed: int) -> None:
    walk(seed)
