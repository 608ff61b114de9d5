"""What the head and another host say to each other, one type for each message. Names and plain values only.

See `host.host` for what a host does of it, and `host.other_hosts` for the head's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal, get_args

import msgspec

from paceline.core.orders import Order, Release
from paceline.core.shards import Shard
from paceline.core.state_edits import StateEdit
from paceline.host.events import Attached, Averaged, AwaitsPlace, Computes, GivenUp, WorkerEnded, WorkerSaid
from paceline.host.machine import Machine
from paceline.ipc import messages
from paceline.ipc.endpoint import Count, Message, Seconds, Word
from paceline.records.summary import Outcome
from paceline.records.times import FetchTimes
from paceline.scenario.scenario import MOST_WORKERS
from paceline.transfer.item_names import Fields

_ORDERS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Order)}


End = Outcome | Literal["refused", "lost", "drained", "again"]
"""How a run ended for a host. `refused`: something is wrong that the run or the host was given. `lost`: the host takes
no part any more, and the run may go on. `drained`: so it is, in good order, as the host was asked to leave. `again`:
the run goes on from its newest snapshot, once the host has come again."""


class AttachmentFetched(Message):
    """What came along with a message by that name is here, and need not be kept any more."""

    attached: Annotated[str, msgspec.Meta(max_length=200)]


# the head to a host


class GoesOn(msgspec.Struct, frozen=True, array_like=True):
    """What a worker goes on with, in a run that goes on from a snapshot."""

    epoch: int
    buffers: Attached | None
    """The part of its first update's place that has its buffers. None: they are a part of its replica."""
    kept: Attached | None
    """What its script kept, or another worker's, if any did."""


class Folder(msgspec.Struct, frozen=True, array_like=True):
    """A folder with the script, for hosts that don't have it. They ask for its parts."""

    size: Annotated[int, msgspec.Meta(ge=1)]
    """Its bytes, as `job.sent_folder` packs it."""
    sha256: bytes
    """Of these bytes."""
    at: str
    """Where the folder goes in the place that a host has for it."""
    directory: str
    """The working directory of the workers, in that place."""


class Neighbour(msgspec.Struct, frozen=True, array_like=True):
    """Another host besides the head's."""

    host: str
    incarnation: int
    address: tuple[str, int]
    """Where it listens for data."""


class Introduce(Message):
    """Say what this host has for the run."""

    script: str
    """Its path, from the working directory unless it is absolute."""
    sha256: bytes
    """Of the script as the head has it."""
    host_timeout: float
    folder: Folder | None
    """None: the script has to be there."""
    machine: Machine
    """The head's. A host that can't train together with it leaves before it asks for the folder."""
    devices: str | None
    """What `--devices` lists. A host where one of these isn't visible leaves before it asks for the folder."""
    spreads: bool = False
    """Whether hosts besides the head's are to make versions: then each listens for the others' data."""


class FolderPart(Message):
    """A part of the folder, and where it begins."""

    at: int
    data: bytes


class Prepare(Message):
    """All hosts have come. Take part in the run, and begin these workers, if any."""

    settings: bytes
    """See `job.settings_codec`."""
    workers: list[int]


class BeginScripts(Message):
    """Listen to the workers, and let them begin."""


class StandIn(Message):
    """This host has no workers: have a process run the script up to `prepare`. It is answered by `StandsIn`."""


class Train(Message):
    """Fetch what training begins with, and let these workers train."""

    workers: dict[int, GoesOn | None]
    """None: it begins."""
    version: int
    """The version that training begins with."""
    at: float
    """Seconds since the run's start, as the head sent this."""
    shards: tuple[Shard, ...] = ()
    """Who makes which bytes of each version. Empty: the head makes them all."""
    state: Attached | None = None
    """What a host with a shard begins with besides the version."""
    neighbours: tuple[Neighbour, ...] = ()
    """This host and those besides the head's with which it exchanges ranges: who comes first in this order listens."""
    sums: bool = False
    """Whether the host adds up its workers' updates."""
    part: int = 0
    """The number of the protocol's part that decides."""


class ExpectUpdate(Message):
    """That update is being computed: bring what there is of this host's range. Whether it counts, `Bring` says."""

    worker: int
    step: int


class Bring(Message):
    """Bring this host's range of that update here, or of that sum."""

    item: Fields
    host: str | None
    """The host that makes the sum."""


class Drop(Message):
    """No version will have what is here of that update or that sum, or on its way."""

    item: Fields


class SumUp(Message):
    """Add these updates up, whose workers are here. See `host.shards.host_reducer.HostReducer`."""

    number: int
    """The sum's."""
    terms: list[tuple[int, int, float]]
    """(worker, step, weight), in the order in which they are summed."""
    look: bool


