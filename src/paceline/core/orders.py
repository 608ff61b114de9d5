"""Orders: what is to be done, one frozen class for each. A machine acts on the world by these alone.

Every order carries `why`: a code and its arguments, which `Spec.sentence` writes out when somebody
reads it (a tuple costs a tenth of a formatted string on the decision path). Orders that differ only
in `why` are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Why = tuple[str | int | float, ...]
"""(code, argument, …). The code is a key of the protocol's `Spec.reasons`."""

UNSAID: Why = ("unsaid",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Compute this step on that version."""

    worker: int
    step: int
    version: int
    parameters: Literal["pull"] = "pull"
    """How the worker comes by that version: by a fresh pull from the store."""
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Wait. `why` says for whom."""

    worker: int
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPush:
    """Transfer this step's update to the store now, multiplied by `scale`."""

    worker: int
    step: int
    scale: float = 1.0
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyUpdate:
    """Make `version` from these updates, summed in this order, as one atomic change."""

    version: int
    contributions: tuple[tuple[int, int, float], ...]
    """(worker, step, weight); the weights of one version sum to 1."""
    why: Why = field(default=UNSAID, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropUpdate:
    """Never apply this step's update."""

    worker: int
    step: int
    samples: Literal["return", "missed"]
    """Its samples go back to be leased again, or are counted as missed."""
    why: Why = field(default=UNSAID, compare=False)


Order = Release | Hold | StartPush | ApplyUpdate | DropUpdate
