"""Delayed Nesterov: an outer optimizer for differences that arrive one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class DelayedNesterov(torch.optim.Optimizer):
    """Takes each gradient at once, and their mean into the momentum after every `delay` of them.

    With N = `delay` and a = `activation`, the t-th gradient g of a parameter (t = 1, 2, …) is stepped as

        sum ← sum + g
        every N-th t: m ← momentum · m + sum / N,  θ ← θ − lr · ((1 − aN + a) · momentum · m + g / N),  sum ← 0
        else:         θ ← θ − lr · (a · momentum · m + g / N)

    With a = 0, N gradients move θ as one step of Nesterov momentum with their mean does. Each parameter counts its own
    gradients. Source: Liu et al., Asynchronous Local-SGD Training for Language
    Modeling, 2024 (arXiv 2401.09135), Algorithm 3.
    """

    def __init__(self, params: Any, lr: float, momentum: float = 0.9, delay: int = 2, activation: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "delay": delay, "activation": activation})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient."""
        for group in self.param_groups:
            lr, momentum, delay, activation = (group[key] for key in ("lr", "momentum", "delay", "activation"))
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state |= {"step": 0, "sum": torch.zeros_like(parameter), "momentum": torch.zeros_like(parameter)}
                state["step"] += 1
                total, moving, share = state["sum"].add_(parameter.grad), state["momentum"], activation
                if state["step"] % delay == 0:
                    moving.mul_(momentum).add_(total, alpha=1 / delay)
                    total.zero_()
                    share = 1 - activation * delay + activation
                parameter.add_(parameter.grad, alpha=-lr / delay)
                if share:
                    parameter.add_(moving, alpha=-lr * share * momentum)
