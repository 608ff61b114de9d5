"""SSP's rules, one test each. The lead that counts is the one after the arrival: held above the bound, not at it."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.protocols.ssp import Config, Machine
from support.tables import (
    REFUSED,
    Row,
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


def begun(workers: int, bound: int, version: int = 0) -> Machine:
    return run(
        Machine(Config(bound=bound)),
        [(began(*range(workers), version=version), [release(worker, 0, version) for worker in range(workers)])],
    )


def alone(worker: int, first: int, count: int, version: int) -> list[Row]:
    """So many steps of one worker, with nobody else's in between and none of them held."""
    rows: list[Row] = []
    for step, on in zip(range(first, first + count), range(version, version + count), strict=True):
        rows += pushed(worker, step, on, [apply_one(on + 1, worker, step), release(worker, step + 1, on + 1)])
    return rows


def held(workers: int, bound: int) -> Machine:
    """Worker 0 is held at lead bound + 1, version bound + 1; everybody else is at its first step."""
    return run(
        begun(workers, bound),
        [
            *alone(0, 0, bound, 0),
            *pushed(0, bound, bound, [apply_one(bound + 1, 0, bound), hold(0)]),
        ],
    )


@pytest.mark.parametrize("bound", [1, 2, 3, 8])
def test_lead_of_bound_is_released(bound: int) -> None:
    check(begun(2, bound), alone(0, 0, bound, 0))


@pytest.mark.parametrize("bound", [0, 1, 2, 3, 8])
def test_lead_of_bound_plus_one_is_held(bound: int) -> None:
    held(2, bound)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_the_held_one_is_released_when_the_slowest_arrives(bound: int) -> None:
    newest = bound + 2
    check(
        held(2, bound),
        pushed(1, 0, 0, [apply_one(newest, 1, 0), release(1, 1, newest), release(0, bound + 1, newest)]),
    )


def test_the_held_one_waits_until_the_last_of_the_slowest_has_arrived() -> None:
    check(
        held(3, 1),
        [
            *pushed(1, 0, 0, [apply_one(3, 1, 0), release(1, 1, 3)]),
            *pushed(2, 0, 0, [apply_one(4, 2, 0), release(2, 1, 4), release(0, 2, 4)]),
        ],
    )


def test_bound_0_holds_whoever_is_a_step_ahead() -> None:
    check(
        begun(3, 0),
        [
            *pushed(0, 0, 0, [apply_one(1, 0, 0), hold(0)]),
            *pushed(2, 0, 0, [apply_one(2, 2, 0), hold(2)]),
            *pushed(1, 0, 0, [apply_one(3, 1, 0), release(1, 1, 3), release(0, 1, 3), release(2, 1, 3)]),
        ],
    )


def test_the_held_are_released_in_the_order_in_which_they_began_to_wait() -> None:
    check(
        begun(3, 0),
        [
            *pushed(2, 0, 0, [apply_one(1, 2, 0), hold(2)]),
            *pushed(0, 0, 0, [apply_one(2, 0, 0), hold(0)]),
            *pushed(1, 0, 0, [apply_one(3, 1, 0), release(1, 1, 3), release(2, 1, 3), release(0, 1, 3)]),
        ],
    )


def test_one_worker_never_waits() -> None:
    check(begun(1, 0), alone(0, 0, 20, 0))


def test_an_update_is_applied_on_arrival_even_if_its_worker_is_held() -> None:
    check(
        begun(2, 0),
        [
            (ready(0, 0, 0), [push(0, 0)]),
            (arrived(0, 0), [apply_one(1, 0, 0), hold(0)]),
            (arrived(0, 0), REFUSED),
        ],
    )


def test_a_pulls_end_changes_nothing() -> None:
    check(begun(2, 0), [(taken(0, 0), []), (taken(0, 0), REFUSED)])


def test_lead_counts_arrivals_not_step_numbers() -> None:
    check(
        Machine(Config(bound=0)),
        [
            (began(0, 1, version=9, steps={0: 40, 1: 2}), [release(0, 40, 9), release(1, 2, 9)]),
            *pushed(1, 2, 9, [apply_one(10, 1, 2), hold(1)]),
            *pushed(0, 40, 9, [apply_one(11, 0, 40), release(0, 41, 11), release(1, 3, 11)]),
        ],
    )


def test_the_held_one_is_released_when_the_slowest_leaves() -> None:
    check(held(2, 2), [(left(1), [release(0, 3, 3)])])


def test_the_held_one_is_released_when_the_slowest_leaves_half_pushed() -> None:
    check(
        held(2, 2),
        [
            (ready(1, 0, 0), [push(1, 0)]),
            (left(1), [returned(1, 0), release(0, 3, 3)]),
            (arrived(1, 0), REFUSED),
        ],
    )


