"""What is recorded of a run: versions that the store made, or means of all replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.coordinator.data import Data
from paceline.coordinator.recordings import Made, Recordings
from paceline.core.facts import Fact, ReplicaCopied, WorkerJoined, WorkerLeft
from paceline.host.contract import Host
from paceline.ipc import messages
from paceline.records.journal import Journal
from paceline.records.segments import LACKING


class _Versions:
    """What both have in common."""

    _of_replicas = False
    """Whether a worker that joins counts once it has a replica."""

    def __init__(self, host: Host, data: Data, recordings: Recordings) -> None:
        self._host = host
        self._data = data
        self._recordings = recordings
        self.known: Callable[[], messages.store.WorkersTold] = messages.store.WorkersTold
        """What a version that is ordered now has besides."""
        self._buffers = "mean"
        self._trained: Sequence[int] = ()
        """Workers that were there as training began."""
        self._lost: dict[int, None] = {}
        """Workers that the machine was told have died: their buffers and replicas count no more."""

    def begin(self, offer: messages.worker.Offered, workers: Sequence[int]) -> None:
        """Training begins with these workers, and with what the script asked for."""
        self._trained = workers
        self._buffers = offer.buffers or "mean"
        self._recordings.counted = offer.loads

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now. So what is recorded depends only on the order of the facts."""
        match fact:
            case WorkerLeft(worker=worker, reason="died"):
                self._lost[worker] = None
            case WorkerJoined(worker=worker) if not self._of_replicas:
                self.counts(worker)
            case ReplicaCopied(worker=worker):
                self.counts(worker)

    def counts(self, worker: int) -> None:
        """What this worker has counts from now on."""
        self._lost.pop(worker, None)

    def written(self, version: int, sha256: str, distance: float | None) -> None:
        """That version is on disk. `distance` is the replicas' distance from it, if it is their mean."""
        self._recordings.written(version, sha256)


class StoredVersions(_Versions):
    """The store makes every version, and writes those that are due."""

    def __init__(self, host: Host, data: Data, workers: Sequence[int], recordings: Recordings) -> None:
        """`workers` are all of the run."""
        super().__init__(host, data, recordings)
        self._workers = workers
        self._there: dict[int, tuple[Sequence[int], messages.store.WorkersTold]] = {}
        """By version that is not made yet: the workers whose buffers it has, and what it has besides."""
        self._held: tuple[Sequence[int], messages.store.WorkersTold] | None = None
        """The same of the newest version, if that is due, and may be the last one. See `made`."""
        self._alive: Sequence[int] = ()
        """The workers whose buffers count. It is made anew as workers die or return, and not for each version."""
        self._alive_without: dict[int, None] | None = None
        """Those that had died as it was made."""

    def ordered(self, version: int) -> None:
        """The store is to make that version, which is not made yet."""
        if self._held is not None:
            self._record(*self._held)
        self._recordings.ordered(version, self._data.samples)
        self._there[version] = self._survivors(), self.known()

    def made(self, version: int, at: float) -> None:
        """The store has made that version, `at` seconds since the run's start: write it if it is due.

        Where workers tell something beside their updates, the last version has what they told in the end. So the
        newest one is written once it is known whether it is the last.
        """
        there = self._there.pop(version)
        if not self._recordings.made(version, at):
            return
        if self._there or there[1] == messages.store.UNTOLD:
            self._record(*there)
        else:
            self._held = there

    def record_last(self) -> bool:
        """The newest version is the last: have it written. Return whether there is something left to wait for."""
        if self._recordings.newest.version in self._recordings.hashes:
            return False
        self._record(self._survivors(), self.known())
        return True

    def _survivors(self) -> Sequence[int]:
        """Workers whose buffers count: those that the machine does not know to be dead. A replay is told the same."""
        if self._alive_without != self._lost:
            self._alive = [worker for worker in self._workers if worker not in self._lost] or list(self._workers)
            self._alive_without = dict(self._lost)
        return self._alive

    def _record(self, workers: Sequence[int], known: messages.store.WorkersTold) -> None:
        """Write the newest version, with these workers' buffers."""
        self._held = None
        self._host.record(self._recordings.newest.version, workers, self._recordings.begin(), self._buffers, known)


