"""Notices that the script steps a `ReduceLROnPlateau`, which each worker does by a metric of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from paceline.core.machine import HolderKind


def remark(holder: HolderKind, in_means: bool) -> str:
    """Whose decision counts, and what to write. `in_means`: see `Link`. It follows on the worker's name."""
    if holder != "window":
        counts = "Each worker's own optimizer steps with its own rate, so where their metrics differ the rates part"
    elif in_means:
        counts = "A version takes the rate of the lowest worker in it, so worker 0's metric decides"
    else:
        counts = "Each update takes its own worker's rate, so where their metrics differ the rates do"
    return (
        f"steps ReduceLROnPlateau, and so does each worker, by its own metric. {counts}. Give step() a metric that is "
        "the same in all workers, such as the loss on the same validation data, or take a schedule by epochs"
    )


class _PlateauWatch:
    """The optimizer whose schedulers matter in this process, and who is told."""

    now: tuple[torch.optim.Optimizer, Callable[[], object]] | None = None


def watch(optimizer: torch.optim.Optimizer, tell: Callable[[], object]) -> None:
    """Call `tell` whenever the script steps a ReduceLROnPlateau of this optimizer."""
    _PlateauWatch.now = optimizer, tell
    if not getattr(ReduceLROnPlateau.step, "paceline_made", False):
        ReduceLROnPlateau.step = _telling(ReduceLROnPlateau.step)  # type: ignore[method-assign]


def _telling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(scheduler: ReduceLROnPlateau, *arguments: Any, **named: Any) -> Any:
        if _PlateauWatch.now is not None and scheduler.optimizer is _PlateauWatch.now[0]:
            _PlateauWatch.now[1]()
        return original(scheduler, *arguments, **named)

    step.paceline_made = True  # type: ignore[attr-defined]
    return step
