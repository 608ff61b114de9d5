"""AD-PSGD: who takes which role, who is whose neighbour, and that averages keep the replicas' sum.

Its rules, one by one, are in `transcripts/ad-psgd.txt`.
"""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest

from paceline.core.choice import choose
from paceline.core.facts import GradientReady, ReduceFinished, TrainingBegan
from paceline.core.orders import Reduce, Release, StepReplica
from paceline.protocols import registry
from paceline.protocols.ad_psgd import Config, Machine
from support.seeds import each_seed
from support.tables import (
    average,
    began,
    declined,
    left,
)
from support.walk import World, walk, wander

TOPOLOGIES = ("bipartite-ring", "bipartite-complete")


def ad_psgd(topology: str = "bipartite-ring") -> Machine:
    return Machine(Config(topology=topology))  # type: ignore[arg-type]


def begun(workers: int, topology: str = "bipartite-ring") -> Machine:
    machine = ad_psgd(topology)
    machine.handle(began(*range(workers)))
    return machine


def test_who_waited_for_a_passive_one_that_leaves_asks_another() -> None:
    """Of five, 1 and 3 are passive; everybody but 1 and its partner draws anew among those who are there."""
    for seed in range(20):
        machine = ad_psgd("bipartite-complete")
        machine.handle(TrainingBegan(members=tuple((i, "host", 0) for i in range(5)), version=0, at=0.0, seed=seed))
        queued = dict(machine.queues)
        for passive, other in ((1, 3), (3, 1)):
            if waiting := list(queued[passive]):
                orders = machine.handle(left(passive))
                if machine.queues[other]:
                    assert set(waiting) <= set(machine.queues[other])
                else:
                    assert orders[0] == average(machine.replicas.made - 1, *sorted((waiting[0], other)))
                break
        else:
            continue
        return
    pytest.fail("no seed made a queue")


@pytest.mark.parametrize(
    ("workers", "neighbours"),
    [
        (1, {0: []}),
        (3, {0: [1], 2: [1]}),
        (6, {0: [1, 5], 2: [1, 3], 4: [3, 5]}),
        (7, {0: [1], 2: [1, 3], 4: [3, 5], 6: [5]}),
    ],
)
def test_in_a_ring_the_neighbours_are_beside_and_between_two_active_ones_there_is_no_edge(
    workers: int, neighbours: dict[int, list[int]]
) -> None:
    machine = begun(workers)
    assert {active: sorted(machine.neighbours(active)) for active in machine.actives} == neighbours


def test_in_a_ring_who_has_left_is_skipped() -> None:
    machine = begun(8)
    machine.handle(left(3))
    assert sorted(machine.neighbours(2)) == sorted(machine.neighbours(4)) == [1, 5]
    machine.handle(declined(1, 0))
    assert sorted(machine.neighbours(0)) == sorted(machine.neighbours(2)) == [5, 7]
    machine.handle(left(7))
    assert machine.neighbours(0) == [5]


def test_in_a_complete_topology_any_passive_one_is_a_neighbour() -> None:
    machine = begun(7, "bipartite-complete")
    machine.handle(left(3))
    assert all(machine.neighbours(active) == [1, 5] for active in (0, 2, 4, 6))


@pytest.mark.parametrize(("topology", "edges"), [("bipartite-ring", 6), ("bipartite-complete", 9)])
def test_every_neighbour_is_drawn_about_equally_often(topology: str, edges: int) -> None:
    _, groups = until_data_end(topology, workers=6, steps=400)
    drawn = Counter(order.members for order in groups)
    assert len(drawn) == edges
    assert min(drawn.values()) > 0.6 * max(drawn.values())


def until_data_end(topology: str, workers: int, steps: int) -> tuple[Machine, list[Reduce]]:
    """The machine, and all groups up to then."""
    world = World.of(choose(f"ad-psgd:topology={topology}", registry()), workers, steps)
    groups: list[Reduce] = []
    for _, orders in wander(world, random.Random(0)):
        groups += [order for order in orders if isinstance(order, Reduce)]
        if max(world.here.values()) == steps:
            break
    assert isinstance(world.machine, Machine)
    return world.machine, groups


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("workers", [2, 5])
def test_every_step_of_an_active_one_has_one_exchange(topology: str, workers: int) -> None:
    """So that requests and conflicts can be counted by the reasons of the groups."""
    machine, groups = until_data_end(topology, workers, steps=20)
    begun_by = Counter(order.why[1] for order in groups)
    for active, queued_at in machine.actives.items():
        requests = machine.replicas.seats[active].step + 1
        assert begun_by[active] == requests - (queued_at is not None)
    assert {order.why[0] for order in groups} == ({"free"} if workers == 2 else {"free", "in-turn"})


@pytest.mark.parametrize("topology", TOPOLOGIES)
@each_seed(range(20))
def test_every_average_keeps_the_sum_of_the_replicas_and_every_gradient_is_applied_after_it(
    topology: str, seed: int
) -> None:
    """Replicas are exact fractions. A group's members are read at `Reduce`, and have the mean at `ReduceFinished`."""
    chance = random.Random(seed)
    workers = chance.randrange(2, 8)
    world = World.of(choose(f"ad-psgd:topology={topology}", registry()), workers, steps=6)
    x = [Fraction(chance.randrange(100)) for _ in range(workers)]
    copies: dict[int, Fraction] = {}
    read: dict[int, list[Fraction]] = {}
    members: dict[int, tuple[int, ...]] = {}
    gradients: dict[tuple[int, int], Fraction] = {}
    stale = 0
    for fact, orders in wander(world, chance):
        total = sum(x)
        match fact:
            case GradientReady(worker=worker, step=step):
                gradients[worker, step] = copies[worker] / 10 + step
            case ReduceFinished(group=group):
                assert [x[worker] for worker in members[group]] == read[group], "nobody touched them meanwhile"
                for worker in members[group]:
                    x[worker] = sum(read[group], Fraction()) / len(read[group])
                assert sum(x) == total
        for order in orders:
            match order:
                case Release(worker=worker):
                    copies[worker] = x[worker]
                case StepReplica(worker=worker, step=step):
                    stale += copies[worker] != x[worker]
                    x[worker] -= gradients.pop((worker, step))
                case Reduce(group=group, members=pair_):
                    assert sorted(worker % 2 for worker in pair_) == [0, 1], "an active and a passive one"
                    members[group], read[group] = pair_, [x[worker] for worker in pair_]
    assert not gradients
    assert stale > 0, "some gradient was taken before an average, and applied after it"


@pytest.mark.long
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_four_workers_are_never_stuck_whatever_the_interleaving(topology: str) -> None:
    assert walk(choose(f"ad-psgd:topology={topology}", registry()), workers=4, steps=1, departures=1) > 1000
