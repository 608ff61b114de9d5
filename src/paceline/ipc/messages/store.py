"""What a host and its store's process say to each other."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from paceline.core.machine import Outer
from paceline.core.state_edits import StateEdit
from paceline.ipc.endpoint import Count, Message, Word

# a host to its store's process


class Commit(Message):
    """Make this version. See `store.store.Store.commit`."""

    version: int
    source: int
    target: int
    pushed: list[tuple[int, float]]
    """(push area, weight)."""
    scalars: list[dict[str, Any]] | None
    threads: int
    look: bool
    """Whether to look for NaN and infinity."""
    first: bool
    """Whether the slot is used for the first time."""
    tells: bool = False
    """Whether to send `Making` meanwhile."""
    summed: list[int] = msgspec.field(default_factory=list)
    """Push areas whose updates are in sums that are pushed."""
    norms: list[tuple[int, float]] | None = None
    """The norms of all mean gradients, if several hosts make ranges. See `TakeNorms`."""
    edits: list[StateEdit] = msgspec.field(default_factory=list)
    """Edits of the optimizer's state, to be made first."""
    early: int | None = None
    """The number of what was made of it by `MakeEarly`. None: nothing that counts."""


class MakeEarly(Message):
    """Make these bytes of the version that is likely to be ordered next. See `store.store.Store.make_early`."""

    number: int
    """A `Commit` that names it follows, or nothing of it counts."""
    source: int
    target: int
    pushed: list[tuple[int, float]]
    scalars: list[dict[str, Any]] | None
    begin: int
    end: int
    look: bool
    first: bool
    """These are as in `Commit`."""


class TakeNorms(Message):
    """Send the norms of this range's mean gradients, before the version is made. See `store.store.Store.norms`."""

    version: int
    target: int
    pushed: list[tuple[int, float]]
    threads: int
    first: bool
    """As in `Commit`, which follows."""


class MakeSum(Message):
    """Put the sum of these updates into that push area. See `store.store.Store.sum_up`."""

    number: int
    target: int
    terms: list[tuple[int, float]]
    """(push area, weight), in the order in which they are summed."""
    look: bool
    """Whether to look for NaN and infinity."""


class WorkersTold(Message):
    """What workers have sent for a version besides their updates."""

    edit: Count = 0
    """The number of the model's structure. See `worker.EditWanted`."""
    own: tuple[Count, Count] | None = None
    """(worker, number) of the version's `worker.OwnValues`."""


UNTOLD = WorkersTold()


class Record(Message):
    """Write the version in that slot to a file, with the buffers of these workers."""

    version: int
    slot: int
    file: str
    workers: list[int]
    buffers: str
    waits: bool
    """Whether other hosts make ranges of the version, so that the file is written after `GoOn`."""
    known: WorkersTold


class GoOn(Message):
    """The version for that file is whole in its slot: write it."""

    file: str


class RecordMean(Message):
    """Write the mean of these replicas, which is made in the target area, to a file."""

    version: int
    sources: list[int]
    target: int
    file: str
    buffers: str
    known: WorkersTold


class MakeBeginning(Message):
    """Make the version that another part of the protocol begins with in the target area, and write it to a file.

    It is the mean of these replicas, or one version of the store's. `BeginningMade` and `VersionRecorded` follow.
    """

    version: int
    sources: list[int]
    workers: list[int]
    """Whose replicas these are, or whose buffers the version gets."""
    of_store: bool
    target: int
    file: str
    buffers: str
    known: WorkersTold


class InstallAdopted(Message):
    """Use the adopted fixed part from now on, and the optimizer's state that comes along, if any."""

    descriptors: ClassVar[int] = 1


class Restructure(Message):
    """Use the model's structure in that file, and its first values of new tensors, for the versions that follow."""

    file: str


class TakeValues(Message):
    """Take these values, which that worker has sent as `worker.OwnValues`."""

    descriptors: ClassVar[int] = 1

    worker: int
    number: int


class SendWhole(Message):
    """Send, before the first commit, what the stores of the other ranges begin with."""


class Load(Message):
    """Begin with this state, which another store has sent as `WholeReady`."""

    descriptors: ClassVar[int] = 1


class ExtendRange(Message):
    """Make this range as well, from the next version on. Its share of the optimizer's state comes along."""

    descriptors: ClassVar[int] = 1
    begin: int
    end: int


class SendShare(Message):
    """Send what the optimizer has for your range, as of the newest version. Commits may follow at once."""

    number: int
    """The request's number, on all hosts. See `TakeShare`."""


class TakeShare(Message):
    """Take this share, which another range's store has sent as `ShareReady`, for the request of that number."""

    descriptors: ClassVar[int] = 1

    number: int
    error: str | None


class SendState(Message):
    """Send the optimizer's state, as of the newest version, for that worker. Commits may follow at once.

    None: for all workers, whose own optimizers go on with it. If some have given theirs, it is the mean of these.

    If shares of that number are to come, send it once all of them are here.
    """

    worker: int | None
    number: int = 0
    shares: int = 0