class Means(_Versions):
    """A version is the mean of a cut through all replicas, made when it is due to be written."""

    _of_replicas = True

    def __init__(
        self,
        host: Host,
        data: Data,
        averages_gradients: bool,
        recordings: Recordings,
        journal: Journal,
        now: Callable[[], float],
    ) -> None:
        """`now()` is seconds since the run's start."""
        super().__init__(host, data, recordings)
        self._now = now
        self._averages_gradients = averages_gradients
        self._journal = journal
        self._recording = False
        self._cut: tuple[int, Made] = 0, recordings.newest
        """Of how many replicas the mean is that is being recorded, and when it was made."""
        self._before = recordings.newest
        """The mean before that one."""
        self._mean_of: tuple[int, int, list[int], tuple[int, int] | None] | None = None
        """What the last mean was made of, as `_replicas_now` returns it."""
        self._again = False
        """Whether a mean is due because one that was due can't be made."""
        self._samples: int | None = None
        """How many samples were in all replicas as one was last ordered a step."""
        self._broken: dict[int, None] = {}
        """Workers whose replicas were left behind in the middle of a step."""

    def ordered(self, version: int) -> None:
        """A replica is to make its next version: record the mean of all if that is due.

        It is not due after a further step of a batch, which has no samples of its own: a replay knows a mean by its
        samples.
        """
        before, self._samples = self._samples, self._data.samples
        if self._recording or (self._recordings.counted and self._samples == before):
            return
        if self._again or self._recordings.due(self._data.samples, len(self._survivors())):
            self._again = False
            self._record(self._survivors())

    def record_last(self) -> bool:
        """No replica makes a step any more: have their mean written once the averages under way are made.

        As in `StoredVersions`.
        """
        if self._recording or self._host.progress.averaging:
            return True
        lacking = self._broken.keys() | self._recordings.lacking
        there = [worker for worker in self._survivors() if worker not in lacking]
        if self._mean_of == self._replicas_now() or not there:
            return False
        if lacking:
            self._journal.ledger.note(LACKING, sorted(lacking))
        self._record(there)
        return self._recording or self.record_last()

    def void(self, version: int, workers: Sequence[int]) -> None:
        """That mean can't be made, as these workers died in a step. Once the machine knows that, the next one is due.

        A replay knows from the ledger when that was.
        """
        self._recording, self._again, self._mean_of = False, True, None
        self._broken.update(dict.fromkeys(workers))
        self._recordings.void(version, self._before)

    def counts(self, worker: int) -> None:
        """See `_Versions`."""
        super().counts(worker)
        self._broken.pop(worker, None)

    def written(self, version: int, sha256: str, distance: float | None) -> None:
        """That mean is on disk."""
        assert distance is not None
        replicas, made = self._cut
        self._recording = False
        self._journal.consensus(version, made.at, replicas, distance)
        super().written(version, sha256, distance)

    def _record(self, workers: list[int]) -> None:
        """The mean of these workers' replicas as they are at this moment is the next version: write it."""
        recordings, version = self._recordings, self._recordings.newest.version + 1
        self._before = recordings.newest
        recordings.ordered(version, self._data.samples)
        recordings.made(version, self._now())
        file = recordings.begin()
        self._recording, self._cut, self._mean_of = True, (len(workers), recordings.newest), self._replicas_now()
        self._host.record(version, workers, file, self._buffers, self.known())

    def _replicas_now(self) -> tuple[int, int, list[int], tuple[int, int] | None]:
        """Steps and averages so far, whose replicas count, and the values that a worker has told beside its updates.

        The mean changes when any of these does. Workers tell such values after their last step, too.
        """
        return self._data.ordered_steps, self._host.progress.averages, self._survivors(), self.known().own

    def _survivors(self) -> list[int]:
        """Workers whose replicas count: those that began to train and have not died.

        Where gradients are averaged, all replicas are the same, except those that the last steps went without.
        """
        workers = [worker for worker in self._trained if worker not in self._lost]
        return self._data.foremost(workers) if self._averages_gradients else workers
