"""The optimizer's step in the worker: it makes what is to be subtracted, and the worker sees its own update at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.fabric.memory import Region
from paceline.training.layout import Places, PushArea
from paceline.training.parts import user_class
from paceline.training.shown import same_bytes


class OwnStep:
    """The worker's own parameters, in a memory of its own, and the optimizer's steps on them.

    The parameters are a version of the store's, less what this worker pushed and that version lacks.
    """

    def __init__(
        self, places: Places, optimizer: torch.optim.Optimizer, parameters: list[Tensor], rate_scale: float = 1.0
    ) -> None:
        """`rate_scale`: what the script's learning rates are multiplied by."""
        self.region = Region.create(places.layout.slot_bytes)
        self._values = [entry.over(self.region.memory) for entry in places.layout.moving]
        self._places = places
        self._optimizer = optimizer
        self._parameters = parameters
        self._slots: dict[int, list[Tensor]] = {}
        self._step = bare_step(user_class(optimizer), rate_scale)

    @torch.no_grad()
    def install(self, slot: int, lacking: Sequence[tuple[PushArea, float]]) -> None:
        """Take the version in that slot, less each of these updates times its scale. The version lacks them."""
        version = self._slots.get(slot)
        if version is None:
            version = self._slots[slot] = self._places.slot(slot)
        if not lacking:
            torch._foreach_copy_(self._values, version)
        source = version
        for pushed, scale in lacking:
            updates = zip(pushed.gradients, pushed.present.tolist(), strict=True)
            for value, from_here, (update, moved) in zip(self._values, source, updates, strict=True):
                if moved:
                    torch.sub(from_here, update, alpha=scale, out=value)
                elif value is not from_here:
                    value.copy_(from_here)
            source = self._values

    @torch.no_grad()
    def adopt(self) -> None:
        """Take what the script wrote into the parameters."""
        torch._foreach_copy_(self._values, self._parameters)

    def step(self, pushed: PushArea) -> list[bool]:
        """Step the script's own optimizer. All that it has subtracted goes into the push area.

        Return which parameters have something there. A parameter without a gradient has nothing unless it moved:
        a frozen one may be whole numbers, or NaN, which have no difference.
        """
        with torch.no_grad():
            torch._foreach_copy_(pushed.gradients, self._values)
        shown = [parameter.data for parameter in self._parameters]  # pages that the script must not write into
        for parameter, value in zip(self._parameters, self._values, strict=True):
            parameter.data = value
        try:
            with torch.no_grad():
                self._step(self._optimizer)
            for parameter, value in zip(self._parameters, self._values, strict=True):
                if parameter.data_ptr() != value.data_ptr():  # a user's own optimizer may replace what it steps
                    value.copy_(parameter.detach())
        finally:
            for parameter, view in zip(self._parameters, shown, strict=True):
                parameter.data = view
        moved = [
            parameter.grad is not None or not same_bytes(before, value)
            for parameter, before, value in zip(self._parameters, pushed.gradients, self._values, strict=True)
        ]
        with torch.no_grad():
            torch._foreach_sub_(
                [update for update, there in zip(pushed.gradients, moved, strict=True) if there],
                [value for value, there in zip(self._values, moved, strict=True) if there],
            )
        return moved


def bare_step(kind: type[torch.optim.Optimizer], rate_scale: float = 1.0) -> Callable[[torch.optim.Optimizer], Any]:
    """Return the class's step without torch's wrappers: hooks have run by then, and torch._dynamo takes seconds.

    The step uses `rate_scale` times the optimizer's learning rates, and leaves those as they are.
    """
    step: Callable[[torch.optim.Optimizer], Any] = kind.step
    if step.__module__.startswith("torch."):
        step = inspect.unwrap(step)
    elif getattr(step, "hooked", False):
        step = getattr(step, "__wrapped__", step)
    if rate_scale == 1.0:
        return step

    def scaled(optimizer: torch.optim.Optimizer) -> None:
        groups = [group for group in optimizer.param_groups if "lr" in group]
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * rate_scale
        try:
            step(optimizer)
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    return scaled
