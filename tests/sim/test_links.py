"""Links as a fluid: max-min fair against an exact twin, times by hand, and which links a scenario has."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest

from paceline.scenario.links import ClusterLinks, Direction, Fluid, Route, Way, assumed, average_bytes
from paceline.scenario.scenario import HostTable, Network, Scenario
from support.seeds import each_seed

INF = math.inf
LATENCY = 0.5


def ends(of: Fluid[Any], until: float = INF) -> dict[Any, float]:
    """What → end, in the order in which they are told."""
    found = {}
    while (flow := of.finish(until)) is not None:
        found[flow.what] = flow.ended
    return found


# --- the twin -----------------------------------------------------------------------------------------


@dataclass
class Twin:
    """The same flows in exact fractions, with all rates found anew at each event."""

    ways: list[Way]
    latency: Fraction
    now: Fraction = Fraction(0)
    left: dict[int, Fraction] = field(default_factory=dict)
    routes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By flow: the indices of its ways."""
    left_at: dict[int, Fraction] = field(default_factory=dict)

    def go_on(self, until: Fraction | None) -> None:
        """Until all have left if `until` is None."""
        while self.left:
            rates = self.rates()
            first = min(self.now + self.left[flow] / rates[flow] for flow in self.left)
            if until is not None and first > until:
                break
            self.spend(first, rates)
            for flow in [flow for flow, rest in self.left.items() if rest == 0]:
                self.left_at[flow] = self.now
                del self.left[flow]
        if until is not None:
            self.spend(until, self.rates())

    def spend(self, until: Fraction, rates: dict[int, Fraction]) -> None:
        for flow in self.left:
            self.left[flow] -= (until - self.now) * rates[flow]
        self.now = until

    def goodput(self, way: int) -> Fraction:
        one, flows = self.ways[way], self.on(way)
        return Fraction(one.bandwidth) * (Fraction(one.contended) if len(flows) > 1 else 1)

    def on(self, way: int) -> list[int]:
        return [flow for flow in self.left if way in self.routes[flow]]

    def rates(self) -> dict[int, Fraction]:
        """Progressive filling: all rates rise alike, each until one of its ways is full, or gives a flow no more."""
        rates = dict.fromkeys(self.left, Fraction(0))
        rising = set(rates)
        while rising:
            level = rates[min(rising)]
            room = {}
            for way in {way for flow in rising for way in self.routes[flow]}:
                here = self.on(way)
                spare = self.goodput(way) - sum(rates[flow] for flow in here)
                room[way] = spare / sum(flow in rising for flow in here)
                if self.ways[way].each < INF:
                    room[way] = min(room[way], Fraction(self.ways[way].each) - level)
            least = min(room.values())
            for flow in rising:
                rates[flow] += least
            full = {way for way, rest in room.items() if rest == least}
            rising = {flow for flow in rising if not full & set(self.routes[flow])}
        return rates


@dataclass
class History:
    """A random one: flows over random routes begin, end and are cancelled. The twin is told the same."""

    seed: int

    def __post_init__(self) -> None:
        self.draw = draw = random.Random(self.seed)
        each, contended = (draw.choice([1.0, 0.5]) for _ in range(2))
        self.ways = [
            Way(draw.choice([10.0, 25.0, 100.0]), draw.choice([1.0, contended]), draw.choice([INF, INF, 7.0 * each]))
            for _ in range(draw.randint(1, 6))
        ]
        indices = range(len(self.ways))
        paths = {tuple(draw.sample(indices, draw.randint(1, min(4, len(indices))))) for _ in range(8)}
        self.paths = sorted(paths)
        self.routes = [Route(tuple(self.ways[index] for index in path)) for path in self.paths]
        self.latency = draw.choice([0.0, 0.5, 2.0])
        self.of: Fluid[int] = Fluid()
        self.twin = Twin(self.ways, Fraction(self.latency))
        self.found: dict[int, float] = {}

    def play(self, look: Any = lambda: None) -> History:
        """`look()` is called at moments in between."""
        at, flows, of, twin = 0, [], self.of, self.twin
        for number in range(self.draw.randint(1, 25)):
            at += self.draw.choice([0, 0, 1, 3])
            twin.go_on(Fraction(at))
            if self.draw.random() < 0.5:  # a caller may ask late, as long as it is before it tells what came later
                self.found |= ends(of, at)
            if flows and self.draw.random() < 0.15:
                gone = self.draw.choice(flows)
                if of.cancel(gone, at):
                    twin.left.pop(gone.what, None)
                    twin.left_at.pop(gone.what, None)
            place = self.draw.randrange(len(self.routes))
            size = self.draw.choice([0, self.draw.randint(1, 300)])
            flows.append(of.begin(self.routes[place], size, at, number, self.latency))
            twin.left[number], twin.routes[number] = Fraction(size), self.paths[place]
            look()
        twin.go_on(None)
        self.found |= ends(of)
        return self


