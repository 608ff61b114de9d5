"""What a worker and its host say to each other, one type for each message. Plain values in msgpack only."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from paceline.core.agreements import LONGEST, How, Value
from paceline.core.machine import HolderKind, Pushes
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
Named = Annotated[dict[Annotated[str, msgspec.Meta(max_length=1 << 12)], float], msgspec.Meta(max_length=10_000)]
"""What a script has measured, by name. It may be NaN. `Turns` looks at each name once, as a step may log hundreds."""
Batches = list[tuple[Count, Count]]
"""(epoch, index)"""


# a worker to the coordinator


class Offered(Message):
    """This worker's script has called `prepare` with these."""

    forms: list[str]
    fixed_bytes: Count
    slot_bytes: Count
    push_bytes: Count
    flags_bytes: Count
    """What the flags take that say which parameters have a gradient. They follow the gradients in a push area."""
    buffers_bytes: Count
    """What the buffers take behind the flags."""
    cuts: Annotated[list[Count], msgspec.Meta(min_length=2)]
    """Where a version may be cut into ranges that several hosts make, in bytes. The last is where it ends."""
    state_bytes: Count
    """An estimate of what the optimizer's state will take in the store."""
    model_bytes: Count
    optimizer: Word
    """The name of the optimizer's class."""
    scalars: list[dict[str, Any]]
    loads: bool
    """Whether there is a loader, so that samples can be counted."""
    epoch_samples: Count | None
    """Samples in an epoch, if the protocol needs to know how much work there is."""
    data: Count | None
    """Samples in the loader's data, if its batches are leased and the data has a length."""
    streams: bool
    """Whether the loader is each worker's own stream, of which no batch is leased."""
    epochs: Count | None
    """Loops over the loader, if the script says how many it makes."""
    buffers: Word | None
    shards: Word | None
    evaluates: bool
    keeps: bool
    """Whether the script keeps something for snapshots."""
    metrics: list[Word] | None
    """The names of what `evaluate` returns, if they were wanted and are known."""
    code: dict[str, str] = msgspec.field(default_factory=dict)
    """The script's own modules, and the SHA-256 of each. See `job.source_digests`."""
    passes: Count = 1
    """Epochs of the data in each of these, as far as is known."""
    chunks: list[Count] = msgspec.field(default_factory=list)
    """Where what groups average may be cut, if that is not at `cuts`."""
    device: Word = ""
    """The name of the GPU that the worker computes on; empty: on the CPU."""
    deterministic: bool = True
    """Whether it would compute the same bits once more, as far as torch was told to."""
    shared_stream: str | None = None
    """The name of the loader's class if every worker iterates all of the same stream, and uses each n-th item."""
    clip_grad_norm: Finite | None = None
    """What mean gradients are clipped to. See `training.clipping.Clip`."""
    clip_grad_value: Finite | None = None
    plateaus: Count = 0
    """How many ReduceLROnPlateau were prepared."""

    @property
    def clip(self) -> dict[str, float]:
        """What `prepare` was told of clipping, by the names of its arguments."""
        both = {"clip_grad_norm": self.clip_grad_norm, "clip_grad_value": self.clip_grad_value}
        return {name: value for name, value in both.items() if value is not None}

    @property
    def averaged_at(self) -> list[int]:
        """Where what groups average may be cut into slices that several hosts make, in bytes."""
        return self.chunks or self.cuts

    @property
    def buffers_at(self) -> tuple[int, int]:
        """The first byte of a push area's buffers, and the byte after the last one."""
        begin = self.cuts[-1] + self.flags_bytes
        return begin, begin + self.buffers_bytes


class ScriptRefused(Message):
    """The script asks for what cannot be done."""

    message: str


class StoreNotForked(Message):
    """The machine can't start a process for the store. The text says so."""

    error: str


class ParserEnded(Message):
    """The script's own argument parser has ended the script, before `prepare`: after --help, or at a mistake."""

    code: Annotated[int, msgspec.Meta(ge=0, le=255)]


class Accumulated(Message):
    """These bytes of the step's gradient lie in the push area. The worker still computes the rest."""

    step: Count
    begin: Count
    end: Count


