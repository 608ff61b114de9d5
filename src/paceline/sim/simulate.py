"""One simulation, from its first event to its summary."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from paceline.codecs import Codec
from paceline.core.choice import Choice, check_fit
from paceline.core.drive import drive
from paceline.core.facts import TrainingBegan
from paceline.core.membership import ALL_DIED
from paceline.errors import ConfigError, ProtocolViolation, RunFailed
from paceline.records.journal import Journal
from paceline.records.ledger import Ledger, NoLedger
from paceline.records.summary import Outcome, Summary, write
from paceline.scenario.links import assumed
from paceline.scenario.scenario import Scenario
from paceline.scenario.scenario_file import to_plain
from paceline.sim.costs import Costs, ScenarioCosts
from paceline.sim.world import EmptySteps, Limit, SimulatedTraining, World
from paceline.version import __version__

Progress = Callable[[float, int, int], None]
"""Called with the virtual second, and the steps applied and versions made so far."""

Stop = Callable[[], bool]
"""Returns, at every fact, whether to end there."""

Say = Callable[[str], None]
"""Called at the end with a sentence for each event of the scenario that never came."""

MOST_WORKERS = 100_000
"""More workers are taken for a typing mistake. Each takes some 4 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What to simulate."""

    choice: Choice
    scenario: Scenario
    workers: int
    limit: Limit
    seed: int = 0
    batch: int | None = None
    """Samples in each step; None if they are not counted."""
    costs: Costs | None = None
    """None: as the scenario says."""
    message: int = 0
    """Bytes of a push, a pull or a replica, if the scenario's network does not say."""
    codec: Codec | None = None
    """What encodes pushes; None: they are as large as pulls."""
    data: int | None = None
    """Steps that there is data for, in all; None: without end."""
    source: Path | None = None
    """The folder of the run that `costs` were read from."""
    begins: TrainingBegan | None = None
    """The beginning of a later segment of a run; None: the run's first segment is simulated."""

    @classmethod
    def on(
        cls,
        scenario: Scenario,
        choice: Choice,
        limit: Limit,
        *,
        workers: int | None,
        seed: int,
        batch: int | None,
        codec: Codec | None = None,
    ) -> Simulation:
        """Return a simulation of that protocol on the scenario's cluster. `workers` None: as many as it says.

        Raises ConfigError, in one line, if the scenario doesn't say.
        """
        workers = scenario.workers if workers is None else workers
        if workers is None:
            raise ConfigError(
                f"{scenario.name}: it does not say how many workers there are; set cluster.workers, or give -n, "
                "from Python workers=N"
            )
        return cls(choice=choice, scenario=scenario, workers=workers, limit=limit, seed=seed, batch=batch, codec=codec)

    def check(self, trains: bool = False) -> None:
        """Raise ConfigError, in one line, for what can't be simulated.

        `trains`: a script sets the amount of work and the size of its model.
        """
        if self.workers > MOST_WORKERS:
            raise ConfigError(f"{self.workers} workers are too many to simulate; ask for {MOST_WORKERS} or fewer")
        scenario, limit = self.scenario.checked_for(self.workers), self.limit
        check_fit(self.choice, scenario.hosts(self.workers))
        if self.codec is not None and self.codec.whole:
            raise ConfigError(
                f"--compress is {self.codec}, and how small it makes an update depends on the shapes of parameters, "
                "which are not known here; name another codec, such as int8 or topk"
            )
        name = self.choice.spec.name
        if scenario.links_hosts and self.choice.has_replicas:
            raise ConfigError(
                f"{scenario.name}: {name} has no store, and bandwidth and latency in [[host]] are of links that a "
                "store's versions and updates go over; leave them out, and set network.between_nodes"
            )
        if self.costs is None and scenario.compute is None:
            raise ConfigError(
                f"{scenario.name}: it does not say how long a step takes; set cluster.compute, such as "
                'compute = "400ms", or take it from a run, with --from'
            )
        message = None if scenario.network is None else scenario.network.message
        if self.costs is None and scenario.narrow and message is None and not (self.message or trains):
            whose = "[[host]]" if scenario.host_tables else "network"
            raise ConfigError(
                f"{scenario.name}: {whose} has a bandwidth, and nothing says how many bytes a transfer has; set "
                'network.message, such as message = "25MB"'
            )
        steps = min(limit.steps, math.inf if self.data is None else self.data)
        if min(limit.seconds, steps, limit.versions) == math.inf and not trains:
            raise ConfigError("nothing says when to stop: give --seconds, --steps or --versions")
        if self.choice.spec.parts and steps == math.inf and not trains:
            raise ConfigError(
                f"{name} switches at a share of the work, so it needs to know how much there is: --steps N"
            )
        if limit.versions < math.inf and not self.choice.has_store:
            raise ConfigError(f"{name} has no store that makes versions: give --steps or --seconds")
        if self.costs is None:  # `CalibratedRun.remarks` tells what a prediction from a run takes for granted
            scenario.checked_to_count().checked_to_happen(limit.seconds, steps).checked_to_die_once()

    def remarks(self) -> list[str]:
        """Return what the simulation assumes, a sentence each."""
        if self.costs is not None or not self.choice.has_replicas:
            return []
        line = assumed(self.scenario, self.choice.spec.name)
        return [] if line is None else [line]


