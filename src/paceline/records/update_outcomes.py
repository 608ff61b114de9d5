"""The outcome of each update, for summaries, checks, explanations, timelines and reports.

`UpdateOutcomes` takes facts and orders as they come. It keeps only outstanding updates, so its memory does not grow
with the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.facts import Fact, GradientReady, ReduceFailed, ReduceFinished, TrainingBegan
from paceline.core.orders import (
    ApplyUpdate,
    DropUpdate,
    Order,
    Reduce,
    StartPush,
    StepReplica,
    SwitchProtocol,
    steps_of,
)
from paceline.core.reasons import Why


@dataclass(slots=True)  # a frozen one takes four times as long to make
class Applied:
    """An update went into a version."""

    worker: int
    step: int
    version: int
    """The version that it went into, of the store or of its worker's replica."""
    staleness: int | None
    """Versions made between the one that it was computed on and the one that it went into; None without a gradient."""
    samples: int | None
    """Samples in it; None if they are not counted."""
    replica: bool
    """Whether it stepped a replica."""
    group: int | None
    """The group whose mean gradient contains it, if any."""


@dataclass(slots=True)
class Dropped:
    """An update was never applied, or was lost with the only replica that had it."""

    worker: int
    step: int
    lost: Applied | None
    """The applied update that was lost with the replica; None if it had not been applied."""
    why: Why


@dataclass(slots=True)
class Undone:
    """An update was neither applied nor dropped when the run was resumed. Its samples are used again."""

    worker: int
    step: int


Fate = Applied | Dropped | Undone


@dataclass(slots=True)
class UpdateOutcomes:
    """Follows each update from its gradient to its outcome. Pass each fact before its orders."""

    ready: dict[tuple[int, int], tuple[int, int | None]] = field(default_factory=dict)
    """By (worker, step) without an outcome: the version that it was computed on, and its samples."""
    several: dict[tuple[int, int], range] = field(default_factory=dict)
    """By (worker, last step) of updates on their way that have several steps: these."""
    alone: dict[int, dict[int, Applied]] = field(default_factory=dict)
    """By worker: steps in its replica since the last average. They are lost if the worker dies."""
    averaging: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The members of each group of several that averages replicas."""
    gathered: dict[int, tuple[tuple[int, int, float], ...]] = field(default_factory=dict)
    """The contributions of each group whose mean gradient has stepped no replica yet."""
    undone: frozenset[tuple[int, int]] = frozenset()
    """(worker, step) that replicas were ordered and did not make, if known beforehand. They have no outcome."""

    def fact(self, fact: Fact) -> Sequence[Undone]:
        """Take a fact. Return the updates that it undoes: those outstanding when the run is resumed.

        A snapshot has every replica, so from there on no step is lost with one of them.
        """
        if isinstance(fact, GradientReady):
            self.ready[fact.worker, fact.step] = (fact.version, fact.samples)
        elif isinstance(fact, ReduceFinished):
            for worker in self.averaging.pop(fact.group, ()):
                self.alone.pop(worker, None)
        elif isinstance(fact, ReduceFailed):
            self.averaging.pop(fact.group, None)
            self.gathered.pop(fact.group, None)
        elif isinstance(fact, TrainingBegan):
            undone = [Undone(worker, step) for worker, step in self.ready]
            for outstanding in (self.ready, self.several, self.alone, self.averaging, self.gathered):
                outstanding.clear()
            return undone
        return ()

    def order(self, order: Order) -> Sequence[Applied | Dropped]:
        """Return the outcomes that this order decides."""
        if isinstance(order, ApplyUpdate):
            if not self.several:
                return [self._applied(worker, step, order.version) for worker, step, _ in order.contributions]
            return [
                self._applied(worker, one, order.version)
                for worker, step, _ in order.contributions
                for one in self.several.pop((worker, step), (step,))
            ]
        if isinstance(order, StartPush):
            if order.since is not None:
                self.several[order.worker, order.step] = steps_of(order)
            return ()
        if isinstance(order, StepReplica):
            if order.group is not None:  # once for all members; some may have left
                mean = self.gathered.pop(order.group, ())
                return [self._applied(worker, step, order.version, True, order.group) for worker, step, _ in mean]
            applied = self._applied(order.worker, order.step, order.version, replica=True)
            if (order.worker, order.step) in self.undone:
                return ()
            self.alone.setdefault(order.worker, {})[order.step] = applied
            return (applied,)
        if isinstance(order, DropUpdate):
            self.several.pop((order.worker, order.step), None)
            return [self._dropped(order, step) for step in steps_of(order)]
        if isinstance(order, SwitchProtocol):
            if order.version is not None:  # which has all replicas
                self.alone.clear()
            return ()
        if isinstance(order, Reduce):
            if order.what == "gradients":
                self.gathered[order.group] = order.contributions
            elif len(order.members) > 1:
                self.averaging[order.group] = order.members
        return ()

    def _dropped(self, order: DropUpdate, step: int) -> Dropped:
        self.ready.pop((order.worker, step), None)
        return Dropped(order.worker, step, self.taken_back(order.worker, step), order.why)

    def taken_back(self, worker: int, step: int) -> Applied | None:
        """Take back a step that only this worker's replica had, and return it; None if there is no such step."""
        return self.alone.get(worker, {}).pop(step, None)

    def _applied(
        self, worker: int, step: int, version: int, replica: bool = False, group: int | None = None
    ) -> Applied:
        on, samples = self.ready.pop((worker, step), (None, None))
        return Applied(worker, step, version, None if on is None else version - 1 - on, samples, replica, group)
