"""Whether a training came to nothing on stale gradients, as far as its evaluations or its logged values tell.

A delay of τ versions makes gradient descent unstable at a rate about τ times smaller than without one, and momentum
makes that worse (Giladi et al., At Stability's Edge, 2020, arXiv 1909.12340). What is taken for harm is ours: from the
middle of the run on, no loss is below the first evaluation's, the mean accuracy isn't above it (where no loss is
known, none is), and one of them is far from it. So noise alone is no harm, nor is a training that stays where it began,
whose reasons may be others. Too large a rate looks the same without delay. So the advice is what to try, and names no
cause.

Where there are too few evaluations, the first and the last value that the script logged take their places: a summary
keeps no others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from paceline.core.choice import Choice
from paceline.records.summary import metric_text, metrics_of

FEWEST = 6
"""Evaluations. Fewer of them tell nothing."""
STALE = 1.0
"""The mean staleness from which on it may be the reason, in versions."""
FALLEN = 0.75
"""The share of the first accuracy below which the mean of the later ones is far from it."""
TAIL = 2
"""How many times the number of workers a delay is, to be a slow worker's: among equal ones it is about that number."""
RISEN = {True: 1.25, False: 2.0}
"""How many times the first loss the mean of the later ones is, to be far from it. By whether there is an accuracy:
the loss of a training that merely overfits may rise, too."""


def harm(summary: Mapping[str, Any], choice: Choice) -> list[str]:
    """Return what went wrong on stale gradients, and what to try, in two parts. Empty: nothing can be told.

    `choice`: the run's protocol.
    """
    if not late(summary, choice):
        return []
    got_worse = _evaluated(summary["evaluations"]) or _logged(summary.get("scalars", {}))
    if not got_worse:
        return []
    stale = summary["staleness"]
    return [
        f"The training got worse while gradients were {stale['mean']:.1f} versions late on average, {stale['max']} at "
        f"most. {got_worse}",
        advice(summary["workers"], stale),
    ]


def late(summary: Mapping[str, Any], choice: Choice) -> bool:
    """Whether updates of a common model were computed on versions that were late on average.

    Where workers own replicas, or step parameters of their own, staleness means another thing.
    """
    stale = summary["staleness"]["mean"]
    plain = all(one.spec.state == "store" and not one.spec.local_steps for one in choice.parts or (choice,))
    return plain and stale is not None and stale >= STALE


def advice(workers: int, stale: Mapping[str, Any]) -> str:
    """Say what to try against late gradients. `stale`: a summary's staleness."""
    tries = ["-p quorum, which applies no late gradient"]
    if stale["max"] >= TAIL * workers:
        tries.append(f"-p ringmaster:max_delay={workers}, which applies none that is {workers} or more versions late")
    tries.append(f"a learning rate that is {1 + stale['mean']:.0f} times smaller (--learning-rate-scale)")
    return f"To see whether delays are why, try {', '.join(tries)}, or less momentum."


def _evaluated(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Say how far the evaluations got worse; empty if they did not."""
    if len(evaluations) < FEWEST:
        return ""
    first, later = evaluations[0], evaluations[len(evaluations) // 2 :]
    if any(first.get(name) is None or any(name not in one for one in later) for name in _telling(evaluations)):
        return ""
    series = {name: (first[name], [one[name] for one in later]) for name in _telling(evaluations)}
    if not (means := _worse(series)):
        return ""
    now, then = _both(means, {name: began for name, (began, _) in series.items()})
    return f"In its second half it had {now} on average, after {then} at version {first['version']}."


def _logged(scalars: Mapping[str, Mapping[str, Any]]) -> str:
    """Say how far the logged values got worse, from the first to the last; empty if they did not."""
    ends = {name: (one["first"], one["last"]) for name, one in scalars.items() if name in _telling([scalars])}
    if any(first["value"] is None or first["at_seconds"] == last["at_seconds"] for first, last in ends.values()):
        return ""
    means = _worse({name: (first["value"], [last["value"]]) for name, (first, last) in ends.items()})
    if not means:
        return ""
    now, then = _both(means, {name: first["value"] for name, (first, _) in ends.items()})
    return f"Its script logged {now} last, after {then} first."


def _telling(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the metrics whose names say which values are good: losses and accuracies. `accumulated_loss` has both."""
    return [name for name in metrics_of(rows) if ("loss" in name.lower()) != ("acc" in name.lower())]


def _worse(series: Mapping[str, tuple[float, Sequence[float | None]]]) -> dict[str, float]:
    """Return the mean of each metric's later values if the training got worse; else nothing.

    `series`: by metric, the first value, and the later ones. None: not finite.
    """
    falls = {name: "acc" in name.lower() for name in series}
    has_accuracy, has_loss = any(falls.values()), not all(falls.values())
    far = False
    means: dict[str, float] = {}
    for name, (began, after) in series.items():
        sign = -1 if falls[name] else 1
        values = [math.inf * sign if value is None else value for value in after]
        means[name] = mean = fmean(values)
        alone = not (falls[name] and has_loss)
        if sign * mean <= sign * began or (alone and any(sign * value <= sign * began for value in values)):
            return {}
        far = far or (mean <= FALLEN * began if falls[name] else mean >= RISEN[has_accuracy] * began > 0)
    return means if far else {}


def _both(means: Mapping[str, float], first: Mapping[str, float]) -> tuple[str, str]:
    """Write out the later values, each with its name, and the first ones."""
    now = " and ".join(f"{name} {metric_text(mean if math.isfinite(mean) else None)}" for name, mean in means.items())
    return now, " and ".join(metric_text(first[name]) for name in means)
