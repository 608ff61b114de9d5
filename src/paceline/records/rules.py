"""The rules that facts and orders keep under every protocol. `Rules` checks them as they come."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from paceline.core.choice import Choice
from paceline.core.facts import (
    AlarmRang,
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.machine import Spec
from paceline.core.orders import (
    ApplyUpdate,
    CopyReplica,
    DropUpdate,
    LeaveOut,
    Order,
    Reduce,
    Release,
    SetAlarm,
    StartPush,
    StepReplica,
    SwitchProtocol,
    steps_of,
)
from paceline.records.bitsets import Bitset
from paceline.records.update_outcomes import Applied, Dropped, UpdateOutcomes
from paceline.records.violations import (
    ALARMS,
    APPLIED_ONCE,
    ARRIVED,
    DROPPED_ONCE,
    ENDS,
    FORWARD,
    GOES_ON,
    GROUP_ONCE,
    NO_OVERLAP,
    NOT_BOTH,
    PULLED,
    PULLS,
    REPLICAS,
    STEPS_ONCE,
    SUMS,
    VERSIONS,
    WEIGHT_1,
    Violation,
    brief,
)

WEIGHTS = 1e-9
"""How far rounding may move the sum of a version's weights from 1."""
EARLY = 1e-6
"""Seconds by which rounding may have an alarm ring before its time."""


