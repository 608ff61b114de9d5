"""ASP's rules, one test each."""

from __future__ import annotations

from paceline.protocols.asp import Config, Machine
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


def asp() -> Machine:
    return Machine(Config())


def begun(workers: int, version: int = 0) -> Machine:
    return run(
        asp(),
        [(began(*range(workers), version=version), [release(worker, 0, version) for worker in range(workers)])],
    )


def test_a_release_names_the_update_that_made_its_version() -> None:
    machine = begun(1)
    check(machine, [(ready(0, 0, 0), [push(0, 0)])])
    assert reasons(machine, arrived(0, 0)) == ["step 0 of worker 0 was applied on arrival"] * 2
