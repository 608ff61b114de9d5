"""Pushes: how gradients and updates come into the push areas of the shared memory.

A holder pushes through one of these, which `holders.choice` picks. Only here may a gradient change its form: a push
that compresses, say, is one more class with these methods: `encoded_push`.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.rests import Rests
from paceline.core.shards import leaves_early
from paceline.ipc.memory import Mapping
from paceline.ipc.messages.worker import Accumulated, Withdrawn
from paceline.store.chunks import TELLS
from paceline.store.store import scalars_of, unfit_rate
from paceline.training.holders.buckets import Filling, buckets_of
from paceline.training.layout import Layout, PushArea
from paceline.training.tensor_bits import same_bits
from paceline.training.training_context import TrainingContext

AT_ONCE = 64 * 1024  # bytes: larger gradients are pushed while autograd goes on, smaller ones together after it
CHANGED = "changes gradients between backward() and step(), so they leave its host only once a step is computed"


@dataclass(slots=True)
class _Area:
    """A push area, mapped at an address of its own."""

    mapping: Mapping
    push: PushArea
    references: list[int]
    """`_references` to each gradient while the script has none. How Python counts them depends on its version."""
    present: list[bool] = field(default_factory=list)
    """Which parameters have a gradient here: the flags as a list."""


class Push(Protocol):
    """Puts what a worker pushes into the push area of each step."""

    def use(self, number: int) -> None:
        """Use that area from now on. The gradients that the script has stay as they are."""

    def let_go(self) -> None:
        """Give the script gradients of its own from now on, as the store may still read the area."""


class GradientPush(Push, Protocol):
    """Pushes the script's gradients."""

    def take(self, number: int) -> None:
        """Take that parameter's gradient, which autograd has just made."""

    def fill(self) -> None:
        """Put the rest of the gradient into the area, as the script steps."""


class UpdatePush(Push, Protocol):
    """Pushes updates that the holder makes."""

    def room(self) -> list[Tensor]:
        """Return a tensor for each parameter, in which the holder makes its update."""

    def made(self, present: list[bool], step: int) -> None:
        """Put the update of these parameters into the area, all of it, from `room`. `step`: its last one."""

    def pushed(self, number: int) -> list[Tensor | None]:
        """Return what was pushed in that area: a tensor or None for each parameter."""


class NoPush:
    """Nothing is pushed."""

    def use(self, number: int) -> None:
        """See `Push`."""

    def let_go(self) -> None:
        """See `Push`."""

    def take(self, number: int) -> None:
        """See `GradientPush`."""

    def fill(self) -> None:
        """See `GradientPush`."""


