"""One run of a script: what it needs is checked before it begins, and it is made under its protocol or under DDP."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from paceline.cluster.scenario import Scenario
from paceline.core.choice import Choice, check_fit, choose
from paceline.protocols import registry
from paceline.records.summary import Summary
from paceline.runs import baseline
from paceline.runtime.settings import Settings

CODES = {"completed": 0, "failed": 3, "diverged": 4, "interrupted": 130}
"""Exit codes of `paceline run`, by how the run ended."""

STARTS: Final = ("staggered", "together")
"""When the workers' scripts begin; the first is the default."""

CROWD = 8
"""Workers for each core from which on a run is warned of, unless its scenario says how long a step takes."""


def chosen(protocol: str) -> Choice | None:
    """Return the protocol that is called so; None is the baseline, which is none of ours."""
    return None if protocol == baseline.NAME else choose(protocol, registry())


def settled(scenario: Scenario, workers: int | None) -> tuple[Scenario, int]:
    """Return the scenario, checked for a real run, and its workers: as many as asked for, or as it says, or 2."""
    workers = workers or scenario.workers or 2
    return scenario.checked_for(workers).checked_for_real_run(), workers


def check_fits(choice: Choice | None, scenario: Scenario, workers: int, flags: Mapping[str, object]) -> None:
    """Raises ConfigError, in one line, if the protocol, or the baseline, can't follow the scenario or the flags."""
    if choice is None:
        baseline.check(flags, scenario)
    else:
        check_fit(choice, scenario.hosts(workers))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def crowd(scenario: Scenario, workers: int) -> str:
    """Return a warning if so many workers only take turns on these cores; else nothing."""
    if workers <= CROWD * cores() or scenario.compute is not None:
        return ""
    shared = "1 core" if cores() == 1 else f"{cores()} cores"
    return (
        f"{workers} workers share {shared}: they take turns, and the run is no faster than with one worker for each "
        "core"
    )


def train(settings: Settings) -> Summary:
    """Make the run. Signals that ask for an end interrupt it."""
    from paceline.runtime.run import Interrupts, run

    return run(settings, Interrupts())


def train_under_ddp(settings: Settings) -> Summary:
    """Make the run under plain DistributedDataParallel, whatever protocol the settings have."""
    from paceline.runtime.baseline import run
    from paceline.runtime.run import Interrupts

    return run(settings, Interrupts())
