"""ASP's rules, one test each."""

from __future__ import annotations

from paceline.protocols.asp import Config, Machine
from support.tables import (
    REFUSED,
    apply_one,
    arrived,
    began,
    check,
    declined,
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


def asp() -> Machine:
    return Machine(Config())


def begun(workers: int, version: int = 0) -> Machine:
    return run(
        asp(),
        [(began(*range(workers), version=version), [release(worker, 0, version) for worker in range(workers)])],
    )


def test_every_update_is_applied_on_arrival_and_its_worker_released_on_it() -> None:
    check(
        begun(2),
        [
            *pushed(1, 0, 0, [apply_one(1, 1, 0), release(1, 1, 1)]),
            *pushed(0, 0, 0, [apply_one(2, 0, 0), release(0, 1, 2)]),
        ],
    )


def test_nobody_waits_however_far_ahead() -> None:
    rows = []
    for step in range(50):
        rows += pushed(0, step, step, [apply_one(step + 1, 0, step), release(0, step + 1, step + 1)])
    check(begun(2), rows)


def test_updates_are_applied_in_the_order_of_arrival_not_of_pushes() -> None:
    check(
        begun(2),
        [
            (ready(0, 0, 0), [push(0, 0)]),
            (ready(1, 0, 0), [push(1, 0)]),
            (arrived(1, 0), [apply_one(1, 1, 0), release(1, 1, 1)]),
            (arrived(0, 0), [apply_one(2, 0, 0), release(0, 1, 2)]),
        ],
    )


def test_an_update_weighs_one_whatever_its_samples() -> None:
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)], samples=3),
            *pushed(1, 0, 0, [apply_one(2, 1, 0), release(1, 1, 2)], samples=None),
        ],
    )


def test_versions_and_steps_continue_from_where_training_began() -> None:
    check(
        asp(),
        [
            (began(0, 2, version=7, steps={0: 3, 2: 5}), [release(0, 3, 7), release(2, 5, 7)]),
            *pushed(2, 5, 7, [apply_one(8, 2, 5), release(2, 6, 8)]),
        ],
    )


def test_a_pulls_end_changes_nothing() -> None:
    check(begun(1), [(taken(0, 0), []), (taken(0, 0), REFUSED)])


def test_a_joiner_starts_at_once_on_the_newest_version() -> None:
    check(
        begun(1),
        [
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)]),
            (joined(1), [release(1, 0, 1)]),
            *pushed(1, 0, 1, [apply_one(2, 1, 0), release(1, 1, 2)]),
        ],
    )


def test_nothing_is_to_be_done_for_one_that_left_while_computing() -> None:
    check(begun(2), [(left(0), []), *pushed(1, 0, 0, [apply_one(1, 1, 0), release(1, 1, 1)])])


def test_what_was_half_pushed_is_dropped() -> None:
    check(begun(2), [(ready(0, 0, 0), [push(0, 0)]), (left(0), [returned(0, 0)]), (arrived(0, 0), REFUSED)])


def test_the_last_leaver_leaves_nothing_behind() -> None:
    check(
        begun(1),
        [
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)]),
            (left(0, "finished"), []),
            (joined(0, step=2), [release(0, 2, 1)]),
        ],
    )


def test_a_declined_worker_computes_no_more() -> None:
    check(
        begun(2),
        [
            (declined(0, 0), []),
            *pushed(1, 0, 0, [apply_one(1, 1, 0), release(1, 1, 1)]),
            (ready(0, 0, 0), REFUSED),
            (declined(0, 0), REFUSED),
            (left(0, "finished"), []),
        ],
    )


def test_a_step_number_is_not_used_again_after_a_rejoin() -> None:
    check(
        begun(1),
        [
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)]),
            (left(0), []),
            (joined(0, step=1), REFUSED),
            (joined(0, step=2), [release(0, 2, 1)]),
            (left(0), []),
            (joined(0, step=2), REFUSED),
            (joined(0, step=5), [release(0, 5, 1)]),
        ],
    )


def test_a_release_names_the_update_that_made_its_version() -> None:
    machine = begun(1)
    check(machine, [(ready(0, 0, 0), [push(0, 0)])])
    assert reasons(machine, arrived(0, 0)) == ["step 0 of worker 0 was applied on arrival"] * 2
