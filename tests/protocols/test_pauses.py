"""A worker that pauses: what goes on without it, and how each family takes it up again as it resumes."""

from __future__ import annotations

import pytest

from paceline.core.choice import choose
from paceline.core.facts import Fact
from paceline.core.machine import Machine
from paceline.core.orders import Order, Reduce, Release
from paceline.protocols import registry
from support.tables import (
    apply,
    apply_one,
    arrived,
    average,
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
    paused,
    pull,
    push,
    pushed,
    ready,
    reasons,
    release,
    resumed,
    stepped,
    taken,
)


def begun(text: str, workers: int) -> Machine:
    machine = choose(text, registry()).machine()
    machine.handle(began(*range(workers), work=100 * workers))
    return machine


def halves(version: int, *steps: int) -> Order:
    return apply(version, *((worker, step, 1 / len(steps)) for worker, step in enumerate(steps)))


@pytest.mark.parametrize("name", registry())
def test_when_all_have_paused_and_all_resume_each_is_released_for_its_next_step(name: str) -> None:
    machine = choose(name, registry()).machine()
    orders = list(machine.handle(began(*range(4))))
    for worker in range(4):
        orders += machine.handle(paused(worker, 0))
    groups = [order.group for order in orders if isinstance(order, Reduce)]
    orders = [order for worker in (2, 0, 3, 1) for order in machine.handle(resumed(worker))]
    orders += [order for group in groups for order in machine.handle(averaged(group))]
    released = [(order.worker, order.step) for order in orders if isinstance(order, Release)]
    assert sorted(released) == [(worker, 1) for worker in range(4)]


# With a parameter server.


@pytest.mark.parametrize("name", ["asp", "bsp", "ssp", "dssp", "ps-plus", "hsp"])
def test_it_is_said_which_version_a_worker_goes_on_at(name: str) -> None:
    machine = begun(name, 2)
    machine.handle(paused(1, 0))
    assert reasons(machine, resumed(1)) == ["worker 1 goes on at version 0"]


def test_a_round_of_bsp_closes_without_the_paused_worker_which_enters_the_open_one_as_it_resumes() -> None:
    check(
        begun("bsp", 2),
        [
            (paused(1, 0), []),
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)]),
            *pushed(0, 1, 1, [apply_one(2, 0, 1), release(0, 2, 2)]),
            (resumed(1), [release(1, 1, 2)]),
            *pushed(0, 2, 2, [hold(0)]),
            *pushed(1, 1, 2, [halves(3, 2, 1), release(0, 3, 3), release(1, 2, 3)]),
        ],
    )


def test_under_ssp_the_count_of_a_paused_worker_holds_nobody_and_it_counts_from_the_slowest_as_it_resumes() -> None:
    check(
        begun("ssp:bound=0", 3),
        [
            *pushed(0, 0, 0, [apply_one(1, 0, 0), hold(0)]),
            *pushed(1, 0, 0, [apply_one(2, 1, 0), hold(1)]),
            (paused(2, 0), [release(0, 1, 2), release(1, 1, 2)]),
            *pushed(0, 1, 2, [apply_one(3, 0, 1), hold(0)]),
            (resumed(2), [release(2, 1, 3)]),
            *pushed(1, 1, 2, [apply_one(4, 1, 1), hold(1)]),
            *pushed(2, 1, 3, [apply_one(5, 2, 1), release(2, 2, 5), release(0, 2, 5), release(1, 2, 5)]),
        ],
    )


def test_under_ps_plus_a_worker_goes_on_once_its_push_and_the_pull_for_a_later_step_are_through() -> None:
    machine = begun("ps-plus", 2)
    check(
        machine,
        [
            (taken(0, 0), []),
            (ready(0, 0, 0), [push(0, 0), release(0, 1, 0, "eager")]),
            (taken(1, 0), []),
            (ready(1, 0, 0), [push(1, 0), release(1, 1, 0, "eager")]),
            (arrived(1, 0), [apply(1, (1, 0, 0.5)), pull(0, 1), pull(1, 1)]),
            (paused(0, 1), []),
            (resumed(0), [hold(0)]),
            (taken(0, 1), []),
            (arrived(0, 0), [apply(2, (0, 0, 0.5)), release(0, 2, 2)]),
        ],
    )


def test_it_is_said_what_a_worker_that_has_resumed_under_ps_plus_waits_for() -> None:
    machine = begun("ps-plus", 1)
    for fact in (taken(0, 0), ready(0, 0, 0), paused(0, 1)):
        machine.handle(fact)
    assert reasons(machine, resumed(0)) == ["its step 0 is still on its way to the store, and its pull follows that"]


def test_under_hsp_a_worker_that_paused_ahead_of_its_round_is_idle_in_the_open_one_as_it_resumes() -> None:
    """It has its gradient there already. A second one, and a third ahead of the next round, would find no push area."""
    check(
        begun("hsp:idle=always,stale=next,broadcast=all", 2),
        [
            *pushed(0, 0, 0, [release(0, 1, 0, "held")]),
            (paused(0, 1), []),
            (resumed(0), [release(0, 2, 0, "held")]),
            (paused(0, 2), []),
            (resumed(0), [release(0, 3, 0, "held")]),
            *pushed(1, 0, 0, [release(1, 1, 0, "held"), halves(1, 0, 0), pull(0, 1), pull(1, 1)]),
        ],
    )


