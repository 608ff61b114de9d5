"""Predicts how long the runs of a comparison take, with the simulator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.core.choice import Choice
from paceline.core.phrases import count
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.reading import reading
from paceline.scenario.scenario import Scenario
from paceline.sim.calibration import CalibratedRun, read
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit


def what_is_lacking(scenario: Scenario, costs: Path | None, steps: int | None) -> str:
    """Return what a prediction still needs from the user; empty if nothing is missing."""
    if costs is not None:
        return ""
    if scenario.compute is None:
        return (
            "nothing says how long a step takes; give --from RUN, the folder of an earlier run of this script, or a "
            "scenario with cluster.compute, and --steps N"
        )
    if steps is None:
        return "nothing says how many steps there are; give --steps N (batches of an epoch × epochs), or --from RUN"
    return ""


def predicted(
    choices: Mapping[str, Choice],
    scenario: Scenario,
    workers: int,
    *,
    seed: int,
    costs: Path | None,
    steps: int | None,
    max_seconds: float | None,
) -> tuple[dict[str, float | None], list[str]]:
    """Return the virtual seconds of one run by protocol, and the assumptions.

    `costs` is the folder of a run with the same workers and scenario. Without it every run has data for `steps` steps,
    and the scenario says how long a step takes.
    """
    most = math.inf if max_seconds is None else max_seconds
    if costs is not None:
        run = _costs(costs, scenario, workers)
        remarks = [remark for choice in choices.values() for remark in run.remarks(choice)]
        made = {name: run.simulation(choice, seed=seed) for name, choice in choices.items()}
    else:
        remarks = []
        told: dict[str, Any] = {"workers": workers, "seed": seed, "batch": None}
        made = {
            name: replace(Simulation.on(scenario, choice, Limit(), **told), data=steps)
            for name, choice in choices.items()
        }
    seconds: dict[str, float | None] = {}
    for name, simulation in made.items():
        limit = replace(simulation.limit, seconds=min(simulation.limit.seconds, most))
        events = tuple(event for event in simulation.scenario.events if (event.at or 0.0) < limit.seconds)
        bounded = replace(simulation, limit=limit, scenario=replace(simulation.scenario, events=events))
        seconds[name] = simulate(bounded)["wall_seconds"]
    return seconds, [f"--from {costs}: {remark}" for remark in dict.fromkeys(remarks)]


def _costs(folder: Path, scenario: Scenario, workers: int) -> CalibratedRun:
    """Return that run's costs. Raises ConfigError, in one line, if its cluster is not this comparison's."""
    with reading(folder):
        run = read(folder, registry())
    if run.workers != workers:
        raise ConfigError(f"--from {folder} has {count(run.workers, 'worker')}, and -n is {workers}; name another run")
    if replace(run.scenario, workers=None) != replace(scenario, workers=None):
        raise ConfigError(f"--from {folder} was made on another scenario than --scenario has; name another run")
    return run