class Withdrawn(Message):
    """What was told of the step's gradient does not hold, as the script has changed it since."""

    step: Count


class StepFinished(Message):
    """A step's gradient lies in the push area. Times are in seconds, `began` is on the monotonic clock."""

    step: Count
    version: Count
    batches: Batches | None
    """The batches in it that were in no step before; None without a loader."""
    skipped: Batches
    """Batches that the script has left out since the last."""
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
    """The batches in it that the script keeps since an earlier loop, and has come back to."""
    weight: Weight | None = None
    """What its gradient weighs in a mean, if it is not the samples in `batches` and `again`."""
    gradient: str | None = None
    """The checksum of the worker's first gradient; None if that is of leased data, or is zero."""
    to_device: Seconds | None = None
    """Seconds that copies to the device took since the step before was told of: of this step's version, as a rule.

    Overlapped or not, as the device's events measured them. None where parameters are in memory.
    """
    from_device: Seconds | None = None
    """The same of copies from the device: of this step's gradient, as a rule."""
    edits: list[StateEdit] = msgspec.field(default_factory=list)
    """What the script has edited in the optimizer's state since the step before, where the store has that."""


class LeaseWanted(Message):
    """The loader wants its next batch."""

    epoch: Count
    blocks: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
    """Blocks of the epoch's order that are drawn here so far."""
    digest: str
    """The digest of them all."""
    ahead: Count = 0
    """Batches that the worker has been leased and has not begun with."""
    begins: tuple[Count, Count] | None = None
    """The batch that it begins with meanwhile, if it was leased that ahead of use."""


class BeginWanted(Message):
    """The worker begins with this batch, which it was leased ahead of use: may it?"""

    epoch: Count
    index: Count


class OrderDrawn(Message):
    """A block of the epoch's batches of sample ids, in order. See `training.orders`."""

    epoch: Count
    block: Count
    digest: str
    """The digest of the order up to the block's end."""
    order: list[list[Any]]
    last: bool
    samples: Count | None
    """Samples in the whole epoch; None if that is unknown."""


class GivenBack(Message):
    """These leases will not be used."""

    batches: Batches


class LookedAt(Message):
    """The script only looked at these batches, in a loop of that epoch: they are as if never leased."""

    epoch: Count
    batches: Batches
    ran_out: bool
    """Whether the loop was left nothing in the end: its last question, which was in vain, is as if never asked."""


class Joins(Message):
    """The script of a worker that came late makes its first step. Where data is leased, its first lease says so."""


class Handed(Message):
    """What the script keeps comes along, packed, for the worker that joins. Nothing comes if it can't be packed."""

    descriptors: ClassVar[int] = 1

    worker: Count
    joining: Count
    error: str | None


class Declined(Message):
    """No further step will be made."""

    epoch: Count = 0
    """The script is done with the epochs before this one."""
    paused: bool = False
    """Whether the worker only waits for the others, as it was told by `Pause`, and goes on after that."""


class EpochsOver(Message):
    """The script begins another loop over the loader after the last of its epochs."""


class SnapshotWanted(Message):
    """The newest version is wanted, outside of any step."""

    hold: bool
    """Whether to keep it in place of the one that this worker reads. Otherwise it is kept until `SnapshotTaken`."""


class SnapshotTaken(Message):
    """The snapshot is copied."""


class StateWanted(Message):
    """The optimizer's state is wanted."""


class AdoptionWanted(Message):
    """The script changed what it begins with, to values with this digest."""

    digest: str


class AdoptionWritten(Message):
    """The slot has the values. The optimizer's state comes along, if it was changed."""

    descriptors: ClassVar[int] = 1


class EditWanted(Message):
    """The script has changed the model's structure, the how manieth time. See `training.structure.Structure`."""

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
    """What comes along, packed, are this worker's values of what no step moves. See `store.store.OwnValues`."""

    descriptors: ClassVar[int] = 1

    number: Count
    """From 1."""


class FinishWanted(Message):
    """The script waits in `finish()`."""