def test_under_hsp_a_worker_that_has_resumed_waits_for_the_version_that_is_on_its_way_to_it() -> None:
    check(
        begun("hsp:idle=always,stale=next,broadcast=all", 2),
        [
            *pushed(0, 0, 0, [release(0, 1, 0, "held")]),
            *pushed(1, 0, 0, [release(1, 1, 0, "held"), halves(1, 0, 0), pull(0, 1), pull(1, 1)]),
            (paused(0, 1), []),
            (resumed(0), [hold(0)]),
            (taken(0, 1), [release(0, 2, 1)]),
        ],
    )


# Sync-Switch.


def test_a_worker_that_resumes_as_a_phase_ends_begins_with_the_next_one() -> None:
    machine = begun("sync-switch:first=asp,then=bsp,switch_at=0.01,rescale=none", 3)
    orders: list[Order] = []
    facts: list[Fact] = [paused(2, 0), ready(0, 0, 0), ready(1, 0, 0), arrived(0, 0), resumed(2), arrived(1, 0)]
    for fact in facts:
        orders += machine.handle(fact)
    assert orders[-3:] == [release(0, 1, 2), release(1, 1, 2), release(2, 1, 2)]
    assert hold(2) in orders


def test_a_worker_that_paused_before_a_switch_joins_the_next_part_with_its_next_step() -> None:
    machine = begun("sync-switch:first=bsp,then=asp,switch_at=0.01", 2)
    for fact in (paused(1, 0), ready(0, 0, 0), arrived(0, 0)):
        machine.handle(fact)
    assert machine.active == "then"  # type: ignore[attr-defined]
    check(machine, [(resumed(1), [release(1, 1, 1)]), (ready(1, 1, 1), [push(1, 1)])])


# With replicas.


def test_under_all_reduce_a_worker_that_missed_a_round_copies_a_replica_before_its_next_step() -> None:
    check(
        begun("all-reduce", 3),
        [
            (paused(2, 0), []),
            (ready(0, 0, 0), [hold(0)]),
            (ready(1, 0, 0), [mean(0, (0, 0, 0.5), (1, 0, 0.5))]),
            (averaged(0), [stepped(0, 0, 1, 0), stepped(1, 0, 1, 0), own(0, 1, 1), own(1, 1, 1)]),
            (resumed(2), [copy(0, 2)]),
            (ready(0, 1, 1), [hold(0)]),
            (ready(1, 1, 1), [hold(1)]),
            (copied(0, 2), [own(2, 1, 1)]),
            (ready(2, 1, 1), [mean(1, *((worker, 1, 1 / 3) for worker in range(3)))]),
        ],
    )


def test_under_all_reduce_a_worker_that_missed_no_round_enters_the_open_one_at_once() -> None:
    check(begun("all-reduce", 2), [(paused(1, 0), []), (resumed(1), [own(1, 1, 0)]), (ready(0, 0, 0), [hold(0)])])


def test_under_all_reduce_a_worker_that_resumes_while_a_mean_is_made_waits_for_the_next_round() -> None:
    check(
        begun("all-reduce", 3),
        [
            (paused(2, 0), []),
            (ready(0, 0, 0), [hold(0)]),
            (ready(1, 0, 0), [mean(0, (0, 0, 0.5), (1, 0, 0.5))]),
            (resumed(2), [hold(2)]),
            (averaged(0), [stepped(0, 0, 1, 0), stepped(1, 0, 1, 0), own(0, 1, 1), own(1, 1, 1), copy(0, 2)]),
        ],
    )


def test_under_all_reduce_the_most_changed_replica_is_copied_though_its_worker_has_declined() -> None:
    check(
        begun("all-reduce", 2),
        [
            (paused(0, 0), []),
            (ready(1, 0, 0), [stepped(1, 0, 1), own(1, 1, 1)]),
            (declined(1, 1), []),
            (resumed(0), [copy(1, 0)]),
            (copied(1, 0), [own(0, 1, 1)]),
        ],
    )


def test_under_all_reduce_a_worker_keeps_its_replica_if_the_source_of_its_copy_dies() -> None:
    machine = begun("all-reduce", 2)
    for fact in (paused(0, 0), ready(1, 0, 0), resumed(0)):
        machine.handle(fact)
    orders = machine.handle(left(1))
    assert orders[-1] == own(0, 1, 0)
    assert reasons(machine, paused(0, 1)) == []
    assert reasons(machine, resumed(0)) == ["worker 0 goes on from its own replica"]


def test_a_joiner_without_a_replica_copies_that_of_a_worker_that_has_resumed() -> None:
    check(
        begun("all-reduce", 1),
        [(paused(0, 0), []), (resumed(0), [own(0, 1, 0)]), (joined(1), [copy(0, 1)])],
    )


def test_under_ad_psgd_a_worker_goes_on_from_its_own_replica_once_the_exchange_it_was_in_is_over() -> None:
    machine = choose("ad-psgd", registry()).machine()
    check(
        machine,
        [
            (began(0, 1), [own(0, 0, 0), own(1, 0, 0), average(0, 0, 1)]),
            (paused(1, 0), []),
            (resumed(1), [hold(1)]),
            (averaged(0), [own(1, 1, 1)]),
            (ready(0, 0, 0), [stepped(0, 0, 2), own(0, 1, 2), average(1, 0, 1)]),
        ],
    )


def test_under_ripples_a_worker_that_has_resumed_is_in_groups_again() -> None:
    check(
        begun("ripples:threshold=none", 2),
        [
            (paused(1, 0), []),
            (ready(0, 0, 0), [stepped(0, 0, 1), own(0, 1, 1)]),
            (resumed(1), [own(1, 1, 0)]),
            (ready(0, 1, 1), [stepped(0, 1, 2), hold(0)]),
            (ready(1, 1, 0), [stepped(1, 1, 1), average(0, 0, 1)]),
        ],
    )