class AreaPush:
    """Pushes gradients, and updates, as they are: large gradients as autograd makes them, the rest at the step."""

    def __init__(self, context: TrainingContext) -> None:
        self._context = context
        self._places = context.places
        self._layout = context.places.layout
        self._parameters = context.parameters
        self._areas: dict[int, _Area] = {}
        self._number: int | None = None
        self.holding: Collection[int] = ()
        """Parameters whose gradient lies in the area as well as in memory of the script's own."""

    def use(self, number: int) -> None:
        """See `Push`."""
        if number == self._number:
            return
        if self._number is not None:
            self.let_go()  # the store still needs it, and the script may write there
        self._number = number
        if number not in self._areas:
            start = self._places.push_start(number)
            self._places.region.populate(start, start + self._layout.push_bytes)
            self._areas[number] = self._mapped(number)

    def take(self, number: int) -> None:
        """See `GradientPush`. A large gradient on a CPU goes into the area now."""
        if self._gradients[number].nbytes >= AT_ONCE and (view := self.put(number)) is not None:
            self._parameters[number].grad = view

    def put(self, number: int) -> Tensor | None:
        """Copy that parameter's gradient into the area. Return where it lies there; None if it has to wait."""
        gradient = self._parameters[number].grad
        if gradient is None or gradient.device.type != "cpu" or gradient.layout != torch.strided:
            return None
        if gradient is self._gradients[number] or gradient.requires_grad:
            return None
        if self._held_elsewhere(number):
            self._left()
        view = self._gradients[number]
        with torch.no_grad():
            view.copy_(gradient)
        return view

    @torch.no_grad()
    def fill(self) -> None:
        """See `GradientPush`. What is missing: the other gradients, which parameters have one, and the buffers."""
        present, views, gradients = [], [], []
        every = zip(self._layout.moving, self._parameters, self._gradients, strict=True)
        for number, (entry, parameter, view) in enumerate(every):
            gradient = parameter.grad
            present.append(gradient is not None)
            if gradient is None or gradient is view or number in self.holding:
                continue
            if gradient.layout != torch.strided:
                self._context.refuse_sparse(entry)
            views.append(view)
            gradients.append(gradient)
        if views:
            torch._foreach_copy_(views, gradients)
        self.made(present, self._context.link.step)

    def room(self) -> list[Tensor]:
        """See `UpdatePush`. An update is made where it is pushed."""
        return self._gradients

    @torch.no_grad()
    def made(self, present: list[bool], step: int) -> None:
        """See `UpdatePush`. Say which parameters have something in the area, and add the buffers."""
        self._mark(present)
        self._context.put_buffers(self._present.push)

    def _mark(self, present: list[bool]) -> None:
        """Say which parameters have something in the area."""
        area = self._present
        if present != area.present:
            area.push.present.copy_(torch.tensor(present, dtype=torch.uint8, device="cpu"))
            area.present = present

    def pushed(self, number: int) -> list[Tensor | None]:
        """See `UpdatePush`."""
        area = self._areas[number].push
        return [update if there else None for update, there in zip(area.gradients, area.present.tolist(), strict=True)]

    def let_go(self) -> None:
        """See `Push`."""
        if self._number is None:  # the run has ended before the first step
            return
        for number, parameter in enumerate(self._parameters):  # no variable keeps a view: it would count as held
            if parameter.grad is self._gradients[number]:
                parameter.grad = self._gradients[number].detach().clone()
        if any(self._held_elsewhere(number) for number in range(len(self._parameters))):
            self._left()

    def _held_elsewhere(self, number: int) -> bool:
        """Whether the script holds on to that gradient's view, or to an alias of it."""
        area = self._present
        return _references(area.push.gradients, number) > area.references[number]

    @property
    def _gradients(self) -> list[Tensor]:
        """Each parameter's gradient in the area in use."""
        return self._present.push.gradients

    @property
    def _present(self) -> _Area:
        assert self._number is not None
        return self._areas[self._number]

    def _mapped(self, number: int) -> _Area:
        start = self._places.push_start(number)
        mapping = Mapping(self._places.region, start, self._layout.push_bytes)
        push = self._places.push_area(number, mapping)
        return _Area(mapping, push, [_references(push.gradients, number) for number in range(len(push.gradients))])

    def _left(self) -> PushArea:
        """Leave the area's memory to a script that keeps a gradient or an alias of it, and map the area anew."""
        assert self._number is not None
        left = self._present
        mapped = self._areas[self._number] = self._mapped(self._number)
        mapped.present = left.present
        left.mapping.leave()
        return mapped.push


