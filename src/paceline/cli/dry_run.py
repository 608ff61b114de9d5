"""`paceline compare --dry-run`: which runs a comparison would make, and, from the simulator, how long they take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.columns import as_text
from paceline.core.choice import Choice
from paceline.core.phrases import count
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.reading import open_run
from paceline.runs.eta import roughly
from paceline.runs.predict import predicted, what_is_lacking
from paceline.scenario.scenario import Scenario
from paceline.scenario.scenario_file import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run that a comparison would make, or has made."""

    protocol: str
    seed: int
    folder: Path
    done: bool


def check_flags(options: argparse.Namespace) -> None:
    """Raise ConfigError, in one line, for flags of a dry run that don't go together."""
    for flag, value in (("--from", options.costs), ("--steps", options.steps)):
        if value is not None and not options.dry_run:
            raise ConfigError(f"{flag} is given, and nothing is predicted: add --dry-run, or leave it out")
    if options.costs is not None and options.steps is not None:
        raise ConfigError(
            "--from is given, whose run says how many steps there are, and --steps: leave one of them out"
        )


def workers_of(options: argparse.Namespace) -> int | None:
    """Return the workers of each run: those of -n, or of the run that --from names; None if neither says.

    The tables of a scenario's hosts, or its own number of workers, come before those of the run.
    """
    if options.workers is not None or options.costs is None:
        workers: int | None = options.workers
        return workers
    if options.scenario is not None and load(options.scenario).workers is not None:
        return None
    run = open_run(options.costs, registry())
    run.ledger.close()
    return run.workers


def show(
    runs: Sequence[Planned],
    protocols: Mapping[str, Choice | None],
    scenario: Scenario,
    workers: int,
    options: argparse.Namespace,
) -> None:
    """Print the runs in order with how long each takes, or what is missing to predict that."""
    lacking = what_is_lacking(scenario, options.costs, options.steps)
    choices = {name: choice for name, choice in protocols.items() if choice is not None}
    seconds: dict[str, float | None] = dict.fromkeys(protocols)
    remarks: list[str] = []
    if not lacking:
        try:
            taken, remarks = predicted(
                choices,
                scenario,
                workers,
                seed=options.seed,
                costs=options.costs,
                steps=options.steps,
                max_seconds=options.max_seconds,
            )
            seconds |= taken
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
        print(f"{count(left, 'run')} to make, about {roughly(total)} of training; starting and evaluating take longer")
    for remark in remarks:
        print(remark)


def _told(run: Planned, seconds: float | None) -> str:
    if run.done:
        return "done already"
    return "?" if seconds is None else f"{seconds:.1f}"
