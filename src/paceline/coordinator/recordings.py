"""Which versions are written to disk, and what is known of them."""

from __future__ import annotations

import os
import shutil
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from paceline.records.journal import Journal
from paceline.records.recording_schedule import RecordingSchedule


@dataclass(frozen=True, slots=True)
class Made:
    """A version that is whole: when, in seconds since the run's start, and from how many samples in all."""

    version: int
    at: float
    samples: int


class Recordings:
    """Versions are due each time that another share of an epoch's samples is applied. The last one always is."""

    def __init__(self, folder: Path, times_an_epoch: int, journal: Journal) -> None:
        self._folder = folder
        self._journal = journal
        self.prescribed: deque[tuple[int, int]] | None = None
        """Of each mean of replicas, of how many samples it is due, and of how many replicas at most, if that is settled
        beforehand: else when one is due depends on how fast the one before it was written. With a death samples get
        fewer, and come to the same number a second time; replicas do not."""
        self.lacking: frozenset[int] = frozenset()
        """Workers whose replicas the last mean goes without, if that is settled beforehand. See `segments.LACKING`."""
        self._due = RecordingSchedule(times_an_epoch)
        self._ordered: dict[int, int] = {}
        self._writing: dict[int, Made] = {}
        self.newest = Made(0, 0.0, 0)
        self.hashes: dict[int, str] = {}
        """The versions on disk, in the order in which they were made."""
        self.final: str | None = None
        """The file with the last version, once it is there."""
        self.counted = False
        """Whether samples are counted."""

    def epoch_opened(self, samples: int) -> None:
        """Set how far apart recordings are, from the first epoch's samples."""
        self._due.epoch_opened(samples)
        self._due.reached(self.newest.samples)

    def resumed(self, version: int, at: float, samples: int, hashes: dict[int, str]) -> None:
        """The run goes on from that version, and has these on disk."""
        self.newest, self.hashes = Made(version, at, samples), hashes

    def ordered(self, version: int, samples: int) -> None:
        """That version is to be made, from so many samples in all."""
        self._ordered[version] = samples

    def made(self, version: int, at: float) -> bool:
        """That version is whole. Return whether it is due to be written."""
        self.newest = Made(version, at, self._ordered.pop(version))
        return self.due(self.newest.samples)

    def void(self, version: int, before: Made) -> None:
        """That version will not be whole. The one before is the newest."""
        del self._writing[version]
        self.newest = before

    def due(self, samples: int, replicas: int = 0) -> bool:
        """Whether these samples complete another share of an epoch. Asked again with the same samples, it is False."""
        if self.prescribed is not None:
            if not self.prescribed or samples < self.prescribed[0][0] or replicas > self.prescribed[0][1]:
                return False
            self.prescribed.popleft()
            return True
        return self._due.reached(samples)

    def begin(self) -> str:
        """The newest version is being written to this file."""
        self._writing[self.newest.version] = self.newest
        return self.file(self.newest.version)

    def written(self, version: int, sha256: str) -> None:
        """The version is on disk."""
        made = self._writing.pop(version)
        self.hashes[version] = sha256
        samples = made.samples if self.counted else None
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
