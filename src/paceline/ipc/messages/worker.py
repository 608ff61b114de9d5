"""What a worker and its host say to each other, one type for each message. Plain values in msgpack only."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from paceline.core.agreements import LONGEST, How, Value
from paceline.core.machine import WHOLE, Fragments, Outer, Pushes, State
from paceline.core.state_edits import StateEdit
from paceline.ipc.endpoint import Count, Message, Seconds, Word

Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=1e100)]
Given = (
    bool
    | Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    | float
    | Annotated[str, msgspec.Meta(max_length=LONGEST)]
    | None
)
"""A value for `agree`."""
CLIP = ("clip_grad_norm", "clip_grad_value")
"""The arguments of `prepare` for clipping."""
Named = Annotated[dict[Annotated[str, msgspec.Meta(max_length=1 << 12)], float], msgspec.Meta(max_length=10_000)]
"""What a script has measured, by name. Values may be NaN. Names are checked later, as a step may log hundreds."""
Batches = list[tuple[Count, Count]]
"""(epoch, index)"""


# a worker to its host
class Offered(Message):
    """This worker's script has called `prepare` with these."""

    forms: list[str]
    fixed_bytes: Count
    slot_bytes: Count
    push_bytes: Count
    flags_bytes: Count
    """Bytes of the flags that say which parameters have a gradient. They follow the gradients in a push area."""
    buffers_bytes: Count
    """Bytes of the buffers behind the flags."""
    cuts: Annotated[list[Count], msgspec.Meta(min_length=2)]
    """Where a version may be cut into ranges that several hosts make, in bytes. The last is its end."""
    state_bytes: Count
    """An estimate of the optimizer's state in the store."""
    model_bytes: Count
    optimizer: Word
    """The name of the optimizer's class."""
    scalars: list[dict[str, Any]]
    loads: bool
    """Whether there is a loader, so that samples can be counted."""
    epoch_samples: Count | None
    """Samples in an epoch, if the protocol has to know the amount of work."""
    data: Count | None
    """Samples in the loader's data, if its batches are leased and the data has a length."""
    streams: bool
    """Whether each worker has a stream of its own as loader, whose batches are not leased."""
    epochs: Count | None
    """Loops over the loader, if the script says how many."""
    buffers: Word | None
    shards: Word | None
    evaluates: bool
    keeps: bool
    """Whether the script keeps something for snapshots."""
    metrics: list[Word] | None
    """The names of what `evaluate` returns, if they were asked for and are known."""
    code: dict[str, str] = msgspec.field(default_factory=dict)
    """The script's own modules, and the SHA-256 of each. See `job.source_digests`."""
    passes: Count = 1
    """Passes over the data in each of these loops, as far as is known."""
    chunks: list[Count] = msgspec.field(default_factory=list)
    """Where the parameters that groups average may be cut, if not at `cuts`."""
    starts: list[Count] = msgspec.field(default_factory=list)
    """Where parameters begin in a version, in bytes, ascending, but for those without elements."""
    encoded_cuts: list[Count] = msgspec.field(default_factory=list)
    """Where an encoded update is cut as a version is at `cuts`, in bytes of a push area. Empty: it is not encoded."""
    encoded_starts: list[Count] = msgspec.field(default_factory=list)
    """The same for `starts`."""
    device: Word = ""
    """The name of the worker's GPU. Empty: it computes on the CPU."""
    deterministic: bool = True
    """Whether torch was told to compute the same bits each time."""
    shared_stream: str | None = None
    """The name of the loader's class, if every worker iterates the whole stream and uses each n-th item."""
    clip_grad_norm: Finite | None = None
    """What mean gradients are clipped to. See `training.optim.clipping.Clip`."""
    clip_grad_value: Finite | None = None
    plateaus: Count = 0
    """How many ReduceLROnPlateau were prepared."""

    @property
    def clip(self) -> dict[str, float]:
        """The arguments of `prepare` for clipping, by name."""
        return {name: value for name in CLIP if (value := getattr(self, name)) is not None}

    @property
    def update_cuts(self) -> list[int]:
        """Where an update may be cut as a version is at `cuts`, in bytes of a push area."""
        return self.encoded_cuts or self.cuts

    def in_update(self, at: int) -> int:
        """Return where an update is cut as a version is at that byte, one of `cuts` or `starts`."""
        if not self.encoded_cuts:
            return at
        of_start = at not in self.cuts
        there, encoded = (self.starts, self.encoded_starts) if of_start else (self.cuts, self.encoded_cuts)
        return encoded[there.index(at)]

    @property
    def replica_bytes(self) -> int:
        """Bytes of a replica, with flags and buffers. What is encoded in a push area lies behind these."""
        return self.buffers_at[1]

    @property
    def update_bytes(self) -> int:
        """Bytes of an update."""
        return self.encoded_cuts[-1] - self.encoded_cuts[0] if self.encoded_cuts else self.model_bytes

    @property
    def averaged_at(self) -> list[int]:
        """Where groups may cut what they average into slices for several hosts, in bytes."""
        return self.chunks or self.cuts

    @property
    def buffers_at(self) -> tuple[int, int]:
        """The first byte of a push area's buffers, and the byte after the last one."""
        begin = self.cuts[-1] + self.flags_bytes
        return begin, begin + self.buffers_bytes


