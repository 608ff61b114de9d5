"""Ripples' rules: the averages, the static table, the group generator in thousands of histories, and its pace."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from paceline.core.choice import choose
from paceline.core.facts import (
    Fact,
    GradientReady,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    StepDeclined,
    TrainingBegan,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.orders import CopyReplica, Hold, Order, Reduce, Release, StepReplica
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.protocols.ripples import SPEC, Config, Machine, PlannedGroup, remark, static_group
from support.replica_walk import ReplicaWorld
from support.tables import refuses
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


# Partial All-Reduce as a matrix.


def averaging(group: Sequence[int], n: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    matrix = np.eye(n)
    matrix[np.ix_(group, group)] = 1 / len(group)
    return matrix


def test_a_group_average_is_a_symmetric_doubly_stochastic_projection() -> None:
    for size in range(1, 7):
        for group in combinations(range(6), size):
            f = averaging(group, 6)
            np.testing.assert_array_equal(f, f.T)
            np.testing.assert_allclose(f.sum(axis=0), 1)
            np.testing.assert_allclose(f @ f, f, atol=1e-15)


def test_a_group_average_keeps_the_sum_and_never_moves_replicas_apart() -> None:
    x = np.random.default_rng(0).normal(size=(6, 5))
    for size in range(1, 7):
        for group in combinations(range(6), size):
            y = averaging(group, 6) @ x
            np.testing.assert_allclose(y.sum(axis=0), x.sum(axis=0))
            assert ((y - y.mean(axis=0)) ** 2).sum() <= ((x - x.mean(axis=0)) ** 2).sum() + 1e-12


def test_group_averages_commute_if_they_share_nobody_and_not_if_they_overlap_in_part() -> None:
    for one, other in combinations([group for size in (2, 3) for group in combinations(range(6), size)], 2):
        a, b = averaging(one, 6), averaging(other, 6)
        apart = not set(one) & set(other)
        nested = set(one) <= set(other) or set(other) <= set(one)
        assert np.allclose(a @ b, b @ a) == (apart or nested)


def contraction(n: int, g: int) -> float:
    return 1 - (g - 1) / (n - 1)


@pytest.mark.parametrize(("n", "g"), [(n, g) for n in range(2, 9) for g in range(1, n + 1)])
def test_a_group_drawn_from_all_contracts_the_squared_deviation_by_its_formula(n: int, g: int) -> None:
    groups = list(combinations(range(n), g))
    mean = sum(averaging(group, n).T @ averaging(group, n) for group in groups) / len(groups)
    away = np.eye(n) - 1 / n  # off consensus: every direction of it shrinks alike
    np.testing.assert_allclose(away @ mean @ away, contraction(n, g) * away, atol=1e-12)


@pytest.mark.parametrize(("n", "g"), [(16, 2), (16, 3), (16, 8), (5, 3), (4, 4)])
def test_the_groups_that_the_random_schedule_draws_contract_by_that_formula(n: int, g: int) -> None:
    machine = begun(["host"] * n, seed=7, schedule="random", group_size=g)
    x = np.random.default_rng(1).normal(size=(n, 1))
    x -= x.mean(axis=0)
    x /= np.sqrt((x**2).sum())
    left_over = []
    for draw in range(4000):
        machine._draw(draw % n)
        (number,) = machine.groups
        group = list(machine.groups[number].members)
        assert len(group) == g
        assert draw % n in group
        left_over.append(float(((averaging(group, n) @ x) ** 2).sum()))
        machine.groups.clear()
        for worker in group:
            machine.members[worker].buffer.clear()
    # Each member asks as often as any other, and so all pairs are as likely.
    error = np.std(left_over) / np.sqrt(len(left_over))
    assert abs(np.mean(left_over) - contraction(n, g)) <= 4 * error + 1e-12


# The static schedule.

STATIC = {  # request modulo 4: every group of one node of four, and of four nodes
    1: [
        [[0], [1], [2, 3]],
        [[0, 1, 2, 3]],
        [[0, 3], [1], [2]],
        [[0, 1, 2, 3]],
    ],
    2: [
        [[0, 4], [1], [2, 3], [5], [6, 7]],
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[0, 3], [1, 5], [2], [4, 7], [6]],
        [[0, 1, 2, 3], [4, 5, 6, 7]],
    ],
    4: [
        [[0, 4, 8, 12], [1], [2, 3], [5], [6, 7], [9], [10, 11], [13], [14, 15]],
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
        [[0, 3], [1, 5, 9, 13], [2], [4, 7], [6], [8, 11], [10], [12, 15], [14]],
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
    ],
}


@pytest.mark.parametrize("nodes", STATIC)
def test_the_static_schedule_is_the_table_of_the_public_code(nodes: int) -> None:
    for request in range(12):
        groups = {tuple(static_group(request, place, 4 * nodes, 4)) for place in range(4 * nodes)}
        assert [list(group) for group in sorted(groups)] == STATIC[nodes][request % 4]


@pytest.mark.parametrize("workers", [8, 16, 32])
@pytest.mark.parametrize("node", [4, 8, 2, 3, 0])
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


def test_groups_without_a_common_member_average_at_the_same_time() -> None:
    machine = begun(["host"] * 4, schedule="random", group_size=2)
    plan(machine, [0, 1], [2, 3])
    averaging_now = [order for worker in range(4) for order in ready(machine, worker) if isinstance(order, Reduce)]
    assert [order.members for order in averaging_now] == [(0, 1), (2, 3)]


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


def test_conflicts_for_each_request_can_be_counted_in_the_orders() -> None:
    machine = begun(["host"] * 8, schedule="random", seed=5)
    toy = Toy(machine, [1.0] * 8, 0.1, 0.1, 0.1)
    toy.run(until=60.0)
    answers = [order for order in toy.orders if isinstance(order, Hold | Reduce)]
    queued = [order for order in answers if isinstance(order, Hold) and order.why[0] == "conflict"]
    assert 0 < len(queued) == machine.conflicts < machine.requests
    averaged = [order for order in answers if isinstance(order, Reduce)]
    assert {order.why[0] for order in averaged} == {"drawn", "drawn-queued"}


def test_whoever_belongs_to_a_group_already_gets_it_and_draws_none() -> None:
    machine = begun(["host"] * 4, schedule="random", group_size=4)
    for worker in range(3):
        ready(machine, worker)
    assert machine.planned == 1
    assert machine.requests == 3


# The smart schedule.


def test_a_division_gives_everybody_an_inter_group_and_an_intra_group() -> None:
    machine = begun(FOUR_BY_FOUR, seed=3)
    ready(machine, 6)
    heads, *local = planned(machine)[:-4]
    assert sorted(planned(machine)[-4:]) == [[node * 4 + place for place in range(4)] for node in range(4)]
    assert [head // 4 for head in heads] == [0, 1, 2, 3]
    assert sorted(worker for group in (heads, *local) for worker in group) == list(range(16))
    assert all(len({worker // 4 for worker in group}) == 1 for group in local)
    assert all(len(machine.members[worker].buffer) == 2 for worker in range(16))


def test_heads_of_more_nodes_than_a_group_has_still_meet_in_one() -> None:
    machine = begun([f"node{worker // 2}" for worker in range(12)], group_size=2)
    ready(machine, 0)
    assert [worker // 2 for worker in planned(machine)[0]] == list(range(6))


@pytest.mark.parametrize("workers", range(2, 14))
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


def test_the_filter_leaves_out_who_is_behind_by_the_threshold_until_it_asks_itself() -> None:
    machine = begun(["host"] * 3, threshold=2)
    machine.idle.remove(0, 0)
    machine.members[0].requests = 1
    machine.idle.add(0, 1)
    ready(machine, 0)  # its second request; the others have made none
    assert machine.replicas.seats[0].phase == "computing"
    assert planned(machine) == []
    ready(machine, 1)  # its first: nobody is behind it by two
    assert planned(machine)[-1] == [0, 1, 2]


def test_without_a_threshold_everybody_is_divided() -> None:
    machine = begun(["host"] * 3, threshold=None)
    machine.idle.remove(0, 0)
    machine.members[0].requests = 1000
    machine.idle.add(0, 1000)
    ready(machine, 0)
    assert planned(machine)[-1] == [0, 1, 2]


def test_any_worker_of_a_node_may_be_its_head() -> None:
    heads: dict[int, None] = {}
    for seed in range(100):
        machine = begun(FOUR_BY_FOUR, seed=seed)
        machine._divide(0, machine.members[0])
        heads.update(dict.fromkeys(planned(machine)[0]))
    assert sorted(heads) == list(range(16))


# Joiners.


def joins(machine: Machine, worker: int, step: int = 0, host: str = "host") -> tuple[Order, ...]:
    """It joins, and what follows as its replica is there."""
    (order,) = machine.handle(WorkerJoined(worker=worker, host=host, step=step, at=0.0))
    assert isinstance(order, CopyReplica)
    return machine.handle(ReplicaCopied(source=order.source, worker=worker, at=0.0))


def ask(machine: Machine, workers: Sequence[int], requests: int) -> None:
    """Each of them makes so many more requests, in groups of them alone; every group ends at once."""
    goal = {worker: machine.members[worker].requests + requests for worker in workers}
    while any(machine.members[worker].requests < goal[worker] for worker in workers):
        for worker in workers:
            if machine.members[worker].requests < goal[worker]:
                assert machine.replicas.seats[worker].phase == "computing", "somebody else is awaited"
                ready(machine, worker)
        for group in list(machine.running):
            finish(machine, group)


@pytest.mark.parametrize("schedule", ["smart", "static", "random"])
def test_no_group_has_a_joiner_before_its_replica_is_there(schedule: str) -> None:
    machine = begun(["host"] * 4, schedule=schedule, group_size=4)
    machine.handle(WorkerJoined(worker=4, host="host", step=0, at=0.0))
    ready(machine, 0)
    ready(machine, 1)
    assert all(4 not in group for group in planned(machine))


def test_a_joiner_counts_its_requests_from_the_greatest_count_so_that_the_filter_leaves_it_not_out() -> None:
    machine = begun(["host"] * 2, threshold=2)
    ask(machine, [0, 1], 10)
    assert joins(machine, 2) == (released(2, 0, machine.replicas.seats[0].version),)
    assert machine.members[2].requests == 10
    ready(machine, 0)
    assert planned(machine)[-1] == [0, 1, 2]


def test_a_joiner_is_drawn_like_everybody_else() -> None:
    machine = begun(["host"] * 2, schedule="random", group_size=3)
    joins(machine, 2)
    ready(machine, 0)
    assert planned(machine) == [[0, 1, 2]]


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


def test_a_static_group_that_is_waited_for_stays_the_same_when_places_are_laid_out() -> None:
    machine = begun(["host"] * 2, schedule="static")
    ready(machine, 0)
    assert ready(machine, 0) == (Hold(worker=0),)  # its second group is with 1
    joins(machine, 2)
    ready(machine, 1)
    assert ready(machine, 1) == (Reduce(group=0, members=(0, 1), what="parameters"),)
    assert planned(machine) == [[0, 1]]


def test_a_joiner_is_in_no_static_group_of_a_request_before_its_own_first_one() -> None:
    """By the ruler, 2 is alone in its first three requests; 0 would meet 1 in its second."""
    machine = begun(["host"] * 3, schedule="static")
    ask(machine, [2], 3)
    left(machine, 1)
    joins(machine, 1, step=1)
    assert machine.members[1].requests == 3
    ask(machine, [0], 3)
    ready(machine, 0)
    assert planned(machine) == [[0, 1, 2]]


def test_a_joiner_that_finds_nobody_begins_alone() -> None:
    machine = begun(["host"])
    left(machine, 0)
    assert machine.handle(WorkerJoined(worker=0, host="host", step=1, at=0.0)) == (released(0, 1, 0),)


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


@pytest.mark.parametrize("schedule", ["smart", "static", "random"])
def test_one_worker_alone_trains_plainly(schedule: str) -> None:
    machine = begun(["host"], schedule=schedule)
    for step in range(1, 20):
        assert ready(machine, 0) == (released(0, step, step),)


@pytest.mark.parametrize("schedule", ["smart", "static", "random"])
def test_a_worker_asks_after_every_section_of_steps(schedule: str) -> None:
    machine = begun(["host"] * 4, schedule=schedule, section_length=3)
    assert ready(machine, 1) == (released(1, 1, 1),)
    assert ready(machine, 1) == (released(1, 2, 2),)
    assert machine.requests == 0
    ready(machine, 1)
    assert machine.requests == 1


def trio(machine: Machine) -> Reduce:
    """Workers 0, 1, 2 average."""
    plan(machine, [0, 1, 2])
    ready(machine, 0)
    ready(machine, 1)
    (order,) = ready(machine, 2)
    assert isinstance(order, Reduce)
    return order


def test_a_group_that_lost_a_member_while_it_averaged_does_so_again_without_it() -> None:
    machine = begun(["host"] * 3, schedule="random")
    order = trio(machine)
    left(machine, 1)
    again = Reduce(group=order.group + 1, members=(0, 2), what="parameters")
    assert machine.handle(ReduceFailed(group=order.group, lost=(1,), at=0.0)) == (again,)
    assert finish(machine, again.group) == (released(0, 1, 2), released(2, 1, 2))


def test_of_a_group_that_lost_all_but_one_that_one_goes_on() -> None:
    machine = begun(["host"] * 3, schedule="random")
    order = trio(machine)
    left(machine, 1)
    left(machine, 2)
    assert machine.handle(ReduceFailed(group=order.group, lost=(1, 2), at=0.0)) == (released(0, 1, 1),)


def test_a_group_of_which_a_member_was_only_stopped_has_averaged() -> None:
    machine = begun(["host"] * 3, schedule="random")
    order = trio(machine)
    machine.handle(WorkerLeft(worker=1, reason="stopped", at=0.0))
    assert finish(machine, order.group) == (released(0, 1, 2), released(2, 1, 2))


def test_a_group_whose_members_are_all_gone_ends_with_nobody() -> None:
    machine = begun(["host"] * 3, schedule="random")
    order = trio(machine)
    for worker in range(3):
        left(machine, worker)
    refuses(machine, ReduceFinished(group=order.group, at=0.0))
    assert machine.handle(ReduceFailed(group=order.group, lost=(0, 1, 2), at=0.0)) == ()
    assert machine.groups == {}


@pytest.mark.parametrize("leaving", ["declined", "finished", "died", "stopped"])
def test_whoever_leaves_before_it_came_is_no_longer_waited_for(leaving: str) -> None:
    machine = begun(["host"] * 3, schedule="random")
    plan(machine, [0, 1, 2])
    ready(machine, 0)
    ready(machine, 1)
    gone: Fact = WorkerLeft(worker=2, reason=leaving, at=0.0)
    if leaving == "declined":
        gone = StepDeclined(worker=2, step=0, at=0.0)
    assert machine.handle(gone) == (Reduce(group=0, members=(0, 1), what="parameters"),)


def test_the_survivor_of_a_group_that_never_began_goes_on() -> None:
    machine = begun(["host"] * 2)
    ready(machine, 0)
    assert left(machine, 1) == (released(0, 1, 1),)
    assert ready(machine, 0) == (released(0, 2, 2),)


def test_the_end_of_a_group_that_has_ended_is_refused() -> None:
    machine = begun(["host"] * 3, schedule="random")
    order = trio(machine)
    finish(machine, order.group)
    refuses(machine, ReduceFinished(group=order.group, at=0.0))


# The group generator, in thousands of random histories.

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


SCHEDULES = [
    "ripples",
    "ripples:group_size=2,threshold=2",
    "ripples:threshold=none,section_length=2",
    "ripples:schedule=static",
    "ripples:schedule=random",
    "ripples:schedule=random,group_size=2",
]


@pytest.mark.parametrize("text", SCHEDULES)
def test_in_random_histories_each_group_is_performed_once_by_its_members_and_nobody_is_stuck(text: str) -> None:
    """The world fails at two groups with one worker, at a group without all its members, and if all wait."""
    averaged = 0
    for seed in range(HISTORIES):
        world, chance = random_world(text, seed)
        performed: dict[int, int] = {}  # group's number → how often it finished
        of_order: dict[int, int] = {}
        for fact, orders in wander(world, chance):
            machine = world.machine
            assert isinstance(machine, Machine)
            of_order.update(machine.running)
            if isinstance(fact, ReduceFinished):
                number = of_order[fact.group]
                performed[number] = performed.get(number, 0) + 1
                averaged += 1
            asked = {worker for worker, seat in machine.replicas.seats.items() if seat.phase == "applied"}
            for order in orders:
                if isinstance(order, Reduce):
                    group = machine.groups[machine.running[order.group]]
                    assert tuple(group.members) == order.members  # exactly its members
                    assert set(order.members) <= asked
                if isinstance(order, Hold) and order.worker in machine.members:  # else it has no replica yet
                    assert order.worker in machine.groups[machine.members[order.worker].buffer[0]].members
        assert set(performed.values()) <= {1}
    assert averaged > HISTORIES


@pytest.mark.parametrize("text", SCHEDULES[:3])
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
    for phase in by_phase.values():  # each eligible worker has one of each
        assert sorted(worker for group in phase for worker in group) == sorted(wanted)
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


@pytest.mark.long
@pytest.mark.parametrize("text", SCHEDULES)
def test_many_more_random_histories_come_to_their_end(text: str) -> None:
    for seed in range(HISTORIES, 12 * HISTORIES):
        world, chance = random_world(text, seed)
        for _ in wander(world, chance, turmoil=0.3):
            pass
        assert not world.unsettled


# Its pace, in virtual time.


@dataclass(slots=True)
class Toy:
    """Steps that take each worker its own time, and averages that cost by where their members are; in seconds."""

    machine: Machine
    compute: list[float]
    on_node: float
    one_a_node: float
    mixed: float
    events: list[tuple[float, int, Fact]] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    steps: int = 0
    pushed: int = 0

    def run(self, until: float) -> float:
        """Steps of all in a second."""
        for worker, seat in self.machine.replicas.seats.items():
            self._compute(0.0, released(worker, seat.step, seat.version))
        while self.events[0][0] < until:
            now, _, fact = heappop(self.events)
            self.steps += isinstance(fact, GradientReady)
            for order in self.machine.handle(fact):
                self.orders.append(order)
                if isinstance(order, Release):
                    self._compute(now, order)
                elif isinstance(order, Reduce):
                    self._push(now + self._cost(order.members), ReduceFinished(group=order.group, at=0.0))
        return self.steps / until

    def _compute(self, now: float, order: Release) -> None:
        ready = GradientReady(worker=order.worker, step=order.step, version=order.version, samples=1, at=0.0)
        self._push(now + self.compute[order.worker], ready)

    def _push(self, at: float, fact: Fact) -> None:
        self.pushed += 1
        heappush(self.events, (at, self.pushed, fact))

    def _cost(self, members: tuple[int, ...]) -> float:
        nodes = {self.machine.members[worker].node for worker in members}
        if len(nodes) == 1:
            return self.on_node
        return self.one_a_node if len(nodes) == len(members) else self.mixed


def pace(slow: float, **settings: Any) -> float:
    """Steps a second of 16 workers on 4 nodes, one of them that much slower."""
    machine = begun(FOUR_BY_FOUR, seed=11, **settings)
    return Toy(machine, [slow, *[1.0] * 15], on_node=0.05, one_a_node=0.15, mixed=0.25).run(until=400.0)


def all_reduce(slow: float) -> float:
    return 16 / (slow + 0.25)


def test_among_equals_static_and_smart_are_as_fast_and_faster_than_everybody_averaging() -> None:
    static, smart = pace(1.0, schedule="static"), pace(1.0)
    assert static == pytest.approx(smart, rel=0.05)
    assert min(static, smart) > 1.05 * all_reduce(1.0)


def test_one_slow_worker_holds_up_everybody_under_static_and_few_under_smart() -> None:
    assert pace(5.0) >= 0.75 * pace(1.0)
    assert pace(5.0) > 2.5 * pace(5.0, schedule="static")
    assert pace(5.0, schedule="static") == pytest.approx(pace(1.0, schedule="static") / 5, rel=0.25)


# Its card.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("group_size=1", "ripples: group_size is 1 workers; it must be 2 or more"),
        ("threshold=0", "ripples: threshold is 0 requests; it must be 1 or more, or none"),
        ("section_length=0", "ripples: section_length is 0 steps; it must be 1 or more"),
        ("schedule=best", 'ripples: schedule is "best"; it must be one of smart, static, random'),
    ],
)
def test_a_wrong_parameter_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        choose(f"ripples:{text}", registry())
    assert str(error.value) == said


def fit(hosts: Sequence[str], **settings: Any) -> str:
    assert SPEC.misfit is not None
    return SPEC.misfit(Config(**settings), hosts)


def test_the_static_schedule_needs_nodes_of_one_size() -> None:
    assert fit(["a", "a", "b"], schedule="static") == (
        "ripples: schedule is static; every node must have as many workers as the others, and has: a 2, b 1"
    )
    assert fit(["a", "b", "b", "a"], schedule="static") == ""
    assert fit(["a", "a", "b"]) == ""


def test_a_group_larger_than_the_company_is_refused_unless_nobody_asked_for_it() -> None:
    assert fit(["a", "a"], group_size=4) == (
        "ripples: group_size is 4, and there are 2 workers; it must be from 2 to the number of workers"
    )
    assert fit(["a", "a"]) == fit(["a"]) == fit(["a"] * 4, group_size=4) == ""


def test_static_says_when_its_table_does_not_fit() -> None:
    for hosts, told in ((["a"] * 4 + ["b"] * 4, False), (["a"] * 3 + ["b"] * 3, True), (["a"], False)):
        assert ("by the ruler" in remark(Config(schedule="static"), hosts)) == told
        assert not remark(Config(), hosts)
