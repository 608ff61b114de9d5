"""Whether a training came to nothing on stale gradients, as far as its evaluations tell.

A delay of τ versions makes gradient descent unstable at a rate about τ times smaller than without one, and momentum
makes that worse (Giladi et al., At Stability's Edge, 2020, arXiv 1909.12340). What is taken for harm is ours: from the
middle of the run on, no loss is below the first evaluation's, the mean accuracy isn't above it (where no loss is
known, none is), and one of them is far from it. So noise alone is no harm, nor is a training that stays where it began,
whose reasons may be others. Too large a rate looks the same without delay. So the advice is what to try, and names no
cause.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from paceline.core.choice import Choice
from paceline.records.summary import metric_text, metrics_of

FEWEST = 6
"""Evaluations. Of fewer nothing is said."""
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

    `choice`: the run's protocol. Where workers own replicas, or step parameters of their own, staleness means another
    thing, and nothing is told.
    """
    stale = summary["staleness"]["mean"]
    evaluations: Sequence[Mapping[str, Any]] = summary["evaluations"]
    plain = all(one.spec.state == "store" and not one.spec.local_steps for one in choice.parts or (choice,))
    if not plain or stale is None or stale < STALE or len(evaluations) < FEWEST:
        return []
    first, later = evaluations[0], evaluations[len(evaluations) // 2 :]
    names = [name for name in metrics_of(evaluations) if "loss" in name.lower() or "acc" in name.lower()]
    falls = {name: "acc" in name.lower() for name in names}
    if not names or any(first.get(name) is None or any(name not in one for one in later) for name in names):
        return []
    has_accuracy, has_loss = any(falls.values()), not all(falls.values())
    far = False
    means: dict[str, float] = {}
    for name in names:
        began, sign = first[name], -1 if falls[name] else 1
        values = [math.inf * sign if one[name] is None else one[name] for one in later]  # None: not finite
        means[name] = mean = fmean(values)
        alone = not (falls[name] and has_loss)
        if sign * mean <= sign * began or (alone and any(sign * value <= sign * began for value in values)):
            return []
        far = far or (mean <= FALLEN * began if falls[name] else mean >= RISEN[has_accuracy] * began > 0)
    if not far:
        return []
    now = " and ".join(f"{name} {metric_text(mean if math.isfinite(mean) else None)}" for name, mean in means.items())
    then = " and ".join(metric_text(first[name]) for name in means)
    workers, most = summary["workers"], summary["staleness"]["max"]
    tries = ["-p quorum, which applies no late gradient"]
    if most >= TAIL * workers:
        tries.append(f"-p ringmaster:max_delay={workers}, which applies none that is {workers} or more versions late")
    tries.append(f"a learning rate that is {1 + stale:.0f} times smaller (--learning-rate-scale)")
    return [
        f"The training got worse while gradients were {stale:.1f} versions late on average, {most} at most. In its "
        f"second half it had {now} on average, after {then} at version {first['version']}.",
        f"To see whether delays are why, try {', '.join(tries)}, or less momentum.",
    ]
