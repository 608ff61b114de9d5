"""Tensors that the optimizer does not have: parameters that no step moves, and the first buffers."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.training.holders.parameter_views import Copied, Windowed
from paceline.training.layout import Places
from paceline.training.model.structure import Followed


class NonOptimized:
    """Shows those parameters as they were offered, or as they were adopted if the script changed them since."""

    def __init__(self, places: Places, followed: Followed) -> None:
        self._places = places
        self._followed = followed
        self.moved: set[str] = set()
        """Parameters that the script moves by itself: each worker has its own ones."""
        self.entries = [entry for entry in places.layout.fixed if entry.name in followed.parameters]
        self.tensors: list[Tensor] = [followed.parameters[entry.name] for entry in self.entries]
        shown = list(zip(self.entries, self.tensors, strict=True))
        on_cpu = [(entry, tensor) for entry, tensor in shown if tensor.device.type == "cpu"]
        others = [(entry, tensor) for entry, tensor in shown if tensor.device.type != "cpu"]
        self._window = Windowed(
            places.region, places.layout.fixed_bytes, [entry for entry, _ in on_cpu], [tensor for _, tensor in on_cpu]
        )
        self._copies = Copied(places.region, [entry for entry, _ in others], [tensor for _, tensor in others])

    @torch.no_grad()
    def begin(self) -> None:
        """Show the parameters as they were offered, and begin with the buffers that were."""
        offered = self._places.fixed()
        for name, buffer in self._followed.buffers().items():  # each worker's forward changes its own ones
            buffer.copy_(offered[name])
        self._show(adopted=False)

    def discard(self) -> None:
        """Show the parameters as they were offered, and drop the script's changes."""
        self._window.place_again()
        self._show(adopted=False)

    def changed(self) -> list[str]:
        """The names of parameters that the script has written into."""
        return [name for name in (*self._window.changed(), *self._copies.changed()) if name not in self.moved]

    @torch.no_grad()
    def put(self) -> None:
        """Write the parameters as they are now for all workers to adopt, with the buffers as offered."""
        adopted = self._places.fixed(adopted=True)
        for name, value in self._places.fixed().items():
            adopted[name].copy_(value)
        for entry, tensor in zip(self.entries, self.tensors, strict=True):
            adopted[entry.name].copy_(tensor)

    def adopt(self) -> None:
        """Show the parameters as they were adopted."""
        self._window.place_again()
        self._show(adopted=True)

    def _show(self, adopted: bool) -> None:
        start = self._places.fixed_start(adopted)
        self._window.show(start)
        self._copies.show(start)
