"""The script's own optimizer, which steps parameters that the script does not see until they are shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.store.chunks import user_class
from paceline.store.store import Scalars, with_scalars
from paceline.training.training_context import TrainingContext


class Stepping:
    """Steps the optimizer on other tensors than the parameters show, with the parameters' gradients."""

    def __init__(self, context: TrainingContext) -> None:
        self._optimizer = context.optimizer
        self._parameters = context.parameters
        self._clip = context.clip
        self._step = bare_step(user_class(context.optimizer), context.link.rate_scale)

    def step(self, values: list[Tensor], scalars: Scalars | None = None) -> None:
        """Step these, one for each parameter. The parameters show afterwards what they showed before.

        `scalars`: hyperparameters for this step alone, in the place of the script's own.

        What is clipped are copies of the gradients: others may read the same mean, and the script its own.
        """
        shown = [parameter.data for parameter in self._parameters]  # pages that the script must not write into
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.data = value
        try:
            with torch.no_grad():
                if self._clip is not None:
                    limit = self._clip.limit_of([gradient for gradient in gradients if gradient is not None])
                    for parameter, gradient in zip(self._parameters, gradients, strict=True):
                        if gradient is not None:
                            parameter.grad = limit(gradient, torch.empty_like(gradient))
                with with_scalars(self._optimizer, scalars):
                    self._step(self._optimizer)
            for parameter, value in zip(self._parameters, values, strict=True):
                if parameter.data_ptr() != value.data_ptr():  # a user's own optimizer may replace what it steps
                    value.copy_(parameter.detach())
        finally:
            for parameter, view in zip(self._parameters, shown, strict=True):
                parameter.data = view
            if self._clip is not None:
                for parameter, gradient in zip(self._parameters, gradients, strict=True):
                    parameter.grad = gradient


def bare_step(kind: type[torch.optim.Optimizer], rate_scale: float = 1.0) -> Callable[[torch.optim.Optimizer], Any]:
    """Return the class's step without torch's wrappers: hooks have run by then, and torch._dynamo takes seconds.

    The step uses `rate_scale` times the optimizer's learning rates, and leaves those as they are.
    """
    step: Callable[[torch.optim.Optimizer], Any] = kind.step
    if step.__module__.startswith("torch."):
        step = inspect.unwrap(step)
    elif getattr(step, "hooked", False):
        step = getattr(step, "__wrapped__", step)
    if rate_scale == 1.0:
        return step

    def scaled(optimizer: torch.optim.Optimizer) -> None:
        groups = [group for group in optimizer.param_groups if "lr" in group]
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * rate_scale
        try:
            step(optimizer)
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    return scaled
