"""When versions can have been made, and of how many samples, as far as facts and orders tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core.facts import Fact, GradientReady, ReduceFinished, TrainingBegan, WorkerLeft
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Reduce, StepReplica


class Made(NamedTuple):
    """A version that was made, or a mean of replicas that could be."""

    at: float
    """The moment of the fact from which its order follows."""
    samples: int
    replicas: int = 0
    """Workers that were not dead by then."""


@dataclass(slots=True)
class VersionsMade:
    """When the facts and orders allow versions, and of how many samples: counted as a run does."""

    undone: frozenset[tuple[int, int]] = frozenset()
    """Steps that no replica made, though one was ordered to."""
    versions: dict[int, Made] = field(default_factory=dict)
    """The store's versions."""
    committed: dict[int, float] = field(default_factory=dict)
    """By version: when the store said that it was there."""
    means: list[Made] = field(default_factory=list)
    """After each step of a replica, when a mean may be recorded; the last one is that of the present."""
    samples: int = 0
    at: float = 0.0
    replicas: int = 0
    _of: dict[tuple[int, int], int] = field(default_factory=dict)
    """Samples in each (worker, step) that is neither settled nor dropped."""
    _unshared: dict[int, list[int]] = field(default_factory=dict)
    """By worker: steps in its replica that are in no other one yet."""
    _members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By group that averages parameters."""

    def record(self, fact: Fact, orders: Iterable[Order]) -> None:
        """A fact and its orders."""
        self.at = fact.at
        match fact:
            case GradientReady(worker=worker, step=step):
                self._of[worker, step] = fact.samples or 0
            case ReduceFinished(group=group):
                for member in self._members.pop(group, ()):
                    self._share(member)
            case WorkerLeft(worker=worker, reason="died"):
                self.replicas -= 1
            case WorkerLeft(worker=worker):
                self._share(worker)
            case TrainingBegan():
                self.replicas = len(fact.members)
        for order in orders:
            match order:
                case ApplyUpdate(version=version, contributions=contributions):
                    self.samples += sum(self._of.pop((worker, step), 0) for worker, step, _ in contributions)
                    self.versions[version] = Made(fact.at, self.samples)
                case StepReplica():
                    self._step(order)
                    self.means.append(Made(fact.at, self.samples, self.replicas))
                case Reduce(group=group, members=members, what="parameters"):
                    self._members[group] = members
                case DropUpdate(worker=worker, step=step):
                    if step in (unshared := self._unshared.get(worker, [])):
                        unshared.remove(step)
                        self.samples -= self._of.get((worker, step), 0)
                    self._of.pop((worker, step), None)

    def _step(self, order: StepReplica) -> None:
        worker, step = order.worker, order.step
        if order.group is not None:  # the gradient is in every replica
            self.samples += self._of.pop((worker, step), 0)
        elif (worker, step) not in self.undone:
            self._unshared.setdefault(worker, []).append(step)
            self.samples += self._of.get((worker, step), 0)

    def _share(self, worker: int) -> None:
        for step in self._unshared.pop(worker, ()):
            self._of.pop((worker, step), None)
