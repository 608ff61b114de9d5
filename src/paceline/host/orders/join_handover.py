"""Workers that come while others train: what they show until they take part, and what they get then."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from paceline.core.facts import Fact, ReplicaCopied
from paceline.core.items import Replica, Version
from paceline.core.orders import CopyReplica
from paceline.host.attachments import recorded_file
from paceline.host.claims import Owner
from paceline.host.events import HandedOver, Report
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.commit_queue import CommitQueue
from paceline.host.orders.releases import Releases, step_of
from paceline.host.orders.steps import ReplicaSteps, shown
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages
from paceline.transfer.fetcher import Fetcher

if TYPE_CHECKING:
    from paceline.host.replicas.transfers import ReplicaTransfers


@dataclass(slots=True)
class _Copy:
    """A replica on its way to a worker that joins, or has resumed."""

    order: CopyReplica
    source: Replica
    replica: Replica
    own: Replica | None
    """What the worker's replica was until then. It is kept, in case that this one never comes."""
    made: bool = False
    """Whether the source's steps are made that were ordered before."""
    packed: bool = False
    """Whether the source has packed what goes with its replica, or never will."""
    packing: int | None = None
    """The descriptor of that."""
    there: bool = False
    """Whether all of it is with the worker: it takes effect when the machine is told, though the source may be dead."""


def kept(worker: int) -> Owner:
    """Who claims the replica that a worker has until a copy of another one is there."""
    return "kept replica", worker


