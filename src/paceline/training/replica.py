"""A worker's own replica: its parameters in an area that all map, and the script's own optimizer that steps them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paceline.training.layout import Places, PushArea
from paceline.training.own_step import bare_step
from paceline.training.parts import finite, user_class


class Replica:
    """Steps from one area to another, or in place. Areas are numbered as `Places.push_area` numbers them."""

    def __init__(
        self,
        places: Places,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        parameters: list[Tensor],
        rate_scale: float = 1.0,
    ) -> None:
        """`rate_scale`: what the script's learning rates are multiplied by."""
        self._places = places
        self._model = model
        self._optimizer = optimizer
        self._parameters = parameters
        self._areas: dict[int, PushArea] = {}
        self._step = bare_step(user_class(optimizer), rate_scale)

    def step(self, source: int, target: int, gradients: int | None) -> str | None:
        """Step the script's own optimizer on the replica, from `source` into `target`, which may be the same area.

        It takes the mean gradients in the area `gradients`; if that is None, the script's own, which the script keeps
        in any case. Return the name of a parameter that is NaN or infinite after the step, if there is one. As in a
        commit, only parameters with a gradient count, since a frozen mask may be infinite.
        """
        values = self._area(target).gradients
        with torch.no_grad():
            if source != target:
                torch._foreach_copy_(values, self._area(source).gradients)
        shown = [parameter.data for parameter in self._parameters]  # pages that the script must not write into
        own = [parameter.grad for parameter in self._parameters]
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.data = value
        if gradients is not None:
            mean = self._area(gradients)
            every = zip(self._parameters, mean.gradients, mean.present.tolist(), strict=True)
            for parameter, of_mean, present in every:
                parameter.grad = of_mean if present else None
        stepped = [parameter.grad is not None for parameter in self._parameters]
        try:
            with torch.no_grad():
                self._step(self._optimizer)
            for parameter, value in zip(self._parameters, values, strict=True):
                if parameter.data_ptr() != value.data_ptr():  # a user's own optimizer may replace what it steps
                    value.copy_(parameter.detach())
        finally:
            for parameter, view, gradient in zip(self._parameters, shown, own, strict=True):
                parameter.data, parameter.grad = view, gradient
        return self._finish(self._area(target), stepped)

    @torch.no_grad()
    def _finish(self, area: PushArea, stepped: list[bool]) -> str | None:
        if area.buffers:
            buffers = dict(self._model.named_buffers())  # afresh: a forward may put new tensors in their places
            for name, view in area.buffers.items():
                view.copy_(buffers[name])
        for entry, value, looked_at in zip(self._places.layout.moving, area.gradients, stepped, strict=True):
            if looked_at and not finite(value) and not value.isfinite().all():
                return entry.name
        return None

    def _area(self, number: int) -> PushArea:
        if number not in self._areas:
            start = self._places.push_start(number)
            self._places.region.populate(start, start + self._places.layout.push_bytes)
            self._areas[number] = self._places.push_area(number)
        return self._areas[number]
