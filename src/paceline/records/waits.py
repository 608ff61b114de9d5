"""Which worker waited for which: every wait that a protocol ordered, and the fact that ended it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.core.facts import Fact, GradientReady, TrainingBegan, WorkerJoined, WorkerLeft
from paceline.core.orders import Hold, Order, Reduce, Release, StartPush, StepReplica, Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One worker was told to wait, until it was told to go on. What it then did itself is no wait."""

    worker: int
    step: int
    """The step that it waited after: the last one whose gradient it had computed, or -1."""
    began: float
    ended: float
    """In seconds since the run's start."""
    awaited: int | None
    """The worker whose fact ended it; None if it was its own transfer, a group's average, or nothing."""
    why: str
    """The protocol's reason, in a sentence."""
    cause: int | None
    """The row in the ledger's `facts` that ended it; None if it had not ended by the last fact."""

    @property
    def seconds(self) -> float:
        """The length of the wait."""
        return self.ended - self.began


@dataclass(slots=True)
class _Open:
    """A wait that has not ended."""

    step: int
    began: float
    why: Why


def waits(history: Iterable[tuple[Fact, tuple[Order, ...]]], sentence: Callable[[Why], str]) -> list[Wait]:
    """Return every wait, in the order in which they ended. `sentence` writes a reason out (`Choice.sentence`).

    A wait begins with `Hold`. It ends with the next order that lets its worker go on (`Release`, `StartPush`,
    `StepReplica`, or a `Reduce` that it is in), when it leaves, or where it is given a reason of another kind, which
    is a wait of its own; the same kind with other arguments goes on as one wait, with the last of them as its reason.
    One that began and ended at the same moment is none.
    """
    found: list[Wait] = []
    waiting: dict[int, _Open] = {}
    finished: dict[int, int] = {}
    at = 0.0

    def end(worker: int, fact: Fact | None, cause: int | None) -> None:
        wait = waiting.pop(worker, None)
        if wait is None or at <= wait.began:
            return
        other = getattr(fact, "worker", None)
        found.append(
            Wait(
                worker=worker,
                step=wait.step,
                began=wait.began,
                ended=at,
                awaited=None if other == worker else other,
                why=sentence(wait.why),
                cause=cause,
            )
        )

    for number, (fact, orders) in enumerate(history, 1):
        at = fact.at
        match fact:
            case GradientReady(worker=worker, step=step):
                finished[worker] = step
            case TrainingBegan() | WorkerJoined():
                pass
            case WorkerLeft(worker=worker):
                end(worker, fact, number)
        for order in orders:
            match order:
                case Hold(worker=worker, why=why):
                    if worker in waiting and waiting[worker].why[0] == why[0]:
                        waiting[worker].why = why
                    else:
                        end(worker, fact, number)
                        waiting[worker] = _Open(finished.get(worker, -1), at, why)
                case Release(worker=worker) | StartPush(worker=worker) | StepReplica(worker=worker):
                    end(worker, fact, number)
                case Reduce(members=members):
                    for worker in members:
                        end(worker, fact, number)
    for worker in list(waiting):
        end(worker, None, None)
    return found


def blame(found: Sequence[Wait]) -> list[dict[int, float]]:
    """For each wait, return its seconds by the worker that they were due to.

    While the awaited worker waited for another one itself, that one is to blame. A wait for no other worker is due to
    nobody. O(n log n), but for long chains.
    """
    own: dict[int, list[Wait]] = {}
    for wait in found:
        own.setdefault(wait.worker, []).append(wait)
    blamed = []
    for wait in found:
        parts: dict[int, float] = {}
        if wait.awaited is not None:
            for worker, seconds in _parts(wait.awaited, wait.began, wait.ended, own, (wait.worker,)):
                parts[worker] = parts.get(worker, 0.0) + seconds
        blamed.append({worker: seconds for worker, seconds in parts.items() if seconds > 0})
    return blamed


def _parts(
    awaited: int, began: float, ended: float, own: Mapping[int, Sequence[Wait]], before: tuple[int, ...]
) -> Iterator[tuple[int, float]]:
    rest = ended - began
    its = own.get(awaited, ())
    at = bisect_right(its, began, key=lambda wait: wait.ended)  # they don't overlap
    while at < len(its) and its[at].began < ended:
        wait, at = its[at], at + 1
        if wait.awaited is None or wait.awaited in (*before, awaited):
            continue
        since, until = max(began, wait.began), min(ended, wait.ended)
        rest -= until - since
        yield from _parts(wait.awaited, since, until, own, (*before, awaited))
    yield awaited, rest
