"""HSP's rules, one test each; and the times of its model, with the link that BSP's are computed with, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.core.facts import Fact, GradientReady, ParametersTaken, UpdateArrived, WorkerLeft
from paceline.core.machine import Machine as AnyMachine
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Release, StartPull, StartPush
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.protocols.hsp import Config, Machine
from paceline.scenario.network import SharedLink
from support.tables import (
    REFUSED,
    Row,
    apply,
    apply_one,
    arrived,
    began,
    check,
    declined,
    hold,
    joined,
    left,
    pull,
    push,
    pushed,
    ready,
    reasons,
    release,
    returned,
    run,
    taken,
)
from support.walk import history, walk

THIRD = 1 / 3


PLAIN: Any = {"order": "ready", "idle": "guarded", "stale": "next", "broadcast": "all"}
"""What the tests here mean where they name nothing else, whatever the default is."""


def begun(workers: int, version: int = 0, **settings: Any) -> Machine:
    """Everybody has its parameters and computes its first step."""
    return run(
        Machine(Config(**(PLAIN | settings))),
        [
            (began(*range(workers), version=version), [release(worker, 0, version) for worker in range(workers)]),
            *((taken(worker, version), []) for worker in range(workers)),
        ],
    )


def held(worker: int, step: int, version: int) -> Release:
    return release(worker, step, version, "held")


def halves(version: int, first: int, second: int) -> Order:
    return apply(version, (0, first, 0.5), (1, second, 0.5))


# Transfers.


def test_one_gradient_at_a_time_is_on_its_way() -> None:
    check(
        begun(3, idle="none"),
        [
            (ready(1, 0, 0), [push(1, 0)]),
            (ready(0, 0, 0), [hold(0)]),
            (ready(2, 0, 0), [hold(2)]),
            (arrived(0, 0), REFUSED),
            (arrived(1, 0), [hold(1), push(0, 0)]),
            (arrived(0, 0), [hold(0), push(2, 0)]),
        ],
    )


def test_a_round_applies_the_mean_in_worker_order_whatever_the_order_of_transfers() -> None:
    check(
        begun(3, version=7, idle="none"),
        [
            *pushed(2, 0, 7, [hold(2)]),
            *pushed(0, 0, 7, [hold(0)]),
            *pushed(
                1,
                0,
                7,
                [
                    apply(8, (0, 0, THIRD), (1, 0, THIRD), (2, 0, THIRD)),
                    release(0, 1, 8),
                    release(1, 1, 8),
                    release(2, 1, 8),
                ],
            ),
        ],
    )


def test_unequal_batches_weigh_by_their_samples() -> None:
    check(
        begun(2, idle="none"),
        [
            *pushed(0, 0, 0, [hold(0)], samples=30),
            *pushed(1, 0, 0, [apply(1, (0, 0, 0.75), (1, 0, 0.25)), release(0, 1, 1), release(1, 1, 1)], samples=10),
            *pushed(0, 1, 1, [hold(0)], samples=None),
            *pushed(1, 1, 1, [halves(2, 1, 1), release(0, 2, 2), release(1, 2, 2)], samples=10),
        ],
    )


def turns(order: str, rows: list[Row], workers: int) -> list[int]:
    """In which order the gradients of workers that are ready while worker 9 transfers are taken."""
    machine = Machine(Config(**(PLAIN | {"order": order, "idle": "none"})))
    members = (*range(workers), 9)
    check(
        machine,
        [
            (began(*members), [release(worker, 0, 0) for worker in members]),
            *((taken(worker, 0), []) for worker in members),
            *rows,
        ],
    )
    return order_of_pushes(machine, 9, 0)


def order_of_pushes(machine: Machine, worker: int, step: int) -> list[int]:
    """One arrival after the other from that push on, until nothing is on its way: who comes when."""
    order = []
    while True:
        orders = machine.handle(arrived(worker, step))
        granted = [one for one in orders if isinstance(one, StartPush)]
        if not granted:
            return order
        worker, step = granted[0].worker, granted[0].step
        order.append(worker)


NINE_FIRST: list[Row] = [
    (ready(9, 0, 0, at=9.0), [push(9, 0)]),
    (ready(2, 0, 0, at=30.0), [hold(2)]),
    (ready(0, 0, 0, at=40.0), [hold(0)]),
    (ready(1, 0, 0, at=20.0), [hold(1)]),
]


@pytest.mark.parametrize(("order", "expected"), [("ready", [2, 0, 1]), ("rank", [0, 1, 2])])
def test_of_those_that_are_ready_the_first_by_order_is_next(order: str, expected: list[int]) -> None:
    assert turns(order, NINE_FIRST, workers=3) == expected


@pytest.mark.parametrize("order", ["ready", "rank"])
def test_the_link_is_not_kept_free_for_one_that_is_not_ready(order: str) -> None:
    check(begun(3, order=order, idle="none"), [(ready(2, 0, 0), [push(2, 0)])])


def test_the_departure_of_the_one_that_transfers_frees_the_link() -> None:
    check(
        begun(3, idle="none"),
        [
            (ready(1, 0, 0), [push(1, 0)]),
            (ready(0, 0, 0), [hold(0)]),
            (left(1), [returned(1, 0), push(0, 0)]),
            (arrived(1, 0), REFUSED),
        ],
    )


def test_who_left_while_it_waited_for_its_turn_is_passed_over() -> None:
    check(
        begun(3, idle="none"),
        [
            (ready(1, 0, 0), [push(1, 0)]),
            (ready(0, 0, 0), [hold(0)]),
            (ready(2, 0, 0), [hold(2)]),
            (left(0), [returned(0, 0)]),
            (joined(0, step=1), [release(0, 1, 0)]),
            (arrived(1, 0), [hold(1), push(2, 0)]),
        ],
    )


# Who computes ahead.


def test_without_idle_computing_everybody_waits_for_the_version() -> None:
    check(begun(2, idle="none"), [*pushed(0, 0, 0, [hold(0)]), *pushed(1, 0, 0, BOTH_FRESH)])


BOTH_FRESH = [halves(1, 0, 0), release(0, 1, 1), release(1, 1, 1)]


def test_an_idle_worker_computes_on_what_it_holds_and_gets_the_new_version_beside() -> None:
    check(
        begun(3, idle="always"),
        [
            *pushed(0, 0, 0, [held(0, 1, 0)]),
            *pushed(1, 0, 0, [held(1, 1, 0)]),
            *pushed(
                2,
                0,
                0,
                [
                    held(2, 1, 0),
                    apply(1, (0, 0, THIRD), (1, 0, THIRD), (2, 0, THIRD)),
                    pull(0, 1),
                    pull(1, 1),
                    pull(2, 1),
                ],
            ),
        ],
    )


def ahead(**settings: Any) -> Machine:
    """Both workers compute step 1 on version 0, for the round that makes version 2; version 1 is on its way to them."""
    return run(
        begun(2, idle="always", **settings),
        [
            *pushed(0, 0, 0, [held(0, 1, 0)]),
            *pushed(1, 0, 0, [held(1, 1, 0), halves(1, 0, 0), pull(0, 1), pull(1, 1)]),
        ],
    )


def test_a_stale_gradient_is_its_workers_in_the_next_round() -> None:
    check(
        ahead(),
        [
            (taken(0, 1), []),
            (taken(1, 1), []),
            *pushed(0, 1, 0, [held(0, 2, 1)]),
            *pushed(1, 1, 0, [held(1, 2, 1), halves(2, 1, 1), pull(0, 2), pull(1, 2)]),
        ],
    )


def test_a_gradient_that_is_ready_before_its_round_waits_until_that_is_open() -> None:
    check(
        begun(3, idle="always"),
        [
            *pushed(0, 0, 0, [held(0, 1, 0)]),
            *pushed(1, 0, 0, [held(1, 1, 0)]),
            (ready(1, 1, 0), [hold(1)]),
            (ready(0, 1, 0), [hold(0)]),
            (ready(2, 0, 0), [push(2, 0)]),
            (
                arrived(2, 0),
                [
                    held(2, 1, 0),
                    apply(1, (0, 0, THIRD), (1, 0, THIRD), (2, 0, THIRD)),
                    pull(0, 1),
                    pull(1, 1),
                    pull(2, 1),
                    push(1, 1),
                ],
            ),
            (arrived(1, 1), [hold(1), push(0, 1)]),
        ],
    )


def test_nobody_computes_twice_on_one_version() -> None:
    """Its stale gradient has come, the version after that has not: it waits, and goes on when it has."""
    check(
        ahead(),
        [
            *pushed(0, 1, 0, [hold(0)]),
            (taken(0, 1), [held(0, 2, 1)]),
        ],
    )


def test_a_version_waits_for_the_one_before_on_the_way_to_the_same_worker() -> None:
    """Worker 1 has version 2 made while version 1 is on its way to it: then it is two behind, and may go on with 1."""
    check(
        ahead(),
        [
            (taken(0, 1), []),
            *pushed(0, 1, 0, [held(0, 2, 1)]),
            *pushed(1, 1, 0, [halves(2, 1, 1), pull(0, 2), hold(1)]),
            (taken(1, 1), [held(1, 2, 1), pull(1, 2)]),
        ],
    )


def test_one_worker_alone_never_computes_ahead() -> None:
    check(
        begun(1, idle="always"),
        [
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)]),
            (taken(0, 1), []),
            *pushed(0, 1, 1, [apply_one(2, 0, 1), release(0, 2, 2)]),
        ],
    )


def test_who_is_left_alone_computes_ahead_no_more() -> None:
    check(
        ahead(),
        [
            (left(1), []),
            (taken(0, 1), []),
            *pushed(0, 1, 0, [apply_one(2, 0, 1), release(0, 2, 2)]),
            *pushed(0, 2, 2, [apply_one(3, 0, 2), release(0, 3, 3)]),
        ],
    )


def test_what_was_never_measured_allows_nothing() -> None:
    """All takes no time here, so that the guard allows whatever it knows of: not while a newcomer is unknown."""
    check(
        begun(2),
        [
            *pushed(0, 0, 0, [hold(0)]),
            *pushed(1, 0, 0, [held(1, 1, 0), halves(1, 0, 0), release(0, 1, 1), pull(1, 1)]),
            (taken(0, 1), []),
            (taken(1, 1), []),
            *pushed(1, 1, 0, [held(1, 2, 1)]),
            (joined(2), [release(2, 0, 1)]),
            *pushed(0, 1, 1, [hold(0)]),
        ],
    )


@pytest.mark.parametrize(("others", "allowed"), [(0.4, False), (1.79, False), (1.8, True), (1.81, True), (5.0, True)])
def test_the_guard_allows_who_is_done_when_the_version_comes(others: float, allowed: bool) -> None:
    """Worker 0 computes for 1 s. Its wait: 0.2 s for a broadcast, after what worker 1 computes longer (or a push)."""
    world = Timed.of("hsp:idle=guarded,stale=next,broadcast=all", [1.0, others], transfer=0.1).play(rounds=6)
    ahead = [one for one in world.releases if one.worker == 0 and one.parameters == "held"]
    assert bool(ahead) == allowed
    if allowed:
        assert ahead[0] == held(0, 2, 1)  # worker 1 had to be known first


def timed(worker: int, step: int, version: int, at: float, orders: list[Order]) -> list[Row]:
    """As `pushed`, in a push that takes no time."""
    return [(ready(worker, step, version, at=at), [push(worker, step)]), (arrived(worker, step, at=at), orders)]


def measured(first: float, second: float) -> Machine:
    """Worker 0 has computed for so many seconds, worker 1 for so many, fewer; a broadcast took 10 s, a push none."""
    return run(
        Machine(Config(**PLAIN)),
        [
            (began(0, 1), [release(0, 0, 0), release(1, 0, 0)]),
            (taken(0, 0, at=10.0), []),
            (taken(1, 0, at=10.0), []),
            *timed(1, 0, 0, 10.0 + second, [hold(1)]),
            *timed(0, 0, 0, 10.0 + first, [halves(1, 0, 0), release(0, 1, 1), release(1, 1, 1)]),
        ],
    )


def test_durations_are_averaged_and_the_guard_counts_those_at_a_stale_gradient() -> None:
    """Worker 0 took 14 s, then 0.5 s: 10.625 s. It is allowed since worker 1 is at a stale gradient until second 52."""
    check(
        measured(14.0, 9.0),
        [
            (taken(0, 1, at=34.0), []),
            (taken(1, 1, at=34.0), []),
            *timed(1, 1, 1, 43.0, [held(1, 2, 1)]),
            *timed(0, 1, 1, 48.0, [halves(2, 1, 1), release(0, 2, 2), pull(1, 2)]),
            (taken(0, 2, at=48.5), []),
            *timed(0, 2, 2, 49.0, [held(0, 3, 2)]),
        ],
    )


def test_the_guard_counts_the_pull_of_those_who_have_not_begun() -> None:
    """Worker 0 is at 19.75 s on average; worker 1 has not got its parameters, so that its 9 s begin after 10 more."""
    check(measured(26.0, 9.0), [(taken(0, 1, at=37.0), []), *timed(0, 1, 1, 38.0, [held(0, 2, 1)])])


def test_a_broadcast_lasts_until_the_last_one_has_the_version() -> None:
    """3 s: who computes for 2 s may do so meanwhile."""
    check(
        Machine(Config(**PLAIN)),
        [
            (began(0, 1), [release(0, 0, 0), release(1, 0, 0)]),
            (taken(0, 0, at=1.0), []),
            (taken(1, 0, at=3.0), []),
            *timed(0, 0, 0, 3.0, [hold(0)]),
            *timed(1, 0, 0, 5.0, [held(1, 1, 0), halves(1, 0, 0), release(0, 1, 1), pull(1, 1)]),
        ],
    )


def test_a_departed_unknown_stands_in_nobodys_way() -> None:
    check(
        begun(3),
        [
            *pushed(0, 0, 0, [hold(0)]),
            *pushed(1, 0, 0, [hold(1)]),
            (left(2), [halves(1, 0, 0), release(0, 1, 1), release(1, 1, 1)]),
            (taken(0, 1), []),
            (taken(1, 1), []),
            *pushed(0, 1, 1, [held(0, 2, 1)]),
        ],
    )


# What becomes of a stale gradient.


def test_accumulate_puts_the_stale_gradient_and_a_fresh_one_into_one_round() -> None:
    quarters = [(worker, step, 0.25) for worker in range(2) for step in (1, 2)]
    check(
        ahead(stale="accumulate"),
        [
            (ready(0, 1, 0), [push(0, 1)]),
            (taken(0, 1), [held(0, 2, 1)]),
            (taken(1, 1), []),
            (ready(1, 1, 0), [held(1, 2, 1)]),
            (arrived(0, 1), [push(1, 1)]),
            (ready(0, 2, 1), [hold(0)]),
            (arrived(1, 1), [push(0, 2)]),
            (arrived(0, 2), [held(0, 3, 1)]),
            *pushed(1, 2, 1, [held(1, 3, 1), apply(2, *quarters), pull(0, 2), pull(1, 2)]),
        ],
    )


def test_accumulate_weighs_both_by_their_samples() -> None:
    """Worker 1 leaves; of the four contributions that were to be, three come."""
    check(
        ahead(stale="accumulate"),
        [
            (ready(0, 1, 0, samples=10), [push(0, 1)]),
            (taken(0, 1), [held(0, 2, 1)]),
            (ready(1, 1, 0, samples=50), [hold(1)]),
            (arrived(0, 1), [push(1, 1)]),
            (arrived(1, 1), [hold(1)]),  # the version has not come to it
            (left(1), []),
            *pushed(0, 2, 1, [apply(2, (0, 1, 0.125), (0, 2, 0.25), (1, 1, 0.625)), release(0, 3, 2)], samples=20),
        ],
    )


def test_accumulate_lets_a_worker_decline_while_its_stale_gradient_waits() -> None:
    """That one is still to come, and the round waits for it."""
    check(
        ahead(stale="accumulate"),
        [
            (taken(0, 1), []),
            (taken(1, 1), []),
            (ready(0, 1, 0), [held(0, 2, 1), push(0, 1)]),
            (ready(1, 1, 0), [held(1, 2, 1)]),
            (declined(1, 2), []),
            (declined(0, 2), []),
            (arrived(0, 1), [push(1, 1)]),
            (arrived(1, 1), [halves(2, 1, 1)]),
        ],
    )


def test_accumulate_drops_what_a_departed_worker_had_kept() -> None:
    check(
        ahead(stale="accumulate"),
        [
            (taken(0, 1), []),
            (taken(1, 1), []),
            (ready(0, 1, 0), [held(0, 2, 1), push(0, 1)]),
            (ready(1, 1, 0), [held(1, 2, 1)]),
            (ready(1, 2, 1), [hold(1)]),
            (left(1), [returned(1, 1), returned(1, 2)]),
            (left(0), [returned(0, 1)]),
        ],
    )


def test_discard_drops_what_waits_when_the_version_has_come() -> None:
    check(
        ahead(stale="discard"),
        [
            (ready(0, 1, 0), [push(0, 1)]),
            (ready(1, 1, 0), [hold(1)]),
            (taken(1, 1), [returned(1, 1), held(1, 2, 1)]),
            (taken(0, 1), []),  # what is on its way is in the round
            (arrived(0, 1), [held(0, 2, 1)]),
            *pushed(1, 2, 1, [held(1, 3, 1), apply(2, (0, 1, 0.5), (1, 2, 0.5)), pull(0, 2), pull(1, 2)]),
        ],
    )


def test_discard_drops_a_gradient_that_is_ready_after_the_version_has_come() -> None:
    check(
        ahead(stale="discard"),
        [
            (taken(0, 1), []),
            (ready(0, 1, 0), [returned(0, 1), held(0, 2, 1)]),
            *pushed(0, 2, 1, [held(0, 3, 1)]),
        ],
    )


# How a version goes out.


def test_in_order_a_version_goes_to_one_after_the_other_as_their_gradients_came() -> None:
    check(
        begun(3, idle="none", broadcast="order"),
        [
            *pushed(2, 0, 0, [hold(2)]),
            *pushed(0, 0, 0, [hold(0)]),
            *pushed(
                1, 0, 0, [apply(1, (0, 0, THIRD), (1, 0, THIRD), (2, 0, THIRD)), hold(0), hold(1), release(2, 1, 1)]
            ),
            (taken(2, 1), [release(0, 1, 1)]),
            (left(0), [release(1, 1, 1)]),
            (taken(1, 1), []),
        ],
    )


def test_in_order_one_who_left_or_declined_is_passed_over() -> None:
    check(
        begun(3, idle="always", broadcast="order"),
        [
            *pushed(2, 0, 0, [held(2, 1, 0)]),
            *pushed(0, 0, 0, [held(0, 1, 0)]),
            *pushed(1, 0, 0, [held(1, 1, 0), apply(1, (0, 0, THIRD), (1, 0, THIRD), (2, 0, THIRD)), pull(2, 1)]),
            (declined(0, 1), []),
            (taken(2, 1), [pull(1, 1)]),
        ],
    )


def test_in_order_one_who_came_back_and_has_the_version_is_passed_over() -> None:
    check(
        begun(3, idle="none", broadcast="order"),
        [
            *pushed(0, 0, 0, [hold(0)]),
            *pushed(1, 0, 0, [hold(1)]),
            *pushed(
                2, 0, 0, [apply(1, (0, 0, THIRD), (1, 0, THIRD), (2, 0, THIRD)), hold(1), hold(2), release(0, 1, 1)]
            ),
            (left(2), []),
            (joined(2, step=1), [release(2, 1, 1)]),
            (taken(2, 1), []),
            (taken(0, 1), [release(1, 1, 1)]),
            (taken(1, 1), []),
        ],
    )


def test_in_order_the_next_version_waits_for_the_pull_that_is_on_its_way() -> None:
    """And whoever has not got the one before gets only the newest."""
    check(
        begun(2, idle="always", broadcast="order"),
        [
            *pushed(0, 0, 0, [held(0, 1, 0)]),
            *pushed(1, 0, 0, [held(1, 1, 0), halves(1, 0, 0), pull(0, 1)]),
            *pushed(1, 1, 0, [hold(1)]),
            *pushed(0, 1, 0, [halves(2, 1, 1), hold(1), hold(0)]),
            (taken(0, 1), [held(0, 2, 1), release(1, 2, 2)]),
            (taken(1, 2), [pull(0, 2)]),
        ],
    )


# Who comes and goes.


def test_a_joiner_enters_the_open_round_on_its_version_and_is_awaited() -> None:
    check(
        begun(1, idle="none"),
        [
            (ready(0, 0, 0), [push(0, 0)]),
            (joined(4), [release(4, 0, 0)]),
            (arrived(0, 0), [hold(0)]),
            *pushed(4, 0, 0, [apply(1, (0, 0, 0.5), (4, 0, 0.5)), release(0, 1, 1), release(4, 1, 1)]),
        ],
    )


def test_nobody_waits_for_who_left_or_declined() -> None:
    check(
        begun(3, idle="none"),
        [
            *pushed(0, 0, 0, [hold(0)]),
            (left(1), []),
            (declined(2, 0), [apply_one(1, 0, 0), release(0, 1, 1)]),
        ],
    )


def test_the_arrived_gradient_of_one_that_left_stays_in_its_round() -> None:
    check(
        begun(2, idle="always"),
        [
            *pushed(0, 0, 0, [held(0, 1, 0)]),
            (left(0), []),
            *pushed(1, 0, 0, [halves(1, 0, 0), release(1, 1, 1)]),
        ],
    )


def test_who_declines_ahead_of_its_round_is_not_awaited_in_it() -> None:
    check(
        ahead(),
        [
            (declined(0, 1), []),
            (taken(1, 1), []),
            *pushed(1, 1, 0, [apply_one(2, 1, 1), release(1, 2, 2)]),
        ],
    )


# What is said, and what is refused.


def test_a_hold_names_who_transfers_whom_a_round_waits_for_and_what_has_not_come() -> None:
    machine = begun(3, idle="none")
    check(machine, [(ready(1, 0, 0), [push(1, 0)])])
    assert reasons(machine, ready(0, 0, 0)) == ["worker 1 transfers the gradient of its step 0"]
    assert reasons(machine, arrived(1, 0))[0] == "version 1 waits for worker 0, 2"
    machine = ahead()
    check(machine, [(ready(0, 1, 0), [push(0, 1)])])
    assert reasons(machine, arrived(0, 1)) == ["version 1 has not reached it yet"]
    machine = begun(2, idle="always")
    check(machine, pushed(0, 0, 0, [held(0, 1, 0)]))
    assert reasons(machine, ready(0, 1, 0)) == ["its gradient is of the round after version 1, which is not made yet"]


def test_in_order_a_hold_names_who_gets_the_version_first() -> None:
    machine = begun(2, idle="none", broadcast="order")
    check(machine, [*pushed(1, 0, 0, [hold(1)]), (ready(0, 0, 0), [push(0, 0)])])
    assert reasons(machine, arrived(0, 0))[1:] == ["version 1 goes to worker 1 first", "version 1 goes to all workers"]


def test_a_release_ahead_says_why() -> None:
    machine = run(begun(2), [*pushed(0, 0, 0, [hold(0)]), (ready(1, 0, 0), [push(1, 0)])])
    assert reasons(machine, arrived(1, 0))[0] == (
        "version 1 is predicted to come in 0 s, and its gradient to be computed in 0 s"
    )


@pytest.mark.parametrize("name", ["order", "idle", "stale", "broadcast"])
def test_a_parameter_is_one_of_its_words(name: str) -> None:
    with pytest.raises(ConfigError, match=f'hsp: {name} is "some"; it must be one of '):
        Config(**{name: "some"})  # type: ignore[arg-type]


# Random histories.

VARIANTS = [
    f"hsp:idle={idle},stale={stale},broadcast={broadcast},order={order}"
    for idle, stale in (("guarded", "next"), ("always", "next"), ("always", "accumulate"), ("always", "discard"))
    for broadcast in ("all", "order")
    for order in ("ready", "rank")
]


@pytest.mark.parametrize("order", ["ready", "rank"])
def test_without_idle_computing_versions_and_releases_are_bsps(order: str) -> None:
    """So the weights are, too, bit for bit. What it orders besides are the turns of the transfers."""

    def but_turns(orders: tuple[Order, ...]) -> list[Order]:
        return [one for one in orders if isinstance(one, ApplyUpdate | Release | DropUpdate)]

    for seed in range(100):
        bsp = choose("bsp", registry()).machine()
        for fact, orders in history(choose(f"hsp:idle=none,broadcast=all,order={order}", registry()), seed):
            assert but_turns(bsp.handle(fact)) == but_turns(orders), f"history {seed}: {fact}"


@pytest.mark.parametrize("text", VARIANTS)
def test_in_any_history_one_transfer_at_a_time_and_one_gradient_of_age_0_or_1_each(text: str) -> None:
    stale = 0
    for seed in range(60):
        on_the_way: set[tuple[int, int]] = set()
        versions: dict[tuple[int, int], int] = {}
        for fact, orders in history(choose(text, registry()), seed):
            if isinstance(fact, UpdateArrived):
                on_the_way.remove((fact.worker, fact.step))
            on_the_way = {(worker, step) for worker, step in on_the_way if not has_left(fact, worker)}
            for order in orders:
                if isinstance(order, StartPush):
                    on_the_way.add((order.worker, order.step))
                elif isinstance(order, Release):
                    versions[order.worker, order.step] = order.version
                elif isinstance(order, ApplyUpdate):
                    ages = [
                        (worker, order.version - 1 - versions[worker, step]) for worker, step, _ in order.contributions
                    ]
                    assert {age for _, age in ages} <= {0, 1}
                    stale += sum(age for _, age in ages)
            assert len(on_the_way) <= 1
    assert stale > 20


def has_left(fact: Fact, worker: int) -> bool:
    return isinstance(fact, WorkerLeft) and fact.worker == worker


@pytest.mark.parametrize("stale", ["next", "accumulate", "discard"])
@pytest.mark.parametrize("broadcast", ["all", "order"])
def test_two_workers_come_to_their_end_in_every_order_of_events(stale: str, broadcast: str) -> None:
    assert walk(choose(f"hsp:idle=always,stale={stale},broadcast={broadcast}", registry()), 2, 4, pulls=True) > 100


# Times.

SIZE = 1_000_000  # bytes of a transfer; what it takes is the link's bandwidth


@dataclass
class Timed:
    """A machine among workers that compute for known times, with a link that all transfers share."""

    machine: AnyMachine
    compute: list[float]
    link: SharedLink
    coming: list[tuple[float, int, Fact]] = field(default_factory=list)
    """A heap of (second, worker, gradient)."""
    pulled_for: dict[int, Release] = field(default_factory=dict)
    """Steps that begin when their parameters have come."""
    pushing: dict[int, int] = field(default_factory=dict)
    releases: list[Release] = field(default_factory=list)
    made: list[float] = field(default_factory=list)
    """When each version was ordered."""
    stale: list[float] = field(default_factory=list)
    """The share of stale gradients in each version."""
    versions: dict[int, int] = field(default_factory=dict)
    """What is on its way to each worker, or was last."""
    pushes: int = 0
    """The most that were on their way at once."""

    @classmethod
    def of(cls, text: str, compute: list[float], transfer: float, incast: float = 1.0) -> Timed:
        return cls(choose(text, registry()).machine(), compute, SharedLink(SIZE / transfer, 0.0, incast))

    def play(self, rounds: int) -> Timed:
        self.obey(self.machine.handle(began(*range(len(self.compute)))), 0.0)
        for fact in self.facts():
            self.obey(self.machine.handle(fact), fact.at)
            self.pushes = max(self.pushes, len(self.pushing))
            if len(self.made) >= rounds:
                break
        return self

    def facts(self) -> Iterator[Fact]:
        while True:
            end = self.link.next_end()
            if end is None or (self.coming and self.coming[0][0] < end):
                yield heappop(self.coming)[2]
                continue
            ended = self.link.finish(end)
            assert ended is not None
            worker, at = ended.worker, ended.ended
            if ended.direction == "push":
                yield UpdateArrived(worker=worker, step=self.pushing.pop(worker), at=at)
                continue
            if worker in self.pulled_for:
                self.begin(self.pulled_for.pop(worker), at)
            yield ParametersTaken(worker=worker, version=self.versions[worker], at=at)

    def obey(self, orders: tuple[Order, ...], at: float) -> None:
        for order in orders:
            match order:
                case Release(worker=worker, parameters=parameters):
                    self.releases.append(order)
                    if parameters == "pull":
                        self.pulled_for[worker] = order
                        self.pull(worker, order.version, at)
                    else:
                        self.begin(order, at)
                case StartPull(worker=worker, version=version):
                    self.pull(worker, version, at)
                case StartPush(worker=worker, step=step):
                    self.pushing[worker] = step
                    self.link.begin(worker, "push", SIZE, at)
                case ApplyUpdate(version=version, contributions=parts):
                    on = {(one.worker, one.step): one.version for one in self.releases[-5 * len(self.compute) :]}
                    old = [on[worker, step] < version - 1 for worker, step, _ in parts]
                    self.made.append(at)
                    self.stale.append(sum(old) / len(old))

    def pull(self, worker: int, version: int, at: float) -> None:
        self.versions[worker] = version
        self.link.begin(worker, "pull", SIZE, at)

    def begin(self, order: Release, at: float) -> None:
        done = at + self.compute[order.worker]
        fact = GradientReady(worker=order.worker, step=order.step, version=order.version, samples=1, at=done)
        heappush(self.coming, (done, order.worker, fact))

    def period(self) -> float:
        """Seconds for a round, over the last twenty: an even number, since two may alternate."""
        return (self.made[-1] - self.made[-21]) / 20

    def stale_share(self) -> float:
        return sum(self.stale[-20:]) / 20


MODEL = [  # workers, compute, transfer; periods of bsp, bsp at incast 0.6, hsp guarded and its stale share, hsp always
    (4, 0.4, 0.05, 0.800, 0.933, 0.800, 0.0, 0.450),
    (4, 0.4, 0.10, 1.200, 1.467, 0.600, 1.0, 0.600),
    (8, 0.8, 0.10, 2.400, 2.933, 1.199, 1.0, 1.199),
]


@pytest.mark.parametrize(("n", "compute", "transfer", "bsp", "incast", "guarded", "share", "always"), MODEL)
def test_periods_and_stale_shares_are_the_models(
    n: int,
    compute: float,
    transfer: float,
    bsp: float,
    incast: float,
    guarded: float,
    share: float,
    always: float,
) -> None:
    """With equal workers the guard allows all or nothing: it does from the point on at which a tie is reached."""

    def played(text: str, factor: float = 1.0) -> Timed:
        return Timed.of(text, [compute] * n, transfer, factor).play(rounds=41)

    assert played("bsp").period() == pytest.approx(bsp, abs=1e-3)
    assert played("bsp", 0.6).period() == pytest.approx(incast, abs=1e-3)
    for text, period, old in (("idle=none", bsp, 0.0), ("idle=guarded", guarded, share), ("idle=always", always, 1.0)):
        world = played(f"hsp:{text},stale=next,broadcast=all", 0.6)  # one push at a time loses nothing
        assert world.period() == pytest.approx(period, abs=2e-3), text
        assert world.stale_share() == old, text
        assert world.pushes == 1, text


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("compute", [0.1, 0.2, 0.8, 1.6])
def test_two_rounds_computed_ahead_take_one_computation_and_2_n_transfers_if_nothing_else_bounds_them(
    n: int, compute: float
) -> None:
    """A worker's own cycle does, and the link."""
    transfer = 0.1
    world = Timed.of("hsp:idle=always,stale=next,broadcast=all", [compute] * n, transfer).play(rounds=41)
    bound = max(compute + transfer, n * transfer, (compute + 2 * n * transfer) / 2)
    assert world.period() == pytest.approx(bound, abs=1e-6)


@pytest.mark.parametrize(("n", "compute", "transfer"), [(4, 0.4, 0.05), (4, 0.4, 0.1), (8, 0.8, 0.1), (4, 0.1, 0.1)])
def test_a_broadcast_in_order_is_a_pipeline_without_idle_computing(n: int, compute: float, transfer: float) -> None:
    """A round takes a computation and n + 1 transfers, instead of 2 n of them."""
    world = Timed.of("hsp:idle=none,broadcast=order", [compute] * n, transfer).play(rounds=41)
    assert world.period() == pytest.approx(compute + (n + 1) * transfer, abs=1e-6)