class OverlappedPush(AreaPush):
    """Announces gradients to the run while autograd makes others, so that hosts can use them early.

    A script may change its gradients between backward and step: clip them, unscale them, or add those of another
    backward. So what was announced is compared with the script's gradients at the step, byte by byte. If anything
    differs, all of it is withdrawn and pushed at the step. Then nothing is announced for some steps, ever more of them.

    Who adds gradients up needs to know which parameters have one, so those of the last step are told first. A gradient
    is told once it consists of as many as in the last step: scripts may add up those of several backwards.

    The announced bytes stay in the area until the step, so the script keeps its gradients in memory of its own, which
    takes as much as the model.
    """

    def __init__(self, context: TrainingContext) -> None:
        super().__init__(context)
        self._link = context.link
        self._buckets = buckets_of(context.places.layout, TELLS)
        self._filling = Filling(self._buckets)
        self._told: set[int] = set()
        """Parameters whose gradient of this step is in the area, and was announced or waits for its bucket."""
        self._tells = True
        """Whether nothing was withdrawn in this step."""
        self._says = False
        """Whether something was announced in this step."""
        self._backwards: dict[int, int] = {}
        """By parameter: how many gradients autograd has made in this step."""
        self._last: dict[int, int] = {}
        """The same of the last step. Empty: there was none."""
        self._flags: list[bool] = []
        """Which parameters had a gradient in the last step."""
        self._rests = Rests()
        """Of announcing gradients, as the script changes them."""
        self._remarked = False

    @staticmethod
    def pays(layout: Layout) -> bool:
        """Whether the model is large enough."""
        return leaves_early(layout.flags_offset)

    def take(self, number: int) -> None:
        """See `GradientPush`."""
        made = self._backwards[number] = self._backwards.get(number, 0) + 1
        if number in self._told or (self._says and made > self._last.get(number, 0)):
            self._withdraw()
        if not self._tells or self._rests or not self._last:
            if number not in self._told:
                super().take(number)
        elif made == self._last.get(number) and self.put(number) is not None:
            self._told.add(number)
            if (bucket := self._filling.came(number)) is not None:
                self._begin_to_tell()
                self._link.say(Accumulated(self._link.step, bucket.begin, bucket.end))

    def fill(self) -> None:
        """See `GradientPush`. Announced gradients that have changed are written again."""
        present = [parameter.grad is not None for parameter in self._parameters]
        if self._tells and not all(map(self._holds, self._told)):  # also of what waits for its bucket
            self._withdraw()
            if not self._remarked:
                self._remarked = True
                self._context.remark(CHANGED)
        elif self._says and present != self._flags:
            self._withdraw()
        withdrew = not self._tells
        self.holding = self._told if self._tells else ()
        super().fill()
        self._plan_rest(withdrew=withdrew)
        if self._backwards and (self._backwards != self._last or present != self._flags):
            self._last, self._flags = self._backwards, present
            self._filling = Filling(self._buckets, self._awaited)
        self._begin_step()

    def let_go(self) -> None:
        """See `Push`."""
        super().let_go()
        self._begin_step()

    @property
    def _awaited(self) -> set[int]:
        """Parameters whose gradients a bucket waits for. One that the script makes by itself comes only at the step."""
        return {*self._last, *(number for number, there in enumerate(self._flags) if there)}

    @torch.no_grad()
    def _begin_to_tell(self) -> None:
        """Say which parameters have a gradient, as far as anybody knows. Where none has one, nothing is to come."""
        if self._says:
            return
        self._says = True
        self._mark(self._flags)
        offset, step = self._layout.flags_offset, self._link.step
        scalars = scalars_of(self._context.optimizer)  # what can't be used is refused at the step
        usable = None if unfit_rate(scalars) else scalars
        self._link.say(Accumulated(step, offset, offset + len(self._flags), usable))
        for bucket in self._buckets:
            if self._filling.awaits_none(bucket):
                self._link.say(Accumulated(step, bucket.begin, bucket.end))

    def _withdraw(self) -> None:
        """What was announced in this step does not count, and nothing more is announced in it."""
        if self._tells and self._says:
            self._link.say(Withdrawn(self._link.step))
        self._tells = False

    def _plan_rest(self, *, withdrew: bool) -> None:
        """Decide for how many steps nothing is announced."""
        if withdrew:
            self._rests.begin()
        elif self._rests:
            self._rests.pass_step()
        elif self._says:
            self._rests.end()

    def _begin_step(self) -> None:
        self._told.clear()
        self._filling.empty()
        self._backwards = {}
        self._says, self._tells = False, True

    def _holds(self, number: int) -> bool:
        """Whether the area has the script's gradient. A gradient that the script has discarded is not read there."""
        gradient, view = self._parameters[number].grad, self._gradients[number]
        return gradient is None or same_bits(gradient, view)


def _references(views: list[Tensor], number: int) -> int:
    """Count the references to that view, ours included, and to its storage by other tensors and numpy arrays."""
    storage = torch._C._storage_Use_Count(views[number].untyped_storage()._cdata)
    return sys.getrefcount(views[number]) + int(storage)