@each_seed(range(150))
def test_flows_end_when_an_exact_twin_says_that_they_do_however_late_they_are_asked_for(seed: int) -> None:
    history = History(seed).play()
    exact = {flow: float(at + history.twin.latency) for flow, at in history.twin.left_at.items()}
    assert history.found == pytest.approx(exact, rel=1e-9, abs=1e-9)
    assert history.of.under_way == 0


def test_a_way_that_is_never_idle_stays_exact() -> None:
    """Two are always on the way, each 2 s long, and one ends every second."""
    of, route = Fluid[int](), Route((Way(0.1e9),))
    of.begin(route, 50_000_000, 0.0, 0)  # half a length, so that the ends alternate
    of.begin(route, 100_000_000, 0.0, 0)
    for _ in range(20_000):
        flow = of.finish(INF)
        assert flow is not None
        of.begin(route, 100_000_000, flow.ended, 0)
    assert of.moment == pytest.approx(20_000.0, rel=1e-12)


@each_seed(range(30))
def test_equal_ones_that_begin_together_end_at_the_same_instant_in_the_order_of_their_beginning(seed: int) -> None:
    """Whatever else is on the way, comes, ends or is cancelled meanwhile."""
    draw = random.Random(seed)
    of, bandwidth, latency = Fluid[tuple[float, int, int]](), draw.uniform(1e3, 1e9), draw.choice([0.0, 50e-6])
    route, at, flows = Route((Way(bandwidth, 0.6),)), 0.0, []
    for _ in range(60):
        at += draw.expovariate(20)
        size = int(bandwidth * draw.uniform(0, 0.1))
        flows += [of.begin(route, size, at, (at, size, copy), latency) for copy in range(draw.randint(1, 4))]
        if draw.random() < 0.2:
            of.cancel(draw.choice(flows), at)
    ended = list(ends(of).items())
    assert ended == sorted(ended, key=lambda one: (one[1], one[0]))
    assert len({(what[:2], end) for what, end in ended}) == len({what[:2] for what, _ in ended})


def test_an_end_that_only_rounding_makes_equal_keeps_the_order_of_beginning() -> None:
    """A byte is less than a moment can tell apart at second 1e6; the smaller one began later."""
    of, route = Fluid[int](), Route((Way(1e18),))
    of.begin(route, 1001, 1e6, 0)
    of.begin(route, 1000, 1e6, 1)
    assert list(ends(of).items()) == [(0, 1e6), (1, 1e6)]


def test_no_end_comes_before_what_has_happened() -> None:
    """Something begins as late before an end as a float can tell: rounding (in one case of 400) must not show."""
    for seed in range(1500):
        draw = random.Random(seed)
        count, bandwidth = draw.randint(1, 9), draw.uniform(1.0, 1e3)
        of, route = Fluid[int](), Route((Way(bandwidth),))
        for number in range(count):
            of.begin(route, draw.randint(1, 300), number * 0.01 * draw.random() / bandwidth, number)
        late = math.nextafter(of.next_change() or 0.0, 0.0)
        of.begin(route, 5, late, count)
        assert (of.next_change() or 0.0) >= late


