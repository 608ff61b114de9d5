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
    REFUSED,
    arrived,
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
    mean,
    own,
    ready,
    reasons,
    returned,
    run,
    stepped,
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


def test_a_round_averages_one_gradient_each_then_all_step_with_the_mean_and_go_on() -> None:
    everybody = range(3)
    check(
        averaging(),
        [
            (
                averaged(0),
                [
                    *(stepped(worker, 0, 1, group=0) for worker in everybody),
                    *(own(worker, 1, 1) for worker in everybody),
                ],
            ),
            (ready(0, 1, 1), [hold(0)]),
        ],
    )


def test_gradients_weigh_by_their_samples() -> None:
    check(
        begun(2),
        [(ready(0, 0, 0, samples=1), [hold(0)]), (ready(1, 0, 0, samples=3), [mean(0, (0, 0, 0.25), (1, 0, 0.75))])],
    )


def test_gradients_weigh_the_same_if_the_samples_of_any_are_unknown() -> None:
    check(
        begun(2),
        [(ready(0, 0, 0, samples=1), [hold(0)]), (ready(1, 0, 0, samples=None), [mean(0, (0, 0, 0.5), (1, 0, 0.5))])],
    )


def test_a_single_worker_averages_nothing() -> None:
    check(
        begun(1),
        [(ready(0, step, step), [stepped(0, step, step + 1), own(0, step + 1, step + 1)]) for step in range(4)],
    )


def test_one_that_declines_leaves_the_rounds_and_is_stepped_no_more() -> None:
    check(
        begun(3),
        [
            (ready(0, 0, 0), [hold(0)]),
            (ready(1, 0, 0), [hold(1)]),
            (declined(2, 0), [mean(0, (0, 0, 0.5), (1, 0, 0.5))]),
            (averaged(0), [stepped(0, 0, 1, group=0), stepped(1, 0, 1, group=0), own(0, 1, 1), own(1, 1, 1)]),
            (left(2, "finished"), []),
            (declined(1, 1), []),
            (ready(0, 1, 1), [stepped(0, 1, 2), own(0, 2, 2)]),
        ],
    )


def test_a_round_closes_when_the_last_one_awaited_dies() -> None:
    check(
        begun(3),
        [
            (ready(0, 0, 0), [hold(0)]),
            (ready(2, 0, 0), [hold(2)]),
            (left(1), [mean(0, (0, 0, 0.5), (2, 0, 0.5))]),
        ],
    )


def test_a_gradient_that_waits_is_dropped_with_its_worker() -> None:
    check(begun(3), [(ready(0, 0, 0), [hold(0)]), (left(0), [returned(0, 0)])])


def test_an_average_that_comes_about_keeps_the_gradient_of_one_that_was_stopped_meanwhile() -> None:
    check(
        averaging(),
        [
            (left(1, "stopped"), []),
            (averaged(0), [stepped(0, 0, 1, group=0), stepped(2, 0, 1, group=0), own(0, 1, 1), own(2, 1, 1)]),
        ],
    )


def test_an_average_that_fails_is_made_again_without_all_who_are_gone() -> None:
    check(
        averaging(),
        [
            (left(1), []),
            (failed(0, 1), [returned(1, 0), mean(1, (0, 0, 0.5), (2, 0, 0.5))]),
            (left(0), []),
            (failed(1, 0), [returned(0, 0), stepped(2, 0, 1), own(2, 1, 1)]),
        ],
    )


def test_when_all_whose_gradients_are_averaged_are_gone_all_of_them_are_dropped() -> None:
    check(
        averaging(),
        [
            (left(0), []),
            (left(2), []),
            (left(1), [returned(0, 0), returned(1, 0), returned(2, 0)]),
            (failed(0, 0, 1, 2), []),
        ],
    )


def test_a_round_that_is_being_averaged_is_not_averaged_again_when_somebody_leaves() -> None:
    check(
        begun(3),
        [
            (declined(2, 0), []),
            (ready(0, 0, 0), [hold(0)]),
            (ready(1, 0, 0), [mean(0, (0, 0, 0.5), (1, 0, 0.5))]),
            (left(2, "finished"), []),
        ],
    )


# Joiners.


def test_the_open_round_waits_for_a_joiners_copy_and_then_for_its_gradient() -> None:
    check(
        begun(2),
        [
            (joined(2), [copy(0, 2)]),
            (ready(0, 0, 0), [hold(0)]),
            (ready(1, 0, 0), [hold(1)]),
            (copied(0, 2), [own(2, 0, 0)]),
            (ready(2, 0, 0), [mean(0, *THIRDS)]),
        ],
    )


