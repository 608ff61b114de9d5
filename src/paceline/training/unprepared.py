"""Tells the user at once of an optimizer that steps before `prepare`, rather than when the script ends without it.

A script may pretrain before `prepare`, so this is no error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class Unprepared:
    """Watches the steps of all optimizers, from the script's start until `prepare` is called."""

    def __init__(self, remark: Callable[[str], object]) -> None:
        """`remark(line)` tells the user what this worker does."""
        self._remark = remark
        self._process = os.getpid()
        self._told = False
        self._hook = register_optimizer_step_post_hook(self._after_step)

    def end(self) -> None:
        """Watch no more. The script calls `prepare`."""
        self._hook.remove()

    def _after_step(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        if self._told or os.getpid() != self._process:
            return
        if not any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]):
            return  # a step without gradients only makes the optimizer's state
        self._told = True  # torch iterates over the hooks just now, so this one can't be removed
        self._remark(
            f"steps an optimizer ({type(optimizer).__name__}) before paceline.prepare(): until that call each worker "
            "trains alone. Pretraining may do so; otherwise put model, optimizer, loader = "
            "paceline.prepare(model, optimizer, loader) before this loop"
        )
