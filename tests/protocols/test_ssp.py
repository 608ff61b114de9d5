"""SSP's rules, one test each. The lead that counts is the one after the arrival: held above the bound, not at it."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.protocols.ssp import Config, Machine
from support.tables import (
    Row,
    apply_one,
    arrived,
    began,
    check,
    hold,
    push,
    pushed,
    ready,
    reasons,
    release,
    run,
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


def test_a_hold_says_the_lead_the_bound_and_who_is_slowest() -> None:
    machine = begun(3, 0)
    check(machine, [(ready(0, 0, 0), [push(0, 0)])])
    assert reasons(machine, arrived(0, 0)) == [
        "step 0 of worker 0 was applied on arrival",
        "its lead is 1, the bound 0: it waits for workers 1, 2",
    ]


def test_the_bound_is_0_or_more() -> None:
    with pytest.raises(ConfigError, match="bound is -1 steps; it must be 0 or more"):
        Config(bound=-1)