# --- asking, being late, cancelling -------------------------------------------------------------------


def two(size: int = 100, latency: float = 0.0) -> tuple[Fluid[int], Route, Any, Any]:
    """Two flows that begin together on one way of 100 bytes a second."""
    of, route = Fluid[int](), Route((Way(100.0),))
    return of, route, *(of.begin(route, size, 0.0, number, latency) for number in range(2))


def test_asking_too_early_changes_nothing() -> None:
    of, route, *_ = two()
    assert of.finish(1.75) is None
    of.begin(route, 25, 0.5, 2)  # earlier than the question was
    assert ends(of) == {2: 1.25, 0: 2.25, 1: 2.25}


def test_no_flow_ends_before_the_next_change() -> None:
    of, *_ = two(latency=LATENCY)
    changes = []
    while (change := of.next_change()) is not None:
        assert of.finish(math.nextafter(change, 0.0)) is None
        changes.append(change)
        of.finish(change)
    assert changes == [2.0, 2.5, 2.5]
    assert of.finish(INF) is None


def test_what_an_end_causes_begins_at_that_end_however_late_it_is_asked_for() -> None:
    """0 ends at 1 and 1 at 3.5. All of it is asked for at second 100 only."""
    of, route = Fluid[int](), Route((Way(100.0),))
    of.begin(route, 50, 0.0, 0)
    of.begin(route, 250, 0.0, 1)
    first = of.finish(100.0)
    assert first is not None
    of.begin(route, 50, first.ended, 2)
    assert (first.ended, ends(of, 100.0)) == (1.0, {2: 2.0, 1: 3.5})


def test_what_is_told_of_too_late_happens_now() -> None:
    of, route = Fluid[int](), Route((Way(100.0),))
    of.begin(route, 100, 5.0, 0)
    gone = of.begin(route, 900, 4.0, 1)
    assert gone.began == 5.0
    assert of.cancel(gone, 3.0)
    assert ends(of) == {0: 6.0}


@pytest.mark.parametrize(
    ("at", "cancelled", "other"),
    [(1.0, True, 1.5), (2.25, True, 2.0), (2.5, False, 2.0), (9.0, False, 2.0)],
    ids=["under way", "in its latency", "as it ends", "long after"],
)
def test_the_share_of_a_cancelled_one_is_the_others_from_then_on(at: float, cancelled: bool, other: float) -> None:
    of, _, gone, _ = two(latency=LATENCY)
    assert of.cancel(gone, at) is cancelled
    assert not (cancelled and of.cancel(gone, at)), "it is gone"
    assert ends(of) == ({} if cancelled else {0: 2.5}) | {1: other + LATENCY}


def test_after_the_last_was_cancelled_the_way_is_as_new() -> None:
    of, route, *flows = two(300)
    for flow in flows:
        of.cancel(flow, 0.5)
    assert (of.next_change(), of.finish(INF), of.under_way) == (None, None, 0)
    of.begin(route, 100, 0.5, 2)
    assert ends(of) == {2: 1.5}


def test_a_copy_continues_alike() -> None:
    history = History(3)
    history.play(lambda: setattr(history, "kept", copy.deepcopy(history.of)))
    twin = copy.deepcopy(history.kept)  # type: ignore[attr-defined]
    assert (found := ends(twin)) == ends(history.kept)  # type: ignore[attr-defined]
    assert found


# --- the store's link ---------------------------------------------------------------------------------

Begun = tuple[Direction, int, float]
"""What begins: a push or a pull, bytes, when."""


def on_the_store(network: Network, *begun: Begun) -> dict[int, float]:
    of: ClusterLinks[int] = ClusterLinks(Scenario(network=network), 4)
    for number, (direction, size, at) in enumerate(begun):
        of.transfer(direction, size, at, number)
    return ends(of)