class ScriptRefused(Message):
    """The script asks for something that can't be done."""

    message: str


class StoreNotForked(Message):
    """The machine can't start a process for the store. The text says so."""

    error: str


class ParserEnded(Message):
    """The script's own argument parser has ended the script, before `prepare`: after --help, or at a mistake."""

    code: Annotated[int, msgspec.Meta(ge=0, le=255)]


class Accumulated(Message):
    """These bytes of the step's gradient are in the push area, while the worker still computes the rest."""

    step: Count
    begin: Count
    end: Count
    scalars: list[dict[str, Any]] | None = None
    """With the flags, which come first: the optimizer's hyperparameters as they are by then, if they can be used."""


class Withdrawn(Message):
    """Withdraw the step's `Accumulated`, as the script has changed the gradient since."""

    step: Count


class StepFinished(Message):
    """A step's gradient is in the push area. Times are in seconds, and `began` is by the monotonic clock."""

    step: Count
    version: Count
    batches: Batches | None
    """The batches in it that were in no step before; None without a loader."""
    skipped: Batches
    """Batches that the script has left out since the last step."""
    scalars: list[dict[str, Any]] | None
    """The optimizer's hyperparameters, if they changed since the last push."""
    began: Finite
    compute: Seconds
    push: Seconds
    other: Seconds
    waited: Seconds
    pulled: Seconds
    """Waiting for this step's release and installing its version, after the step before."""
    again: Batches = msgspec.field(default_factory=list)
    """The batches in it that the script has kept since an earlier loop and uses again."""
    weight: Weight | None = None
    """The gradient's weight in a mean, if that is not the samples in `batches` and `again`."""
    gradient: str | None = None
    """The checksum of the worker's first gradient; None if that is of leased data, or is zero."""
    to_device: Seconds | None = None
    """Seconds that copies to the device took since the last message of a step, mostly for this step's version.

    The device's events measure them, overlapped or not. None where parameters are in memory.
    """
    from_device: Seconds | None = None
    """The same for copies from the device, mostly of this step's gradient."""
    edits: list[StateEdit] = msgspec.field(default_factory=list)
    """The script's edits of the optimizer's state since the step before, where the store has that state."""


class LeaseWanted(Message):
    """The loader wants its next batch."""

    epoch: Count
    blocks: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
    """Blocks of the epoch's order that this worker has drawn so far."""
    digest: str
    """The digest of all these blocks."""
    ahead: Count = 0
    """Batches that the worker has been leased and has not begun with."""
    most: Count = 1
    """How many it has a use for without another word of the run."""
    begins: tuple[Count, Count] | None = None
    """The batch that it begins with meanwhile, if that was leased ahead of use."""
    joins: bool = False
    """Whether it makes one batch of all that come along."""


