"""Pushes that are encoded."""

from __future__ import annotations

import mmap
from typing import NoReturn

import torch
from torch import Tensor

from paceline.store.chunks import finite
from paceline.training.encoding import EncodedPart, Encoding
from paceline.training.holders.push import GradientPush, UpdatePush
from paceline.training.layout import PushArea
from paceline.training.training_context import TrainingContext


class EncodedPush(GradientPush, UpdatePush):
    """Pushes gradients, or updates, all of it at the step, encoded. See `push.GradientPush` and `push.UpdatePush`.

    The script's gradients stay in memory of its own. What lies in the area is decoded where it is needed: by the store,
    and here if a version lacks it.
    """

    def __init__(self, context: TrainingContext, encoding: Encoding) -> None:
        self._context = context
        self._encoding = encoding
        self._places = context.places
        self._layout = context.places.layout
        self._memory = self._new_memory()
        """The values to encode, in the layout of a version."""
        values = [entry.over(self._memory) for entry in self._layout.moving]
        self._values = values
        here = all(parameter.is_cpu for parameter in context.parameters)
        self._room = values if here else [torch.empty_like(parameter) for parameter in context.parameters]
        self._decoded: memoryview | None = None
        """An update that a version lacks, in the layout of a version."""
        self._areas: dict[int, PushArea] = {}
        self._number = -1

    def use(self, number: int) -> None:
        """See `Push`."""
        self._number = number
        if number not in self._areas:
            area = self._areas[number] = self._places.push_area(number)
            self._places.region.populate(area.start + self._layout.encoded_offset, area.stop)

    def let_go(self) -> None:
        """See `Push`. The script's gradients are its own."""

    def take(self, number: int) -> None:
        """See `GradientPush`. All are pushed at the step."""

    @torch.no_grad()
    def fill(self) -> None:
        """See `GradientPush`."""
        present = []
        for entry, parameter, value in zip(self._layout.moving, self._context.parameters, self._room, strict=True):
            gradient = parameter.grad
            present.append(gradient is not None)
            if gradient is None:
                continue
            if gradient.layout != torch.strided:
                self._context.refuse_sparse(entry)
            value.copy_(gradient)
        self.made(present, self._context.link.step)

    def room(self) -> list[Tensor]:
        """See `UpdatePush`."""
        return self._room

    @torch.no_grad()
    def made(self, present: list[bool], step: int) -> None:
        """See `UpdatePush`. What cannot be encoded ends the run."""
        area, residual = self._areas[self._number], self._context.residual
        for value, made in zip(self._values, self._room, strict=True):
            if made is not value:
                value.copy_(made)
        before, after = (None, None) if residual is None else residual.push(step)
        start = self._start(self._number)
        last = torch.frombuffer(self._places.region.memory, dtype=torch.uint8)[start : start + self._encoding.kept]
        if residual is not None and before is not None:
            last.copy_(residual.kept(before))
        for part in self._encoding.parts:
            lost = None
            if before is not None and after is not None and not part.raw:
                own = slice(part.entry.offset // 4, part.entry.offset // 4 + part.entry.count)
                lost = before[own], after[own]
            if present[part.number]:
                self._encode(part, lost)
            elif lost is not None:
                lost[1].copy_(lost[0])
        if residual is not None and after is not None:
            residual.kept(after).copy_(last)
        area.present.copy_(torch.tensor(present, dtype=torch.uint8, device="cpu"))
        self._context.put_buffers(area)

    @torch.no_grad()
    def pushed(self, number: int) -> list[Tensor | None]:
        """See `UpdatePush`. What the last call returned is no longer there."""
        if self._decoded is None:
            self._decoded = self._new_memory()
        there, present = self._decoded, self._areas[number].present.tolist()
        self._encoding.decode(self._places.region.memory, self._start(number), there, 0, present)
        return [entry.over(there) if one else None for entry, one in zip(self._layout.moving, present, strict=True)]

    def seen(self) -> list[Tensor | None]:
        """Return what others see of the last push, each beside its parameter."""
        pushed = zip(self.pushed(self._number), self._context.parameters, strict=True)
        return [None if one is None else one.to(parameter.device) for one, parameter in pushed]

    def _encode(self, part: EncodedPart, lost: tuple[Tensor, Tensor] | None) -> None:
        """Put that part's values into the area.

        `lost`: the part's residual before this push, and where to put that after it. What is NaN or infinite is so in
        this push alone.
        """
        memory, start = self._places.region.memory, self._start(self._number)
        value, largest = part.entry.over(self._memory), self._encoding.codec.largest
        if lost is not None:
            value.add_(lost[0])
        decoded = self._encoding.encode(part, value, memory, start)
        if not finite(decoded) and not decoded.isfinite().all() and value.isfinite().all():
            given = value if lost is None else value - lost[0]
            if lost is None or given.abs().max() > largest:
                self._refuse(self._layout.moving[part.number].name, given)
            decoded = self._encoding.encode(part, value.clamp(-largest, largest), memory, start)
        if lost is not None:
            before, after = lost
            torch.sub(value, decoded, out=after)
            if not finite(after):
                after.copy_(torch.where(after.isfinite(), after, before))

    def _refuse(self, name: str, value: Tensor) -> NoReturn:
        self._context.refuse(
            f'worker {self._context.link.worker} is to push values up to {value.abs().max().item():.3g} of "{name}", '
            f"which {self._encoding.codec} can't hold; use another --compress, such as int8"
        )

    def _start(self, number: int) -> int:
        """Where encoded values begin of that area."""
        return self._places.push_start(number) + self._layout.encoded_offset

    def _new_memory(self) -> memoryview:
        return memoryview(mmap.mmap(-1, max(1, self._layout.flags_offset)))
