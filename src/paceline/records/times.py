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
