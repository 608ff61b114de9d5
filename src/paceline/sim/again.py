"""Makes a recorded simulation once more: the same settings give the same facts, so a changed ledger shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.facts import (
    GradientReady,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    StepDeclined,
    TrainingBegan,
    WorkerJoined,
)
from paceline.core.machine import Spec
from paceline.core.orders import Order
from paceline.records.journal import Journal
from paceline.records.ledger import Ledger
from paceline.records.reading import RecordedRun
from paceline.sim.calibration import read
from paceline.sim.simulate import Simulation, digest, digits, play, training_of
from paceline.sim.world import Amount, Limit, NoData, Training
from paceline.version import __version__


@dataclass(slots=True)
class _Recorded:
    """Steps that a script has made. The ledger says which of them had data, and how much."""

    work: int | None
    made: Mapping[tuple[int, int], Amount]
    """By (worker, step)."""
    declined: frozenset[tuple[int, int]]

    def carry_out(self, order: Order, at: float) -> None:
        """See `Training`."""

    def amount(self, worker: int, step: int) -> Amount:
        """See `Training`."""
        if (worker, step) in self.declined:
            raise NoData
        return self.made.get((worker, step), Amount(None))  # no fact tells of a step that is in neither

    def told(self, fact: ReduceFinished | ReduceFailed | ReplicaCopied | WorkerJoined) -> None:
        """See `Training`."""

    def left(self, worker: int, reason: str, untold: int | None) -> None:
        """See `Training`."""


def simulate_again(run: RecordedRun, known: Mapping[str, Spec], ledger: Ledger, stop: Callable[[], bool]) -> str:
    """Make this simulation once more, and tell `ledger`. Return why that can't be done here; empty if it was done.

    Raises ConfigError, or another error that says so, if the ledger has settings that are no simulation's.
    """
    note = run.config["simulation"]
    if run.config.get("paceline") != __version__:
        return f"Paceline {run.config.get('paceline')} has simulated it, and this is {__version__}"
    if note.get("digits", digits()) != digits():
        return "exp and log give other digits here, on which its jitter rests"
    if note["costs"] == "caller":
        return "a program has said what things cost, and the ledger does not have it"
    limit = _limit(note.get("limits", run.config["limits"]))  # a run with a script has limits of its own
    costs = None
    if note["costs"] == "run":
        source = Path(note["source"]["folder"])
        try:
            if digest(source) != note["source"]["sha256"]:
                return f"{source}, whose costs it has, is not as it was then"
        except OSError:
            return f"{source}, whose costs it has, is there no more"
        costs = read(source, known).simulation(run.choice, limit, run.seed).costs
    simulation = Simulation(
        choice=run.choice,
        scenario=run.scenario,
        workers=run.workers,
        limit=limit,
        seed=run.seed,
        batch=run.config.get("batch") or None,
        costs=costs,
        message=note["message"],
        data=note.get("data"),
    )
    simulation.check(trains="script" in run.config)
    training = _steps(run) if "script" in run.config else training_of(simulation)
    play(simulation, training, Journal(ledger), stop=stop)
    return ""


def _limit(limits: Mapping[str, Any]) -> Limit:
    return Limit(
        seconds=limits.get("max_seconds", math.inf),
        steps=limits.get("max_steps", math.inf),
        versions=limits.get("max_versions", math.inf),
    )


def _steps(run: RecordedRun) -> Training:
    work: int | None = None
    made: dict[tuple[int, int], Amount] = {}
    declined: set[tuple[int, int]] = set()
    for fact, _ in run.history():
        match fact:
            case TrainingBegan():
                work = fact.work
            case GradientReady(worker=worker, step=step, samples=samples, weight=weight):
                made[worker, step] = Amount(samples, weight)
            case StepDeclined(worker=worker, step=step):
                declined.add((worker, step))
    return _Recorded(work, made, frozenset(declined))