class BeginWanted(Message):
    """The worker asks whether it may begin with this batch, which it was leased ahead of use."""

    epoch: Count
    index: Count


class OrderDrawn(Message):
    """A block of the epoch's batches of sample ids, in order. See `training.data.orders`."""

    epoch: Count
    block: Count
    digest: str
    """The digest of the order up to the block's end."""
    order: list[list[Any]]
    last: bool
    samples: Count | None
    """Samples in the whole epoch; None if that is unknown."""


class GivenBack(Message):
    """The worker will not use these leases."""

    batches: Batches


class LookedAt(Message):
    """The script only looked at these batches, in a loop of that epoch: treat them as never leased."""

    epoch: Count
    batches: Batches
    ran_out: bool
    """Whether the loop was refused a batch in the end: treat that last request as never made."""


class Joins(Message):
    """A worker that came late makes its first step. Where data is leased, its first lease says so instead."""


class Handed(Message):
    """What the script keeps comes along, packed, for the worker that joins, unless it can't be packed."""

    descriptors: ClassVar[int] = 1

    worker: Count
    joining: Count
    error: str | None


class StateGiven(Message):
    """What the worker's optimizer has comes along, packed, unless it can't be packed. This answers `GiveState`."""

    descriptors: ClassVar[int] = 1

    error: str | None


class Declined(Message):
    """The worker makes no further step."""

    epoch: Count = 0
    """The script is done with the epochs before this one."""
    paused: bool = False
    """Whether the worker only waits for the others, as `Pause` has told it to, and goes on after that."""
    revoked: bool = False
    """Whether it goes on with its next release, as `Revoke` has told it to. `paused` is true as well."""


class EpochsOver(Message):
    """The script begins another loop over the loader after its last epoch."""


class SnapshotWanted(Message):
    """The worker wants the newest version, outside of any step."""

    hold: bool
    """Whether to keep it instead of the one that this worker reads. Otherwise it is kept until `SnapshotTaken`."""


class SnapshotTaken(Message):
    """The worker has copied the version."""


class StateWanted(Message):
    """The worker wants the optimizer's state."""


class AdoptionWanted(Message):
    """The script has changed what it begins with, to values with this digest."""

    digest: str


class AdoptionWritten(Message):
    """The values are in the slot. The optimizer's state comes along, if it was changed."""

    descriptors: ClassVar[int] = 1


class EditWanted(Message):
    """The script has changed the model's structure for the `number`th time. See `training.model.structure`."""

    number: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
    names: dict[str, str]
    added: dict[str, str]
    ties: bool
    """Whether all names are as they were in `prepare`."""


class Edited(Message):
    """The structure comes along, packed, with the values of its new tensors."""

    descriptors: ClassVar[int] = 1

    number: Count


class OwnValues(Message):
    """This worker's values of what no step moves come along, packed. See `store.store.OwnValues`."""

    descriptors: ClassVar[int] = 1

    number: Count
    """From 1."""


class FinishWanted(Message):
    """The script waits in `finish()`."""


class UpdateMade(Message):
    """The update of the worker's own steps, up to this one, is in the push area: as `MakeUpdate` asked, or unasked."""

    step: Count


class Stepped(Message):
    """The worker's replica has made that step, as `MakeStep` had named it."""

    step: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
    not_finite: str | None
    """A parameter that is NaN or infinite now."""


class Kept(Message):
    """What the script keeps for that snapshot comes along, packed, unless it can't be packed."""

    descriptors: ClassVar[int] = 1

    snapshot: Count
    step: Count
    """The worker's last step in it."""
    epoch: Count
    """The epoch in which the script will go on."""
    error: str | None


class ScalarsLogged(Message):
    """Scalars that the script logged in a step on that version."""

    step: Count
    version: Count
    scalars: Named


