"""What each update came to: derived here once, for summaries, checks, explanations, timelines and reports.

`Fates` is told facts and orders as they come. It keeps what is outstanding, so that its memory does not grow with a
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core.facts import Fact, GradientReady, ReduceFailed, ReduceFinished
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Reduce, StepReplica, Why


class Applied(NamedTuple):
    """An update went into a version."""

    worker: int
    step: int
    version: int
    """The version that it made, of the store or of its worker's replica."""
    on: int | None
    """The version that it was computed on; None if no gradient of that step was ready."""
    samples: int | None
    """How many samples are in it; None if they are not counted."""
    replica: bool
    """Whether it stepped a replica."""
    group: int | None
    """The group in whose mean gradient it is, if it is in one."""

    @property
    def staleness(self) -> int | None:
        """Versions made between the one that it was computed on and the one that it went into."""
        return None if self.on is None else self.version - 1 - self.on


class Dropped(NamedTuple):
    """An update was never applied, or was lost with the one replica that had it."""

    worker: int
    step: int
    lost: Applied | None
    """What was lost with the replica; None if it had not been applied."""
    why: Why


Fate = Applied | Dropped


@dataclass(slots=True)
class Fates:
    """Follows each update from its gradient to its end. Tell it each fact before the orders of that fact."""

    ready: dict[tuple[int, int], tuple[int, int | None]] = field(default_factory=dict)
    """For each (worker, step) neither applied nor dropped yet: its version, and the samples in it."""
    alone: dict[int, dict[int, Applied]] = field(default_factory=dict)
    """By worker: steps in its replica since that was last averaged. They are lost if it dies."""
    averaging: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The members of each group of several that is averaging replicas."""
    gathered: dict[int, tuple[tuple[int, int, float], ...]] = field(default_factory=dict)
    """For each group whose mean gradient has stepped no replica yet: what is in that mean."""

    def fact(self, fact: Fact) -> None:
        """Take note of a fact."""
        match fact:
            case GradientReady():
                self.ready[fact.worker, fact.step] = (fact.version, fact.samples)
            case ReduceFinished(group=group):
                for worker in self.averaging.pop(group, ()):
                    self.alone.pop(worker, None)
            case ReduceFailed(group=group):
                self.averaging.pop(group, None)
                self.gathered.pop(group, None)

    def order(self, order: Order) -> Sequence[Fate]:
        """Return the fates that this order decides."""
        match order:
            case ApplyUpdate(version=version, contributions=contributions):
                return [self._applied(worker, step, version) for worker, step, _ in contributions]
            case StepReplica(group=None):
                applied = self._applied(order.worker, order.step, order.version, replica=True)
                self.alone.setdefault(order.worker, {})[order.step] = applied
                return (applied,)
            case StepReplica(version=version, group=int(group)):  # once for all members; some may have left
                mean = self.gathered.pop(group, ())
                return [self._applied(worker, step, version, True, group) for worker, step, _ in mean]
            case DropUpdate(worker=worker, step=step):
                self.ready.pop((worker, step), None)
                return (Dropped(worker, step, self.taken_back(worker, step), order.why),)
            case Reduce(group=group, what="gradients"):
                self.gathered[group] = order.contributions
            case Reduce(group=group, members=members) if len(members) > 1:
                self.averaging[group] = members
        return ()

    def taken_back(self, worker: int, step: int) -> Applied | None:
        """Take back a step that only this worker's replica had. Return what it was; None if there is no such step."""
        return self.alone.get(worker, {}).pop(step, None)

    def _applied(
        self, worker: int, step: int, version: int, replica: bool = False, group: int | None = None
    ) -> Applied:
        on, samples = self.ready.pop((worker, step), (None, None))
        return Applied(worker, step, version, on, samples, replica, group)
