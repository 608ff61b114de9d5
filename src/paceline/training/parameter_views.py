"""How a part of the shared memory is shown: by tensors in a window over it, or by copies of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from paceline.ipc.memory import MappedWindow, Region
from paceline.training.layout import Entry


class ParameterViews(Protocol):
    """The script's parameters, which show one part or another. See also `device_parameters.DeviceParameters`."""

    def show(self, start: int) -> None:
        """Show the part that begins at that byte."""

    def changed(self) -> list[str]:
        """The names of parameters that differ from what is shown, because the script wrote into them."""

    def place_again(self) -> None:
        """Take back parameters that left their place (by `p.data = …`). Their values stay."""


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
        """The names of tensors that differ from what is shown, because the script wrote into them."""
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
        """Put tensors that left the window (by `p.data = …`) back into it. Their values stay."""
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
        return not same_bytes(entry.over(self._window.memory), there)


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
        """The names of tensors that the script has changed in place since."""
        return _changed_in_place(self._entries, self._tensors, self._versions)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether two dense tensors of one form are equal bit for bit."""
    return torch.equal(_flat_bytes(one), _flat_bytes(other))


def _flat_bytes(tensor: Tensor) -> Tensor:
    """A dense tensor's bytes, in the order in which they lie in memory: NaN equals NaN, and -0 is not 0."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """Autograd's count of each tensor's changes in place."""
    return [tensor._version for tensor in tensors]


def _changed_in_place(entries: Sequence[Entry], tensors: Sequence[Tensor], versions: list[int]) -> list[str]:
    known = zip(entries, tensors, versions, strict=True)
    return [entry.name for entry, tensor, version in known if tensor._version != version]
