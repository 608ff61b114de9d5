"""What a host keeps on disk of one moment, and goes on from: the newest version, or all replicas."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from paceline.core.items import Replica, Version
from paceline.host.claims import Owner
from paceline.host.contract import Resumption
from paceline.host.events import Report, SnapshotFileFailed, SnapshotFileWritten, SnapshotSealed
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.commit_queue import NEWEST, CommitQueue
from paceline.host.replicas.host_replicas import HostReplicas
from paceline.host.replicas.replica_table import ReplicaTable
from paceline.host.replicas.transfers import ReplicaTransfers
from paceline.host.shards.optimizer_state_gather import Shares
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages
from paceline.records.snapshots import STATE, STORE, replica_file, worker_file


class HostSnapshots:
    """Has the store process write what is kept, and read what a run goes on from.

    An item is claimed until it is written, so it stays as it is. Nobody waits for that.
    """

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        store: StoreProcess,
        commits: CommitQueue,
        table: ReplicaTable,
        transfers: ReplicaTransfers,
        replicas_here: HostReplicas | None,
        shares: Shares,
        report: Report,
        seats: Mapping[int, WorkerState],
    ) -> None:
        self.resumption: Resumption | None = None
        """What the run goes on from; None: it begins."""
        self._shelf = shelf
        self._plan = plan
        self._store = store
        self._commits = commits
        self._table = table
        self._transfers = transfers
        self._replicas_here = replicas_here
        self._seats = seats
        self._report = report
        self._shares = shares
        self._folder: Path | None = None
        """Where the present snapshot is written."""
        self._number = 0
        """The number of that snapshot, or of the last one."""
        self._packed: dict[int, tuple[int, int]] = {}
        """By worker: a later snapshot's number, and the descriptor of what it has packed for that."""

    # --- keeping ------------------------------------------------------------------------------------

    def keep(self, snapshot: int, folder: str, version: int, workers: Sequence[int]) -> list[str]:
        """See `Cluster`."""
        self._number, self._folder = snapshot, Path(folder)
        owners = self._table.workers
        files = [STORE]
        if owners:
            replicas = [self._table.replica(worker) for worker in workers if worker in owners]
            files += [replica_file(replica.worker) for replica in replicas]
            owner = _replicas_of(snapshot)
            self._transfers.keep(owner, *replicas)
            self._send(messages.store.KeepState(None, self._path(STORE)))
            by_worker = {replica.worker: replica for replica in replicas}

            def made() -> None:
                self._transfers.bring(owner, by_worker, here, lambda lost: lack([lost]))

            def here() -> None:
                self._keep_replicas(replicas)
                self._transfers.let_go(owner)

            def lack(lost: Sequence[int]) -> None:
                self._transfers.let_go(owner)
                self._lack(replicas, lost)

            self._table.after([*by_worker], made, lack)
        else:
            self._commits.versions.when_made(version, lambda: self._keep_version(version))
        for worker, (number, descriptor) in self._packed.items():
            if number == snapshot:
                self._keep_packed(worker, descriptor)
            os.close(descriptor)
        self._packed.clear()
        return files

    def packed(self, worker: int, message: messages.worker.Kept, descriptors: Sequence[int]) -> None:
        """The worker has packed its part of a snapshot, or can't."""
        if message.error is not None or not descriptors:
            why = message.error or f"worker {worker} has packed nothing"
            self._report(SnapshotFileFailed(message.snapshot, worker_file(worker), why))
        elif message.snapshot > self._number:
            self._packed[worker] = message.snapshot, os.dup(descriptors[0])
        elif message.snapshot == self._number and self._folder is not None:
            self._keep_packed(worker, descriptors[0])

    def kept(self, message: messages.store.FileKept) -> bool:
        """A file is on disk, or can't be written. Return whether it was to be."""
        name = Path(message.file).name
        if self._folder is None or str(self._folder / name) != message.file:
            return False
        self._shelf.release(_owner(name))
        self._commits.go_on()
        if message.error is None:
            self._report(SnapshotFileWritten(name, message.sha256))
        else:
            self._report(SnapshotFileFailed(self._number, name, message.error))
        return True

    def seal(self, state: bytes, old: Sequence[str]) -> None:
        """See `Cluster`."""
        assert self._folder is not None
        self._send(messages.store.Seal(str(self._folder), state, list(old)))

    def sealed(self, error: str | None) -> bool:
        """The snapshot is whole, or can't be. Return whether it was to be."""
        if self._folder is None:
            return False
        if error is None:
            self._folder = None
            self._report(SnapshotSealed())
        else:
            self._report(SnapshotFileFailed(self._number, STATE, error))
        return True

    def drop(self) -> None:
        """See `Cluster`."""
        assert self._folder is not None
        self._send(messages.store.DropDraft(str(self._folder)))
        self._folder = None

    def lost(self) -> None:
        """The store process has gone: nothing is written any more."""
        self._transfers.let_go(_replicas_of(self._number))
        for owner, _, _ in list(self._shelf.claims()):
            if owner[0] == "snapshot":
                self._shelf.release(owner)

    # --- going on -----------------------------------------------------------------------------------

    def restore(self, workers: Sequence[int], replicas: bool, buffers: str) -> None:
        """Have what the run goes on from put where these workers will begin: each one's replica, or the version."""
        resumption = self.resumption
        assert resumption is not None
        self._commits.begin(resumption.version)
        slot = None if replicas else self._shelf.place(Version(resumption.version))
        if replicas:
            self._table.begin(workers)
            for worker in workers:
                if self._seats[worker].elsewhere:
                    assert self._replicas_here is not None
                    self._replicas_here.read_for(worker)
                else:
                    assert self._replicas_here is not None
                    self._replicas_here.steps.room(worker, 0)
            self._shelf.release(NEWEST)
        areas = [(worker, self._area(worker)) for worker in workers]
        there = [(worker, self._file(replica_file(worker))) for worker in resumption.replicas]
        self._send(messages.store.Restore(self._file(STORE), slot, areas, there, buffers))

    def begins(self, worker: int) -> tuple[int, BinaryIO | None]:
        """The epoch with which that worker goes on, and the open file of what its script kept, if there is any."""
        assert self.resumption is not None
        kept = self.resumption.kept.get(worker)
        there = None if kept is None else open(self._file(worker_file(kept)), "rb")  # noqa: SIM115  # the host sends it
        return self.resumption.epoch, there

    def _area(self, worker: int) -> int:
        """The area with that worker's replica, or with its buffers."""
        owns = self._table.owned_by(worker)
        place = self._shelf.place(self._table.replica(worker)) if owns else self._plan.of(worker)[0]
        return self._plan.area(place)

    def _file(self, name: str) -> str:
        assert self.resumption is not None
        return str(Path(self.resumption.folder) / name)

    def _path(self, name: str) -> str:
        assert self._folder is not None
        return str(self._folder / name)

    def _keep_version(self, version: int) -> None:
        self._shelf.claim(_owner(STORE), Version(version))
        place, file = self._shelf.place(Version(version)), self._path(STORE)

        def keep() -> None:
            number, shares = self._shares.ask(held=True)
            living = tuple(worker for worker, seat in self._seats.items() if not seat.died)
            self._send(messages.store.KeepState(place, file, number, shares, living))
            self._commits.brings(version, lambda: self._shares.release(number))

        self._shares.when_own_is_whole(keep)

    def _keep_replicas(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas if not self._store.lost else ():
            self._shelf.claim(_owner(replica_file(replica.worker)), replica)
            area = self._plan.area(self._shelf.place(replica))
            self._send(messages.store.KeepReplica(area, self._path(replica_file(replica.worker))))

    def _lack(self, replicas: Sequence[Replica], lost: Sequence[int]) -> None:
        """The processes of these workers ended before their replicas had made their steps."""
        for replica in replicas:
            name = replica_file(replica.worker)
            why = f"worker {lost[0]} ended before its replica had made its last step"
            self._report(SnapshotFileFailed(self._number, name, why))

    def _keep_packed(self, worker: int, descriptor: int) -> None:
        self._send(messages.store.KeepWorker(self._path(worker_file(worker))), (descriptor,))

    def _send(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        self._store.send(message, descriptors)


def _replicas_of(snapshot: int) -> Owner:
    """Who needs the replicas of that snapshot until they are here."""
    return "cut for snapshot", snapshot


def _owner(file: str) -> Owner:
    return "snapshot", file
