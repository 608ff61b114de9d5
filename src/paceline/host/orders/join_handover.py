"""Workers that come while others train: what they show until they take part, and what they get then."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from paceline.core.facts import Fact, ReplicaCopied
from paceline.core.items import Item, Replica
from paceline.core.orders import CopyReplica
from paceline.host.attachments import recorded_file
from paceline.host.claims import Owner
from paceline.host.events import HandedOver, Report
from paceline.host.orders.releases import Releases
from paceline.host.replicas.replica_table import ReplicaTable
from paceline.host.replicas.transfers import ReplicaTransfers, unawaited
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages
from paceline.transfer.fetcher import Fetcher

BEGUN_AS = ("what training began with",)

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster


@dataclass(slots=True)
class _Copy:
    """A replica on its way to a worker that joins, or has resumed. That one keeps its own until this one is there."""

    order: CopyReplica
    source: Replica
    replica: Replica
    """What it is called."""
    made: bool = False
    """Whether the source's steps are made that were ordered before."""
    packed: bool = False
    """Whether the source has packed what goes with its replica, or never will."""
    packing: int | None = None
    """The descriptor of that."""
    there: bool = False
    """Whether all of it is with the worker: it takes effect when the machine is told, though the source may be dead."""


def _copies(worker: int) -> Owner:
    """Who needs the replica that the worker gets a copy of."""
    return "copied for", worker