class DropSum(Message):
    """That sum of updates of this host is void."""

    number: int


class MakeRange(Message):
    """Make this host's range of that version, the next one. See `host.shards.range_maker.RangeMaker`."""

    version: int
    terms: list[tuple[Fields, float]]
    """(update or sum, weight), in the order in which they are summed."""
    scalars: list[dict[str, Any]] | None
    look: bool
    exchanges: bool = False
    """Whether this host says `RangeNorms` first, and makes the range once it has heard `AllNorms`."""
    edits: list[StateEdit] = msgspec.field(default_factory=list)


class AllNorms(Message):
    """These are the norms of the mean gradients of the version that is being made, of all ranges."""

    norms: messages.store.Norms


class FreeVersion(Message):
    """Nobody needs that version any more, which this host has a range of."""

    version: int


class TakeRange(Message):
    """Take over that host's range, and make it as well from the next version on. Its workers have left.

    See `host.shards.migration`. It is answered by `RangeTaken`.
    """

    host: str
    begin: int
    end: int
    versions: list[int]
    """Those that are needed somewhere. This host serves the range of each of them, too, once that is said."""
    arrived: list[Fields]
    """(worker, step) of updates that all hosts have, and that no version has yet."""
    state: Attached
    """What the optimizer has for the range, as of the newest version. It lies at that host."""


class Shards(Message):
    """These make each version from now on, those before included. What `left` made has moved, and it goes."""

    shards: tuple[Shard, ...]
    left: str


class PackState(Message):
    """Send what the optimizer has for this host's range, as of the version that was ordered last."""

    number: int
    """What the request is known by. See `StatePacked`."""


class CarryOut(Message):
    """Carry out this order."""

    kind: str
    fields: dict[str, Any]

    @classmethod
    def of(cls, order: Order) -> CarryOut:
        """Return the message. A host does not ask why."""
        fields = msgspec.to_builtins(order)
        del fields["why"]
        return cls(type(order).__name__, fields)

    @property
    def order(self) -> Order:
        """The order. Raises `msgspec.ValidationError` or KeyError for what is none."""
        order: Order = msgspec.convert(self.fields, _ORDERS[self.kind])
        return order


Permission = tuple[int, int, int, Literal["pull", "held", "eager", "own"], int, int, int, int, int, bool]
_PERMITTED = ("worker", "step", "version", "parameters", "steps", "overlap", "batches", "progress", "pace", "cut")
"""The fields of a `Release` that a host hears of, in this order."""
_permission = attrgetter(*_PERMITTED)


class CarryOutReleases(Message):
    """Carry out these releases, in this order.

    A round frees all workers at once, and a message for each would keep the last host waiting for all the others.
    """

    permissions: list[Permission]

    @classmethod
    def of(cls, orders: Sequence[Release]) -> CarryOutReleases:
        """Return the message. A host does not ask why."""
        return cls([_permission(order) for order in orders])

    @property
    def orders(self) -> list[Release]:
        """The orders."""
        return [_ORDERS["Release"](**dict(zip(_PERMITTED, fields, strict=True))) for fields in self.permissions]


class VersionMade(Message):
    """The store has made that version, and all before it. A host is told of those that its orders are about."""

    version: int


class Look(Message):
    """This version is the newest, and the worker wants to see it."""

    worker: int
    version: int
    hold: bool
    """See `messages.worker.SnapshotWanted`."""


class TellWorker(Message):
    """Tell the worker that."""

    worker: int
    message: messages.worker.ToWorker
    attached: Attached | None = None


class Adopt(Message):
    """Have the worker write what its script changed the first version to."""

    worker: int


class Adopted(Message):
    """The first version is what that worker has written: take it anew, before all that comes after this."""

    worker: int
    state: Attached | None = None
    """The optimizer's state that goes with it, for a host with a shard."""
    changes: dict[int, int] = msgspec.field(default_factory=dict)
    """By worker of this host that owns a replica: the number of what that is from now on."""


class PartSwitched(Message):
    """That part of the protocol decides from now on, and another optimizer steps, or elsewhere."""

    part: int
    state: Attached | None
    """What the host's part of the store's optimizer goes on with, or its workers' optimizers, if that has moved."""
    version: int | None = None
    """The version that it begins with, if the switch has made one."""
    replicas: dict[int, int] = msgspec.field(default_factory=dict)
    """By worker of this host that begins with a replica of its own, which is that version: the replica's number."""


