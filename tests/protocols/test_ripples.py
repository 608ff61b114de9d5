"""Ripples: the static table, who is drawn and divided, where joiners sit, and its pace in virtual time.

What becomes of a group is in `transcripts/ripples.txt`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.core.facts import (
    GradientReady,
    ReduceFinished,
    ReplicaCopied,
    TrainingBegan,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.orders import CopyReplica, Hold, Order, Reduce, Release, StepReplica
from paceline.protocols import registry
from paceline.protocols.ripples import SPEC, Config, Machine, PlannedGroup, remark, static_group
from paceline.scenario.scenario import Network, Scenario
from support.replica_walk import ReplicaWorld
from support.virtual_time import played
from support.walk import wander

FOUR_BY_FOUR = tuple(f"node{worker // 4}" for worker in range(16))


def begun(hosts: Sequence[str], seed: int = 0, **settings: Any) -> Machine:
    """Everybody computes its first step."""
    machine = Machine(Config(**settings))
    members = tuple((worker, host, 0) for worker, host in enumerate(hosts))
    orders = machine.handle(TrainingBegan(members=members, version=0, at=0.0, seed=seed))
    assert orders == tuple(released(worker, 0, 0) for worker in range(len(hosts)))
    return machine


def released(worker: int, step: int, version: int) -> Release:
    return Release(worker=worker, step=step, version=version, parameters="own")


def ready(machine: Machine, worker: int) -> tuple[Order, ...]:
    """The worker's gradient is there; what follows after its replica is stepped with it."""
    seat = machine.replicas.seats[worker]
    fact = GradientReady(worker=worker, step=seat.step, version=seat.computed_on, samples=1, at=0.0)
    first, *following = machine.handle(fact)
    assert isinstance(first, StepReplica)
    assert (first.worker, first.step, first.group) == (worker, fact.step, None)
    return tuple(following)


def finish(machine: Machine, group: int) -> tuple[Order, ...]:
    return machine.handle(ReduceFinished(group=group, at=0.0))


def left(machine: Machine, worker: int, reason: str = "died") -> tuple[Order, ...]:
    return machine.handle(WorkerLeft(worker=worker, reason=reason, at=0.0))


def planned(machine: Machine) -> list[list[int]]:
    """The members of every unfinished group, in the order of their numbers."""
    return [list(machine.groups[number].members) for number in sorted(machine.groups)]


def plan(machine: Machine, *groups: list[int]) -> None:
    """As if these had been drawn in this order."""
    for group in groups:
        machine._plan(group, ("drawn", group[0]))


# The static schedule.

STATIC = [
    [[0, 4], [1], [2, 3], [5], [6, 7]],
    [[0, 1, 2, 3], [4, 5, 6, 7]],
    [[0, 3], [1, 5], [2], [4, 7], [6]],
    [[0, 1, 2, 3], [4, 5, 6, 7]],
]
"""By request modulo 4: every group of two nodes of four."""


def test_the_static_schedule_is_the_table_of_the_public_code() -> None:
    for request in range(12):
        groups = {tuple(static_group(request, place, 8, 4)) for place in range(8)}
        assert [list(group) for group in sorted(groups)] == STATIC[request % 4]


@pytest.mark.parametrize("workers", [8, 32])
@pytest.mark.parametrize("node", [4, 8, 3, 0])
def test_static_groups_of_one_request_partition_the_workers_and_all_members_agree(workers: int, node: int) -> None:
    for request in range(64):
        groups = [tuple(static_group(request, place, workers, node)) for place in range(workers)]
        assert all(place in group for place, group in enumerate(groups))
        assert sorted(place for group in set(groups) for place in group) == list(range(workers))


def test_other_sizes_of_node_go_by_the_ruler() -> None:
    sizes = [len(static_group(request, 0, 8, 8)) for request in range(16)]
    assert sizes == [1, 2, 1, 4, 1, 2, 1, 8] * 2


