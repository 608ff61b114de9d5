"""Reads gradients from what workers have pushed.

A push area has each parameter's gradient where a slot has the parameter, and flags that say which gradients there are.
`push` writes that form. Commits, their search for NaN, and averages of gradients all read it by
`GradientRange.gradient`. What is encoded is decoded to that form before, by `decode`: see `training.encoding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.training.layout import Entry, Layout, Places, PushArea


@dataclass(slots=True)  # a frozen one takes four times as long to make
class GradientReader:
    """A worker's contribution to a version or to a group's mean gradient, or the sum of several contributions."""

    worker: int | None
    """None: it is a sum."""
    weight: float
    start: int
    """The first byte of its push area."""
    present: list[int]
    """By parameter: whether it has a gradient."""

    @classmethod
    def of(cls, places: Places, number: int, area: PushArea, weight: float) -> GradientReader:
        """Return a reader of that push area, with its present flags."""
        return cls(places.worker_of(number), weight, area.start, area.present.tolist())


class GradientRange:
    """A range of parameters, whose gradient is read from one push area after another."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._views: dict[int, Tensor] = {}

    def gradient(self, memory: memoryview, pushed: GradientReader) -> Tensor:
        """Return the range's gradient in the shape of `entry`. It is the area's own memory."""
        found = self._views.get(pushed.start)
        if found is None:
            found = self._views[pushed.start] = self.entry.over(memory, pushed.start)
        return found


def decode(layout: Layout, memory: memoryview, pushed: Sequence[GradientReader], begin: int, end: int) -> None:
    """Decode these bytes of what was pushed, in a run with a codec, to where the gradients are read."""
    if (encoding := layout.encoding) is not None:
        for one in pushed:
            start = one.start + layout.encoded_offset
            encoding.decode(memory, start, memory, one.start, one.present, begin, end)


def add_up(terms: Sequence[tuple[Tensor, float]], total: Tensor) -> None:
    """Put Σ weight · gradient into `total`, in this order. Commits and averages both use this, so their bits agree."""
    torch.mul(*terms[0], out=total)
    for gradient, weight in terms[1:]:
        total.add_(gradient, alpha=weight)