class Handles(Message):
    """This worker's script has handlers for these signals, and for no others that are passed on."""

    signals: list[Count]


class Remarked(Message):
    """A line for the user about this worker."""

    line: str


class Decided(Message):
    """The script has stepped a ReduceLROnPlateau by this metric, and this worker decides. See `PlateauMetrics`."""

    scheduler: Count
    metric: float


class StopWanted(Message):
    """The script ends the run for all workers, after their present steps."""

    reason: str


class Agrees(Message):
    """The script calls `agree`, and waits for `Agreed`."""

    epoch: Count
    """The epoch in which the script will go on."""
    nth: Count
    """The number of the call in that epoch, from 0."""
    how: How
    value: Given


class ScriptEnded(Message):
    """The script has come to its end."""


class Evaluated(Message):
    """A recorded version's metrics."""

    version: Count
    metrics: Named


class EvaluationFailed(Message):
    """The script's `evaluate` raised this."""

    version: Count
    error: str


FromWorker = (
    Offered
    | ScriptRefused
    | StoreNotForked
    | ParserEnded
    | Accumulated
    | Withdrawn
    | StepFinished
    | LeaseWanted
    | BeginWanted
    | OrderDrawn
    | GivenBack
    | LookedAt
    | Joins
    | Handed
    | StateGiven
    | Declined
    | EpochsOver
    | SnapshotWanted
    | SnapshotTaken
    | StateWanted
    | AdoptionWanted
    | AdoptionWritten
    | EditWanted
    | Edited
    | OwnValues
    | FinishWanted
    | UpdateMade
    | Stepped
    | Kept
    | ScalarsLogged
    | Remarked
    | Decided
    | StopWanted
    | Agrees
    | Handles
    | ScriptEnded
    | Evaluated
    | EvaluationFailed
)


# a host to a worker
class Start(Message):
    """Begin the script."""


class ForkStore(Message):
    """Fork the store's process. The descriptors of the region and of the store's socket come along.

    So does that of another socket, if a process that evaluates while workers train is to be forked as well.
    """

    descriptors: ClassVar[int] = 3

    slots: int
    areas: int
    sums: int
    """Areas for sums."""
    outer: Outer | None
    """The outer optimizer, if it makes versions; None: the script's own does."""
    begin: int
    """The begin of the store's range of each version, one of `Offered.cuts`."""
    end: int
    """The end of that range."""


class ResumePoint(msgspec.Struct, array_like=True):
    """Where a worker goes on, in a run that is resumed from a snapshot. See `training.link.ResumedWorker`."""

    epoch: int
    buffers: int | None
    """None for a worker that joins, which gets them later."""
    kept: bool
    """Whether what its script kept comes along."""


class Begin(Message):
    """Go on, as all workers are here. The region's descriptor comes along, and where workers average, that of a socket.

    In a run that is resumed from a snapshot, what this worker's script kept comes last.
    """

    descriptors: ClassVar[int] = 3

    slots: int
    areas: int
    """Push areas of each worker. Where workers own replicas there are no slots: versions lie in areas, too."""
    state: State
    local_steps: bool
    """See `core.machine.Spec`. The two say what shows parameters to the script."""
    pushes: Pushes
    """What goes into this worker's push areas."""
    at_once: bool = True
    """Whether each step's update is made as the worker makes the step. Else it is made by `MakeUpdate`."""
    place: int = 0
    """Where its first parameters are: a slot, or an area if it owns a replica."""
    resumed: ResumePoint | None = None
    """What it goes on with, in a run that is resumed, or that the worker joins."""
    joins: bool = False
    """Whether training has begun without this worker, which takes part from its first step on."""
    at: float = 0.0
    """Seconds since the run's start."""
    tells: bool = False
    """Whether to send `Accumulated`."""
    fragments: Fragments = WHOLE
    """What of the parameters this worker pushes and takes at a time. See `core.machine.Spec`."""
    version: int | None = None
    """The version in `place`, on which the worker computes first. None: another one comes before that."""