def test_a_node_is_a_host_in_whatever_order_its_workers_come() -> None:
    machine = begun(["a", "b"] * 4, schedule="static")
    averaged = [order for worker in range(8) for order in ready(machine, worker) if isinstance(order, Reduce)]
    assert [order.members for order in averaged] == [(0, 1), (4, 6), (5, 7)]  # peers of a and b; mates of each
    assert ready(machine, 2) == (Hold(worker=2),)
    assert planned(machine)[-1] == [0, 2, 4, 6]


def test_the_place_of_one_who_left_stays_empty() -> None:
    machine = begun(FOUR_BY_FOUR[:8], schedule="static")
    left(machine, 4)
    assert ready(machine, 0) == (released(0, 1, 1),)  # its only peer is gone
    assert ready(machine, 5) == (released(5, 1, 1),)
    ready(machine, 5)
    assert planned(machine) == [[5, 6, 7]]


# The random schedule.


def test_all_pairs_are_drawn_about_equally_often() -> None:
    machine = begun(["host"] * 6, schedule="random", group_size=3, seed=7)
    drawn: Counter[tuple[int, ...]] = Counter()
    for draw in range(3000):
        machine._draw(draw % 6)
        (number,) = machine.groups
        group = list(machine.groups.pop(number).members)
        assert len(group) == 3
        assert draw % 6 in group
        drawn.update(combinations(group, 2))
        for worker in group:
            machine.members[worker].buffer.clear()
    assert len(drawn) == 15
    assert min(drawn.values()) > 0.75 * max(drawn.values())


def test_the_papers_example_the_second_group_waits_for_the_members_that_it_shares_with_the_first() -> None:
    machine = begun(["host"] * 8, schedule="random")
    plan(machine, [0, 4, 5], [7, 4, 5])
    assert ready(machine, 0) == (Hold(worker=0),)
    assert ready(machine, 7) == (Hold(worker=7),)
    assert ready(machine, 4) == (Hold(worker=4),)
    (first,) = ready(machine, 5)
    assert isinstance(first, Reduce)
    assert first.members == (0, 4, 5)
    assert [order.worker for order in finish(machine, first.group) if isinstance(order, Release)] == [0, 4, 5]
    assert planned(machine) == [[4, 5, 7]]
    ready(machine, 4)
    (second,) = ready(machine, 5)
    assert isinstance(second, Reduce)
    assert second.members == (4, 5, 7)
    assert machine.conflicts == 0  # they were not drawn


def test_a_drawn_group_conflicts_if_and_only_if_any_of_its_members_is_in_an_unfinished_one() -> None:
    machine = begun(["host"] * 6, schedule="random", seed=3)
    conflicts = 0
    for worker in range(6):
        if machine.members[worker].buffer:
            continue  # it gets the group that it is in
        before = planned(machine)
        (answer,) = ready(machine, worker)
        (drawn,) = [group for group in planned(machine) if group not in before]
        conflict = any(set(drawn) & set(group) for group in before)
        conflicts += conflict
        assert answer.why[0].startswith("conflict") == conflict
        assert machine.conflicts == conflicts
    assert conflicts > 0


# The smart schedule.