@dataclass(slots=True)
class _Sum:
    """Updates that have arrived as one sum."""

    number: int
    host: str
    at: float
    workers: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Rules:
    """Checks facts and orders under any protocol. A fact comes before its orders."""

    choice: Choice
    spec: Spec = field(init=False)
    """Of the part that decides."""
    at: float = -math.inf
    version: int | None = None
    """The store's version."""
    replicas: dict[int, int | None] = field(default_factory=dict)
    """By present worker: its replica's version; None if not known yet."""
    copies: dict[int, int | None] = field(default_factory=dict)
    """By worker that gets a copy: the version of the source's replica."""
    used: dict[int, int] = field(default_factory=dict)
    """By worker: its last step number."""
    taken: dict[int, int] = field(default_factory=dict)
    outcomes: UpdateOutcomes = field(default_factory=UpdateOutcomes)
    arrived: set[tuple[int, int]] = field(default_factory=set)
    """Updates in the store that are neither applied nor dropped yet."""
    applied: Bitset = field(default_factory=Bitset)
    dropped: Bitset = field(default_factory=Bitset)
    groups: dict[int, Reduce] = field(default_factory=dict)
    """Groups that are averaging."""
    numbers: Bitset = field(default_factory=Bitset)
    """(0, its number) of each group so far."""
    busy: dict[int, int] = field(default_factory=dict)
    """By worker: the group that it is in."""
    versions: int = 0
    pulls: int = 0
    changes: int = 0
    """Versions of replicas."""
    stepped: int = 0
    """Steps that replicas were ordered since the last version."""
    first: int | None = None
    """The store's version at the beginning."""
    orders: int = 0
    released: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (worker, step): the number of its order."""
    stepping: dict[int, dict[int, int]] = field(default_factory=dict)
    """By present worker: steps that its replica may not have made, with the numbers of their orders."""
    may_be_undone: set[tuple[int, int]] = field(default_factory=set)
    """The same of workers that left, as (worker, step)."""
    not_made: set[tuple[int, int]] = field(default_factory=set)
    """Steps of `outcomes.undone` that were to be made with the worker's own gradient, which is in no replica then."""
    came_back: Counter[int] = field(default_factory=Counter)
    """How often each worker came back."""
    reasons: set[str] = field(default_factory=set)
    """Why workers left."""
    finished: set[int] = field(default_factory=set)
    """Workers that left because no data was left."""
    dealt_anew: bool = False
    """Whether an order freed data that was set aside for one worker."""

    ready: dict[int, int] = field(default_factory=dict)
    """By worker: its last step whose gradient was ready."""
    came: dict[int, int] = field(default_factory=dict)
    """By worker without such a step: the step number that it first came with."""
    hosts: dict[int, str] = field(default_factory=dict)
    """By worker: its host."""
    sum: _Sum | None = None
    """The last sum in which updates have arrived."""
    sums: Bitset = field(default_factory=Bitset)
    """(0, its number) of each sum in this segment."""
    alarms: dict[int, float] = field(default_factory=dict)
    """By number of an alarm that is set and has not rung: when it is to ring."""

    def __post_init__(self) -> None:
        self.spec = self.choice.part(self.choice.begins).spec

    def fact(self, fact: Fact) -> None:
        if not fact.at >= self.at:
            raise Violation(FORWARD, f"at is {self.at!r} or later", fact.at)
        self.at = fact.at
        match fact:
            case GradientReady(worker=worker, step=step):
                key = worker, step
                if key in self.outcomes.ready or key in self.applied or key in self.dropped:
                    raise Violation(STEPS_ONCE, f"a new step of worker {worker}", f"step {step} once more")
                if self.spec.state == "store" and self.taken.get(worker, -1) < fact.version:
                    newest = self.taken.get(worker, "none")
                    raise Violation(PULLED, f"the newest that worker {worker} has pulled: {newest}", fact.version)
                self.ready[worker] = step
                self.used[worker] = max(self.used.get(worker, -1), step)
                began, stepping = self.released.pop(key, 0), self.stepping.get(worker, {})
                for made in [made for made, number in stepping.items() if number < began]:
                    del stepping[made]  # the worker went on after that step
            case UpdateArrived(worker=worker, step=step):
                self.arrived.add((worker, step))
                if fact.sum is not None:
                    self._sum(fact, fact.sum)
            case ParametersTaken(worker=worker, version=version):
                if version < self.taken.get(worker, version):
                    raise Violation(PULLS, f"{self.taken[worker]} or newer, for worker {worker}", version)
                self.taken[worker] = version
                self.pulls += 1
            case TrainingBegan(members=members, version=version):
                if self.version is None:
                    self.version = self.first = version
                    self.replicas = {worker: 0 for worker, _, _ in members}
                else:
                    self._go_on(fact)
                self.end_sum()
                self.sum, self.sums = None, Bitset()
                for worker, host, step in members:
                    self.hosts[worker] = host
                    self.used[worker] = step - 1
                    self.came.setdefault(worker, step)
            case WorkerJoined(worker=worker, step=step):
                self.hosts[worker] = fact.host
                if step <= self.used.get(worker, -1):
                    raise Violation(STEPS_ONCE, f"worker {worker} comes with {self.used[worker] + 1} or later", step)
                self.used[worker], self.replicas[worker] = step - 1, None
                self.came_back[worker] += worker in self.came
                self.came.setdefault(worker, step)
            case WorkerLeft(worker=worker, reason=reason):
                self._leave(worker, reason)
            case ReplicaCopied(worker=worker):
                self.replicas[worker] = self.copies.pop(worker, None)
            case ReduceFinished(group=group) | ReduceFailed(group=group):
                self._end(group, isinstance(fact, ReduceFinished))
            case AlarmRang():
                self._ring(fact)
            case _:
                pass
        self.outcomes.fact(fact)

    def _leave(self, worker: int, reason: str) -> None:
        self.reasons.add(reason)
        if reason == "finished":
            self.finished.add(worker)
        self.may_be_undone.update((worker, step) for step in self.stepping.pop(worker, ()))
        self.busy.pop(worker, None)
        self.replicas.pop(worker, None)

    def _ring(self, fact: AlarmRang) -> None:
        due = self.alarms.pop(fact.number, math.inf)
        if fact.at < due - EARLY:
            raise Violation(
                ALARMS, f"at {due!r}" if due < math.inf else f"no alarm {fact.number}, which is not set", fact.at
            )

    def _go_on(self, fact: TrainingBegan) -> None:
        """Undo what was outstanding, as the run was resumed. Numbers go on from the snapshot."""
        self.spec = self.choice.part(self.choice.begins if fact.part is None else fact.part).spec
        if self.spec.state == "store" and fact.version != self.version:
            raise Violation(GOES_ON, f"version {self.version}", f"version {fact.version}")
        for worker, _, step in fact.members:
            expected = self.ready[worker] + 1 if worker in self.ready else self.came.get(worker, step)
            if step != expected:
                raise Violation(GOES_ON, f"worker {worker} with step {expected}", f"step {step}")
        self.used = {worker: self.ready.get(worker, first - 1) for worker, first in self.came.items()}
        self.replicas = {worker: None for worker, _, _ in fact.members}
        self.reasons, self.finished = set(), set()
        self.may_be_undone.update((worker, step) for worker, steps in self.stepping.items() for step in steps)
        outstanding = (self.taken, self.arrived, self.groups, self.busy, self.released, self.stepping, self.alarms)
        for one in outstanding:
            one.clear()

    def order(self, order: Order) -> Sequence[Applied | Dropped]:
        """Check an order. Return the outcomes of updates that it decides."""
        self.orders += 1
        match order:
            case Release(worker=worker, step=step):
                self.released[worker, step] = self.orders
                if step <= self.used.get(worker, -1):
                    raise Violation(STEPS_ONCE, f"worker {worker} goes on to {self.used[worker] + 1} or later", step)
                self.used[worker] = step
                if order.parameters == "own" and self.replicas.get(worker) is None:
                    self.replicas[worker] = order.version
            case ApplyUpdate(version=version, contributions=contributions):
                if self.version is not None and version != self.version + 1:
                    raise Violation(VERSIONS, f"version {self.version + 1}", f"version {version}")
                if self.spec.pushes == "gradient":
                    self._weigh(contributions)
                for worker, step, _ in contributions:
                    self._apply(worker, step, self.arrived)
                    for one in self.outcomes.several.get((worker, step), range(0))[:-1]:
                        self._apply(worker, one, self.outcomes.ready)
                self.version, self.versions, self.stepped = version, self.versions + 1, 0
            case StartPush(since=int()):
                self._joins(order)
            case StepReplica(worker=worker, step=step, version=version, group=group):
                self._changes(worker, version)
                self.stepped += 1
                self.stepping.setdefault(worker, {})[step] = self.orders
                if group is None:
                    if (worker, step) in self.outcomes.undone:
                        self.not_made.add((worker, step))
                    self._apply(worker, step, self.outcomes.ready)
                else:
                    for other, other_step, _ in self.outcomes.gathered.get(group, ()):
                        self._apply(other, other_step, self.outcomes.ready)
            case DropUpdate(worker=worker):
                for step in steps_of(order):
                    self._drop(worker, step)
            case Reduce():
                self._begin(order)
            case CopyReplica(source=source, worker=worker):
                self.copies[worker] = self.replicas.get(source)
            case SetAlarm(number=number, seconds=seconds):
                if number in self.alarms:
                    raise Violation(ALARMS, "an alarm that is not set yet", f"alarm {number} once more")
                self.alarms[number] = self.at + seconds
            case LeaveOut():
                self.dealt_anew = True
            case SwitchProtocol():
                self.dealt_anew, self.spec = True, self.choice.part(self.choice.part_of(order)).spec
                if order.version is not None:
                    self._switch(order, order.version)
            case _:
                pass
        return self.outcomes.order(order)

    def _switch(self, order: SwitchProtocol, version: int) -> None:
        """A switch makes that version, of the store's or of all replicas. It is above all means since the last one."""
        expected = None if self.version is None else self.version + self.stepped + 1
        if expected is not None and version != expected:
            raise Violation(VERSIONS, f"version {expected}", f"version {version}")
        self.version, self.stepped = version, 0
        self.copies.clear()
        self.replicas = dict.fromkeys(self.replicas)
        if self.spec.state == "replicas":
            self.replicas |= {worker: 0 for worker, _, _ in order.members}

    def counts(self, worker: int, step: int) -> bool:
        """Whether that update is applied, and in a version: of a step that was not made, the samples are missed."""
        return (worker, step) in self.applied and (worker, step) not in self.not_made

    def _apply(self, worker: int, step: int, there: Container[tuple[int, int]]) -> None:
        key, what = (worker, step), f"step {step} of worker {worker}"
        if key in self.applied:
            raise Violation(APPLIED_ONCE, "an update that is in no version yet", f"{what} once more")
        if key in self.dropped:
            raise Violation(NOT_BOTH, "an update that was not dropped", f"{what}, which was")
        if key not in there or key not in self.outcomes.ready:
            raise Violation(ARRIVED, "one that is there", f"{what}, which is not")
        self.arrived.discard(key)
        self.applied.add(worker, step)

    def _joins(self, order: StartPush) -> None:
        """Check that all steps of an update are computed, and in no other one."""
        worker, several = order.worker, self.outcomes.several
        others = [steps for (one, _), steps in several.items() if one == worker]
        for step in steps_of(order):
            if (worker, step) not in self.outcomes.ready or any(step in steps for steps in others):
                found = f"step {step} of worker {worker}, which is not"
                raise Violation(ARRIVED, "own steps that are computed and in no other update", found)

    def _drop(self, worker: int, step: int) -> None:
        key, what = (worker, step), f"step {step} of worker {worker}"
        if key in self.dropped:
            raise Violation(DROPPED_ONCE, "an update that was not dropped yet", f"{what} once more")
        if key in self.applied:
            if self.spec.state == "store":
                raise Violation(NOT_BOTH, "an update that is in no version", f"{what}, which was applied")
            self.applied.remove(worker, step)  # applied to a replica that is gone
        self.arrived.discard(key)
        self.dropped.add(worker, step)

    def _sum(self, fact: UpdateArrived, number: int) -> None:
        """Check that an update has arrived together with others of its host, and with no other host's."""
        host = self.hosts.get(fact.worker, "none")
        if self.sum is None or self.sum.number != number:
            self.end_sum()
            if (0, number) in self.sums:
                raise Violation(SUMS, "a sum whose updates have not arrived yet", f"sum {number} once more")
            self.sum = _Sum(number, host, fact.at)
            self.sums.add(0, number)
        elif (host, fact.at) != (self.sum.host, self.sum.at) or fact.worker in self.sum.workers:
            expected = f"sum {number} of {self.sum.host} at {self.sum.at!r}, with each worker's update once"
            raise Violation(SUMS, expected, f"worker {fact.worker} of {host} at {fact.at!r}")
        self.sum.workers.add(fact.worker)

    def end_sum(self) -> None:
        """Check that no further update is awaited of the last sum."""
        if self.sum is not None and len(self.sum.workers) < 2:
            raise Violation(SUMS, f"sum {self.sum.number} of two updates or more", "of one")

    def _changes(self, worker: int, version: int) -> None:
        before = self.replicas.get(worker)
        if before is not None and version != before + 1:
            raise Violation(REPLICAS, f"version {before + 1} of worker {worker}'s", f"version {version}")
        self.replicas[worker] = version
        self.changes += 1

    def _weigh(self, contributions: Sequence[tuple[int, int, float]]) -> None:
        total = math.fsum(weight for _, _, weight in contributions)
        if not abs(total - 1) <= WEIGHTS:
            raise Violation(WEIGHT_1, 1, f"{total!r}, of {brief(contributions)}")

    def _begin(self, order: Reduce) -> None:
        if (0, order.group) in self.numbers:
            raise Violation(GROUP_ONCE, "a new number", f"group {order.group} once more")
        for worker in order.members:
            if worker in self.busy:
                found = f"worker {worker} in group {order.group} while it is in group {self.busy[worker]}"
                raise Violation(NO_OVERLAP, "members who are in no group", found)
        if order.what == "gradients":
            self._weigh(order.contributions)
        self.numbers.add(0, order.group)
        self.groups[order.group] = order
        self.busy.update(dict.fromkeys(order.members, order.group))

    def _end(self, group: int, averaged: bool) -> None:
        if group not in self.groups:
            raise Violation(ENDS, "a group that is averaging", f"group {group}, which is not")
        order = self.groups.pop(group)
        for worker in order.members:
            if self.busy.get(worker) == group:
                del self.busy[worker]
                before = self.replicas.get(worker)
                if averaged and order.what == "parameters" and before is not None:
                    self._changes(worker, before + 1)
