"""What is recorded of a run: versions that the store made, or means of all replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.core.items import Replica, Version
from paceline.host import messages
from paceline.host.host import Host
from paceline.host.member import Member
from paceline.records.journal import Journal
from paceline.runtime.recordings import Made, Recordings


class _Versions:
    """What both have in common."""

    def __init__(self, host: Host, members: Mapping[int, Member], recordings: Recordings) -> None:
        self._host = host
        self._members = members
        self._recordings = recordings
        self._buffers = "mean"

    def begin(self, offer: messages.Offered) -> None:
        """Training begins, with what the script asked for."""
        self._buffers = offer.buffers or "mean"
        self._recordings.counted = offer.loads

    def made(self, version: int, at: float) -> None:
        """The store has made that version, `at` seconds since the run's start."""

    def written(self, version: int, sha256: str, distance: float | None) -> None:
        """The store has written that version. `distance` is the replicas' distance from it, if it is their mean."""
        self._recordings.written(version, sha256)

    def _write(self, order: messages.Record | messages.RecordMean, *items: Replica | Version) -> None:
        assert self._host.arithmetic is not None  # nothing is ordered before it is there
        self._host.arithmetic.write(order, *items)


class StoredVersions(_Versions):
    """The store makes every version, and writes those that are due."""

    def __init__(self, host: Host, members: Mapping[int, Member], recordings: Recordings) -> None:
        super().__init__(host, members, recordings)
        self._there: dict[int, list[int]] = {}
        """By version that is not made yet: the workers whose buffers it has."""

    def ordered(self, version: int) -> None:
        """The store is to make that version, which is not made yet."""
        self._recordings.ordered(version, self._host.samples)
        self._there[version] = self._survivors()

    def made(self, version: int, at: float) -> None:
        """The store has made that version: write it if it is due."""
        there = self._there.pop(version)
        if self._recordings.made(version, at):
            self._record(there)

    def record_last(self) -> bool:
        """The newest version is the last: have it written. Return whether there is something left to wait for."""
        if self._recordings.newest.version in self._recordings.hashes:
            return False
        self._record(self._survivors())
        return True

    def _survivors(self) -> list[int]:
        """Workers whose buffers count: those that the machine does not know to be dead. A replay is told the same."""
        return [worker for worker in self._members if worker not in self._host.lost] or list(self._members)

    def _record(self, workers: list[int]) -> None:
        """Write the newest version, with these workers' buffers."""
        version = self._recordings.newest.version
        self._write(
            messages.Record(
                version=version,
                slot=self._host.shelf.place(Version(version)),
                file=self._recordings.begin(),
                workers=workers,
                buffers=self._buffers,
            ),
            Version(version),
        )


class Means(_Versions):
    """A version is the mean of a cut through all replicas, made when it is due to be written."""

    def __init__(
        self,
        host: Host,
        averages_gradients: bool,
        members: Mapping[int, Member],
        recordings: Recordings,
        journal: Journal,
        now: Callable[[], float],
    ) -> None:
        """`now()` is seconds since the run's start."""
        super().__init__(host, members, recordings)
        self._now = now
        self._averages_gradients = averages_gradients
        self._journal = journal
        self._recording = False
        self._cut: tuple[int, Made] = 0, recordings.newest
        """Of how many replicas the mean is that is being recorded, and when it was made."""
        self._mean_of: tuple[int, int, list[int]] | None = None
        """What the last mean was made of, as `_replicas_now` returns it."""

    def ordered(self, version: int) -> None:
        """A replica is to make its next version: record the mean of all if that is due."""
        if not self._recording and self._recordings.due(self._host.samples, len(self._survivors())):
            self._record()

    def record_last(self) -> bool:
        """No replica makes a step any more: have their mean written once the averages under way are made.

        As in `StoredVersions`.
        """
        if self._recording or self._host.averages.averaging:
            return True
        if self._mean_of == self._replicas_now() or not self._survivors():
            return False
        self._record()
        return True

    def written(self, version: int, sha256: str, distance: float | None) -> None:
        """The store has written that mean."""
        assert distance is not None
        replicas, made = self._cut
        self._recording = False
        self._journal.consensus(version, made.at, replicas, distance)
        super().written(version, sha256, distance)

    def _record(self) -> None:
        """The mean of all replicas as they are at this moment is the next version: write it."""
        recordings, version = self._recordings, self._recordings.newest.version + 1
        recordings.ordered(version, self._host.samples)
        recordings.made(version, self._now())
        file, made = recordings.begin(), recordings.newest
        self._recording, self._mean_of = True, self._replicas_now()

        def record(replicas: list[Replica], places: list[int], target: int) -> None:
            self._cut = len(replicas), made
            order = messages.RecordMean(version, places, target, file, self._buffers)
            self._write(order, *replicas, Version(version))

        self._host.copies.cut(self._survivors(), version, record)

    def _replicas_now(self) -> tuple[int, int, list[int]]:
        """Steps and averages so far, and whose replicas count. The mean changes when any of these does."""
        return self._host.steps.steps, self._host.averages.made, self._survivors()

    def _survivors(self) -> list[int]:
        """Workers whose replicas count: those that began to train and have not died.

        Where gradients are averaged, all replicas are the same, except those that the last steps went without.
        """
        lost = self._host.lost
        workers = [worker for worker in self._host.steps.workers if worker not in lost]
        return self._host.steps.foremost(workers) if self._averages_gradients else workers
