"""Views of the parameters in shared memory: in a window over it, in copies, or in an arena on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from paceline.ipc.memory import MappedWindow, Region
from paceline.training.copier import COLUMNS, Copier
from paceline.training.layout import Entry
from paceline.training.tensor_bits import same_bits
from paceline.training.training_context import TrainingContext


class ParameterViews(Protocol):
    """The script's parameters, which show one part of the shared memory or another."""

    def show(self, start: int) -> None:
        """Show the part that begins at that byte."""

    def changed(self) -> list[str]:
        """Return the names of parameters that the script has written into."""

    def place_again(self) -> None:
        """Put parameters that left their place (by `p.data = …`) back into it. Their values stay."""


class Windowed:
    """Tensors on the CPU that lie in a window. To show another part, the window moves, and no byte is copied."""

    def __init__(self, region: Region, size: int, entries: Sequence[Entry], tensors: Sequence[Tensor]) -> None:
        """`size`: the part's, in bytes."""
        self._entries = entries
        self._tensors = tensors
        self._region = region
        self._window = MappedWindow(region, size)
        self._start = 0
        self._versions: list[int] = []
        self._addresses: list[int] = []
        """Where each tensor lies in the window. Empty until the first part is shown."""

    def show(self, start: int) -> None:
        """Show the part that begins at that byte."""
        if not self._entries:
            return
        self._start = start
        self._window.show(start)
        if not self._addresses:
            self._place()
        self._versions = _versions(self._tensors)

    def changed(self) -> list[str]:
        """See `ParameterViews`."""
        if not self._entries:
            return []
        try:
            written = self._window.written()
        except OSError:  # without /proc, writes past autograd (`.data`) are missed
            return _changed_in_place(self._entries, self._tensors, self._versions)
        names = [
            entry.name
            for entry in self._entries
            if any(start < entry.stop and entry.offset < stop for start, stop in written) and self._differs(entry)
        ]
        moved = [  # by model.double() or share_memory(), say: these tensors no longer follow the window
            entry.name
            for entry, tensor, address in zip(self._entries, self._tensors, self._addresses, strict=True)
            if address and tensor.data_ptr() != address
        ]
        return [*names, *moved]

    def place_again(self) -> None:
        """See `ParameterViews`."""
        for entry, tensor, address in zip(self._entries, self._tensors, self._addresses, strict=True):
            if address and tensor.data_ptr() != address:
                view = entry.over(self._window.memory)
                with torch.no_grad():
                    view.copy_(tensor)
                tensor.data = view

    def _place(self) -> None:
        with torch.no_grad():
            for entry, tensor in zip(self._entries, self._tensors, strict=True):
                tensor.data = entry.over(self._window.memory)
                self._addresses.append(tensor.data_ptr())

    def _differs(self, entry: Entry) -> bool:
        there = entry.over(self._region.memory, self._start)
        return not same_bits(entry.over(self._window.memory), there)


class Copied:
    """Tensors on a device that can't map shared memory. To show another part, it is copied to them."""

    def __init__(self, region: Region, entries: Sequence[Entry], tensors: Sequence[Tensor]) -> None:
        self._entries = entries
        self._tensors = tensors
        self._region = region
        self._versions: list[int] = []
        self._parts: dict[int, list[Tensor]] = {}
        """By its first byte: a part's tensors in the shared memory."""

    @torch.no_grad()
    def show(self, start: int) -> None:
        """Show the part that begins at that byte."""
        if start not in self._parts:
            self._parts[start] = [entry.over(self._region.memory, start) for entry in self._entries]
        for tensor, there in zip(self._tensors, self._parts[start], strict=True):
            tensor.copy_(there)
        self._versions = _versions(self._tensors)

    def changed(self) -> list[str]:
        """See `ParameterViews`."""
        return _changed_in_place(self._entries, self._tensors, self._versions)


class DeviceParameters:
    """Parameters on a device, such as a GPU. They lie in an arena, into which the part that they show is copied."""

    def __init__(self, joined: TrainingContext, copier: Copier, size: int) -> None:
        """`size`: the part's, in bytes."""
        self._size = size
        self._entries = joined.places.layout.moving
        self._parameters = joined.parameters
        self._copier = copier
        self.arena = copier.arena()
        self._start = 0
        self._brought: dict[int, list[tuple[int, int]]] = {}
        """By the first byte of the part that is shown next: the ranges of it that were copied already."""
        self._is_that_part = True
        """Whether the arena has the part as it is in memory, without updates of this worker's."""
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
        """Copy the part that begins at that byte into the arena. Call `shown` after it."""
        self._copier.lock(start, self._size)
        self._copier.bring(self.arena, start, self._brought.pop(start, ()))
        self._brought.clear()

    @torch.no_grad()
    def bring(self, start: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Copy these bytes of the part that begins at that byte and is shown next. Nothing changes them meanwhile."""
        self._copier.lock(start, self._size)
        there = self._brought.setdefault(start, [])
        self._copier.bring_bytes(self.arena, start, ranges)
        there.extend(ranges)

    @torch.no_grad()
    def shown(self, start: int, *, is_that_part: bool = True) -> None:
        """Note that the arena has what the script is to see: that part, or that part less some updates."""
        self._start, self._is_that_part = start, is_that_part
        self._versions = [parameter._version for parameter in self._parameters]
        self._sums = self._summed()
        self._in_memory = [self.arena.views[number].clone() for number in self._copier.in_memory]

    @torch.no_grad()
    def changed(self) -> list[str]:
        """See `ParameterViews`.

        Sums over all bits show writes that autograd doesn't count (`.data`). The device makes them as fast as it reads
        its memory. They miss a write only if it leaves every sum as it was. Swapped values change sums.
        """
        if self._brought:  # the script waits for the rest meanwhile
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
        changed.update(number for number, before in in_memory if not same_bits(self.arena.views[number], before))
        return [self._entries[number].name for number in sorted(changed)]

    @torch.no_grad()
    def place_again(self) -> None:
        """See `ParameterViews`."""
        for parameter, view in zip(self._parameters, self.arena.views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                parameter.data = view.copy_(parameter)
        self.shown(self._start)

    def _summed(self) -> Tensor:
        """Return the sums of the rows and of the columns of all words on the device, laid out as a table."""
        table = self.arena.bytes.view(torch.int64).view(-1, COLUMNS)
        return torch.cat([table.sum(1), table.sum(0)])


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """Return autograd's count of each tensor's changes in place."""
    return [tensor._version for tensor in tensors]


def _changed_in_place(entries: Sequence[Entry], tensors: Sequence[Tensor], versions: list[int]) -> list[str]:
    known = zip(entries, tensors, versions, strict=True)
    return [entry.name for entry, tensor, version in known if tensor._version != version]
