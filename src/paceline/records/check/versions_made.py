"""When versions can have been made, and with how many samples, as far as facts and orders show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core.facts import Fact, TrainingBegan, WorkerLeft
from paceline.core.orders import ApplyUpdate, Order, StepReplica
from paceline.records.check.first_mean import FirstMean
from paceline.records.recording_schedule import RecordingSchedule
from paceline.records.update_outcomes import Dropped, Fate, Undone, UpdateOutcomes


class PossibleVersion(NamedTuple):
    """A version that was made, or a mean of replicas that could be."""

    at: float
    """The moment of the fact from which its order follows."""
    samples: int
    replicas: int = 0
    """Workers that were not dead by then."""


@dataclass(slots=True)
class VersionsMade:
    """The versions that facts and orders allow, with their samples, counted like a run."""

    undone: frozenset[tuple[int, int]] = frozenset()
    """Steps that a replica was ordered and did not make."""
    recorded: Mapping[int, int | None] = field(default_factory=dict)
    """By recorded version: its samples as noted."""
    due: RecordingSchedule | None = None
    """When a version is to be recorded; None if the ledger has no `record`."""
    versions: dict[int, PossibleVersion] = field(default_factory=dict)
    """The store's recorded versions, and its last one."""
    expected: list[int] = field(default_factory=list)
    """The store's versions that were due."""
    means: list[PossibleVersion] = field(default_factory=list)
    """Means that may have been recorded after a replica's step: those with as many samples as a recorded version."""
    steps: int = 0
    """Steps that replicas were ordered to make."""
    first: FirstMean = field(default_factory=FirstMean)
    """The samples that the first mean may have."""
    samples: int = 0
    at: float = 0.0
    replicas: int = 0
    _samples: frozenset[int | None] = frozenset()
    """The samples of recorded versions."""
    _fates: UpdateOutcomes = field(default_factory=UpdateOutcomes)

    def __post_init__(self) -> None:
        self._samples = frozenset(self.recorded.values())

    def record(self, fact: Fact, orders: Iterable[Order]) -> None:
        self.at = fact.at
        self._fates.fact(fact)
        self.first.fact(fact)
        match fact:
            case WorkerLeft(reason="died"):
                self.replicas -= 1
            case TrainingBegan():
                self.replicas = len(fact.members)
        mean: dict[tuple[int, int], int] = {}
        for order in orders:
            for fate in self._fates.order(order):
                self._count(fate, mean)
            match order:
                case ApplyUpdate(version=version):
                    self._made(version, PossibleVersion(fact.at, self.samples))
                case StepReplica(worker=worker, step=step):
                    self.samples += mean.pop((worker, step), 0)
                    self._mean(worker, step, PossibleVersion(fact.at, self.samples, self.replicas))

    def _count(self, fate: Fate, mean: dict[tuple[int, int], int]) -> None:
        """Count the update's samples, or put them into `mean`, for when its worker's own replica makes the step."""
        if isinstance(fate, Dropped):
            self.samples -= 0 if fate.lost is None else fate.lost.samples or 0
        elif isinstance(fate, Undone):
            return  # it is in no version
        elif fate.group is not None:
            mean[fate.worker, fate.step] = fate.samples or 0
        elif fate.replica and (fate.worker, fate.step) in self.undone:
            self._fates.taken_back(fate.worker, fate.step)
        else:
            self.samples += fate.samples or 0

    def _made(self, version: int, made: PossibleVersion) -> None:
        if self.versions and (last := max(self.versions)) not in self.recorded:
            del self.versions[last]
        self.versions[version] = made
        if self.due is not None and self.due.reached(made.samples):
            self.expected.append(version)

    def _mean(self, worker: int, step: int, made: PossibleVersion) -> None:
        self.steps += 1
        if made.samples in self._samples:
            self.means.append(made)
        due = self.due is not None and self.due.reached(made.samples)
        self.first.stepped(worker, made.samples, makes=(worker, step) not in self.undone, due=due)
