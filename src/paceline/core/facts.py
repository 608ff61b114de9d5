"""Facts: what has happened, one class for each, whose objects never change. A machine knows the world only by facts.

`at` is in seconds since the run's start, by the coordinator's monotonic clock or the simulator's. A step number belongs
to one worker and is never used twice. A version counts the updates applied to the parameters in the store. The initial
parameters are the version that `TrainingBegan` names. Where every worker owns a replica, a version counts the changes
of that replica: its own steps, and the averages of its groups.
"""

from __future__ import annotations

from typing import Any

from paceline.core.values import value


@value(frozen=True, slots=True, kw_only=True)
class TrainingBegan:
    """A fresh machine starts, with these members at this version. Nothing is outstanding.

    A run that is resumed has several of these in its ledger. What follows each is a segment of the run.
    """

    members: tuple[tuple[int, str, int], ...]
    """(worker, host, its next unused step number), in ascending order of worker."""
    version: int
    at: float
    work: int | None = None
    """The whole run's samples, or steps where samples are not counted; None if that is unknown."""
    seed: int = 0
    """Seeds a machine that draws at random."""
    done: int = 0
    """How much of `work` earlier segments have done."""
    memory: Any = None
    """What the machine of the segment before has kept by `Spec.memory`, as plain data; else None."""
    part: int | None = None
    """In a segment after the first: the number of the protocol's part that had decided until then."""
    groups: int = 0
    """Groups that other parts of a protocol have ordered: the next one's number, which is unique in the run."""


@value(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """A worker has joined, at any time. `step` is its next unused number."""

    worker: int
    host: str
    step: int
    at: float


@value(frozen=True, slots=True, kw_only=True)
class WorkerLeft:
    """A worker has left, at any time. What it had not fully pushed will never arrive."""

    worker: int
    reason: str
    """`finished`, `died`, `stopped` as the run was, or `drained`: its host has left in good order."""
    at: float


@value(frozen=True, slots=True, kw_only=True)
class GradientReady:
    """A released step's gradient is computed, on this version."""

    worker: int
    step: int
    version: int
    samples: int | None
    """Samples in it that were in no step before, or that come again as the script repeats batches.

    None when the script draws its own batches.
    """
    at: float
    weight: float | None = None
    """Its weight in a mean, if that is not `samples`: a second step of a batch weighs as much as the first one."""

    @property
    def weighs(self) -> float | None:
        """Its weight in a mean; None if that is unknown."""
        return self.weight if self.weight is not None else self.samples or None


@value(frozen=True, slots=True, kw_only=True)
class StepDeclined:
    """A released step has no data left to work on. The worker computes no more, unless it resumes."""

    worker: int
    step: int
    at: float
    paused: bool = False
    """The worker waits for the others in `agree`. `WorkerResumed` follows, unless it leaves first."""
    revoked: bool = False
    """It has data, but its round was ended by `EndRound` before this step. `paused` is true as well."""


@value(frozen=True, slots=True, kw_only=True)
class UpdateArrived:
    """All bytes of this step's update are at the store."""

    worker: int
    step: int
    at: float
    sum: int | None = None
    """The number of the sum in which it arrived, with other updates of its host; None: it came by itself."""


@value(frozen=True, slots=True, kw_only=True)
class ParametersTaken:
    """A pull has finished: the worker has this whole version."""

    worker: int
    version: int
    at: float


@value(frozen=True, slots=True, kw_only=True)
class ReduceFinished:
    """A group has averaged, and no member has died meanwhile.

    If it averaged parameters, every member's replica is now the mean. If it averaged gradients, their mean is ready.
    """

    group: int
    at: float


@value(frozen=True, slots=True, kw_only=True)
class ReduceFailed:
    """A group could not average, and no member's replica has changed. `WorkerLeft` of the lost members comes first."""

    group: int
    lost: tuple[int, ...]
    at: float


@value(frozen=True, slots=True, kw_only=True)
class ReplicaCopied:
    """A joiner, or a worker that has resumed, has a copy of the source's replica, as it was when that was ordered.

    The source may have left in good order meanwhile. If it has died, this fact never comes.
    """

    source: int
    worker: int
    at: float


@value(frozen=True, slots=True, kw_only=True)
class WorkerResumed:
    """A worker that has declined a step goes on, and has to be released again.

    The parameters of the step that it declined had come. A push of an earlier step, or a version that was sent ahead,
    may still be on its way.
    """

    worker: int
    at: float


@value(frozen=True, slots=True, kw_only=True)
class AlarmRang:
    """The time of `SetAlarm` is over. It rings once, also if nothing waits for it by then.

    Alarms end with their segment: none is set as a resumed run begins.
    """

    number: int
    at: float


Fact = (
    TrainingBegan
    | WorkerJoined
    | WorkerLeft
    | GradientReady
    | StepDeclined
    | UpdateArrived
    | ParametersTaken
    | ReduceFinished
    | ReduceFailed
    | ReplicaCopied
    | WorkerResumed
    | AlarmRang
)
