"""Cuts through all replicas: each is kept as it is at one moment, so that the mean of them can be made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paceline.core.items import Replica, Version
from paceline.host.events import MeanVoid, Report
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.steps import ReplicaSteps
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages

Brings = Callable[[Mapping[int, Replica], Callable[[], None], Callable[[int], None]], None]
"""Brings all of these replicas here, by worker, and calls back; or else with a worker whose replica can't come."""


class MeanRecorder:
    """Has means of replicas recorded. On one host no byte is copied: a replica that is kept is not stepped in place."""

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        store: StoreProcess,
        steps: ReplicaSteps,
        report: Report,
        brings: Brings,
    ) -> None:
        self._brings = brings
        self._shelf = shelf
        self._plan = plan
        self._store = store
        self._steps = steps
        self._report = report

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
        replicas = {worker: self._steps.replica(worker) for worker in workers}
        places = [self._shelf.place(replica) for replica in replicas.values()]
        self._shelf.claim(("cut for version", version), *replicas.values())
        target = self._shelf.put(Version(version), ("mean for version", version), self._plan.shared)
        assert target is not None  # `memory_plan.REPLICAS` counts this one

        def made() -> None:
            self._brings(replicas, write, lambda lost: void([lost]))

        def write() -> None:
            order = messages.store.RecordMean(version, places, target, file, buffers, known)
            self._store.write(order, *replicas.values(), Version(version))
            let_go()

        def void(lost: list[int]) -> None:
            let_go()
            self._report(MeanVoid(version, lost))

        def let_go() -> None:
            self._shelf.release(("cut for version", version))
            self._shelf.release(("mean for version", version))

        self._steps.after(workers, made, void)
