"""All hosts of a run, as the coordinator sees them: a shelf, and a module for each kind of order over it.

The head's own machine is here, too. What other hosts are told and say is in `other_hosts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, BinaryIO, cast

from paceline.core.choice import Choice
from paceline.core.facts import Fact, ParametersTaken, ReduceFailed, ReduceFinished, ReplicaCopied
from paceline.core.items import Buffers, Replica, Sum, Update, Version
from paceline.core.machine import Spec
from paceline.core.orders import (
    AdjustTraining,
    ApplyUpdate,
    CopyReplica,
    DropUpdate,
    EndRound,
    Order,
    Reduce,
    Release,
    StartPull,
    StartPush,
    StepReplica,
)
from paceline.core.phrases import listed
from paceline.core.shards import Shard, cut, leaves_early
from paceline.host import messages as host_messages
from paceline.host.attachments import recorded_file
from paceline.host.contract import Progress, Resumption, SwitchVersion, Updates, called
from paceline.host.evaluator import Evaluator
from paceline.host.events import (
    Attached,
    Averaged,
    Computes,
    ComputesTaken,
    GivenUp,
    HostEvent,
    ProcessLost,
    Report,
    Transferred,
    WorkerSaid,
)
from paceline.host.host import Host, HostReport
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.averages import GroupAverages
from paceline.host.orders.commit_queue import NEWEST, CommitQueue
from paceline.host.orders.for_others import ForOthers
from paceline.host.orders.hyperparameters import Hyperparameters
from paceline.host.orders.join_handover import JoinHandover
from paceline.host.orders.own_steps import OwnSteps
from paceline.host.orders.releases import step_of
from paceline.host.orders.snapshots import HostSnapshots
from paceline.host.orders.switches import Switches
from paceline.host.other_hosts import OtherHosts
from paceline.host.overlap import Early
from paceline.host.remote_host import HostDirectory, RemoteHost
from paceline.host.replicas.host_replicas import HostReplicas
from paceline.host.replicas.mean_recorder import MeanRecorder
from paceline.host.replicas.replica_table import ReplicaTable
from paceline.host.replicas.transfers import ReplicaTransfers
from paceline.host.reports.shards import ShardReports
from paceline.host.reports.store import StoreReports
from paceline.host.reports.workers import WorkerReports
from paceline.host.shards.aggregation_scheduler import AggregationScheduler
from paceline.host.shards.arrivals import Arrivals
from paceline.host.shards.optimizer_state_gather import Shares
from paceline.host.shards.sum_table import SumTable
from paceline.host.worker_state import WorkerState, WorkerStates
from paceline.host.workers import Workers
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Span
from paceline.ipc.messages.worker import BEGINS
from paceline.records.times import FetchTimes
from paceline.scenario.links import ClusterLinks
from paceline.scenario.scenario import Network
from paceline.transfer.fetcher import Called, ShapedFetcher
from paceline.transfer.item_names import fields_of

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.manager import TransferManager


class Cluster:
    """All hosts of a run: what is ordered of versions, updates and replicas, and what there is of them."""

    def __init__(
        self,
        plan: MemoryPlan,
        choice: Choice,
        workers: Workers,
        loop: Loop,
        report: Report,
        *,
        name: str = "",
        others: Sequence[RemoteHost] = (),
        carrier: TransferManager | None = None,
        directory: HostDirectory | None = None,
        shards_on: Sequence[str] = (),
        threads: int,
        rate_scale: float,
        network: Network | None,
        links: ClusterLinks[Called],
        evaluator: Evaluator | None,
        now: Callable[[], float],
        host_of: Callable[[int], str] = lambda worker: "",
        leaves_undone: Callable[[int, int], bool],
        deaths_are_told: bool,
        part: int | None = None,
        gives: Callable[[list[int]], list[int]] = lambda members: members,
    ) -> None:
        """`others` are the other hosts, whose store is here, too. `carrier` fetches their updates, and `directory`
        knows where they are. `shards_on`: the hosts that make versions, where this one, called `name`, does not make
        them alone. `threads` are those of each worker. `links` pace what moves here, if `network` says so.
        `evaluator` is forked besides the store process, if it is given. `now()` is seconds since the run's start.
        `host_of(worker)`: its host, if averages go by that. `leaves_undone(worker, step)`: the replica must not make
        that step, as if its worker had left. `part`: the number of the protocol's part that decides; None: the one with
        which it begins. See `Switches`, `CommitQueue` and `GroupAverages` for the rest.
        """
        self.plan = plan
        self.name = name
        self.shards_on = shards_on
        """The hosts that are to make versions, if not this one alone."""
        self._first = 0
        """The version that training has begun with."""
        self._numbers = count()
        self.edits: dict[int, str] = {}
        """By change of the model's structure that a worker tells: the file for it."""
        self.lacks_host = False
        """Whether a host has gone that made a range of each version."""
        self.workers_here = workers
        self._report = report
        self.carrier = carrier
        self._network = network
        self._evaluator = evaluator
        self._now = now
        self.worker_reports, self.store_reports = WorkerReports(self, report), StoreReports(self, report)
        self.shard_reports = ShardReports(self, report, now)
        self._at: float | None = None
        """The time of the event that is being handled: a fact, whose orders are carried out, or a version's end."""
        self.seats = seats = WorkerStates((worker, WorkerState(worker)) for worker in workers.numbers)
        seats.update((worker, WorkerState(worker, elsewhere=True)) for other in others for worker in other.workers)
        self.offers: dict[int, messages.worker.Offered] = {}
        """By worker: what its script brought to `prepare`."""
        self.link = ShapedFetcher(
            links, now, self._moment, report, lambda *of: report(Transferred(*of)), choice.fragments
        )
        self.deaths_are_told = deaths_are_told
        self.here = here = Host(
            plan,
            choice,
            workers,
            carrier,
            self._hear_here,
            loop,
            name=name,
            head=name,
            host_of=lambda worker: self.others.host_of(worker),
            threads=threads,
            now=now,
            authority=self,
        )
        """The head's own host."""
        self.part = choice.begins if part is None else part
        """The number of the part of the protocol that decides."""
        here.part = choice.part(self.part)
        spec = self.spec
        self.shelf, self.memory, self.versions, self.store = here.shelf, here.memory, here.versions, here.store
        self.store.name = called(choice)
        self.reducer, self.attachments = here.reducer, here.attachments
        self.pushes, self.releases = here.pushes, here.releases
        assert here.ranges is not None
        assert here.streaming is not None
        self.shard_server, self.streaming = here.ranges, here.streaming
        self.sums = SumTable(self.shelf, self.reducer)
        self.arrivals = Arrivals(name, self.shard_server, self._tell_host)
        self.aggregation = AggregationScheduler(self.arrivals, self.sums, self.reducer, name, self._tell_host, report)
        self._leaves_undone = leaves_undone
        self.replicas = ReplicaTable(seats, name, lambda worker: self.others.host_of(worker))
        self.transfers = ReplicaTransfers(self, self.replicas)
        self.averages = GroupAverages(
            self,
            self.replicas,
            self.link.gather,
            seats,
            report,
            now,
            host_of,
            deaths_are_told=deaths_are_told,
        )
        self.early: Early | None = None
        if carrier is not None and any(one.spec.brings_early for one in (choice, *choice.parts)):
            self.early = Early(self.shelf, plan, self.pushes, self.arrivals)
        self.hyperparameters = Hyperparameters(seats, rate_scale, steps_in_store=spec.optimizer == "store")
        self.commits = CommitQueue(
            self.shelf,
            plan,
            self.store,
            self.pushes,
            report,
            hyperparameters=self.hyperparameters,
            versions=self.versions,
            arrivals=self.arrivals,
            sums=self.sums,
            brings=self.brings,
            rests=lambda: self.others.moves.rests(),
        )
        self.shares = Shares(self.store, self.arrivals, self.shard_server)
        self.means = MeanRecorder(self.shelf, plan, self.store, self.replicas, self.transfers, report)
        self.snapshots = HostSnapshots(
            self.shelf,
            plan,
            self.store,
            self.commits,
            self.replicas,
            self.transfers,
            here.replicas,
            self.shares,
            report,
            seats,
        )
        self._for_others = ForOthers(
            self.shelf, self.pushes, self.versions, seats, report, stored=lambda: not self.owns_replicas
        )
        self.own_steps = OwnSteps(self.send, self._bring, lambda: self.here.part.fragments.overlap > 0)
        self.switches = Switches(self, report, gives)
        self.joins = JoinHandover(
            self,
            self.shelf,
            self.store,
            self.replicas,
            self.transfers,
            self.releases,
            here.fetcher,
            seats,
            report,
        )
        self.others: OtherHosts = OtherHosts(self, others, carrier, report, directory, now)
        """What other hosts are told, and what they say."""

    def switch(self, part: int, members: Sequence[int], makes: SwitchVersion | None = None) -> None:
        """Let that part decide, from that version on if the switch makes one.

        The optimizer's state moves to where it is needed, and orders wait for all that.
        """
        self.averages.early.forget()
        self.switches.begin(part, members, makes)

    # --- how orders are going ---------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """How far the host has come."""
        making, writing = self.commits.making, self.store.writing
        busy_with = f"{self.store.name} is writing a version to disk" if writing else None
        if making is not None:
            lacking = f", and waiting for {listed(self.commits.lacking)} to make a part" if self.commits.lacking else ""
            busy_with = f"{self.store.name} is making version {making}{lacking}"
        busy_with = self.others.moves.busy_with or self.switches.busy_with or busy_with
        return Progress(
            idle=self.commits.idle and not writing and self.switches.part is None,
            settled=self.replicas.settled and self.averages.settled,
            averaging=self.averages.averaging,
            averages=self.averages.made,
            busy_with=busy_with,
            lost=self.store.lost,
        )

    def updates(self, worker: int) -> Updates:
        """The worker's updates that others wait for."""
        return replace(self.pushes.waited_for(worker), unapplied=self.replicas.unapplied(worker))

    # --- the start --------------------------------------------------------------------------------

    def open(self) -> None:
        """Listen to the workers."""
        self.here.tell(host_messages.BeginScripts())
        self.others.open()

    def gathers(self) -> Mapping[str, messages.worker.Offered] | None:
        """Have the script begin on hosts without workers. Return what it has brought to `prepare` there, by host.

        None: it is still to come to that on one of them. One on which it can't is lost.
        """
        return self.others.gathers()

    def prepare(self, worker: int, resumption: Resumption | None = None) -> None:
        """Have this worker, which has come to `prepare`, fork the store process: `Prepared` is reported.

        A worker that can't do so is ended. Another one may be asked then. `resumption`: what all go on from.
        """
        if self.seats[worker].elsewhere:
            self._report(
                ProcessLost("no worker of the head's host has come to prepare(), so nothing can make versions there")
            )
            return
        came = {self.name} | self.others.came_to_prepare
        self.shards_on = [host for host in self.shards_on if host in came]
        if self.store.lost:
            return
        self.snapshots.resumption = resumption
        offer = self.offers[worker]
        self.commits.clips_norms = self.clips_norms
        self.memory.lay_out()
        shards = cut(offer.cuts, self.shards_on) if self.shards_on else []
        self.versions.shards = shards if any(one.host != self.name for one in shards) else []
        begin, end = next(((one.begin, one.end) for one in self.shards if one.host == self.name), (0, 0))
        if not self.shards:
            end = offer.cuts[-1]
        self.shard_server.shard = Shard(self.name, begin, end)
        ends = [self._evaluator.connect()] if self._evaluator is not None and offer.evaluates else []
        order = self.plan.fork(begin, end, self.here.part.outer(self.plan.capacity))
        self.store.fork(lambda: (worker,), self.memory.region, order, ends)

    def why_not(self, workers: Sequence[int]) -> str:
        """Why training can't begin with these workers, once all is prepared. Empty: it can."""
        return self.others.why_not(workers)

    def begin(self, workers: Sequence[int]) -> None:
        """Let these workers train, from the first version on."""
        owns_replica, resumes = self.owns_replicas, self.snapshots.resumption is not None
        self.here.adds_up = self.plan.sums > 0 and len(self.workers) > 1
        for worker in workers:
            self.seats[worker].trains = self.seats[worker].trained = True
            if not self.seats[worker].elsewhere:
                goes_on = self.others.goes_on(worker)
                if goes_on is not None and goes_on.kept is not None:
                    self.attachments.comes(goes_on.kept, self.name)
                self.here.train(worker, goes_on)
        if not resumes:
            self.commits.begin(0)
        self._first = self.newest
        self.versions.is_whole(Version(self.newest))
        self.link.sizes = self._sizes(self.offers[workers[0]])
        if owns_replica and not resumes:
            self.joins.keep_beginning(Version(0))
            self.replicas_begin(workers, Version(0))
        self.others.begin(workers)
        if owns_replica:
            self.replicas_here.begun(self.replicas.workers)

    def replicas_begin(self, workers: Sequence[int], version: Version) -> Mapping[int, int]:
        """These workers' replicas begin as that version. No store makes another one of it. Return their numbers."""
        changes = self.replicas.begin(workers)
        here = {worker: change for worker, change in changes.items() if not self.seats[worker].elsewhere}
        self.replicas_here.begin(here, version)
        self.shelf.release(NEWEST)
        return changes

    def put_replicas(self, workers: Iterable[int]) -> None:
        """Have these workers, which were told that each owns a replica, put theirs with their buffers into a place."""
        for worker in workers:
            told = host_messages.TakeStep(worker, BEGINS, self.replicas.put(worker, BEGINS), None, None)
            self.tell_replicas(self.others.host_of(worker), told)

    def replicas_end(self) -> None:
        """No worker owns a replica any more. What others still need of them stays."""
        for worker in self.replicas.workers:
            self.joins.released(worker)
        self.replicas.end()
        self.replicas_here.end()
        for worker in self.seats:
            self.pushes.forget(worker)

    def _sizes(self, offer: messages.worker.Offered) -> tuple[int, int]:
        """Bytes of an update and of a version on links that a scenario paces."""
        given = None if self._network is None else self._network.message
        size = offer.model_bytes if given is None else given
        return size * offer.update_bytes // max(1, offer.model_bytes), size

    def returns(self, worker: int) -> None:
        """A new process begins as this worker, whose process has ended."""
        self.others.returns(worker)
        before = self.seats[worker]
        self.seats[worker] = WorkerState(
            worker, elsewhere=before.elsewhere, joined=before.joined
        )  # as its last steps count
        self.pushes.returns(worker)

    def admit(self, worker: int, epoch: int, at: float) -> None:
        """Let a worker in that has come to `prepare` while others train. It shows parameters, and takes no part yet.

        Its script goes on to its first step, in that epoch. `at`: the moment, in seconds since the run's start.
        """
        if self.seats[worker].elsewhere:
            self.others.begins_late(worker)
        if self.owns_replicas:
            self.joins.shows(worker, partial(self._admit, self.seats[worker], epoch, at))
            return
        self.shelf.claim(step_of(worker), Version(self.newest))
        self._admit(self.seats[worker], epoch, at, None)

    def _admit(self, seat: WorkerState, epoch: int, at: float, replica: Replica | None) -> None:
        """Let the worker in. It shows that replica, if each worker owns one, or the newest version."""
        worker = seat.worker
        if self.seats[worker] is not seat or not seat.here:
            return
        order = host_messages.AdmitWorker(worker, epoch, at, None if replica is None else fields_of(replica))
        if seat.elsewhere:
            self.others.admit(order)
        else:
            self.here.tell(order)

    def join(self, worker: int, others: Sequence[int]) -> None:
        """The worker takes part from now on. It gets what the script of the first of these others keeps that is here.

        Where workers own replicas it gets that with its replica, by an order.
        """
        self.others.join(worker)
        self.seats[worker].joined = 1 + max(seat.joined for seat in self.seats.values())
        self.hyperparameters.joins(worker)
        if self.seats[worker].here:
            self.seats[worker].trains = self.seats[worker].trained = True
            self.joins.join(worker, others)

    def begin_anew(self, worker: int, version: int | None, file: str) -> None:
        """No worker has a replica that counts: this one's begins as that mean, which is recorded in the file.

        None: as training began, since no mean was recorded.
        """
        self.joins.begin_anew(worker, version, file)

    def adopt(self, worker: int) -> None:
        """Have the worker write what its script changed the first version to. All begin with that once it has."""
        self._tell_host_of(worker, host_messages.Adopt(worker))  # what another host's worker wrote is fetched

    # --- orders and facts -------------------------------------------------------------------------

    def carry_out(self, order: Order, at: float) -> None:
        """Carry out an order about items. It follows from a fact of that moment. Raises NotHere, in one sentence."""
        if self.switches.part is not None:
            self.switches.held.append(order)
        else:
            self._carry_out(order, at)

    def carry_out_now(self, order: Order) -> None:
        """Carry out an order that has waited for a switch."""
        self._carry_out(order, self._now())

    def _carry_out(self, order: Order, at: float) -> None:
        self._at = at
        try:
            match order:
                case Release(worker=worker, step=step):
                    seat = self.seats[worker]
                    if seat.trains:
                        if order.parameters == "own":  # NotHere is told as the order comes
                            if self.owns_replicas:
                                self.replicas.replica(worker)
                            else:
                                self.pushes.expect_own(order)
                        self.aggregation.released(worker)
                        if self.spec.updates_of_rounds:
                            self.own_steps.released(order)
                    self.joins.released(worker)
                    if seat.trains and not seat.elsewhere:
                        seat.released = step
                    self._at_workers_host(order)
                    if not seat.elsewhere:
                        self.begins_step(worker, step)
                case EndRound(worker=worker):
                    self.end_round(worker)
                case StartPull():
                    self._at_workers_host(order)
                case StartPush():
                    if self.seats[order.worker].trains:  # else the machine is about to hear that it has left
                        self._push(order)
                case ApplyUpdate() | AdjustTraining():
                    self.commits.carry_out(order)
                case StepReplica():
                    self._step(order)
                case Reduce():
                    self.averages.carry_out(order)
                case CopyReplica():
                    self.joins.carry_out(order)
                case DropUpdate(worker=worker, step=step):
                    self.drop_update(worker, step)
                    if not self.seats[worker].elsewhere:
                        self.releases.dropped(worker, step)
                case _:
                    raise TypeError(f"{type(order).__name__} is not about items")
        finally:
            self._at = None
        if self.carrier is not None:  # else there are no other hosts
            self.others.carry_out(order)

    def _at_workers_host(self, order: Release | StartPull | StartPush) -> None:
        """Have the worker's host do its part. Another host than the head's hears of it after this."""
        seat = self.seats[order.worker]
        if not seat.trains:  # the machine is about to hear that the worker has left
            return
        if seat.elsewhere:
            self._for_others.carry_out(order)
        else:
            self.here.carry_out(order)

    def end_round(self, worker: int) -> None:
        """Have the worker make no further step of its last release, of which it may have been told yet or not."""
        if self.seats[worker].trains and self.spec.updates_of_rounds:
            self.releases.after(worker, lambda: self.send(worker, messages.worker.Revoke()))

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now, so what the fact says of items takes effect at this moment."""
        if self.plan.sums:
            self.sums.tell(fact)
        match fact:
            case ReduceFinished(group=group):
                self.averages.finished(group)
            case ReduceFailed(group=group):
                self.averages.failed(group)
            case ReplicaCopied(worker=worker):
                self.joins.copied(worker)
        if self.carrier is not None:
            self.others.tell(fact)

    def edit(self, number: int, file: str) -> None:
        """Write that change of the model's structure to the file, as a worker tells it: `messages.worker.Edited`."""
        self.edits[number] = file

    def restructure(self, file: str) -> None:
        """Versions from now on have the structure that is in this file."""
        self.store.send(messages.store.Restructure(file))

    def show_recorded(self, worker: int, message: messages.worker.ToWorker, file: str | None) -> None:
        """Tell the worker this. What is recorded in that file comes along, wherever the worker is.

        Raises RunFailed if the file is there no more.
        """
        if file is None:
            self.send(worker, message)
            return
        if self.seats[worker].elsewhere:
            self.others.show_recorded(worker, message, file)
            return
        with recorded_file(file) as descriptor:
            self.send(worker, message, (descriptor,))

    def record(
        self,
        version: int,
        workers: Sequence[int],
        file: str,
        buffers: str,
        known: messages.store.WorkersTold = messages.store.UNTOLD,
    ) -> None:
        """Have a version written to that file: `VersionWritten` is reported.

        It is a version that is made, with the buffers of these workers, and what is `known` besides. Where versions are
        means, it is the mean of these workers' replicas as they are now.
        """
        recorder = self.means if self.owns_replicas else self.commits
        recorder.record(version, workers, file, buffers, known)

    def keep(self, snapshot: int, folder: str, version: int, workers: Sequence[int]) -> Sequence[str]:
        """Have what there is now written into that folder. Return the files' names.

        `SnapshotFileWritten` is reported of each. That is the version, which may be ordered and not made yet, or these
        workers' replicas. What workers pack for the snapshot of this number is written, too.
        """
        return self.snapshots.keep(snapshot, folder, version, workers)

    def seal(self, state: bytes, old: Sequence[str]) -> None:
        """All files of the snapshot are there: write the last one, `state.json`, and give the folder its name.

        `SnapshotSealed` is reported. These older snapshots are removed.
        """
        self.snapshots.seal(state, old)

    def drop(self) -> None:
        """A file of the snapshot can't be made, and all others are there: have them removed."""
        self.snapshots.drop()

    def next(self, until: float) -> Fact | None:
        """Return the fact of the earliest fetch that has ended by `until`."""
        return self.link.next(until)

    def due(self) -> float | None:
        """Seconds until the next fetch ends, if one is under way."""
        return self.link.due()

    # --- how workers leave, and the end -----------------------------------------------------------

    def left(self, worker: int, died: bool) -> None:
        """The worker takes no part any more: what was on the way to it or from it never ends.

        What it shows stays claimed until its process ends, as its script may go on with the model.
        """
        seat = self.seats[worker]
        seat.trains, seat.step, seat.released, seat.died = False, None, None, died
        self.averages.early.leaves(worker)
        self.switches.left(worker)
        self.joins.left(worker, died)
        self.aggregation.cancel(worker)
        self.own_steps.left(worker)
        unapplied = self.replicas.unapplied(worker)
        self.here.left(worker, died, unapplied)
        self.commits.go_on()
        self.others.left(worker, died, unapplied)

    def gone(self, worker: int) -> None:
        """The worker's process has ended, and the coordinator knows it: nothing is kept for the worker any more."""
        self.seats[worker].here = False
        self.store.gone(worker)
        self.here.forget(worker)
        if self.here.replicas is not None:
            self.here.replicas.averaging.gone(worker)
        self.averages.early.leaves(worker)
        self.averages.gone(worker)
        self.replicas.gone(worker)
        self.joins.gone(worker)
        self.switches.gone(worker)
        self.commits.go_on()
        self.others.gone(worker)

    def wake(self) -> None:
        """The run is to end: have the processes that make and record versions go on if they are stopped."""
        self.store.wake()
        self.others.wake()

    def close(self) -> None:
        """Tell the store process to end. Whatever is asked of the host after that has no effect."""
        self.store.close()

    # --- what workers are told that is not about items -----------------------------------------------

    @property
    def numbers(self) -> list[int]:
        """All workers, ascending."""
        return sorted([*self.workers_here.numbers, *self.others.workers])

    def start(self, workers: Sequence[int]) -> None:
        """Begin these workers' processes. Raises NoProcess, and then none of the head's is there."""
        if here := [worker for worker in workers if worker not in self.others.workers]:
            self.workers_here.start(here)
        self.others.start(workers)

    def send(self, worker: int, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Tell a worker, wherever it is."""
        if self.seats[worker].elsewhere:
            self.others.hands(worker, message, descriptors[0] if descriptors else None)
        else:
            self.here.send(worker, message, descriptors)

    def end(self, worker: int) -> None:
        """End the worker's process, once its host has passed on what it has said."""
        self._tell_host_of(worker, host_messages.EndWorker(worker, None))

    def kill(self, worker: int) -> None:
        """End the worker's process. That is not put off for what it has said and is still on its way."""
        self.end(worker)
        self.others.reports.hear_end(worker)

    def give_up(self, worker: int, why: str) -> None:
        """End a worker that can't go on, through no fault of the others."""
        self._tell_host_of(worker, host_messages.EndWorker(worker, why))

    def _tell_host_of(self, worker: int, message: host_messages.FromHead) -> None:
        """Tell the worker's host that."""
        if self.seats[worker].elsewhere:
            self.others.tell_worker(worker, message)
        else:
            self.here.tell(message)

    # --- what other hosts are told and asked ------------------------------------------------------

    @property
    def workers(self) -> Sequence[int]:
        """Those of this host."""
        return self.workers_here.numbers

    def workers_of(self, host: str) -> Sequence[int]:
        """Those of that host; none if it is lost."""
        return self.others.workers_of(host)

    @property
    def shards(self) -> Sequence[Shard]:
        """Who makes which range of each version. Empty: the head makes all of it, or nobody does."""
        return self.versions.shards

    @property
    def newest(self) -> int:
        """The newest version that is made."""
        return self.commits.newest

    def prepares(self, worker: int) -> bool:
        """Whether the worker's script has come to `prepare`, and its process is there."""
        return worker in self.offers and self.seats[worker].here

    @property
    def spec(self) -> Spec:
        """Of the part of the protocol that decides."""
        return self.here.part.spec

    @property
    def clips_norms(self) -> bool:
        """Whether stores clip mean gradients by their norm."""
        return self.memory.offer.clip_grad_norm is not None and self.spec.optimizer == "store"

    @property
    def owns_replicas(self) -> bool:
        """Whether each worker owns a replica now."""
        return self.here.owns_replicas

    def has_finished(self, worker: int) -> bool:
        """Whether the worker has left after it had trained, and has not died: its replica counts."""
        seat = self.seats[worker]
        return seat.trained and not seat.trains and not seat.died

    def expects(self, workers: Sequence[int]) -> None:
        """These workers of another host are about to begin, while others train."""
        self.seats.update((worker, WorkerState(worker, elsewhere=True)) for worker in workers)

    def lends_beginning(self, host: str, workers: Sequence[int] = ()) -> None:
        """That host fetches what training begins with. Keep it until then, even if a script changes it for all.

        In a resumed run each of these workers begins with a replica of its own, if any has one.
        """
        owns = self.snapshots.resumption is not None and self.owns_replicas
        items = [self.replicas.replica(worker) for worker in workers] if owns else [Version(self.newest)]
        self.versions.lend(host, *items)

    def goes_on(self, worker: int) -> tuple[int, Span | None, BinaryIO | None] | None:
        """What that worker goes on with: its epoch, its buffers, and the open file of what its script kept, if any.

        A worker that owns a replica has its buffers there. None: the run begins.
        """
        if self.snapshots.resumption is None:
            return None
        epoch, kept = self.snapshots.begins(worker)
        return epoch, None if self.owns_replicas else self.memory.buffers(worker), kept

    def _push(self, order: StartPush) -> None:
        """Have the worker's update come to the hosts that make versions, once it is made."""
        self._at_workers_host(order)
        if self.spec.updates_of_rounds:
            self.own_steps.push(order)
        else:
            self._bring(order)

    def _bring(self, order: StartPush) -> None:
        """Bring the worker's update to the hosts that make versions."""
        arrived, update = partial(self.pushes.arrived, order.worker, order.step), Update(order.worker, order.step)
        if self._network is None or self.carrier is not None:  # between hosts it takes the time that it takes
            self.aggregation.bring(update, arrived)
        else:  # it counts once the link would have brought it
            self.aggregation.bring(update, lambda at: self.link.fetch(order.worker, update, arrived))

    def brings(self, version: int, then: Callable[[], object]) -> None:
        """Bring the ranges of that version here that are made elsewhere, then go on. Whoever needs it has claimed it.

        If it can't come, a host is lost that makes a range, or has broken its word: the store is lost then.
        """
        if not self.versions.away(Version(version)):
            then()
            return
        assert self.carrier is not None
        owner, lost = ("brought", next(self._numbers)), lambda why: self.loses(f"version {version} can't come: {why}")
        self.carrier.fetch(self.versions.comes_as(Version(version)), owner, then, lost)

    def version_freed(self, version: int) -> None:
        """See `Authority`."""
        self.arrivals.freed(version)

    def stored(self, item: Update | Sum) -> None:
        """See `Authority`."""
        self.shard_reports.stored(self.name, item)

    def own_range_made(self, made: messages.store.Committed) -> None:
        """See `Authority`."""
        self.shard_reports.range_made(self.name, made)

    def update_dropped(self, update: Update) -> None:
        """See `Authority`."""
        self.sums.dropped(update)
        self.hyperparameters.dropped(update.worker, update.step)

    def copy_never_comes(self, number: int, why: str) -> None:
        """See `Authority`."""
        self.transfers.never_comes(number, why)

    def place_is_free(self) -> None:
        """See `Authority`."""
        self.commits.go_on()

    def loses(self, why: str) -> None:
        """A host has gone that made a range of each version: no version can be made."""
        self.lacks_host = True
        self.store.lose(why)

    def buffers_of(self, total: Sum) -> list[Buffers]:
        """The buffers behind the updates in that sum, which another host makes."""
        if not self.memory.offer.buffers_bytes:
            return []
        return [Buffers(update.worker, update.step) for update in self.reducer.updates_of(total)]

    # --- ranges that move: see `Moves` ------------------------------------------------------------

    @property
    def may_move(self) -> bool:
        """Whether a range may move now, as no version is being made: all have begun, and a version was made since."""
        switches = self.switches.part is not None
        return self.newest > self._first and not (self.versions.lends or self.store.lost or switches)

    def recut(self, shards: Sequence[Shard]) -> None:
        """These make versions from now on. What they need for that is there."""
        self.versions.shards = shards if any(one.host != self.name for one in shards) else []

    # --- what reports lead to -----------------------------------------------------------------------

    def moves(self, moving: bool) -> None:
        """A range of versions begins to move to another host, or has moved."""
        if self.early is not None and moving:
            self.early.rest()
        elif self.early is not None:
            self.early.rests = False

    def begins_step(self, worker: int, step: int) -> None:
        """The worker computes that step, or is about to: others may bring what there is of its update."""
        seat = self.seats[worker]
        if seat.trains and self.spec.averages_early:
            self.averages.early.computes(worker, step)
        if self.early is None or not self.spec.brings_early or not seat.trains or self.aggregation.adds_up(worker):
            return
        if seat.elsewhere or self.shards:
            self.early.released(worker, step, elsewhere=seat.elsewhere)

    @property
    def averages_early(self) -> bool:
        """Whether it pays to begin averages while workers compute: what is encoded can't be summed piece by piece."""
        offer = self.memory.offer
        return self.carrier is not None and not offer.encoded_cuts and leaves_early(offer.cuts[-1])

    def drop_update(self, worker: int, step: int) -> None:
        """There will be no update of this step, or none that counts: its place is free."""
        self.arrivals.dropped(Update(worker, step))  # while it has its place, to which some of it may be on its way
        self.pushes.dropped(worker, step)
        self.replicas.dropped(worker, step)

    def not_finite(self, parameter: str, worker: int | None) -> None:
        """A gradient that was added up has a NaN or an infinity."""
        self.sums.found = self.sums.found or (parameter, worker)

    def norms_taken(self, host: str, message: messages.store.Norms) -> bool:
        """That host has the norms for its range of a version. Return whether it was asked to take them."""
        return self.store.lost or self.commits.norms_taken(host, message)

    def range_made(self, host: str, message: messages.store.Committed) -> bool:
        """That host has made its range of a version. Return whether it was asked to."""
        if self.store.lost:  # no version is made any more
            return True
        if not self.commits.range_made(host, message):
            return False
        if self.commits.whole:
            at = self._at = self._now()  # workers that wait for it go on at the same moment
            self.streaming.whole(message.version)
            version = self.commits.made(at)
            self._at = None
            if self.carrier is not None:
                self.others.made(version)
        return True

    # --- replicas -----------------------------------------------------------------------------------

    @property
    def replicas_here(self) -> HostReplicas:
        """Those on the head's own host."""
        assert self.here.replicas is not None  # each worker owns one
        return self.here.replicas

    def tell_replicas(self, host: str, order: host_messages.OfReplicas) -> None:
        """Order that of the host, which may be this one."""
        if host == self.name:
            self.replicas_here.carry_out(order)
        elif isinstance(order, host_messages.OfWorkersReplica):
            self.others.tell_worker(order.worker, order)
        else:
            self.others.tell_host(host, order)

    def take_replica(self, worker: int, change: int, *, recorded: bool = False) -> None:
        """The worker's replica is the one with that number. `recorded`: see `TakeReplica`."""
        if self.seats[worker].elsewhere and self.replicas_here.steps.owned_by(worker):
            self.replicas_here.steps.forget(worker)  # its last one was brought here
        self.tell_replicas(self.others.host_of(worker), host_messages.TakeReplica(worker, change, recorded))

    def averages_at(self, host: str) -> str:
        """The host that makes that host's part of averages. Where there is no other one, it makes all of each."""
        return self.name if self.carrier is None else host

    def _step(self, order: StepReplica) -> None:
        """Have the worker's replica stepped, wherever it is."""
        worker, step = order.worker, order.step
        change, scalars = None, None
        self.replicas.dropped(worker, step)
        if not self.seats[worker].trains:  # the machine is about to hear that the worker has left
            self.pushes.dropped(worker, step)  # else its place is free at its next release
        elif not self._leaves_undone(worker, step):
            change, scalars = self.replicas.step(order)
            scalars = self.hyperparameters.of_replica(worker, scalars)
        mean = None if order.group is None else self.averages.number(order.group)
        told = host_messages.TakeStep(worker, step, change, mean, scalars)
        self.tell_replicas(self.others.host_of(worker), told)

    def _hear_worker(self, worker: int, said: messages.worker.FromWorker, attached: Attached | None) -> None:
        """A worker of the head's own host has said this."""
        files = []
        if attached is not None:
            self.attachments.comes(attached, self.name)
            files.append(self.attachments.take_file(attached))
            self.attachments.host_has(self.name, attached.name)
        self.worker_reports.hear(worker, said, files)
        if isinstance(said, messages.worker.SnapshotWanted):
            self.here.tell(host_messages.Look(worker, self.newest, said.hold))

    def _hear_here(self, event: HostReport) -> None:
        """The head's own host reports this."""
        match event:
            case WorkerSaid(worker=worker, message=messages.Message() as said, attached=attached):
                self._hear_worker(worker, said, attached)
            case ParametersTaken() | ComputesTaken() | Computes():  # each step comes by here
                self._report(event)
            case FetchTimes():
                self.averages.fetched(event.ending(self._now()))
            case Averaged(number=number) | GivenUp(number=number):
                self.averages.has_made(number, self.name)
            case host_messages.ItemCopied(number=number):
                self.transfers.brought(number, self.name)
            case host_messages.Lacks(worker=worker, why=why):
                self.others.never_comes(worker, why)
            case host_messages.AttachmentFetched(attached=name):
                self.attachments.host_has(self.name, name)
            case _ if isinstance(event, host_messages.OfShard):
                self.shard_reports.hear(self.name, event)
            case _:
                self._report(cast(HostEvent, event))

    def _tell_host(self, host: str, message: messages.Message) -> None:
        """Tell another host that."""
        self.others.tell_host(host, message)

    def _moment(self) -> float:
        return self._now() if self._at is None else self._at