class GiveState(Message):
    """Pack what your optimizer has: the store goes on with the mean of it. `StateGiven` answers this."""


class SwitchPart(Message):
    """Another part of the protocol decides from now on. The fields say what `Begin` says of them.

    If your own optimizer steps from now on, and the store's did, what that has comes along.
    """

    descriptors: ClassVar[int] = 1

    state: State
    local_steps: bool
    pushes: Pushes
    at_once: bool
    tells: bool
    fragments: Fragments


class HandOver(Message):
    """While you wait for a release, pack what the script keeps and what its optimizer has, for a worker that joins."""

    worker: int
    joining: int
    """Which joining this is. The worker may die and join anew before you have packed."""


class TakeUp(Message):
    """Take part from now on, with what another worker has handed over, if any has.

    All that the script has changed by now is discarded.
    """

    descriptors: ClassVar[int] = 1

    area: int | None = None
    """Where the worker's replica is."""
    recorded: bool = False
    """Whether a version comes along, which the worker puts into the area."""


class Arrives(Message):
    """These bytes have come of the version in that slot, on which your next step is computed."""

    slot: int
    ranges: list[tuple[Count, Count]]


class Compute(Message):
    """Compute this step on the version in that slot."""

    step: int
    version: int
    slot: int
    """Negative: the worker goes on with its own parameters as they are."""
    area: int
    """The push area for it."""
    ahead: list[tuple[int, float]]
    """(push area, scale) of updates that this worker pushed and the version lacks. The worker subtracts them itself."""
    progress: Count = 0
    """Batches that the run had used as the step was released: applied, skipped or missed."""
    steps: Count = 1
    """How many steps it may make from this one on. It goes on to each further one with its own parameters as they are,
    unless `Revoke` comes."""
    pace: Count = 0
    """How many further batches count as used by then, for each batch of its own."""
    cut: bool = False
    """Whether another `Compute` permits the further steps of its round. Else it makes the round's update after these,
    unasked."""
    dropped: list[Count] = msgspec.field(default_factory=list)
    """Steps of this worker whose updates no version will have, as is known since its last release."""
    overlap: Count = 0
    """How many of the last of these steps go into another update. The worker makes the one of the others before them,
    and none at the end."""
    next_area: int = -1
    """The push area for that other update."""
    batches: Count = 1
    """How often the script steps in it: its gradient is the mean of theirs. Where batches are cut, how many pieces its
    one batch has."""


class Revoke(Message):
    """Make no further step before the next `Compute`. `Declined` with `revoked` answers this, if there was one left."""


class MakeUpdate(Message):
    """Make the update of your own steps up to this one, unless you have made it. `UpdateMade` tells of that."""

    step: Count


BEGINS = -1
"""The number of the step that only puts a version, with the script's own buffers, where the replica is to be."""


class MakeStep(Message):
    """Step the replica from one area to another, which may be the same."""

    step: int
    """Its number, or `BEGINS`."""
    source: int
    target: int
    gradients: int | None
    """The area with the mean gradients to step with; None: the script's own gradients."""
    scalars: list[dict[str, Any]] | None = None
    """Another worker's hyperparameters for this step; None: the script's own."""


class Keep(Message):
    """Pack what the script keeps for that snapshot, as it is between that step and the next."""

    snapshot: int
    step: int
    epoch: int
    """The first epoch that has batches left then. Before it, the script does what it does once in each epoch."""
    used: Count = 0
    """Batches that the run has used by then: if it is stopped, the script's last call of a scheduler follows these."""
    applied: int = -1
    """The last step of this worker that a version has, as of the snapshot."""


class PlateauMetrics(Message):
    """The metrics that all workers step their ReduceLROnPlateau by."""

    decides: bool
    """Whether this worker's metrics decide from now on."""
    metrics: list[tuple[Count, Count, float]]
    """(scheduler, number of the metric, metric)."""


class Pause(Message):
    """Not all workers have called `agree` yet. Say `Declined(paused=True)`, so that the others go on without you."""


