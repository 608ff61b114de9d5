"""The hosts besides the head's. They may make ranges of versions, have workers, or both."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from paceline.core.facts import Fact, WorkerResumed
from paceline.core.items import EarlyVersion, Version
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Release, StartPull, StartPush
from paceline.core.phrases import workers_named
from paceline.core.shards import Shard
from paceline.host import messages as host_messages
from paceline.host.attachments import file_bytes, recorded_file
from paceline.host.events import (
    Computes,
    ComputesTaken,
    Report,
    StandInsCame,
    WorkerEnded,
)
from paceline.host.item_table import ItemTable
from paceline.host.remote_host import HostDirectory, RemoteHost, RemoteWorker
from paceline.host.reports.remote import KEPT, RemoteReports
from paceline.host.shards.migration import Moves
from paceline.ipc import messages
from paceline.transfer.item_names import ADOPTED, FIXED

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster
    from paceline.transfer.manager import TransferManager


class OtherHosts:
    """The hosts besides the head's: what they are told, what they say, and what of theirs comes here."""

    def __init__(
        self,
        cluster: Cluster,
        others: Sequence[RemoteHost],
        carrier: TransferManager | None,
        report: Report,
        directory: HostDirectory | None,
        now: Callable[[], float],
    ) -> None:
        """`carrier` and `directory`: None if there are no other hosts. `now()` is seconds since the run's start."""
        self._cluster = cluster
        self._others = {one.name: one for one in others}
        for one in others:
            one.stored = cluster.here.choice.has_store
        self._workers = {worker: RemoteWorker(one) for one in others for worker in one.workers}
        self._carrier = carrier
        self._report = report
        self._directory = directory
        self._now = now
        self.attachments = cluster.attachments
        self._awaited: dict[int, dict[str, RemoteHost]] = {}
        """By version that is not made: the hosts that were told an order about it."""
        self._releasing: RemoteHost | None = None
        """The only host with releases that it is still to be told."""
        self.made_at: dict[int, float] = {}
        """By version: when it was made. Those made last are remembered."""
        self.reports = RemoteReports(cluster, self, report, now)
        self.moves = Moves(cluster, cluster.arrivals, directory, on_moved=self._recut)
        """Moves ranges of versions between hosts, if several make some."""

    # --- what they are told: see `Cluster` ----------------------------------------------------------

    @property
    def items(self) -> ItemTable:
        """Those of the head's own host."""
        return self._cluster.here.items

    @property
    def came_to_prepare(self) -> set[str]:
        """Hosts whose script has come to `prepare`."""
        came = {one.host.name for worker, one in self._workers.items() if self._cluster.prepares(worker)}
        return came | {name for name, other in self._others.items() if other.stands_in}

    def open(self) -> None:
        """Have their scripts begin."""
        for other in self._others.values():
            other.tell(host_messages.BeginScripts())

    def gathers(self) -> Mapping[str, messages.worker.Offered] | None:
        """See `Cluster`."""
        alone = [other for other in self._others.values() if not other.workers]
        for other in alone:
            if not other.stands_in:
                other.stands_in = True
                other.tell(host_messages.StandIn())
        there = {other.name: other.offer for other in alone if other.offer is not None}
        return there if len(there) == len(alone) else None

    def why_not(self, workers: Sequence[int]) -> str:
        """See `Cluster`."""
        for host in (one.host for one in self.elsewhere):
            other = self._others.get(host)
            if other is None or (other.workers and not any(worker in other.workers for worker in workers)):
                why = "it is lost" if other is None else "none of its workers has come to prepare()"
                return f"host {host} was to make a part of every version, and {why}"
        return ""

    def begin(self, workers: Sequence[int]) -> None:
        """Let these workers train, and the hosts make their ranges."""
        self.attachments.offer(FIXED.name, self._cluster.memory.fixed, None)
        self.attachments.offer(ADOPTED.name, self._cluster.memory.adopted, None)
        if self._cluster.shards:
            makers = [one.host for one in self.elsewhere]
            self._cluster.arrivals.begin(makers)
            for host in makers:
                self.directory.exchanges(host)
            self._cluster.aggregation.begins(self._cluster.name, self._cluster.workers)
        for other in self._others.values():
            if any(worker in other.workers for worker in workers) or (not other.workers and other.name in self.makers):
                self._cluster.lends_beginning(other.name, [worker for worker in workers if worker in other.workers])
                other.begun = True
        for other in [one for one in self._others.values() if one.begun]:
            self._train(other, {worker: self.goes_on(worker) for worker in workers if worker in other.workers})
        self._cluster.store_reports.forget_state()
        for other in [one for one in self._others.values() if not one.workers and not one.begun]:
            self.directory.idles(other.name)

    def carry_out(self, order: Order) -> None:
        """Have the host of the order's worker do its part."""
        match order:
            case Release(parameters="own"):
                one = self._workers.get(order.worker)
                if one is not None and not one.left:  # else the machine is to hear of it
                    one.step = order.step if self._cluster.owns_replicas else None
                    one.host.turns_of(order.worker).released(order.step, order.version, order.steps)
                    if order.worker not in one.host.away:
                        self._release(one.host, order)
            case Release() | StartPull():
                one = self._workers.get(order.worker)
                if one is not None and order.worker not in one.host.away:
                    other = one.host
                    if isinstance(order, StartPull) or order.parameters == "pull":
                        one.pull = order
                    if isinstance(order, Release) and not one.left:  # else the machine is to hear of it
                        one.step = order.step
                        other.turns_of(order.worker).released(order.step, order.version, order.steps)
                        if order.parameters == "pull":
                            one.computes_on = order.version
                    self._needs(other, order.version)
                    if isinstance(order, Release):
                        self._release(other, order)
                    else:
                        other.tell(host_messages.CarryOut.of(order))
            case StartPush() | DropUpdate():
                self.tell_worker(order.worker, host_messages.CarryOut.of(order))
            case ApplyUpdate(contributions=contributions):
                there: dict[str, list[tuple[int, int, float]]] = {}
                for update in contributions:
                    if update[0] in self._workers:
                        there.setdefault(self._workers[update[0]].host.name, []).append(update)
                for name, own in there.items():
                    if (contributor := self._others.get(name)) is not None:
                        self._needs(contributor, order.version)
                        contributor.tell(host_messages.CarryOut.of(replace(order, contributions=tuple(own))))

    def _release(self, other: RemoteHost, order: Release) -> None:
        """Tell that host of the release, in one message with those of its workers that come right after."""
        if self._releasing is not other:
            self._tell_releases()
            self._releasing = other
        other.releases.append(order)
        if len(other.releases) == 1:
            self.directory.before_waiting(self._tell_releases)

    def _tell_releases(self) -> None:
        if (other := self._releasing) is not None:
            self._releasing = None
            other.tell_releases()

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now."""
        one = self._workers.get(fact.worker) if isinstance(fact, WorkerResumed) else None
        if one is not None and isinstance(one.pull, Release):
            one.pull = None  # it had that version as it declined its step

    def left(self, worker: int, died: bool, unapplied: tuple[int, ...] = ()) -> None:
        """The worker takes no part any more. `unapplied`: see `contract.Updates`."""
        if (one := self._workers.get(worker)) is not None:
            one.left, one.pull, one.computes_on, one.step = True, None, None, None
        self.tell_worker(worker, host_messages.WorkerGone(worker, died, unapplied))

    def gone(self, worker: int) -> None:
        """The worker's process has ended, and the coordinator knows it."""
        self.tell_worker(worker, host_messages.ForgetWorker(worker))
        other = None if worker not in self._workers else self._workers[worker].host
        if other is not None and not other.begun and not any(map(self._cluster.prepares, other.workers)):
            self.shard_lost(other.name, "none of its workers has come to prepare()")

    def returns(self, worker: int) -> None:
        """A new process begins as this worker."""
        if self._cluster.owns_replicas:
            self._cluster.replicas.back(worker)
        if (one := self._workers.get(worker)) is not None:
            one.gone = False
            one.host.away.discard(worker)
            one.host.turns.pop(worker, None)

    def begins_late(self, worker: int) -> None:
        """The worker of another host is about to be let in while others train."""
        other = self._workers[worker].host
        other.turns_of(worker).begins()
        if not other.begun:
            other.begun = True
            self._train(other, {}, late=True)

    def admit(self, order: host_messages.AdmitWorker) -> None:
        """Let the worker in."""
        one = self._workers[order.worker]
        if not self._cluster.owns_replicas:
            one.host.made(self._cluster.newest)
            one.host.tell(order)
        elif not one.gone:
            one.host.tell_of(order.worker, order)

    def join(self, worker: int) -> None:
        """The worker takes part from now on."""
        if (one := self._workers.get(worker)) is not None:
            one.left = False
        self.tell_worker(worker, host_messages.JoinWorker(worker))

    def show_recorded(self, worker: int, message: messages.worker.ToWorker, file: str) -> None:
        """Tell a worker of another host this. What is recorded in that file comes along."""
        if self._workers[worker].gone:
            return
        other = self._workers[worker].host
        name = f"{os.path.basename(file)} for {other.name}"  # for all of its workers
        if (attached := self.attachments.offer_again(name)) is None:
            with recorded_file(file) as descriptor:
                attached = self.attachments.offer(name, file_bytes(descriptor), other.name)
        other.tell_of(worker, host_messages.TellWorker(worker, message, attached))

    @property
    def workers(self) -> Collection[int]:
        """Those of these hosts, also of hosts that are lost."""
        return self._workers.keys()

    def start(self, workers: Sequence[int]) -> None:
        """Have the processes begin of those of these workers that are here."""
        for worker in workers:
            if (one := self._workers.get(worker)) is not None:
                one.host.tell(host_messages.StartWorker(worker))

    def wake(self) -> None:
        """The run is to end: have processes go on that are stopped."""
        for other in self._others.values():
            other.tell(host_messages.Wake())

    # --- what comes from them -----------------------------------------------------------------------

    def lost(self, name: str, why: str) -> None:
        """That host takes no part any more: its workers have ended, or will."""
        other = self._others.pop(name, None)
        if other is None:
            return
        other.releases.clear()
        self.moves.lost(name)
        self._cluster.aggregation.ends(name)
        self.shard_lost(name, f"it is lost ({why})")
        self._cluster.versions.begun(name)  # what training begins with is not lent to it any more
        other.begun = False
        if self._cluster.owns_replicas:
            self._lose_replicas(other, why)
        self.attachments.host_lost(name)
        self.reports.lost(other)
        other.away.update(other.workers)
        other.turns.clear()
        for worker in other.workers:
            if not (one := self._workers[worker]).gone:
                one.gone = True
                self._report(WorkerEnded(worker, signal.SIGKILL))
        self._cluster.averages.host_lost(name)  # now that its members are known to have died
        if not other.workers:
            self._report(StandInsCame())

    def has_gone(self, worker: int) -> bool:
        """Whether the worker's host has said that its process has ended, or is lost."""
        return self._workers[worker].gone

    def moves_no_more(self, why: str) -> None:
        """No bytes move between hosts any more: no version can be made, nor an average."""
        self._cluster.store.lose(why)

    def keep_replicas(self, host: str, then: Callable[[], object]) -> None:
        """That host leaves in good order. Bring what its workers have come to here, then go on."""
        other = self._others.get(host)
        if not self._cluster.owns_replicas or other is None:  # None: it is lost meanwhile
            then()
        else:
            finished = [worker for worker in other.workers if self._cluster.has_finished(worker)]
            self._cluster.transfers.bring_all(host, finished, then)

    def adds(self, other: RemoteHost) -> None:
        """That host takes part from now on. Its workers are about to begin."""
        other.stored = self._cluster.here.choice.has_store
        self._workers |= {worker: RemoteWorker(other) for worker in other.workers}
        self._cluster.expects(other.workers)
        if self._cluster.owns_replicas:
            for worker in other.workers:
                self._cluster.replicas.back(worker)
        self.back(other.name)

    def back(self, name: str) -> None:
        """That host has come again, as a new incarnation. None of its workers is there yet."""
        other = next(one.host for one in self._workers.values() if one.host.name == name)
        self._others[name] = other
        other.tell(host_messages.BeginScripts())

    # --- what is known of them ----------------------------------------------------------------------

    @property
    def _carries(self) -> TransferManager:
        assert self._carrier is not None  # else no host is there to carry anything to
        return self._carrier

    @property
    def directory(self) -> HostDirectory:
        """Who knows where these hosts are."""
        assert self._directory is not None
        return self._directory

    def worker(self, worker: int) -> RemoteWorker:
        """One of these hosts' workers."""
        return self._workers[worker]

    def host(self, name: str) -> RemoteHost:
        """One of these hosts, which takes part."""
        return self._others[name]

    @property
    def makers(self) -> set[str]:
        """Hosts that make a range of each version, if several do."""
        return {one.host for one in self._cluster.shards}

    @property
    def elsewhere(self) -> list[Shard]:
        """The ranges that other hosts make, or did before they were lost."""
        return [one for one in self._cluster.shards if one.host != self._cluster.name]

    def tell_worker(self, worker: int, message: messages.Message) -> None:
        """Tell the worker's host, if that is not the head's."""
        if (one := self._workers.get(worker)) is not None:
            one.host.tell_of(worker, message)

    def computes(self, worker: int, *, took: bool) -> None:
        """That worker of another host computes.

        Its update is asked for only now. A round releases hundreds of workers, and asking took longer than releasing.
        """
        self._report(ComputesTaken(worker) if took else Computes(worker))
        one = self._workers[worker]
        step, one.step = one.step, None
        if step is not None:
            self._cluster.begins_step(worker, step)

    def _needs(self, other: RemoteHost, version: int) -> None:
        """That host is about to be told an order about that version. It hears once that is made."""
        if version <= self._cluster.newest:
            other.made(version)
        else:
            self._awaited.setdefault(version, {})[other.name] = other

    def hands(self, worker: int, message: messages.Message, file: int | None) -> None:
        """Tell a worker of another host that, with a file if there is one."""
        if self._workers[worker].gone:
            return
        host = self._workers[worker].host.name
        attached = None if file is None else self.attachments.attach(file_bytes(file), host)
        self.tell_worker(worker, host_messages.TellWorker(worker, cast(messages.worker.ToWorker, message), attached))

    def goes_on(self, worker: int) -> host_messages.GoesOn | None:
        """What that worker goes on with. None: the run begins."""
        if (goes_on := self._cluster.goes_on(worker)) is None:
            return None
        epoch, buffers, file = goes_on
        kept, host = None, self.host_of(worker)
        if file is not None:
            with file:
                kept = self.attachments.attach(file_bytes(file.fileno()), host)
        there = None if buffers is None else self.attachments.attach(buffers, host)
        return host_messages.GoesOn(epoch, there, kept)

    def never_comes(self, worker: int, why: str) -> None:
        """The worker can't go on, unless it takes no part any more.

        A worker of the head's host can only lack the range of a host that is lost, and the run fails of that anyway.
        """
        one = self._workers.get(worker)
        if one is not None and not one.left and not one.gone:
            self.tell_worker(worker, host_messages.EndWorker(worker, why))

    def made(self, version: int) -> None:
        """That version is made: tell the hosts that make ranges, and those that wait for it."""
        self.made_at[version] = self._now()
        if len(self.made_at) > KEPT * max(1, len(self._workers)):
            del self.made_at[next(iter(self.made_at))]
        if self._carrier is not None:
            self._carrier.made(Version(version))
        awaited = self._awaited.pop(version, {})
        for other in self._others.values() if self.makers else awaited.values():
            if other.name in awaited or other.name in self.makers:
                other.made(version)

    def adopted(self, worker: int, state: int | None, changes: Mapping[int, int]) -> None:
        """The first version is what that worker has written. `state`: the optimizer's, in a file, if it has changed.

        `changes`: by worker that owns a replica, the number of what that is now.
        """
        for other in self._others.values():
            with_it = None
            if state is not None and other.name in self.makers:
                with_it = self.attachments.attach(file_bytes(state), other.name)
            there = {own: change for own, change in changes.items() if own in other.workers}
            other.tell(host_messages.Adopted(worker, with_it, there))

    def switched(self, part: int, state: int | None, version: int | None, replicas: Mapping[int, int]) -> None:
        """That part decides from now on. See `host_messages.PartSwitched`."""
        for other in [one for one in self._others.values() if one.begun]:
            there, for_store = None, self._cluster.spec.optimizer == "store"
            if state is not None and (other.name in self.makers if for_store else other.workers):
                there = self.attachments.attach(file_bytes(state), other.name)
            own = {worker: change for worker, change in replicas.items() if worker in other.workers}
            if own and version is not None:
                self._cluster.versions.lend(other.name, Version(version))
            if version is not None:
                other.knows = version
            other.tell(host_messages.PartSwitched(part, there, version, own))

    def _train(self, other: RemoteHost, workers: dict[int, host_messages.GoesOn | None], *, late: bool = False) -> None:
        """Have these workers of that host train, and the host make its range of each version, if it is to.

        `late`: others train by now. A host that owns replicas dials them all then.
        """
        for worker in workers:
            other.turns_of(worker).begins()
        state = None
        if other.name in self.makers:
            assert self._cluster.store_reports.state is not None
            state = self.attachments.attach(file_bytes(self._cluster.store_reports.state), other.name)
        shards = tuple(self._cluster.shards)
        other.knows = self._cluster.newest
        begun = {name for name, one in self._others.items() if one.begun}
        averages = self._cluster.here.choice.has_replicas
        near = self.directory.neighbours(other.name, begun) if shards or averages else ()
        if averages:
            self.directory.exchanges(other.name)
            near = self._met(near, other.name) if late else near
        sums = self._cluster.aggregation.begins(other.name, other.workers)
        part = self._cluster.part
        other.tell(host_messages.Train(workers, self._cluster.newest, self._now(), shards, state, near, sums, part))

    def _recut(self, shards: Sequence[Shard], left: str) -> None:
        """These make versions from now on, and that host has left. What it sends is asked for anew."""
        for other in self._others.values():
            if other.name != left and other.begun:  # else none of its workers trains, and it knows nobody
                other.tell(host_messages.Shards(tuple(shards), left))
        self._carries.again(lambda item: isinstance(item, Version | EarlyVersion))  # first: a fact may order a version
        for fact in self._cluster.arrivals.taken(self._now()):
            self._report(fact)

    def amiss(self, host: str, why: str) -> None:
        """The host does not give what it has: it is to be ended."""
        self.directory.amiss(host, why)

    def workers_of(self, name: str) -> Sequence[int]:
        """Return the workers of that host; none if it is lost."""
        if name == self._cluster.name:
            return self._cluster.workers
        return self._others[name].workers if name in self._others else ()

    def host_of(self, worker: int) -> str:
        """The worker's host."""
        return self._workers[worker].host.name if worker in self._workers else self._cluster.name

    def _met(self, near: Sequence[host_messages.Neighbour], late: str) -> tuple[host_messages.Neighbour, ...]:
        """Have these hosts expect that one, which comes late. Return them in the order in which it dials."""
        own = [one for one in near if one.host == late]
        others = [one for one in near if one.host != late]
        for one in others:
            for neighbour in own:
                self.tell_host(one.host, host_messages.ExpectHost(neighbour))
        return (*others, *own)

    def is_there(self, host: str) -> bool:
        """Whether that host takes part, which may be the head's."""
        return host == self._cluster.name or host in self._others

    def _lose_replicas(self, other: RemoteHost, why: str) -> None:
        """That host is lost, with its replicas. Those of workers that have finished were to count."""
        for one in self._others.values():
            if one.begun:
                one.tell(host_messages.HostLost(other.name, why))
        finished = [worker for worker in other.workers if self._cluster.has_finished(worker)]
        if gone := self._cluster.replicas.lacks(finished):
            those = workers_named(gone)
            self._cluster.loses(f"host {other.name} is lost ({why}), with what {those} had come to as they ended")
        self._cluster.replicas.host_lost(other.name)
        self._cluster.transfers.host_lost(other.name, why)

    def tell_host(self, host: str, message: messages.Message) -> None:
        """See `OtherHosts`."""
        if (other := self._others.get(host)) is not None:
            other.tell(message)

    def shard_lost(self, host: str, why: str) -> None:
        """That host makes no versions any more. If it was to, nobody can."""
        if host in self.makers:
            self._cluster.loses(f"host {host} made a part of every version, and {why}")
