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
    arrived,
    averaged,
    began,
    check,
    hold,
    left,
    own,
    paused,
    push,
    ready,
    reasons,
    release,
    resumed,
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


def test_it_is_said_what_a_worker_that_has_resumed_under_ps_plus_waits_for() -> None:
    machine = begun("ps-plus", 1)
    for fact in (taken(0, 0), ready(0, 0, 0), paused(0, 1)):
        machine.handle(fact)
    assert reasons(machine, resumed(0)) == ["its step 0 is still on its way to the store, and its pull follows that"]


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


def test_under_all_reduce_a_worker_keeps_its_replica_if_the_source_of_its_copy_dies() -> None:
    machine = begun("all-reduce", 2)
    for fact in (paused(0, 0), ready(1, 0, 0), resumed(0)):
        machine.handle(fact)
    orders = machine.handle(left(1))
    assert orders[-1] == own(0, 1, 0)
    assert reasons(machine, paused(0, 1)) == []
    assert reasons(machine, resumed(0)) == ["worker 0 goes on from its own replica"]
