"""When versions can have been made, and of how many samples, as far as facts and orders tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core.facts import Fact, GradientReady, ReduceFinished, TrainingBegan, WorkerLeft
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Reduce, StepReplica
from paceline.records.due import Due


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
    recorded: Mapping[int, int | None] = field(default_factory=dict)
    """By recorded version: the samples that it was noted with."""
    due: Due | None = None
    """When a version is to be recorded; None if the ledger does not say how many samples an epoch has."""
    versions: dict[int, Made] = field(default_factory=dict)
    """Of the store's versions those that were recorded, and the last one."""
    expected: list[int] = field(default_factory=list)
    """The store's versions that were due."""
    committed: dict[int, float] = field(default_factory=dict)
    """By recorded version: when the store said that it was there."""
    means: list[Made] = field(default_factory=list)
    """After each step of a replica, when a mean may be recorded: of these, those of as many samples as a recorded
    version."""
    steps: int = 0
    """How many steps replicas were ordered to make."""
    first_due: int | None = None
    """The samples in the first mean that was due."""
    samples: int = 0
    at: float = 0.0
    replicas: int = 0
    _samples: frozenset[int | None] = frozenset()
    """In recorded versions."""
    _of: dict[tuple[int, int], int] = field(default_factory=dict)
    """Samples in each (worker, step) that is neither settled nor dropped."""
    _unshared: dict[int, list[int]] = field(default_factory=dict)
    """By worker: steps in its replica that are in no other one yet."""
    _members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By group that averages parameters."""

    def __post_init__(self) -> None:
        self._samples = frozenset(self.recorded.values())

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
            case TrainingBegan():  # what is outstanding is undone, and a snapshot has every replica
                self.replicas = len(fact.members)
                for outstanding in (self._of, self._unshared, self._members):
                    outstanding.clear()
        for order in orders:
            match order:
                case ApplyUpdate(version=version, contributions=contributions):
                    self.samples += sum(self._of.pop((worker, step), 0) for worker, step, _ in contributions)
                    self._made(version, Made(fact.at, self.samples))
                case StepReplica():
                    self._step(order)
                    self._mean(Made(fact.at, self.samples, self.replicas))
                case Reduce(group=group, members=members, what="parameters"):
                    self._members[group] = members
                case DropUpdate(worker=worker, step=step):
                    if step in (unshared := self._unshared.get(worker, [])):
                        unshared.remove(step)
                        self.samples -= self._of.get((worker, step), 0)
                    self._of.pop((worker, step), None)

    def _made(self, version: int, made: Made) -> None:
        if self.versions and (last := max(self.versions)) not in self.recorded:
            del self.versions[last]
        self.versions[version] = made
        if self.due is not None and self.due.reached(made.samples):
            self.expected.append(version)

    def _mean(self, made: Made) -> None:
        self.steps += 1
        if made.samples in self._samples:
            self.means.append(made)
        if self.first_due is None and self.due is not None and self.due.reached(made.samples):
            self.first_due = made.samples

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