def test_who_joins_while_gradients_are_averaged_copies_a_replica_that_has_been_stepped_with_the_mean() -> None:
    steps = [*(stepped(worker, 0, 1, group=0) for worker in range(3)), *(own(worker, 1, 1) for worker in range(3))]
    check(averaging(), [(joined(3), [hold(3)]), (averaged(0), [*steps, copy(0, 3)]), (copied(0, 3), [own(3, 0, 1)])])


def test_who_declined_is_no_source_while_somebody_goes_on() -> None:
    check(begun(2), [(declined(0, 0), []), (joined(2), [copy(1, 2)])])


def test_where_all_have_declined_the_newest_replica_is_copied() -> None:
    check(
        begun(2),
        [
            (declined(0, 0), []),
            (ready(1, 0, 0), [stepped(1, 0, 1), own(1, 1, 1)]),
            (declined(1, 1), []),
            (joined(2), [copy(1, 2)]),
            (copied(1, 2), [own(2, 0, 1)]),
        ],
    )


def test_a_joiner_whose_source_died_is_given_another_ones_replica() -> None:
    check(
        begun(2),
        [(joined(2), [copy(0, 2)]), (left(0), [copy(1, 2)]), (copied(0, 2), REFUSED), (copied(1, 2), [own(2, 0, 0)])],
    )


@pytest.mark.parametrize("reason", ["finished", "stopped"])
def test_a_copy_of_one_that_left_in_an_orderly_way_comes_to_its_end(reason: str) -> None:
    check(begun(2), [(joined(2), [copy(0, 2)]), (left(0, reason), []), (copied(0, 2), [own(2, 0, 0)])])


def test_a_round_does_not_wait_for_a_joiner_that_died() -> None:
    check(
        begun(2),
        [
            (joined(2), [copy(0, 2)]),
            (ready(0, 0, 0), [hold(0)]),
            (ready(1, 0, 0), [hold(1)]),
            (left(2), [mean(0, (0, 0, 0.5), (1, 0, 0.5))]),
        ],
    )


def test_a_joiner_that_finds_nobody_begins_alone_and_the_next_one_copies_its_replica() -> None:
    check(
        begun(1),
        [
            (left(0), []),
            (joined(1), [own(1, 0, 0)]),
            (joined(0, 1), [copy(1, 0)]),
            (left(1), [own(0, 1, 0)]),
        ],
    )


def test_who_finds_nobody_but_an_average_of_the_dead_begins_alone_as_that_has_failed() -> None:
    check(
        averaging(),
        [
            *((left(worker), []) for worker in (0, 1)),
            (left(2), [returned(0, 0), returned(1, 0), returned(2, 0)]),
            (joined(1, 1), [hold(1)]),
            (failed(0, 0, 1, 2), [own(1, 1, 0)]),
        ],
    )


def test_who_comes_while_the_only_replica_is_on_its_way_waits_for_that_one() -> None:
    check(
        begun(1),
        [
            (joined(1), [copy(0, 1)]),
            (left(0, "finished"), []),
            (joined(2), [hold(2)]),
            (copied(0, 1), [own(1, 0, 0), copy(1, 2)]),
        ],
    )


def test_what_was_in_a_replica_as_it_was_copied_is_not_lost_with_it_and_what_came_later_is() -> None:
    check(
        begun(1),
        [
            (ready(0, 0, 0), [stepped(0, 0, 1), own(0, 1, 1)]),
            (joined(1), [copy(0, 1)]),
            (copied(0, 1), [own(1, 0, 1)]),
            (declined(1, 0), []),
            (ready(0, 1, 1), [stepped(0, 1, 2), own(0, 2, 2)]),
            (left(0), [returned(0, 1)]),
        ],
    )


def test_what_was_in_a_replica_is_lost_with_it_if_the_copy_has_not_come_to_its_end() -> None:
    check(
        begun(1),
        [
            (ready(0, 0, 0), [stepped(0, 0, 1), own(0, 1, 1)]),
            (joined(1), [copy(0, 1)]),
            (left(0), [returned(0, 0), own(1, 0, 0)]),
        ],
    )


def test_who_died_in_an_average_and_is_back_before_its_end_is_lost_to_it_all_the_same() -> None:
    check(
        averaging(),
        [
            (left(1), []),
            (joined(1, 1), [hold(1)]),
            (failed(0, 1), [returned(1, 0), mean(1, (0, 0, 0.5), (2, 0, 0.5))]),
            (
                averaged(1),
                [stepped(0, 0, 1, group=1), stepped(2, 0, 1, group=1), own(0, 1, 1), own(2, 1, 1), copy(0, 1)],
            ),
            (copied(0, 1), [own(1, 1, 1)]),
        ],
    )


def test_reasons_say_for_whom_one_waits_and_what_is_averaged() -> None:
    machine = begun(3)
    assert reasons(machine, ready(1, 0, 0)) == ["round 0 waits for worker 0, 2"]
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