def test_heads_of_more_nodes_than_a_group_has_still_meet_in_one() -> None:
    machine = begun([f"node{worker // 2}" for worker in range(12)], group_size=2)
    ready(machine, 0)
    assert [worker // 2 for worker in planned(machine)[0]] == list(range(6))


@pytest.mark.parametrize("workers", [2, 5, 6, 7, 8, 13])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_groups_on_a_node_are_at_most_group_size_and_leave_nobody_alone_who_needs_not_be(
    workers: int, size: int
) -> None:
    machine = begun(["host"] * workers, group_size=size)
    machine._divide(0, machine.members[0])
    *local, intra = planned(machine)
    assert intra == list(range(workers))
    assert sorted(worker for group in local for worker in group) == intra
    assert max(map(len, local)) <= size
    assert [len(group) for group in local].count(1) == (1 if size == 2 and workers % 2 else 0)


# Joiners.


def joins(machine: Machine, worker: int, step: int = 0, host: str = "host") -> tuple[Order, ...]:
    """It joins, and what follows as its replica is there."""
    (order,) = machine.handle(WorkerJoined(worker=worker, host=host, step=step, at=0.0))
    assert isinstance(order, CopyReplica)
    return machine.handle(ReplicaCopied(source=order.source, worker=worker, at=0.0))


def test_who_comes_back_takes_its_old_place_and_another_one_the_first_that_is_empty() -> None:
    machine = begun(FOUR_BY_FOUR[:8], schedule="static")
    for worker in (2, 5, 6):
        left(machine, worker)
    joins(machine, 5, step=1, host="node1")
    joins(machine, 20, host="node1")
    assert machine.places == [0, 1, 20, 3, 4, 5, None, 7]
    joins(machine, 2, step=1, host="node0")
    assert machine.places == [0, 1, 20, 3, 4, 5, 2, 7]


def test_without_an_empty_place_those_of_one_more_node_are_laid_out() -> None:
    machine = begun(FOUR_BY_FOUR[:8], schedule="static")
    joins(machine, 8, host="new")
    joins(machine, 9, host="new")
    assert machine.places == [*range(8), 8, 9, None, None]
    ready(machine, 8)
    assert planned(machine) == [[0, 4, 8]]  # its peers, in request 0


# What all schedules share.


@pytest.mark.parametrize("schedule", ["smart", "random"])
def test_the_seed_settles_every_draw(schedule: str) -> None:
    drawn = []
    for seed in (1, 1, 2):
        machine = begun(FOUR_BY_FOUR, seed=seed, schedule=schedule)
        for worker in range(16):
            ready(machine, worker)
        drawn.append(planned(machine))
    assert drawn[0] == drawn[1] != drawn[2]


# Divisions, in random histories.

SMART = [
    "ripples",
    "ripples:group_size=2,threshold=2",
    "ripples:threshold=none,section_length=2",
    "ripples:threshold=1,slow_asker=once",
]
HISTORIES = 200


def random_world(text: str, seed: int) -> tuple[ReplicaWorld, random.Random]:
    chance = random.Random(f"{text} {seed}")
    world = ReplicaWorld.of(
        choose(text, registry()),
        workers=chance.randrange(1, 10),
        steps=chance.randrange(1, 9),
        departures=chance.randrange(4),
        joins=chance.randrange(4),
    )
    return world, chance


@pytest.mark.parametrize("text", SMART)
def test_in_random_histories_a_division_obeys_the_filter_has_one_head_a_node_and_no_conflict(text: str) -> None:
    divisions = 0
    for seed in range(HISTORIES):
        world, chance = random_world(text, seed)
        machine = world.machine
        assert isinstance(machine, Machine)
        before: set[int] = set()
        counts: dict[int, int] = {}
        idle: list[int] = []
        for fact, _ in wander(world, chance):
            fresh = {number: machine.groups[number] for number in machine.groups if number not in before}
            if fresh:
                assert isinstance(fact, GradientReady)
                divisions += 1
                check_division(machine, fact.worker, list(fresh.values()), counts, idle)
            before = set(machine.groups)
            counts = {worker: member.requests for worker, member in machine.members.items()}
            idle = [worker for worker, member in machine.members.items() if not member.buffer]
        assert machine.conflicts == 0
    assert divisions > HISTORIES


def check_division(
    machine: Machine, asker: int, groups: list[PlannedGroup], counts: dict[int, int], idle: list[int]
) -> None:
    """Rules of a division; `groups` are all but one of the asker alone, which is over. `counts`, `idle`: before it."""
    count, threshold = counts[asker] + 1, machine.config.threshold
    wanted = [w for w in idle if w == asker or threshold is None or count - counts[w] < threshold]
    by_phase = {
        phase: [list(group.members) for group in groups if (group.why[0] == "whole-node") == (phase == "intra")]
        for phase in ("inter", "intra")
    }
    if all(asker not in group for group in by_phase["inter"]):
        by_phase["inter"].append([asker])
    others = [counts[worker] for worker in wanted if worker != asker]
    behind = bool(others) and threshold is not None and max(others) - counts[asker] >= threshold
    once = behind and machine.config.slow_asker == "once"
    for name, phase in by_phase.items():  # each eligible worker has one of each, but for a slow asker
        whose = [worker for worker in wanted if worker != asker or name == "inter" or not once]
        assert sorted(worker for group in phase for worker in group) == sorted(whose)
    node = {worker: member.node for worker, member in machine.members.items()}
    assert all(len({node[worker] for worker in group}) == 1 for group in by_phase["intra"])
    represented = sorted({node[worker] for worker in wanted})
    heads = [list(group.members) for group in groups if group.why[0] == "heads"]
    assert [sorted(node[worker] for worker in group) for group in heads] == (
        [represented] if len(represented) > 1 else []
    )
    for group in by_phase["inter"]:
        if group not in heads:
            assert len({node[worker] for worker in group}) == 1
            assert len(group) <= machine.config.group_size


# Its pace, in virtual time.


def pace(speed: float, **settings: Any) -> float:
    """Steps a second of 16 workers on 4 nodes, one of them at that speed. An average takes less than half a step."""
    network = Network(message=100, within_nodes=3000.0, between_nodes=1000.0, mixed=600.0)
    scenario = Scenario(compute=1.0, nodes=4, speeds={0: speed}, network=network)
    text = ",".join(f"{key}={value}" for key, value in settings.items())
    world = played(f"ripples:{text}" if text else "ripples", scenario, 16, seconds=400.0)
    return len(world.orders(StepReplica)) / 400.0


def test_among_equals_static_and_smart_are_as_fast() -> None:
    assert pace(1.0, schedule="static") == pytest.approx(pace(1.0), rel=0.15)


def test_one_slow_worker_holds_up_everybody_under_static_and_few_under_smart() -> None:
    assert pace(0.2) >= 0.7 * pace(1.0)
    assert pace(0.2) > 2.5 * pace(0.2, schedule="static")
    assert pace(0.2, schedule="static") == pytest.approx(pace(1.0, schedule="static") / 5, rel=0.25)


def test_a_slow_asker_that_gets_one_group_holds_up_fewer_and_costs_nothing_among_equals() -> None:
    assert pace(0.2, slow_asker="once") > 1.1 * pace(0.2)
    assert pace(1.0, slow_asker="once") == pace(1.0)


# Its card.


@pytest.mark.parametrize(
    ("hosts", "settings", "why"),
    [
        ("aab", {"schedule": "static"}, "every node must have as many workers as the others, and has: a 2, b 1"),
        ("abba", {"schedule": "static"}, ""),
        ("aab", {}, ""),
        ("aa", {"group_size": 4}, "group_size is 4, and there are 2 workers; it must be from 2 to the number"),
        ("aa", {}, ""),
        ("aaaa", {"group_size": 4}, ""),
    ],
)
def test_static_needs_nodes_of_one_size_and_a_group_that_is_asked_for_its_workers(
    hosts: str, settings: dict[str, Any], why: str
) -> None:
    assert SPEC.misfit is not None
    said = SPEC.misfit(Config(**settings), tuple(hosts))
    assert why in said
    assert bool(said) == bool(why)


def test_static_says_when_its_table_does_not_fit() -> None:
    for hosts, told in ((["a"] * 4 + ["b"] * 4, False), (["a"] * 3 + ["b"] * 3, True), (["a"], False)):
        assert ("by the ruler" in remark(Config(schedule="static"), hosts)) == told
        assert not remark(Config(), hosts)
