"""What shows parts of the shared memory to a script: windows over them, and copies in memory or on a device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.ipc.memory import MappedWindow, Region
from paceline.training.device.copier import COLUMNS, Copier
from paceline.training.layout import Entry, Places
from paceline.training.tensor_bits import same_bits
from paceline.training.training_context import TrainingContext


class ParameterViews(ABC):
    """The script's parameters, which show one part of the shared memory or another."""

    @abstractmethod
    def show(self, start: int) -> None:
        """Show the part that begins at that byte."""

    @abstractmethod
    def changed(self) -> list[str]:
        """Return the names of parameters that the script has written into."""

    @abstractmethod
    def place_again(self) -> None:
        """Put parameters that left their place (by `p.data = …`) back into it. Their values stay."""

    def bring(self, start: int, ranges: Sequence[tuple[int, int]]) -> None:  # noqa: B027  # memory is there at once
        """Copy these bytes of the part that begins at that byte and is shown next. Nothing changes them meanwhile."""

    def settle(self) -> None:  # noqa: B027  # in memory there is nothing to wait for
        """Wait for the device to compute the script's parameters and gradients."""

    def copied(self) -> tuple[float, float] | None:
        """Return the seconds of copies to a device and from it since the last call, when all are done."""
        return None


class OwnParameters(ParameterViews):
    """Parameters that the worker's own optimizer steps. They show a part as it is, or after some arithmetic."""

    values: list[Tensor]
    """What the optimizer steps, one for each parameter."""

    @abstractmethod
    def version(self, start: int) -> list[Tensor]:
        """Return the tensors of the part that begins there: where they lie, or as `values`. Call `shown` next."""

    @abstractmethod
    def shown(self, start: int, *, is_that_part: bool = True) -> None:
        """Note that `values` are what the script is to see: that part, or that part less some updates."""


class Windowed(ParameterViews):
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
        """See `ParameterViews`."""
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


class OwnMemory(Windowed, OwnParameters):
    """The worker's own parameters on the CPU, in memory of its own, through a window."""

    def __init__(self, places: Places, tensors: Sequence[Tensor]) -> None:
        layout = places.layout
        region = Region.create(layout.slot_bytes)
        super().__init__(region, layout.slot_bytes, layout.moving, tensors)
        self.values = [entry.over(region.memory) for entry in layout.moving]
        self._shared = places.region
        self._parts: dict[int, list[Tensor]] = {}
        """By its first byte: a part's tensors in the shared memory."""

    def version(self, start: int) -> list[Tensor]:
        """See `OwnParameters`."""
        if start not in self._parts:
            self._parts[start] = [entry.over(self._shared.memory, start) for entry in self._entries]
        return self._parts[start]

    def shown(self, start: int, *, is_that_part: bool = True) -> None:
        """See `OwnParameters`."""
        self.show(0)

    @torch.no_grad()
    def place_again(self) -> None:
        """See `ParameterViews`."""
        super().place_again()
        torch._foreach_copy_(self.values, list(self._tensors))
        self.show(0)


class Copied:
    """Tensors on a device that can't map shared memory. To show another part, it is copied to them."""

    def __init__(self, region: Region, entries: Sequence[Entry], tensors: Sequence[Tensor]) -> None:
        self._entries = entries
        self._tensors = tensors
        self._region = region
        self._versions: list[int] = []

    @torch.no_grad()
    def show(self, start: int) -> None:
        """Show the part that begins at that byte."""
        for tensor, entry in zip(self._tensors, self._entries, strict=True):
            tensor.copy_(entry.over(self._region.memory, start))
        self._versions = _versions(self._tensors)

    def changed(self) -> list[str]:
        """See `ParameterViews`."""
        return _changed_in_place(self._entries, self._tensors, self._versions)


