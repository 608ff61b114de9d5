"""What a host reports of its workers and of itself, one type for each event.

A host reports to whoever gave it `Report`. Those that are messages go over the wire as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from paceline.core.facts import Fact
from paceline.core.orders import ApplyUpdate
from paceline.ipc import messages
from paceline.ipc.endpoint import Count, Message
from paceline.records.times import FetchTimes, TransferTimes

# --- of workers, where they are --------------------------------------------------------------------


class Attached(msgspec.Struct, frozen=True, array_like=True):
    """What comes along with a message. Whoever hears the message fetches that before, by its name."""

    name: Annotated[str, msgspec.Meta(max_length=200)]
    size: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
    """Its bytes."""


class WorkerSaid(Message):
    """A worker has said this. What it says of items is done by now."""

    worker: Count
    message: messages.worker.FromWorker | None
    """None: the message itself comes along, as it is long."""
    attached: Attached | None = None


class WorkerEnded(Message):
    """The worker's process has ended with this status. All that it had said is heard."""

    worker: Count
    status: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]


class AwaitsPlace(Message):
    """The worker's step begins once one of its last updates is needed no more."""

    worker: Count


class Computes(Message):
    """The worker was told to compute its step, and not at the moment at which it took the version."""

    worker: Count


@dataclass(frozen=True, slots=True)
class ComputesTaken:
    """The worker was told to compute its step on the version that it took at the same moment, as a fact says."""

    worker: int


@dataclass(frozen=True, slots=True)
class AwaitsVersion:
    """The worker's step begins once that version is made."""

    worker: int
    version: int


WorkerEvent = Fact | WorkerSaid | WorkerEnded | AwaitsPlace | AwaitsVersion | Computes | ComputesTaken
"""What is reported of workers, each thing once. A fact is for the machine."""


# --- of the host ----------------------------------------------------------------------------------


class Averaged(Message):
    """All of that average's mean is there."""

    number: Count


class GivenUp(Message):
    """Nothing is written there any more for that average, which counts for nothing."""

    number: Count


@dataclass(frozen=True, slots=True)
class Prepared:
    """The process that computes for the host is there."""

    beginning: str
    """The checksum of what training begins with."""


@dataclass(frozen=True, slots=True)
class StandInsCame:
    """The script has come to `prepare` on a host without workers, or a host is lost: `Host.gathers` may say more."""


@dataclass(frozen=True, slots=True)
class HostDrains:
    """That host was asked to leave, and wants to do so in good order."""

    host: str


@dataclass(frozen=True, slots=True)
class Transferred:
    """A network has moved so many bytes."""

    worker: int
    direction: str
    """`push`, `pull` or `average`."""
    number: int
    """Of the step, the version or the group."""
    size: int
    times: TransferTimes


@dataclass(frozen=True, slots=True)
class VersionBrought:
    """The worker has a version that its host has fetched in this time."""

    worker: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class GroupAveraged:
    """A group of these workers has averaged in this time."""

    workers: Sequence[int]
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class StatesGiven:
    """The store's optimizer goes on with the mean of what these workers' optimizers had, at a switch."""

    workers: list[int]


@dataclass(frozen=True, slots=True)
class SwitchMade:
    """A switch has made the version that the next part of the protocol begins with."""

    version: int
    workers: list[int]
    """Whose replicas it is the mean of, or whose buffers it has."""
    members: Sequence[int]
    """The workers that take part in the next part."""
    distance: float | None
    """The replicas' distance from it; None: it is a version of the store's."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The worker, which joins, gets what that one's script keeps. None: nobody lived to hand it over."""

    worker: int
    source: int | None


@dataclass(frozen=True, slots=True)
class VersionCommitted:
    """A version is made, at that moment. The checksum is the sum of those of its ranges."""

    version: int
    checksum: int
    at: float


@dataclass(frozen=True, slots=True)
class VersionNotFinite:
    """The version made by that order has a NaN or an infinity: from this worker, if it is known. Reported once."""

    order: ApplyUpdate
    parameter: str
    worker: int | None


@dataclass(frozen=True, slots=True)
class VersionWritten:
    """The version is on disk."""

    version: int
    sha256: str
    distance: float | None
    """That of the replicas from it, if it is their mean."""


@dataclass(frozen=True, slots=True)
class MeanVoid:
    """There will be no such mean: these workers' places have no whole replica.

    Their processes ended in a step, or have yet to put one there.
    """

    version: int
    workers: Sequence[int]


@dataclass(frozen=True, slots=True)
class EvaluatorLost:
    """The process that evaluates versions while workers train has gone, or says what it was not asked."""


@dataclass(frozen=True, slots=True)
class SnapshotFileWritten:
    """That file of the present snapshot is on disk."""

    file: str
    sha256: str


@dataclass(frozen=True, slots=True)
class SnapshotFileFailed:
    """That file of that snapshot, the present one or the next, can't be made."""

    snapshot: int
    file: str
    why: str


@dataclass(frozen=True, slots=True)
class SnapshotSealed:
    """The present snapshot is whole, and on disk."""


@dataclass(frozen=True, slots=True)
class Impossible:
    """A script asks for what can't be done."""

    why: str


@dataclass(frozen=True, slots=True)
class ProcessLost:
    """The process that computes for the host has gone. What it was ordered will not be done."""

    why: str
    host: bool = False
    """Whether it is gone because a whole host is."""


HostEvent = (
    WorkerEvent
    | FetchTimes
    | Prepared
    | StandInsCame
    | HostDrains
    | Transferred
    | VersionBrought
    | GroupAveraged
    | HandedOver
    | StatesGiven
    | SwitchMade
    | VersionCommitted
    | VersionNotFinite
    | VersionWritten
    | MeanVoid
    | messages.worker.Evaluated
    | messages.worker.EvaluationFailed
    | EvaluatorLost
    | SnapshotFileWritten
    | SnapshotFileFailed
    | SnapshotSealed
    | Impossible
    | ProcessLost
)
"""What is reported of a run, each thing once. `FetchTimes`: a host has fetched an item from another one.

`Evaluated` and `EvaluationFailed` by themselves come from the process that evaluates versions while workers train.
"""
Report = Callable[[HostEvent], None]
"""Takes an event. It may call back at once, also within a command that a timer or a signal has led to.

Otherwise nothing is done of it before the present command to the host has returned.
"""
