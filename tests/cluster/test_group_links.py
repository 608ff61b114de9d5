"""The links of averages as a fluid: tables by hand, and an exact twin that looks at every average at every event."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import pytest

from paceline.scenario.group_links import GroupLinks, assumed, ring_bytes
from paceline.scenario.scenario import Network, Scenario
from support.seeds import each_seed

MEMORY, LINK, MIXED = 200.0, 50.0, 25.0
"""Bytes a second."""


def links(nodes: str, latency: float = 0.0) -> GroupLinks:
    """One letter for each worker: its node."""
    return GroupLinks(tuple(nodes), MEMORY, LINK, MIXED, latency)


def ends(of: GroupLinks) -> dict[int, float]:
    """Group → end, in the order in which they are reported."""
    found = {}
    while (moved := of.finish(math.inf)) is not None:
        found[moved.group] = moved.ended
    return found


def own(scenario: Scenario, workers: int = 4) -> GroupLinks:
    of = GroupLinks.of(scenario, workers)
    assert of is not None
    return of


@pytest.mark.parametrize(
    ("nodes", "members", "speed"),
    [
        ("aabb", (2, 3), MEMORY),
        ("abcd", (0, 1, 2, 3), LINK),
        ("aabb", (1, 2), LINK),
        ("aabb", (0, 1, 2, 3), MIXED),
        ("aabc", (0, 1, 3), MIXED),
    ],
)
@pytest.mark.parametrize("latency", [0.0, 0.25])
def test_one_average_alone_takes_a_ring_s_time_at_the_speed_of_its_links(
    nodes: str, members: tuple[int, ...], speed: float, latency: float
) -> None:
    of, g = links(nodes, latency), len(members)
    of.begin(7, members, ring_bytes(g, 1200), 1.0)
    assert ends(of) == {7: pytest.approx(1.0 + 2 * (g - 1) * latency + 2 * (g - 1) / g * 1200 / speed, rel=1e-12)}


@pytest.mark.parametrize(("members", "message", "size"), [(1, 9, 0), (2, 9, 9), (3, 100, 134), (4, 100, 150)])
def test_each_member_sends_all_but_its_own_piece_twice_in_whole_bytes(members: int, message: int, size: int) -> None:
    assert ring_bytes(members, message) == size


def test_averages_that_end_at_one_instant_come_in_the_order_of_their_groups() -> None:
    of = links("abcd")
    of.begin(9, (0, 1), 100, 0.0)
    of.begin(4, (2, 3), 100, 0.0)
    assert list(ends(of)) == [4, 9]


def test_asking_early_changes_nothing_and_asking_late_gives_the_same_times() -> None:
    of = links("aabb")
    of.begin(0, (0, 2), 100, 0.0)
    assert of.finish(1.5) is None
    assert of.next_change() == 2.0
    late = copy.deepcopy(of)
    of.begin(1, (1, 3), 100, 1.0)
    assert ends(of) == {0: 3.0, 1: 4.0}
    late.begin(1, (1, 3), 100, 2.5)  # 0 has ended meanwhile, and was not asked for
    assert ends(late) == {0: 2.0, 1: 4.5}


def test_without_a_bandwidth_or_a_latency_nothing_is_paced() -> None:
    assert GroupLinks.of(Scenario(), 4) is None
    assert GroupLinks.of(Scenario(network=Network(message=100, commit=1.0)), 4) is None


@pytest.mark.parametrize(
    ("given", "speeds"),
    [
        ({"between_nodes": 7.0, "bandwidth": 5.0, "worker_bandwidth": 3.0}, (7.0, 7.0, math.inf)),
        ({"between_nodes": 8.0, "mixed": 4.0, "within_nodes": 80.0}, (8.0, 4.0, 80.0)),
        ({"bandwidth": 5.0, "servers": 4}, (5.0, 5.0, math.inf)),
        ({"worker_bandwidth": 3.0}, (3.0, 3.0, math.inf)),
        ({"bandwidth": 5.0, "worker_bandwidth": 3.0}, (3.0, 3.0, math.inf)),
        ({"latency": 0.5}, (math.inf, math.inf, math.inf)),
    ],
)
def test_a_node_s_link_is_as_fast_as_the_store_s_or_a_worker_s_own_unless_the_scenario_says_more(
    given: dict[str, float], speeds: tuple[float, float, float]
) -> None:
    of = own(Scenario(nodes=2, network=Network(message=100, **given)))  # type: ignore[arg-type]
    assert (of.between, of.mixed, of.within) == speeds


def test_workers_are_nodes_of_their_own_where_nothing_is_said_of_nodes() -> None:
    link = Network(bandwidth=50.0)
    assert own(Scenario(network=link)).nodes == ("0", "1", "2", "3")
    assert own(Scenario(nodes=2, network=link)).nodes == ("node-0", "node-0", "node-1", "node-1")
    assert own(Scenario(network=Network(bandwidth=50.0, within_nodes=200.0))).nodes == ("node-0",) * 4


@pytest.mark.parametrize(
    ("nodes", "given", "told"),
    [
        (1, {"bandwidth": 5.0}, ("each worker", "as fast as the store's", "within_nodes")),
        (2, {"bandwidth": 5.0}, ("each node", "as fast as the store's", "between_nodes")),
        (1, {"worker_bandwidth": 3.0}, ("each worker", "as fast as a worker's own")),
    ],
)
def test_what_is_taken_for_granted_is_said(nodes: int, given: dict[str, float], told: tuple[str, ...]) -> None:
    line = assumed(Scenario(nodes=nodes, network=Network(**given)), "ripples")  # type: ignore[arg-type]
    assert line is not None
    assert line.startswith("averages of ripples go over a link of ")
    assert all(words in line for words in told)


@pytest.mark.parametrize(
    ("nodes", "network"),
    [
        (1, None),
        (1, Network(latency=1.0)),
        (2, Network(bandwidth=5.0, between_nodes=3.0)),
        (1, Network(bandwidth=5.0, within_nodes=3.0)),
    ],
)
def test_nothing_is_said_where_the_scenario_says_it_all(nodes: int, network: Network | None) -> None:
    assert assumed(Scenario(nodes=nodes, network=network), "ripples") is None


@dataclass
class Twin:
    """One average, in exact numbers."""

    members: tuple[int, ...]
    left: Fraction
    at: Fraction
    """When it left; meanwhile when it began."""


def twin_ends(nodes: str, begun: Iterable[tuple[int, tuple[int, ...], int, int]], latency: int) -> dict[int, Fraction]:
    """Group → end. `begun`: (group, members, size, second), in the order of time."""
    waiting, moving, ended = list(begun), dict[int, Twin](), dict[int, Fraction]()
    now = Fraction(0)

    def used(one: Twin) -> set[tuple[str, bool]]:
        on = {nodes[worker] for worker in one.members}
        return {(node, len(on) == 1) for node in on}

    def speed(one: Twin) -> Fraction:
        on = [nodes[worker] for worker in one.members]
        alone = MEMORY if len(set(on)) == 1 else LINK if len(set(on)) == len(on) else MIXED
        busiest = max(sum(link in used(other) for other in moving.values()) for link in used(one))
        return Fraction(int(alone), busiest)

    while waiting or moving:
        rests = {group: one.left / speed(one) for group, one in moving.items()}
        until = min([now + rest for rest in rests.values()] + [Fraction(one[3]) for one in waiting[:1]])
        rates = {group: speed(one) for group, one in moving.items()}
        for group, one in moving.items():
            one.left -= (until - now) * rates[group]
        now = until
        for group in [group for group, one in moving.items() if one.left == 0]:
            ended[group] = now + 2 * (len(moving.pop(group).members) - 1) * latency
        while waiting and waiting[0][3] == now:
            group, members, size, _ = waiting.pop(0)
            moving[group] = Twin(members, Fraction(size), now)
    return ended


@each_seed(range(60))
def test_any_averages_end_when_an_exact_twin_says_they_do_however_late_they_are_asked_for(seed: int) -> None:
    chance = random.Random(seed)
    nodes = "".join(chance.choice("abc") for _ in range(8))
    latency = chance.choice([0, 1])
    begun, second = [], 0
    for group in range(12):
        members = tuple(sorted(chance.sample(range(8), chance.randrange(2, 5))))
        begun.append((group, members, chance.randrange(0, 400), second))
        second += chance.choice([0, 0, 1, 3])
    of, found = links(nodes, float(latency)), dict[int, float]()
    for group, members, size, at in begun:
        if chance.random() < 0.5:  # a caller may ask for ends late, as long as it is before it tells what came later
            while (moved := of.finish(at)) is not None:
                found[moved.group] = moved.ended
        of.begin(group, members, size, float(at))
    found |= ends(of)
    exact = twin_ends(nodes, begun, latency)
    assert found == {group: pytest.approx(float(end), rel=1e-9, abs=1e-9) for group, end in exact.items()}
