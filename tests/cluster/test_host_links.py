"""Links between hosts as a fluid: times by hand, and an exact twin that looks at every transfer at every event."""

from __future__ import annotations

import copy
import math
import random
from dataclasses import dataclass
from fractions import Fraction

import pytest

from paceline.scenario.host_links import Carried, HostLinks
from support.seeds import each_seed

INF = math.inf


def links(bandwidths: dict[str, float], **latencies: float) -> HostLinks:
    return HostLinks(bandwidths, dict.fromkeys(bandwidths, 0.0) | latencies)


def drain(of: HostLinks) -> list[Carried]:
    """All that end, if nothing else begins."""
    ended = []
    while (carried := of.finish(INF)) is not None:
        ended.append(carried)
    return ended


def test_alone_it_takes_both_latencies_and_size_over_the_lesser_bandwidth() -> None:
    of = links({"a": 100.0, "b": 50.0}, a=0.5, b=0.25)
    of.begin("a", "b", 200, 1.0)
    assert drain(of) == [Carried(number=0, source="a", target="b", size=200, began=1.0, ended=5.75)]


Begun = tuple[str, str, int, float]
"""Source, target, bytes, and when it begins."""
TABLE: dict[str, tuple[dict[str, float], list[Begun], list[float]]] = {
    # bandwidths, what begins, when each ends
    "no bandwidth given": ({"a": INF, "b": INF}, [("a", "b", 100, 2.0)], [2.0]),
    "no byte": ({"a": 1.0, "b": 1.0}, [("a", "b", 0, 2.0)], [2.0]),
    "two of one host share its link, and leave the rest to another": (
        # b gets 40 for two, so a gets 60 of the head's 100 until it is done
        {"h": 100.0, "a": 100.0, "b": 40.0},
        [("a", "h", 60, 0.0), ("b", "h", 40, 0.0), ("b", "h", 40, 0.0)],
        [1.0, 2.0, 2.0],
    ),
}


@pytest.mark.parametrize(("bandwidths", "begun", "ends"), TABLE.values(), ids=TABLE.keys())
def test_times_by_hand(bandwidths: dict[str, float], begun: list[Begun], ends: list[float]) -> None:
    of = links(bandwidths)
    for source, target, size, at in begun:
        of.begin(source, target, size, at)
    assert {one.number: one.ended for one in drain(of)} == pytest.approx(dict(enumerate(ends)))


def test_a_transfer_that_has_ended_is_not_cancelled_any_more() -> None:
    of = links({"h": 100.0, "a": 100.0}, a=1.0)
    of.begin("a", "h", 100, 0.0)
    before = copy.deepcopy(of)
    before.cancel(0, 1.5)  # its last byte has left, and has not come
    assert drain(before) == []
    of.cancel(0, 2.0)
    assert [one.ended for one in drain(of)] == [2.0]


def test_no_transfer_ends_before_the_next_change_and_asking_early_does_no_harm() -> None:
    of = links({"h": 100.0, "a": INF, "b": INF}, a=0.5)
    of.begin("a", "h", 100, 0.0)
    of.begin("b", "h", 50, 0.0)
    twin, ended = copy.deepcopy(of), []
    while (change := of.next_change()) is not None:
        assert of.finish(math.nextafter(change, 0.0)) is None
        while (one := of.finish(change)) is not None:
            ended.append(one)
    assert ended == drain(twin)
    assert [one.number for one in ended] == [1, 0]


@dataclass
class Exact:
    """The same in fractions, told everything in the order of time, with the shares found anew at each step."""

    bandwidths: dict[str, Fraction]
    left: dict[int, Fraction]
    pairs: dict[int, tuple[str, str]]
    now: Fraction
    ends: dict[int, Fraction]

    def go_on(self, until: Fraction | None) -> None:
        """Until all have ended if `until` is None."""
        while self.left:
            shares = self.shares()
            first = min(self.now + self.left[number] / shares[number] for number in self.left)
            if until is not None and first > until:
                break
            self.spend(first - self.now, shares)
            for number in [number for number, rest in self.left.items() if rest <= 0]:
                self.ends[number] = self.now
                del self.left[number]
        if until is not None:
            self.spend(until - self.now, self.shares())

    def spend(self, seconds: Fraction, shares: dict[int, Fraction]) -> None:
        for number in self.left:
            self.left[number] -= seconds * shares[number]
        self.now += seconds

    def shares(self) -> dict[int, Fraction]:
        """Raise all shares alike, each until one of its ways is full."""
        shares: dict[int, Fraction] = dict.fromkeys(self.left, Fraction(0))
        rising = set(self.left)
        while rising:
            room = {}
            for way in {way for number in rising for way in self.ways(number)}:
                used = sum(share for number, share in shares.items() if way in self.ways(number))
                room[way] = (self.bandwidths[way[0]] - used) / sum(way in self.ways(number) for number in rising)
            least = min(room.values())
            for number in rising:
                shares[number] += least
            full = {way for way, rest in room.items() if rest == least}
            rising = {number for number in rising if not full & set(self.ways(number))}
        return shares

    def ways(self, number: int) -> list[tuple[str, str]]:
        source, target = self.pairs[number]
        return [(source, "out"), (target, "in")]


@each_seed(range(60))
def test_the_shares_are_those_of_an_exact_twin(seed: int) -> None:
    draw = random.Random(seed)
    names = "habcd"[: draw.randint(2, 5)]
    bandwidths = {name: draw.choice([10, 25, 100, 1000]) for name in names}
    of = links({name: float(bandwidth) for name, bandwidth in bandwidths.items()})
    exact = Exact({name: Fraction(bandwidth) for name, bandwidth in bandwidths.items()}, {}, {}, Fraction(0), {})
    found, at = {}, 0
    for number in range(draw.randint(1, 25)):
        at += draw.choice([0, 0, 1, 3])
        while (one := of.finish(at)) is not None:
            found[one.number] = one.ended
        exact.go_on(Fraction(at))
        if exact.left and draw.random() < 0.1:
            gone = draw.choice(list(exact.left))
            of.cancel(gone, at)
            del exact.left[gone]
        source, target = draw.sample(names, 2)
        size = draw.randint(1, 300)
        assert of.begin(source, target, size, at) == number
        exact.left[number], exact.pairs[number] = Fraction(size), (source, target)
    exact.go_on(None)
    found |= {one.number: one.ended for one in drain(of)}
    assert found == pytest.approx({number: float(end) for number, end in exact.ends.items()})
