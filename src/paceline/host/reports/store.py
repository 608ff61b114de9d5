"""What the head's store process says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from paceline.host.events import Impossible, Prepared, ProcessLost, Report, VersionWritten
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster


class StoreReports:
    """Keeps the contract `StoreOwner` for the head."""

    def __init__(self, cluster: Cluster, report: Report) -> None:
        self.state: int | None = None
        """The descriptor of what other hosts' ranges begin with besides the version, if they make some."""
        self._cluster = cluster
        self._report = report
        self._beginning = ""
        """The checksum of what training begins with."""
        self._wanted: dict[int, list[WorkerState]] = {}
        """By worker: each of its processes that has asked for the optimizer's state, and is still to get it."""

    def store_ready(self, beginning: str) -> None:
        """See `StoreOwner`. If the run goes on, that process first reads what it goes on from."""
        if self._cluster.snapshots.resumption is None:
            self._prepared(beginning)
            return
        workers = [worker for worker in self._cluster.offers if self._cluster.seats[worker].here]
        assert self._cluster.store.forker is not None
        buffers = self._cluster.offers[self._cluster.store.forker].buffers or "mean"
        self._cluster.snapshots.restore(workers, self._cluster.owns_replicas, buffers)

    def store_not_forked(self) -> None:
        """See `StoreOwner`. The coordinator asks another worker by `prepare`, once it knows that this one has ended."""

    def store_said(self, message: Any, descriptors: list[int]) -> bool:
        """See `StoreOwner`."""
        match message:
            case messages.store.VersionRecorded(version=version, sha256=sha256):
                return self._written(version, sha256, None)
            case messages.store.MeanRecorded(version=version, sha256=sha256, distance=distance):
                return self._written(version, sha256, distance)
            case messages.store.BeginningMade(version=version, distance=distance):
                return self._cluster.switches.made(version, distance)
            case messages.store.FileKept():
                return self._cluster.snapshots.kept(message)
            case messages.store.Sealed(error=error):
                return self._cluster.snapshots.sealed(error)
            case messages.store.Restored(beginning=beginning, refused=refused):
                if refused is not None:
                    self._report(Impossible(refused))
                else:
                    self._prepared(beginning)
                return True
            case messages.store.WholeReady(error=error) if self._cluster.switches.part is not None:
                self._cluster.switches.came(error, descriptors)
                return True
            case messages.store.StateReady(worker=None, error=error):
                self._cluster.switches.came(error, descriptors)
                return True
            case messages.store.WholeReady(error=error):
                if error is not None:
                    self._report(Impossible(error))
                else:
                    self.forget_state()
                    self.state = os.dup(descriptors[0])
                    self._report(Prepared(self._beginning))
                return True
            case messages.store.StateReady(worker=int(worker), error=error):
                if not self._wanted.get(worker):
                    return False
                process = self._wanted[worker].pop(0)
                if error is not None:
                    self._report(Impossible(error))
                elif process is self._cluster.seats[worker]:  # one in its place has asked for nothing
                    self._cluster.send(worker, messages.worker.OptimizerState(), tuple(descriptors))
                return True
        return False

    def send_state(self, worker: int) -> None:
        """Have the worker told of the optimizer's state, with what other hosts have of it, once this range is made."""
        store, shares = self._cluster.store, self._cluster.shares
        self._wanted.setdefault(worker, []).append(self._cluster.seats[worker])
        shares.when_own_is_whole(lambda: store.send(messages.store.SendState(worker, *shares.ask())))

    def store_lost(self, why: str) -> None:
        """See `StoreOwner`."""
        self._cluster.commits.lost()
        self._cluster.means.lost()
        self._cluster.snapshots.lost()
        self._report(ProcessLost(why, self._cluster.lacks_host))

    def forget_state(self) -> None:
        """All others have been told of the optimizer's state, or there is another: it takes as much as the model."""
        if self.state is not None:
            os.close(self.state)
        self.state = None

    def _prepared(self, beginning: str) -> None:
        """The store has what training begins with. Hosts that make ranges of it go on from the same."""
        if not self._cluster.shards:
            self._report(Prepared(beginning))
            return
        self._beginning = beginning
        self._cluster.store.send(messages.store.SendWhole())

    def _written(self, version: int, sha256: str, distance: float | None) -> bool:
        if not self._cluster.store.written(version):
            return False
        self._cluster.commits.go_on()
        self._cluster.joins.written(version)
        self._report(VersionWritten(version, sha256, distance))
        return True