class Behind(Message):
    """Others have stepped without you: before your next step, await `TakeUp`, which brings a replica."""


class Agreed(Message):
    """The result of that call of `agree`."""

    epoch: Count
    nth: Count
    result: Value


class StopTraining(Message):
    """Make no further step, and fetch no further batch."""

    at_once: bool
    """Whether the script ends where it is. Otherwise its loops end, and the script goes on after them."""
    interrupted: bool = False
    """Whether the script's next step or fetch raises KeyboardInterrupt."""


class Leased(Message):
    """This batch is yours."""

    epoch: int
    index: int
    ahead: bool = False
    """Whether another worker may be given it until you begin with it."""
    begun: bool = True
    """Whether the batch that you begin with is still yours."""
    along: list[int] = msgspec.field(default_factory=list)
    """The indices of further batches of that epoch that are yours, too."""


class EpochOver(Message):
    """Nothing is left for you in this epoch."""

    for_now: bool = False
    """Whether to ask again once you have begun with a batch: you may get one that another worker has ahead."""
    begun: bool = True
    """See `Leased`."""


class MayBegin(Message):
    """Whether that batch is still yours."""

    begun: bool


class OrderWanted(Message):
    """You are the first worker that needs this block of the epoch's order: send it, and ask again."""

    epoch: int
    block: int


class SnapshotReady(Message):
    """The newest version is in that slot, which is kept for you."""

    slot: int


class OptimizerState(Message):
    """The optimizer's state comes along, packed."""

    descriptors: ClassVar[int] = 1


class AdoptInto(Message):
    """Put the parameters that you begin with into that slot."""

    slot: int


class AdoptedAlready(Message):
    """Another worker has put the same parameters there."""


class TellEdit(Message):
    """You are the first with this change of the model's structure: send it with the values of its new tensors."""

    number: int


class TakeEdit(Message):
    """Another worker was the first with this change. Take its values, which come along."""

    descriptors: ClassVar[int] = 1

    number: int


class FinalRecorded(Message):
    """All workers have ended. The file with the final version comes along, if there is one."""

    descriptors: ClassVar[int] = 1

    used: Count = 0
    """Batches that the run has used."""


class Evaluate(Message):
    """Run the script's `evaluate` on this recorded version, whose file comes along."""

    descriptors: ClassVar[int] = 1

    version: int


class Signal(Message):
    """Send the worker's process this signal, which the launcher got and the script has a handler for."""

    number: Count


class Exit(Message):
    """End the process."""


ToWorker = (
    Start
    | ForkStore
    | Begin
    | Arrives
    | Compute
    | Revoke
    | MakeUpdate
    | MakeStep
    | Keep
    | HandOver
    | GiveState
    | SwitchPart
    | TakeUp
    | PlateauMetrics
    | StopTraining
    | Leased
    | EpochOver
    | MayBegin
    | OrderWanted
    | SnapshotReady
    | OptimizerState
    | AdoptInto
    | AdoptedAlready
    | TellEdit
    | TakeEdit
    | FinalRecorded
    | Evaluate
    | Pause
    | Behind
    | Agreed
    | Signal
    | Exit
)


# a host to the process that evaluates while workers train, and back


ToEvaluator = Evaluate
FromEvaluator = Evaluated | EvaluationFailed


# a host to a worker's averaging thread, and back


class AverageShare(Message):
    """Make your share of a sum or an average of these areas. See `training.averages.AreaAverages.share`."""

    number: int
    members: list[int]
    """The workers that make shares, in this order."""
    sources: list[int]
    target: int
    weights: list[float] | None
    of: int
    """The number of members that are averaged; 0: it is a sum."""
    begin: int
    """The first byte that is averaged."""
    end: int
    flags: bool = True
    """Whether flags go with the first bytes."""


class ShareAveraged(Message):
    """The share is made."""

    number: Count


ToAverager = AverageShare
FromAverager = ShareAveraged
