"""Runs that were interrupted and resumed, for the tests that read them: several segments in one ledger."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from paceline.core.choice import Choice, choose
from paceline.core.drive import drive
from paceline.core.facts import Fact, TrainingBegan
from paceline.core.leases import Leases
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import Ledger, read_facts
from paceline.records.reading import LEDGER, tally_of
from paceline.records.summary import write
from paceline.records.truncate import cut
from paceline.scenario.scenario import Scenario
from paceline.sim.simulate import Simulation, _config, training_of, world_of
from paceline.sim.world import Limit
from records.histories import History
from support.going_on import following
from support.recorded import AsReal, Killed, noted


def resumed(
    folder: Path,
    protocol: str = "bsp",
    points: Sequence[int] = (60,),
    beyond: int = 25,
    steps: int = 60,
    workers: int = 4,
    pause: float = 0.0,
    scenario: Scenario | None = None,
    ends: bool = True,
) -> Path:
    """A simulated run that was killed `beyond` facts after each of these, and resumed from the snapshot there.

    `pause`: seconds between a snapshot and the next segment. Not `ends`: it is cut for the last time, and not resumed.
    """
    simulation = Simulation(
        choice=choose(protocol, registry()),
        scenario=scenario or Scenario(compute=0.05, jitter=0.2, speeds={workers - 1: 0.5}),
        workers=workers,
        limit=Limit(steps=steps),
        batch=8,
    )
    folder.mkdir()
    with closing(Ledger(folder / LEDGER)) as ledger:
        noted(folder, ledger, _config(simulation))
    for fact in points:
        _segment(simulation, folder, fact, fact + beyond)
        simulation = replace(simulation, begins=_cut(folder, simulation.choice, fact, pause))
    if ends:
        journal = _segment(simulation, folder)
        summary = journal.tally.summary(
            protocol=simulation.choice, workers=workers, threads=None, seed=0, outcome="completed"
        )
        write(folder / "summary.json", summary)
    return folder


def _segment(simulation: Simulation, folder: Path, point: int | None = None, last: int | None = None) -> Journal:
    """Simulate a segment, to its end or until it is killed after its `last` fact. A snapshot is taken at `point`."""
    with closing(Ledger(folder / LEDGER, resume=True)) as ledger:
        journal = Journal(ledger, tally_of(folder / LEDGER))

        def stop() -> bool:
            if ledger.facts == point:
                ledger.mark()
            if ledger.facts == last:
                raise Killed
            return False

        world = world_of(simulation, training_of(simulation), journal, stop=stop)
        with suppress(Killed):
            drive(simulation.choice.machine(), world.facts(), world.carry_out, journal.record)
            journal.ended("completed", None)
    return journal


def _cut(folder: Path, choice: Choice, fact: int, pause: float) -> TrainingBegan:
    """Cut the run's ledger at the snapshot after that fact. Return what begins the next segment."""
    began = following(choice, [one for one, _ in read_facts(folder / LEDGER)][:fact])
    return replace(began, at=cut(folder, fact, began.version).at + pause)


class Leased(History):
    """A history that is killed, and resumed from an earlier fact, of which a snapshot is taken."""

    point = last = -1
    real: AsReal

    def tell(self, fact: Fact) -> None:
        if not self.pairs:
            self.real.epochs(self)
        super().tell(fact)
        if len(self.pairs) == self.point:
            self.real.journal.ledger.mark()
            self.kept = deepcopy((self.leases, self.settled))
        if len(self.pairs) == self.last:
            raise Killed

    def resume(self, began: TrainingBegan) -> None:
        """Go on with a fresh machine, from the snapshot."""
        leases, self.settled = self.kept
        self.leases = Leases.resumed(leases.plain(), "queue", [worker for worker, _, _ in began.members])
        self.point = self.last = -1
        self.at = began.at
        self.machine = choose(self.protocol, registry()).machine()
        self.releases.clear()
        self.doing = {worker: deque() for worker, _, _ in began.members}
        self.used = {worker: step for worker, _, step in began.members}
        self.tell(began)
        while self.doing or self.settled < 100:
            self.next()


def leased_and_resumed(
    folder: Path,
    protocol: str = "asp",
    seed: int = 0,
    fact: int = 60,
    beyond: int = 30,
    end: str | None = None,
    deaths: float = 0.05,
) -> Path:
    """A run with two epochs of leased batches that was killed and resumed; as if it had been a real one.

    `end`: the outcome of the interrupted segment, if it was not killed.
    """
    folder.mkdir()
    run = AsReal(Journal(Ledger(folder / LEDGER)), choose(protocol, registry()), seed)
    history = Leased(protocol, seed, deaths=deaths, on_record=run.record, on_batch=run.use)
    history.real, history.point, history.last = run, fact, fact + beyond
    run.began(folder)
    run.journal.ledger.note("deaths", {str(worker): "killed by SIGKILL" for worker in range(4)})
    with suppress(Killed):
        history.run()
    if end is not None:  # it records where it stands
        version = following(run.choice, [one for one, _ in history.pairs[:fact]]).version
        file = f"versions/{version:08d}.safetensors"
        run.journal.recorded(version, run.made[version], history.kept[1], "4" * 64, file)
        run.journal.ended(end, None)
    run.journal.ledger.close()
    began = _cut(folder, run.choice, fact, pause=1.0)
    run.journal = Journal(Ledger(folder / LEDGER, resume=True), tally_of(folder / LEDGER))
    history.resume(began)
    run.ended(folder)
    return folder
