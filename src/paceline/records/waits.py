"""Every wait that a protocol ordered, the fact that ended it, and the workers to blame.

Both classes take a run as it comes, and keep only what may still matter.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from paceline.core.facts import Fact, GradientReady, TrainingBegan, WorkerLeft
from paceline.core.orders import Hold, Order, Reduce, Release, StartPush, StepReplica
from paceline.core.reasons import Why
from paceline.records.spans import RecentSpans


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWait:
    """The time from an order to wait until the order to go on."""

    worker: int
    step: int
    """The last step whose gradient the worker had computed, or -1."""
    began: float
    ended: float
    """In seconds since the run's start."""
    awaited: int | None
    """The worker whose fact ended it; None if that was its own transfer, a group's average, or nothing."""
    why: Why
    """The protocol's reason."""
    cause: int | None
    """The row in the ledger's `facts` that ended it; None if the ledger ended first, or the run was interrupted."""
    fact: Fact | None = None
    """That row's fact."""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(slots=True)
class _Open:
    """A wait that has not ended."""

    step: int
    began: float
    why: Why


class Waits:
    """Finds every wait of a run, in the order of their ends.

    A wait begins with `Hold`. It ends when its worker leaves, or with the next order that lets the worker go on
    (`Release`, `StartPush`, `StepReplica`, or a `Reduce` of which it is a member). A `Hold` with a reason of another
    kind begins a new wait. One of the same kind goes on with the wait, and replaces its reason. Waits without length
    are left out. When a run is interrupted, all waits end with the last fact.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, _Open] = {}
        """By worker."""
        self._finished: dict[int, int] = {}
        self._number = 0
        self._at = 0.0

    def record(self, fact: Fact, orders: Iterable[Order]) -> list[WorkerWait]:
        """Take the next fact with its orders. Return the waits that they end."""
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

    def rest(self) -> list[WorkerWait]:
        """End all waits that go on with the last fact, and return them."""
        ended: list[WorkerWait] = []
        for worker in list(self.waiting):
            self._end(worker, None, ended)
        return ended

    def _end(self, worker: int, fact: Fact | None, ended: list[WorkerWait]) -> None:
        wait = self.waiting.pop(worker, None)
        if wait is None or self._at <= wait.began:
            return
        other = getattr(fact, "worker", None)
        ended.append(
            WorkerWait(
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


class WaitSums(Waits):
    """Waits, and the seconds of those that have ended: by code of their reason, and by the worker that ended them."""

    def __init__(self, before: float = 0.0) -> None:
        """`before`: seconds that workers had waited in all before these are counted, as a resumed run has."""
        super().__init__()
        self.before = before
        self.seconds: defaultdict[str, Counter[int | None]] = defaultdict(Counter)
        """None: no other worker ended the wait."""
        self.times: Counter[str] = Counter()
        self.last: dict[str, Why] = {}
        """By code: the last wait's reason."""

    def record(self, fact: Fact, orders: Iterable[Order]) -> list[WorkerWait]:
        """See `Waits.record`."""
        ended = super().record(fact, orders)
        for wait in ended:
            code = str(wait.why[0])
            self.seconds[code][wait.awaited] += wait.seconds  # type: ignore[assignment]  # a Counter counts ints
            self.times[code] += 1
            self.last[code] = wait.why
        return ended


class Blame:
    """Finds the workers to blame for each wait.

    While the awaited worker itself waited for another one, that one is to blame. So a wait can be judged only when
    those waits have ended, too. No worker is to blame for a wait for no other worker. O(n log n), but for long chains.
    """

    def __init__(self, found: Waits) -> None:
        self._found = found
        self.own = RecentSpans()
        """By worker: its waits for others, with the worker that ended each, which may overlap one not judged yet."""
        self._unjudged: deque[WorkerWait] = deque()

    def judge(self, ended: Iterable[WorkerWait]) -> Iterator[tuple[WorkerWait, dict[int, float]]]:
        """Take waits that have ended. Yield those that can be judged, in order, with the seconds by worker to blame."""
        for wait in ended:
            if wait.awaited is not None:
                self.own.add(wait.worker, wait.began, wait.ended, wait.awaited)
            self._unjudged.append(wait)
        while self._unjudged:
            due = self._due(self._unjudged[0])
            if due is None:
                break
            yield self._unjudged.popleft(), due
        self.own.forget(self.horizon())

    def horizon(self) -> float:
        """Return when the oldest wait that is not judged began. Earlier steps need not be kept."""
        since = (wait.began for waits in (self._found.waiting.values(), self._unjudged) for wait in waits)
        return min(since, default=inf)

    def _due(self, wait: WorkerWait) -> dict[int, float] | None:
        """Return the seconds by worker to blame; None if that is not known yet."""
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
        """Yield the worker to blame, or None if it is not known yet, and the seconds."""
        if awaited in self._found.waiting and self._found.waiting[awaited].began < ended:
            yield None, 0.0
            return
        rest = ended - began
        for since, until, behind in self.own.within(awaited, began, ended):
            since, until = max(began, since), min(ended, until)
            if until <= since or behind in (*before, awaited):
                continue
            rest -= until - since
            yield from self._parts(int(behind), since, until, (*before, awaited))
        yield awaited, rest