class KeepItem(Message):
    """That replica is needed as it is, until `ReleaseItem`. Other hosts may fetch it."""

    item: Fields
    of: Fields | None = None
    """What it is another name of, if it has none here: a worker that joins gets a copy of another's replica."""


class ReleaseItem(Message):
    """That replica need not be kept any more."""

    item: Fields


class CopyItem(Message):
    """Bring that replica from that host, and keep it until `DropCopy`. It is answered by `ItemCopied`."""

    number: int
    """What the request is known by."""
    item: Fields
    host: str


class DropCopy(Message):
    """What was brought by that number need not be kept for that, or need not come."""

    number: int


class TakeStep(Message):
    """Have the worker's replica make that step. It has that number then."""

    worker: int
    step: int
    change: int | None
    """None: it goes without that step."""
    mean: int | None
    """The number of the average whose mean gradient it is made with. None: the worker's own."""
    scalars: list[dict[str, Any]] | None
    """See `messages.worker.MakeStep`."""


class TakeReplica(Message):
    """The worker's replica is the one with that number, which was copied or named here."""

    worker: int
    change: int
    recorded: bool
    """Whether the worker puts it into a place that it gets now: see `messages.worker.TakeUp`."""


class GroupPart(msgspec.Struct, frozen=True, array_like=True):
    """What the members of one host give to an average."""

    host: str
    members: tuple[int, ...]
    numbers: tuple[int, ...]
    """Those of their replicas; or with weights, of the steps whose gradients are averaged."""
    weights: tuple[float, ...] | None


class AverageGroup(Message):
    """Make this host's part of a group's average. It is answered by `Averaged`. See `reducers.Group`."""

    number: int
    parts: tuple[GroupPart, ...]
    early: bool
    """Whether members still compute what is averaged, so that each of its bytes is taken as it is there."""


class DropAverage(Message):
    """That average counts for nothing. It is answered by `GivenUp`, unless the host has said `Averaged`."""

    number: int


class EndAverage(Message):
    """All know how that average has ended. If it was not given up, its mean takes effect."""

    number: int
    made: bool
    changes: dict[int, int] = msgspec.field(default_factory=dict)
    """By member here whose replica is that mean from now on: its number."""


class ExpectHost(Message):
    """That host has come, and is about to dial this one for data."""

    neighbour: Neighbour


class HostLost(Message):
    """That host takes no part any more: nothing comes from it."""

    host: str
    why: str


class StartWorker(Message):
    """Begin a process as this worker, whose own has ended."""

    worker: int


class AdmitWorker(Message):
    """Let a worker in that has come to `prepare` while others train. It shows parameters, and takes no part yet."""

    worker: int
    epoch: int
    at: float
    """See `Cluster`."""
    item: Fields | None = None
    """The replica that the worker shows, if each owns one. None: it has nothing to show."""


class JoinWorker(Message):
    """The worker takes part from now on."""

    worker: int


class EndWorker(Message):
    """Kill the worker's process."""

    worker: int
    why: str | None
    """What to say of that, if anything."""


class WorkerGone(Message):
    """The worker takes no part any more."""

    worker: int
    died: bool
    unapplied: tuple[int, ...] = ()
    """See `contract.Updates`."""


class ForgetWorker(Message):
    """All know that the worker's process has ended: nothing is kept for it any more."""

    worker: int


class OutputWritten(Message):
    """A piece of what workers have printed is in its log."""


class Wake(Message):
    """The run is to end: have the processes go on that make versions and move bytes, if they are stopped."""


class EndRun(Message):
    """The run is over."""

    outcome: End
    error: str | None = None
    """One line on why it did not complete, if there is one."""


OfRange = ExpectUpdate | Bring | Drop | MakeRange | AllNorms | FreeVersion | PackState | TakeRange
"""What a host with a shard is ordered, in the order in which it has to do it."""
OfSums = SumUp | DropSum
"""What a host is ordered that adds up its workers' updates."""
OfReplicas = (
    TakeStep | TakeReplica | KeepItem | ReleaseItem | CopyItem | DropCopy | AverageGroup | DropAverage | EndAverage
)
"""What a host is ordered whose workers own replicas."""
OfWorkersReplica = TakeStep | TakeReplica
"""The part of it that is about a worker's own replica."""

FromHead = (
    Introduce
    | FolderPart
    | Prepare
    | BeginScripts
    | StandIn
    | Train
    | CarryOut
    | CarryOutReleases
    | OfRange
    | OfSums
    | OfReplicas
    | ExpectHost
    | HostLost
    | Shards
    | VersionMade
    | Look
    | TellWorker
    | Adopt
    | Adopted
    | PartSwitched
    | StartWorker
    | AdmitWorker
    | JoinWorker
    | EndWorker
    | WorkerGone
    | ForgetWorker
    | AttachmentFetched
    | OutputWritten
    | Wake
    | EndRun
)


