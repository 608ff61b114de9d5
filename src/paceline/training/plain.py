"""Copies and pickles of what `prepare` returns: plain PyTorch, which loads where there is no Paceline."""

from __future__ import annotations

from typing import Any

import torch

from paceline.training.parts import user_class

OURS = ("paceline_session", "_step_supports_amp_scaling")
"""Attributes that a paced optimizer has in addition to the script's own."""


def plain_optimizer(optimizer: torch.optim.Optimizer, state: Any) -> torch.optim.Optimizer:
    """Return an optimizer of the script's own class with the same parameters, groups and attributes, and that state."""
    twin = object.__new__(user_class(optimizer))
    twin.__dict__.update(optimizer.__dict__)
    for name in OURS:
        twin.__dict__.pop(name, None)
    twin.state = state
    return twin
