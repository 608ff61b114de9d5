"""Gradients that the run is told of while autograd makes others, so that other hosts have them before the step's end.

A script may change its gradients between backward and step: clip them, unscale them, or add those of another backward.
So what was told is compared with what the script has at the step, byte by byte, however it was changed. If anything
differs, all that was told is withdrawn, and the gradients are pushed as ever. It is likely to differ in the next step,
too, so no more is told then.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.ipc.messages.worker import Accumulated, Withdrawn
from paceline.store.chunks import TELLS
from paceline.training.buckets import Filling, buckets_of
from paceline.training.layout import Layout
from paceline.training.push import AreaPush
from paceline.training.training_context import TrainingContext

BUCKET = TELLS
"""Bytes that are told of at once."""
WORTH = 4 << 20
"""Bytes of a model, of which less is not told: it crosses a link of 1 Gbit/s in 34 ms."""
CHANGED = "changes gradients between backward() and step(), so they leave its host only once a step is computed"


class ToldPush(AreaPush):
    """Tells of gradients as autograd makes them. The area's bytes stay as they were told of until the step.

    So the script keeps gradients in memory of its own, which takes as much as the model.
    """

    def __init__(self, joined: TrainingContext) -> None:
        super().__init__(joined)
        self._link = joined.link
        self._filling = Filling(buckets_of(joined.places.layout, BUCKET))
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
        if (bucket := self._filling.came(number)) is not None:
            self._link.say(Accumulated(self._link.step, bucket.begin, bucket.end))

    def fill(self) -> None:
        """See `GradientPush`. What was told and has changed is written anew."""
        if self._told and not all(map(self._holds, self._told)):
            self._tells = False
            self._told.clear()
            self._link.say(Withdrawn(self._link.step))
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
        self._filling.empty()

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
