"""What a script gives `prepare`: model, optimizer, loader and schedulers, in any order, and options by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from paceline.errors import ConfigError
from paceline.training.link import Evaluate
from paceline.training.optim.clipping import Clip


@dataclass(frozen=True, slots=True)
class Arguments:
    """The objects by kind. Only schedulers are sure to be of their kind; see `sorted_out`."""

    given: tuple[Any, ...]
    """All of them, in the script's order."""
    model: Any
    optimizer: Any
    loader: Any
    """None if there is none."""
    schedulers: tuple[Any, ...]

    @property
    def optimized(self) -> list[Tensor]:
        """The optimizer's parameters, in its order."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def returned(self, model: Any, loader: Any = None) -> tuple[Any, ...]:
        """Return the objects in the script's order, with `model` and `loader` in place of its own."""
        new = {id(self.model): model, id(self.loader): loader}
        return tuple(new.get(id(one), one) for one in self.given if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the script asks for by name. See `prepare`."""

    epochs: int | None
    evaluate: Evaluate | None
    buffers: str | None
    shards: str | None
    keep: Mapping[str, Any]
    clip: Clip | None


def sorted_out(given: Sequence[Any]) -> Arguments:
    """Sort the arguments by kind. One of an unknown kind takes the first free place.

    Raises ConfigError if no place is free.
    """
    rest = [one for one in given if one is not None]
    schedulers = tuple(one for one in rest if isinstance(one, LRScheduler))
    rest = [one for one in rest if not isinstance(one, LRScheduler)]
    found = [
        next((one for one in rest if isinstance(one, kind)), None)
        for kind in (nn.Module, torch.optim.Optimizer, DataLoader)
    ]
    rest = [one for one in rest if all(one is not taken for taken in found)]
    for place, one in enumerate(found):
        if one is None and rest:
            found[place] = rest.pop(0)
    if rest:
        raise ConfigError(
            f"prepare() got a {type(rest[0]).__name__} besides a model, an optimizer and a loader; it takes one of "
            "each, and the optimizer's learning-rate schedulers"
        )
    model, optimizer, loader = found
    return Arguments(tuple(given), model, optimizer, loader, schedulers)
