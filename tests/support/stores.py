"""A store and what its workers push to it, all in this process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from paceline.store.store import Store
from paceline.training.layout import Layout, Places

SLOTS, WORKERS = 3, 2


def store_of(model: nn.Module, optimizer: torch.optim.Optimizer, **given: Any) -> Store:
    """A store with places of its own. `given` is passed on."""
    return Store.of(model, optimizer, Places.new(Layout.of(model, optimizer), SLOTS, WORKERS), **given)


def push(store: Store, worker: int, gradients: list[Tensor | None], buffers: dict[str, Tensor] | None = None) -> None:
    """Put a worker's gradients and buffers into its push area."""
    area = store.pushes[worker]
    for view, gradient in zip(area.gradients, gradients, strict=True):
        if gradient is not None:
            view.copy_(gradient)
    area.present.copy_(torch.tensor([gradient is not None for gradient in gradients]))
    for name, value in (buffers or {}).items():
        area.buffers[name].copy_(value)


class Counting(torch.optim.Optimizer):
    """Of the user's own: looks across a parameter, counts in an attribute and in its groups, keeps a list."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "seen": 0})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Make a step."""
        self.steps += 1
        for group in self.param_groups:
            group["seen"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    norms = self.state[parameter].setdefault("norms", [torch.zeros(())])
                    norms.append(norms[-1] + parameter.grad.double().norm().float())
                    parameter -= group["lr"] / (self.steps * group["seen"]) * parameter.grad / norms[-1]


def same(one: Any, other: Any) -> bool:
    """Whether two trees are equal in types and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        bits = one.dtype == other.dtype and one.stride() == other.stride()
        return bits and torch.equal(one.contiguous(), other.contiguous())
    if isinstance(one, dict):
        return [*one] == [*other] and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
