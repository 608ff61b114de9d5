"""What a host says to its data plane and hears from it, whether the plane works in the loop or in a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from paceline.core.items import Item, Version
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Region, Span
from paceline.net import tcp
from paceline.net.listener import HostListener
from paceline.transfer.data_connection import PART
from paceline.transfer.fetch_table import Named, Peer, Range
from paceline.transfer.movers import InLoop, InProcess, Mover, forked_mover
from support.carriers import contents, hello
from support.clusters import KEYS, PATIENCE

SIZE = 2 * PART + 321
ITEM, OTHER = Version(1), Version(2)


class Side:
    """One host. It keeps what its plane tells, in order."""

    def __init__(self, name: str, other: str, mover: Mover) -> None:
        self.name, self.peer, self.mover = name, Peer(other, 1), mover
        self.told: list[tuple[Any, ...]] = []
        self.memory = Region.create(2 * SIZE)
        self.plane = mover.plane(self)
        self.plane.meet(self.peer)
        self.plane.begin(0)

    def span(self, place: int = 0) -> Span:
        return self.memory.span(place * SIZE, (place + 1) * SIZE)

    def want(self, number: int, item: Item = ITEM, *, parts: bool = False, segment: int = 0, place: int = 0) -> None:
        ranges = (Range(*self.peer, 0, SIZE),)
        self.plane.want(number, Named(segment, item), ranges, self.span(place), parts=parts)

    def heard(self, what: str) -> list[tuple[Any, ...]]:
        """What the plane has told of that kind."""
        return [rest for kind, *rest in self.told if kind == what]  # type: ignore[misc]

    def number_of(self, item: Item) -> int:
        """The number by which the item was asked for last."""
        return int(next(number for number, asked, *_ in reversed(self.heard("asked")) if asked == item))

    # --- see `PlaneEvents`

    def connected(self, peer: Peer) -> None:
        self.told.append(("connected", peer))

    def disconnected(self, peer: Peer) -> None:
        self.told.append(("disconnected", peer))

    def came(self, number: int, begin: int, end: int) -> None:
        self.told.append(("came", number, begin, end))

    def brought(self, number: int, peer: Peer, size: int, whole: bool) -> None:
        self.told.append(("brought", number, peer, size, whole))

    def lost(self, number: int, why: str, refused_by: str | None) -> None:
        self.told.append(("lost", number, why, refused_by))

    def settled(self, number: int) -> None:
        self.told.append(("settled", number))

    def asked(self, number: int, item: Item, begin: int, end: int) -> None:
        self.told.append(("asked", number, item, begin, end))

    def released(self, number: int) -> None:
        self.told.append(("released", number))


class Two:
    """Host `a`, which listens, and host `b`, which dials it, in one loop."""

    def __init__(self, makes: Callable[[Loop, list[str]], Mover]) -> None:
        self.loop, self.lines = Loop(), list[str]()
        self.a, self.b = (Side(*names, makes(self.loop, self.lines)) for names in (("a", "b"), ("b", "a")))
        self.door = HostListener(tcp.listen(), self.loop, KEYS, self.lines.append)
        self.a.mover.listen(self.door, hello("a", 1), 15.0)
        self.a.mover.expect(self.a.peer)
        self.b.mover.dial(self.b.peer, self.door.address, hello("b", 1), 15.0)
        self.until(lambda: self.a.heard("connected") and self.b.heard("connected"))
        self.a.told.clear()
        self.b.told.clear()

    def until(self, there: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < end, f"it never came to that: {self.a.told}, {self.b.told}, {self.lines}"
            self.loop.wait(0.02)

    def is_asked(self, item: Item = ITEM) -> int:
        """Wait until `a` is asked for the item. Return by which number."""
        self.until(lambda: item in [asked for _, asked, *_ in self.a.heard("asked")])
        return self.a.number_of(item)

    def close(self) -> None:
        self.door.close()
        for side in (self.a, self.b):
            side.plane.close()
            side.mover.close(side.memory.free)
        self.loop.close()


@pytest.fixture(params=["in the loop", "in a process"])
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    with ExitStack() as stack:
        if request.param == "in the loop":
            two = Two(lambda loop, lines: InLoop(loop, KEYS, lines.append))
        else:
            forked = [stack.enter_context(forked_mover(KEYS, lambda: None)) for _ in range(2)]
            two = Two(lambda loop, lines: InProcess(forked.pop(), loop, lines.append))
        stack.callback(two.close)
        yield two


def test_what_is_wanted_is_asked_for_by_a_number_brought_and_released(two: Two) -> None:
    two.b.want(5)
    number = two.is_asked()
    assert two.a.heard("asked") == [[number, ITEM, 0, SIZE]]
    two.a.span().memory[:] = contents(SIZE)
    two.a.plane.send(number, two.a.span())
    two.until(lambda: two.b.told and two.a.heard("released"))
    assert two.b.told == [("brought", 5, two.b.peer, SIZE, True)]
    assert two.a.heard("released") == [[number]]
    assert two.b.span().memory == contents(SIZE)


def test_bytes_are_told_of_in_order_and_before_all_are_there_if_the_want_says_so(two: Two) -> None:
    two.b.want(5, parts=True)
    two.a.plane.send(two.is_asked(), two.a.span())
    two.until(lambda: two.b.heard("brought"))
    *parts, last = two.b.told
    assert last[0] == "brought"
    assert {kind for kind, *_ in parts} == {"came"}
    assert [begin for *_, begin, _ in parts] == [0, *(end for *_, end in parts[:-1])]
    assert parts[-1][-1] == SIZE


def test_what_is_dropped_is_settled_and_released_and_nothing_else_is_told_of_it(two: Two) -> None:
    two.b.want(5)
    number = two.is_asked()
    two.b.plane.drop(5)
    two.until(lambda: two.b.told and two.a.heard("released"))
    assert two.b.told == [("settled", 5)]
    two.a.plane.send(number, two.a.span())
    two.a.plane.refuse(number, "late")
    two.b.want(6, OTHER, place=1)
    two.a.plane.send(two.is_asked(OTHER), two.a.span(1))
    two.until(lambda: two.b.heard("brought"))
    assert two.b.told[1:] == [("brought", 6, two.b.peer, SIZE, True)]


def test_a_drop_is_settled_though_the_want_has_ended_meanwhile(two: Two) -> None:
    two.b.want(5)
    two.a.plane.refuse(two.is_asked(), "it was dropped")
    two.until(lambda: two.b.heard("lost"))
    two.b.plane.drop(5)
    two.until(lambda: two.b.heard("settled"))
    assert two.b.told == [("lost", 5, "it was dropped", "a"), ("settled", 5)]
    assert not two.a.heard("released"), "who refuses knows it"


def test_the_end_of_a_host_loses_what_is_wanted_of_it_now_and_later(two: Two) -> None:
    two.b.want(5)
    two.is_asked()
    two.b.plane.end(two.b.peer, "silent for 15.0 s")
    two.b.want(6, OTHER, place=1)
    two.until(lambda: len(two.b.told) == 3)
    assert sorted(two.b.told) == [
        ("disconnected", two.b.peer),
        ("lost", 5, "silent for 15.0 s", None),
        ("lost", 6, "incarnation 1 of host a has ended", None),
    ]
    two.until(lambda: two.a.heard("released"))


def test_a_segment_ends_what_is_wanted_of_the_last_one_and_hears_of_what_was_asked_early(two: Two) -> None:
    two.b.want(5)
    number = two.is_asked()
    two.b.plane.begin(1)
    two.until(lambda: two.b.heard("lost"))
    two.b.want(6, OTHER, segment=1)
    two.until(lambda: two.a.heard("released"))
    two.b.want(7, Version(3), place=1)
    two.until(lambda: len(two.b.told) == 2)
    assert two.b.told == [("lost", number, "segment 0 has ended", None) for number in (5, 7)]
    assert [item for _, item, *_ in two.a.heard("asked")] == [ITEM]
    two.a.plane.begin(1)
    assert two.is_asked(OTHER) != number
