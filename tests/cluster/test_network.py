"""The link as a fluid: closed forms by hand, and an exact twin that looks at every flow at every event."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import pytest

from paceline.scenario.network import Direction, LinkTransfer, SharedLink
from paceline.scenario.scenario import Network
from support.seeds import each_seed

B = 100.0
"""Bytes a second of most links here."""


def link(bandwidth: float | None = B, latency: float = 0.0, incast: float = 1.0) -> SharedLink:
    return SharedLink(bandwidth, latency, incast)


def drain(of: SharedLink) -> list[LinkTransfer]:
    """All that end, if nothing else begins."""
    ended = []
    while (transfer := of.finish(math.inf)) is not None:
        ended.append(transfer)
    return ended


def ends(of: SharedLink) -> dict[int, float]:
    """Number → end, in the order in which they are reported."""
    return {transfer.number: transfer.ended for transfer in drain(of)}


def test_alone_it_takes_latency_and_size_over_bandwidth() -> None:
    of = link(latency=0.5)
    of.begin(3, "push", 200, 1.0)
    assert drain(of) == [LinkTransfer(number=0, worker=3, direction="push", size=200, began=1.0, ended=3.5)]


def test_on_an_unlimited_link_all_take_the_latency_alone_in_the_order_of_their_beginning() -> None:
    of = link(bandwidth=None, latency=0.5, incast=0.5)
    for number, size in enumerate((10**18, 5, 0, 7)):
        of.begin(number, "push" if number % 2 else "pull", size, 1.0)
    of.begin(9, "push", 10**18, 1.25)
    assert list(ends(of).items()) == [(0, 1.5), (1, 1.5), (2, 1.5), (3, 1.5), (4, 1.75)]


@pytest.mark.parametrize("latency", [0.0, 1.0])
def test_one_that_has_ended_by_then_is_not_cancelled(latency: float) -> None:
    of = link(latency=latency)
    number = of.begin(0, "push", 100, 0.0)
    of.cancel(number, 1.0 + latency)
    assert ends(of) == {0: 1.0 + latency}


def test_cancelling_what_is_unknown_reported_or_cancelled_changes_nothing() -> None:
    of = link()
    reported = of.begin(0, "push", 100, 0.0)
    cancelled = of.begin(1, "push", 300, 0.0)
    assert of.finish(2.0) is not None
    of.cancel(cancelled, 2.0)
    of.begin(2, "push", 100, 2.0)
    before = copy.deepcopy(of)
    for number in (reported, cancelled, 99):
        of.cancel(number, 2.5)
        assert of == before


def test_asking_too_early_changes_nothing() -> None:
    of = link()
    of.begin(0, "push", 100, 0.0)
    before = copy.deepcopy(of)
    assert of.finish(0.75) is None
    assert of == before
    of.begin(1, "push", 25, 0.5)  # earlier than the question was
    assert list(ends(of).items()) == [(1, 1.0), (0, 1.25)]


def test_a_beginning_before_what_has_happened_is_taken_as_now() -> None:
    of = link()
    of.begin(0, "push", 100, 5.0)
    of.begin(1, "pull", 100, 4.0)
    assert [transfer.began for transfer in drain(of)] == [5.0, 5.0]
    of.begin(2, "push", 100, 3.0)
    assert [(transfer.began, transfer.ended) for transfer in drain(of)] == [(6.0, 7.0)]


def test_a_cancel_before_what_has_happened_is_taken_as_now() -> None:
    of = link()
    gone = of.begin(0, "push", 300, 0.0)
    of.begin(1, "push", 100, 1.0)
    of.cancel(gone, 0.0)
    assert ends(of) == {1: 2.0}


@each_seed(range(30))
def test_equal_ones_that_begin_together_end_at_the_same_instant_in_the_order_of_their_beginning(seed: int) -> None:
    """Whatever else is on the way, comes, ends or is cancelled meanwhile."""
    chance = random.Random(seed)
    of = link(bandwidth=chance.uniform(1e3, 1e9), latency=chance.choice([0.0, 50e-6]), incast=0.6)
    assert of.bandwidth is not None
    together: dict[int, tuple[float, int]] = {}
    at = 0.0
    for _ in range(60):
        at += chance.expovariate(20)
        size = int(of.bandwidth * chance.uniform(0, 0.1))
        for _ in range(chance.randint(1, 4)):
            together[of.begin(0, "push", size, at)] = (at, size)
        if chance.random() < 0.2:
            of.cancel(chance.randrange(of.begun), at)
    ended = drain(of)
    assert [(one.ended, one.number) for one in ended] == sorted((one.ended, one.number) for one in ended)
    assert len({(together[one.number], one.ended) for one in ended}) == len({together[one.number] for one in ended})


def test_an_end_that_only_rounding_makes_equal_keeps_the_order_of_beginning() -> None:
    """A byte is less than a moment can tell apart at second 1e6; the smaller one began later."""
    of = link(bandwidth=1e18)
    of.begin(0, "push", 1001, 1e6)
    of.begin(1, "push", 1000, 1e6)
    assert list(ends(of).items()) == [(0, 1e6), (1, 1e6)]


def test_no_end_comes_before_what_has_happened() -> None:
    """Something begins as late before an end as a float can tell: rounding (in one case of 400) must not show."""
    for seed in range(800):
        chance = random.Random(seed)
        count, bandwidth = chance.randint(1, 9), chance.uniform(1.0, 1e3)
        of = link(bandwidth)
        for number in range(count):
            of.begin(0, "push", chance.randint(1, 300), number * 0.01 * chance.random() / bandwidth)
        end = of.next_end()
        assert end is not None
        late = math.nextafter(end, 0.0)
        of.begin(0, "push", 5, late)
        end = of.next_end()
        assert end is not None
        assert end >= late


@dataclass(frozen=True)
class Began:
    number: int
    direction: Direction
    size: int
    at: float


@dataclass(frozen=True)
class Cancelled:
    number: int
    at: float


def exact_ends(
    history: Iterable[Began | Cancelled], bandwidth: float, latency: float, incast: float
) -> dict[int, Fraction]:
    """The twin: the bytes left of every flow, in exact fractions, from each event to the next."""
    left: dict[Direction, dict[int, Fraction]] = {"push": {}, "pull": {}}
    ended: dict[int, Fraction] = {}
    now = Fraction(0)
    for event in [*history, None]:
        until = None if event is None else Fraction(event.at)
        for direction, flows in left.items():
            here = now
            while flows:
                goodput = Fraction(bandwidth) * (Fraction(incast) if direction == "push" and len(flows) > 1 else 1)
                share = goodput / len(flows)
                step = min(flows.values()) / share
                last = until is not None and here + step > until
                step = until - here if last and until is not None else step
                here += step
                for number in list(flows):
                    flows[number] -= share * step
                    if flows[number] == 0:
                        ended[number] = here + Fraction(latency)
                        del flows[number]
                if last:
                    break
        if until is not None:
            now = until
        match event:
            case Began(number, direction, size):
                left[direction][number] = Fraction(size)
            case Cancelled(number):
                for flows in left.values():
                    flows.pop(number, None)
                if number in ended and ended[number] > now:
                    del ended[number]
    return ended


def lived(of: SharedLink, chance: random.Random, events: int) -> tuple[list[Began | Cancelled], list[LinkTransfer]]:
    """A random history as a caller makes it: ends are taken as they come, and some give rise to another transfer."""
    history: list[Began | Cancelled] = []
    ended: list[LinkTransfer] = []
    mean = 100.0
    assert of.bandwidth is not None

    def begin(at: float) -> None:
        direction: Direction = "push" if chance.random() < 0.6 else "pull"
        size = chance.choice([0, 100, chance.randint(1, 300)])
        history.append(Began(of.begin(0, direction, size, at), direction, size, at))

    now = 0.0
    for _ in range(events):
        now += chance.choice([0.0, chance.expovariate(of.bandwidth / mean)])
        while (end := of.next_end()) is not None and end <= now:
            transfer = of.finish(end if chance.random() < 0.5 else now)
            assert transfer is not None
            assert transfer.ended == end
            ended.append(transfer)
            if chance.random() < 0.3:
                begin(end)
        if chance.random() < 0.15 and of.begun:
            number = chance.randrange(max(0, of.begun - 10), of.begun)
            if number in of.open:
                of.cancel(number, now)
                history.append(Cancelled(number, now))
        else:
            begin(now)
    return history, ended + drain(of)


LINKS = [(100.0, 0.0, 1.0), (100.0, 0.0, 0.6), (125e6, 50e-6, 1.0), (3.7, 2.5, 0.35), (100.0, 0.5, 1.0)]


@pytest.mark.parametrize(("bandwidth", "latency", "incast"), LINKS)
@each_seed(range(60))
def test_it_agrees_with_looking_at_every_flow_at_every_event(
    bandwidth: float, latency: float, incast: float, seed: int
) -> None:
    history, ended = lived(link(bandwidth, latency, incast), random.Random(seed), 40)
    exact = exact_ends(history, bandwidth, latency, incast)
    assert {transfer.number: transfer.ended for transfer in ended} == pytest.approx(
        {number: float(end) for number, end in exact.items()}, rel=1e-9
    )
    assert [transfer.ended for transfer in ended] == sorted(transfer.ended for transfer in ended)


def test_a_way_that_is_never_idle_stays_exact() -> None:
    """Two are always on the way, each 2 s long, and one ends every second."""
    of = link(bandwidth=0.1e9)
    of.begin(0, "push", 50_000_000, 0.0)  # half a length, so that the ends alternate
    of.begin(1, "push", 100_000_000, 0.0)
    last = 0.0
    for _ in range(20_000):
        transfer = of.finish(math.inf)
        assert transfer is not None
        last = transfer.ended
        of.begin(transfer.worker, "push", 100_000_000, last)
    assert last == pytest.approx(20_000.0, rel=1e-12)
    assert of.ways["push"].served > 0.0


def test_an_idle_way_starts_afresh() -> None:
    of = link(bandwidth=3.7)
    for at in (0.0, 100.0):
        for size in (3, 5, 7):
            of.begin(0, "push", size, at)
        drain(of)
        assert (of.ways["push"].served, of.ways["push"].marks) == (0.0, [])


# From a scenario


def test_a_link_without_bandwidth_and_latency_paces_nothing() -> None:
    assert SharedLink.of(None) is None
    assert SharedLink.of(Network(message=5, incast=0.5)) is None


@pytest.mark.parametrize(
    ("network", "end"),
    [
        (Network(bandwidth=100.0, latency=0.5, incast=0.5), 4.5),
        (Network(bandwidth=100.0), 2.0),
        (Network(latency=0.5), 0.5),
    ],
)
def test_a_scenarios_link_has_its_bandwidth_latency_and_incast(network: Network, end: float) -> None:
    of = SharedLink.of(network)
    assert of is not None
    of.begin(0, "push", 100, 0.0)
    of.begin(1, "push", 100, 0.0)
    assert ends(of) == {0: end, 1: end}


def test_a_flow_alone_for_a_while_got_what_its_workers_own_link_carries_and_no_more() -> None:
    """100 bytes at 40 a second take 2.5 s, though the way itself would have had 160 a second for the first alone."""
    of = SharedLink(160.0, 0.0, 1.0, 40.0)
    of.begin(0, "push", 100, 0.0)
    of.begin(1, "push", 100, 1.0)
    assert ends(of) == {0: 2.5, 1: 3.5}