class JoinHandover:
    """Lets workers in, and carries out `CopyReplica`. No byte of a replica is copied: it gets one more name.

    What a script keeps is handed over by a worker as it waits for a release. So which of its steps are in that depends
    on the order of facts and orders alone, and it waits for nobody to hand it over.
    """

    def __init__(
        self,
        cluster: Cluster,
        shelf: Shelf,
        store: StoreProcess,
        table: ReplicaTable,
        transfers: ReplicaTransfers,
        releases: Releases,
        fetcher: Fetcher,
        seats: Mapping[int, WorkerState],
        report: Report,
    ) -> None:
        self._cluster = cluster
        self._shelf = shelf
        self._store = store
        self._table = table
        self._transfers = transfers
        self._releases = releases
        self._fetcher = fetcher
        self._seats = seats
        self._report = report
        self.begun_as: Item | None = None
        """What training began with, as long as a worker may have to begin with it once more."""
        self._asked: dict[int, dict[int, tuple[int, ...] | None]] = {}
        """By worker that joins: who may hand over to it, the first of them that does, and what each has packed: the
        descriptor of that, or nothing; None if it has not packed yet."""
        self._copies: dict[int, _Copy] = {}
        """By worker that joins."""
        self._numbers = count()
        self._joinings: dict[int, int] = {}
        """By worker: the number of its last joining. What was packed for an earlier one is not for it."""
        self._without: dict[int, Sequence[int]] = {}
        """By worker that has joined and was given no replica so far: who may hand over to it what scripts keep."""
        self._unwritten: dict[int, tuple[int, messages.worker.TakeUp, str]] = {}
        """By worker that begins with a version which is being written: that one, what the worker is told then, and the
        version's file."""

    def keep_beginning(self, item: Item) -> None:
        """Training begins with that. It is kept until something is recorded, as nobody's replica may be left."""
        self.begun_as = item
        self._shelf.claim(BEGUN_AS, item)

    def shows(self, worker: int, show: Callable[[Replica | None], None]) -> None:
        """Bring something to the worker's host for it to show until it takes part: its own replica, or another one."""
        there = (self._table.replica(one) for one in [worker, *self._table.workers] if self._table.owned_by(one))
        replica = next((one for one in there if self._table.lies_at(one) is not None), None)
        if replica is None:
            show(None)
        else:
            host = self._cluster.others.host_of(worker)
            self._transfers.pass_on(replica, host, lambda: show(replica), lambda why: show(None))

    def join(self, worker: int, others: Sequence[int]) -> None:
        """See `Cluster`."""
        if self._cluster.owns_replicas or self._cluster.switches.part is not None:
            # its replica comes by an order, and the rest with it, or a switch comes first
            self._without[worker] = others
        else:
            self._hand_to(worker, others)

    def _hand_to(self, worker: int, others: Sequence[int]) -> None:
        self._joinings[worker] = next(self._numbers)
        asked = self._asked[worker] = dict.fromkeys(one for one in others if self._hands_over(one))
        for one in list(asked):
            self._hand_over(one, worker)
        self._take_up(worker)

    def switched(self) -> None:
        """Another part of the protocol decides. Whoever takes part by now gets what scripts keep."""
        for worker, others in list(self._without.items()):
            if not self._cluster.owns_replicas or self._table.owned_by(worker):
                del self._without[worker]
                self._hand_to(worker, others)

    def carry_out(self, order: CopyReplica) -> None:
        """Give the worker the source's replica as it is when the steps are made that were ordered until now."""
        worker, source = order.worker, order.source
        if not self._seats[worker].trains or self._seats[source].died:  # the machine is about to hear that
            return
        self._void(worker)  # one that a replay has made, and of which the machine is told nothing
        there = self._table.replica(source)
        replica = self._table.comes(worker, self._table.lies_at(there))
        self._transfers.keep(_copies(worker), replica, of=there)
        copy = self._copies[worker] = _Copy(order, there, replica)
        self._joinings[worker] = next(self._numbers)
        if self._seats[source].here:
            self._hand_over(source, worker)
        else:
            copy.packed = True  # its process ended after training: nobody else has the rest

        def made() -> None:
            copy.made = True
            self._fetch(copy)

        self._table.after([source], made)

    def released(self, worker: int) -> None:
        """The worker goes on. If the machine was told of no copy, there is none: it goes on from its own replica."""
        self._void(worker)

    def copied(self, worker: int) -> None:
        """The machine is told that the worker has its copy."""
        copy = self._copies.pop(worker, None)
        if copy is None:
            return
        self._takes(worker)
        self._without.pop(worker, None)
        descriptors = () if copy.packing is None else (copy.packing,)
        self._cluster.send(worker, messages.worker.TakeUp(), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def begin_anew(self, worker: int, version: int | None, file: str) -> None:
        """See `Cluster`."""
        self._void(worker)
        self._without.pop(worker, None)
        if version is None:
            assert self.begun_as is not None  # it is kept until something is recorded
            host = self._cluster.name
            replica = self._table.comes(worker, host)
            self._transfers.keep(_copies(worker), replica, of=self.begun_as)
            there = self._cluster.others.host_of(worker)
            self._transfers.pass_on(replica, there, lambda: None, unawaited)
            self._takes(worker)  # it is released at once
            self._cluster.send(worker, messages.worker.TakeUp())
            return
        self._cluster.take_replica(worker, self._table.room(worker), recorded=True)
        told = messages.worker.TakeUp(recorded=True)
        if self._store.writes(version):
            self._unwritten[worker] = version, told, file
        else:
            self._send_with(worker, told, file)

    def written(self, version: int) -> None:
        """That version is on disk."""
        self.begun_as = None  # a worker that comes when nobody is left begins with that version
        self._shelf.release(BEGUN_AS)
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
        self._without.pop(worker, None)
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
        self._cluster.send(worker, messages.worker.TakeUp(), () if source is None else asked[source] or ())
        for packing in asked.values():
            _close(packing)

    def _hand_over(self, source: int, worker: int) -> None:
        """Ask that worker once it was told of the release that it may wait for: a replay's worker has that by now.

        In a round of own steps it is asked at the round's end: what it packs depends on facts alone then.
        """
        told = messages.worker.HandOver(worker, self._joinings[worker])
        send = partial(self._releases.after, source, lambda: self._cluster.send(source, told))
        self._cluster.own_steps.after(source, send)

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

        there = self._cluster.others.host_of(worker)
        self._transfers.carry(_copies(worker), copy.replica, there, carried, unawaited)

    def _takes(self, worker: int) -> None:
        """The copy is the worker's replica from now on."""
        self._cluster.take_replica(worker, self._table.taken(worker))
        self._transfers.let_go(_copies(worker))

    def _send_with(self, worker: int, message: messages.worker.TakeUp, file: str) -> None:
        with recorded_file(file) as descriptor:
            self._cluster.send(worker, message, (descriptor,))

    def _void(self, worker: int) -> None:
        """No copy comes to that worker any more: it has the replica that it had."""
        copy = self._copies.pop(worker, None)
        if copy is not None:
            self._table.never_comes(worker)
            self._transfers.let_go(_copies(worker))
            self._fetcher.cancel(worker)
            if copy.packing is not None:
                os.close(copy.packing)


def _close(packing: tuple[int, ...] | None) -> None:
    for descriptor in packing or ():
        os.close(descriptor)
