"""What there is to explain of a run, found in one pass over its ledger: where time went, and who waited for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, islice
from math import inf
from operator import itemgetter
from statistics import median

from paceline.core.facts import GradientReady
from paceline.core.orders import Release
from paceline.core.reasons import Why
from paceline.records.agree_waits import AgreeWaits
from paceline.records.averages import Average, AverageTracker
from paceline.records.links import InTransit, LinkTraffic, links
from paceline.records.reading import RecordedRun, model_of
from paceline.records.spans import RecentSpans, overlap
from paceline.records.times import StepTimes, StepTotals
from paceline.records.update_outcomes import Applied, Dropped, Fate, Undone
from paceline.records.waits import Blame, Waits, WorkerWait


@dataclass(slots=True)
class Spent(StepTotals):
    """One worker's seconds in the run."""

    stayed: float = 0.0

    @property
    def other(self) -> float:
        """Time outside these parts: data, the worker's own optimizer, the script between steps."""
        return max(0.0, self.stayed - self.compute - self.wait - self.transfer)

    def share(self, seconds: float) -> float:
        """Return these seconds as a share of its time in the run."""
        return seconds / self.stayed if self.stayed else 0.0


@dataclass(slots=True)
class Meanwhile:
    """The seconds that others waited for workers, and what these did meanwhile."""

    waited: float = 0.0
    computing: float = 0.0
    moving: float = 0.0
    """Not computing, while their versions or updates moved between hosts."""

    def add(self, waited: float, computing: float, moving: float) -> None:
        self.waited += waited
        self.computing += computing
        self.moving += moving


@dataclass(slots=True)
class WaitTotals:
    """Sums over all waits."""

    seconds: float = 0.0
    for_others: float = 0.0
    """Of these, seconds of waits that another worker's fact ended."""
    culprits: Counter[int] = field(default_factory=Counter)
    """By worker: seconds that others waited because of it."""
    of_hosts: Counter[str] = field(default_factory=Counter)
    """By host: seconds that workers of other hosts waited because of its workers."""
    victims: Counter[int] = field(default_factory=Counter)
    """By worker: seconds that it waited for others."""
    meanwhile: dict[int, Meanwhile] = field(default_factory=dict)
    """By worker: what it did during the waits for which it is most to blame."""


@dataclass(slots=True)
class ReleasedStep:
    """The step in question, of one worker."""

    at: float
    """When it was released."""
    version: int
    why: Why
    ready: float | None = None
    """When its gradient was ready."""
    times: StepTimes | None = None
    """Its times, if copies were measured in it."""
    outcome: Fate | None = None
    """The outcome of its update."""
    decided: float = 0.0
    """When that was decided."""


