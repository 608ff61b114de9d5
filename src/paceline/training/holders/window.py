"""Versions in a window: the script computes gradients on them, and the store's optimizer makes the next version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paceline.training.holders.stored import StoredHolder
from paceline.training.parameter_views import ParameterViews, Windowed
from paceline.training.push import GradientPush
from paceline.training.training_context import TrainingContext


class WindowHolder(StoredHolder):
    """Shows versions through a window that moves from slot to slot, so a pull copies no byte. Pushes gradients."""

    keeps_state = False
    _push: GradientPush

    def __init__(self, joined: TrainingContext, push: GradientPush, shown: ParameterViews | None = None) -> None:
        """`shown`: what shows versions; None: a window."""
        layout = joined.places.layout
        window = Windowed(joined.places.region, layout.slot_bytes, layout.moving, joined.parameters)
        super().__init__(joined, push, shown or window)
        self._place = 0

    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`. `ahead` is empty: the worker pushes gradients, and makes no updates."""
        self._place = place
        self._shown.show(self.joined.places.slot_start(place))

    @contextmanager
    def showing(self, slot: int) -> Iterator[None]:
        """See `StoredHolder`."""
        before = self._place
        if slot == before:
            yield
            return
        self.show(slot)
        try:
            yield
        finally:
            self.show(before)

    def take(self, number: int) -> None:
        """See `Holder`. A large gradient is pushed while autograd goes on."""
        self._push.take(number)

    def step(self) -> None:
        """See `Holder`."""
        self._push.fill()
