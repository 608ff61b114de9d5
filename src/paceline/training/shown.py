"""What a worker sees of the shared memory: through a window that is moved from version to version."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.fabric.memory import Region, Window
from paceline.training.layout import Entry


class Shown:
    """Tensors that show a part of the region: through a window, or as copies on a device that can't map it."""

    def __init__(self, region: Region, size: int, entries: Sequence[Entry], tensors: list[Tensor]) -> None:
        self.entries = entries
        self.tensors = tensors
        self._region = region
        self._window = Window(region, size)
        self._start = 0
        self._copied: list[tuple[Tensor, Tensor]] = []
        self._versions: list[int] = []
        self._addresses: list[int] = []
        """Where each tensor lies in the window; 0 for those that don't."""
        self._placed = False

    def show(self, start: int) -> None:
        """Show the part that begins at that byte."""
        self._start = start
        self._window.show(start)
        with torch.no_grad():
            if not self._placed:
                self._place()
            for tensor, view in self._copied:
                tensor.copy_(view)
        self._versions = [tensor._version for tensor in self.tensors]

    def changed(self) -> list[str]:
        """The names of tensors that differ from what is shown, because the script wrote into them."""
        if not self.entries:
            return []
        try:
            written = self._window.written()
        except OSError:  # without /proc, writes past autograd (`.data`) are missed
            return self._changed_by_version(self.tensors)
        names = [
            entry.name
            for entry in self.entries
            if any(start < entry.stop and entry.offset < stop for start, stop in written) and self._differs(entry)
        ]
        moved = [  # by model.double() or share_memory(), say: these tensors no longer follow the window
            entry.name
            for entry, tensor, address in zip(self.entries, self.tensors, self._addresses, strict=True)
            if address and tensor.data_ptr() != address
        ]
        return [*names, *moved, *self._changed_by_version([tensor for tensor, _ in self._copied])]

    def _changed_by_version(self, tensors: list[Tensor]) -> list[str]:
        """Compare by autograd's count of changes in place."""
        asked = {id(tensor) for tensor in tensors}
        known = zip(self.entries, self.tensors, self._versions, strict=True) if asked else ()
        return [entry.name for entry, tensor, count in known if id(tensor) in asked and tensor._version != count]

    def _place(self) -> None:
        for entry, tensor in zip(self.entries, self.tensors, strict=True):
            view = entry.over(self._window.memory)
            if tensor.device.type == "cpu":
                tensor.data = view
            else:
                self._copied.append((tensor, view))
            self._addresses.append(view.data_ptr() if tensor.device.type == "cpu" else 0)
        self._placed = True

    def place_again(self) -> None:
        """Put tensors that left the window (by `p.data = …`) back into it. Their values stay."""
        for entry, tensor, address in zip(self.entries, self.tensors, self._addresses, strict=True):
            if address and tensor.data_ptr() != address:
                view = entry.over(self._window.memory)
                with torch.no_grad():
                    view.copy_(tensor)
                tensor.data = view

    def _differs(self, entry: Entry) -> bool:
        there = entry.over(self._region.memory, self._start)
        return not same_bytes(entry.over(self._window.memory), there)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether two dense tensors of one form are equal bit for bit."""
    return torch.equal(_flat_bytes(one), _flat_bytes(other))


def _flat_bytes(tensor: Tensor) -> Tensor:
    """A dense tensor's bytes, in the order in which they lie in memory: NaN equals NaN, and -0 is not 0."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
