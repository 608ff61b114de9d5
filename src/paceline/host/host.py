"""A host: its workers, and what of versions and updates lies here. It does what it is told by `host.messages`.

The head's store makes versions, or this host makes a range of each of them, as others do. See `ShardServer`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from paceline.core.choice import Choice
from paceline.core.items import (
    Beginning,
    Blob,
    Buffers,
    EarlyVersion,
    Item,
    Mean,
    Partial,
    Replica,
    Sum,
    Update,
    Version,
)
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Release, StartPull, StartPush
from paceline.core.shards import Shard, leaves_early
from paceline.errors import MessageUnreadable
from paceline.host import messages as host_messages
from paceline.host.attachments import NO_ROOM, Attachments, file_bytes
from paceline.host.authority import Authority
from paceline.host.bootstrap_process import BootstrapProcess
from paceline.host.claims import Owner
from paceline.host.contract import SUMS
from paceline.host.events import Attached, VersionBrought, WorkerEnded, WorkerEvent, WorkerSaid
from paceline.host.host_memory import HostMemory
from paceline.host.item_table import ItemKind, ItemTable
from paceline.host.memory_plan import MemoryPlan
from paceline.host.messages import GoesOn
from paceline.host.orders.pulls import Pulls
from paceline.host.orders.pushes import Pushes
from paceline.host.orders.releases import Releases, look_of, step_of
from paceline.host.overlap import Computing
from paceline.host.replicas.host_replicas import HostReplicas
from paceline.host.shards.host_reducer import HostReducer
from paceline.host.shards.server import ShardServer
from paceline.host.shards.summands import Gathered, Summands, UpdateBuffers
from paceline.host.store_process import StoreProcess
from paceline.host.training_start import TrainingStart
from paceline.host.version_items import Versions, written_by
from paceline.host.version_shelf import Shelf
from paceline.host.version_streaming import VersionStreaming
from paceline.host.worker_state import WorkerState, WorkerStates, idle_cores
from paceline.host.workers import Workers
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Span
from paceline.ipc.processes import NoProcess
from paceline.records.times import FetchTimes
from paceline.transfer.byte_ranges import ByteRanges
from paceline.transfer.fetcher import Fetcher, RemoteFetcher
from paceline.transfer.item_names import fields_of, item_of, summand_of

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.manager import TransferManager

HostReport = WorkerEvent | FetchTimes | VersionBrought | host_messages.ToHead
"""What a host reports, each thing once."""


def _shown_to(worker: int) -> Owner:
    """Who fetches the version that the worker looks at."""
    return "shown to", worker


class Host:
    """Carries out orders about its workers. Who makes versions fetches their updates from here."""

    def __init__(
        self,
        plan: MemoryPlan,
        choice: Choice,
        workers: Workers,
        carrier: TransferManager | None,
        report: Callable[[HostReport], None],
        loop: Loop,
        *,
        name: str,
        host_of: Callable[[int], str],
        head: str,
        threads: int,
        now: Callable[[], float],
        stand_in: BootstrapProcess | None = None,
        authority: Authority | None = None,
    ) -> None:
        """`carrier`: None if there are no other hosts. `name` is this host's, `head` the head's, and `host_of(worker)`
        the worker's. `threads` are those of each worker here. `now()` is seconds since the run's start.

        `stand_in`: what this host has in the place of workers, if it has none. `authority`: on the head's host, what
        commands it.
        """
        self.shelf = Shelf(on_freed=self._freed, on_emptied=self._emptied)
        self.memory = HostMemory(plan)
        self.versions = Versions(
            self.shelf,
            self.memory,
            plan,
            name=name,
            head=head,
            host_of=host_of,
            of_replicas=lambda: self.owns_replicas,
            begins=lambda: self.start.on_its_way,
        )
        self._plan = plan
        self.choice = choice
        self.part = choice.part(choice.begins)
        self._workers = workers
        self._carrier = carrier
        self._report = report
        self._head = head
        self._threads = threads
        self._authority = authority
        self.adds_up = False
        """Whether the updates of workers here are added up before they leave."""
        self.seats = seats = WorkerStates((worker, WorkerState(worker)) for worker in workers.numbers)
        if authority is not None:
            self.seats = seats = authority.seats  # which has other hosts' workers, too
        self.own: Container[int] = seats if authority is None else workers.numbers
        """This host's workers. Those of a host that has come again begin later."""
        self.store = StoreProcess(self.shelf, loop, workers if stand_in is None else stand_in.workers, self)
        self.reducer = HostReducer(self.shelf, plan, self.store, there=self.there_is_more, not_finite=self._not_finite)
        self._to_start: set[int] = set()
        """Workers that are to begin again, and whose turn has not come."""
        self.prepared: set[int] = set()
        """Workers whose scripts have come to `prepare`, and that have not left."""
        self.attachments = Attachments(name, carrier)
        self.start = TrainingStart(self, plan, report, stand_in, name=name, head=head)
        self._contributed: dict[int, list[tuple[int, int]]] = {}
        """By version that is ordered: the updates from here that it will have."""
        self.computing = Computing()
        self.replicas: HostReplicas | None = None
        """What sees to replicas, if each worker owns one, at least while one of the protocol's parts decides."""
        if choice.has_replicas:
            self.replicas = HostReplicas(
                self.shelf,
                plan,
                self.memory,
                workers,
                seats,
                loop,
                carrier,
                report,
                self.computing,
                name=name,
                deaths_are_told=authority is not None and authority.deaths_are_told,
                never_comes=None if authority is None else authority.copy_never_comes,
            )
        kind = Summands if choice.has_store else Gathered
        self.summands = kind(
            self.shelf, self.memory, self.reducer, self.computing, self.own, host_of, self.versions.changed
        )
        kinds: dict[type[Item], ItemKind[Any]] = {
            Version: self.versions,
            EarlyVersion: self.versions,
            Beginning: self.versions,
            Update: self.summands,
            Sum: self.summands,
            Buffers: UpdateBuffers(self.shelf, self.memory, host_of),
            Blob: self.attachments,
        }
        if self.replicas is not None:
            averaging = self.replicas.averaging
            kinds |= {Replica: self.replicas, Mean: averaging, Partial: averaging}
        self.items = ItemTable(self.shelf, kinds, self._has_fetched, self._place_is_free)
        self.ranges: ShardServer | None = None
        """What makes this host's range of each version. None: nothing is made here."""
        if authority is not None:
            self.makes(Shard(name, 0, 0))
        if carrier is None:
            assert authority is not None
            self.fetcher: Fetcher = authority.link
        else:
            self.fetcher = RemoteFetcher(
                carrier,
                now,
                report,
                away=self.versions.away,
                comes_as=self.versions.comes_as,
                lost=self._lacks,
                brought=lambda worker, began, ended: report(VersionBrought(worker, began, ended)),
            )
        self.pushes = Pushes(
            self.shelf,
            plan,
            self.reducer.dropped if authority is None else authority.update_dropped,
            lambda: self.part.spec.updates_of_rounds,
        )
        self.pulls = Pulls(self.shelf, self.versions, self.fetcher, seats, early=carrier is not None)
        self.streaming = None if authority is None else VersionStreaming(self.shelf, seats, workers.send)
        self.releases = Releases(
            self.shelf,
            self.pulls,
            self.pushes,
            self.versions,
            None if self.replicas is None else self.replicas.steps,
            seats,
            report,
            workers.send,
            self.streaming,
            owns_replicas=lambda: self.owns_replicas,
        )

    @property
    def part(self) -> Choice:
        """The part of the protocol that decides."""
        return self._part

    @part.setter
    def part(self, part: Choice) -> None:
        self._part = part
        self.versions.change_by(part.fragments)
        if self.versions.early is not None:
            self.versions.early.forget()

    @property
    def owns_replicas(self) -> bool:
        """Whether each worker owns a replica now."""
        return self.part.spec.state == "replicas"

    @property
    def owned_replicas(self) -> HostReplicas | None:
        """The replicas that workers here own, while they do."""
        return self.replicas if self.owns_replicas else None

    def makes(self, shard: Shard) -> None:
        """This host makes that range of each version."""
        self.ranges = self.summands.server = ShardServer(
            shard,
            self.shelf,
            self._plan,
            self.store,
            self._carrier,
            self.attachments,
            self,
            head=self._head,
        )
        self.versions.maker, self.versions.early = self.ranges.maker, self.ranges.early

    # --- what the head orders -----------------------------------------------------------------------

    def tell(self, message: host_messages.FromHead) -> None:
        """Do what the head says. What is said after `Train` waits for training's beginning, unless an end may need it.

        So does what is said after `Adopted`.
        """
        match message:
            case host_messages.BeginScripts():
                self._workers.open(self._hear, self._gone)
            case host_messages.Train():
                self.start.train(message)
            case host_messages.HostLost(host=host, why=why):
                if self._carries.has_met(host):
                    self._carries.ended(host, why)
            case host_messages.AttachmentFetched(attached=name):
                self.attachments.host_has(self._head, name)
            case host_messages.StartWorker(worker=worker):
                self._to_start.add(worker)
                self.start.in_turn(partial(self._start, worker))
            case host_messages.EndWorker(worker=worker, why=why):
                self._end(worker, why)
            case host_messages.Wake():
                self.store.wake()
            case _:
                self.start.in_turn(partial(self._obey, message))

    def _obey(self, message: host_messages.FromHead) -> None:
        match message:
            case host_messages.CarryOut():
                self.carry_out(message.order)
            case host_messages.CarryOutReleases():
                for order in message.orders:
                    self.carry_out(order)
            case host_messages.VersionMade(version=version):
                self.made(version)
            case host_messages.TellWorker(worker=worker, message=said, attached=attached):
                self._say(worker, said, attached)
            case host_messages.Look(worker=worker, version=version, hold=hold):
                self._show(worker, version, hold)
            case host_messages.SumUp(number=number, terms=fields, look=look):
                terms = [(Update(worker, step), weight) for worker, step, weight in fields]
                self.reducer.sum_up(Sum(number), terms, look=look)
            case host_messages.DropSum(number=number):
                self.reducer.drop(Sum(number))
            case host_messages.Shards(shards=shards, left=left):
                self._recut(shards, left)
            case host_messages.Adopt(worker=worker):
                self.start.adopt(worker)
            case host_messages.Adopted():
                self.start.adopted(message)
            case host_messages.PartSwitched():
                self.start.switched(message)
            case host_messages.AdmitWorker():
                self._admit(message)
            case host_messages.JoinWorker(worker=worker):
                self.seats[worker].trains = self.seats[worker].trained = self.seats[worker].running
            case host_messages.WorkerGone(worker=worker, died=died, unapplied=unapplied):
                self.left(worker, died, unapplied)
            case host_messages.ForgetWorker(worker=worker):
                self.forget(worker)
            case _ if isinstance(message, host_messages.OfRange):
                self._about_range(message)
            case _ if isinstance(message, host_messages.OfReplicas):
                assert self.replicas is not None
                if isinstance(message, host_messages.TakeStep) and message.change is None:
                    self.pushes.dropped(message.worker, message.step)
                self.replicas.carry_out(message)

    def carry_out(self, order: Order) -> None:
        """Carry out an order about a worker that is here, or about an update of one."""
        match order:
            case Release():
                self.releases.carry_out(order)
            case StartPull():
                self.pulls.carry_out(order)
            case StartPush():
                if self.seats[order.worker].trains:
                    self.pushes.carry_out(order)
            case ApplyUpdate():
                own = [(worker, step) for worker, step, _ in order.contributions if worker in self.seats]
                self._contributed[order.version] = own
                for worker, step in own:
                    self.pushes.ordered(worker, step, order.version)
            case DropUpdate():
                self.pushes.dropped(order.worker, order.step)
                self.releases.dropped(order.worker, order.step)
            case _:
                raise TypeError(f"{type(order).__name__} is carried out where the store is")

    def _about_range(self, order: host_messages.OfRange) -> None:
        """Carry out an order about this host's range."""
        assert self.ranges is not None
        match order:
            case host_messages.ExpectUpdate(worker=worker, step=step):
                self.ranges.expect(Update(worker, step))
            case host_messages.Bring(item=item, host=host):
                self.ranges.bring(summand_of(item), host)
            case host_messages.Drop(item=item):
                self.ranges.drop(summand_of(item))
            case host_messages.MakeRange(terms=terms):
                self.ranges.make(order, [(summand_of(fields), weight) for fields, weight in terms])
            case host_messages.AllNorms(norms=norms):
                self.ranges.make_with(norms)
            case host_messages.FreeVersion(version=version):
                self.ranges.free(version)
            case host_messages.PackState(number=number):
                self.ranges.pack_state(number)
            case host_messages.TakeRange():
                self.ranges.take(order)

    def made(self, version: int) -> None:
        """The store has made that version, and all before it."""
        self.start.made()
        for made in [one for one in self._contributed if one <= version]:
            for worker, step in self._contributed.pop(made):
                self.pushes.dropped(worker, step)
        self.versions.made(version)

    def _recut(self, shards: Sequence[Shard], left: str) -> None:
        """These make all versions from now on, and that host leaves. What is on its way is asked for anew."""
        self.versions.shards = shards
        self._carries.again(lambda item: isinstance(item, Version | EarlyVersion))
        self._carries.ended(left, "it has left in good order")

    def _show(self, worker: int, version: int, hold: bool) -> None:
        """That version is the newest: show it to the worker, which has asked for that."""
        item = Version(version)
        self.shelf.claim((step_of if hold else look_of)(worker), item)

        def there() -> None:
            self._workers.send(worker, messages.worker.SnapshotReady(self.shelf.place(item)))

        self._bring(worker, item, there)  # even if the worker leaves: its script waits for that

    def _say(self, worker: int, message: messages.Message, attached: Attached | None) -> None:
        """Tell the worker that, with what comes along."""
        if isinstance(message, messages.worker.HandOver | messages.worker.Revoke):  # of the release before it
            self.releases.after(worker, partial(self._workers.send, worker, message))
            return
        if attached is None:
            self.send(worker, message)
            return
        seat = self.seats[worker]

        def waited() -> bool:
            """Whether the process that has waited is there: one that has begun meanwhile was told nothing."""
            self._report(host_messages.AttachmentFetched(attached.name))
            return self.seats[worker] is seat

        def there(file: int) -> None:
            if waited():
                self.send(worker, message, (file,))

        def lost(why: str) -> None:
            if waited():  # also one that trains no more waits for that
                self._workers.give_up(worker, f"what the head has for it can't come: {why}")

        try:
            self.attachments.bring_file(attached, self._head, there, lost)
        except OSError as full:
            lost(f"{NO_ROOM}: {full.strerror}")

    def _start(self, worker: int) -> None:
        """Begin a new process as this worker, unless it was ended before its turn came."""
        self.seats[worker] = WorkerState(worker)
        self.prepared.discard(worker)
        self.pushes.returns(worker)
        if worker not in self._to_start:
            return
        self._to_start.discard(worker)
        try:
            self._workers.start([worker])
        except NoProcess as error:
            self._report(host_messages.HostRemarked(f"worker {worker} can't be started again: {error}"))
            self._report(WorkerEnded(worker, signal.SIGKILL))

    def _end(self, worker: int, why: str | None) -> None:
        """End the worker's process now. One that has yet to begin never does."""
        if worker in self._to_start:
            self._to_start.discard(worker)
            self._report(WorkerEnded(worker, signal.SIGKILL))
        elif why is None:
            self._workers.end(worker)
        else:
            self._workers.give_up(worker, why)

    def _admit(self, order: host_messages.AdmitWorker) -> None:
        """Let a worker in that has come to `prepare` while others train. It shows parameters, and takes no part yet."""
        worker, epoch, at = order.worker, order.epoch, order.at
        newest = Version(self.versions.newest)

        def there(shown: int) -> None:
            self._send_begin(worker, self._plan.admit(self.part, shown, epoch, at, tells=self.tells), ())

        if (replicas := self.owned_replicas) is not None:
            there(replicas.shows(worker, None if order.item is None else item_of(order.item)))
            return
        self.shelf.claim(step_of(worker), newest)
        self._bring(worker, newest, lambda: there(self.shelf.place(newest)))

    def left(self, worker: int, died: bool, unapplied: Sequence[int]) -> None:
        """The worker takes no part any more. `unapplied`: see `contract.Updates`."""
        seat = self.seats[worker]
        seat.trains, seat.step, seat.died = False, None, died
        self.prepared.discard(worker)
        self.pulls.left(worker)
        self.pushes.left(worker, unapplied)
        if self.replicas is not None:
            self.replicas.steps.left(worker)
        self.releases.left(worker)

    def forget(self, worker: int) -> None:
        """All know that the worker's process has ended: nothing is kept for it any more."""
        self.seats[worker].running = False
        if self._carrier is not None:
            self._carrier.cancel(_shown_to(worker))
        self.pushes.gone(worker)
        if self.replicas is not None:
            self.replicas.steps.gone(worker)
        self.releases.gone(worker)
        self.shelf.release(written_by(worker))

    def close(self) -> None:
        """All workers have been told to end."""
        self.store.close()

    # --- items --------------------------------------------------------------------------------------

    def _has_fetched(self, fetch: FetchTimes) -> None:
        if self.ranges is not None and (item := fetch.summand) is not None and self.ranges.had(item):
            fetch = fetch.moved()
        self._report(fetch)

    def _emptied(self, place: int) -> None:
        """Nothing lies in that place any more."""
        if self.replicas is not None:
            self.replicas.emptied(place)

    @property
    def _carries(self) -> TransferManager:
        assert self._carrier is not None  # else there is no other host
        return self._carrier

    def there_is_more(self, item: Item) -> None:
        """More of the item is here. Other hosts may have asked for it."""
        if self._carrier is not None:
            self._carrier.made(item)

    def _place_is_free(self) -> None:
        """What has waited for a place goes on."""
        if self._authority is not None:
            self._authority.place_is_free()
        self.reducer.go_on()
        if self.ranges is not None:
            self.ranges.maker.go_on()

    def _freed(self, item: Item) -> None:
        """Nobody claims it any more, and its place is free."""
        self.versions.freed(item)
        if self._authority is not None and isinstance(item, Version):
            self._authority.version_freed(item.version)
        elif isinstance(item, EarlyVersion):
            self._place_is_free()
        elif self.ranges is not None:
            self.ranges.maker.go_on()

    @property
    def tells(self) -> bool:
        """Whether other hosts are brought what there is of updates that workers here compute."""
        if self.owns_replicas:
            return self._carrier is not None and self.part.spec.averages_early
        return self.part.spec.brings_early and not self.versions.makes_all and not self.adds_up

    def _bring(self, worker: int, version: Version, there: Callable[[], None]) -> None:
        """Bring the version outside of any step, until the worker's process ends. Whoever needs it has claimed it."""

        def lost(why: str) -> None:
            self._lacks(worker, f"{version} can't come: {why}")

        if self.versions.away(version):
            self._carries.fetch(self.versions.comes_as(version), _shown_to(worker), there, lost)
        else:
            there()

    def _lacks(self, worker: int, why: str) -> None:
        self._report(host_messages.Lacks(worker, why))

    # --- the range that is made here: see `RangeOwner` -----------------------------------------------

    @property
    def makes_early(self) -> bool:
        """See `EarlyOwner`. Rounds that wait for all are of the same workers. What is encoded comes as a whole.

        Where a switch makes replicas, one may come to a place before the store has done all that it was told to.
        """
        part, offer = self.part, self.memory.offer
        in_rounds = part.spec.brings_early and part.spec.optimizer == "store" and part.rounds
        several = bool(self.versions.shards) and not self.choice.has_replicas
        return in_rounds and several and not offer.encoded_cuts and leaves_early(offer.cuts[-1])

    @property
    def offer(self) -> messages.worker.Offered:
        """See `EarlyOwner`."""
        return self.memory.offer

    def coverage(self, update: Update) -> ByteRanges:
        """See `EarlyOwner`."""
        return self.computing.there(update)

    @property
    def keeps_buffers(self) -> bool:
        """See `RangeOwner`."""
        return self._authority is not None

    def buffers_of(self, total: Sum) -> Sequence[Buffers]:
        """See `RangeOwner`."""
        assert self._authority is not None
        return self._authority.buffers_of(total)

    def away(self, version: Version) -> bool:
        """See `RangeOwner`."""
        return self.versions.away(version)

    def idle_cores(self) -> int:
        """See `RangeOwner`."""
        return idle_cores((self.seats[worker] for worker in self._workers.numbers), self._threads)

    def range_lost(self, why: str) -> None:
        """See `RangeOwner`."""
        (self.store.lose if self._authority is None else self._authority.loses)(why)

    def stored(self, item: Update | Sum) -> None:
        """See `RangeOwner`. The head hears each update without a message: a small step would be 5 % longer."""
        if self._authority is None:
            self._report(host_messages.Stored(fields_of(item)))
        else:
            self._authority.stored(item)

    def range_made(self, made: messages.store.Committed) -> None:
        """See `RangeOwner`."""
        if self._authority is None:
            self._report(host_messages.RangeMade(made))
        else:
            self._authority.own_range_made(made)

    def report(self, event: host_messages.OfShard) -> None:
        """See `RangeOwner`."""
        self._report(event)

    # --- what the process that computes for this host says --------------------------------------------

    def store_ready(self, beginning: str) -> None:
        """See `StoreOwner`."""
        if self._authority is not None:
            self._authority.store_reports.store_ready(beginning)
        self.start.process_settled()

    def store_not_forked(self) -> None:
        """See `StoreOwner`."""
        if self._authority is not None:
            self._authority.store_reports.store_not_forked()
        else:
            self.store.lose(f"no process of its script is left there to start {self.store.name}")

    def store_said(self, message: messages.Message, descriptors: list[int]) -> bool:
        """See `StoreOwner`."""
        match message:
            case messages.store.Summing() | messages.store.Summed():
                return self.reducer.heard(message)
            case (
                messages.store.Making()
                | messages.store.MadeEarly()
                | messages.store.Norms()
                | messages.store.Committed()
            ):
                return self._said_of_versions(message)
            case messages.store.ShareReady():
                return self.ranges is not None and self.ranges.hear(message, descriptors)
        return self._authority is not None and self._authority.store_reports.store_said(message, descriptors)

    def _said_of_versions(
        self,
        message: messages.store.Making | messages.store.MadeEarly | messages.store.Norms | messages.store.Committed,
    ) -> bool:
        try:
            asked = self.ranges is not None and self.ranges.hear(message, ())
        except MessageUnreadable:  # the head was not to hear of that
            return False
        if asked and self.streaming is not None and isinstance(message, messages.store.Making):
            self.streaming.made(message.version, message.begin, message.end)
        return asked

    def store_lost(self, why: str) -> None:
        """See `StoreOwner`. Without sums the run goes on. Without a range it fails, and its workers are ended then."""
        self.reducer.lost()
        if self._authority is not None:
            self._authority.store_reports.store_lost(why)
        elif self.ranges is None:
            self._report(host_messages.SumsLost(why))
        else:
            self.ranges.lost(why)
        self.start.process_settled()

    def _not_finite(self, parameter: str, worker: int | None) -> None:
        if self._authority is not None:
            self._authority.not_finite(parameter, worker)
        elif worker is not None:
            self._report(host_messages.SumNotFinite(parameter, worker))

    # --- what workers say ---------------------------------------------------------------------------

    def train(self, worker: int, goes_on: GoesOn | None) -> None:
        """Let a worker train for which all is here."""
        if goes_on is not None and goes_on.buffers is not None:
            self._report(host_messages.AttachmentFetched(goes_on.buffers.name))
        with self.start.came(None if goes_on is None else goes_on.kept) as kept:
            seat = self.seats[worker]
            if not seat.running:
                return
            seat.trains = seat.trained = True
            begin = self._plan.begin(self.part, tells=self.tells)
            begin.version = self.versions.newest
            if goes_on is not None:
                area = self._plan.area(self._plan.of(worker)[0])
                if (replicas := self.owned_replicas) is not None:
                    begin.place = area = replicas.area(worker)
                begin.resumed = messages.worker.ResumePoint(epoch=goes_on.epoch, buffers=area, kept=kept is not None)
            self._send_begin(worker, begin, () if kept is None else (kept,))

    def _hear(self, worker: int, message: messages.Message, descriptors: list[int]) -> None:
        seat = self.seats[worker]
        match message:
            case messages.worker.Accumulated(step=step, begin=begin, end=end, scalars=scalars):
                self.computing.told(worker, step, begin, end)
                if scalars is not None and self.ranges is not None:
                    self.ranges.early.has_scalars(Update(worker, step), scalars)
                self._has_more(Update(worker, step), begin, end)
                return  # it concerns nobody else
            case messages.worker.StepFinished(step=step):  # its version stays: it may be released on that once more
                # and its update, if the head asks for that before the worker leaves
                seat.step = step + 1 if step < seat.last else None
                self.pushes.computed(worker, step)
                if not self.part.spec.updates_of_rounds:
                    self._has_update(worker, step)
            case messages.worker.UpdateMade(step=step):
                self._has_update(worker, step)
            case messages.worker.Stepped(step=step) if self.replicas is not None:
                self.replicas.steps.stepped(worker, step)
            case messages.worker.Declined():
                if seat.step is not None:
                    self.pushes.dropped(worker, seat.step)
                    seat.step = None
            case messages.worker.FinishWanted() | messages.worker.ScriptEnded():
                seat.step = None
            case messages.worker.Offered():
                self.memory.offered(message)
                seat.accelerator = bool(message.device)
                self.prepared.add(worker)
            case messages.worker.StoreNotForked(error=error) if worker == self.store.forker and self.ranges is None:
                self.store.lose(f"{SUMS} can't be started: {error}")
                return  # nothing but sums is lost
            case messages.worker.SnapshotTaken():
                self.releases.looked(worker)
        attached = self.attach(worker, file_bytes(descriptors[0])) if descriptors else None
        self._report(WorkerSaid(worker, cast(messages.worker.FromWorker, message), attached))
        for descriptor in descriptors:
            os.close(descriptor)

    def _has_update(self, worker: int, step: int) -> None:
        self.computing.finished(worker, step)
        self._has_more(Update(worker, step), 0, sys.maxsize)

    def _has_more(self, update: Update, begin: int, end: int) -> None:
        """A worker here has more of its update in its place. Other hosts may have asked for it."""
        self.there_is_more(update)
        if self.replicas is not None:
            self.replicas.averaging.there_is_more(update)
        if self.ranges is not None:
            self.ranges.early.there_is_more(begin, end)

    def tell_part(self, state: int | None) -> None:
        """Tell the workers here which part of the protocol decides. `state`: what their optimizers go on with."""
        begin = self._plan.begin(self.part, tells=self.tells)
        told = messages.worker.SwitchPart(
            begin.state, begin.local_steps, begin.pushes, begin.at_once, begin.tells, begin.fragments
        )
        for worker in self._workers.numbers:
            seat = self.seats[worker]
            if seat.begun and seat.running:
                self._workers.send(worker, told, () if state is None else (state,))

    def _send_begin(self, worker: int, begin: messages.worker.Begin, files: tuple[int, ...]) -> None:
        self.seats[worker].begun = True
        ends = [] if self.replicas is None else [self.replicas.averaging.connect(worker)]
        descriptors = (self.memory.region.descriptor, *(end.fileno() for end in ends), *files)
        self._workers.send(worker, begin, descriptors)
        for end in ends:
            end.close()

    def send(self, worker: int, message: messages.Message, files: tuple[int, ...] = ()) -> None:
        """Tell the worker. If it takes part with a replica of its own, it does once that is here."""
        replicas = self.owned_replicas
        if replicas is None or not isinstance(message, messages.worker.TakeUp):
            self._workers.send(worker, message, files)
            return
        message.area = replicas.area(worker)
        # what comes along is packed by a worker whose replica is here by then, or is put into its place by this one
        replicas.when_there(worker, partial(self._workers.send, worker, message, files))

    def attach(self, worker: int, span: Span) -> Attached:
        """Have these bytes come along with what that worker says."""
        return self.attachments.attach(span, self._head, f"by worker {worker}: ")

    def _gone(self, worker: int, status: int) -> None:
        self.seats[worker].running = False
        self.prepared.discard(worker)
        if self.replicas is not None and self._authority is None:  # the head says when that is to count
            self.replicas.averaging.gone(worker)
        self._report(WorkerEnded(worker, status))
