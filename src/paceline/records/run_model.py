"""What a run's facts and orders come to, told one at a time: stays, steps, outcomes of updates, switches and waits.

A live run's tally counts from it, and so does every reader of a ledger. It keeps the workers and what is outstanding,
so its memory does not grow with the run's steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core.counts import Counts
from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReduceFinished,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
    WorkerResumed,
)
from paceline.core.orders import (
    ApplyUpdate,
    DropUpdate,
    Hold,
    Order,
    Reduce,
    Release,
    StartPush,
    StepReplica,
    SwitchProtocol,
)
from paceline.core.reasons import Why
from paceline.records.update_outcomes import Fate, UpdateOutcomes
from paceline.records.waits import Waits, WorkerWait


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A worker's stay, until it left."""

    began: float
    ended: float
    left: str | None
    """`finished`, `died`, `stopped` or `drained`; `interrupted` if the run was interrupted and resumed; None if it was
    present at the last fact."""


@dataclass(slots=True, kw_only=True)
class Switch:
    """A switch from one protocol to another."""

    to: str
    """The new protocol's name."""
    since: float
    """When the previous protocol began its last steps."""
    at: float
    why: Why
    waiting: set[int] = field(default_factory=set)
    """Workers without parameters under the new protocol yet."""
    pause: float = 0.0
    """Seconds from `since` until the last worker had them, or where the switch makes a version, computed on it."""
    first: dict[int, int] = field(default_factory=dict)
    """By worker, where it makes one: the first step after it. No fact tells when a replica begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeMark:
    """The beginning of a resumed run's segment."""

    at: float
    version: int
    """The version that it went on from."""


class Moment(NamedTuple):
    """A fact with its orders, and what follows from them."""

    fact: Fact
    orders: Sequence[Order]
    outcomes: Sequence[Fate]
    """The outcomes of updates that it decides."""
    advanced: Sequence[int]
    """Workers that have finished a step: its update is in the store, or in their replica. Declined ones don't count."""
    waits: Sequence[WorkerWait]
    """The waits that it ends, if they are followed."""


