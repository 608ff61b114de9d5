"""Which worker waited for which: every wait that a protocol ordered, and the fact that ended it.

Both classes take a run as it comes, and keep only what is outstanding.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from paceline.core.facts import Fact, GradientReady, TrainingBegan, WorkerLeft
from paceline.core.orders import Hold, Order, Reduce, Release, StartPush, StepReplica, Why

LEAST = 1000
"""How many waits, or steps, are kept before those that no longer matter are forgotten. Looking costs time, too."""


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
    why: Why
    """The protocol's reason."""
    cause: int | None
    """The row in the ledger's `facts` that ended it; None if it had not ended by the last fact, or by the last one
    before the run was interrupted."""
    fact: Fact | None = None
    """That row's fact."""

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


class Waits:
    """Finds every wait of a run, in the order in which they end.

    A wait begins with `Hold`. It ends with the next order that lets its worker go on (`Release`, `StartPush`,
    `StepReplica`, or a `Reduce` that it is in), when it leaves, or where it is given a reason of another kind, which
    is a wait of its own; the same kind with other arguments goes on as one wait, with the last of them as its reason.
    One that began and ended at the same moment is none. Where a run was interrupted and resumed, all waits have ended
    with the last fact before that.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, _Open] = {}
        """By worker."""
        self._finished: dict[int, int] = {}
        self._number = 0
        self._at = 0.0

    def record(self, fact: Fact, orders: Iterable[Order]) -> list[Wait]:
        """Take the next fact, and the orders that followed from it. Return the waits that have ended."""
        ended = self.rest() if isinstance(fact, TrainingBegan) else []
        self._number += 1
        self._at = fact.at
        match fact:
            case GradientReady(worker=worker, step=step):
                self._finished[worker] = step
            case WorkerLeft(worker=worker):
                self._end(worker, fact, ended)
        for order in orders:
            match order:
                case Hold(worker=worker, why=why):
                    if worker in self.waiting and self.waiting[worker].why[0] == why[0]:
                        self.waiting[worker].why = why
                    else:
                        self._end(worker, fact, ended)
                        self.waiting[worker] = _Open(self._finished.get(worker, -1), fact.at, why)
                case Release(worker=worker) | StartPush(worker=worker) | StepReplica(worker=worker):
                    self._end(worker, fact, ended)
                case Reduce(members=members):
                    for worker in members:
                        self._end(worker, fact, ended)
        return ended

    def rest(self) -> list[Wait]:
        """Return the waits that had not ended by the last fact."""
        ended: list[Wait] = []
        for worker in list(self.waiting):
            self._end(worker, None, ended)
        return ended

    def _end(self, worker: int, fact: Fact | None, ended: list[Wait]) -> None:
        wait = self.waiting.pop(worker, None)
        if wait is None or self._at <= wait.began:
            return
        other = getattr(fact, "worker", None)
        ended.append(
            Wait(
                worker=worker,
                step=wait.step,
                began=wait.began,
                ended=self._at,
                awaited=None if other == worker else other,
                why=wait.why,
                cause=None if fact is None else self._number,
                fact=fact,
            )
        )


def waits(history: Iterable[tuple[Fact, tuple[Order, ...]]]) -> Iterator[Wait]:
    """Yield every wait of a whole run, in the order in which they ended."""
    found = Waits()
    for fact, orders in history:
        yield from found.record(fact, orders)
    yield from found.rest()


class Blame:
    """Tells the workers that each wait was due to.

    While the awaited worker waited for another one itself, that one is to blame. A wait for no other worker is due to
    nobody. So a wait can be judged when each of these has ended, too. O(n log n), but for long chains.
    """

    def __init__(self, found: Waits) -> None:
        self._found = found
        self._own: dict[int, list[Wait]] = {}
        """By worker: those waits that one which has not been judged may overlap."""
        self._unjudged: deque[Wait] = deque()
        self._kept = 0
        self._most = LEAST

    def judge(self, ended: Iterable[Wait]) -> Iterator[tuple[Wait, dict[int, float]]]:
        """Take the waits that have ended. Yield those that can be judged, in order: seconds, by the worker to blame."""
        for wait in ended:
            self._own.setdefault(wait.worker, []).append(wait)
            self._unjudged.append(wait)
            self._kept += 1
        while self._unjudged:
            due = self._due(self._unjudged[0])
            if due is None:
                break
            yield self._unjudged.popleft(), due
        if self._kept > self._most:
            self._forget()

    def horizon(self) -> float:
        """Return the moment before which nothing matters to the waits that are not judged yet."""
        since = (wait.began for waits in (self._found.waiting.values(), self._unjudged) for wait in waits)
        return min(since, default=inf)

    def _due(self, wait: Wait) -> dict[int, float] | None:
        """None: it is not known yet."""
        parts: dict[int, float] = {}
        if wait.awaited is not None:
            for worker, seconds in self._parts(wait.awaited, wait.began, wait.ended, (wait.worker,)):
                if worker is None:
                    return None
                parts[worker] = parts.get(worker, 0.0) + seconds
        return {worker: seconds for worker, seconds in parts.items() if seconds > 0}

    def _parts(
        self, awaited: int, began: float, ended: float, before: tuple[int, ...]
    ) -> Iterator[tuple[int | None, float]]:
        """Yield (worker, seconds). None stands for a worker that is not known yet."""
        if awaited in self._found.waiting and self._found.waiting[awaited].began < ended:
            yield None, 0.0
            return
        rest = ended - began
        its = self._own.get(awaited, ())
        at = bisect_right(its, began, key=lambda wait: wait.ended)  # they don't overlap
        while at < len(its) and its[at].began < ended:
            wait, at = its[at], at + 1
            if wait.awaited is None or wait.awaited in (*before, awaited):
                continue
            since, until = max(began, wait.began), min(ended, wait.ended)
            rest -= until - since
            yield from self._parts(wait.awaited, since, until, (*before, awaited))
        yield awaited, rest

    def _forget(self) -> None:
        horizon = self.horizon()
        for its in self._own.values():
            del its[: bisect_right(its, horizon, key=lambda wait: wait.ended)]
        self._kept = sum(map(len, self._own.values()))
        self._most = max(LEAST, 2 * self._kept)
