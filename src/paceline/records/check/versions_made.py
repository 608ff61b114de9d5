"""The versions that can have been recorded, and with how many samples, as far as facts and orders show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.orders import ApplyUpdate, Order, StepReplica
from paceline.records.recording_schedule import RecordingSchedule
from paceline.records.update_outcomes import Applied, Dropped


@dataclass(slots=True)
class VersionsMade:
    """The versions that facts and orders allow, with their samples, counted like a run."""

    recorded: Mapping[int, int | None] = field(default_factory=dict)
    """By recorded version: its samples as noted."""
    due: RecordingSchedule | None = None
    """When a version of the store is to be recorded; None if the ledger has no `record`."""
    versions: dict[int, int] = field(default_factory=dict)
    """Samples in each of the store's versions that were recorded, and that an order made."""
    last: int = 0
    """The store's last version."""
    expected: set[int] = field(default_factory=set)
    """The store's versions that were due."""
    means: list[int] = field(default_factory=list)
    """Samples in the mean of all replicas after each of their steps, if a recorded mean has as many."""
    samples: int = 0
    _samples: frozenset[int | None] = frozenset()
    """The samples of recorded versions."""
    _gathered: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (worker, step) of a group's mean gradient: its samples, until the worker's own replica makes the step."""

    def __post_init__(self) -> None:
        self._samples = frozenset(self.recorded.values())

    def order(self, order: Order, outcomes: Sequence[Applied | Dropped]) -> None:
        """Take an order, and the outcomes of updates that it decides."""
        for outcome in outcomes:
            if isinstance(outcome, Dropped):
                self.samples -= 0 if outcome.lost is None else outcome.lost.samples or 0
            elif outcome.group is None:
                self.samples += outcome.samples or 0
            else:
                self._gathered[outcome.worker, outcome.step] = outcome.samples or 0
        match order:
            case ApplyUpdate(version=version):
                self.last = version
                if version in self.recorded:
                    self.versions[version] = self.samples
                if self.due is not None and self.due.reached(self.samples):
                    self.expected.add(version)
            case StepReplica(worker=worker, step=step):
                self.samples += self._gathered.pop((worker, step), 0)
                if self.samples in self._samples:
                    self.means.append(self.samples)
