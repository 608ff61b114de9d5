"""How long workers waited for each other in `paceline.agree`, and for whom."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from paceline.core.agreements import Call
from paceline.core.facts import Fact, StepDeclined, TrainingBegan, WorkerLeft, WorkerResumed
from paceline.records.spans import overlap
from paceline.records.waits import Waits, WorkerWait


class AgreeWaits:
    """Follows the workers that pause in `agree` while a step of theirs is released. No order of the protocol says so.

    A worker that comes to `agree` while it was told to wait is not paused: that time is in `Waits`.
    """

    def __init__(self, ledger: sqlite3.Connection, waits: Waits) -> None:
        """`waits`: of the same run. They have taken each fact before this does."""
        self.culprits: Counter[int] = Counter()
        """By worker: how long others paused for it, as it came last. They sum to the pauses."""
        self._waits = waits
        self._calls: dict[int, list[tuple[int, Call]]] = defaultdict(list)
        """By worker: the last fact before each call was answered, and the call."""
        self._members: dict[Call, set[int]] = defaultdict(set)
        for fact, worker, *call in ledger.execute("SELECT fact, worker, epoch, nth FROM agreed ORDER BY rowid"):
            self._calls[worker].append((fact, Call(*call)))
            self._members[Call(*call)].add(worker)
        self._paused: dict[int, float] = {}
        self._idle: dict[int, list[tuple[float, float]]] = defaultdict(list)
        """By worker: its last pause, and the last time that it was told to wait."""

    def record(self, number: int, fact: Fact, ended: Iterable[WorkerWait], present: Collection[int]) -> None:
        """Take the next fact, which has that number in the ledger, the waits that it ended, and who is there."""
        if not self._calls:
            return
        for wait in ended:
            self._note(wait.worker, wait.began, wait.ended)
        match fact:
            case TrainingBegan():  # also where the run was resumed: nobody waits any more
                self._paused.clear()
                self._idle.clear()
            case StepDeclined(worker=worker, paused=True, revoked=False):
                self._paused[worker] = fact.at
            case WorkerLeft(worker=worker):
                self._paused.pop(worker, None)
            case WorkerResumed(worker=worker) if worker in self._paused:
                began, calls = self._paused.pop(worker), self._calls[worker]
                self._note(worker, began, fact.at)
                answered = bisect_left(calls, number, key=lambda one: one[0])
                called = self._members[calls[answered - 1][1]] if answered else set()
                others = sorted(called.intersection(present) - {worker})
                if others:  # else those that it paused for have died
                    idle = {other: self._idle_within(other, began, fact.at) for other in others}
                    self.culprits[min(others, key=idle.__getitem__)] += fact.at - began  # type: ignore[assignment]

    def _note(self, worker: int, began: float, ended: float) -> None:
        self._idle[worker] = [*self._idle[worker][-1:], (began, ended)]

    def _idle_within(self, worker: int, began: float, ended: float) -> float:
        spans = list(self._idle[worker])
        if worker in self._paused:
            spans.append((self._paused[worker], ended))
        if worker in self._waits.waiting:
            spans.append((self._waits.waiting[worker].began, ended))
        return sum(overlap(*span, began, ended) for span in spans)
