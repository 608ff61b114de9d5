"""Where a step's time went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTimes:
    """In seconds. `began` counts from the run's start."""

    began: float
    compute: float
    push: float
    wait: float
    pull: float
    other: float


@dataclass(frozen=True, slots=True)
class TransferTimes:
    """Seconds since the run's start: the times of the network's model, and when the run acted on the transfer's end."""

    began: float
    ended: float
    delivered: float


def exposed(transfers: Iterable[tuple[str, float, float]], since: float, until: float) -> tuple[float, float]:
    """Seconds of pushes and of pulls within this time, in which a worker waited. No second counts twice.

    `transfers`: (direction, began, ended). Of two at the same time the one that began first counts.
    """
    seconds = {"push": 0.0, "pull": 0.0}
    for direction, began, ended in sorted(transfers, key=lambda transfer: transfer[1]):
        since = max(since, began)
        if min(until, ended) > since:
            seconds[direction] += min(until, ended) - since
            since = min(until, ended)
    return seconds["push"], seconds["pull"]
