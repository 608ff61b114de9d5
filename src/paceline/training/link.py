"""What a worker's training needs from the run. The runtime's worker provides it. A script that runs alone has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader

from paceline.codecs import Codec
from paceline.core.agreements import Call, How, Value
from paceline.core.leases import Batch
from paceline.core.machine import Outer
from paceline.ipc.endpoint import Message
from paceline.ipc.memory import Region
from paceline.ipc.messages.worker import (
    Agreed,
    Arrives,
    Begin,
    Compute,
    EpochOver,
    GiveState,
    HandOver,
    Keep,
    Leased,
    MakeStep,
    MakeUpdate,
    Offered,
    PlateauMetrics,
    SwitchPart,
)
from paceline.store.snapshots import OfWorker
from paceline.store.store import Store
from paceline.training.averages import AreaAverages
from paceline.training.data.orders import Orders
from paceline.training.model.structure import Structure
from paceline.training.optim.schedules import FollowedRun, Plateau
from paceline.training.packing import Pieces

Asked = Arrives | MakeUpdate | Keep | HandOver | PlateauMetrics | GiveState
"""What a worker may be asked for at any time."""
Released = Compute | MakeStep | Asked
"""What a worker is told that waits for its release: to go on, or what is to be done first."""
Evaluate = Callable[[nn.Module], dict[str, float]]
Measure = Callable[[int, Path], dict[str, float]]
"""The metrics of a recorded version, which is in that file."""
MakeStore = Callable[[Region, int, int, int, Outer | None, tuple[int, int]], Store]
"""Make the store over a region, with so many slots, so many push areas for each worker, and so many for sums.

Then: the outer optimizer that makes versions; None: the script's own does. The last argument is the range of each
version that it makes. See `chunks.parts_of`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one worker brings to the start."""

    offered: Offered
    """What the run is told of it. `code` is added on the way."""
    make_store: MakeStore
    """It is called if this worker's process forks the store."""
    evaluate: Evaluate | None
    measure: Measure | None
    """The metrics of a recorded version, in a process that was forked now; None: there can be none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedWorker:
    """Where a worker goes on, in a run that goes on from a snapshot."""

    epoch: int
    """The epoch that its script goes on in. Those before it are past."""
    buffers: int | None
    """The push area that has the worker's buffers; None: they come with what was kept."""
    kept: OfWorker | None
    """What the script of this worker, or of another one, kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What training goes on with."""

    region: Region
    begin: Begin
    resumed: ResumedWorker | None
    """None unless the run goes on from a snapshot, or has begun without this worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenUp:
    """What a worker that joins takes part with, or one that goes on after others have stepped without it."""

    area: int | None
    """Where its replica lies, with its buffers, if it owns one."""
    file: int | None
    """The descriptor of the recorded version that it is to put there first."""
    kept: OfWorker | None
    """What another worker has handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """Another part of the protocol decides from now on."""

    order: SwitchPart
    kept: OfWorker | None
    """What the worker's optimizer goes on with, if the store's stepped before."""


class Baseline(FollowedRun, Protocol):
    """What takes the place of a run where a script is trained otherwise, to compare it with runs."""

    worker: int
    workers: int
    seed: int

    def refuse(self, message: str) -> object:
        """See `Link`."""

    plateaus: Sequence[Plateau]
    """Those that follow it."""

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any] | None,
        measure: Measure | None,
        evaluates: bool,
    ) -> tuple[Any, Any]:
        """Return the model and the loader that `prepare` returns."""

    def agree(self, how: How, value: Value) -> Value:
        """What the values of all workers come to."""


