"""Where a step's time went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds; `began` counts from the run's start."""

    began: float
    compute: float
    push: float
    wait: float
    pull: float
    other: float


@dataclass(frozen=True, slots=True)
class TransferTimes:
    """Seconds since the run's start: what the network's model says, and when the run acted on the end of it."""

    began: float
    ended: float
    delivered: float