PLAIN, LATE, INCAST = (
    Network(bandwidth=100.0),
    Network(bandwidth=100.0, latency=LATENCY),
    Network(bandwidth=100.0, incast=0.5),
)
STORE: dict[str, tuple[Network, list[Begun], list[float]]] = {
    "a push alone": (LATE, [("push", 200, 1.0)], [3.5]),
    "a pull alone": (LATE, [("pull", 200, 1.0)], [3.5]),
    "the two ways": (INCAST, [("push", 100, 0.0), ("pull", 100, 0.25), ("pull", 100, 0.25)], [1.0, 2.25, 2.25]),
    "unlimited": (Network(latency=LATENCY), [("push", 10**18, 1.0), ("pull", 0, 1.0), ("push", 7, 1.5)], [1.5, 1.5, 2]),
    "incast is one factor for any number": (INCAST, [("push", 100, 0.0)] * 5, [10.0] * 5),
    "incast slows no broadcast": (INCAST, [("pull", 100, 0.0)] * 2, [2.0] * 2),
    "several servers": (Network(bandwidth=25.0, servers=4), [("push", 100, 0.0)] * 2, [2.0] * 2),
    # 100 bytes at 40 a second take 2.5 s, though the way itself would have had 160 a second for the first alone
    "a worker's own link": (
        Network(bandwidth=160.0, worker_bandwidth=40.0),
        [("push", 100, 0.0), ("push", 100, 1.0)],
        [2.5, 3.5],
    ),
    "a worker's own link alone": (Network(worker_bandwidth=40.0), [("push", 100, 0.0)] * 9, [2.5] * 9),
}


@pytest.mark.parametrize(("network", "begun", "expected"), STORE.values(), ids=STORE)
def test_the_stores_link_by_hand(network: Network, begun: list[Begun], expected: list[float]) -> None:
    assert on_the_store(network, *begun) == dict(enumerate(expected))


def test_ends_at_one_instant_are_told_in_the_order_of_beginning_on_both_ways() -> None:
    found = on_the_store(PLAIN, *((direction, 100, 0.0) for direction in ("pull", "push", "pull", "push")))
    assert list(found.items()) == [(0, 2.0), (1, 2.0), (2, 2.0), (3, 2.0)]


# --- averages of groups -------------------------------------------------------------------------------

NODES = Network(within_nodes=200.0, between_nodes=50.0, mixed=25.0)
"""Bytes a second."""


def averages(nodes: int, workers: int, *begun: tuple[tuple[int, ...], int, float], **keys: float) -> dict[int, float]:
    """By number of what begins, which is members, bytes that each of two would send, and when: its end."""
    network = Network(**{"within_nodes": 200.0, "between_nodes": 50.0, "mixed": 25.0} | keys)  # type: ignore[arg-type]
    of: ClusterLinks[int] = ClusterLinks(Scenario(nodes=nodes, network=network), workers)
    for number, (members, size, at) in enumerate(begun):
        of.average(members, size, at, number)
    return ends(of)


@pytest.mark.parametrize(
    ("nodes", "members", "speed"),
    [(1, range(4), 200), (2, (2, 3), 200), (4, range(4), 50), (2, (1, 2), 50), (2, range(4), 25), (2, (0, 1, 3), 25)],
)
@pytest.mark.parametrize("latency", [0.0, 0.25])
def test_one_average_alone_takes_a_rings_time_at_the_speed_of_its_links(
    nodes: int, members: Iterable[int], speed: float, latency: float
) -> None:
    group = tuple(members)
    g = len(group)
    expected = 1.0 + 2 * (g - 1) * latency + 2 * (g - 1) / g * 1200 / speed
    assert averages(nodes, 4, (group, 1200, 1.0), latency=latency) == {0: pytest.approx(expected, rel=1e-12)}


@pytest.mark.parametrize(("members", "message", "size"), [(1, 9, 0), (2, 9, 9), (3, 100, 134), (4, 100, 150)])
def test_each_member_sends_all_but_its_own_piece_twice_in_whole_bytes(members: int, message: int, size: int) -> None:
    assert average_bytes(members, message) == size
    assert average_bytes(members, message, encoded=True) == (members - 1) * message


