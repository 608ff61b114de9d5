"""Orders: what is to be done, one frozen class for each. A machine acts on the world by these alone.

Every order carries `why`: a code and its arguments, which `Spec.sentence` writes out when somebody
reads it (a tuple costs a tenth of a formatted string on the decision path). Orders that differ only
in `why` are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Why = tuple[str | int | float, ...]
"""(code, argument, …). The code is a key of the protocol's `Spec.reasons`."""

UNSAID: Why = ("unsaid",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Compute this step on that version."""

    worker: int
    step: int
    version: int
    parameters: Literal["pull", "held", "eager", "own"] = "pull"
    """How the worker comes by that version: by a fresh `pull` from the store, which begins now; it has `held` it
    since an earlier pull; it was pulled for this step ahead of time (`eager`), and all that the worker has pushed
    and that is not in it is to be added to it; or it is the worker's `own` replica as it is now, which may change
    while the worker computes on a copy."""
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Wait. `why` says for whom."""

    worker: int
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPush:
    """Transfer this step's update to the store now, multiplied by `scale`."""

    worker: int
    step: int
    scale: float = 1.0
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPull:
    """Transfer that version to the worker, without starting a step. Its end is `ParametersTaken`."""

    worker: int
    version: int
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyUpdate:
    """Make `version` from these updates, summed in this order, as one atomic change."""

    version: int
    contributions: tuple[tuple[int, int, float], ...]
    """(worker, step, weight). The weights of one version's gradients sum to 1; updates that the workers' own
    optimizers made (`Spec.optimizer`) weigh what is to be added of them."""
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropUpdate:
    """Never apply this step's update; or, of a replica that is gone, it is in no other one."""

    worker: int
    step: int
    samples: Literal["return", "missed"]
    """Its samples go back to be leased again, or are counted as missed."""
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOut:
    """This worker takes no part until the next `SwitchProtocol`: what data is set aside for it is anybody's."""

    worker: int
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustTraining:
    """Multiply what the versions ordered from now on are stepped with, where this worker's hyperparameters hold."""

    worker: int
    learning_rate_scale: float
    """Of the script's rates, whatever it was before."""
    momentum_scale: float = 1.0
    """The same of the script's `momentum`, where its optimizer has one. Its buffers stay as they are."""
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchProtocol:
    """From here on that protocol decides. Parameters, the optimizer's state and the processes stay as they are."""

    to: str
    """Its name."""
    parameters: tuple[tuple[str, str | int | float | bool | None], ...]
    """Its parameters' values, by name."""
    members: tuple[tuple[int, str, int], ...]
    """Who takes part, as in `TrainingBegan`."""
    since: float
    """`at` of the fact from which on the protocol before it was let run dry."""
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReplica:
    """Step the worker's own optimizer on its own replica."""

    worker: int
    step: int
    version: int
    """Of the replica, that this makes."""
    group: int | None = None
    """With the mean gradient that this group has made; None: with the worker's own gradient of that step."""
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """These average: into scratch, and all of them have it or none. Its end is `ReduceFinished` or `ReduceFailed`.

    Between this order and its end no other one touches its members' replicas. A member may compute meanwhile.
    """

    group: int
    """Its number, unique in the run."""
    members: tuple[int, ...]
    """Ascending: summed in this order."""
    what: Literal["parameters", "gradients"]
    """Of parameters, every member's replica becomes the mean; of gradients, the mean waits for `StepReplica`."""
    contributions: tuple[tuple[int, int, float], ...] = ()
    """Of gradients, as in `ApplyUpdate`."""
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReplica:
    """Give this joiner the source's replica and its optimizer's state, as they are now. Its end is `ReplicaCopied`.

    The source waits for nothing: whatever its replica becomes meanwhile is not copied. It is in no group that is at
    work. If it leaves in an orderly way, the copy goes on; if it dies, the copy is void, and another one is ordered.
    """

    source: int
    worker: int
    why: Why = field(default=UNSAID, compare=False)


Order = (
    Release
    | Hold
    | StartPush
    | StartPull
    | ApplyUpdate
    | DropUpdate
    | LeaveOut
    | AdjustTraining
    | SwitchProtocol
    | StepReplica
    | Reduce
    | CopyReplica
)
