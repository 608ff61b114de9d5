"""AD-PSGD's rules; that a naive pair average hangs and this one does not; that averages keep the replicas' sum."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from threading import Barrier, Lock, Thread

import pytest

from paceline.core.choice import choose
from paceline.core.facts import GradientReady, ReduceFinished, TrainingBegan
from paceline.core.orders import CopyReplica, Hold, Reduce, Release, StepReplica
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.protocols.ad_psgd import Config, Machine
from support.seeds import each_seed
from support.tables import (
    average,
    averaged,
    began,
    check,
    copied,
    copy,
    declined,
    failed,
    hold,
    joined,
    left,
    own,
    ready,
    reasons,
    run,
    sentence,
    stepped,
)
from support.walk import World, walk, wander

TOPOLOGIES = ("bipartite-ring", "bipartite-complete")


def ad_psgd(topology: str = "bipartite-ring") -> Machine:
    return Machine(Config(topology=topology))  # type: ignore[arg-type]


def begun(workers: int, topology: str = "bipartite-ring") -> Machine:
    machine = ad_psgd(topology)
    machine.handle(began(*range(workers)))
    return machine


def pair() -> Machine:
    """0 is active and 1 passive; their first exchange runs."""
    return run(ad_psgd(), [(began(0, 1), [own(0, 0, 0), own(1, 0, 0), average(0, 0, 1)])])


def three() -> Machine:
    """0 and 2 are active; 0's exchange with 1 runs, and 2 is in 1's queue."""
    return run(ad_psgd(), [(began(0, 1, 2), [own(0, 0, 0), own(1, 0, 0), own(2, 0, 0), average(0, 0, 1)])])


# Steps and exchanges.


# Those who decline or leave.


@pytest.mark.parametrize("departure", [declined(1, 0), left(1, "finished")], ids=["declines", "finishes"])
def test_without_any_passive_one_left_the_active_ones_train_alone(departure: object) -> None:
    check(
        three(),
        [
            (ready(2, 0, 0), [hold(2)]),
            (departure, [stepped(2, 0, 1), own(2, 1, 1)]),
            (ready(2, 1, 1), [stepped(2, 1, 2), own(2, 2, 2)]),
            (averaged(0), []),
            (ready(0, 0, 0), [stepped(0, 0, 2), own(0, 1, 2)]),
        ],
    )


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


# Joiners.


def test_joiners_take_the_role_that_fewer_have() -> None:
    machine = begun(3)
    machine.handle(left(0))
    machine.handle(failed(0, 0))
    machine.handle(averaged(1))
    roles = {}
    for worker, step in ((3, 0), (4, 0), (0, 1)):
        (order,) = machine.handle(joined(worker, step))
        assert isinstance(order, CopyReplica)
        machine.handle(copied(order.source, worker))
        roles[worker] = "active" if worker in machine.actives else "passive"
    assert roles == {3: "active", 4: "passive", 0: "active"}
    assert machine.passives == [1, 4]


def test_an_active_joiner_asks_at_once_and_a_passive_one_is_asked() -> None:
    machine = begun(1)
    assert machine.handle(joined(1)) == (copy(0, 1),)
    assert machine.handle(copied(0, 1)) == (own(1, 0, 0),)
    assert machine.handle(ready(0, 0, 0))[-1] == average(0, 0, 1)
    machine.handle(averaged(0))
    assert machine.handle(joined(2)) == (copy(0, 2),)
    assert machine.handle(copied(0, 2))[-1] == average(1, 1, 2)


def test_who_died_in_an_exchange_and_is_back_has_no_part_in_its_end() -> None:
    """0 and 2 are active; 0 comes back, and its new gradient waits for another exchange."""
    machine = begun(3)
    check(
        machine,
        [
            (left(0), []),
            (joined(0, 1), [copy(2, 0)]),
            (copied(2, 0), [own(0, 1, 0)]),
            (ready(0, 1, 0), [hold(0)]),
            (failed(0, 0), [average(1, 1, 2)]),
        ],
    )
    assert machine.actives == {2: None, 0: 1}


# Who is whose neighbour.


@pytest.mark.parametrize(
    ("workers", "neighbours"),
    [
        (1, {0: []}),
        (2, {0: [1]}),
        (3, {0: [1], 2: [1]}),
        (4, {0: [1, 3], 2: [1, 3]}),
        (5, {0: [1], 2: [1, 3], 4: [3]}),
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


def test_roles_go_by_position_and_not_by_number() -> None:
    machine = ad_psgd()
    machine.handle(began(3, 5, 8, 9))
    assert list(machine.actives) == [3, 8]
    assert machine.passives == [5, 9]


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


def test_an_unknown_topology_is_refused() -> None:
    with pytest.raises(ConfigError, match="bipartite-ring, bipartite-complete"):
        choose("ad-psgd:topology=star", registry())


# What a reader of the ledger sees.


def test_reasons_tell_requests_conflicts_and_waits_apart() -> None:
    machine = three()
    assert reasons(machine, ready(0, 0, 0)) == ["its replica is being averaged with that of worker 1, in group 0"]
    assert reasons(machine, ready(2, 0, 0)) == ["worker 1 is at another exchange, and this one's turn is to come"]
    assert reasons(machine, averaged(0))[0] == "worker 2 had to wait for an exchange: now it is its turn with worker 1"
    assert sentence(machine, ("free", 0, 1)) == "worker 0 asks worker 1, which is free"


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("workers", [2, 3, 4, 5])
def test_every_step_of_an_active_one_has_one_exchange(topology: str, workers: int) -> None:
    """So that requests and conflicts can be counted by the reasons of the groups."""
    machine, groups = until_data_end(topology, workers, steps=20)
    begun_by = Counter(order.why[1] for order in groups)
    for active, queued_at in machine.actives.items():
        requests = machine.replicas.seats[active].step + 1
        assert begun_by[active] == requests - (queued_at is not None)
    assert {order.why[0] for order in groups} == ({"free"} if workers == 2 else {"free", "in-turn"})


# Averages.


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
                    members[group], read[group] = pair_, [x[worker] for worker in pair_]
    assert not gradients
    assert stale > 0, "some gradient was taken before an average, and applied after it"


@pytest.mark.parametrize("topology", TOPOLOGIES)
@each_seed(range(20))
def test_no_two_groups_share_a_worker_and_each_joins_an_active_with_a_passive_one(topology: str, seed: int) -> None:
    chance = random.Random(seed)
    workers = chance.randrange(2, 9)
    world = World.of(choose(f"ad-psgd:topology={topology}", registry()), workers, steps=6, departures=workers // 2)
    at_work: dict[int, tuple[int, ...]] = {}
    together = 0
    for fact, orders in wander(world, chance):
        at_work.pop(getattr(fact, "group", -1), None)
        for order in orders:
            if isinstance(order, Reduce):
                assert sorted(worker % 2 for worker in order.members) == [0, 1]
                assert not {worker for pair_ in at_work.values() for worker in pair_} & set(order.members)
                at_work[order.group] = order.members
        together = max(together, len(at_work))
    assert together == 1 or workers > 3


def test_a_passive_one_computes_on_while_it_is_averaged() -> None:
    """It is held only with its gradient ready, and only by an exchange that runs."""
    world = World.of(choose("ad-psgd", registry()), workers=5, steps=20)
    averaged_computing = 0
    for fact, orders in wander(world, random.Random(1)):
        if isinstance(fact, ReduceFinished):
            averaged_computing += not any(isinstance(order, StepReplica) and order.worker % 2 for order in orders)
        for order in orders:
            if isinstance(order, Hold) and order.worker % 2:
                assert isinstance(fact, GradientReady)
                assert order.why[0] == "averaging"
    assert averaged_computing > 10


# The deadlock.


def test_a_naive_average_of_pairs_in_a_cycle_hangs() -> None:
    """Each of three locks its own replica and then its neighbour's: the barrier makes sure that all hold one."""
    locks = [Lock() for _ in range(3)]
    all_hold_their_own = Barrier(3)
    done: list[int] = []

    def average_with_the_next(worker: int) -> None:
        with locks[worker]:
            all_hold_their_own.wait()
            with locks[(worker + 1) % 3]:
                done.append(worker)

    threads = [Thread(target=average_with_the_next, args=(worker,), daemon=True) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=0.1)
    assert all(thread.is_alive() for thread in threads)
    assert not done


def test_three_workers_are_never_stuck_whatever_the_interleaving() -> None:
    """The walk fails where somebody waits and nothing can happen. With deaths it is made for every protocol."""
    assert walk(choose("ad-psgd", registry()), workers=3, steps=1) > 100


@pytest.mark.long
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_four_workers_are_never_stuck_whatever_the_interleaving(topology: str) -> None:
    assert walk(choose(f"ad-psgd:topology={topology}", registry()), workers=4, steps=1, departures=1) > 1000
