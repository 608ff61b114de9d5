"""Copies and pickles of what `prepare` returns: plain PyTorch, which loads where there is no Paceline."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from paceline.training.parts import user_class

OURS = ("paceline_session", "_step_supports_amp_scaling")
"""Attributes that a paced optimizer has in addition to the script's own."""


class Hooks(OrderedDict[int, Callable[..., Any]]):
    """A module's hooks, one of which is ours. A copy or a pickle is an ordinary dictionary of the script's own."""

    def __init__(self, hooks: dict[int, Callable[..., Any]], ours: Callable[..., Any]) -> None:
        super().__init__(hooks)
        self.ours = ours

    def __reduce_ex__(self, protocol: Any) -> Any:
        theirs = OrderedDict((key, hook) for key, hook in self.items() if hook is not self.ours)
        return theirs.__reduce_ex__(protocol)


def hook_state_dict(model: nn.Module, hook: Callable[..., Any]) -> None:
    """Let `model.state_dict()` call this hook. Copies and pickles of the model do not have it."""
    model.register_state_dict_post_hook(hook)  # type: ignore[no-untyped-call]
    model._state_dict_hooks = Hooks(model._state_dict_hooks, hook)


def plain_optimizer(optimizer: torch.optim.Optimizer, state: Any) -> torch.optim.Optimizer:
    """Return an optimizer of the script's own class with the same parameters, groups and attributes, and that state."""
    twin = object.__new__(user_class(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    for name in OURS:
        twin.__dict__.pop(name, None)
    twin.state = state
    return twin
