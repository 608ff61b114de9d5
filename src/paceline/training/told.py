"""Gradients that the run is told of while autograd makes others, so that other hosts have them before the step's end.

A script may change its gradients between backward and step: clip them, unscale them, or add those of another backward.
So what was told is compared with what the script has at the step, byte by byte, however it was changed. If anything
differs, all that was told is withdrawn, and the gradients are pushed as ever. It is likely to differ in the next step,
too, so no more is told then.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.training.joined import Joined
from paceline.training.layout import Layout
from paceline.training.parts import TELLS
from paceline.training.push import AreaPush

BUCKET = TELLS
"""Bytes that are told of at once."""
WORTH = 4 << 20
"""Bytes of a model, of which less is not told: it crosses a link of 1 Gbit/s in 34 ms."""
CHANGED = "changes gradients between backward() and step(), so they leave its host only once a step is computed"


@dataclass(slots=True)
class _Bucket:
    """Gradients that lie side by side in a push area, and are told of together."""

    begin: int
    end: int
    size: int
    """How many they are."""
    lacking: int
    """How many of them the area lacks."""


class ToldPush(AreaPush):
    """Tells of gradients as autograd makes them. The area's bytes stay as they were told of until the step.

    So the script keeps gradients in memory of its own, which takes as much as the model.
    """

    def __init__(self, joined: Joined) -> None:
        super().__init__(joined)
        self._link = joined.link
        self._bucket_of = _buckets(joined.places.layout)
        self._told: set[int] = set()
        """Parameters whose gradient of this step is in the area, and was told of, or is about to be."""
        self._tells = True

    @staticmethod
    def pays(layout: Layout) -> bool:
        """Whether the model is large enough."""
        return layout.flags_offset > WORTH

    def take(self, number: int) -> None:
        """See `GradientPush`."""
        if number in self._told:  # a further backward has added to it
            self._tells = False
        if not self._tells:
            if number not in self._told:
                super().take(number)
            return
        if self.put(number) is None:
            return
        self._told.add(number)
        bucket = self._bucket_of[number]
        bucket.lacking -= 1
        if not bucket.lacking:
            self._link.accumulated(bucket.begin, bucket.end)

    def fill(self) -> None:
        """See `GradientPush`. What was told and has changed is written anew."""
        if self._told and not all(map(self._holds, self._told)):
            self._tells = False
            self._told.clear()
            self._link.withdraw()
            if self._link.worker == 0:  # the others would say the same
                self._link.remark(CHANGED)
        self.holding = self._told
        super().fill()
        self._begin_step()

    def let_go(self) -> None:
        """See `Push`."""
        super().let_go()
        self._begin_step()

    def _begin_step(self) -> None:
        self._told.clear()
        for bucket in self._bucket_of:
            bucket.lacking = bucket.size

    def _holds(self, number: int) -> bool:
        """Whether the script's gradient is what lies in the area. One that it has discarded is not read there."""
        gradient, view = self._parameters[number].grad, self._gradients[number]
        return gradient is None or same_bits(gradient, view)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are alike to the bit. The other one is dense; NaN equals NaN, and -0 is not 0."""
    if one.layout != torch.strided or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.is_conj() or one.is_neg():  # its memory has other values
        return False
    return one.shape == other.shape and one.stride() == other.stride() and torch.equal(_words(one), _words(other))


def _words(tensor: Tensor) -> Tensor:
    """A dense tensor's memory, eight bytes at a time where that can be: a third of the time."""
    octets = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    return octets if octets.numel() % 8 or octets.storage_offset() % 8 else octets.view(torch.int64)


def _buckets(layout: Layout) -> list[_Bucket]:
    """Return the bucket of each parameter, in the optimizer's order."""
    order = sorted(range(len(layout.moving)), key=lambda number: layout.moving[number].offset)
    of: dict[int, _Bucket] = {}
    bucket = _Bucket(0, 0, 0, 0)
    for place, number in enumerate(order):
        if bucket.end - bucket.begin >= BUCKET:
            bucket = _Bucket(bucket.end, bucket.end, 0, 0)
        last = place == len(order) - 1
        bucket.end = layout.flags_offset if last else layout.moving[order[place + 1]].offset
        bucket.size, bucket.lacking = bucket.size + 1, bucket.lacking + 1
        of[number] = bucket
    return [of[number] for number in range(len(order))]
