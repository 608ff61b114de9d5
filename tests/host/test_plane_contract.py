"""What a host says to its data plane and hears from it, whether the plane works in the loop or in a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeVar

import pytest

from paceline.core.items import Item, Version
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Region, Span
from paceline.net import tcp
from paceline.net.listener import HostListener
from paceline.transfer.data_connection import PART
from paceline.transfer.item_names import fields_of
from paceline.transfer.messages import (
    Asked,
    BeginSegment,
    Brought,
    Came,
    Connected,
    Disconnected,
    DropWant,
    EndPeer,
    Event,
    Lost,
    Meet,
    Named,
    Peer,
    Range,
    Refuse,
    Released,
    Send,
    Settled,
    Want,
)
from paceline.transfer.movers import InLoop, InProcess, Mover, forked_mover
from support.carriers import contents, hello
from support.clusters import KEYS, PATIENCE

SIZE = 2 * PART + 321
ITEM, OTHER = Version(1), Version(2)


Told = TypeVar("Told", bound=Event)


class Side:
    """One host. It keeps what its plane tells, in order."""

    def __init__(self, name: str, other: str, mover: Mover) -> None:
        self.name, self.peer, self.mover = name, Peer(other, 1), mover
        self.told: list[Event] = []
        self.memory = Region.create(2 * SIZE)
        self.plane = mover.plane(self.told.append)
        self.plane.tell(Meet(self.peer))
        self.plane.tell(BeginSegment(0))

    def span(self, place: int = 0) -> Span:
        return self.memory.span(place * SIZE, (place + 1) * SIZE)

    def want(self, number: int, item: Item = ITEM, *, parts: bool = False, segment: int = 0, place: int = 0) -> None:
        ranges = (Range(*self.peer, 0, SIZE),)
        self.plane.tell(Want(number, Named(segment, fields_of(item)), ranges, parts), self.span(place))

    def heard(self, kind: type[Told]) -> list[Told]:
        """What the plane has told of that kind."""
        return [one for one in self.told if isinstance(one, kind)]


class Two:
    """Host `a`, which listens, and host `b`, which dials it, in one loop."""

    def __init__(self, makes: Callable[[Loop, list[str]], Mover]) -> None:
        self.loop, self.lines = Loop(), list[str]()
        self.a, self.b = (Side(*names, makes(self.loop, self.lines)) for names in (("a", "b"), ("b", "a")))
        self.door = HostListener(tcp.listen(), self.loop, KEYS, self.lines.append)
        self.a.mover.listen(self.door, hello("a", 1), 15.0)
        self.a.mover.expect(self.a.peer)
        self.b.mover.dial(self.b.peer, self.door.address, hello("b", 1), 15.0)
        self.until(lambda: self.a.heard(Connected) and self.b.heard(Connected))
        self.a.told.clear()
        self.b.told.clear()

    def until(self, there: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < end, f"it never came to that: {self.a.told}, {self.b.told}, {self.lines}"
            self.loop.wait(0.02)

    def is_asked(self, item: Item = ITEM) -> int:
        """Wait until `a` is asked for the item. Return by which number."""
        asked = lambda: [one.number for one in self.a.heard(Asked) if one.named.item == item]  # noqa: E731
        self.until(asked)
        return asked()[-1]

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
    assert two.a.heard(Asked) == [Asked(number, Named(0, fields_of(ITEM)), 0, SIZE)]
    two.a.span().memory[:] = contents(SIZE)
    two.a.plane.tell(Send(number), two.a.span())
    two.until(lambda: two.b.told and two.a.heard(Released))
    assert two.b.told == [Brought(5, two.b.peer, SIZE, True)]
    assert two.a.heard(Released) == [Released(number)]
    assert two.b.span().memory == contents(SIZE)


def test_bytes_are_told_of_in_order_and_before_all_are_there_if_the_want_says_so(two: Two) -> None:
    two.b.want(5, parts=True)
    two.a.plane.tell(Send(two.is_asked()), two.a.span())
    two.until(lambda: two.b.heard(Brought))
    *parts, last = two.b.told
    assert isinstance(last, Brought)
    came = [one for one in parts if isinstance(one, Came)]
    assert came == parts
    assert [one.begin for one in came] == [0, *(one.end for one in came[:-1])]
    assert came[-1].end == SIZE


def test_what_is_dropped_is_settled_and_released_and_nothing_else_is_told_of_it(two: Two) -> None:
    two.b.want(5)
    number = two.is_asked()
    two.b.plane.tell(DropWant(5))
    two.until(lambda: two.b.told and two.a.heard(Released))
    assert two.b.told == [Settled(5)]
    two.a.plane.tell(Send(number), two.a.span())
    two.a.plane.tell(Refuse(number, "late"))
    two.b.want(6, OTHER, place=1)
    two.a.plane.tell(Send(two.is_asked(OTHER)), two.a.span(1))
    two.until(lambda: two.b.heard(Brought))
    assert two.b.told[1:] == [Brought(6, two.b.peer, SIZE, True)]


def test_a_drop_is_settled_though_the_want_has_ended_meanwhile(two: Two) -> None:
    two.b.want(5)
    two.a.plane.tell(Refuse(two.is_asked(), "it was dropped"))
    two.until(lambda: two.b.heard(Lost))
    two.b.plane.tell(DropWant(5))
    two.until(lambda: two.b.heard(Settled))
    assert two.b.told == [Lost(5, "it was dropped", "a"), Settled(5)]
    assert not two.a.heard(Released), "who refuses knows it"


def test_the_end_of_a_host_loses_what_is_wanted_of_it_now_and_later(two: Two) -> None:
    two.b.want(5)
    two.is_asked()
    two.b.plane.tell(EndPeer(two.b.peer, "silent for 15.0 s"))
    two.b.want(6, OTHER, place=1)
    two.until(lambda: len(two.b.told) == 3)
    assert sorted(two.b.told, key=repr) == [
        Disconnected(two.b.peer),
        Lost(5, "silent for 15.0 s"),
        Lost(6, "incarnation 1 of host a has ended"),
    ]
    two.until(lambda: two.a.heard(Released))


def test_a_segment_ends_what_is_wanted_of_the_last_one_and_hears_of_what_was_asked_early(two: Two) -> None:
    two.b.want(5)
    number = two.is_asked()
    two.b.plane.tell(BeginSegment(1))
    two.until(lambda: two.b.heard(Lost))
    two.b.want(6, OTHER, segment=1)
    two.until(lambda: two.a.heard(Released))
    two.b.want(7, Version(3), place=1)
    two.until(lambda: len(two.b.told) == 2)
    assert two.b.told == [Lost(number, "segment 0 has ended") for number in (5, 7)]
    assert [one.named.item for one in two.a.heard(Asked)] == [fields_of(ITEM)]
    two.a.plane.tell(BeginSegment(1))
    assert two.is_asked(OTHER) != number
