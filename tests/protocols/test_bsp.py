"""BSP's rules, one test each."""

from __future__ import annotations

from paceline.protocols.bsp import Config, Machine
from support.tables import (
    REFUSED,
    apply,
    apply_one,
    arrived,
    began,
    check,
    declined,
    hold,
    joined,
    left,
    push,
    pushed,
    ready,
    reasons,
    release,
    returned,
    run,
    taken,
)


def bsp() -> Machine:
    return Machine(Config())


def begun(workers: int, version: int = 0) -> Machine:
    return run(
        bsp(),
        [(began(*range(workers), version=version), [release(worker, 0, version) for worker in range(workers)])],
    )


def test_a_round_applies_the_mean_of_one_gradient_each_and_releases_everybody_on_it() -> None:
    check(
        begun(3),
        [
            *pushed(1, 0, 0, [hold(1)]),
            *pushed(2, 0, 0, [hold(2)]),
            *pushed(
                0,
                0,
                0,
                [
                    apply(1, (0, 0, 1 / 3), (1, 0, 1 / 3), (2, 0, 1 / 3)),
                    release(0, 1, 1),
                    release(1, 1, 1),
                    release(2, 1, 1),
                ],
            ),
        ],
    )


def test_rounds_follow_each_other_from_the_version_that_training_began_at() -> None:
    halves = (0.5, 0.5)
    rows = []
    for round_ in range(3):
        version = 7 + round_
        rows += pushed(0, round_, version, [hold(0)])
        both = [(worker, round_, weight) for worker, weight in enumerate(halves)]
        rows += pushed(
            1,
            round_,
            version,
            [
                apply(version + 1, *both),
                release(0, round_ + 1, version + 1),
                release(1, round_ + 1, version + 1),
            ],
        )
    check(begun(2, version=7), rows)


def test_a_push_may_start_at_any_time() -> None:
    check(begun(2), [(ready(0, 0, 0), [push(0, 0)]), (ready(1, 0, 0), [push(1, 0)])])


def test_one_worker_never_waits() -> None:
    check(
        begun(1),
        [
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)]),
            *pushed(0, 1, 1, [apply_one(2, 0, 1), release(0, 2, 2)]),
        ],
    )


def test_a_pulls_end_changes_nothing() -> None:
    check(begun(2), [(taken(0, 0), []), (taken(1, 0), [])])


def test_step_numbers_continue_from_the_members_own() -> None:
    check(
        bsp(),
        [
            (began(0, 1, version=5, steps={0: 4, 1: 9}), [release(0, 4, 5), release(1, 9, 5)]),
            *pushed(0, 4, 5, [hold(0)]),
            *pushed(1, 9, 5, [apply(6, (0, 4, 0.5), (1, 9, 0.5)), release(0, 5, 6), release(1, 10, 6)]),
        ],
    )


def test_unequal_batches_weigh_by_their_samples() -> None:
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [hold(0)], samples=30),
            *pushed(1, 0, 0, [apply(1, (0, 0, 0.75), (1, 0, 0.25)), release(0, 1, 1), release(1, 1, 1)], samples=10),
        ],
    )


def test_gradients_of_unknown_samples_weigh_equally() -> None:
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [hold(0)], samples=None),
            *pushed(1, 0, 0, [apply(1, (0, 0, 0.5), (1, 0, 0.5)), release(0, 1, 1), release(1, 1, 1)], samples=None),
        ],
    )


def test_one_gradient_of_unknown_samples_makes_all_of_its_round_weigh_equally() -> None:
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [hold(0)], samples=30),
            *pushed(1, 0, 0, [apply(1, (0, 0, 0.5), (1, 0, 0.5)), release(0, 1, 1), release(1, 1, 1)], samples=None),
            *pushed(0, 1, 1, [hold(0)], samples=30),
            *pushed(1, 1, 1, [apply(2, (0, 1, 0.75), (1, 1, 0.25)), release(0, 2, 2), release(1, 2, 2)], samples=10),
        ],
    )


def test_a_joiner_enters_the_open_round_on_its_version_and_is_awaited() -> None:
    third = 1 / 3
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [hold(0)]),
            (joined(2), [release(2, 0, 0)]),
            *pushed(1, 0, 0, [hold(1)]),
            *pushed(
                2,
                0,
                0,
                [
                    apply(1, (0, 0, third), (1, 0, third), (2, 0, third)),
                    release(0, 1, 1),
                    release(1, 1, 1),
                    release(2, 1, 1),
                ],
            ),
        ],
    )