class DeviceParameters(OwnParameters):
    """Parameters on a device, such as a GPU. They lie in an arena, into which the part that they show is copied."""

    def __init__(self, context: TrainingContext, copier: Copier, size: int) -> None:
        """`size`: the part's, in bytes."""
        self._size = size
        self._entries = context.places.layout.moving
        self._parameters = context.parameters
        self._copier = copier
        self._arena = copier.arena()
        self.values = self._arena.views
        self._start = 0
        self._brought: dict[int, list[tuple[int, int]]] = {}
        """By the first byte of the part that is shown next: the ranges of it that were copied already."""
        self._is_that_part = True
        """Whether the arena has the part as it is in memory, without updates of this worker's."""
        self._versions: list[int] = []
        self._sums = self._summed()
        with torch.no_grad():
            for parameter, view in zip(self._parameters, self.values, strict=True):
                parameter.data = view.copy_(parameter)

    @torch.no_grad()
    def show(self, start: int) -> None:
        """See `ParameterViews`."""
        self.version(start)
        self.shown(start)

    @torch.no_grad()
    def version(self, start: int) -> list[Tensor]:
        """See `OwnParameters`. Copy that part into the arena."""
        self._copier.lock(start, self._size)
        self._copier.bring(self._arena, start, self._brought.pop(start, ()))
        self._brought.clear()
        return self.values

    def keep(self, start: int) -> None:
        """Copy the arena into the part that begins at that byte. See `Copier.await_taken`."""
        self._copier.lock(start, self._size)
        self._copier.take(self._arena, start)

    @torch.no_grad()
    def bring(self, start: int, ranges: Sequence[tuple[int, int]]) -> None:
        """See `ParameterViews`."""
        self._copier.lock(start, self._size)
        there = self._brought.setdefault(start, [])
        self._copier.bring_bytes(self._arena, start, ranges)
        there.extend(ranges)

    @torch.no_grad()
    def shown(self, start: int, *, is_that_part: bool = True) -> None:
        """See `OwnParameters`."""
        self._start, self._is_that_part = start, is_that_part
        self._versions = _versions(self._parameters)
        self._sums = self._summed()
        self._in_memory = [self.values[number].clone() for number in self._copier.in_memory]

    @torch.no_grad()
    def changed(self) -> list[str]:
        """See `ParameterViews`.

        Sums over all bits show writes that autograd doesn't count (`.data`). The device makes them as fast as it reads
        its memory. They miss a write only if it leaves every sum as it was. Swapped values change sums.
        """
        if self._brought:  # the script waits for the rest meanwhile
            return []
        every = enumerate(zip(self._parameters, self.values, self._versions, strict=True))
        changed = {
            number
            for number, (parameter, view, version) in every
            if parameter._version != version or parameter.data_ptr() != view.data_ptr()
        }
        if not torch.equal(self._summed(), self._sums) and (self._is_that_part or not changed):
            changed.update(self._copier.differs(self._arena, self._start))
        in_memory = zip(self._copier.in_memory, self._in_memory, strict=True)
        changed.update(number for number, before in in_memory if not same_bits(self.values[number], before))
        return [self._entries[number].name for number in sorted(changed)]

    @torch.no_grad()
    def place_again(self) -> None:
        """See `ParameterViews`."""
        for parameter, view in zip(self._parameters, self.values, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                parameter.data = view.copy_(parameter)
        self.shown(self._start)

    def settle(self) -> None:
        """See `ParameterViews`."""
        self._copier.await_computed()

    def copied(self) -> tuple[float, float]:
        """See `ParameterViews`."""
        return self._copier.seconds()

    def _summed(self) -> Tensor:
        """Return the sums of the rows and of the columns of all words on the device, laid out as a table."""
        table = self._arena.bytes.view(torch.int64).view(-1, COLUMNS)
        return torch.cat([table.sum(1), table.sum(0)])


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """Return autograd's count of each tensor's changes in place."""
    return [tensor._version for tensor in tensors]


def _changed_in_place(entries: Sequence[Entry], tensors: Sequence[Tensor], versions: list[int]) -> list[str]:
    known = zip(entries, tensors, versions, strict=True)
    return [entry.name for entry, tensor, version in known if tensor._version != version]
