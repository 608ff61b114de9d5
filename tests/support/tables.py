"""Tests that read as tables: a row is one fact and the orders that it must cause.

check(machine, [
    (began(0, 1), [release(0, 0, 0), release(1, 0, 0)]),
    (ready(0, 0, 0), [push(0, 0)]),
])
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import pytest

from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
    WorkerResumed,
)
from paceline.core.machine import Machine
from paceline.core.orders import (
    ApplyUpdate,
    Hold,
    Order,
    Reduce,
    Release,
    StartPush,
    StepReplica,
)
from paceline.errors import ProtocolViolation
from support.plain_state import to_plain

Row = tuple[Fact, Any]


def check(machine: Machine, rows: Iterable[Row]) -> None:
    """Hand the facts to the machine, row by row; fail with the first row that goes otherwise than written."""
    for number, (fact, wanted) in enumerate(rows, start=1):
        told = f"row {number}: {fact}\nwanted:\n{_lines(map(str, wanted))}\ngot:\n"
        try:
            got = machine.handle(fact)
        except ProtocolViolation as violation:
            pytest.fail(f"{told}  ProtocolViolation: {violation.rule}")
        if got != tuple(wanted):
            pytest.fail(told + _lines(f"{order}: {order.why}" for order in got))


def refuses(machine: Machine, fact: Fact) -> None:
    """Fail unless the fact raises ProtocolViolation and leaves the machine's state as it was."""
    before = to_plain(machine)
    try:
        got = machine.handle(fact)
    except ProtocolViolation as violation:
        if violation.fact is not fact:
            pytest.fail(f"{fact} was refused, but the violation names {violation.fact}")
    else:
        pytest.fail(f"{fact}\nwanted: a ProtocolViolation\ngot:\n{_lines(map(str, got))}")
    if to_plain(machine) != before:
        pytest.fail(f"{fact} was refused, but changed\n  {before}\nto\n  {to_plain(machine)}")


def run(machine: Machine, rows: Iterable[Row]) -> Machine:
    """The machine, after a table that it must follow."""
    check(machine, rows)
    return machine


def began(
    *workers: int,
    version: int = 0,
    steps: dict[int, int] | None = None,
    at: float = 0.0,
    work: int | None = 1000,
    done: int = 0,
    memory: Any = None,
) -> TrainingBegan:
    """These workers begin; at step 0, if `steps` does not say otherwise."""
    members = tuple((worker, "host", (steps or {}).get(worker, 0)) for worker in workers)
    return TrainingBegan(members=members, version=version, at=at, work=work, done=done, memory=memory)


def joined(worker: int, step: int = 0, at: float = 0.0) -> WorkerJoined:
    return WorkerJoined(worker=worker, host="host", step=step, at=at)


def left(worker: int, reason: str = "died", at: float = 0.0) -> WorkerLeft:
    return WorkerLeft(worker=worker, reason=reason, at=at)


def ready(worker: int, step: int, version: int, samples: int | None = 8, at: float = 0.0) -> GradientReady:
    return GradientReady(worker=worker, step=step, version=version, samples=samples, at=at)


def declined(worker: int, step: int, at: float = 0.0) -> StepDeclined:
    return StepDeclined(worker=worker, step=step, at=at)


def paused(worker: int, step: int, at: float = 0.0) -> StepDeclined:
    return StepDeclined(worker=worker, step=step, at=at, paused=True)


def resumed(worker: int, at: float = 0.0) -> WorkerResumed:
    return WorkerResumed(worker=worker, at=at)


def arrived(worker: int, step: int, at: float = 0.0) -> UpdateArrived:
    return UpdateArrived(worker=worker, step=step, at=at)


def taken(worker: int, version: int, at: float = 0.0) -> ParametersTaken:
    return ParametersTaken(worker=worker, version=version, at=at)


def averaged(group: int, at: float = 0.0) -> ReduceFinished:
    return ReduceFinished(group=group, at=at)


def failed(group: int, *lost: int, at: float = 0.0) -> ReduceFailed:
    return ReduceFailed(group=group, lost=lost, at=at)


def copied(source: int, worker: int, at: float = 0.0) -> ReplicaCopied:
    return ReplicaCopied(source=source, worker=worker, at=at)


def pushed(worker: int, step: int, version: int, orders: Iterable[Order], samples: int | None = 8) -> list[Row]:
    """Two rows: the gradient is ready and pushed at once; its arrival causes `orders`."""
    return [
        (ready(worker, step, version, samples), [push(worker, step)]),
        (arrived(worker, step), orders),
    ]


def release(worker: int, step: int, version: int, parameters: Literal["pull", "held", "eager"] = "pull") -> Release:
    return Release(worker=worker, step=step, version=version, parameters=parameters)


def own(worker: int, step: int, version: int) -> Release:
    """Released on its own replica."""
    return Release(worker=worker, step=step, version=version, parameters="own")


def stepped(worker: int, step: int, version: int, group: int | None = None) -> StepReplica:
    return StepReplica(worker=worker, step=step, version=version, group=group)


def average(group: int, *members: int) -> Reduce:
    """Of replicas."""
    return Reduce(group=group, members=members, what="parameters")


def hold(worker: int) -> Hold:
    return Hold(worker=worker)


def push(worker: int, step: int, scale: float = 1.0) -> StartPush:
    return StartPush(worker=worker, step=step, scale=scale)


def apply(version: int, *contributions: tuple[int, int, float]) -> ApplyUpdate:
    return ApplyUpdate(version=version, contributions=contributions)


def apply_one(version: int, worker: int, step: int) -> ApplyUpdate:
    """A version made of a single update."""
    return apply(version, (worker, step, 1.0))


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(f"  {part}" for part in parts) or "  nothing"
