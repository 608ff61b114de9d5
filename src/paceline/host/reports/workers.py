"""What workers say of items, on whichever host they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from paceline.core.items import Beginning
from paceline.core.state_edits import StateEdit
from paceline.host.attachments import write_attached
from paceline.host.events import Impossible, Report, WorkerSaid
from paceline.host.version_items import written_by
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster


class WorkerReports:
    """Takes down what a message says of its worker, and passes the message on to the coordinator."""

    def __init__(self, cluster: Cluster, report: Report) -> None:
        self._cluster = cluster
        self._report = report

    def hear(self, worker: int, message: messages.Message, descriptors: list[int]) -> None:
        """The worker has said this, and these descriptors came along."""
        seat = self._cluster.seats[worker]
        match message:  # each batch and each step comes by here
            case messages.worker.LeaseWanted():
                pass
            case messages.worker.Withdrawn(step=step):
                self._cluster.averages.early.withdrawn(worker, step)
                if self._cluster.early is not None:
                    self._cluster.early.withdrawn(worker, step)
                return
            case messages.worker.StepFinished(step=step, scalars=scalars, edits=edits):
                seat.scalars = seat.scalars if scalars is None else scalars
                self._computed(seat, step, edits)
            case messages.worker.Stepped(step=step):
                self._cluster.replicas.stepped(worker, step)
            case messages.worker.UpdateMade(step=step):
                if seat.trains:  # else its update counts no more
                    self._cluster.own_steps.made(worker, step)
            case messages.worker.Declined():
                if seat.released is not None:
                    self._cluster.drop_update(worker, seat.released)
                self._idles(seat)
            case messages.worker.FinishWanted() | messages.worker.ScriptEnded():
                self._idles(seat)  # it may have been released for a step, and had no data for it
            case messages.worker.Offered():
                self._cluster.offers[worker], seat.scalars = message, message.scalars
                self._cluster.memory.offered(message)
                self._cluster.shard_server.maker.tells |= bool(message.device)
            case messages.worker.SnapshotWanted(hold=hold):
                self._cluster.releases.look(worker, hold=hold)
            case messages.worker.SnapshotTaken():
                self._cluster.releases.looked(worker)
                self._cluster.commits.go_on()
            case messages.worker.StateWanted():
                if self._cluster.here.choice.parts and self._cluster.spec.optimizer != "store":  # a switch brings it
                    self._cluster.send(worker, messages.worker.OptimizerState())
                else:
                    self._cluster.store_reports.send_state(worker)
            case messages.worker.AdoptionWritten():
                self._adopt(worker, descriptors)
            case messages.worker.Edited(number=number):
                write_attached(descriptors[0], self._cluster.edits[number])
                self._cluster.restructure(self._cluster.edits[number])
            case messages.worker.OwnValues(number=number):
                self._cluster.store.send(messages.store.TakeValues(worker, number), tuple(descriptors))
            case messages.worker.Kept():
                self._cluster.snapshots.packed(worker, message, descriptors)
            case messages.worker.StateGiven(error=error):
                self._cluster.switches.given(worker, error, descriptors)
            case messages.worker.Handed():
                self._cluster.joins.handed(worker, message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._report(WorkerSaid(worker, cast(messages.worker.FromWorker, message)))

    def _idles(self, seat: WorkerState) -> None:
        """The worker computes no step any more."""
        seat.released = None
        self._cluster.averages.early.leaves(seat.worker)
        self._cluster.aggregation.idles(seat.worker)
        self._cluster.own_steps.ends(seat.worker)

    def _computed(self, seat: WorkerState, step: int, edits: Sequence[StateEdit]) -> None:
        """The worker's step is computed: it no longer reads that version, and its update is about to come."""
        self._cluster.releases.computed(seat.worker)
        self._cluster.replicas.computed(seat.worker, step)
        if seat.trains and not self._cluster.replicas.owned_by(seat.worker):
            self._cluster.pushes.ready(seat.worker, step)
            self._cluster.pushes.computed(seat.worker, step)
            if why := self._cluster.hyperparameters.said(seat.worker, step, seat.scalars, edits):
                self._report(Impossible(why))
        self._cluster.commits.go_on()
        seat.released = None

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