class Link(Protocol):
    """One worker's end of the run. Every call that waits ends when the run does."""

    worker: int
    workers: int
    seed: int
    step: int
    """The step that the worker was told to compute last."""
    rate_scale: float
    """The factor of the learning rates of an optimizer that runs here."""
    codec: Codec | None
    """What encodes this worker's pushes; None: they go as they are."""
    in_means: bool
    """Whether an update is the mean of several workers' gradients, at first: else each stands alone."""
    pieces: int
    """Into how many pieces the script's batches are cut, which are leased like batches; 1: they are left whole."""
    wants_work: bool
    """Whether the protocol needs to know how much work there is."""
    wants_metrics: bool
    """Whether this worker is to say what `evaluate` returns: one worker is enough, if there is a target to compare."""
    epochs: int | None
    """How many epochs the command line gives, which wins over what the script says."""
    was_stopped: bool
    """Whether this worker has been told that the run is stopped."""

    def start(self, offer: Offer) -> Started:
        """Offer the model, and wait for all workers. Raises ConfigError if they cannot train together."""

    def raise_if_interrupted(self) -> None:
        """Raise the run's Ctrl-C as a KeyboardInterrupt, once, and only in the thread that called `prepare`.

        Not while something is to be kept. If the run has said meanwhile that the script is to be left, leave it.
        """

    def is_stopped(self) -> bool:
        """Whether nothing is left to do: the run has come to its end, or is to."""

    def say(self, message: Message, packing: bytes | Pieces = b"") -> None:
        """Tell the run this, with what is packed. It is not answered, or the answer is waited for elsewhere."""

    def refuse(self, message: str) -> None:
        """Tell the run that the script asks for something that cannot be done. The run ends with this line."""

    def stretch(self, step: int, measured: float, batches: float = 1) -> None:
        """Wait until this step has taken as long as the scenario says, or the run stops. So far: `measured` seconds.

        `batches`: how many batches it is of that the script alone would have stepped with.
        """

    def take_up(self, announce: bool) -> TakenUp | None:
        """Take part from now on. Wait for what comes with that; None when nothing is left to do.

        `announce`: no lease has said that the script makes its first step.
        """

    def agree(self, call: Call, how: How, value: Value, pause: Callable[[], None]) -> Agreed:
        """Give this worker's value, and wait for all others'. Once the run is stopped this value alone counts.

        `pause` is called if the worker is to pause before: no other worker needs to wait for its step then.
        """

    def pauses(self, epoch: int) -> None:
        """This worker makes no step until the run says so. `epoch`: the script is done with those before."""

    def goes_on(self, step: int) -> bool:
        """Whether the worker goes on with that step, which its last release permits, as far as it has heard by now.

        False: the run is stopped, or the rest of the release was revoked.
        """

    def heard_switches(self) -> list[Switched]:
        """The switches that have come by now."""

    def released(self) -> Released | Switched | TakenUp | None:
        """Wait for the order to go on, or for what is to be done first; None when nothing is left to do."""

    def heard_to_keep(self) -> list[Keep]:
        """The orders to keep something that have come by now."""

    def remark(self, line: str) -> None:
        """Have the user told what this worker does."""

    def begin_to_average(self, averages: AreaAverages) -> None:
        """From now on make this worker's shares of its groups' averages, beside everything else."""

    def lease(
        self,
        epoch: int,
        orders: Orders,
        ahead: int = 0,
        most: int = 1,
        begins: Batch | None = None,
        *,
        joins: bool = False,
    ) -> Leased | EpochOver:
        """Ask for the next batch of this epoch. `orders` draws what is not known of it yet.

        `ahead`: batches that were leased and not begun with. `most`: how many there is a use for. `begins`: the one
        that the script begins with meanwhile, if it was leased ahead of use. `joins`: it makes one batch of them all.
        """

    def begin(self, batch: Batch) -> bool:
        """The script begins with a batch that was leased ahead of use. Return whether the worker still has it."""

    def adopt(self, digest: str) -> int | None:
        """The script changed what it begins with, to what has this digest. Every worker must have done the same.

        Return the slot to put it into, to be followed by `AdoptionWritten`; None if another worker has put it there.
        """

    def edit(self, structure: Structure, ties: bool, packing: Callable[[], bytes]) -> bytes | None:
        """The script has changed the model's structure to this. Every worker must do the same.

        `ties`: whether all names are as in `prepare`. `packing` packs the new tensors. Return what the worker has
        packed that was the first with this change; None if this worker is.
        """

    def optimizer_state(self) -> bytes:
        """The optimizer's state of the newest version, packed. Nothing: a switch has come that brings it."""

    def snapshot(self, *, hold: bool) -> int:
        """Return the newest version's slot, which is kept until `SnapshotTaken`.

        `hold`: until the process ends or the next release.
        """

    def finish(self) -> tuple[int | None, int]:
        """Wait for all workers. Return the descriptor of the file with the final parameters, which is to be closed.

        With it come the batches that all workers have used. None: the run was cut short.
        """
