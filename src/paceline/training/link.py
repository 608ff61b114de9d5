"""What a worker's training needs from the world: the runtime's worker provides it, a script alone has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from paceline.core.leases import Batch
from paceline.fabric.groups import GroupAverage
from paceline.fabric.memory import Region
from paceline.training.layout import Layout
from paceline.training.store import Scalars, Store

Evaluate = Callable[[nn.Module], dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one worker brings to the start."""

    layout: Layout
    state_bytes: int
    """An estimate of what the optimizer's state will take in the store."""
    make_store: Callable[[Region, int, int], Store]
    """The store over a region with so many slots, and push areas for each worker, should this worker's process be
    the one to fork it."""
    streams: bool
    """Whether the loader is each worker's own stream, which nothing is leased of."""
    scalars: Scalars
    loads: bool
    """Whether there is a loader, so that samples can be counted."""
    epoch_samples: int | None
    """Samples in an epoch, if somebody wants to know how much work there is."""
    epochs: int | None
    buffers: str | None
    shards: str | None
    evaluate: Evaluate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The memory that training goes on in."""

    region: Region
    slots: int
    areas: int
    """Push areas of each worker. Where it owns a replica there are no slots: versions lie in areas, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A step whose gradient lies in the push area. Times in seconds, `began` on the monotonic clock."""

    step: int
    version: int
    batches: tuple[Batch, ...] | None
    """The batches in it; None without a loader."""
    skipped: tuple[Batch, ...]
    """Batches of steps that the script skipped since the last."""
    scalars: Scalars | None
    """The optimizer's hyperparameters, if they changed since the last push."""
    began: float
    compute: float
    push: float
    other: float
    waited: float
    pulled: float
    """Waiting for this step's release and installing its version, after the step before."""
    gradient: str | None = None
    """The checksum of the worker's first gradient, unless it is of data that was leased, or is zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Compute this step on the version in that slot."""

    step: int
    version: int
    slot: int
    area: int
    """The push area for it."""
    ahead: tuple[tuple[int, float], ...]
    """(push area, scale) of what this worker pushed and the version lacks: it is to see so many times that at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Step the replica from one area into another, which may be the same."""

    step: int
    source: int
    target: int
    gradients: int | None
    """The area with the mean gradients to take; None: the script's own."""


class Link(Protocol):
    """One worker's end. Every call that waits ends when the run does."""

    worker: int
    workers: int
    seed: int
    steps_here: bool
    """Whether the optimizer runs in the worker, and what it would subtract is pushed; else gradients are."""
    replicas: bool
    """Whether every worker owns a replica, which groups average."""
    pushes: bool
    """Whether gradients, or what the optimizer here would subtract, go into push areas."""
    rate_scale: float
    """What an optimizer that runs here has its learning rates multiplied by."""
    wants_work: bool
    """Whether the protocol needs to know how much work there is."""
    epochs: int | None
    """How many the command line says that there will be; it wins over what the script says."""

    def start(self, offer: Offer) -> Started:
        """Offer the model; wait for everybody. Raises ConfigError if they cannot train together."""

    def refuse(self, message: str) -> None:
        """Tell that the script asks for something that cannot be done: the run ends with this line."""

    def stretched(self, step: int, measured: float) -> float:
        """Seconds that this step is to take in all, of a step that took `measured`: the scenario's say."""

    def pause(self, seconds: float) -> None:
        """Wait so long, or until the run stops."""

    def pushed(self, finished: Finished) -> None:
        """Announce a step's gradient."""

    def released(self) -> Go | Step | None:
        """Wait for the order to go on, or to step the replica first; None when nothing is left to do."""

    def stepped(self, step: int, not_finite: str | None) -> None:
        """The replica has made that step. The parameter that is NaN or infinite after it, if one is."""

    def begin_to_average(self, groups: GroupAverage) -> None:
        """From now on make this worker's shares of the averages of its groups, beside everything else."""

    def lease(self, epoch: int, digest: str, order: Callable[[], list[list[Any]]]) -> Batch | None:
        """The next batch of this epoch; None when nothing is left of it. `order` is asked for if it is new."""

    def give_back(self, batches: tuple[Batch, ...]) -> None:
        """These were fetched and will not be used."""

    def done_computing(self) -> None:
        """No further step will be made: nobody needs to wait for this worker."""

    def adopt(self, digest: str) -> int | None:
        """The script changed what it begins with, to what has this digest: every worker is to have done the same.

        The slot to put it into, to be followed by `adopted`; None if another worker has.
        """

    def adopted(self, state: bytes) -> None:
        """The slot has what all begin with; so does the optimizer, unless `state` is empty."""

    def hold(self) -> int:
        """The newest version's slot, which is kept until the process ends or the next release."""

    def optimizer_state(self) -> bytes:
        """The optimizer's state of the newest version, packed."""

    def snapshot(self) -> tuple[int, int]:
        """The newest version and its slot, which is kept until `snapshot_taken`."""

    def snapshot_taken(self, version: int) -> None:
        """The snapshot is copied."""

    def finish(self) -> Path | None:
        """Wait for all workers; the file with the final parameters. None if the run was cut short."""

    def log(self, step: int, scalars: dict[str, float]) -> None:
        """Record scalars of this step."""
