"""A worker's own replica: its parameters in an area that all map, and the script's own optimizer that steps them.

On a device the replica has a copy there, which the optimizer steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import compress

import torch
from torch import Tensor

from paceline.ipc.messages.worker import BEGINS, MakeStep
from paceline.store.chunks import finite
from paceline.training.averages import AreaAverages
from paceline.training.device.copier import Arena, Copier
from paceline.training.holders.encoded_push import EncodedPush
from paceline.training.holders.holder import Holder
from paceline.training.holders.parameter_views import DeviceParameters, ParameterViews
from paceline.training.holders.push import GradientPush, NoPush
from paceline.training.holders.stepping import Stepping
from paceline.training.layout import PushArea
from paceline.training.training_context import TrainingContext


class ReplicaHolder(Holder):
    """Shows the replica as it was at the last release, in a window over its area. Groups average beside it.

    A step goes from one area to another, or stays in one. Areas are numbered as `Places.push_area` numbers them.
    """

    keeps_state = has_buffers = True
    _push: GradientPush

    def __init__(self, context: TrainingContext, push: GradientPush, shown: ParameterViews) -> None:
        super().__init__(context, push, shown)
        self._stepping = Stepping(context)
        self._areas: dict[int, PushArea] = {}
        context.link.begin_to_average(AreaAverages(context.places))

    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`. A replica lacks none of its worker's steps."""
        self._shown.show(self.context.places.push_start(place))

    def take(self, number: int) -> None:
        """See `Holder`."""
        self._push.take(number)

    def step(self) -> None:
        """See `Holder`. The replica is not stepped until the protocol says so."""
        self._push.fill()

    def step_replica(self, order: MakeStep) -> str | None:
        """See `Holder`. Step the script's own optimizer on the replica, unless this only begins it.

        It takes the order's mean gradients, or the script's own, as others would see them. The script keeps its own in
        any case. As in a commit, only parameters with a gradient are looked at for NaN: a frozen mask may be infinite.
        """
        parameters, values = self.context.parameters, self._stepped_values(order)
        if order.step == BEGINS:
            self._keep(order.target)
            return None
        own = [parameter.grad for parameter in parameters]
        gradients = own
        if order.gradients is not None:
            gradients = self._mean(order.gradients)
        elif isinstance(self._push, EncodedPush):
            gradients = self._push.seen()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        stepped = [parameter.grad is not None for parameter in parameters]
        try:
            self._stepping.step(values, order.scalars)
        finally:
            for parameter, gradient in zip(parameters, own, strict=True):
                parameter.grad = gradient
        self._keep(order.target)
        looked_at = [number for number, there in enumerate(stepped) if there]
        found = self._not_finite([values[number] for number in looked_at])
        return None if found is None else self.context.places.layout.moving[looked_at[found]].name

    @torch.no_grad()
    def put(self, place: int, buffers: Mapping[str, Tensor]) -> None:
        """See `Holder`."""
        area = self._area(place)
        for view, parameter in zip(area.gradients, self.context.parameters, strict=True):
            view.copy_(parameter)
        for name, buffer in area.buffers.items():
            buffer.copy_(buffers[name])

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
        area = self._area(number)
        return _there(area.gradients, area)

    def _keep(self, target: int) -> None:
        """Put the stepped replica into that area, with the buffers."""
        self.context.put_buffers(self._area(target))

    def _not_finite(self, values: list[Tensor]) -> int | None:
        """Return the place of the first of these with a NaN or an infinity."""
        every = enumerate(values)
        return next((place for place, value in every if not finite(value) and not value.isfinite().all()), None)

    def _area(self, number: int) -> PushArea:
        if number not in self._areas:
            start = self.context.places.push_start(number)
            self.context.places.region.populate(start, start + self.context.places.layout.encoded_offset)
            self._areas[number] = self.context.places.push_area(number)
        return self._areas[number]


class DeviceReplica(ReplicaHolder):
    """Owns a replica on the device, and has a copy of it in an area that all map, where groups average.

    Where gradients are averaged only this worker writes to its areas, so values that are on the device are not
    copied there again.
    """

    _shown: DeviceParameters

    def __init__(self, context: TrainingContext, push: GradientPush, shown: DeviceParameters, copier: Copier) -> None:
        super().__init__(context, push, shown)
        self._copier = copier
        self._averages_parameters = isinstance(push, NoPush)
        self._of_mean: Arena | None = None
        self._held = self._stepped_into = -1
        """The area that has what is on the device; the area that the last step has made, until it is shown."""

    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`."""
        if place == self._stepped_into and not self._averages_parameters:
            self._shown.shown(self.context.places.push_start(place))
        else:
            super().show(place)
        self._held, self._stepped_into = place, -1

    def _stepped_values(self, order: MakeStep) -> list[Tensor]:
        if order.source != self._held or self._averages_parameters:
            self._shown.version(self.context.places.push_start(order.source))
        return self._shown.values

    def _mean(self, number: int) -> list[Tensor | None]:
        if self._of_mean is None:
            self._of_mean = self._copier.arena()
        area = self._area(number)
        self._copier.lock(area.start, area.stop - area.start)
        self._copier.bring(self._of_mean, area.start)
        return _there(self._of_mean.views, area)

    def _keep(self, target: int) -> None:
        area = self._area(target)
        self._shown.keep(area.start)
        self._copier.take_buffers(area)
        self._copier.await_taken()
        self._held = self._stepped_into = target

    def _not_finite(self, values: list[Tensor]) -> int | None:
        """See `ReplicaHolder`. The device is asked once about all that is there, and some may be in memory."""
        found: list[int] = []
        for device in {value.device for value in values}:
            places = [place for place, value in enumerate(values) if value.device == device and value.numel()]
            if places:
                norms = torch._foreach_norm([values[place] for place in places], float("inf"))
                lost = torch.stack([norm.double() for norm in norms]).isfinite().logical_not().tolist()
                found += compress(places, lost)
        return min(found, default=None)


def _there(gradients: Sequence[Tensor], area: PushArea) -> list[Tensor | None]:
    """Return those of these gradients that the area has, and None in the place of each other one."""
    return [one if there else None for one, there in zip(gradients, area.present.tolist(), strict=True)]
