"""Calls of the script's `evaluate`: on recorded versions after training, and once before it for the metrics' names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import Tensor, nn

from paceline.training.link import Evaluate, Measure
from paceline.training.model.recorded_version import install, structure_of
from paceline.training.model.structure import Followed
from paceline.training.seeding import mixed, randomness_kept, seed_all

if TYPE_CHECKING:
    from paceline.training.session import Session

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


def measure_of(model: nn.Module, evaluate: Evaluate | None, seed: int) -> Measure | None:
    """Return what evaluates a recorded version in a process that is forked while the script is in `prepare`.

    None where nothing is evaluated, or on a GPU, which no forked process can use.
    """
    if evaluate is None or any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return None
    followed = Followed(model)
    return lambda version, file: _evaluated(followed, None, evaluate, seed, version, file)


def evaluated(session: Session, evaluate: Evaluate, version: int, file: Path) -> dict[str, float]:
    """Return the metrics of a recorded version, after training, in the model that the script prepared.

    What `evaluate` draws depends on the version alone, whichever worker evaluates it and whatever was drawn before.
    """
    followed, seed = session.followed, session.link.seed
    session.live = False
    if not session.as_left:
        session.as_left = [
            (one, one.detach().clone()) for one in (*followed.model.parameters(), *followed.model.buffers())
        ]
    with safe_open(file, framework="pt") as recorded:
        number, _ = structure_of(recorded.metadata())
    now = followed.look() is None and number == followed.structure.number
    with nullcontext() if now else session.structure_edits.shapes[number].again():
        return _evaluated(followed, followed.added, evaluate, seed, version, file)


def end_evaluating(session: Session) -> None:
    """Let the model be as the script has left it."""
    session.live = False
    with torch.no_grad():
        for one, value in session.as_left:
            one.copy_(value)


def _evaluated(
    followed: Followed, added: Mapping[str, Tensor] | None, evaluate: Evaluate, seed: int, version: int, file: Path
) -> dict[str, float]:
    seed_all(mixed("evaluate", seed, version))
    install(followed.held(), file, added)
    return metrics_of(evaluate, followed.model)


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


def check_name(said: str, name: str) -> None:
    """Raise ValueError, which begins with `said`, for a name that is empty or has control characters."""
    if not name or not name.isprintable():
        raise ValueError(
            f"{said} {name!r}; a name must have a character or more, and no line breaks or control characters"
        )