def test_what_is_encoded_goes_to_all_members_as_it_is_in_half_as_many_pieces() -> None:
    of: ClusterLinks[int] = ClusterLinks(Scenario(nodes=4, network=Network(between_nodes=100.0, latency=0.25)), 4)
    of.average((0, 1, 2, 3), 50, 0.0, 0, encoded=True)
    assert ends(of) == {0: 3 * 50 / 100 + 3 * 0.25}


def test_averages_that_meet_on_a_link_share_it_while_they_overlap() -> None:
    assert averages(2, 4, ((0, 2), 100, 0.0), ((1, 3), 100, 0.0)) == {0: 4.0, 1: 4.0}
    assert averages(2, 4, ((0, 2), 100, 0.0), ((1, 3), 100, 1.0)) == {0: 3.0, 1: 4.0}


def test_averages_share_the_memory_of_a_node_and_not_with_its_link() -> None:
    begun = [((0, 1), 100, 0.0), ((2, 3), 100, 0.0), ((4, 5), 100, 0.0), ((6, 8), 100, 0.0)]
    assert averages(3, 12, *begun) == {2: 0.5, 0: 1.0, 1: 1.0, 3: 2.0}


def test_what_an_average_does_not_get_elsewhere_it_leaves_to_the_others() -> None:
    """Three meet on node a, a third each. The last one meets one of them on node b, where two thirds are left."""
    begun = [((0, 3), 100, 0.0), ((1, 6), 100, 0.0), ((2, 9), 100, 0.0), ((4, 11), 50, 0.0)]
    assert averages(4, 12, *begun) == pytest.approx({3: 1.5, 0: 6.0, 1: 6.0, 2: 6.0})


def test_latencies_keep_no_link_busy_and_a_larger_group_has_more_of_them() -> None:
    assert averages(2, 4, ((0, 2), 100, 0.0), ((1, 3), 100, 2.0), latency=0.75) == {0: 3.5, 1: 5.5}
    many = averages(6, 6, ((0, 1, 2, 3), 100, 0.0), ((4, 5), 150, 0.0), latency=1.0)
    assert list(many.items()) == [(1, 5.0), (0, 9.0)]


@pytest.mark.parametrize(
    ("given", "between"),
    [
        ({"between_nodes": 8.0, "bandwidth": 5.0, "worker_bandwidth": 4.0}, 8.0),
        ({"bandwidth": 5.0, "servers": 4}, 5.0),
        ({"worker_bandwidth": 4.0}, 4.0),
        ({"bandwidth": 5.0, "worker_bandwidth": 4.0}, 4.0),
        ({"latency": 0.5}, INF),
    ],
)
def test_a_nodes_link_is_as_fast_as_the_stores_or_a_workers_own_unless_the_scenario_says_more(
    given: dict[str, float], between: float
) -> None:
    for nodes, members in ((1, (0, 1)), (2, (0, 2)), (2, (0, 1, 2))):
        of: ClusterLinks[int] = ClusterLinks(Scenario(nodes=nodes, network=Network(**given)), 4)  # type: ignore[arg-type]
        flow = of.average(members, 120, 0.0, 0)
        of.finish(INF)
        assert flow.ended - flow.latency == pytest.approx(average_bytes(len(members), 120) / between)


def test_workers_are_nodes_of_their_own_where_nothing_is_said_of_nodes() -> None:
    def together(scenario: Scenario) -> float:
        of: ClusterLinks[int] = ClusterLinks(scenario, 4)
        of.average((0, 1), 100, 0.0, 0)
        of.average((2, 3), 100, 0.0, 1)
        return ends(of)[1]

    link = Network(bandwidth=50.0)
    assert together(Scenario(network=link)) == 2.0
    assert together(Scenario(nodes=2, network=link)) == 0.0, "memory of which nothing is said"
    assert together(Scenario(network=Network(bandwidth=50.0, within_nodes=200.0))) == 1.0


