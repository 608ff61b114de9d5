"""A script's parameters on a device, such as a GPU, and what they show: a part of the memory that all map."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.training.checksums import checksum
from paceline.training.copier import Copier
from paceline.training.joined import Joined


class Mirror:
    """The script's parameters, laid into an arena, and what they show: a part of the memory that all map."""

    def __init__(self, joined: Joined, copier: Copier, size: int) -> None:
        """`size`: the part's, in bytes."""
        self._size = size
        self._entries = joined.places.layout.moving
        self._parameters = joined.parameters
        self._copier = copier
        self.arena = copier.arena()
        self._start = 0
        self._brought: dict[int, list[tuple[int, int]]] = {}
        """By its first byte: what was brought already of the part that is shown next."""
        self._versions: list[int] = []
        self._sum = self._summed()
        with torch.no_grad():
            for parameter, view in zip(self._parameters, self.arena.views, strict=True):
                parameter.data = view.copy_(parameter)

    @torch.no_grad()
    def show(self, start: int) -> None:
        """Show the part that begins at that byte."""
        self._copier.lock(start, self._size)
        self._copier.bring(self.arena, start, self._brought.pop(start, ()))
        self._brought.clear()
        self.shown(start)

    @torch.no_grad()
    def bring(self, start: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Bring these bytes of the part that begins at that byte and is shown next."""
        self._copier.lock(start, self._size)
        there = self._brought.setdefault(start, [])
        self._copier.bring_bytes(self.arena, start, ranges)
        there.extend(ranges)

    @torch.no_grad()
    def shown(self, start: int) -> None:
        """What is in the arena now is what the script is to see: that part, or what came of it."""
        self._start = start
        self._versions = [parameter._version for parameter in self._parameters]
        self._sum = self._summed()

    @torch.no_grad()
    def changed(self) -> list[str]:
        """The names of parameters that the script has written into since.

        Writes past autograd's count (`.data`) are known by the sum of all bits, which the device makes as fast as it
        reads its memory.
        """
        every = enumerate(zip(self._parameters, self.arena.views, self._versions, strict=True))
        changed = {
            number
            for number, (parameter, view, version) in every
            if parameter._version != version or parameter.data_ptr() != view.data_ptr()
        }
        device, memory = self._summed()
        if memory != self._sum[1] or device.ne(self._sum[0]).item():
            changed.update(self._copier.differs(self.arena, self._start))
        return [self._entries[number].name for number in sorted(changed)]

    @torch.no_grad()
    def place_again(self) -> None:
        """Put parameters that left the arena (by `p.data = …`) back into it. Their values stay."""
        for parameter, view in zip(self._parameters, self.arena.views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                parameter.data = view.copy_(parameter)
        self.shown(self._start)

    def _summed(self) -> tuple[Tensor, str]:
        """The sum of the bits of all parameters on the device, as whole numbers, and a checksum of the others."""
        return self.arena.bytes.view(torch.int64).sum(), checksum(self.arena.views[n] for n in self._copier.in_memory)
