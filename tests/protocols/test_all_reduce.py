"""All-Reduce's rules, one test each; and that it makes BSP's contributions."""

from __future__ import annotations

import random

import pytest

from paceline.core.choice import choose
from paceline.core.facts import Fact
from paceline.core.orders import ApplyUpdate, Order, Reduce, Release, StepReplica
from paceline.protocols import registry
from paceline.protocols.all_reduce import Config, Machine
from support.seeds import each_seed
from support.tables import (
    arrived,
    averaged,
    began,
    check,
    copied,
    copy,
    declined,
    hold,
    joined,
    left,
    mean,
    own,
    ready,
    reasons,
    run,
)

THIRDS = ((0, 0, 1 / 3), (1, 0, 1 / 3), (2, 0, 1 / 3))


def begun(workers: int) -> Machine:
    return run(Machine(Config()), [(began(*range(workers)), [own(worker, 0, 0) for worker in range(workers)])])


def averaging() -> Machine:
    """Three workers, whose first gradients are being averaged."""
    return run(
        begun(3),
        [
            (ready(1, 0, 0), [hold(1)]),
            (ready(2, 0, 0), [hold(2)]),
            (ready(0, 0, 0), [mean(0, *THIRDS)]),
        ],
    )


# Joiners.


@pytest.mark.parametrize("reason", ["finished", "stopped"])
def test_a_copy_of_one_that_left_in_an_orderly_way_comes_to_its_end(reason: str) -> None:
    check(begun(2), [(joined(2), [copy(0, 2)]), (left(0, reason), []), (copied(0, 2), [own(2, 0, 0)])])


def test_reasons_say_for_whom_one_waits_and_what_is_averaged() -> None:
    machine = begun(3)
    assert reasons(machine, ready(1, 0, 0)) == ["round 0 waits for workers 0, 2"]
    assert reasons(machine, ready(0, 0, 0)) == ["round 0 waits for worker 2"]
    assert reasons(machine, ready(2, 0, 0)) == ["round 0 has all its 3 gradients"]
    assert set(reasons(machine, averaged(0))) == {"group 0 has averaged the gradients of round 0"}


def test_many_who_are_awaited_are_counted_and_not_named() -> None:
    assert reasons(begun(10), ready(0, 0, 0)) == ["round 0 waits for 9 workers"]


@each_seed(range(50))
def test_it_makes_bsps_contributions_in_the_same_history(seed: int) -> None:
    """To the last bit, on the same versions; workers have more or less data, and may die computing."""
    chance = random.Random(seed)
    workers = range(chance.randrange(1, 6))
    ours, theirs = Machine(Config()), choose("bsp", registry()).machine()
    last = [chance.randrange(1, 8) for _ in workers]
    counted = chance.random() < 0.7
    computing = [(worker, 0, 0) for worker in workers]
    ours.handle(began(*workers))
    theirs.handle(began(*workers))
    rounds = 0
    while computing:
        worker, step, version = computing.pop(chance.randrange(len(computing)))
        facts: list[Fact] = [ready(worker, step, version, samples=chance.randrange(1, 9) if counted else None)]
        if step >= last[worker]:
            facts = [chance.choice([declined(worker, step), left(worker), left(worker, "finished")])]
        averaging = [order for fact in facts for order in ours.handle(fact)]
        made = [order.contributions for order in averaging if isinstance(order, Reduce)]
        made += [((order.worker, order.step, 1.0),) for order in averaging if isinstance(order, StepReplica)]
        following = [*averaging, *(order for _ in made for order in _end(ours))]
        if step < last[worker]:
            facts.append(arrived(worker, step))
        wanted = [order for fact in facts for order in theirs.handle(fact)]
        assert made == [order.contributions for order in wanted if isinstance(order, ApplyUpdate)]
        assert _releases(following) == _releases(wanted)
        computing += _releases(following)
        rounds += len(made)
    assert rounds == max(last)


def _end(machine: Machine) -> list[Order]:
    """The group that averages, if any, is through."""
    return [order for group in list(machine.replicas.groups) for order in machine.handle(averaged(group))]


def _releases(orders: list[Order]) -> list[tuple[int, int, int]]:
    return [(order.worker, order.step, order.version) for order in orders if isinstance(order, Release)]
