"""What is recorded of a run: versions that the store made, or means of all replicas. What is known of the files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from paceline.coordinator.clock import RunClock
from paceline.coordinator.data import TrainingData
from paceline.coordinator.edits import Edits
from paceline.coordinator.run_policy import RunPolicy
from paceline.core.facts import Fact, ReplicaCopied, WorkerJoined, WorkerLeft
from paceline.host.cluster import Cluster
from paceline.host.contract import SwitchVersion
from paceline.host.events import SwitchMade
from paceline.ipc import messages
from paceline.job.settings import Settings
from paceline.records.journal import Journal
from paceline.records.recording_schedule import RecordingSchedule
from paceline.records.segments import LACKING


@dataclass(frozen=True, slots=True)
class Made:
    """A version that is whole: when, in seconds since the run's start, and from how many samples in all."""

    version: int
    at: float
    samples: int
    replicas: int = 0
    """If it is a mean: of how many replicas."""
    distance: float | None = None
    """Their distance from it, as far as that is known before it is on disk."""


class _Ordered(NamedTuple):
    """A version that is not made yet."""

    samples: int
    lost: Collection[int]
    """Workers whose buffers it goes without."""
    known: messages.store.WorkersTold
    """What it has besides what steps make of it."""


class RecordedVersions:
    """Versions are due each time that another share of an epoch's samples is applied. The last one always is.

    A store makes every version, and writes those that are due. Where each worker owns a replica, a version is the mean
    of a cut through all replicas, which is made when it is due. A switch from one to the other makes a version, too.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        data: TrainingData,
        edits: Edits,
        journal: Journal,
        clock: RunClock,
        policy: RunPolicy,
    ) -> None:
        self.newest = Made(0, 0.0, 0)
        self.hashes: dict[int, str] = {}
        """The versions on disk, in the order in which they were made."""
        self.final: str | None = None
        """The file with the last version, once it is there."""
        self._folder = settings.folder
        self._cluster = cluster
        self._data = data
        self.edits = edits
        """What versions have besides what steps make of them."""
        self._journal = journal
        self._clock = clock
        self._policy = policy
        self._due = RecordingSchedule(settings.record)
        self._writing: dict[int, Made] = {}
        """By version that is written and not noted: when it was made, in that order."""
        self._on_disk: dict[int, tuple[str, float | None]] = {}
        """Of these, by version whose file is there: its SHA-256, and the replicas' distance if that is told with it."""
        self._counted = False
        """Whether samples are counted."""
        self._buffers = "mean"
        self._trained: Sequence[int] = ()
        """Workers that were there as training began."""
        self._lost: dict[int, None] = {}
        """Workers that the machine was told have died: their buffers and replicas count no more."""
        # of the store's
        self._workers = range(settings.workers)
        self._ordered: dict[int, _Ordered] = {}
        self._held: _Ordered | None = None
        """The newest version, as it was ordered, if it is due and may be the last one. See `made`."""
        self._switching: _Ordered | None = None
        """What the version has that a switch is to make."""
        # of means
        self._recording = False
        self._before = self.newest
        """The mean before that one."""
        self._mean_of: tuple[int, int, list[int], tuple[int, int] | None] | None = None
        """What the last mean was made of, as `_replicas_now` returns it."""
        self._again = False
        """Whether a mean is due because one that was due can't be made."""
        self._samples: int | None = None
        """How many samples were in all replicas as one was last ordered a step."""
        self._broken: dict[int, None] = {}
        """Workers whose replicas were left behind in the middle of a step."""

    def begin(self, offer: messages.worker.Offered, workers: Sequence[int]) -> None:
        """Training begins with these workers, and with what the script asked for."""
        self._trained = workers
        self._buffers = offer.buffers or "mean"
        self._counted = offer.loads

    def epoch_opened(self, samples: int) -> None:
        """Set how far apart recordings are, from the first epoch's samples."""
        self._due.epoch_opened(samples)
        self._due.reached(self.newest.samples)

    def resumed(self, version: int, at: float, samples: int, hashes: dict[int, str]) -> None:
        """The run goes on from that version, and has these on disk."""
        self.newest, self.hashes = Made(version, at, samples), hashes

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now. So what is recorded depends only on the order of the facts."""
        match fact:
            case WorkerLeft(worker=worker, reason="died"):
                self._lost[worker] = None
            case WorkerJoined(worker=worker) if not self._data.owned:
                self.counts(worker)
            case ReplicaCopied(worker=worker):
                self.counts(worker)

    def counts(self, worker: int) -> None:
        """What this worker has counts from now on."""
        self._lost.pop(worker, None)
        self._broken.pop(worker, None)
        if worker not in self._trained:
            self._trained = sorted([*self._trained, worker])

    def written(self, version: int, sha256: str, distance: float | None) -> None:
        """That version is on disk. `distance` is the replicas' distance from it, if it is their mean.

        It is noted once all that were made before it are: a mean may be on disk before the store's last version is.
        """
        if distance is not None:
            self._recording = False
        self._on_disk[version] = sha256, distance
        self._note()

    def _note(self) -> None:
        """Note versions that are on disk, in the order in which they were made."""
        while (version := next(iter(self._writing), None)) in self._on_disk:
            assert version is not None
            made, (sha256, distance) = self._writing.pop(version), self._on_disk.pop(version)
            distance = made.distance if distance is None else distance
            if distance is not None:
                self._journal.consensus(version, made.at, made.replicas, distance)
            self.hashes[version] = sha256
            samples = made.samples if self._counted else None
            file = str(self._file(version).relative_to(self._folder))
            self._journal.recorded(version, made.at, samples, sha256, file)

    def conclude(self) -> None:
        """The newest version, which is on disk, is the last."""
        final = self._folder / "versions" / "final.safetensors"
        try:
            os.link(self._file(self.newest.version), final)
        except OSError:  # not every file system has hard links
            shutil.copyfile(self._file(self.newest.version), final)
        self.final = str(final.absolute())

    def files(self) -> list[tuple[int, str]]:
        """(version, file) of all versions on disk, in order."""
        return [(version, self.file(version)) for version in self.hashes]

    def file(self, version: int) -> str:
        """The file of a version that is written, or about to be."""
        return str(self._file(version).absolute())

    def _file(self, version: int) -> Path:
        return self._folder / "versions" / f"{version:08d}.safetensors"

    def _write(self, workers: Sequence[int], known: messages.store.WorkersTold) -> None:
        """Write the newest version, of these workers' buffers or replicas, with what is `known` besides."""
        self._writing[self.newest.version] = self.newest
        file = self.file(self.newest.version)
        self._cluster.record(self.newest.version, workers, file, self._buffers, known)

    def ordered(self, version: int) -> None:
        """The store is to make that version, or a replica its next one. Neither is made yet."""
        if self._data.owned:
            self._step_ordered()
            return
        if self._held is not None:
            self._record_made(self._held)
        self._ordered[version] = self._as_it_is()

    def record_last(self) -> bool:
        """The newest version is the last, and replicas have made their last steps: have it written.

        Return whether there is something left to wait for: a mean is made once the averages under way are.
        """
        if self._data.owned:
            return self._record_last_mean()
        if self.newest.version in self.hashes:
            return False
        self._record_made(self._as_it_is())
        return True

    def switches(self, version: int) -> SwitchVersion:
        """A switch is ordered that makes this version. It is recorded, so a worker can begin with it at any time."""
        made = self._switching = self._as_it_is()
        if self._held is not None:
            self._record_made(self._held)
        if self._data.owned:
            workers = self._policy.averages([one for one in self._survivors() if one not in self._broken])
        else:
            workers = [one for one in self._workers if one not in self._lost] or list(self._workers)
        return SwitchVersion(version, workers, self.file(version), self._buffers, made.known)

    def switched(self, beginning: SwitchMade) -> None:
        """That version is made, and about to be written."""
        made, self._switching = self._switching, None
        assert made is not None
        self._due.reached(made.samples)
        replicas, distance = len(beginning.workers), beginning.distance
        self.newest = Made(beginning.version, self._clock.at(), made.samples, replicas, distance)
        self._writing[beginning.version] = self.newest
        self._trained, self._again, self._samples = beginning.members, False, None
        self._broken.clear()
        self._mean_of = self._replicas_now() if self._data.owned else None

    # --- versions of a store ---------------------------------------------------------------------------

    def made(self, version: int, at: float) -> None:
        """The store has made that version, `at` seconds since the run's start: write it if it is due.

        Where workers tell something beside their updates, the last version has what they told in the end. So the
        newest one is written once it is known whether it is the last.
        """
        made = self._ordered.pop(version)
        self.newest = Made(version, at, made.samples)
        if not self._due.reached(made.samples):
            return
        if self._ordered or made.known == messages.store.UNTOLD or self._switching is not None:
            self._record_made(made)
        else:
            self._held = made

    def _as_it_is(self) -> _Ordered:
        """What a version has that is ordered now. No buffers count of workers that the machine knows to be dead.

        A replay is told the same.
        """
        return _Ordered(self._data.samples, tuple(self._lost), self.edits.known())

    def _record_made(self, made: _Ordered) -> None:
        self._held = None
        alive = [worker for worker in self._workers if worker not in made.lost]
        self._write(alive or list(self._workers), made.known)

    # --- means of replicas -----------------------------------------------------------------------------

    def void(self, version: int, workers: Sequence[int]) -> None:
        """That mean can't be made, as these workers died in a step. Once the machine knows that, the next one is due.

        A replay knows from the ledger when that was.
        """
        self._recording, self._again, self._mean_of = False, True, None
        self._broken.update(dict.fromkeys(workers))
        del self._writing[version]
        self._note()
        if self.newest.version == version:
            self.newest = self._before

    def _step_ordered(self) -> None:
        """A replica is to make its next version: record the mean of all if that is due.

        It is not due after a further step of a batch, which has no samples of its own: a replay knows a mean by its
        samples.
        """
        before, self._samples = self._samples, self._data.samples
        if self._recording or (self._counted and self._samples == before):
            return
        survivors = self._survivors()
        if self._again or self._policy.mean_due(self._data.samples, len(survivors), self._due):
            self._again = False
            self._record_mean(survivors)

    def _record_last_mean(self) -> bool:
        """All replicas have made their last steps: have their mean written once the averages under way are made."""
        if self._recording or self._cluster.progress.averaging:
            return True
        lacking = self._broken.keys() | self._policy.lacking
        there = [worker for worker in self._survivors() if worker not in lacking]
        if self._mean_of == self._replicas_now() or not there:
            return False
        if lacking:
            self._journal.ledger.note(LACKING, sorted(lacking))
        self._record_mean(there)
        return self._recording or self._record_last_mean()

    def _record_mean(self, workers: list[int]) -> None:
        """The mean of these workers' replicas as they are at this moment is the next version: write it."""
        self._before, version = self.newest, self.newest.version + 1
        self.newest = Made(version, self._clock.at(), self._data.samples, len(workers))
        self._recording, self._mean_of = True, self._replicas_now()
        self._write(workers, self.edits.known())

    def _replicas_now(self) -> tuple[int, int, list[int], tuple[int, int] | None]:
        """Steps and averages so far, whose replicas count, and the values that a worker has told beside its updates.

        The mean changes when any of these does. Workers tell such values after their last step, too.
        """
        return self._data.ordered_steps, self._cluster.progress.averages, self._survivors(), self.edits.known().own

    def _survivors(self) -> list[int]:
        """Workers whose replicas count: those that began to train and have not died.

        Where gradients are averaged, all replicas are the same, except those that the last steps went without.
        """
        workers = [worker for worker in self._trained if worker not in self._lost]
        return self._data.foremost(workers) if self._cluster.spec.pushes == "gradient" else workers
