"""BSP's rules, one test each."""

from __future__ import annotations

from paceline.protocols.bsp import Config, Machine
from support.tables import (
    arrived,
    began,
    check,
    push,
    ready,
    reasons,
    release,
    run,
)


def bsp() -> Machine:
    return Machine(Config())


def begun(workers: int, version: int = 0) -> Machine:
    return run(
        bsp(),
        [(began(*range(workers), version=version), [release(worker, 0, version) for worker in range(workers)])],
    )


def test_a_hold_says_which_version_waits_for_whom() -> None:
    machine = begun(3)
    check(machine, [(ready(0, 0, 0), [push(0, 0)])])
    assert reasons(machine, arrived(0, 0)) == ["version 1 waits for workers 1, 2"]


def test_a_hold_for_many_says_for_how_many() -> None:
    machine = begun(6)
    check(machine, [(ready(0, 0, 0), [push(0, 0)])])
    assert reasons(machine, arrived(0, 0)) == ["version 1 waits for 5 workers"]
