"""A script's model and optimizer, joined to the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor, nn

from paceline.errors import ConfigError
from paceline.training.layout import Places, PushArea
from paceline.training.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The script's own objects, the memory that they are laid over, and the run's end."""

    link: Link
    places: Places
    model: nn.Module
    optimizer: torch.optim.Optimizer
    parameters: list[Tensor]
    """The optimizer's, in its order: the order of `Layout.moving`."""

    @torch.no_grad()
    def put_buffers(self, area: PushArea) -> None:
        """Copy the model's buffers into that area."""
        if area.buffers:
            buffers = dict(self.model.named_buffers())  # afresh: a forward may put new tensors in their places
            for name, view in area.buffers.items():
                view.copy_(buffers[name])

    def refuse(self, message: str) -> NoReturn:
        """End the run with this line."""
        self.link.refuse(message)
        raise ConfigError(message)
