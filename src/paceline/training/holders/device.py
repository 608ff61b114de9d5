"""Holders of parameters on a device, such as a GPU: they keep their addresses, and values are copied there and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import torch
from torch import Tensor

from paceline.core.machine import Pushes
from paceline.ipc.messages.worker import MakeStep
from paceline.training.copier import Arena, Copier
from paceline.training.device_push import DeviceGradients, DeviceUpdates
from paceline.training.holders.own_step import SteppingHolder
from paceline.training.holders.replica import ReplicaHolder
from paceline.training.holders.window import WindowHolder
from paceline.training.layout import PushArea
from paceline.training.parameter_views import DeviceParameters
from paceline.training.push import NoPush
from paceline.training.training_context import TrainingContext


class _OnDevice:
    """What the three have in common."""

    _copier: Copier

    def settle(self) -> None:
        """See `Holder`."""
        self._copier.await_computed()

    def copied(self) -> tuple[float, float]:
        """See `Holder`."""
        return self._copier.seconds()


class DeviceWindow(_OnDevice, WindowHolder):
    """Shows versions of the store in copies. Pushes gradients."""

    def __init__(self, joined: TrainingContext, copier: Copier) -> None:
        self._copier = copier
        self._mirror = DeviceParameters(joined, copier, joined.places.layout.slot_bytes)
        super().__init__(joined, DeviceGradients(joined, copier), self._mirror)

    def bring(self, place: int, ranges: Sequence[tuple[int, int]]) -> None:
        """See `Holder`."""
        self._mirror.bring(self.joined.places.slot_start(place), ranges)


class DeviceOwnStep(_OnDevice, SteppingHolder):
    """Steps the worker's own parameters where they are, on the device. Pushes updates."""

    def __init__(self, joined: TrainingContext, copier: Copier) -> None:
        self._copier = copier
        self._mirror = DeviceParameters(joined, copier, joined.places.layout.slot_bytes)
        super().__init__(joined, DeviceUpdates(joined, copier), self._mirror, self._mirror.arena.views)

    @torch.no_grad()
    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`."""
        start = self.joined.places.slot_start(place)
        self._mirror.fetch(start)
        for area, scale in ahead:
            for value, update in zip(self._values, self._push.pushed(area), strict=True):
                if update is not None:
                    value.sub_(update, alpha=scale)
        self._mirror.shown(start, is_that_part=not ahead)


class DeviceReplica(_OnDevice, ReplicaHolder):
    """Owns a replica on the device, and has a copy of it in an area that all map, where groups average.

    Where gradients are averaged only this worker writes to its areas, so values that are on the device are not
    copied there again.
    """

    def __init__(self, joined: TrainingContext, copier: Copier, pushes: Pushes) -> None:
        self._copier = copier
        self._mirror = DeviceParameters(joined, copier, joined.places.layout.push_bytes)
        self._averages_parameters = pushes == "nothing"
        self._of_mean: Arena | None = None
        self._held = self._stepped_into = -1
        """The area that has what is on the device; the area that the last step has made, until it is shown."""
        push = NoPush() if self._averages_parameters else DeviceGradients(joined, copier)
        super().__init__(joined, push, self._mirror)

    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`."""
        if place == self._stepped_into and not self._averages_parameters:
            self._mirror.shown(self.joined.places.push_start(place))
        else:
            super().show(place)
        self._held, self._stepped_into = place, -1

    def _stepped_values(self, order: MakeStep) -> list[Tensor]:
        if order.source != self._held or self._averages_parameters:
            self._mirror.fetch(self.joined.places.push_start(order.source))
        return self._mirror.arena.views

    def _mean(self, number: int) -> list[Tensor | None]:
        if self._of_mean is None:
            self._of_mean = self._copier.arena()
        area = self._fit(number)
        self._copier.bring(self._of_mean, area.start)
        return [v if there else None for v, there in zip(self._of_mean.views, area.present.tolist(), strict=True)]

    def _keep(self, target: int) -> None:
        area = self._fit(target)
        self._copier.take(self._mirror.arena, area.start)
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

    def _fit(self, number: int) -> PushArea:
        area = self._area(number)
        self._copier.lock(area.start, area.stop - area.start)
        return area
