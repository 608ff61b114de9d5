"""What workers have pushed, and how it is read as gradients.

A push area has each parameter's gradient where a slot has the parameter, and flags that say which of them are there.
`push` writes that form. Commits, their search for NaN and averages of gradients read it, all through `Range.gradient`.
So what lies there in another form, compressed say, is restored in that method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.training.layout import Entry, Places, PushArea


@dataclass(slots=True)  # a frozen one takes four times as long to make
class GradientReader:
    """One worker's contribution to a version, or to a group's mean gradient; or the sum of several."""

    worker: int | None
    """None: it is a sum."""
    weight: float
    start: int
    """The first byte of its push area."""
    present: list[int]
    """By parameter: whether it has a gradient."""

    @classmethod
    def of(cls, places: Places, number: int, area: PushArea, weight: float) -> GradientReader:
        """What lies in the push area of that number at this moment."""
        return cls(places.worker_of(number), weight, area.start, area.present.tolist())


class GradientRange:
    """A range of parameters, whose gradient is read from one push area after another."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._views: dict[int, Tensor] = {}

    def gradient(self, memory: memoryview, pushed: GradientReader) -> Tensor:
        """The range's gradient, in the form of `entry`: the area's own memory, as gradients are pushed as they are."""
        found = self._views.get(pushed.start)
        if found is None:
            found = self._views[pushed.start] = self.entry.over(memory, pushed.start)
        return found


def add_up(terms: Sequence[tuple[Tensor, float]], total: Tensor) -> None:
    """Put Σ weight · gradient into `total`, in the order given. Commits and averages do it alike, to the same bits."""
    torch.mul(*terms[0], out=total)
    for gradient, weight in terms[1:]:
        total.add_(gradient, alpha=weight)
