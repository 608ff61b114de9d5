"""A worker's own replica: its parameters in an area that all map, and the script's own optimizer that steps them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from paceline.ipc.messages.worker import MakeStep
from paceline.store.chunks import finite
from paceline.training.averages import AreaAverages
from paceline.training.holders.holder import Holder
from paceline.training.holders.stepping import Stepping
from paceline.training.layout import PushArea
from paceline.training.parameter_views import ParameterViews, Windowed
from paceline.training.push import GradientPush
from paceline.training.training_context import TrainingContext


class ReplicaHolder(Holder):
    """Shows the replica as it was at the last release, in a window over its area. Groups average beside it.

    A step goes from one area to another, or stays in one. Areas are numbered as `Places.push_area` numbers them.
    """

    keeps_state = True
    _push: GradientPush

    def __init__(self, joined: TrainingContext, push: GradientPush, shown: ParameterViews | None = None) -> None:
        """`shown`: what shows the replica; None: a window."""
        places, layout = joined.places, joined.places.layout
        super().__init__(
            joined, push, shown or Windowed(places.region, layout.push_bytes, layout.moving, joined.parameters)
        )
        self._stepping = Stepping(joined)
        self._areas: dict[int, PushArea] = {}
        joined.link.begin_to_average(AreaAverages(places))

    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`. A replica lacks none of its worker's steps."""
        self._shown.show(self.joined.places.push_start(place))

    def take(self, number: int) -> None:
        """See `Holder`."""
        self._push.take(number)

    def step(self) -> None:
        """See `Holder`. The replica is not stepped until the protocol says so."""
        self._push.fill()

    def step_replica(self, order: MakeStep) -> str | None:
        """See `Holder`. Step the script's own optimizer on the replica.

        It takes the order's mean gradients, or the script's own, which the script keeps in any case. As in a commit,
        only parameters with a gradient are looked at for NaN, since a frozen mask may be infinite.
        """
        parameters, values = self.joined.parameters, self._stepped_values(order)
        own = [parameter.grad for parameter in parameters]
        if order.gradients is not None:
            for parameter, of_mean in zip(parameters, self._mean(order.gradients), strict=True):
                parameter.grad = of_mean
        stepped = [parameter.grad is not None for parameter in parameters]
        try:
            self._stepping.step(values, order.scalars)
        finally:
            for parameter, gradient in zip(parameters, own, strict=True):
                parameter.grad = gradient
        self._keep(order.target)
        looked_at = [number for number, there in enumerate(stepped) if there]
        found = self._not_finite([values[number] for number in looked_at])
        return None if found is None else self.joined.places.layout.moving[looked_at[found]].name

    @torch.no_grad()
    def put(self, place: int) -> None:
        """See `Holder`. Buffers are a part of the replica."""
        area = self._area(place)
        for view, parameter in zip(area.gradients, self.joined.parameters, strict=True):
            view.copy_(parameter)
        self.joined.put_buffers(area)

    def showing_newest(self) -> AbstractContextManager[None]:
        """See `Holder`. A worker's newest version is its own replica, which is shown."""
        return nullcontext()

    def hold_newest(self) -> bool:
        """See `Holder`."""
        return False

    @torch.no_grad()
    def _stepped_values(self, order: MakeStep) -> list[Tensor]:
        """Return the parameters to step, with the values that they have before it."""
        area = self._area(order.target)
        if order.source != order.target:
            torch._foreach_copy_(area.gradients, self._area(order.source).gradients)
        return area.gradients

    def _mean(self, number: int) -> list[Tensor | None]:
        """The gradients in that area."""
        mean = self._area(number)
        return [
            of_mean if there else None for of_mean, there in zip(mean.gradients, mean.present.tolist(), strict=True)
        ]

    def _keep(self, target: int) -> None:
        """Put the stepped replica into that area, with the buffers."""
        self.joined.put_buffers(self._area(target))

    def _not_finite(self, values: list[Tensor]) -> int | None:
        """Return the place of the first of these with a NaN or an infinity."""
        every = enumerate(values)
        return next((place for place, value in every if not finite(value) and not value.isfinite().all()), None)

    def _area(self, number: int) -> PushArea:
        if number not in self._areas:
            start = self.joined.places.push_start(number)
            self.joined.places.region.populate(start, start + self.joined.places.layout.push_bytes)
            self._areas[number] = self.joined.places.push_area(number)
        return self._areas[number]
