"""Versions on a device that can't map shared memory, such as a GPU: each one is copied there."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paceline.training.holders.window import Window
from paceline.training.joined import Joined
from paceline.training.push import GradientPush
from paceline.training.shown import Copied


class Device(Window):
    """Shows versions in copies. Parameters that are on the CPU all the same are in a window. Pushes gradients."""

    def __init__(self, joined: Joined, push: GradientPush, copied: Collection[int]) -> None:
        """`copied`: the numbers of the parameters on the device."""
        super().__init__(joined, push, apart=copied)
        layout = joined.places.layout
        self._copies = Copied(
            joined.places.region,
            [layout.moving[number] for number in copied],
            [joined.parameters[number] for number in copied],
        )

    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`."""
        super().show(place)
        self._copies.show(self.joined.places.slot_start(place))

    def changed(self) -> list[str]:
        """See `Holder`."""
        return [*super().changed(), *self._copies.changed()]