def test_the_held_one_is_released_when_the_slowest_declines() -> None:
    check(
        held(2, 2),
        [
            (declined(1, 0), [release(0, 3, 3)]),
            (left(1, "finished"), []),
        ],
    )


def test_the_held_one_waits_on_while_another_of_the_slowest_is_there() -> None:
    check(held(3, 0), [(left(1), []), (declined(2, 0), [release(0, 1, 1)])])


def test_only_those_within_the_bound_of_the_new_slowest_are_released() -> None:
    """The slowest leaves, and the next slowest is one step further: 0 is at 3, 2 at 1, the bound 1."""
    machine = begun(3, 1)
    check(
        machine,
        [
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)]),
            *pushed(0, 1, 1, [apply_one(2, 0, 1), hold(0)]),
            *pushed(2, 0, 0, [apply_one(3, 2, 0), release(2, 1, 3)]),
            (left(1), [release(0, 2, 3)]),
            *pushed(0, 2, 3, [apply_one(4, 0, 2), hold(0)]),
            (joined(3), [release(3, 0, 4)]),
            *pushed(3, 0, 4, [apply_one(5, 3, 0), release(3, 1, 5)]),
            *pushed(2, 1, 3, [apply_one(6, 2, 1), release(2, 2, 6), release(0, 3, 6)]),
        ],
    )


def test_a_held_worker_may_leave_and_its_update_stays_applied() -> None:
    check(
        held(2, 0),
        [
            (left(0), []),
            *pushed(1, 0, 0, [apply_one(2, 1, 0), release(1, 1, 2)]),
        ],
    )


def test_the_fastest_leaving_releases_nobody() -> None:
    check(
        begun(3, 0),
        [
            *pushed(0, 0, 0, [apply_one(1, 0, 0), hold(0)]),
            *pushed(1, 0, 0, [apply_one(2, 1, 0), hold(1)]),
            (left(0), []),
            *pushed(2, 0, 0, [apply_one(3, 2, 0), release(2, 1, 3), release(1, 1, 3)]),
        ],
    )


def test_the_last_leaver_leaves_nothing_behind() -> None:
    check(begun(1, 0), [(left(0), []), (joined(0, step=1), [release(0, 1, 0)]), *alone(0, 1, 3, 0)])


def test_a_joiner_counts_from_the_slowest_live_workers_number() -> None:
    check(
        begun(2, 1),
        [
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)]),
            *pushed(1, 0, 0, [apply_one(2, 1, 0), release(1, 1, 2)]),
            *pushed(0, 1, 1, [apply_one(3, 0, 1), release(0, 2, 3)]),
            (joined(2), [release(2, 0, 3)]),  # counts 1, as worker 1 does; worker 0 counts 2
            *pushed(0, 2, 3, [apply_one(4, 0, 2), hold(0)]),
            *pushed(1, 1, 2, [apply_one(5, 1, 1), release(1, 2, 5)]),
            *pushed(2, 0, 3, [apply_one(6, 2, 0), release(2, 1, 6), release(0, 3, 6)]),
        ],
    )


def test_a_joiner_holds_nobody_back_who_was_not_held() -> None:
    check(
        run(begun(1, 0), alone(0, 0, 10, 0)),
        [
            (joined(1), [release(1, 0, 10)]),
            *pushed(1, 0, 10, [apply_one(11, 1, 0), hold(1)]),
            *pushed(0, 10, 10, [apply_one(12, 0, 10), release(0, 11, 12), release(1, 1, 12)]),
        ],
    )


def test_a_step_number_is_not_used_again_after_a_rejoin() -> None:
    check(
        held(2, 1),
        [
            (left(0), []),
            (joined(0, step=1), REFUSED),
            (joined(0, step=2), [release(0, 2, 2)]),
            *pushed(0, 2, 2, [apply_one(3, 0, 2), release(0, 3, 3)]),  # it counts from 0 again
            *pushed(0, 3, 3, [apply_one(4, 0, 3), hold(0)]),
        ],
    )


def test_a_hold_says_the_lead_the_bound_and_who_is_slowest() -> None:
    machine = begun(3, 0)
    check(machine, [(ready(0, 0, 0), [push(0, 0)])])
    assert reasons(machine, arrived(0, 0)) == [
        "step 0 of worker 0 was applied on arrival",
        "its lead is 1, the bound 0: it waits for worker 1, 2",
    ]


def test_the_bound_is_0_or_more() -> None:
    with pytest.raises(ConfigError, match="bound is -1 steps; it must be 0 or more"):
        Config(bound=-1)