class JoinHandover:
    """Lets workers in, and carries out `CopyReplica`. No byte of a replica is copied: it gets one more name.

    What a script keeps is handed over by a worker as it waits for a release. So which of its steps are in that depends
    on the order of facts and orders alone, and it waits for nobody to hand it over.
    """

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        store: StoreProcess,
        commits: CommitQueue,
        steps: ReplicaSteps,
        releases: Releases,
        fetcher: Fetcher,
        seats: Mapping[int, WorkerState],
        report: Report,
        send: Callable[..., None],
        replicas: ReplicaTransfers,
    ) -> None:
        """`send(worker, message, descriptors)` tells a worker."""
        self._shelf = shelf
        self._plan = plan
        self._store = store
        self._commits = commits
        self._steps = steps
        self._releases = releases
        self._fetcher = fetcher
        self._seats = seats
        self._report = report
        self._send = send
        self._replicas = replicas
        self._asked: dict[int, dict[int, tuple[int, ...] | None]] = {}
        """By worker that joins: who may hand over to it, the first of them that does, and what each has packed: the
        descriptor of that, or nothing; None if it has not packed yet."""
        self._copies: dict[int, _Copy] = {}
        """By worker that joins."""
        self._numbers = count()
        self._joinings: dict[int, int] = {}
        """By worker: the number of its last joining. What was packed for an earlier one is not for it."""
        self._unwritten: dict[int, tuple[int, messages.worker.TakeUp, str]] = {}
        """By worker that begins with a version which is being written: that one, what the worker is told then, and the
        version's file."""

    def shows(self, worker: int) -> int:
        """Keep something for the worker to show until it takes part. Return its place, as `Holder` numbers places."""
        owners = self._steps.workers
        if not owners:
            newest = Version(self._commits.newest)
            self._shelf.claim(step_of(worker), newest)
            return self._shelf.place(newest)
        replica = self._steps.replica(worker if worker in owners else owners[0])
        self._shelf.claim(shown(worker), replica)
        return self._area(replica)

    def join(self, worker: int, others: Sequence[int]) -> None:
        """See `Cluster`."""
        if not self._steps.workers:  # else its replica comes by an order, and the rest with it
            self._joinings[worker] = next(self._numbers)
            asked = self._asked[worker] = dict.fromkeys(one for one in others if self._hands_over(one))
            for one in list(asked):
                self._hand_over(one, worker)
            self._take_up(worker)

    def carry_out(self, order: CopyReplica) -> None:
        """Give the worker the source's replica as it is when the steps are made that were ordered until now."""
        worker, source = order.worker, order.source
        if not self._seats[worker].trains or self._seats[source].died:  # the machine is about to hear that
            return
        self._void(worker)  # one that a replay has made, and of which the machine is told nothing
        there, own = self._steps.replica(source), self._steps.whole(worker)
        if own is not None:
            self._shelf.claim(kept(worker), own)
        copy = self._copies[worker] = _Copy(order, there, self._steps.copies(worker, there), own)
        self._joinings[worker] = next(self._numbers)
        if self._seats[source].here:
            self._hand_over(source, worker)
        else:
            copy.packed = True  # its process ended after training: nobody else has the rest

        def made() -> None:
            copy.made = True
            self._fetch(copy)

        self._steps.after([source], made)

    def released(self, worker: int) -> None:
        """The worker goes on. If the machine was told of no copy, there is none: it goes on from its own replica."""
        self._void(worker)

    def copied(self, worker: int) -> None:
        """The machine is told that the worker has its copy."""
        copy = self._copies.pop(worker, None)
        if copy is None:
            return
        self._shelf.release(kept(worker))
        descriptors = () if copy.packing is None else (copy.packing,)
        self._send(worker, messages.worker.TakeUp(self._area(copy.replica)), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def begin_anew(self, worker: int, version: int | None, file: str) -> None:
        """See `Cluster`."""
        self._void(worker)
        if version is None:
            assert self._steps.begun_as is not None  # it is kept until something is recorded
            replica = self._steps.copies(worker, self._steps.begun_as)
            self._replicas.carry_to(
                replica, None, worker, lambda: self._send(worker, messages.worker.TakeUp(self._area(replica)))
            )
            return
        told = messages.worker.TakeUp(self._area(self._steps.room(worker)), recorded=True)
        if self._store.writes(version):
            self._unwritten[worker] = version, told, file
        else:
            self._send_with(worker, told, file)

    def written(self, version: int) -> None:
        """That version is on disk."""
        self._steps.forget_beginning()
        for worker, (awaited, told, file) in list(self._unwritten.items()):
            if awaited == version:
                del self._unwritten[worker]
                self._send_with(worker, told, file)

    def handed(self, source: int, message: messages.worker.Handed, descriptors: Sequence[int]) -> None:
        """The source has packed what that worker is to get, or can't."""
        worker, copy = message.worker, self._copies.get(message.worker)
        if message.joining != self._joinings.get(worker):
            return
        if copy is not None and copy.order.source == source and not copy.packed:
            copy.packed, copy.packing = True, os.dup(descriptors[0]) if descriptors else None
            self._fetch(copy)
        elif source in (asked := self._asked.get(worker, {})):
            asked[source] = tuple(map(os.dup, descriptors[:1]))
            self._take_up(worker)

    def left(self, worker: int, died: bool) -> None:
        """The worker takes no part any more. If it died, the machine orders other copies in the place of its own."""
        for packing in self._asked.pop(worker, {}).values():
            _close(packing)
        self._void(worker)
        for joiner, copy in list(self._copies.items()):
            if died and copy.order.source == worker and not copy.there:
                self._void(joiner)

    def gone(self, worker: int) -> None:
        """The worker's process has ended: it packs nothing any more, and awaits nothing."""
        self._unwritten.pop(worker, None)
        for joiner, asked in list(self._asked.items()):
            if asked.get(worker, ()) is None:
                del asked[worker]
                self._take_up(joiner)
        for copy in list(self._copies.values()):
            if copy.order.source == worker and not copy.packed:
                copy.packed = True
                self._fetch(copy)

    def _hands_over(self, worker: int) -> bool:
        """Whether the worker can. One that has died may be on its way once more before the machine hears of that."""
        return self._seats[worker].here and self._seats[worker].trained

    def _take_up(self, worker: int) -> None:
        """Give the worker what the first of the others has packed, if that is there. If none can, it begins without.

        All others pack at the same moment, as nobody knows whether the first one will live to do so.
        """
        asked = self._asked[worker]
        source = next(iter(asked), None)
        if source is not None and asked[source] is None:
            return
        del self._asked[worker]
        self._report(HandedOver(worker, source))
        self._send(worker, messages.worker.TakeUp(), () if source is None else asked[source] or ())
        for packing in asked.values():
            _close(packing)

    def _hand_over(self, source: int, worker: int) -> None:
        """Ask that worker once it was told of the release that it may wait for: a replay's worker has that by now."""
        told = messages.worker.HandOver(worker, self._joinings[worker])
        self._releases.after(source, lambda: self._send(source, told))

    def _fetch(self, copy: _Copy) -> None:
        """Have the replica brought to the worker, once all that goes with it is there."""
        worker, source = copy.order.worker, copy.order.source
        if self._copies.get(worker) is not copy or not (copy.made and copy.packed):
            return

        def copied(at: float) -> Fact:
            copy.there = True
            return ReplicaCopied(source=source, worker=worker, at=at)

        def carried() -> None:
            if self._copies.get(worker) is copy:
                self._fetcher.fetch(worker, copy.source, copied)

        self._replicas.carry_to(
            copy.replica, source, worker, carried
        )  # under that name it is there as long as it is needed

    def _send_with(self, worker: int, message: messages.worker.TakeUp, file: str) -> None:
        with recorded_file(file) as descriptor:
            self._send(worker, message, (descriptor,))

    def _void(self, worker: int) -> None:
        """No copy comes to that worker any more: it has the replica that it had."""
        copy = self._copies.pop(worker, None)
        if copy is not None:
            if copy.own is not None:
                self._steps.becomes(worker, copy.own)
                self._shelf.release(kept(worker))
            self._fetcher.cancel(worker)
            if copy.packing is not None:
                os.close(copy.packing)

    def _area(self, replica: Replica) -> int:
        return self._plan.area(self._shelf.place(replica))


def _close(packing: tuple[int, ...] | None) -> None:
    for descriptor in packing or ():
        os.close(descriptor)
