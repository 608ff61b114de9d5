"""The hosts besides the head's. They may make ranges of versions, have workers, or both."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from paceline.core.facts import Fact, ParametersTaken, WorkerResumed
from paceline.core.items import Beginning, Blob, Buffers, Item, Mean, Partial, Replica, Sum, Update, Version
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Release, StartPull, StartPush
from paceline.core.phrases import workers_named
from paceline.core.shards import Shard
from paceline.errors import MessageUnreadable, PacelineError
from paceline.files import unforeseen
from paceline.host import messages as host_messages
from paceline.host.attachments import Attachments, file_bytes, recorded_file
from paceline.host.events import (
    Attached,
    Averaged,
    AwaitsPlace,
    Computes,
    ComputesTaken,
    GivenUp,
    Report,
    StandInsCame,
    VersionBrought,
    WorkerEnded,
    WorkerSaid,
)
from paceline.host.item_table import ItemKind, ItemTable
from paceline.host.message_validation import MessageValidation
from paceline.host.orders.steps import shown
from paceline.host.shards.migration import Moves
from paceline.host.shards.summands import HeadSummands, UpdateBuffers
from paceline.ipc import messages
from paceline.ipc.endpoint import Coding, Frames, framed, too_long
from paceline.net.numbered import LONGEST
from paceline.records.times import Fetch
from paceline.transfer.item_names import ADOPTED, FIXED, summand_of

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster
    from paceline.transfer.manager import TransferManager

MOST_SAID = 128 << 20
"""Bytes of what a worker says at once. The longest is an epoch's order, of some 5 bytes for each sample."""
_OF_WORKER = Coding(host_messages.OfWorker)
KEPT = 4
"""For each worker: how many fetches of versions are remembered. A worker needs three versions at most."""


@dataclass(slots=True)
class Other:
    """A host that is not the head's."""

    name: str
    workers: range
    """None, if it only makes a range of each version."""
    tell: Callable[[messages.Message], None]
    """Sends it a message of `host_messages.FromHead`. One that is lost gets nothing."""
    away: set[int] = field(default_factory=set)
    """Workers that ended with an earlier incarnation of the host, and have not begun again: this one knows nothing of
    them."""
    knows: int = 0
    """The last version that it was told is made."""
    stored: bool = True
    """See `MessageValidation`."""
    turns: dict[int, MessageValidation] = field(default_factory=dict)
    """By worker: what it may say. Its host judges that, too, and may be another one than ours."""

    def tell_of(self, worker: int, message: messages.Message) -> None:
        """Send it this about one of its workers, unless that is away."""
        if worker not in self.away:
            if isinstance(message, host_messages.TellWorker):
                self.turns_of(worker).told(message.message)
            self.tell(message)

    def turns_of(self, worker: int) -> MessageValidation:
        """The turns of that worker's process."""
        if worker not in self.turns:
            self.turns[worker] = MessageValidation(stored=self.stored, forks_store=True)
        return self.turns[worker]

    def made(self, version: int) -> None:
        """That version is made, and all before it."""
        if version > self.knows:
            self.knows = version
            self.tell(host_messages.VersionMade(version))


class HostDirectory(Protocol):
    """Who knows which hosts take part, and where they are."""

    def amiss(self, host: str, why: str) -> None:
        """The host has said what it may not: end it."""

    def sums_lost(self, host: str, why: str) -> None:
        """The host adds up no updates any more, though it trains."""

    @property
    def leaving(self) -> Container[str]:
        """Hosts that were asked to leave. One of them takes a range over only if no other can."""

    def range_moves(self, host: str, by: str) -> None:
        """The range of the first host begins to move to the second one."""

    def exchanges(self, host: str) -> None:
        """The host makes a range of each version from now on, or averages with others."""

    def neighbours(self, host: str, hosts: Container[str]) -> tuple[host_messages.Neighbour, ...]:
        """Return with which of these hosts that one exchanges bytes, itself included."""

    def idles(self, host: str) -> None:
        """The host has no workers, and makes no range: let it go."""


