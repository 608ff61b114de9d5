"""Facts and orders in short, as tests write them."""

from __future__ import annotations

from typing import Any, Literal

from paceline.core.facts import (
    AlarmRang,
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
from paceline.core.orders import (
    Reduce,
    Release,
    StartPush,
)


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


def revoked(worker: int, step: int, at: float = 0.0) -> StepDeclined:
    return StepDeclined(worker=worker, step=step, at=at, paused=True, revoked=True)


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


def rang(number: int, at: float = 0.0) -> AlarmRang:
    return AlarmRang(number=number, at=at)


def release(worker: int, step: int, version: int, parameters: Literal["pull", "held", "eager"] = "pull") -> Release:
    return Release(worker=worker, step=step, version=version, parameters=parameters)


def average(group: int, *members: int) -> Reduce:
    """Of replicas."""
    return Reduce(group=group, members=members, what="parameters")


def push(worker: int, step: int, scale: float = 1.0) -> StartPush:
    return StartPush(worker=worker, step=step, scale=scale)
