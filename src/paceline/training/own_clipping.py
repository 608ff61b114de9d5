"""Notices that the script clips gradients by itself: a worker has its own gradient only, and DDP clips the mean.

What torch clips with is replaced in this process, before the script runs. So it does not matter how a script, or a
framework that it uses, has imported it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch.nn.utils
from torch import Tensor

from paceline.training.clipping import Clip
from paceline.training.replaced import Patch, put_back, replace
from paceline.training.uncompiled import uncompiled

MEASURED = "two batches that come to [.995, .500] under DDP come to [.75, .75] so"
"""See docs/from-ddp.md, which has the script."""


@dataclass(frozen=True, slots=True)
class OwnClipping:
    """What the script is about to clip by itself."""

    clip: Clip
    whole: bool
    """Whether all gradients are clipped together, by their Euclidean norm if by any."""

    def refused(self, asked: Clip) -> str:
        """Why it can't do so where `prepare` was asked to clip, too."""
        return (
            f"the script clips gradients by itself, and prepare() got {asked.asked}, which clips them already; leave "
            "one of the two out"
        )

    def remark(self, in_means: bool) -> str:
        """What the user of several workers should know. `in_means`: see `Link`. It follows on the worker's name."""
        if in_means:
            line = f"clips its own gradient before all workers' mean is taken. DDP clips the mean: {MEASURED}."
        else:
            line = (
                "clips its own gradient, which is right while each update stands alone. Under a protocol that takes a "
                f"mean, such as bsp, it is not what DDP does: {MEASURED}."
            )
        if self.whole:
            return f"{line} Leave the call out, and give prepare({self.clip.asked}), which is right under all of them"
        return f"{line} prepare() can clip all gradients together, by their Euclidean norm or by value, and no others"


class _ClippingWatch:
    """Whose gradients matter in this process, by `id`, as tensors compare elementwise. And who is told."""

    now: tuple[weakref.WeakValueDictionary[int, Tensor], Callable[[OwnClipping], object]] | None = None


def watch(parameters: Iterable[Tensor], tell: Callable[[OwnClipping], object]) -> None:
    """Call `tell` whenever the script is about to clip gradients of these parameters."""
    _ClippingWatch.now = weakref.WeakValueDictionary((id(parameter), parameter) for parameter in parameters), tell
    replace(CLIPPING)


def watch_none() -> None:
    """The script may clip what it likes."""
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
