"""What is recorded of a run: versions that the store made, or means of all replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.records.journal import Journal
from paceline.runtime import messages
from paceline.runtime.exchange import Exchange
from paceline.runtime.member import Member
from paceline.runtime.recordings import Made, Recordings
from paceline.runtime.replica_exchange import ReplicaExchange
from paceline.runtime.store_client import StoreClient


class _Versions:
    """What both have in common."""

    def __init__(self, members: Mapping[int, Member], recordings: Recordings) -> None:
        self._members = members
        self._recordings = recordings
        self._store: StoreClient | None = None
        self._buffers = "mean"

    def begin(self, store: StoreClient, offer: messages.Offered) -> None:
        """Training begins, with this store and what the script asked for."""
        self._store = store
        self._buffers = offer.buffers or "mean"
        self._recordings.counted = offer.loads

    def made(self, version: int, at: float) -> None:
        """The store has made that version, `at` seconds since the run's start."""

    def written(self, version: int, sha256: str, distance: float | None) -> None:
        """The store has written that version. `distance` is the replicas' distance from it, if it is their mean."""
        self._recordings.written(version, sha256)

    def _stored(self) -> StoreClient:
        assert self._store is not None  # nothing is ordered before the store is there
        return self._store


class StoredVersions(_Versions):
    """The store makes every version, and writes those that are due."""

    def __init__(self, exchange: Exchange, members: Mapping[int, Member], recordings: Recordings) -> None:
        super().__init__(members, recordings)
        self._exchange = exchange
        self._there: dict[int, list[int]] = {}
        """By version that is not made yet: the workers whose buffers it has."""

    def ordered(self, version: int) -> None:
        """The store is to make that version, which is not made yet."""
        self._recordings.ordered(version, self._exchange.samples)
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
        return [worker for worker in self._members if worker not in self._exchange.lost] or list(self._members)

    def _record(self, workers: list[int]) -> None:
        """Write the newest version, with these workers' buffers."""
        version = self._recordings.newest.version
        self._stored().record(
            messages.Record(
                version=version,
                slot=self._stored().slots.where[version],
                file=self._recordings.begin(),
                workers=workers,
                buffers=self._buffers,
            )
        )


class Means(_Versions):
    """A version is the mean of a cut through all replicas, made when it is due to be written."""

    def __init__(
        self,
        replicas: ReplicaExchange,
        averages_gradients: bool,
        members: Mapping[int, Member],
        recordings: Recordings,
        journal: Journal,
        now: Callable[[], float],
    ) -> None:
        """`now()` is seconds since the run's start."""
        super().__init__(members, recordings)
        self._now = now
        self._replicas = replicas
        self._averages_gradients = averages_gradients
        self._journal = journal
        self._recording = False
        self._cut: tuple[list[int], int, Made] = [], 0, recordings.newest
        """The areas of the replicas whose mean is being recorded, the area of the mean, and when it was made."""
        self._mean_of: tuple[int, int, list[int]] | None = None
        """What the last mean was made of, as `_replicas_now` returns it."""

    def ordered(self, version: int) -> None:
        """A replica is to make its next version: record the mean of all if that is due."""
        if not self._recording and self._recordings.due(self._replicas.samples, len(self._survivors())):
            self._record()

    def record_last(self) -> bool:
        """No replica makes a step any more: have their mean written once the averages under way are made.

        As in `StoredVersions`.
        """
        if self._recording or self._replicas.averaging:
            return True
        if self._mean_of == self._replicas_now() or not self._survivors():
            return False
        self._record()
        return True

    def written(self, version: int, sha256: str, distance: float | None) -> None:
        """The store has written that mean."""
        assert distance is not None
        areas, target, made = self._cut
        self._recording = False
        self._replicas.cut_done(areas, target)
        self._journal.consensus(version, made.at, len(areas), distance)
        super().written(version, sha256, distance)

    def _record(self) -> None:
        """The mean of all replicas as they are at this moment is the next version: write it."""
        recordings, version = self._recordings, self._recordings.newest.version + 1
        recordings.ordered(version, self._replicas.samples)
        recordings.made(version, self._now())
        file, made = recordings.begin(), recordings.newest
        self._recording, self._mean_of = True, self._replicas_now()

        def record(areas: list[int], target: int) -> None:
            self._cut = areas, target, made
            self._stored().record_mean(messages.RecordMean(version, areas, target, file, self._buffers))

        self._replicas.cut(self._survivors(), record)

    def _replicas_now(self) -> tuple[int, int, list[int]]:
        """Steps and averages so far, and whose replicas count. The mean changes when any of these does."""
        return self._replicas.steps, self._replicas.averages, self._survivors()

    def _survivors(self) -> list[int]:
        """Workers whose replicas count: those that began to train and have not died.

        Where gradients are averaged, all replicas are the same, except those that the last steps went without.
        """
        lost = self._replicas.lost
        workers = [worker for worker in self._replicas.replicas if worker not in lost]
        return self._replicas.foremost(workers) if self._averages_gradients else workers