class Stepped(Message):
    """The worker's replica has made that step."""

    step: Count
    not_finite: str | None
    """A parameter that is NaN or infinite now."""


class Kept(Message):
    """What the script keeps for that snapshot comes along, packed. Nothing comes if it can't be packed."""

    descriptors: ClassVar[int] = 1

    snapshot: Count
    step: Count
    """The last of the worker's steps that is in it."""
    epoch: Count
    """The epoch that the script is to go on in."""
    error: str | None


class ScalarsLogged(Message):
    """Scalars of a step, which is computed on that version."""

    step: Count
    version: Count
    scalars: Named


class Handles(Message):
    """This worker's script has handlers of its own for these signals, and for no others that are passed on."""

    signals: list[Count]


class Remarked(Message):
    """The user is to know what this worker does."""

    line: str


class Decided(Message):
    """The script has stepped a ReduceLROnPlateau by this metric, and this worker decides. See `PlateauMetrics`."""

    scheduler: Count
    metric: float


class StopWanted(Message):
    """The script has the run end, for all workers, at the next edges of their steps."""

    reason: str


class Agrees(Message):
    """The script calls `agree`, and waits for `Agreed`."""

    epoch: Count
    """The epoch that the script is to go on in."""
    nth: Count
    """How manieth call it is there, from 0."""
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


# the coordinator to a worker


class Start(Message):
    """Begin the script."""


class ForkStore(Message):
    """Fork the store's process. The region's and the store's socket's descriptors come along.

    So does that of a further socket, if a process is to be forked besides that evaluates while workers train.
    """

    descriptors: ClassVar[int] = 3

    slots: int
    areas: int
    sums: int
    """Areas for sums."""
    steps: bool
    """Whether the store steps the script's optimizer. Otherwise it subtracts what is pushed, if it makes versions."""
    begin: int
    """Where the range of each version begins that the store makes: one of `Offered.cuts`."""
    end: int
    """Where the range ends."""


class Resumed(msgspec.Struct, array_like=True):
    """Where a worker goes on, in a run that goes on from a snapshot. See `training.link.ResumedWorker`."""

    epoch: int
    buffers: int | None
    """None for a worker that joins: it gets them as it takes part."""
    kept: bool
    """Whether a descriptor of what its script kept comes along."""


class Begin(Message):
    """All workers are here. The region's descriptor comes along, and where workers average, that of a socket for it.

    In a run that goes on from a snapshot, so does that of what this worker's script kept, as the last one.
    """

    descriptors: ClassVar[int] = 3

    slots: int
    areas: int
    """Push areas of each worker. Where workers own replicas there are no slots: versions lie in areas, too."""
    holder: HolderKind
    """What shows parameters to the script."""
    pushes: Pushes
    """What goes into this worker's push areas."""
    place: int = 0
    """Where the parameters lie that it begins with: a slot, or an area if it owns a replica."""
    resumed: Resumed | None = None
    """What it goes on with, in a run that goes on from a snapshot, or that the worker joins."""
    joins: bool = False
    """Whether training has begun without this worker: it takes part from its first step on."""
    at: float = 0.0
    """Seconds since the run's start."""
    tells: bool = False
    """Whether `Accumulated` is to be told."""


class HandOver(Message):
    """Pack what the script keeps, and what its optimizer has, as you wait for a release: that worker joins."""

    worker: int
    joining: int
    """The number of that joining. The worker may die, and join anew before you have packed."""


class TakeUp(Message):
    """You take part from now on. What another worker has handed over comes along, if any has.

    All that the script has changed by now is gone. With `recorded` a version comes along, which the worker is to put
    into the area.
    """

    descriptors: ClassVar[int] = 1

    area: int | None = None
    """Where the replica lies that the worker owns."""
    recorded: bool = False


class Arrives(Message):
    """These bytes are there of the version that comes into that slot. The step that you wait for is computed on it."""

    slot: int
    ranges: list[tuple[Count, Count]]


