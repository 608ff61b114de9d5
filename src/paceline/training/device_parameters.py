"""A script's parameters on a device, such as a GPU, and what they show: a part of the memory that all map."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.training.copier import COLUMNS, Copier
from paceline.training.parameter_views import same_bytes
from paceline.training.training_context import TrainingContext


class DeviceParameters:
    """The script's parameters, laid into an arena, and what they show: a part of the memory that all map."""

    def __init__(self, joined: TrainingContext, copier: Copier, size: int) -> None:
        """`size`: the part's, in bytes."""
        self._size = size
        self._entries = joined.places.layout.moving
        self._parameters = joined.parameters
        self._copier = copier
        self.arena = copier.arena()
        self._start = 0
        self._brought: dict[int, list[tuple[int, int]]] = {}
        """By its first byte: what was brought already of the part that is shown next."""
        self._is_that_part = True
        """Whether what is shown is that part as it lies there, without updates of this worker's."""
        self._versions: list[int] = []
        self._sums = self._summed()
        with torch.no_grad():
            for parameter, view in zip(self._parameters, self.arena.views, strict=True):
                parameter.data = view.copy_(parameter)

    @torch.no_grad()
    def show(self, start: int) -> None:
        """Show the part that begins at that byte."""
        self.fetch(start)
        self.shown(start)

    @torch.no_grad()
    def fetch(self, start: int) -> None:
        """Bring the part that begins at that byte. It is not shown as it is: see `shown`."""
        self._copier.lock(start, self._size)
        self._copier.bring(self.arena, start, self._brought.pop(start, ()))
        self._brought.clear()

    @torch.no_grad()
    def bring(self, start: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Bring these bytes of the part that begins at that byte and is shown next.

        They stay what they are: the part is the worker's from when it was told of it until its next step is computed.
        """
        self._copier.lock(start, self._size)
        there = self._brought.setdefault(start, [])
        self._copier.bring_bytes(self.arena, start, ranges)
        there.extend(ranges)

    @torch.no_grad()
    def shown(self, start: int, *, is_that_part: bool = True) -> None:
        """What is in the arena now is what the script is to see: that part, or what came of it."""
        self._start, self._is_that_part = start, is_that_part
        self._versions = [parameter._version for parameter in self._parameters]
        self._sums = self._summed()
        self._in_memory = [self.arena.views[number].clone() for number in self._copier.in_memory]

    @torch.no_grad()
    def changed(self) -> list[str]:
        """The names of parameters that the script has written into since.

        Writes past autograd's count (`.data`) are known by sums, which the device makes as fast as it reads its memory.
        They miss only what leaves all of them as they were: swapped values do not.
        """
        if self._brought:  # the script waits for the rest, and has changed nothing
            return []
        every = enumerate(zip(self._parameters, self.arena.views, self._versions, strict=True))
        changed = {
            number
            for number, (parameter, view, version) in every
            if parameter._version != version or parameter.data_ptr() != view.data_ptr()
        }
        if not torch.equal(self._summed(), self._sums) and (self._is_that_part or not changed):
            changed.update(self._copier.differs(self.arena, self._start))
        in_memory = zip(self._copier.in_memory, self._in_memory, strict=True)
        changed.update(number for number, before in in_memory if not same_bytes(self.arena.views[number], before))
        return [self._entries[number].name for number in sorted(changed)]

    @torch.no_grad()
    def place_again(self) -> None:
        """Put parameters that left the arena (by `p.data = …`) back into it. Their values stay."""
        for parameter, view in zip(self._parameters, self.arena.views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                parameter.data = view.copy_(parameter)
        self.shown(self._start)

    def _summed(self) -> Tensor:
        """Sums of all bits on the device, laid out as a table: of its rows, and of its columns."""
        table = self.arena.bytes.view(torch.int64).view(-1, COLUMNS)
        return torch.cat([table.sum(1), table.sum(0)])
