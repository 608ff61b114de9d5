"""What each update came to: derived here once, for summaries, checks, explanations, timelines and reports.

`UpdateOutcomes` is told facts and orders as they come. It keeps what is outstanding, so that its memory does not grow
with a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.facts import Fact, GradientReady, ReduceFailed, ReduceFinished, TrainingBegan
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Reduce, StepReplica, Why


@dataclass(slots=True)  # a frozen one takes four times as long to make
class Applied:
    """An update went into a version."""

    worker: int
    step: int
    version: int
    """The version that it made, of the store or of its worker's replica."""
    staleness: int | None
    """Versions made between the one that it was computed on and the one that it went into; None if no gradient of that
    step was ready."""
    samples: int | None
    """How many samples are in it; None if they are not counted."""
    replica: bool
    """Whether it stepped a replica."""
    group: int | None
    """The group in whose mean gradient it is, if it is in one."""


@dataclass(slots=True)
class Dropped:
    """An update was never applied, or was lost with the one replica that had it."""

    worker: int
    step: int
    lost: Applied | None
    """What was lost with the replica; None if it had not been applied."""
    why: Why


@dataclass(slots=True)
class Undone:
    """An update was neither applied nor dropped where the run went on from: its samples are used again."""

    worker: int
    step: int


Fate = Applied | Dropped | Undone


@dataclass(slots=True)
class UpdateOutcomes:
    """Follows each update from its gradient to its end. Tell it each fact before the orders of that fact."""

    ready: dict[tuple[int, int], tuple[int, int | None]] = field(default_factory=dict)
    """For each (worker, step) neither applied nor dropped yet: its version, and the samples in it."""
    alone: dict[int, dict[int, Applied]] = field(default_factory=dict)
    """By worker: steps in its replica since that was last averaged. They are lost if it dies."""
    averaging: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The members of each group of several that is averaging replicas."""
    gathered: dict[int, tuple[tuple[int, int, float], ...]] = field(default_factory=dict)
    """For each group whose mean gradient has stepped no replica yet: what is in that mean."""

    def fact(self, fact: Fact) -> Sequence[Undone]:
        """Take note of a fact. Return the updates that it undoes: where a run is resumed, those that are outstanding.

        A snapshot has every replica, so no step is in one of them alone any more.
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
            for outstanding in (self.ready, self.alone, self.averaging, self.gathered):
                outstanding.clear()
            return undone
        return ()

    def order(self, order: Order) -> Sequence[Applied | Dropped]:
        """Return the fates that this order decides."""
        if isinstance(order, ApplyUpdate):
            return [self._applied(worker, step, order.version) for worker, step, _ in order.contributions]
        if isinstance(order, StepReplica):
            if order.group is not None:  # once for all members; some may have left
                mean = self.gathered.pop(order.group, ())
                return [self._applied(worker, step, order.version, True, order.group) for worker, step, _ in mean]
            applied = self._applied(order.worker, order.step, order.version, replica=True)
            self.alone.setdefault(order.worker, {})[order.step] = applied
            return (applied,)
        if isinstance(order, DropUpdate):
            self.ready.pop((order.worker, order.step), None)
            return (Dropped(order.worker, order.step, self.taken_back(order.worker, order.step), order.why),)
        if isinstance(order, Reduce):
            if order.what == "gradients":
                self.gathered[order.group] = order.contributions
            elif len(order.members) > 1:
                self.averaging[order.group] = order.members
        return ()

    def taken_back(self, worker: int, step: int) -> Applied | None:
        """Take back a step that only this worker's replica had. Return what it was; None if there is no such step."""
        return self.alone.get(worker, {}).pop(step, None)

    def _applied(
        self, worker: int, step: int, version: int, replica: bool = False, group: int | None = None
    ) -> Applied:
        on, samples = self.ready.pop((worker, step), (None, None))
        return Applied(worker, step, version, None if on is None else version - 1 - on, samples, replica, group)