class Compute(Message):
    """Compute this step on the version in that slot."""

    step: int
    version: int
    slot: int
    area: int
    """The push area for it."""
    ahead: list[tuple[int, float]]
    """(push area, scale) of updates that this worker pushed and the version lacks. The worker takes them off itself."""
    progress: Count = 0
    """How many batches the run has used as the step was released: applied, skipped or missed."""


class MakeStep(Message):
    """Step the replica from one area to another, which may be the same."""

    step: int
    source: int
    target: int
    gradients: int | None
    """The area with the mean gradients to step with; None: the script's own gradients."""
    scalars: list[dict[str, Any]] | None = None
    """The optimizer's hyperparameters for this step, where they are another worker's; None: the script's own."""


class Keep(Message):
    """Pack what the script keeps, for that snapshot, as it is after that step and before anything of the next."""

    snapshot: int
    step: int
    epoch: int
    """The first epoch that has batches left then. In an earlier one, what the script does once an epoch comes first."""


class PlateauMetrics(Message):
    """What the ReduceLROnPlateau of all workers are stepped by."""

    decides: bool
    """Whether this worker's metrics decide from here on."""
    metrics: list[tuple[Count, Count, float]]
    """(scheduler, which of its metrics, the metric)."""


class Pause(Message):
    """Not all workers have called `agree` yet. Say `Declined(paused=True)`, so that the others go on without you."""


class Behind(Message):
    """You go on, and others have stepped without you: await `TakeUp`, which brings a replica, before your next step."""


class Agreed(Message):
    """What that call of `agree` has come to."""

    epoch: Count
    nth: Count
    result: Value


class StopTraining(Message):
    """Nothing is left to do: no step, no batch."""

    at_once: bool
    """Whether the script is to end where it is. Otherwise its loops end, and what comes after them is done."""
    interrupted: bool = False
    """Whether the script is to see a KeyboardInterrupt at its next step or fetch."""


class Leased(Message):
    """This batch is yours."""

    epoch: int
    index: int
    ahead: bool = False
    """Whether another worker may be given it until you begin with it."""
    begun: bool = True
    """Whether you still have the batch that you begin with."""


class EpochOver(Message):
    """Nothing is left for you in this epoch."""

    for_now: bool = False
    """Ask again once you have begun with a batch that you have: you may be given one that another worker has ahead."""
    begun: bool = True
    """See `Leased`."""


class MayBegin(Message):
    """Whether you still have that batch."""

    begun: bool


class OrderWanted(Message):
    """You are the first worker that needs this block of the epoch's order: tell it, and ask once more."""

    epoch: int
    block: int


class SnapshotReady(Message):
    """The newest version is in that slot, which is kept for you."""

    slot: int


class OptimizerState(Message):
    """The optimizer's state comes along, packed."""

    descriptors: ClassVar[int] = 1


class AdoptInto(Message):
    """Put what you begin with into that slot."""

    slot: int


class AdoptedAlready(Message):
    """Another worker has put the same there."""


class TellEdit(Message):
    """You are the first with this change of the model's structure: send it, with the values of its new tensors."""

    number: int


class TakeEdit(Message):
    """Another worker was the first with this change. What it has sent comes along: take its values."""

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
    """The launcher has got this signal, for which the script has a handler. It comes to the process by `kill`."""

    number: Count


class Exit(Message):
    """End the process."""


ToWorker = (
    Start
    | ForkStore
    | Begin
    | Arrives
    | Compute
    | MakeStep
    | Keep
    | HandOver
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


# the coordinator to the process that evaluates while workers train, and back


ToEvaluator = Evaluate
FromEvaluator = Evaluated | EvaluationFailed


# the coordinator to the thread of a worker that averages, and back


class AverageShare(Message):
    """Make your share of a sum or an average of these areas. See `training.averages.AreaAverages.share`."""

    group: int
    members: list[int]
    """Those that make shares, in this order."""
    sources: list[int]
    target: int
    weights: list[float] | None
    of: int
    """Of how many members it is the average; 0: it is a sum."""
    begin: int
    """The first byte that is averaged."""
    end: int


class ShareAveraged(Message):
    """The share is made."""

    group: Count


ToAverager = AverageShare
FromAverager = ShareAveraged