class OtherHosts:
    """The hosts besides the head's: what they are told, what they say, and what of theirs comes here."""

    def __init__(
        self,
        cluster: Cluster,
        others: Sequence[Other],
        carrier: TransferManager | None,
        report: Report,
        directory: HostDirectory | None,
        now: Callable[[], float],
    ) -> None:
        """`carrier` and `directory`: None if there are no other hosts. `now()` is seconds since the run's start."""
        self._cluster = cluster
        self._others = {one.name: one for one in others}
        for one in others:
            one.stored = not cluster.owns_replicas
        self._by_worker = {worker: one for one in others for worker in one.workers}
        self._gone: set[int] = set()
        """Workers of other hosts whose processes have ended."""
        self._left: set[int] = set()
        """Workers that take no part any more."""
        self._begun: set[str] = set()
        """Hosts that have what training begins with, or are about to."""
        self._carrier = carrier
        self._report = report
        self._directory = directory
        self._now = now
        self.attachments = Attachments(carrier)
        self._behind: dict[int, bytearray] = {}
        """By worker whose message is being fetched: what its host has said of it since, as bytes."""
        self._awaited: dict[int, dict[str, Other]] = {}
        """By version that is not made: the hosts that were told an order about it."""
        self._fetched: dict[tuple[str, int], Fetch] = {}
        """By host and version: the last fetches."""
        self._pulled: dict[int, int] = {}
        """By worker of another host that computes once it has taken a version: which one. Only one is on its way."""
        self._pulls: dict[int, StartPull | Release] = {}
        """By worker of another host: the last order to pull, until it has that version."""
        self._released: dict[int, int] = {}
        """By worker of another host that is not known to compute yet: the step that it was released for."""
        self._made_at: dict[int, float] = {}
        """By version: when it was made. Those made last are remembered."""
        self._standing_in: dict[str, messages.worker.Offered | None] = {}
        """By host without workers that was told to run the script: what that has brought to `prepare`, if it has."""
        self._coding = Coding(messages.worker.FromWorker)
        self.moves = Moves(
            cluster, cluster.remote_shards, carrier, directory, tell=self.tell_host, on_moved=self._recut
        )
        """Moves ranges of versions between hosts, if several make some."""
        self.replicas = cluster.replicas

        summands = HeadSummands(cluster, self.moves, self.host_of)
        kinds: dict[type[Item], ItemKind[Any]] = {
            Version: cluster.versions,
            Beginning: cluster.versions,
            Update: summands,
            Sum: summands,
            Buffers: UpdateBuffers(cluster.shelf, cluster.memory, self.host_of),
            Blob: self.attachments,
        }
        if cluster.owns_replicas:
            kinds |= {Replica: self.replicas, Mean: cluster.averaging, Partial: cluster.averaging}
        self.items = ItemTable(cluster.shelf, kinds, self._fetched_here, self._place_is_free)

    # --- what they are told: see `Cluster` ----------------------------------------------------------

    @property
    def came_to_prepare(self) -> set[str]:
        """Hosts whose script has come to `prepare`."""
        came = {other.name for worker, other in self._by_worker.items() if self._cluster.prepares(worker)}
        return came | {name for name in self._standing_in if name in self._others}

    def open(self) -> None:
        """Have their scripts begin."""
        for other in self._others.values():
            other.tell(host_messages.BeginScripts())

    def gathers(self) -> Mapping[str, messages.worker.Offered] | None:
        """See `contract.Host`."""
        alone = [other for other in self._others.values() if not other.workers]
        for other in alone:
            if other.name not in self._standing_in:
                self._standing_in[other.name] = None
                other.tell(host_messages.StandIn())
        offers = {other.name: self._standing_in[other.name] for other in alone}
        there = {name: offer for name, offer in offers.items() if offer is not None}
        return there if len(there) == len(offers) else None

    def why_not(self, workers: Sequence[int]) -> str:
        """See `contract.Host`."""
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
        if self._cluster.owns_replicas:
            self.replicas.begins(workers)
        if self._cluster.shards:
            makers = [one.host for one in self.elsewhere]
            self._cluster.remote_shards.begin(makers)
            for host in makers:
                self._directed.exchanges(host)
            self._cluster.together.begins(self._cluster.name, self._cluster.workers)
        for other in self._others.values():
            if any(worker in other.workers for worker in workers) or (not other.workers and other.name in self.makers):
                self._cluster.lends_beginning(other.name, [worker for worker in workers if worker in other.workers])
                self._begun.add(other.name)
        for other in [one for one in self._others.values() if one.name in self._begun]:
            self._train(other, {worker: self._goes_on(worker) for worker in workers if worker in other.workers})
        self._cluster.forget_state()
        for other in [one for one in self._others.values() if not one.workers and one.name not in self._begun]:
            self._directed.idles(other.name)

    def carry_out(self, order: Order) -> None:
        """Have the host of the order's worker do its part."""
        if self._cluster.owns_replicas:
            return  # the head's shelf has what lies where on all hosts, and workers are told by `_hands`
        match order:
            case Release() | StartPull():
                other = self._by_worker.get(order.worker)
                if other is not None and order.worker not in other.away:
                    if isinstance(order, StartPull) or order.parameters == "pull":
                        self._pulls[order.worker] = order
                    if (
                        isinstance(order, Release) and order.worker not in self._left
                    ):  # else the machine is to hear of it
                        self._released[order.worker] = order.step
                        other.turns_of(order.worker).released(order.step, order.version)
                        if order.parameters == "pull":
                            self._pulled[order.worker] = order.version
                    self._needs(other, order.version)
                    other.tell(host_messages.CarryOut.of(order))
            case StartPush() | DropUpdate():
                self._tell(order.worker, host_messages.CarryOut.of(order))
            case ApplyUpdate(contributions=contributions):
                there: dict[str, list[tuple[int, int, float]]] = {}
                for one in contributions:
                    if one[0] in self._by_worker:
                        there.setdefault(self._by_worker[one[0]].name, []).append(one)
                for name, own in there.items():
                    if (other := self._others.get(name)) is not None:
                        self._needs(other, order.version)
                        other.tell(host_messages.CarryOut.of(replace(order, contributions=tuple(own))))

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now."""
        if isinstance(fact, WorkerResumed) and isinstance(self._pulls.get(fact.worker), Release):
            del self._pulls[fact.worker]  # it had that version as it declined its step

    def left(self, worker: int, died: bool) -> None:
        """The worker takes no part any more."""
        self._left.add(worker)
        for of in (self._pulled, self._pulls, self._released):
            of.pop(worker, None)
        self._tell(worker, host_messages.WorkerGone(worker, died))

    def gone(self, worker: int) -> None:
        """The worker's process has ended, and the coordinator knows it."""
        self._tell(worker, host_messages.ForgetWorker(worker))
        other = self._by_worker.get(worker)
        if other is not None and other.name not in self._begun and not any(map(self._cluster.prepares, other.workers)):
            self._shard_lost(other.name, "none of its workers has come to prepare()")

    def returns(self, worker: int) -> None:
        """A new process begins as this worker."""
        self._gone.discard(worker)
        if self._cluster.owns_replicas:
            self.replicas.back(worker)
        if (other := self._by_worker.get(worker)) is not None:
            other.away.discard(worker)
            other.turns.pop(worker, None)

    def admit(self, worker: int, epoch: int, at: float) -> None:
        """Let the worker in while others train, if it is of another host."""
        if (other := self._by_worker.get(worker)) is None:
            return
        other.turns_of(worker).begins()
        if other.name not in self._begun:
            self._begun.add(other.name)
            self._train(other, {}, late=True)
        if self._cluster.owns_replicas:
            self._admit(other, worker, epoch, at)
            return
        other.made(self._cluster.newest)
        other.tell(host_messages.AdmitWorker(worker, epoch, at))

    def join(self, worker: int) -> None:
        """The worker takes part from now on."""
        self._left.discard(worker)
        self._tell(worker, host_messages.JoinWorker(worker))

    def adopt(self, worker: int) -> None:
        """Have the worker write what its script changed the first version to."""
        if (other := self._by_worker.get(worker)) is not None:
            other.turns_of(worker).adopts()
        self._tell(worker, host_messages.Adopt(worker))

    def show_recorded(self, worker: int, message: messages.worker.ToWorker, file: str) -> None:
        """Tell a worker of another host this. What is recorded in that file comes along."""
        if worker in self._gone:
            return
        other = self._by_worker[worker]
        name = f"{os.path.basename(file)} for {other.name}"  # for all of its workers
        if (attached := self.attachments.offer_again(name)) is None:
            with recorded_file(file) as descriptor:
                attached = self.attachments.offer(name, file_bytes(descriptor), other.name)
        other.tell_of(worker, host_messages.TellWorker(worker, message, attached))

    @property
    def workers(self) -> Collection[int]:
        """Those of these hosts, also of hosts that are lost."""
        return self._by_worker.keys()

    def start(self, workers: Sequence[int]) -> None:
        """Have the processes begin of those of these workers that are here."""
        for worker in workers:
            if (other := self._by_worker.get(worker)) is not None:
                other.tell(host_messages.StartWorker(worker))

    def end(self, worker: int, why: str | None) -> None:
        """Have the worker's process ended. `why`: it can't go on, through no fault of the others."""
        self._tell(worker, host_messages.EndWorker(worker, why))

    def hear_end(self, worker: int) -> None:
        """Hear at once that the worker's process has ended, if that waits for what the worker has said before."""
        for message in self._said_behind(worker):
            if isinstance(message, WorkerEnded):
                self._deliver(self._by_worker[worker].name, message)

    def wake(self) -> None:
        """The run is to end: have processes go on that are stopped."""
        for other in self._others.values():
            other.tell(host_messages.Wake())

    # --- what comes from them -----------------------------------------------------------------------

    def delivered(self, name: str, message: messages.Message) -> None:
        """That host has said this. What it says of a worker is heard in its order."""
        self._guarded(name, lambda: self._delivered(name, message))

    def _delivered(self, name: str, message: messages.Message) -> None:
        self._may_say(name, message)
        self._deliver(name, message)

    def _guarded(self, name: str, hear: Callable[[], object]) -> None:
        """Hear what that host has said. Whatever is wrong with that ends the host, and not the head."""
        try:
            hear()
        except MessageUnreadable as error:
            self._directed.amiss(name, f"it has said what can't be: {error}")
        except PacelineError:  # it says by itself what is to end
            raise
        except Exception as error:
            self._directed.amiss(name, unforeseen(error, "head"))

    def _may_say(self, name: str, message: messages.Message) -> None:
        if isinstance(message, host_messages.OfShard) and name not in self.makers:
            raise MessageUnreadable("it makes no versions")
        if isinstance(message, host_messages.SaidOfSums) and not self._cluster.together.adding(name):
            raise MessageUnreadable("it adds up no updates")
        if isinstance(message, host_messages.SaidOfReplicas) and not self._cluster.owns_replicas:
            raise MessageUnreadable("no worker there owns a replica")
        if isinstance(message, host_messages.StandsIn) and self._standing_in.get(name, message) is not None:
            raise MessageUnreadable("nothing was to stand in for a worker there")
        match message:
            case WorkerSaid(worker=worker) | WorkerEnded(worker=worker) if worker in self._gone:
                raise MessageUnreadable(f"worker {worker} has ended, and says more")
            case WorkerSaid(message=None, attached=None):
                raise MessageUnreadable("a worker has said nothing")
            case WorkerSaid(message=None, attached=Attached(size=size)) if size > MOST_SAID:
                raise MessageUnreadable(f"a message of worker {message.worker}: {too_long(size, MOST_SAID)}")
            case host_messages.StatePacked(error=None, attached=None):
                raise MessageUnreadable("its share has nothing in it")
            case WorkerSaid(message=messages.Message() as said, attached=attached):
                if said.descriptors == 0 and attached is not None:
                    raise MessageUnreadable(f"nothing comes along with a {type(said).__name__}")
                if isinstance(said, messages.worker.StoreNotForked) and name not in self._cluster.shards_on:
                    raise MessageUnreadable("it was to have no store")
            case WorkerEnded(status=status) if not os.WIFEXITED(status) and not os.WIFSIGNALED(status):
                raise MessageUnreadable(f"no process ends with status {status}")
            case host_messages.Taken(version=version) if name not in self._begun or version > self._cluster.newest:
                raise MessageUnreadable(f"version {version} is not there to be taken")
            case host_messages.Taken(worker=worker, version=version) if worker not in self._left:
                if (order := self._pulls.pop(worker, None)) is None or order.version != version:
                    raise MessageUnreadable(f"worker {worker} was not to pull version {version}")

    def _deliver(self, name: str, message: messages.Message) -> None:
        if isinstance(message, host_messages.OfWorker) and message.worker in self._behind:
            behind = self._behind[message.worker]
            behind += framed(_OF_WORKER.encode(message))
            if len(behind) > LONGEST:
                raise MessageUnreadable(f"worker {message.worker} said {LONGEST:,} bytes after what is not here yet")
            return
        if isinstance(message, host_messages.OfStep) and message.worker in self._left:  # its host had not heard of that
            return
        match message:
            case WorkerSaid(worker=worker, message=messages.worker.AdoptionWritten()):
                self._bring(name, message, self._written_by(name, worker))
            case WorkerSaid(worker=worker, message=messages.Message() as said, attached=None):
                self._heard(name, worker, said, [])
            case WorkerSaid():
                self._bring(name, message, [])
            case WorkerEnded(worker=worker, status=status):
                self._gone.add(worker)
                self._others[name].turns.pop(worker, None)
                self._report(WorkerEnded(worker, status))
            case host_messages.AttachmentFetched(attached=attached):
                self.attachments.host_has(name, attached)
            case host_messages.Lacks(worker=worker, why=why):
                self.never_comes(worker, why)
            case host_messages.Taken(worker=worker, version=version):
                if (fetched := self._fetched.get((name, version))) is not None:
                    began = max(fetched.began, self._made_at.get(version, fetched.began))
                    self._report(VersionBrought(worker, min(began, fetched.ended), fetched.ended))
                if self._pulled.get(worker) == version:
                    del self._pulled[worker]
                    self._computes(worker, took=True)
                self._report(ParametersTaken(worker=worker, version=version, at=self._now()))
            case host_messages.StandsIn(offer=offer):
                self._standing_in[name] = offer
                self._report(StandInsCame())
            case host_messages.Begun():
                self._cluster.versions.begun(name)
            case AwaitsPlace(worker=worker):
                self._pulled.pop(worker, None)
                self._report(message)
            case host_messages.Fetched():
                self._has_fetched(message.heard(name, self._now()))
            case host_messages.Stored(item=item):
                self._stored(name, summand_of(item))
            case host_messages.SumNotFinite(parameter=parameter, worker=worker):
                self._cluster.not_finite(parameter, worker)
            case host_messages.RangeNorms(norms=norms):
                if not self._cluster.norms_taken(name, norms):
                    raise MessageUnreadable(f"its norms for version {norms.version} were not to be taken")
            case host_messages.RangeMade(made=made):
                if not self._cluster.range_made(name, made):
                    raise MessageUnreadable(f"its range of version {made.version} was not to be made")
            case host_messages.RangeTaken():
                if not self.moves.taken(name):
                    raise MessageUnreadable("it was to take over no range")
            case host_messages.StatePacked(number=number) if self.moves.awaits(name, number):
                if self.moves.goes_on(message.error, message.attached):
                    assert message.attached is not None
                    self._bring_share(
                        name, message.attached, lambda file: self.moves.takes(os.dup(file)), self._cluster.loses
                    )
            case host_messages.StatePacked(number=number, error=error, attached=None):
                self._cluster.shares.came(number, error, None)
            case host_messages.StatePacked(number=number, error=error, attached=Attached() as attached):
                shares = self._cluster.shares
                self._bring_share(
                    name,
                    attached,
                    lambda file: shares.came(number, error, file),
                    lambda why: shares.came(number, why, None),
                )
            case host_messages.ShardLost(why=why):
                self._shard_lost(name, why)
            case host_messages.SumsLost(why=why):
                self._cluster.together.ends(name)
                self._directed.sums_lost(name, why)
            case Averaged(group=group) | GivenUp(group=group):
                self._cluster.averages.has_made(group, name)
            case host_messages.ItemCopied(number=number):
                if not self.replicas.brought(number, name):
                    raise MessageUnreadable(f"it was to bring nothing by the number {number}")
            case Computes(worker=worker):
                self._computes(worker, took=False)

    def lost(self, name: str, why: str) -> None:
        """That host takes no part any more: its workers have ended, or will."""
        other = self._others.pop(name, None)
        if other is None:
            return
        self.moves.lost(name)
        self._cluster.together.ends(name)
        self._shard_lost(name, f"it is lost ({why})")
        self._cluster.versions.begun(name)  # what training begins with is not lent to it any more
        self._begun.discard(name)
        if self._cluster.owns_replicas:
            self._lose_replicas(other, why)
        self.attachments.host_lost(name)
        self._fetched = {item: one for item, one in self._fetched.items() if item[0] != name}
        other.away.update(other.workers)
        other.turns.clear()
        for worker in other.workers:
            self._behind.pop(worker, None)  # what came before that never comes
            if worker not in self._gone:
                self._gone.add(worker)
                self._report(WorkerEnded(worker, signal.SIGKILL))
        self._cluster.averages.host_lost(name)  # now that its members are known to have died
        if not other.workers:
            self._report(StandInsCame())

    def has_gone(self, worker: int) -> bool:
        """Whether the worker's host has said that its process has ended, or is lost."""
        return worker in self._gone

    def moves_no_more(self, why: str) -> None:
        """No bytes move between hosts any more: no version can be made, nor an average."""
        self._cluster.arithmetic.lose(why)

    def keep_replicas(self, host: str, then: Callable[[], object]) -> None:
        """That host leaves in good order. Bring what its workers have come to here, then go on."""
        other = self._others.get(host)
        if not self._cluster.owns_replicas or other is None:  # None: it is lost meanwhile
            then()
        else:
            self.replicas.keep(host, [worker for worker in other.workers if self._cluster.has_finished(worker)], then)

    def adds(self, other: Other) -> None:
        """That host takes part from now on. Its workers are about to begin."""
        other.stored = not self._cluster.owns_replicas
        self._by_worker |= dict.fromkeys(other.workers, other)
        self._cluster.expects(other.workers)
        if self._cluster.owns_replicas:
            for worker in other.workers:
                self.replicas.back(worker)
        self.back(other.name)

    def back(self, name: str) -> None:
        """That host has come again, as a new incarnation. None of its workers is there yet."""
        other = next(one for one in self._by_worker.values() if one.name == name)
        self._others[name] = other
        other.tell(host_messages.BeginScripts())

    # --- inside -------------------------------------------------------------------------------------

    @property
    def _carries(self) -> TransferManager:
        assert self._carrier is not None  # else no host is there to carry anything to
        return self._carrier

    @property
    def _directed(self) -> HostDirectory:
        assert self._directory is not None
        return self._directory

    @property
    def makers(self) -> set[str]:
        """Hosts that make a range of each version, if several do."""
        return {one.host for one in self._cluster.shards}

    @property
    def elsewhere(self) -> list[Shard]:
        """The ranges that other hosts make, or did before they were lost."""
        return [one for one in self._cluster.shards if one.host != self._cluster.name]

    def _tell(self, worker: int, message: messages.Message) -> None:
        """Tell the worker's host, if that is not the head's."""
        if (other := self._by_worker.get(worker)) is not None:
            other.tell_of(worker, message)

    def _computes(self, worker: int, *, took: bool) -> None:
        """That worker of another host computes.

        Its update is asked for only now. A round releases hundreds of workers, and asking took longer than releasing.
        """
        self._report(ComputesTaken(worker) if took else Computes(worker))
        if (step := self._released.pop(worker, None)) is not None:
            self._cluster.begins_step(worker, step)

    def _needs(self, other: Other, version: int) -> None:
        """That host is about to be told an order about that version. It hears once that is made."""
        if version <= self._cluster.newest:
            other.made(version)
        else:
            self._awaited.setdefault(version, {})[other.name] = other

    def _fetched_here(self, fetch: Fetch) -> None:
        """This host has fetched that."""
        fetch = fetch.ending(self._now())
        if (item := fetch.summand) is not None and self.moves.had(item):
            fetch = fetch.moved()
        self._report(fetch)

    def _place_is_free(self) -> None:
        """What has waited for a place goes on."""
        self._cluster.commits.go_on()
        self._cluster.summer.go_on()

    def _has_fetched(self, fetch: Fetch) -> None:
        if fetch.kind == "version" and fetch.number is not None:
            if len(self._fetched) >= KEPT * max(1, len(self._by_worker)):
                del self._fetched[next(iter(self._fetched))]
            self._fetched[fetch.host, fetch.number] = fetch
        self._report(fetch)

    def hands(self, worker: int, message: messages.Message, file: int | None) -> None:
        """Tell a worker of another host that, with a file if there is one."""
        if worker in self._gone:
            return
        host = self._by_worker[worker].name
        attached = None if file is None else self.attachments.attach(file_bytes(file), host)
        if self._cluster.owns_replicas:
            self.replicas.binds(host, worker, message)
        self._tell(worker, host_messages.TellWorker(worker, cast(messages.worker.ToWorker, message), attached))

    def _goes_on(self, worker: int) -> host_messages.GoesOn | None:
        """What that worker of another host goes on with. None: the run begins."""
        if (goes_on := self._cluster.goes_on(worker)) is None:
            return None
        epoch, buffers, file = goes_on
        kept, host = None, self._by_worker[worker].name
        if file is not None:
            with file:
                kept = self.attachments.attach(file_bytes(file.fileno()), host)
        if isinstance(buffers, int):
            self.replicas.binds_place(host, buffers)
            return host_messages.GoesOn(epoch, None, kept, buffers)
        return host_messages.GoesOn(epoch, self.attachments.attach(buffers, host), kept)

    def _heard(self, name: str, worker: int, said: messages.worker.FromWorker, descriptors: list[int]) -> None:
        if strange := self._others[name].turns_of(worker).heard(said):
            for one in descriptors:
                os.close(one)
            raise MessageUnreadable(f"worker {worker}: {strange}")
        self._cluster.hear(worker, said, descriptors)
        if isinstance(said, messages.worker.SnapshotWanted):
            self._tell(worker, host_messages.Look(worker, self._cluster.newest, said.hold))

    def _written_by(self, name: str, worker: int) -> list[Item]:
        """What that host's worker has written for all to begin with: items that are to come here."""
        return [Beginning(worker), *self.attachments.comes_to(ADOPTED, name, self._cluster.memory.adopted)]

    def _bring(self, name: str, heard: WorkerSaid, items: list[Item]) -> None:
        """Hear what the worker has said once these items are here, and what came along."""
        worker, attached = heard.worker, heard.attached
        if attached is not None:
            self.attachments.require_new(attached)
            try:
                items.append(self.attachments.comes(attached, name))
            except OSError as error:
                self.never_comes(worker, f"what comes along with its message has no room here: {error.strerror}")
                return
        behind = self._behind[worker] = bytearray()

        def there() -> None:
            files = [] if attached is None else [self.attachments.take_file(attached)]
            if self._behind.get(worker) is not behind:  # it was ended meanwhile
                for file in files:
                    os.close(file)
                return
            if heard.message is None:
                try:
                    said = self._coding.decode(file_bytes(files[0]).memory, ())
                except MessageUnreadable as error:
                    lost(f"what it has said can't be read: {error}")
                    return
                finally:
                    os.close(files[0])
                self._guarded(name, lambda: self._heard(name, worker, said, []))
            else:
                message = heard.message
                self._guarded(name, lambda: self._heard(name, worker, message, files))
            if attached is not None:
                self._tell(worker, host_messages.AttachmentFetched(attached.name))
            self._go_on(name, worker)

        def lost(why: str) -> None:
            if self._behind.get(worker) is behind:
                self.never_comes(worker, why)
                self._go_on(name, worker)

        self.attachments.bring(items, f"of worker {worker}", there, lost)

    def _go_on(self, name: str, worker: int) -> None:
        """Hear what the host has said of that worker since."""
        for message in self._said_behind(worker):
            if name in self._others:  # else what it has said before has ended it
                self._guarded(name, partial(self._deliver, name, message))

    def _said_behind(self, worker: int) -> list[host_messages.OfWorker]:
        bodies = Frames(LONGEST).receive(bytes(self._behind.pop(worker, b"")))
        return [_OF_WORKER.decode(body, ()) for body in bodies]

    def never_comes(self, worker: int, why: str) -> None:
        """The worker can't go on, unless it takes no part any more."""
        if worker not in self._left and worker not in self._gone:
            self._tell(worker, host_messages.EndWorker(worker, why))

    def made(self, version: int) -> None:
        self._made_at[version] = self._now()
        if len(self._made_at) > KEPT * max(1, len(self._by_worker)):
            del self._made_at[next(iter(self._made_at))]
        if self._carrier is not None:
            self._carrier.made(Version(version))
        awaited = self._awaited.pop(version, {})
        for other in self._others.values() if self.makers else awaited.values():
            if other.name in awaited or other.name in self.makers:
                other.made(version)

    def adopted(self, worker: int, state: int | None) -> None:
        for other in self._others.values():
            with_it = None
            if state is not None and other.name in self.makers:
                with_it = self.attachments.attach(file_bytes(state), other.name)
            place = None
            if self._cluster.owns_replicas:
                place = self._cluster.shelf.place(self._cluster.steps.replica(worker))
                self.replicas.binds_place(other.name, place)
            other.tell(host_messages.Adopted(worker, with_it, place))

    def _train(self, other: Other, workers: dict[int, host_messages.GoesOn | None], *, late: bool = False) -> None:
        """Have these workers of that host train, and the host make its range of each version, if it is to.

        `late`: others train by now. A host that owns replicas dials them all then.
        """
        for worker in workers:
            other.turns_of(worker).begins()
        state = None
        if other.name in self.makers:
            assert self._cluster.state is not None
            state = self.attachments.attach(file_bytes(self._cluster.state), other.name)
        shards = tuple(self._cluster.shards)
        other.knows = self._cluster.newest
        near = self._directed.neighbours(other.name, self._begun) if shards or self._cluster.owns_replicas else ()
        if self._cluster.owns_replicas:
            self._directed.exchanges(other.name)
            self.replicas.binds_place(other.name, 0)  # what training begins with
            near = self._met(near, other.name) if late else near
        sums = self._cluster.together.begins(other.name, other.workers)
        other.tell(host_messages.Train(workers, self._cluster.newest, self._now(), shards, state, near, sums))

    def _stored(self, host: str, item: Update | Sum) -> None:
        if (fact := self._cluster.remote_shards.stored(host, item, self._now())) is not None:
            self._report(fact)

    def _bring_share(
        self, host: str, attached: Attached, there: Callable[[int], object], lacks: Callable[[str], object]
    ) -> None:
        """Bring that host's share of the optimizer's state, and pass its file on."""
        fetched = host_messages.AttachmentFetched(attached.name)

        def here(file: int) -> None:
            there(file)
            self.tell_host(host, fetched)

        self.attachments.require_new(attached)
        try:
            self.attachments.bring_file(
                attached, host, here, lambda why: lacks(f"host {host}'s part of it can't come: {why}")
            )
        except OSError as full:
            lacks(f"host {host}'s part of it has no room here: {full.strerror}")
            self.tell_host(host, fetched)

    def _recut(self, shards: Sequence[Shard], left: str) -> None:
        """These make versions from now on, and that host has left. What it sends is asked for anew."""
        for other in self._others.values():
            if other.name != left and other.name in self._begun:  # else none of its workers trains, and it knows nobody
                other.tell(host_messages.Shards(tuple(shards), left))
        for fact in self._cluster.remote_shards.taken(self._now()):
            self._report(fact)
        self._carries.again(lambda item: isinstance(item, Version))

    def knows(self, host: str) -> bool:
        """Whether that is one of these hosts, or was."""
        return host in self._others or any(one.name == host for one in self._by_worker.values())

    def amiss(self, host: str, why: str) -> None:
        """The host does not give what it has: it is to be ended."""
        self._directed.amiss(host, why)

    def host_of(self, worker: int) -> str:
        """The worker's host."""
        return self._by_worker[worker].name if worker in self._by_worker else self._cluster.name

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

    def _admit(self, other: Other, worker: int, epoch: int, at: float) -> None:
        """Let a worker of that host in. Before, bring what it shows until it takes part."""
        replicas = self.replicas
        (replica,) = self._cluster.shelf.claimed(shown(worker))
        assert isinstance(replica, Replica)
        place = self._cluster.shelf.place(replica)

        def admit(_: str = "") -> None:
            if worker not in self._gone:
                replicas.binds_place(other.name, place)
                other.tell_of(worker, host_messages.AdmitWorker(worker, epoch, at, place))

        replicas.show(replica, other.name, admit)

    def _lose_replicas(self, other: Other, why: str) -> None:
        """That host is lost, with its replicas. Those of workers that have finished were to count."""
        for one in self._others.values():
            if one.name in self._begun:
                one.tell(host_messages.HostLost(other.name, why))
        finished = [worker for worker in other.workers if self._cluster.has_finished(worker)]
        if gone := self.replicas.lacks(finished):
            those = workers_named(gone)
            self._cluster.loses(f"host {other.name} is lost ({why}), with what {those} had come to as they ended")
        self.replicas.lost(other.name, why)

    def tell_host(self, host: str, message: messages.Message) -> None:
        """See `OtherHosts`."""
        if (other := self._others.get(host)) is not None:
            other.tell(message)

    def _shard_lost(self, host: str, why: str) -> None:
        """That host makes no versions any more. If it was to, nobody can."""
        if host in self.makers:
            self._cluster.loses(f"host {host} made a part of every version, and {why}")
