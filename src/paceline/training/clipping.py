"""Clipping as DDP's users know it: of the mean gradient, by whoever steps the optimizer, just before the step.

The arithmetic is that of `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_`, which a script calls between
backward and step. There a worker has its own gradient only, so what it clips is not the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from paceline.errors import ConfigError

Limit = Callable[[Tensor, Tensor], Tensor]
"""Put a gradient into the second tensor, with all that is to be clipped clipped, and return that."""


@dataclass(frozen=True, slots=True)
class Clip:
    """What `prepare` was told of clipping. One of the two is a number."""

    norm: float | None
    """The largest Euclidean norm that all gradients together may have."""
    value: float | None
    """The largest magnitude that an element of a gradient may have."""

    @classmethod
    def of(cls, norm: Any, value: Any) -> Clip | None:
        """Return what these arguments of `prepare` ask for; None if that is nothing. Raises ConfigError."""
        given = {"clip_grad_norm": norm, "clip_grad_value": value}
        for name, most in given.items():
            if most is None:
                continue
            if isinstance(most, bool) or not isinstance(most, int | float) or not 0 < most < _INFINITY:
                raise ConfigError(f"prepare() got {name}={most!r}; it must be a number greater than 0, and finite")
        if norm is not None and value is not None:
            raise ConfigError(
                f"prepare() got clip_grad_norm={norm!r} and clip_grad_value={value!r}; it clips by one of them: leave "
                "the other out"
            )
        if norm is None and value is None:
            return None
        return cls(norm if norm is None else float(norm), value if value is None else float(value))

    @property
    def asked(self) -> str:
        """The argument of `prepare` that asks for this."""
        return f"clip_grad_value={self.value}" if self.norm is None else f"clip_grad_norm={self.norm}"

    def limit(self, norms: Iterable[Tensor] = ()) -> Limit:
        """Return what clips one gradient after another. `norms`: each gradient's, in the order of the parameters."""
        if self.norm is None:
            assert self.value is not None
            return partial(_within, self.value)
        return partial(_scaled, coefficient(norms, self.norm))

    def limit_of(self, gradients: Sequence[Tensor]) -> Limit:
        """Return what clips these gradients, which are all that the step has."""
        norms = torch._foreach_norm(list(gradients)) if gradients and self.norm is not None else ()
        return self.limit(norm.to(gradients[0].device) for norm in norms)


_INFINITY = float("inf")


def coefficient(norms: Iterable[Tensor], most: float) -> Tensor:
    """Return what gradients of these norms are multiplied with, to have a norm of `most` together; 1 if it is less."""
    every = list(norms)
    if not every:
        return torch.tensor(1.0)
    total = torch.linalg.vector_norm(torch.stack(every))
    return torch.clamp(most / (total + 1e-6), max=1.0)


def _scaled(factor: Tensor, gradient: Tensor, into: Tensor) -> Tensor:
    return torch.mul(gradient, factor.to(gradient.device), out=into)


def _within(most: float, gradient: Tensor, into: Tensor) -> Tensor:
    return torch.clamp(gradient, -most, most, out=into)


_hooks: WeakKeyDictionary[torch.optim.Optimizer, Any] = WeakKeyDictionary()


def clip_before_steps(optimizer: torch.optim.Optimizer, clip: Clip | None) -> None:
    """Clip in place whenever this optimizer steps, where no run does that: alone, and beside DDP.

    Calling it again, as a notebook's cell does, replaces what was asked for before.
    """
    if (before := _hooks.pop(optimizer, None)) is not None:
        before.remove()
    if clip is None:
        return
    # otherwise GradScaler leaves it to a fused `step` to unscale, and gradients are still scaled here
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]

    def clip_all() -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        with torch.no_grad():
            limit = clip.limit_of(gradients)
            for gradient in gradients:
                limit(gradient, gradient)

    def before_step(_: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        optimizer_itself, *given = args
        closure = given[0] if given else kwargs.get("closure")
        if closure is None:
            clip_all()
            return None

        def then_clipped() -> Any:  # the step has no gradient before the closure has made it
            value = closure()
            clip_all()
            return value

        return (optimizer_itself, then_clipped), {name: one for name, one in kwargs.items() if name != "closure"}

    _hooks[optimizer] = optimizer.register_step_pre_hook(before_step)
