"""A worker's own replica: its parameters in an area that all map, and the script's own optimizer that steps them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from paceline.training.averages import SharedMemoryGroups
from paceline.training.holders.holder import Holder
from paceline.training.holders.stepping import Stepping
from paceline.training.joined import Joined
from paceline.training.layout import PushArea
from paceline.training.link import Step
from paceline.training.parts import finite
from paceline.training.push import GradientPush
from paceline.training.shown import Windowed


class Replica(Holder):
    """Shows the replica as it was at the last release, in a window over its area. Groups average beside it.

    A step goes from one area to another, or stays in one. Areas are numbered as `Places.push_area` numbers them.
    """

    keeps_state = True

    def __init__(self, joined: Joined, push: GradientPush) -> None:
        super().__init__(joined)
        places, layout = joined.places, joined.places.layout
        self._push = push
        self._window = Windowed(places.region, layout.push_bytes, layout.moving, joined.parameters)
        self._stepping = Stepping(joined)
        self._areas: dict[int, PushArea] = {}
        joined.link.begin_to_average(SharedMemoryGroups(places, joined.link.worker))

    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`. A replica lacks none of its worker's steps."""
        self._window.show(self.joined.places.push_start(place))

    def use(self, area: int) -> None:
        """See `Holder`."""
        self._push.use(area)

    def take(self, number: int) -> None:
        """See `Holder`."""
        self._push.take(number)

    def step(self) -> None:
        """See `Holder`. The replica is not stepped until the protocol says so."""
        self._push.fill()

    def step_replica(self, order: Step) -> str | None:
        """See `Holder`. Step the script's own optimizer on the replica.

        It takes the order's mean gradients, or the script's own, which the script keeps in any case. As in a commit,
        only parameters with a gradient are looked at for NaN, since a frozen mask may be infinite.
        """
        area, parameters = self._area(order.target), self.joined.parameters
        if order.source != order.target:
            with torch.no_grad():
                torch._foreach_copy_(area.gradients, self._area(order.source).gradients)
        own = [parameter.grad for parameter in parameters]
        if order.gradients is not None:
            mean = self._area(order.gradients)
            every = zip(parameters, mean.gradients, mean.present.tolist(), strict=True)
            for parameter, of_mean, present in every:
                parameter.grad = of_mean if present else None
        stepped = [parameter.grad is not None for parameter in parameters]
        try:
            self._stepping.step(area.gradients)
        finally:
            for parameter, gradient in zip(parameters, own, strict=True):
                parameter.grad = gradient
        self.joined.put_buffers(area)
        for entry, value, looked_at in zip(self.joined.places.layout.moving, area.gradients, stepped, strict=True):
            if looked_at and not finite(value) and not value.isfinite().all():
                return entry.name
        return None

    def changed(self) -> list[str]:
        """See `Holder`."""
        return self._window.changed()

    @torch.no_grad()
    def put(self, place: int) -> None:
        """See `Holder`. Buffers are a part of the replica."""
        area = self._area(place)
        for view, parameter in zip(area.gradients, self.joined.parameters, strict=True):
            view.copy_(parameter)
        self.joined.put_buffers(area)

    def adopt(self) -> None:
        """See `Holder`."""
        self._window.place_again()

    @contextmanager
    def newest(self) -> Iterator[dict[str, Tensor]]:
        """See `Holder`. A worker's newest version is its own replica."""
        shown = zip(self.joined.places.layout.moving, self.joined.parameters, strict=True)
        yield {entry.name: parameter.detach() for entry, parameter in shown}

    def let_go(self) -> None:
        """See `Holder`."""
        self._push.let_go()

    def hold_newest(self) -> bool:
        """See `Holder`."""
        return False

    def _area(self, number: int) -> PushArea:
        if number not in self._areas:
            start = self.joined.places.push_start(number)
            self.joined.places.region.populate(start, start + self.joined.places.layout.push_bytes)
            self._areas[number] = self.joined.places.push_area(number)
        return self._areas[number]
