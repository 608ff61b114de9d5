"""The versions that can have been recorded, and with how many samples, as far as facts and orders show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.choice import Choice
from paceline.core.orders import ApplyUpdate, Order, StepReplica, SwitchProtocol
from paceline.records.recording_schedule import RecordingSchedule
from paceline.records.update_outcomes import Applied, Dropped


@dataclass(slots=True)
class VersionsMade:
    """The versions that facts and orders allow, with their samples, counted like a run."""

    choice: Choice
    recorded: Mapping[int, int | None] = field(default_factory=dict)
    """By recorded version: its samples as noted."""
    due: RecordingSchedule | None = None
    """When a version of the store is to be recorded; None if the ledger has no `record`."""
    versions: dict[int, int] = field(default_factory=dict)
    """Samples in each of the versions that were recorded, and that an order made."""
    last: int = 0
    """The last version that an order made."""
    expected: set[int] = field(default_factory=set)
    """The versions that orders made and that were due."""
    spans: list[tuple[int, float]] = field(default_factory=list)
    """While workers owned replicas: the version that they began with, and the one that has the mean of all in the end.
    The last span may go on for ever."""
    means: list[int] = field(default_factory=list)
    """Samples in the mean of all replicas after each of their steps, if a recorded mean has as many."""
    samples: int = 0
    _samples: frozenset[int | None] = frozenset()
    """The samples of recorded versions."""
    _gathered: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (worker, step) of a group's mean gradient: its samples, until the worker's own replica makes the step."""

    def __post_init__(self) -> None:
        self._samples = frozenset(self.recorded.values())
        if self.choice.part(self.choice.begins).spec.state == "replicas":
            self.spans.append((0, math.inf))

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
            case SwitchProtocol(version=int() as version):
                self._switch(order, version)
            case StepReplica(worker=worker, step=step):
                self.samples += self._gathered.pop((worker, step), 0)
                if self.samples in self._samples:
                    self.means.append(self.samples)

    @property
    def ends_in_replicas(self) -> bool:
        """Whether workers own replicas after the last order."""
        return bool(self.spans) and self.spans[-1][1] == math.inf

    def is_mean(self, version: int) -> bool:
        """Whether that version has the mean of all replicas."""
        return any(begin < version <= end for begin, end in self.spans)

    def _switch(self, order: SwitchProtocol, version: int) -> None:
        """A switch makes that version, and it is recorded."""
        self.last = version
        self.expected.add(version)
        if version in self.recorded:
            self.versions[version] = self.samples
        if self.due is not None:
            self.due.reached(self.samples)
        if self.ends_in_replicas:
            self.spans[-1] = self.spans[-1][0], version
        if self.choice.part(self.choice.part_of(order)).spec.state == "replicas":
            self.spans.append((version, math.inf))