# a host to the head


class SendPart(Message):
    """Send the part of the folder that begins there."""

    at: Count


class HostOffer(Message):
    """The host has this for the run."""

    workers: Annotated[int, msgspec.Meta(ge=0, le=MOST_WORKERS)]
    """How many it brings. None, if it is only to make a range of each version."""
    machine: Machine
    address: tuple[Word, Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)]] | None = None
    """Where it listens for other hosts' data, if it was to."""


class StandsIn(Message):
    """The script has come to `prepare` on this host, which has no workers, and brought this."""

    offer: messages.worker.Offered


class Leaves(Message):
    """The host takes no part any more."""

    why: str


class Drains(Message):
    """The host was asked to leave, and wants to do so in good order. It goes on until it is told to close."""


class Printed(Message):
    """The worker has printed this. Empty: it will print no more. It is answered by `OutputWritten`."""

    worker: Count
    data: bytes


class HostRemarked(Message):
    """The user is to know this about the host."""

    line: str


class Begun(Message):
    """What training begins with is here."""


class Lacks(Message):
    """The worker needs what will never come."""

    worker: Count
    why: str


class Taken(Message):
    """The worker has that version. If it was pulled for a step, the worker was told to compute that, unless a place
    is awaited: see `AwaitsPlace`."""

    worker: Count
    version: Count


class Fetched(Message):
    """This host has fetched an item. The fields are those of `records.times.FetchTimes`."""

    source: Word
    kind: Annotated[str, msgspec.Meta(pattern="^(version|update|sum|partial|mean|replica|other)$")]
    worker: Count | None
    number: Count | None
    bytes: Count
    seconds: Seconds
    """How long that took, by this host's clock."""

    @classmethod
    def of(cls, fetch: FetchTimes) -> Fetched:
        """Return the message."""
        return cls(fetch.source, fetch.kind, fetch.worker, fetch.number, fetch.bytes, fetch.ended - fetch.began)

    def heard(self, host: str, at: float) -> FetchTimes:
        """Return the fetch by that host, as the head hears of it at that moment."""
        return FetchTimes(
            host=host,
            source=self.source,
            kind=self.kind,
            worker=self.worker,
            number=self.number,
            bytes=self.bytes,
            began=at - self.seconds,
            ended=at,
        )


class CpuUsed(Message):
    """Moving bytes of items has taken this host so much time of processors, in this incarnation."""

    cpu_seconds: Seconds


class Stored(Message):
    """This host's range of that update is here, or of that sum."""

    item: Fields


class SumNotFinite(Message):
    """A gradient that was added up here has a NaN or an infinity."""

    parameter: Word
    worker: Count


class RangeNorms(Message):
    """These are the norms of mean gradients, for this host's range of a version."""

    norms: messages.store.Norms


class RangeMade(Message):
    """This host's range of that version is made."""

    made: messages.store.Committed


class StatePacked(Message):
    """What the optimizer has for this host's range comes along. Nothing comes if it can't be packed."""

    number: Count
    error: str | None
    attached: Attached | None


class RangeTaken(Message):
    """All that this host was to take over is here."""


class ShardLost(Message):
    """This host makes no versions any more."""

    why: str


class SumsLost(Message):
    """This host adds up no updates any more. Those of its workers are here, one by one."""

    why: str


class ItemCopied(Message):
    """What the host was told to bring is there."""

    number: Count


class Reaches(Message):
    """Whether data moves between this host and that one."""

    host: Word
    reached: bool


OfStep = Taken | AwaitsPlace | Computes
"""What a host says of a worker that takes part."""
OfWorker = WorkerSaid | WorkerEnded | Lacks | OfStep
"""What a host says of one of its workers, in the order in which it happened."""

OfShard = Stored | RangeNorms | RangeMade | StatePacked | RangeTaken | ShardLost
"""What a host with a shard says of that."""
SaidOfSums = SumNotFinite | SumsLost
"""What a host says that adds up its workers' updates."""
SaidOfReplicas = ItemCopied | Averaged | GivenUp
"""What a host says whose workers own replicas."""

ToHead = (
    OfWorker
    | OfShard
    | SaidOfSums
    | SaidOfReplicas
    | SendPart
    | HostOffer
    | StandsIn
    | Leaves
    | Drains
    | Begun
    | AttachmentFetched
    | Fetched
    | CpuUsed
    | Printed
    | HostRemarked
    | Reaches
)
