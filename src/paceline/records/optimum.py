"""How far a run is from the time that an optimal method would need with workers as fast as its own.

The theory of parallel SGD (Tyurin and Richtárik, Optimal Time Complexities of Parallel Stochastic Optimization Methods,
2023, arXiv 2305.12387) counts the time to a stationary point in units that depend on the problem alone, without
constants. With s, the noise of one gradient against the accuracy that is asked for, that takes

- h(m)(1 + s/m) seconds by the best method, for the m for which this is least. h(m) is the harmonic mean of the times
  that the m fastest workers need for a gradient.
- (1 + d)/v + s/g seconds by a run that makes v versions a second of g gradients a second, each d versions late. That
  form is ours. For `bsp` and `asp` without transfers it comes to the theory's own bounds.

A mean of s gradients needs twice as many steps as the exact gradient. So averaging pays up to s gradients, or little
more, and s is what others call the critical batch, in gradients. Nobody knows it of a training. So ratios for several s
say how much there is to win, and not how long a training takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Any

from paceline.core.machine import Spec

PARTS = ("compute", "wait", "transfer", "other")
"""What a worker's time in a run consists of."""
UNKNOWN = "× best is unknown (-) for ddp, for protocols that switch or make own steps, and if a worker made no gradient"
"""What a table says below if some of its runs have no such ratio."""
GRADIENTS = 5000
"""How many gradients an estimate of `ringmaster` plays through."""


def least_time(gradient_seconds: Iterable[float], noise: float) -> float:
    """Return the seconds of the best method, with workers that take so long for a gradient.

    >>> round(least_time([1, 1, 1, 10], noise=4), 4)
    2.3333
    """
    best, rate = math.inf, 0.0
    for number, seconds in enumerate(sorted(gradient_seconds), 1):
        rate += 1 / seconds
        best = min(best, (number + noise) / rate)
    return best


def estimates(gradient_seconds: Iterable[float], noise: float) -> dict[str, float]:
    """Return the seconds that protocols would need with these workers, in the same units, if nothing had to be moved.

    `bsp` and `asp` are the theory's (Tyurin and Richtárik), and the others are ours. Under `balanced` all workers'
    speeds together make a gradient for each of them on average, so it comes to `asp`'s. `quorum` and `ringmaster` have
    the best of the parameters that were tried. `rennala` is missing: its estimate is `quorum`'s or more, as workers
    begin gradients for a version that is made before they end.

    >>> {name: round(seconds, 2) for name, seconds in estimates([1, 2, 4, 8], noise=8).items()}
    {'bsp': 24.0, 'balanced:unit=sample': 6.4, 'asp': 6.4, 'quorum:m=1': 9.0, 'ringmaster:max_delay=4': 6.67}
    """
    taken = sorted(gradient_seconds)
    rounds = {number: seconds * (1 + noise / number) for number, seconds in enumerate(taken, 1)}
    rate = sum(1 / seconds for seconds in taken)
    together = (len(taken) + noise) / rate
    found = {"bsp": rounds.pop(len(taken)), "balanced:unit=sample": together, "asp": together}
    if rounds:
        best = min(rounds, key=lambda number: (rounds[number], -number))
        found[f"quorum:m={best}"] = rounds[best]
        tried = sorted({best, len(taken), *(1 << power for power in range(len(taken).bit_length()))})
        delays = {delay: _ringmaster(taken, noise, delay) for delay in tried}
        best = min(delays, key=lambda delay: (delays[delay], delay))
        found[f"ringmaster:max_delay={best}"] = delays[best]
    return found


def _ringmaster(taken: Sequence[float], noise: float, max_delay: int) -> float:
    """Return the seconds, in the form of a run's, where no gradient counts that is `max_delay` versions late."""
    due = [(seconds, worker, 0) for worker, seconds in enumerate(taken)]
    heapify(due)
    version, late, at = 0, 0, 0.0
    for _ in range(GRADIENTS):
        at, worker, computed_on = due[0]
        if (delay := version - computed_on) < max_delay:
            version, late = version + 1, late + delay
        heapreplace(due, (at + taken[worker], worker, version))
    return at * (1 + late / version + noise) / version


def gradient_seconds(rows: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """Return how long each worker computes for a gradient, by `per_worker` of a summary. None: of some that is unknown.

    A worker that was there for half of the time counts as half as fast.
    """
    taken: list[float] = [row.get("gradient_seconds") or 0.0 for row in rows]
    if not all(taken):
        return None
    stayed = [math.fsum(row[f"{part}_seconds"] for part in PARTS) for row in rows]
    return [seconds * max(stayed) / there for seconds, there in zip(taken, stayed, strict=True)] or None


def over_optimum(
    spec: Spec,
    workers: int,
    seconds: float,
    versions: int,
    gradients: float,
    staleness: float | None,
    rows: Sequence[Mapping[str, Any]],
) -> dict[str, float] | None:
    """Return how many times longer the run takes than the best method would, by s: for 0, n and 4n with n `workers`.

    `seconds`: of training, in which so many versions were made of so many batches' gradients. `staleness`: their mean
    one. `rows`: `per_worker` of the summary. None where versions aren't made of gradients by one protocol, or none was
    made.
    """
    taken = gradient_seconds(rows)
    if spec.local_steps or spec.parts or taken is None or staleness is None or not (versions and seconds):
        return None
    noises = (0, workers, 4 * workers)
    needed = {noise: seconds * ((1 + staleness) / versions + noise / gradients) for noise in noises}
    return {str(noise): own / least_time(taken, noise) for noise, own in needed.items()}


def over_best(summary: Mapping[str, Any]) -> float | None:
    """Return how many times longer the run takes than the best method, with s = n; None if that is unknown."""
    ratios = summary.get("over_optimum")
    return None if ratios is None else float(list(ratios.values())[1])
