"""`paceline simulate --gradients SCRIPT`: real workers and real steps, in virtual time.

The simulated world decides which step is computed on which version, and when. Workers like those of `paceline run`
compute the steps, one after another. Only the clock is virtual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from paceline.coordinator.director import Director
from paceline.coordinator.run import run
from paceline.core.drive import drive
from paceline.core.facts import GradientReady, ReduceFailed, ReduceFinished, ReplicaCopied, WorkerJoined
from paceline.core.orders import Order
from paceline.job.interrupts import Interrupts
from paceline.job.settings import Settings
from paceline.records.journal import Journal
from paceline.records.summary import Summary, Target
from paceline.sim.simulate import Say, Simulation, never_came, noted, noted_limits, world_of
from paceline.sim.world import Amount, NoData


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What is trained, and how it is recorded."""

    path: Path
    arguments: tuple[str, ...]
    threads: int
    epochs: int | None
    record: int
    targets: tuple[Target, ...]
    json: bool
    start: Literal["staggered", "together"]


@dataclass(frozen=True, slots=True)
class RealTraining:
    """The world's steps as real workers compute them, in the place of `sim.world.SimulatedTraining`."""

    workers: Director
    work: int | None

    def carry_out(self, order: Order, at: float) -> None:
        self.workers.direct(order, at)

    def amount(self, worker: int, step: int, batches: int) -> Amount:
        result = self.workers.result(worker, step)
        if isinstance(result, GradientReady):
            return Amount(result.samples, result.weight, batches)
        raise NoData

    def told(self, fact: ReduceFinished | ReduceFailed | ReplicaCopied | WorkerJoined) -> None:
        if isinstance(fact, WorkerJoined):
            self.workers.join(fact.worker, fact.step)
        else:
            self.workers.tell(fact)

    def left(self, worker: int, reason: str, untold: int | None) -> None:
        if reason == "died":
            self.workers.lose(worker, untold)
        elif reason == "finished":
            self.workers.see_off(worker)


def train(simulation: Simulation, script: Script, folder: Path, interrupts: Interrupts, say: Say) -> Summary:
    """Train the script in the simulation. Return the summary, in virtual seconds. The folder is like a real run's.

    Raises ConfigError if the script can't be trained.
    """

    def direct(workers: Director, journal: Journal) -> None:
        steps = RealTraining(workers, workers.begin().work)
        message = simulation.message or workers.model_bytes
        asked = replace(simulation, message=message)
        journal.ledger.note("simulation", {**noted(asked), "limits": noted_limits(asked)})
        world = world_of(asked, steps, journal, stop=lambda: workers.interrupted)
        workers.show(lambda: simulation.limit.share(world.now, journal.tally.steps, journal.tally.model.versions))
        drive(simulation.choice.machine(), world.facts(), world.carry_out, journal.record)
        if workers.outcome == "completed":
            for sentence in never_came(simulation, world):
                say(sentence)

    settings = Settings(
        script=script.path,
        source=script.path.read_bytes(),
        arguments=script.arguments,
        choice=simulation.choice,
        workers=simulation.workers,
        scenario=simulation.scenario.only_dealt(),  # no worker is slow in real time
        compress=None if simulation.codec is None else str(simulation.codec),
        simulated=simulation.scenario.checked_for(simulation.workers),
        seed=simulation.seed,
        threads=script.threads,
        folder=folder,
        shards=None,
        epochs=script.epochs,
        record=script.record,
        targets=script.targets,
        on_loss="continue",
        on_divergence="stop",
        tee="first",
        max_steps=None,
        max_seconds=None,
        report_waits=3600.0,
        json=script.json,
        start=script.start,
    )
    return run(settings, interrupts, direct)
