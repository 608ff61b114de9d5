"""What workers say of items, on whichever host they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from paceline.core.items import Beginning, Update, Version
from paceline.core.state_edits import StateEdit
from paceline.host.attachments import write_attached
from paceline.host.events import Report, WorkerEnded, WorkerSaid
from paceline.host.version_items import written_by
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster


class WorkerReports:
    """Does what a message says of items, and passes the message on to the coordinator."""

    def __init__(self, cluster: Cluster, report: Report) -> None:
        self._cluster = cluster
        self._report = report

    def hear(self, worker: int, message: messages.Message, descriptors: list[int]) -> None:
        """The worker has said this, and these descriptors came along."""
        seat = self._cluster.seats[worker]
        match message:  # each batch and each step comes by here
            case messages.worker.LeaseWanted():
                pass
            case messages.worker.Accumulated() | messages.worker.Withdrawn():
                self._computes(seat, message)
                return
            case messages.worker.StepFinished(step=step, scalars=scalars, edits=edits):
                seat.scalars = seat.scalars if scalars is None else scalars
                self._computed(seat, step, edits)
            case messages.worker.Stepped(step=step):
                if not seat.elsewhere:
                    self._cluster.replicas_here.steps.stepped(worker, step)
                self._cluster.replicas.stepped(worker, step)
            case messages.worker.Declined():
                if seat.step is not None:
                    self._cluster.drop_update(worker, seat.step)
                self._idles(seat)
            case messages.worker.FinishWanted() | messages.worker.ScriptEnded():
                self._idles(seat)  # it may have been released for a step, and had no data for it
            case messages.worker.Offered():
                self._cluster.offers[worker], seat.scalars = message, message.scalars
                self._cluster.memory.offered(message)
                seat.accelerator = bool(message.device)
                self._cluster.shard_server.maker.tells |= seat.accelerator
            case messages.worker.SnapshotWanted(hold=hold):
                version = self._cluster.releases.hold(worker) if hold else self._cluster.releases.look(worker)
                if not seat.elsewhere:
                    self._cluster.brings(version, lambda: self._show(seat, Version(version)))
            case messages.worker.SnapshotTaken():
                self._cluster.releases.looked(worker)
                self._cluster.commits.go_on()
            case messages.worker.StateWanted():
                self._cluster.store.send(messages.store.SendState(worker, *self._cluster.shares.ask()))
            case messages.worker.AdoptionWritten():
                self._adopt(worker, descriptors)
            case messages.worker.Edited(number=number):
                write_attached(descriptors[0], self._cluster.edits[number])
                self._cluster.restructure(self._cluster.edits[number])
            case messages.worker.OwnValues(number=number):
                self._cluster.store.send(messages.store.TakeValues(worker, number), tuple(descriptors))
            case messages.worker.Kept():
                self._cluster.snapshots.packed(worker, message, descriptors)
            case messages.worker.Handed():
                self._cluster.joins.handed(worker, message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._report(WorkerSaid(worker, cast(messages.worker.FromWorker, message)))

    def ended(self, worker: int, status: int) -> None:
        """The worker's process, which was on the head's machine, has ended with that status, as waitpid returned it."""
        self._report(WorkerEnded(worker, status))

    def _show(self, seat: WorkerState, version: Version) -> None:
        if self._cluster.seats[seat.worker] is seat and seat.here:
            self._cluster.workers_here.send(
                seat.worker, messages.worker.SnapshotReady(self._cluster.shelf.place(version))
            )

    def _idles(self, seat: WorkerState) -> None:
        """The worker computes no step any more."""
        seat.step = None
        self._cluster.aggregation.idles(seat.worker)

    def _computes(self, seat: WorkerState, message: messages.worker.Accumulated | messages.worker.Withdrawn) -> None:
        """The worker has told of the update that it computes, or takes that back."""
        if self._cluster.carrier is None:
            return
        match message:
            case messages.worker.Accumulated(step=step, begin=begin, end=end):
                self._cluster.here.computing.told(seat.worker, step, begin, end)
                self._cluster.here.there_is_more(Update(seat.worker, step))
            case messages.worker.Withdrawn(step=step):
                if self._cluster.early is not None:
                    self._cluster.early.withdrawn(seat.worker, step)

    def _computed(self, seat: WorkerState, step: int, edits: Sequence[StateEdit]) -> None:
        """The worker's step is computed: it no longer reads that version, and its update is about to come."""
        if self._cluster.carrier is not None and not seat.elsewhere:
            self._cluster.here.computing.finished(seat.worker, step)
            self._cluster.here.there_is_more(Update(seat.worker, step))
        self._cluster.releases.computed(seat.worker)
        self._cluster.replicas.computed(seat.worker, step)
        if seat.trains and not self._cluster.replicas.owned_by(seat.worker):
            self._cluster.pushes.ready(seat.worker, step)
            self._cluster.commits.said(seat.worker, step, seat.scalars, edits)
        self._cluster.commits.go_on()
        seat.step = None

    def _adopt(self, worker: int, descriptors: list[int]) -> None:
        """The first version is what that worker has written from now on. The optimizer's state may come along.

        Replicas may have been averaged before. All were alike, and they are so now. So the averages under way are void.
        """
        self._cluster.store.adopt(descriptors)
        changes = {own: self._cluster.replicas.becomes(own) for own in self._cluster.replicas.workers}
        if changes:
            self._cluster.replicas_here.adopted(worker, changes)
        self._cluster.averages.void()
        if changes:
            self._cluster.joins.keep_beginning(Beginning(worker))
        else:
            self._cluster.commits.adopted(worker)
        self._cluster.shelf.release(written_by(worker))
        self._cluster.others.adopted(worker, descriptors[0] if descriptors else None, changes)