def simulate(
    simulation: Simulation,
    folder: Path | None = None,
    progress: Progress | None = None,
    *,
    stop: Stop | None = None,
    say: Say | None = None,
) -> Summary:
    """Simulate. Return the summary, as of a real run, in virtual seconds.

    `folder` must be new. It gets the ledger, the configuration and the summary, as for a real run. Raises ConfigError
    for what can't be simulated.
    """
    simulation.check()
    training = training_of(simulation)
    if folder is None:
        return play(simulation, training, Journal(NoLedger()), progress, stop=stop, say=say)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror}; name a folder that can be made") from None
    config = _config(simulation)
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    ledger = Ledger(folder / "ledger.sqlite")
    try:
        for key, value in config.items():
            ledger.note(key, value)
        summary = play(simulation, training, Journal(ledger), progress, stop=stop, say=say)
    finally:
        ledger.close()
    write(folder / "summary.json", summary)
    return summary


def play(
    simulation: Simulation,
    training: SimulatedTraining,
    journal: Journal,
    progress: Progress | None = None,
    *,
    stop: Stop | None = None,
    say: Say | None = None,
) -> Summary:
    """Drive a fresh machine through the simulation, with these steps."""
    one, error = simulation, None
    outcome: Outcome = "completed"
    world = world_of(one, training, journal, progress, stop)
    try:
        drive(one.choice.machine(), world.facts(), world.carry_out, journal.record)
    except (ProtocolViolation, RunFailed) as failure:
        outcome, error = "failed", str(failure)
    if world.interrupted:
        outcome = "interrupted"
    elif not error and all(left == "died" for left in world.left.values()):
        outcome, error = "failed", ALL_DIED
    if outcome == "completed" and say is not None:
        for sentence in never_came(one, world):
            say(sentence)
    journal.ended(outcome, error, world.now)
    return journal.tally.summary(
        protocol=one.choice,
        workers=one.workers,
        threads=None,
        seed=one.seed,
        outcome=outcome,
        compress=str(one.codec or ""),
        error=error,
        ended=world.now,
    )


def never_came(simulation: Simulation, world: World) -> list[str]:
    """Return a sentence for each of the scenario's events that had not come by the end; none with a run's costs."""
    return world.never_came() if simulation.costs is None else []


def world_of(
    simulation: Simulation,
    training: SimulatedTraining,
    journal: Journal,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> World:
    """Return the world of this simulation, with these steps."""
    one, scenario = simulation, simulation.scenario.checked_for(simulation.workers)
    return World(
        scenario,
        one.workers,
        costs=one.costs or ScenarioCosts(scenario, one.workers, one.seed),
        training=training,
        limit=one.limit,
        journal=journal,
        message=one.message,
        codec=one.codec,
        fragments=one.choice.fragments,
        pieces=one.choice.pieces,
        seed=one.seed,
        begins=one.begins,
        progress=progress,
        stop=stop,
    )


def training_of(simulation: Simulation) -> SimulatedTraining:
    """Return steps that consist of nothing."""
    batch, data, limit = simulation.batch, simulation.data, simulation.limit.steps
    pieces = simulation.choice.pieces
    if data is not None:
        return EmptySteps(data * (batch or 1), batch, data * pieces, pieces=pieces)
    return EmptySteps(None if limit == math.inf else int(limit) * (batch or 1), batch, pieces=pieces)


def noted(simulation: Simulation) -> dict[str, Any]:
    """Return the settings that a real run lacks, without those that are None, as TOML has no null."""
    note: dict[str, Any] = {
        "message": simulation.message,
        "costs": "scenario" if simulation.costs is None else "run" if simulation.source is not None else "caller",
    }
    if simulation.data is not None:
        note["data"] = simulation.data
    if simulation.costs is not None and simulation.source is not None:
        note["source"] = str(simulation.source.absolute())
    return note


def noted_limits(simulation: Simulation) -> dict[str, float]:
    """Return the limits, by their names in a run's settings."""
    limit = simulation.limit
    limits = {"max_seconds": limit.seconds, "max_steps": limit.steps, "max_versions": limit.versions}
    return {name: value for name, value in limits.items() if value < math.inf}


def _config(simulation: Simulation) -> dict[str, Any]:
    """Return the settings as in a run's `config.toml`."""
    return {
        "paceline": __version__,
        "simulated": True,
        "protocol": simulation.choice.to_plain(),
        "workers": simulation.workers,
        **({"hosts": simulation.scenario.nodes} if simulation.scenario.links_hosts else {}),
        "seed": simulation.seed,
        "batch": simulation.batch or 0,
        "compress": str(simulation.codec or ""),
        "limits": noted_limits(simulation),
        "simulation": noted(simulation),
        "scenario": to_plain(simulation.scenario.checked_for(simulation.workers)),
    }