class TakeState(Message):
    """Take what a worker's optimizer has, which comes along. See `Become` and `SendState`."""

    descriptors: ClassVar[int] = 1


class Become(Message):
    """Make versions with this optimizer from now on. See `store.store.Store.become`."""

    outer: Outer | None
    """None: with the script's own, which goes on from the mean of what has been taken, if anything has."""


class KeepState(Message):
    """Write the newest version, which is in that slot, and the optimizer's state to a file. Commits may follow at once.

    There is no slot where workers own replicas. If shares of that number are to come, write the file once all of them
    are here. By then the whole version is in its slot.
    """

    slot: int | None
    file: str
    number: int = 0
    shares: int = 0
    workers: tuple[int, ...] = ()
    """Whose buffers count, as they have not died. None of them: all that there are."""


class KeepReplica(Message):
    """Write the replica in that area to a file. The area is kept until then."""

    area: int
    file: str


class KeepWorker(Message):
    """Write what a worker has packed, which comes along, to a file."""

    descriptors: ClassVar[int] = 1

    file: str


class Seal(Message):
    """Complete the snapshot in that folder: write its last file, and give the folder its name.

    Then remove these older ones.
    """

    folder: str
    state: bytes
    old: list[str]


class DropDraft(Message):
    """Remove the snapshot in that folder, as one of its files can't be made."""

    folder: str


class Restore(Message):
    """Go on from a version in that file, before the first commit. See `store.store.Store.restore`."""

    file: str
    slot: int | None
    areas: list[tuple[int, int]]
    """(worker, area) of each worker's buffers or replica."""
    replicas: list[tuple[int, str]]
    """(worker, file) of each replica."""
    buffers: str


class Quit(Message):
    """End the process."""


ToStore = (
    Commit
    | MakeEarly
    | TakeNorms
    | MakeSum
    | Record
    | GoOn
    | RecordMean
    | MakeBeginning
    | InstallAdopted
    | Restructure
    | TakeValues
    | SendWhole
    | Load
    | ExtendRange
    | SendShare
    | TakeShare
    | SendState
    | TakeState
    | Become
    | KeepState
    | KeepReplica
    | KeepWorker
    | Seal
    | DropDraft
    | Restore
    | Quit
)


class StoreReady(Message):
    """The store holds the first version."""

    process: int
    beginning: str
    """Its checksum."""


class Making(Message):
    """These bytes of that version are made. Others may still be to come."""

    version: int
    begin: int
    end: int


class MadeEarly(Message):
    """These bytes of what that number names are made, unless they can't be made early."""

    number: int
    begin: int
    end: int
    made: bool


class Summing(Message):
    """These bytes of that sum are made. Others may still be to come."""

    number: int
    begin: int
    end: int


class Summed(Message):
    """That sum is whole."""

    number: int
    not_finite: tuple[str, int | None] | None
    """As in `Committed`."""


class Norms(Message):
    """The norms of that version's mean gradients, of this range or of all ranges."""

    version: Count
    norms: list[tuple[Count, float]]
    """By the parameter's number."""


class Committed(Message):
    """That version is whole."""

    version: Count
    checksum: int
    """See `store.store.CommitResult`."""
    not_finite: tuple[Word, Count | None] | None
    """A parameter with a NaN or an infinity, and the worker whose gradient has it, if one has."""


class WholeReady(Message):
    """What the stores of the other ranges begin with comes along, packed, unless it can't be packed."""

    descriptors: ClassVar[int] = 1

    error: str | None


class ShareReady(Message):
    """What the optimizer has for the range comes along, packed, unless it can't be packed."""

    descriptors: ClassVar[int] = 1

    number: int
    error: str | None


class StateReady(Message):
    """The optimizer's state for that worker comes along, packed, unless it can't be packed."""

    descriptors: ClassVar[int] = 1

    worker: int | None
    """As in `SendState`."""
    error: str | None


class VersionRecorded(Message):
    """That version is on disk."""

    version: int
    sha256: str


class MeanRecorded(Message):
    """That mean is on disk."""

    version: int
    sha256: str
    distance: float
    """Root mean square of the replicas' Euclidean distances from it."""


class BeginningMade(Message):
    """The version that a part of the protocol begins with is made. It is still to be written."""

    version: int
    distance: float | None
    """As in `MeanRecorded`. None: it is a version of the store's."""


class FileKept(Message):
    """That file of a snapshot is on disk, or can't be written."""

    file: str
    sha256: str
    """Empty if it can't be written."""
    error: str | None


class Restored(Message):
    """What training goes on with is in its places, unless the files are of another model."""

    beginning: str
    """Its checksum."""
    refused: str | None


class Sealed(Message):
    """The snapshot is whole and on disk, unless there is an error."""

    error: str | None


class StoreFailed(Message):
    """The store cannot go on."""

    error: str


FromStore = (
    StoreReady
    | Making
    | MadeEarly
    | Summing
    | Summed
    | Norms
    | Committed
    | WholeReady
    | ShareReady
    | StateReady
    | VersionRecorded
    | MeanRecorded
    | BeginningMade
    | FileKept
    | Sealed
    | Restored
    | StoreFailed
)
