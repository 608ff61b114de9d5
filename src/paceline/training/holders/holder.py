"""The contract of holders, which show parameters to a script."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import torch
from torch import Tensor

from paceline.errors import RunFailed
from paceline.ipc.messages.worker import MakeStep
from paceline.training.holders.parameter_views import ParameterViews
from paceline.training.holders.push import Push
from paceline.training.training_context import TrainingContext


class Holder(ABC):
    """Shows parameters to the script, and makes of its gradients what the protocol asks for.

    It begins with `show`: the first version is in place 0, unless the run goes on from a snapshot. A place is a slot of
    the store; for a replica, an area. In a step `take` is called with each gradient, and `step` once they are all
    there. Then come `step_replica`, if the worker owns a replica, and `install` and `use` for the next step. After the
    last step come `let_go` and `hold_newest`.
    """

    keeps_state: ClassVar[bool]
    """Whether the optimizer's state is in the script's own object, rather than with the store."""
    has_buffers: ClassVar[bool]
    """Whether buffers go with the parameters, as a part of a replica."""

    def __init__(self, context: TrainingContext, push: Push, shown: ParameterViews) -> None:
        self.context = context
        self._push = push
        self._shown = shown

    def install(self, place: int, ahead: Sequence[tuple[int, float]] = (), version: int | None = None) -> None:
        """Show the version in that place, less these (push area, scale) of updates that it lacks.

        `version`: its number, if the worker computes on it. Then some holders keep a part of what they show.
        """
        # A graph over the former version must not be used: autograd refuses it, as after any optimizer's step.
        torch.autograd.graph.increment_version(self.context.parameters)
        self.show(place, ahead)

    @abstractmethod
    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """Put that version, less those updates, into the parameters."""

    def bring(self, place: int, ranges: Sequence[tuple[int, int]]) -> None:  # noqa: B027  # memory is there at once
        """Copy these bytes of the version that is shown next to a device, while the rest is made.

        The script waits for it, and does not look at its parameters meanwhile.
        """

    def use(self, area: int) -> None:
        """Use that push area for the step that begins."""
        self._push.use(area)

    @abstractmethod
    def take(self, number: int) -> None:
        """Take that parameter's gradient, which autograd has just made."""

    def settle(self) -> None:
        """Wait for the device to compute the script's parameters and gradients."""
        self._shown.settle()

    def copied(self) -> tuple[float, float] | None:
        """Return the seconds of copies to a device and from it since the last call, when all are done."""
        return self._shown.copied()

    @abstractmethod
    def step(self) -> None:
        """Put into the push area all that this step pushes."""

    def go_on(self) -> None:
        """Show the worker's own parameters as its last step has left them."""
        raise RunFailed(f"worker {self.context.link.worker} was told to go on with its own parameters, and has none")

    def make_update(self) -> bool:
        """Put into the push area what own steps have subtracted. Return False if there are none."""
        return False

    def own(self) -> tuple[int, list[Tensor]] | None:
        """Return a version's number, and parameters that go on from that and are nowhere else; None: there are none."""
        return None

    def go_on_from(self, version: int, own: list[Tensor]) -> None:  # noqa: B027  # another part of a protocol had them
        """Show these, which `own` has returned, with what has changed of the version that is shown since that one."""

    def step_replica(self, order: MakeStep) -> str | None:
        """Step the replica. Return the name of a parameter that is NaN or infinite after it, if there is one."""
        raise RunFailed(f"worker {self.context.link.worker} was told to step a replica, and owns none")

    def changed(self) -> list[str]:
        """Return the names of parameters that the script has written into."""
        return self._shown.changed()

    @abstractmethod
    def put(self, place: int, buffers: Mapping[str, Tensor]) -> None:
        """Put what the script has made of the parameters into that place, for all workers to begin with.

        So go `buffers`, by name, where they are a part of it.
        """

    def adopt(self) -> None:
        """Show what the script has made of the parameters as the first version: all workers begin with it."""
        self._shown.place_again()

    @property
    def has_steps_of_its_own(self) -> bool:
        """Whether what is shown has own steps that are in no version yet, nor on their way into one."""
        return False

    @abstractmethod
    def showing_newest(self) -> AbstractContextManager[None]:
        """Show the newest version inside the block, and then what was shown before. The script has changed nothing."""

    def let_go(self) -> None:
        """Push no more. The script gets gradients of its own, as the store may still read the last push."""
        self._push.let_go()

    @abstractmethod
    def hold_newest(self) -> bool:
        """Show the newest version, and go on showing it: nothing moves this worker's parameters any more.

        Return whether it is shown. A replica stays as it is, since the newest version is the mean of all replicas.
        """