@dataclass(slots=True)
class RunModel:
    """A run, as far as it was told. O(1) for each fact, amortized."""

    waits: Waits | None = None
    """Follows the waits, if given."""
    facts: int = 0
    began: float | None = None
    """When training began."""
    at: float = 0.0
    """The last fact's moment."""
    paused: float = 0.0
    """Seconds between segments."""
    resumed: list[ResumeMark] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    versions: int = 0
    """Versions made in the store."""
    hosts: dict[int, str] = field(default_factory=dict)
    """By worker that was ever present: its last host."""
    head: str = ""
    """The head's host in this segment."""
    present: dict[int, float] = field(default_factory=dict)
    """By present worker: when its stay began."""
    finished: dict[int, int] = field(default_factory=dict)
    """By worker: the last step whose gradient was ready."""
    counts: Counts = field(default_factory=Counts)
    """Steps of the workers that have not declined the next one, in this segment."""
    outcomes: UpdateOutcomes = field(default_factory=UpdateOutcomes)
    released: dict[int, int] = field(default_factory=dict)
    """By worker: the batches of its last release."""
    batch: float = 0.0
    """Samples in a batch, as far as they are counted: the most in a worker's first step, for each batch that it was
    released for. Later ones may have been fetched before the share changed."""
    several: bool = False
    """Whether any step was released for several batches."""
    _left: dict[int, list[Stay]] = field(default_factory=dict)
    """By worker: its stays that have ended."""

    def read(self, history: Iterable[tuple[Fact, tuple[Order, ...]]]) -> Iterator[Moment]:
        """Take a whole history, and yield its moments."""
        for fact, orders in history:
            yield self.record(fact, orders)

    def record(self, fact: Fact, orders: Sequence[Order]) -> Moment:
        """Take the next fact with its orders."""
        before, self.at = self.at, fact.at
        self.facts += 1
        outcomes: list[Fate] = []
        advanced = []
        match fact:
            case GradientReady():
                self.outcomes.fact(fact)
                if fact.worker not in self.finished:
                    self.batch = max(self.batch, (fact.samples or 0) / self.released.get(fact.worker, 1))
                self.finished[fact.worker] = fact.step
            case UpdateArrived():
                advanced.append(fact.worker)
            case ParametersTaken():
                self._takes_part(fact.worker, fact.at)
            case ReduceFinished() | ReduceFailed():
                self.outcomes.fact(fact)
            case TrainingBegan():
                outcomes += self.outcomes.fact(fact)
                self._begin(fact, before)
            case WorkerJoined():
                self._enter(fact.worker, fact.host, fact.at)
            case WorkerResumed():
                self.counts.enter(fact.worker)
            case StepDeclined():
                self._stop_counting(fact.worker)
            case WorkerLeft():
                self._stop_counting(fact.worker)
                self._leave(fact.worker, fact.at, fact.reason)
                self._takes_part(fact.worker, None)
        for order in orders:
            match order:
                case Release():
                    self.released[order.worker] = order.batches
                    self.several = self.several or order.batches > 1
                case StartPush():
                    if order.since is not None:
                        self.outcomes.order(order)
                case ApplyUpdate():
                    outcomes += self.outcomes.order(order)
                    self.versions += 1
                case Hold():
                    pass
                case DropUpdate() | Reduce():
                    outcomes += self.outcomes.order(order)
                case StepReplica():
                    outcomes += self.outcomes.order(order)
                    advanced.append(order.worker)
                case SwitchProtocol():
                    outcomes += self.outcomes.order(order)
                    self._switch(order, fact.at)
        if advanced:
            advanced = [worker for worker in advanced if worker in self.counts.finished]
            for worker in advanced:
                self.counts.advance(worker)
        ended = () if self.waits is None else self.waits.record(fact, orders)
        return Moment(fact, orders, outcomes, advanced, ended)

    def gradients(self, samples: int | None) -> int:
        """Return of how many batches a step of so many samples is, each of which is a gradient to the script."""
        return max(1, round((samples or 0) / self.batch)) if self.several and self.batch else 1

    def stays(self) -> dict[int, tuple[Stay, ...]]:
        """Return the stays of each worker, ascending. A present worker stays until the last fact."""
        return {worker: self.stays_of(worker) for worker in sorted(self.hosts)}

    def stays_of(self, worker: int, until: float | None = None) -> tuple[Stay, ...]:
        """Return the worker's stays. If it is present, the last one ends at `until`, by default at the last fact."""
        ended = tuple(self._left.get(worker, ()))
        if worker not in self.present:
            return ended
        return *ended, Stay(began=self.present[worker], ended=self.at if until is None else until, left=None)

    def seconds(self, worker: int, until: float | None = None) -> float:
        """Return the seconds of its stays."""
        total = 0.0  # not by sum(), which rounds otherwise from Python 3.12 on: a summary is the same in all versions
        for stay in self.stays_of(worker, until):
            total += stay.ended - stay.began
        return total

    def _begin(self, fact: TrainingBegan, before: float) -> None:
        """Begin a segment. An interrupted one before it ended with its last fact."""
        if self.began is None:
            self.began = fact.at
        else:
            self.paused += fact.at - before
            self.resumed.append(ResumeMark(at=fact.at, version=fact.version))
        self.counts = Counts()
        for worker in list(self.present):
            self._leave(worker, before, "interrupted")
        for switch in self.switches:
            switch.waiting.clear()
        self.head = next((host for _, host, _ in fact.members), "")
        for worker, host, _ in fact.members:
            self._enter(worker, host, fact.at)

    def _switch(self, order: SwitchProtocol, at: float) -> None:
        waiting = {worker for worker, _, _ in order.members}
        pause = at - order.since
        switch = Switch(to=order.to, since=order.since, at=at, why=order.why, waiting=waiting, pause=pause)
        if order.version is not None:
            switch.first = {worker: step for worker, _, step in order.members}
        self.switches.append(switch)

    def _enter(self, worker: int, host: str, at: float) -> None:
        self.counts.enter(worker)
        self.hosts[worker] = host
        self.present.setdefault(worker, at)

    def _stop_counting(self, worker: int) -> None:
        if worker in self.counts.finished:
            self.counts.leave(worker)

    def _leave(self, worker: int, at: float, why: str) -> None:
        stay = Stay(began=self.present.pop(worker), ended=at, left=why)
        self._left.setdefault(worker, []).append(stay)

    def computed(self, worker: int, step: int, began: float) -> None:
        """The worker began to compute that step at that moment."""
        for switch in self.switches:
            if switch.first.get(worker) == step:
                switch.pause = max(switch.pause, began - switch.since)

    def _takes_part(self, worker: int, at: float | None) -> None:
        """Note when the worker got its first parameters after a switch. None: it left."""
        if self.switches and worker in self.switches[-1].waiting:
            switch = self.switches[-1]
            switch.waiting.discard(worker)
            if at is not None:
                switch.pause = at - switch.since
