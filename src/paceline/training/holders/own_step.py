"""Workers that step the optimizer themselves: they push updates, and see their own at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress

import torch
from torch import Tensor

from paceline.ipc.memory import Region
from paceline.training.holders.stepping import Stepping
from paceline.training.holders.stored import StoredHolder
from paceline.training.parameter_views import ParameterViews, Windowed
from paceline.training.push import UpdatePush
from paceline.training.tensor_bits import same_bits
from paceline.training.training_context import TrainingContext


class SteppingHolder(StoredHolder):
    """Pushes updates: what the worker's own optimizer subtracts from its own parameters.

    These are a version of the store's, less what this worker pushed and that version lacks.
    """

    keeps_state = True
    _push: UpdatePush

    def __init__(self, joined: TrainingContext, push: UpdatePush, shown: ParameterViews, values: list[Tensor]) -> None:
        """`values`: the parameters that the optimizer steps."""
        super().__init__(joined, push, shown)
        self._values = values
        self._stepping = Stepping(joined)

    @contextmanager
    def showing(self, slot: int) -> Iterator[None]:
        """See `StoredHolder`. Keep a copy of what is shown: its updates may be gone by then."""
        with torch.no_grad():
            before = [value.clone() for value in self._values]
            torch._foreach_copy_(self._values, self.joined.places.slot(slot))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._values, before)

    def take(self, number: int) -> None:
        """See `Holder`. The step uses the gradient where it is."""

    def step(self) -> None:
        """See `Holder`. The script's own optimizer steps. All that it has subtracted goes into the push area.

        A parameter without a gradient has nothing there unless it moved: a frozen one may be whole numbers, or NaN,
        which have no difference.
        """
        updates = self._push.room()
        with torch.no_grad():
            torch._foreach_copy_(updates, self._values)
        self._stepping.step(self._values)
        moved = [
            parameter.grad is not None or not same_bits(before, value)
            for parameter, before, value in zip(self.joined.parameters, updates, self._values, strict=True)
        ]
        there = list(compress(zip(updates, self._values, strict=True), moved))
        if there:  # else the script has discarded all of its gradients
            with torch.no_grad():
                torch._foreach_sub_([update for update, _ in there], [value for _, value in there])
        self._push.made(moved)


class OwnStep(SteppingHolder):
    """Shows the worker's own parameters, in a memory of its own, through a window."""

    def __init__(self, joined: TrainingContext, push: UpdatePush) -> None:
        layout = joined.places.layout
        region = Region.create(layout.slot_bytes)
        window = Windowed(region, layout.slot_bytes, layout.moving, joined.parameters)
        super().__init__(joined, push, window, [entry.over(region.memory) for entry in layout.moving])
        self._slots: dict[int, list[Tensor]] = {}

    @torch.no_grad()
    def show(self, place: int, ahead: Sequence[tuple[int, float]] = ()) -> None:
        """See `Holder`."""
        version = self._slots.get(place)
        if version is None:
            version = self._slots[place] = self.joined.places.slot(place)
        if not ahead:
            torch._foreach_copy_(self._values, version)
        source = version
        for area, scale in ahead:
            for value, from_here, update in zip(self._values, source, self._push.pushed(area), strict=True):
                if update is not None:
                    torch.sub(from_here, update, alpha=scale, out=value)
                elif value is not from_here:
                    value.copy_(from_here)
            source = self._values
        self._shown.show(0)

    @torch.no_grad()
    def adopt(self) -> None:
        """See `Holder`."""
        super().adopt()
        torch._foreach_copy_(self._values, self.joined.parameters)
        self._shown.show(0)
