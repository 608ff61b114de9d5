"""Pushes from a device: gradients as autograd makes them, or updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress

import torch
from torch import Tensor

from paceline.core.rests import Rests
from paceline.training.device.copier import Arena, Copier
from paceline.training.holders.buckets import Bucket, Filling
from paceline.training.layout import PushArea
from paceline.training.tensor_bits import same_bits
from paceline.training.training_context import TrainingContext

COMPARED = 64 << 20
"""Bytes of gradients that are compared at once: their differences take as much memory on the device."""
CHANGED = "changes gradients between backward() and step(), so they leave its device only once a step is computed"


class DevicePush:
    """Fills the push area in use from a device. See `push.Push`."""

    def __init__(self, context: TrainingContext, copier: Copier) -> None:
        self._context = context
        self._copier = copier
        self._areas: dict[int, PushArea] = {}
        self._number = -1

    def use(self, number: int) -> None:
        """See `Push`."""
        self._number = number
        if number not in self._areas:
            area = self._areas[number] = self._context.places.push_area(number)
            self._context.places.region.populate(area.start, area.stop)
            self._copier.lock(area.start, area.stop - area.start)

    def let_go(self) -> None:
        """See `Push`."""

    @property
    def _area(self) -> PushArea:
        return self._areas[self._number]

    def _finish(self, present: list[bool]) -> None:
        """Say which parameters have something in the area, add the buffers, and wait until all of it is there."""
        if present != self._area.present.tolist():
            self._area.present.copy_(torch.tensor(present, dtype=torch.uint8, device="cpu"))
        self._copier.take_buffers(self._area)
        self._copier.await_taken()


class DeviceUpdates(DevicePush):
    """Pushes updates. Keeps the last one of each area, as the worker may have to subtract it from a version."""

    def __init__(self, context: TrainingContext, copier: Copier) -> None:
        super().__init__(context, copier)
        self._arenas: dict[int, Arena] = {}

    def room(self) -> list[Tensor]:
        """See `UpdatePush`."""
        if self._number not in self._arenas:
            self._arenas[self._number] = self._copier.arena()
        return self._arenas[self._number].views

    def made(self, present: list[bool], step: int) -> None:
        """See `UpdatePush`."""
        self._copier.take(self._arenas[self._number], self._area.start)
        self._finish(present)

    def pushed(self, number: int) -> list[Tensor | None]:
        """See `UpdatePush`."""
        views, present = self._arenas[number].views, self._areas[number].present.tolist()
        return [view if there else None for view, there in zip(views, present, strict=True)]


class DeviceGradients(DevicePush):
    """Pushes gradients: a bucket leaves once autograd has made all that is in it, the rest leaves at the step.

    What leaves early is a copy, as the script may change its gradients until the step: clip them, unscale them, or add
    those of another backward. So the copy is compared with them at the step, and what differs leaves once more.
    """

    def __init__(self, context: TrainingContext, copier: Copier) -> None:
        super().__init__(context, copier)
        self._copies = copier.arena()
        self._buckets = copier.buckets()
        trained = {number for number in copier.on_device if context.places.layout.moving[number].trains}
        self._filling = Filling(self._buckets, trained)
        self._copied: set[int] = set()
        """Parameters whose gradient was copied in this step."""
        self._backwards: dict[int, int] = {}
        """By parameter: how many gradients autograd has made in this step."""
        self._last = 1
        """The backward of a step whose gradients leave early: the last one, by the step before."""
        self._rests = Rests()
        """Of gradients that leave early, as the script changes them."""
        self._remarked = False

    def take(self, number: int) -> None:
        """See `GradientPush`. A script's CUDA graph calls this only while it is captured, and the step takes all."""
        if self._copier.captures():
            return
        made = self._backwards[number] = self._backwards.get(number, 0) + 1
        gradient = self._context.parameters[number].grad
        if self._rests or made != self._last or number not in self._copier.on_device:
            return
        if gradient is None or gradient.layout != torch.strided or gradient.requires_grad:
            return
        with torch.no_grad():
            self._copies.views[number].copy_(gradient)
        self._copied.add(number)
        self._copier.follow()  # each branch of a forward may have been computed on a stream of its own
        if (bucket := self._filling.came(number)) is not None:
            self._copier.take(self._copies, self._area.start, [bucket])

    @torch.no_grad()
    def fill(self) -> None:
        """See `GradientPush`."""
        gradients = [parameter.grad for parameter in self._context.parameters]
        for entry, gradient in zip(self._context.places.layout.moving, gradients, strict=True):
            if gradient is not None and gradient.layout != torch.strided:
                self._context.refuse_sparse(entry)
        for bucket in self._lacking(gradients):
            there = [(self._copies.views[n], one) for n in bucket.numbers if (one := gradients[n]) is not None]
            if not there:  # the script has discarded them all
                continue
            torch._foreach_copy_([view for view, _ in there], [gradient for _, gradient in there])
            self._copier.take(self._copies, self._area.start, [bucket])
        self._copier.take_others(gradients, self._area.start)
        self._finish([gradient is not None for gradient in gradients])
        self._last = max(self._backwards.values(), default=1)
        self._begin_step()

    def let_go(self) -> None:
        """See `Push`."""
        self._copier.await_taken()
        self._begin_step()

    def _begin_step(self) -> None:
        self._backwards.clear()
        self._copied.clear()
        self._filling.empty()

    def _lacking(self, gradients: Sequence[Tensor | None]) -> list[Bucket]:
        """The buckets that have not left, or that lack a gradient as it is now."""
        changed = set(self._changed(gradients))
        self._plan_rest(by_script=any(self._backwards[number] == self._last for number in changed))
        there = {number for number in self._copier.on_device if gradients[number] is not None}
        wrong = {number for number in there if number in changed or number not in self._copied}
        return [  # one that is on its way leaves after that, so what lies in the area in the end is right
            bucket
            for bucket in self._buckets
            if not wrong.isdisjoint(bucket.numbers)
            or not (self._filling.full(bucket) or self._copied.isdisjoint(bucket.numbers))
        ]

    def _plan_rest(self, by_script: bool) -> None:
        """Decide for how many steps no gradient leaves early. `by_script`: whether the script has changed any."""
        if by_script:
            self._rests.begin()
            if not self._remarked:
                self._remarked = True
                self._context.remark(CHANGED)
        elif self._rests:
            self._rests.pass_step()
        elif self._copied:
            self._rests.end()

    def _changed(self, gradients: Sequence[Tensor | None]) -> Iterator[int]:
        """Yield the numbers of gradients that differ from their copies. Zero equals -0, as for optimizers."""
        judged: list[int] = []
        verdicts: list[Tensor] = []
        for some in self._together(gradients):
            apart = torch._foreach_sub([gradient for _, gradient in some], [self._copies.views[n] for n, _ in some])
            verdicts.append(torch.stack(torch._foreach_norm(apart, float("inf"))).ne(0.0))  # NaN is not 0 either
            judged += [number for number, _ in some]
        if judged:
            for number in compress(judged, torch.cat(verdicts).tolist()):
                gradient = gradients[number]
                if gradient is not None and not same_bits(gradient, self._copies.views[number]):
                    yield number  # and not a NaN that was one before

    def _together(self, gradients: Sequence[Tensor | None]) -> Iterator[list[tuple[int, Tensor]]]:
        """Yield the copied gradients in groups to compare at once: of one type, and at most about `COMPARED` bytes."""
        some: list[tuple[int, Tensor]] = []
        size = 0
        for number in sorted(self._copied):
            gradient = gradients[number]
            if gradient is None or not gradient.numel():
                continue
            if some and (size + gradient.nbytes > COMPARED or some[0][1].dtype != gradient.dtype):
                yield some
                some, size = [], 0
            some.append((number, gradient))
            size += gradient.nbytes
        if some:
            yield some