@dataclass(slots=True)
class Findings:
    """The sums over a run, and the details of the worker or step in question."""

    run: RecordedRun
    worker: int | None = None
    """The worker in question; None: all."""
    step: int | None = None
    """The step in question; None: all."""
    spent: dict[int, Spent] = field(default_factory=dict)
    """By worker, ascending."""
    typical: Mapping[int, float] = field(default_factory=dict)
    """By worker that finished a step: the median of its steps, in seconds."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """By worker: its last host."""
    head: str = ""
    """The head's host."""
    links: list[LinkTraffic] = field(default_factory=list)
    """Links between hosts; none in a run on one host."""
    averages: list[Average] = field(default_factory=list)
    """The averages between hosts of the worker or step in question."""
    range_of: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By worker: the first and the last step that it was released for."""
    waited: WaitTotals = field(default_factory=WaitTotals)
    agreeing: Counter[int] = field(default_factory=Counter)
    """By worker: seconds that others waited for it in `paceline.agree`."""
    waits: list[tuple[WorkerWait, dict[int, float]]] = field(default_factory=list)
    """The waits of the worker or step in question, each with its seconds by the worker to blame."""
    applied: Counter[int] = field(default_factory=Counter)
    """By worker: updates that went into a version."""
    dropped: Counter[int] = field(default_factory=Counter)
    """By worker that is present: updates that went into none."""
    kept_waiting: Counter[int] = field(default_factory=Counter)
    """By worker: how often it waited because of the worker in question."""
    steps: dict[int, ReleasedStep] = field(default_factory=dict)
    """By worker: the step in question."""

    def asked(self, worker: int, step: int) -> bool:
        """Whether this step of this worker is in question, rather than the whole run."""
        asked = (self.worker, self.step) != (None, None)
        return asked and self.worker in (None, worker) and self.step in (None, step)


def findings(run: RecordedRun, worker: int | None = None, step: int | None = None) -> Findings:
    """Read the run in one pass. `worker` and `step` are in question; None: all."""
    found = Findings(run, worker, step)
    _Pass(found).read()
    if step is not None:
        _measured(found, step)
    return found


class _Pass:
    """Reads a run once. What a wait is due to is known only later, so it keeps the steps and transfers since."""

    def __init__(self, found: Findings) -> None:
        self._found = found
        self._waits = Waits()
        self._blame = Blame(self._waits)
        ledger = found.run.ledger
        self._model = model_of(ledger, self._waits)
        self._steps = _Steps(found)
        self._moving = InTransit(ledger, self._model.hosts)
        self._averages = AverageTracker(ledger, self._model)
        self._averaged: dict[tuple[str, str], Counter[int]] = {}
        """By source and host, and by worker: seconds of waiting for averages whose last part came over that link."""

    def read(self) -> None:
        found, model, agreeing = self._found, self._model, AgreeWaits(self._found.run.ledger, self._waits)
        for number, moment in enumerate(model.read(found.run.history()), 1):
            at = moment.fact.at
            agreeing.record(number, moment.fact, moment.waits, model.present)
            for order in moment.orders:
                if isinstance(order, Release):
                    self._released(order, at)
            for outcome in moment.outcomes:
                if isinstance(outcome, Applied):
                    found.applied[outcome.worker] += 1
                elif isinstance(outcome, Dropped) and outcome.worker in model.present:
                    found.dropped[outcome.worker] += 1
            if found.step is not None:
                match moment.fact:
                    case GradientReady(worker=worker, step=found.step) if worker in found.steps:
                        found.steps[worker].ready = at
                for outcome in moment.outcomes:
                    if outcome.step == found.step and (one := found.steps.get(outcome.worker)) is not None:
                        one.outcome = outcome
                        one.decided = one.decided if isinstance(outcome, Undone) else at
            if (average := self._averages.record(moment)) is not None:
                self._ended(average)
            if moment.waits:
                self._judge(moment.waits, at)
            self._follow(at)
        self._judge(self._waits.rest(), inf)
        for worker in model.hosts:
            found.spent.setdefault(worker, Spent()).stayed = model.seconds(worker)
        found.spent = dict(sorted(found.spent.items()))
        found.typical = self._steps.typical()
        found.agreeing = agreeing.culprits
        found.hosts, found.head = model.hosts, model.head
        groups = found.run.choice.has_replicas
        found.links = links(found.run.ledger, model.hosts, self._averaged if groups else None)

    def _follow(self, at: float) -> None:
        """Read the steps and transfers up to now, waits or none, and forget those that no later wait can overlap."""
        self._steps.read(at)
        self._moving.read(at)
        horizon = self._blame.horizon()
        self._steps.spans.forget(min(horizon, self._averages.horizon()))
        self._moving.spans.forget(horizon)

    def _released(self, order: Release, at: float) -> None:
        found = self._found
        first, last = found.range_of.get(order.worker, (order.step, order.step))
        found.range_of[order.worker] = min(first, order.step), max(last, order.last)
        if found.step is not None and order.step <= found.step <= order.last:
            found.steps[order.worker] = ReleasedStep(at, order.version, order.why)

    def _judge(self, ended: Iterable[WorkerWait], now: float) -> None:
        """Add up the waits that can be judged by now."""
        found, waited = self._found, self._found.waited
        self._steps.read(now)
        self._moving.read(now)
        for wait, due in self._blame.judge(ended):
            waited.seconds += wait.seconds
            if wait.awaited is not None:
                waited.for_others += wait.seconds
                waited.victims[wait.worker] += wait.seconds  # type: ignore[assignment]
            waited.culprits.update(due)
            for worker, seconds in due.items():
                if self._model.hosts[worker] != self._model.hosts[wait.worker]:
                    waited.of_hosts[self._model.hosts[worker]] += seconds  # type: ignore[assignment]
            if due:
                culprit = max(due, key=lambda worker: due[worker])
                computing = self._steps.computing(culprit, wait.began, wait.ended)
                moved = min(self._moving.seconds(culprit, wait.began, wait.ended), wait.seconds - computing)
                waited.meanwhile.setdefault(culprit, Meanwhile()).add(wait.seconds, computing, max(0.0, moved))
            if found.asked(wait.worker, wait.step):
                found.waits.append((wait, due))
            if found.worker in due:
                found.kept_waiting[wait.worker] += 1

    def _ended(self, average: Average) -> None:
        """Add up how long members waited for an average that has ended."""
        if average.last is None:  # it failed before anything moved, or a replay made it on one host
            return
        self._steps.read(average.ended)
        waited = self._averaged.setdefault(average.last, Counter())
        for worker in average.members:
            average.waited[worker] = self._steps.waiting(worker, average.began, average.ended)
            if average.waited[worker]:
                waited[worker] += average.waited[worker]  # type: ignore[assignment]
        if any(self._found.asked(*one) for one in average.after.items()):
            self._found.averages.append(average)


class _Steps:
    """Reads the measured steps in the order of their beginnings, and keeps those that a wait may still overlap."""

    def __init__(self, found: Findings) -> None:
        self._ledger, self._spent = found.run.ledger, found.spent
        columns = "worker, began, compute, push, wait, pull, other, to_device, from_device"
        self._rows = self._ledger.execute(f"SELECT {columns} FROM step_times ORDER BY began")
        self._next = next(self._rows, None)
        self.spans = RecentSpans()
        """By worker: when each step began and was computed, and when the worker went on."""
        self._finished: Counter[int] = Counter()
        """By worker."""

    def read(self, until: float) -> None:
        """Read the steps that began before `until`, and add up their times."""
        while self._next is not None and self._next[1] < until:
            worker, *measured = self._next
            times = StepTimes(*measured)
            if (spent := self._spent.get(worker)) is None:
                spent = self._spent[worker] = Spent()
            spent.add(times)
            computed = times.began + times.compute
            self.spans.add(worker, times.began, computed, computed + times.push + times.wait + times.pull)
            self._finished[worker] += 1
            self._next = next(self._rows, None)

    def computing(self, worker: int, began: float, ended: float) -> float:
        """Return the worker's seconds of computing within this time."""
        spans = self.spans.within(worker, began, ended)
        return sum(overlap(since, computed, began, ended) for since, computed, _ in spans)

    def waiting(self, worker: int, began: float, ended: float) -> float:
        """Return the seconds within this time after which the worker had computed a step and not gone on."""
        spans = self.spans.within(worker, began, ended)
        return sum(overlap(computed, goes_on, began, ended) for _, computed, goes_on in spans)

    def typical(self) -> dict[int, float]:
        """Return the median of each worker's steps. The ledger sorts them, so they need not be in memory."""
        rows = self._ledger.execute(
            "SELECT worker, began + compute - began AS length FROM step_times ORDER BY worker, length"
        )
        found = {}
        for worker, lengths in groupby(rows, key=itemgetter(0)):
            of = self._finished[worker]
            found[worker] = median(length for _, length in islice(lengths, (of - 1) // 2, of // 2 + 1))
        return found


def _measured(found: Findings, step: int) -> None:
    """Add this step's times, if copies were measured in it."""
    rows = found.run.ledger.execute(
        "SELECT worker, began, compute, push, wait, pull, other, to_device, from_device FROM step_times "
        "WHERE step = ? AND coalesce(to_device, from_device) IS NOT NULL",
        (step,),
    )
    for worker, *times in rows:
        if worker in found.steps:
            found.steps[worker].times = StepTimes(*times)
