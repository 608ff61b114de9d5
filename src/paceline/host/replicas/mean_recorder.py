"""Cuts through all replicas: each is kept as it is at one moment, so that the mean of them can be made."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.items import Version
from paceline.host.claims import Owner
from paceline.host.events import MeanVoid, Report
from paceline.host.memory_plan import MemoryPlan
from paceline.host.replicas.replica_table import ReplicaTable
from paceline.host.replicas.transfers import ReplicaTransfers
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages


class MeanRecorder:
    """Has means of replicas recorded. On one host no byte is copied: a replica that is kept is not stepped in place."""

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        store: StoreProcess,
        table: ReplicaTable,
        transfers: ReplicaTransfers,
        report: Report,
    ) -> None:
        self._shelf = shelf
        self._plan = plan
        self._store = store
        self._table = table
        self._transfers = transfers
        self._report = report
        self._cuts: dict[Owner, None] = {}
        """Who keeps replicas for a mean that the store process was not told of yet."""

    def lost(self) -> None:
        """The store process has gone: no mean is made any more."""
        for owner in self._cuts:
            self._transfers.let_go(owner)
        self._cuts.clear()

    def record(
        self,
        version: int,
        workers: Sequence[int],
        file: str,
        buffers: str,
        known: messages.store.WorkersTold = messages.store.UNTOLD,
    ) -> None:
        """Have the mean of these workers' replicas as they are at this moment made and written, as that version.

        The store process is told so when the steps ordered so far are made. If one never will be, there is no such
        mean: what the step has left behind is no replica.
        """
        replicas = {worker: self._table.replica(worker) for worker in workers}
        owner: Owner = "cut for version", version
        self._cuts[owner] = None
        self._transfers.keep(owner, *replicas.values())

        def made() -> None:
            if owner in self._cuts:
                self._transfers.bring(owner, replicas, write, lambda lost: void([lost]))

        def write() -> None:
            places = [self._shelf.place(replica) for replica in replicas.values()]
            target = self._shelf.put(Version(version), ("mean for version", version), self._plan.shared)
            assert target is not None  # `memory_plan.REPLICAS` counts this one
            order = messages.store.RecordMean(version, places, target, file, buffers, known)
            self._store.write(order, *replicas.values(), Version(version))
            self._shelf.release(("mean for version", version))
            let_go()

        def let_go() -> None:
            self._cuts.pop(owner, None)
            self._transfers.let_go(owner)

        def void(lost: list[int]) -> None:
            let_go()
            self._report(MeanVoid(version, lost))

        self._table.after(workers, made, void)
