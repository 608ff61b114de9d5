"""Orders: what to do, one class for each, whose objects never change. A machine acts on the world only by orders.

Every order carries `why`, a reason whose sentence is in the protocol's `Spec.reasons`. Orders that differ only in `why`
are equal.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from paceline.core.reasons import Why
from paceline.core.values import value

UNSAID: Why = ("unsaid",)


@value(frozen=True, slots=True, kw_only=True)
class Release:
    """Compute this step on that version, and go on with further own steps if `steps` says so."""

    worker: int
    step: int
    version: int
    parameters: Literal["pull", "held", "eager", "own"] = "pull"
    """How the worker gets that version.

    - `pull`: by a fresh pull from the store, which begins now.
    - `held`: the worker has held it since an earlier pull.
    - `eager`: it was pulled for this step ahead of time. The worker adds all its own updates that the version lacks.
    - `own`: it is the worker's own parameters as they are now. A replica may change while the worker computes on a
      copy. With a store they are `version` and the worker's own steps since, which go into one update: see `StartPush`.
    """
    steps: int = 1
    """How many steps it permits. With a store, those after the first are as by `own`, and wait for nothing. Each has
    its `GradientReady`. `EndRound` revokes those that are not made. After the last one their update is made."""
    overlap: int = 0
    """How many of the last steps go into the next update: this one is made before them, and is pushed meanwhile. If all
    of them do, this one was made before."""
    batches: int = 1
    """Of how many batches its gradient is the mean, as long as there is data; of how many pieces of batches, where they
    are cut: see `core.machine.Spec.pieces`."""
    progress: int = field(default=0, compare=False)
    """Batches that the run has used when this is carried out, which the coordinator fills in. Schedules follow it."""
    pace: int = field(default=0, compare=False)
    """How many further ones count as used with each of this worker's in its round. The coordinator fills this in."""
    cut: bool = field(default=False, compare=False)
    """Whether the coordinator permits only the first of these steps for now, as in a replay."""
    why: Why = field(default=UNSAID, compare=False)

    def at(self, progress: int, pace: int, cut: bool) -> Release:
        """Return it as it is carried out with these values. `dataclasses.replace` takes five times as long."""
        return Release(
            worker=self.worker,
            step=self.step,
            version=self.version,
            parameters=self.parameters,
            steps=1 if cut else self.steps,
            overlap=0 if cut else self.overlap,
            batches=self.batches,
            progress=progress,
            pace=pace,
            cut=cut,
            why=self.why,
        )

    @property
    def last(self) -> int:
        """The last step that it permits."""
        return self.step + self.steps - 1

    @property
    def begins(self) -> int | None:
        """The step after its first one that begins another update; None: there is none."""
        return self.last + 1 - self.overlap if 0 < self.overlap < self.steps else None

    @property
    def rest(self) -> Release | None:
        """What it permits beyond its first step; None: nothing."""
        if self.steps == 1:
            return None
        return Release(
            worker=self.worker,
            step=self.step + 1,
            version=self.version,
            parameters="own",
            steps=self.steps - 1,
            overlap=min(self.overlap, self.steps - 1),
            why=self.why,
        )


