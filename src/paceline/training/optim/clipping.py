"""Clipping as in DDP: of the mean gradient, just before the step, in the process that steps the optimizer.

The arithmetic is that of `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_`, which a script calls between
backward and step. There a worker has its own gradient only, so it does not clip the mean, and the user is told. For
that, torch's functions are replaced before the script runs, so any import of them is covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor

from paceline.errors import ConfigError
from paceline.training.replaced import Patch, put_back, replace
from paceline.training.uncompiled import uncompiled

Limit = Callable[[Tensor, Tensor], Tensor]
"""Write the clipped gradient into the second tensor, and return that."""


@dataclass(frozen=True, slots=True)
class Clip:
    """How `prepare` was asked to clip. One of the two is a number."""

    norm: float | None
    """The largest Euclidean norm that all gradients together may have."""
    value: float | None
    """The largest magnitude that an element of a gradient may have."""

    @classmethod
    def of(cls, norm: Any, value: Any) -> Clip | None:
        """Return how these arguments of `prepare` clip; None if they don't. Raises ConfigError."""
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
        """Return a function that clips one gradient. `norms`: each gradient's, in the order of the parameters."""
        if self.norm is None:
            assert self.value is not None
            return partial(_within, self.value)
        return partial(_scaled, coefficient(norms, self.norm))

    def limit_of(self, gradients: Sequence[Tensor]) -> Limit:
        """Return a function that clips any of these gradients, which are all that the step has."""
        norms = torch._foreach_norm(list(gradients)) if gradients and self.norm is not None else ()
        return self.limit(norm.to(gradients[0].device) for norm in norms)


_INFINITY = float("inf")


def coefficient(norms: Iterable[Tensor], most: float) -> Tensor:
    """Return the factor that brings gradients of these norms to a norm of `most` together; 1 if it is less."""
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
    """Clip in place whenever this optimizer steps, in a script without a run or under DDP.

    Calling it again, as a notebook's cell does, replaces what was asked for before.
    """
    if (before := _hooks.pop(optimizer, None)) is not None:
        before.remove()
    if clip is None:
        return
    # otherwise GradScaler has a fused `step` unscale the gradients, after this hook
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


# --- clipping that a script does by itself


MEASURED = "two batches that come to [.995, .500] under DDP come to [.75, .75] so"
"""See docs/from-ddp.md, which has the script."""


@dataclass(frozen=True, slots=True)
class OwnClipping:
    """What the script is about to clip by itself."""

    clip: Clip
    whole: bool
    """Whether all gradients are clipped together, by their Euclidean norm if by any."""

    def refused(self, asked: Clip) -> str:
        """Return the error where `prepare` was asked to clip, too."""
        return (
            f"the script clips gradients by itself, and prepare() got {asked.asked}, which clips them already; leave "
            "one of the two out"
        )

    def remark(self, in_means: bool) -> str:
        """Return the remark about a worker, to follow its name. `in_means`: see `Link`."""
        if in_means:
            line = f"clips its own gradient before the workers' mean is taken. DDP clips the mean: {MEASURED}."
        else:
            line = (
                "clips its own gradient, which is right while each update stands alone. Under a protocol that takes a "
                f"mean, such as bsp, it is not what DDP does: {MEASURED}."
            )
        if self.whole:
            return f"{line} Leave the call out, and give prepare({self.clip.asked}), which is right under all of them"
        return f"{line} prepare() can clip all gradients together, by their Euclidean norm or by value, and no others"


class _ClippingWatch:
    """The watched parameters, by `id` as tensors compare elementwise, and what is called when they are clipped."""

    now: tuple[WeakValueDictionary[int, Tensor], Callable[[OwnClipping], object]] | None = None


def watch(parameters: Iterable[Tensor], tell: Callable[[OwnClipping], object]) -> None:
    """Call `tell` whenever the script is about to clip gradients of these parameters."""
    _ClippingWatch.now = WeakValueDictionary((id(parameter), parameter) for parameter in parameters), tell
    replace(CLIPPING)


def watch_none() -> None:
    """Stop watching."""
    _ClippingWatch.now = None
    put_back(CLIPPING)


def _telling(original: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """`names` are those of its first arguments."""

    @uncompiled  # else it is told of once, when it is compiled
    @wraps(original)
    def clip(*arguments: Any, **named: Any) -> Any:
        if _ClippingWatch.now is None:
            return original(*arguments, **named)
        given = {**dict(zip(names, arguments, strict=False)), **named}
        clipped = given.get("parameters", ())
        if not isinstance(clipped, Tensor):  # what can be iterated once only
            clipped = list(clipped)
            arguments, named = (
                ((clipped, *arguments[1:]), named) if arguments else ((), {**named, "parameters": clipped})
            )
        by_norm = names[1] == "max_norm"
        norm_type = given.get("norm_type", 2.0)
        _tell([clipped] if isinstance(clipped, Tensor) else clipped, given.get(names[1]), by_norm, norm_type)
        return original(*arguments, **named)

    return clip


def _tell(clipped: Sequence[Tensor], most: Any, by_norm: bool, norm_type: Any) -> None:
    assert _ClippingWatch.now is not None
    ours, tell = _ClippingWatch.now
    there = {id(one) for one in clipped}
    if there.isdisjoint(ours) or not isinstance(most, int | float) or not 0 < most < float("inf"):
        return  # with infinity the script only asks for the norm
    whole = all(one.grad is None or key in there for key, one in ours.items())
    clip = Clip(float(most), None) if by_norm else Clip(None, float(most))
    tell(OwnClipping(clip, whole and float(norm_type) == 2.0))


_UTILS, _MODULE = torch.nn.utils, torch.nn.utils.clip_grad
_by_norm = partial(_telling, names=("parameters", "max_norm", "norm_type"))
_by_given_norm = partial(_telling, names=("parameters", "max_norm"))
_by_value = partial(_telling, names=("parameters", "clip_value"))
_WHY = "a worker clips its own gradient only, and DDP clips the mean"

CLIPPING = (
    Patch((_UTILS, _MODULE), ("clip_grad_norm_",), _by_norm, _WHY),
    Patch((_UTILS,), ("clip_grads_with_norm_",), _by_given_norm, _WHY),
    Patch((_MODULE,), ("_clip_grads_with_norm_",), _by_given_norm, "the first one calls it, however it was imported"),
    Patch((_UTILS, _MODULE), ("clip_grad_value_",), _by_value, _WHY),
)
