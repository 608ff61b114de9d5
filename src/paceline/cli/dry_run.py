"""`paceline compare --dry-run`: which runs a comparison would make, and, from the simulator, how long they take."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.cli.columns import as_text
from paceline.cli.series import count
from paceline.cluster.scenario import Scenario
from paceline.core.choice import Choice
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.reading import reading
from paceline.sim.calibration import Run, read
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run that a comparison would make, or has made."""

    protocol: str
    seed: int
    folder: Path
    done: bool


def check_flags(options: argparse.Namespace) -> None:
    """Raises ConfigError, in one line, for flags of a dry run that don't go together."""
    for flag, value in (("--from", options.costs), ("--steps", options.steps)):
        if value is not None and not options.dry_run:
            raise ConfigError(f"{flag} is given, and nothing is predicted: add --dry-run, or leave it out")
    if options.costs is not None and options.steps is not None:
        raise ConfigError(
            "--from is given, whose run says how many steps there are, and --steps: leave one of them out"
        )


def show(
    runs: Sequence[Planned],
    protocols: Mapping[str, Choice | None],
    scenario: Scenario,
    workers: int,
    options: argparse.Namespace,
) -> None:
    """Print what would run, in order, and how long each takes, or what is lacking to know that."""
    lacking = what_is_lacking(scenario, options)
    choices = {name: choice for name, choice in protocols.items() if choice is not None}
    seconds: dict[str, float | None] = dict.fromkeys(protocols)
    remarks: list[str] = []
    if not lacking:
        try:
            predicted, remarks = _predicted(choices, scenario, workers, options)
            seconds |= predicted
        except ConfigError as error:
            if options.costs is not None:  # it was given, and can't be used
                raise
            lacking = str(error)
    total = None if None in seconds.values() else sum(seconds[run.protocol] or 0.0 for run in runs if not run.done)
    if not lacking and (strange := protocols.keys() - choices.keys()):
        lacking = f"{', '.join(strange)} is no protocol of ours, and not simulated"
    if options.json:
        plain = [
            {
                "protocol": run.protocol,
                "seed": run.seed,
                "folder": str(run.folder),
                "done": run.done,
                "seconds": seconds[run.protocol],
            }
            for run in runs
        ]
        print(json.dumps({"runs": plain, "seconds": total, "lacking": lacking or None, "remarks": remarks}, indent=2))
        return
    rows = [
        [str(number), run.protocol, str(run.seed), run.folder.name, _told(run, seconds[run.protocol])]
        for number, run in enumerate(runs, 1)
    ]
    print(as_text(("run", "protocol", "seed", "folder", "seconds"), rows, ("run", "seed", "seconds")))
    left = sum(not run.done for run in runs)
    if total is None:
        print(f"{count(left, 'run')} to make; how long they take can't be predicted: {lacking}")
    else:
        print(f"{count(left, 'run')} to make, about {_time(total)} of training; starting and evaluating take longer")
    for remark in remarks:
        print(remark)


def what_is_lacking(scenario: Scenario, options: argparse.Namespace) -> str:
    """What a prediction needs and has not been given; empty if it has all."""
    if options.costs is not None:
        return ""
    if scenario.compute is None:
        return (
            "nothing says how long a step takes; give --from RUN, the folder of an earlier run of this script, or a "
            "scenario with cluster.compute, and --steps N"
        )
    if options.steps is None:
        return "nothing says how many steps there are; give --steps N (batches of an epoch × epochs), or --from RUN"
    return ""


def _predicted(
    choices: Mapping[str, Choice], scenario: Scenario, workers: int, options: argparse.Namespace
) -> tuple[dict[str, float | None], list[str]]:
    """By protocol the virtual seconds of one run, and what is taken for granted."""
    most = math.inf if options.max_seconds is None else options.max_seconds
    if options.costs is not None:
        run = _costs(options.costs, scenario, workers)
        remarks = [remark for choice in choices.values() for remark in run.remarks(choice)]
        made = {name: run.simulation(choice, seed=options.seed) for name, choice in choices.items()}
    else:
        remarks = []
        told: dict[str, Any] = {"workers": workers, "seed": options.seed, "batch": None}
        made = {
            name: replace(Simulation.on(scenario, choice, Limit(), **told), data=options.steps)
            for name, choice in choices.items()
        }
    seconds: dict[str, float | None] = {}
    for name, simulation in made.items():
        limit = replace(simulation.limit, seconds=min(simulation.limit.seconds, most))
        events = tuple(event for event in simulation.scenario.events if (event.at or 0.0) < limit.seconds)
        bounded = replace(simulation, limit=limit, scenario=replace(simulation.scenario, events=events))
        seconds[name] = simulate(bounded)["wall_seconds"]
    return seconds, [f"--from {options.costs}: {remark}" for remark in dict.fromkeys(remarks)]


def _costs(folder: Path, scenario: Scenario, workers: int) -> Run:
    """What that run cost. Raises ConfigError, in one line, if it says nothing of this comparison's cluster."""
    with reading(folder):
        run = read(folder, registry())
    if run.workers != workers:
        raise ConfigError(f"--from {folder} has {count(run.workers, 'worker')}, and -n is {workers}; name another run")
    if replace(run.scenario, workers=None) != replace(scenario, workers=None):
        raise ConfigError(f"--from {folder} was made on another scenario than --scenario has; name another run")
    return run


def _told(run: Planned, seconds: float | None) -> str:
    if run.done:
        return "done already"
    return "?" if seconds is None else f"{seconds:.1f}"


def _time(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