@value(frozen=True, slots=True, kw_only=True)
class EndRound:
    """Make no further step of the last release, from the next step's edge on.

    `StepDeclined` follows, with `revoked`, and then `WorkerResumed`. If the worker has made all steps of its release
    before it hears of this, nothing follows.
    """

    worker: int
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class Hold:
    """Wait. `why` says what for."""

    worker: int
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class StartPush:
    """Transfer this step's update to the store now, multiplied by `scale`."""

    worker: int
    step: int
    since: int | None = None
    """The first of several own steps that are all in this update, named by its last; None: it is of one step."""
    scale: float = 1.0
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class StartPull:
    """Transfer that version to the worker, without starting a step. `ParametersTaken` follows."""

    worker: int
    version: int
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class ApplyUpdate:
    """Make `version` from these updates, summed in this order, as one atomic change."""

    version: int
    contributions: tuple[tuple[int, int, float], ...]
    """(worker, step, weight). The weights of one version's gradients sum to 1. Where the workers' own optimizers made
    the updates (`Spec.optimizer`), a weight is the share of the update that is added."""
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class DropUpdate:
    """Never apply this step's update. Where workers own replicas, it was only in a lost replica."""

    worker: int
    step: int
    since: int | None = None
    """As in `StartPush`: the update is dropped with all its steps."""
    samples: Literal["return", "missed"]
    """Its samples go back to be leased again, or are counted as missed."""
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class LeaveOut:
    """Leave this worker out until the next `SwitchProtocol`. Data set aside for it is free for the others."""

    worker: int
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class AdjustTraining:
    """Scale this worker's hyperparameters in the versions ordered from now on."""

    worker: int
    learning_rate_scale: float
    """The factor of the script's rates. It replaces any earlier factor."""
    momentum_scale: float = 1.0
    """The factor of the script's `momentum`, if its optimizer has one. Momentum buffers stay as they are."""
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class ShareOut:
    """From now on a round's batches are shared out like this. The user is told; `Release.batches` has each share."""

    shares: tuple[tuple[int, int], ...]
    """(worker, batches), ascending."""
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class SwitchProtocol:
    """Let that protocol decide from now on. Processes stay as they are, and so do parameters in a store.

    Replicas begin with a new version, and end as one: their mean. The optimizer's state goes to where that protocol
    steps it. Later orders wait for all that.
    """

    to: str
    """Its name."""
    parameters: tuple[tuple[str, str | int | float | bool | None], ...]
    """Its parameters' values, by name."""
    members: tuple[tuple[int, str, int], ...]
    """The workers that take part, as in `TrainingBegan`."""
    since: float
    """`at` of the fact after which the previous protocol began no step."""
    version: int | None = None
    """The version that this makes, if either protocol has replicas. Else it makes none."""
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class StepReplica:
    """Step the worker's own optimizer on its own replica."""

    worker: int
    step: int
    version: int
    """The replica's version that this step makes."""
    group: int | None = None
    """The group whose mean gradient to step with; None: the worker's own gradient of that step."""
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Let these members average, into scratch memory, so that either all get the mean or none.

    `ReduceFinished` or `ReduceFailed` follows. Until then no other order touches the members' replicas. A member may
    compute meanwhile.
    """

    group: int
    """Its number, unique in the run."""
    members: tuple[int, ...]
    """Ascending: summed in this order."""
    what: Literal["parameters", "gradients"]
    """The mean of parameters becomes every member's replica. The mean of gradients waits for `StepReplica`."""
    contributions: tuple[tuple[int, int, float], ...] = ()
    """For gradients, as in `ApplyUpdate`."""
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class CopyReplica:
    """Give this worker the source's replica and its optimizer's state, as they are now. `ReplicaCopied` follows.

    The worker has joined, or it has resumed and keeps its own replica until then. The source does not wait, and later
    changes of its replica are not copied. It is in no group at work. If it leaves in good order, the copy goes on. If
    it dies, the copy is void. Then another copy is ordered, or the worker goes on from its own replica.
    """

    source: int
    worker: int
    why: Why = field(default=UNSAID, compare=False)


@value(frozen=True, slots=True, kw_only=True)
class SetAlarm:
    """Ring after that time: `AlarmRang` follows. No order takes it back."""

    number: int
    """No other alarm of the segment has it."""
    seconds: float
    """From the fact that this order follows from."""
    why: Why = field(default=UNSAID, compare=False)


def steps_of(order: StartPush | DropUpdate) -> range:
    """Return the steps that are in this update."""
    return range(order.step if order.since is None else order.since, order.step + 1)


Order = (
    Release
    | EndRound
    | Hold
    | StartPush
    | StartPull
    | ApplyUpdate
    | DropUpdate
    | LeaveOut
    | AdjustTraining
    | ShareOut
    | SwitchProtocol
    | StepReplica
    | Reduce
    | CopyReplica
    | SetAlarm
)