def test_a_joiner_after_everybody_has_gone_works_alone() -> None:
    check(
        begun(1),
        [
            (left(0), []),
            (joined(5, step=3), [release(5, 3, 0)]),
            *pushed(5, 3, 0, [apply_one(1, 5, 3), release(5, 4, 1)]),
        ],
    )


def test_nobody_waits_for_one_that_left_while_computing() -> None:
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [hold(0)]),
            (left(1), [apply_one(1, 0, 0), release(0, 1, 1)]),
        ],
    )


def test_what_was_half_pushed_is_dropped_and_nobody_waits_for_it() -> None:
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [hold(0)]),
            (ready(1, 0, 0), [push(1, 0)]),
            (left(1), [returned(1, 0), apply_one(1, 0, 0), release(0, 1, 1)]),
            (arrived(1, 0), REFUSED),
        ],
    )


def test_the_arrived_update_of_one_that_left_stays_in_its_round() -> None:
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [hold(0)], samples=30),
            (left(0), []),
            *pushed(1, 0, 0, [apply(1, (0, 0, 0.75), (1, 0, 0.25)), release(1, 1, 1)], samples=10),
        ],
    )


def test_the_last_leavers_round_is_closed_without_him() -> None:
    check(
        begun(3),
        [
            *pushed(0, 0, 0, [hold(0)]),
            *pushed(1, 0, 0, [hold(1)]),
            (left(0), []),
            (left(1), []),
            (left(2), [apply(1, (0, 0, 0.5), (1, 0, 0.5))]),
        ],
    )


def test_when_the_last_one_leaves_with_nothing_arrived_nothing_is_applied() -> None:
    check(begun(1), [(left(0), [])])


def test_one_that_came_back_in_the_same_round_has_both_its_updates_in_it() -> None:
    third = 1 / 3
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [hold(0)]),
            (left(0), []),
            (joined(0, step=1), [release(0, 1, 0)]),
            *pushed(0, 1, 0, [hold(0)]),
            *pushed(
                1,
                0,
                0,
                [apply(1, (0, 0, third), (0, 1, third), (1, 0, third)), release(0, 2, 1), release(1, 1, 1)],
            ),
        ],
    )


def test_one_that_came_back_and_declined_is_not_released_for_its_old_update() -> None:
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [hold(0)]),
            (left(0), []),
            (joined(0, step=1), [release(0, 1, 0)]),
            (declined(0, 1), []),
            *pushed(1, 0, 0, [apply(1, (0, 0, 0.5), (1, 0, 0.5)), release(1, 1, 1)]),
        ],
    )


def test_a_declined_worker_is_not_awaited() -> None:
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [hold(0)]),
            (declined(1, 0), [apply_one(1, 0, 0), release(0, 1, 1)]),
            *pushed(0, 1, 1, [apply_one(2, 0, 1), release(0, 2, 2)]),
            (left(1, "finished"), []),
            *pushed(0, 2, 2, [apply_one(3, 0, 2), release(0, 3, 3)]),
        ],
    )


def test_when_everybody_declines_nothing_more_is_ordered() -> None:
    check(begun(2), [(declined(0, 0), []), (declined(1, 0), []), (left(0, "finished"), []), (left(1, "finished"), [])])


def test_a_step_number_is_not_used_again_after_a_rejoin() -> None:
    check(
        begun(2),
        [
            (left(0), []),
            (joined(0, step=0), REFUSED),
            (joined(0, step=1), [release(0, 1, 0)]),
        ],
    )


def test_a_second_arrival_of_a_step_is_refused() -> None:
    check(begun(2), [*pushed(0, 0, 0, [hold(0)]), (arrived(0, 0), REFUSED), (ready(0, 0, 0), REFUSED)])


def test_a_hold_says_which_version_waits_for_whom() -> None:
    machine = begun(3)
    check(machine, [(ready(0, 0, 0), [push(0, 0)])])
    assert reasons(machine, arrived(0, 0)) == ["version 1 waits for worker 1, 2"]


def test_a_hold_for_many_says_for_how_many() -> None:
    machine = begun(6)
    check(machine, [(ready(0, 0, 0), [push(0, 0)])])
    assert reasons(machine, arrived(0, 0)) == ["version 1 waits for 5 workers"]
