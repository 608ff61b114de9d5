"""Calls of the script's `evaluate`: on recorded versions after training, and once before it for the metrics' names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from paceline.training.arguments import check_name
from paceline.training.link import Evaluate
from paceline.training.seeding import randomness_kept

TAKEN = ("version", "at_seconds", "samples")
"""What a summary says of every recorded version. A metric of that name would be lost."""


def metrics_of(evaluate: Evaluate, model: nn.Module) -> dict[str, float]:
    """Evaluate the model, and leave each of its modules in the mode that it was in.

    Raises TypeError if that gives no dict or a metric's name is not a string, ValueError if a name is taken
    or can't be printed, and whatever `evaluate` raises.
    """
    training, modes = model.training, [(module, module.training) for module in model.modules()]
    try:
        metrics = evaluate(model)
        if not isinstance(metrics, Mapping):
            raise TypeError(f"evaluate() returned {type(metrics).__name__}; it must return a dict of metrics")
        for name in metrics:
            if not isinstance(name, str):
                raise TypeError(f"evaluate() named a metric {name!r}; a metric's name must be a string")
            check_name("evaluate() named a metric", name)
            if name in TAKEN:
                raise ValueError(f"evaluate() named a metric {name!r}, as the summary names something else; rename it")
        return {name: float(value) for name, value in metrics.items()}
    finally:
        model.train(training)  # a model may do more there than set the modes
        for module, mode in modes:
            module.training = mode


def metric_names(evaluate: Evaluate, model: nn.Module) -> list[str] | None:
    """Return what the metrics are called; None if `evaluate` fails. Training begins as if it had not been called.

    A failure may be due to a model that has learned nothing yet. If it is not, the first recorded version shows it.
    """
    with randomness_kept(), _values_kept(model):
        try:
            return list(metrics_of(evaluate, model))
        except Exception:
            return None


@contextmanager
def _values_kept(model: nn.Module) -> Iterator[None]:
    """Put back the model's parameters, buffers and gradients.

    `evaluate` may have changed any of them: after training each call begins with another version.
    """
    parameters = [(parameter, parameter.detach().clone(), parameter.grad) for parameter in model.parameters()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value, gradient in parameters:
                parameter.copy_(value)
                parameter.grad = gradient
            for module, name, buffer, value in buffers:
                buffer.copy_(value)
                setattr(module, name, buffer)  # a module may have put another tensor in its place