@pytest.mark.parametrize(
    ("nodes", "network", "told"),
    [
        (1, Network(bandwidth=5.0), ("each worker", "as fast as the store's", "within_nodes")),
        (2, Network(bandwidth=5.0), ("each node", "as fast as the store's", "between_nodes")),
        (1, Network(bandwidth=5.0, worker_bandwidth=3.0), ("each worker", "as fast as a worker's own")),
        (1, Network(worker_bandwidth=3.0), ("each worker", "as fast as a worker's own")),
        (1, None, ()),
        (1, Network(latency=1.0), ()),
        (2, Network(bandwidth=5.0, between_nodes=3.0), ()),
        (1, Network(bandwidth=5.0, within_nodes=3.0), ()),
    ],
)
def test_what_is_assumed_of_averages_is_said_unless_the_scenario_says_it_all(
    nodes: int, network: Network | None, told: tuple[str, ...]
) -> None:
    line = assumed(Scenario(nodes=nodes, network=network), "ripples")
    assert (line is None) is (not told)
    assert all(words in (line or "") for words in told)


# --- hosts --------------------------------------------------------------------------------------------

Moved = tuple[str, str, int, float]
"""Source, target, bytes, and when it begins."""
HOSTS: dict[str, tuple[dict[str, float | None], list[Moved], list[float]]] = {
    "alone": ({"a": 100.0, "b": 50.0}, [("a", "b", 200, 1.0)], [5.0]),
    "no bandwidth given": ({"a": None, "b": None}, [("a", "b", 100, 2.0)], [2.0]),
    "n to one host share its way in": (
        {"h": 90.0, "a": 90.0, "b": 90.0, "c": 90.0},
        [("a", "h", 90, 0.0), ("b", "h", 90, 0.0), ("c", "h", 90, 0.0)],
        [3.0, 3.0, 3.0],
    ),
    "the two ways do not disturb each other": (
        {"h": 90.0, "a": 90.0, "b": 90.0},
        [("h", "a", 90, 0.0), ("h", "b", 90, 0.0), ("a", "h", 90, 0.0)],
        [2.0, 2.0, 1.0],
    ),
    "two of one host share its link, and leave the rest to another": (
        # b gets 40 for two, so a gets 60 of the head's 100 until it is done
        {"h": 100.0, "a": 100.0, "b": 40.0},
        [("a", "h", 60, 0.0), ("b", "h", 40, 0.0), ("b", "h", 40, 0.0)],
        [1.0, 2.0, 2.0],
    ),
    "hosts that are no head": (
        {"h": 10.0, "a": 100.0, "b": 100.0},
        [("a", "b", 100, 0.0), ("h", "b", 10, 0.0)],
        [1.1, 1.0],  # b gets 10 of h for 1 s, and 90 of a; then all 100 of a
    ),
}


@pytest.mark.parametrize(("bandwidths", "begun", "expected"), HOSTS.values(), ids=HOSTS)
def test_links_between_hosts_by_hand(
    bandwidths: dict[str, float | None], begun: list[Moved], expected: list[float]
) -> None:
    tables = tuple(
        HostTable(name=name, workers=range(number, number + 1), bandwidth=bandwidth, latency=0.125)
        for number, (name, bandwidth) in enumerate(bandwidths.items())
    )
    of: ClusterLinks[int] = ClusterLinks(Scenario(nodes=len(tables), host_tables=tables), len(tables))
    for number, (source, target, size, at) in enumerate(begun):
        of.between(source, target, size, at, number)
    assert {number: end - 0.25 for number, end in ends(of).items()} == pytest.approx(dict(enumerate(expected)))


# --- what takes no time -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "store", "groups"),
    [
        (None, False, False),
        (Network(message=5, incast=0.5, commit=1.0), False, False),
        (Network(latency=0.5), True, True),
        (Network(bandwidth=5.0), True, True),
        (Network(worker_bandwidth=5.0), True, True),
        (Network(within_nodes=5.0), False, True),
    ],
)
def test_links_without_bandwidth_and_latency_pace_nothing(network: Network | None, store: bool, groups: bool) -> None:
    of: ClusterLinks[int] = ClusterLinks(Scenario(network=network), 4)
    assert (of.paces_store, of.paces_averages) == (store, groups)
