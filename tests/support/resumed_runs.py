"""Runs that were interrupted and resumed, for the tests that read them: several segments in one ledger."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.core.choice import choose
from paceline.core.drive import drive
from paceline.core.facts import Fact, GradientReady, TrainingBegan
from paceline.core.leases import Leases
from paceline.core.orders import ApplyUpdate, Order
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import Ledger
from paceline.records.reading import LEDGER, tally_of
from paceline.records.summary import Tally, write
from paceline.records.truncate import Cut, cut
from paceline.scenario.scenario import Scenario
from paceline.sim.simulate import Simulation, _config, training_of, world_of
from paceline.sim.world import Limit, SimulatedWorker, World
from records.histories import History
from support.recorded import AsReal, Killed, noted


@dataclass
class Point:
    """A snapshot, as far as a ledger has to do with it."""

    fact: int
    version: int = 0
    memory: Any = None
    cut: Cut | None = None


@dataclass
class _Seen:
    """What a snapshot says, kept up to date as facts come."""

    version: int = 0
    next_steps: dict[int, int] = field(default_factory=dict)

    def record(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        if isinstance(fact, TrainingBegan):
            for worker, _, step in fact.members:
                self.next_steps.setdefault(worker, step)
        elif isinstance(fact, GradientReady):
            self.next_steps[fact.worker] = fact.step + 1
        for order in orders:
            if isinstance(order, ApplyUpdate):
                self.version = order.version


def done(tally: Tally) -> int:
    """What earlier segments have done: samples, or steps where samples are not counted."""
    return sum(share.samples if tally.counted else share.steps for share in tally.shares.values())


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
    seen, last = _Seen(), len(points)
    began: TrainingBegan | None = None
    for number in range(len(points) + 1):
        tally = tally_of(folder / LEDGER)
        with closing(Ledger(folder / LEDGER, resume=True)) as ledger:
            journal = Journal(ledger, tally)
            if number == last:
                _segment(simulation, journal, seen, began)
                journal.ended("completed", None)
                summary = journal.tally.summary(
                    protocol=simulation.choice, workers=workers, threads=None, seed=0, outcome="completed"
                )
                write(folder / "summary.json", summary)
                break
            point = Point(points[number])
            at_point = _segment(simulation, journal, seen, began, point, beyond)
        made = cut(folder, point.fact, point.version)
        point.cut, seen = made, at_point
        tally = tally_of(folder / LEDGER)
        hosts = simulation.scenario.hosts(workers)
        began = TrainingBegan(
            members=tuple((worker, hosts[worker], step) for worker, step in sorted(seen.next_steps.items())),
            version=point.version,
            at=made.at + pause,
            work=training_of(simulation).work,
            done=done(tally),
            memory=point.memory,
        )
        if number == last - 1 and not ends:
            break
    return folder


def _segment(
    simulation: Simulation,
    journal: Journal,
    seen: _Seen,
    began: TrainingBegan | None,
    point: Point | None = None,
    beyond: int = 0,
) -> _Seen:
    """Simulate a segment, to its end or until it is killed so many facts after a snapshot. Return what that says."""
    ledger, machine, kept = journal.ledger, simulation.choice.machine(), seen
    memory = simulation.choice.spec.memory

    def stop() -> bool:
        nonlocal kept
        if point is not None and ledger.facts == point.fact:
            ledger.mark()
            kept, point.version = deepcopy(seen), seen.version
            point.memory = None if memory is None else deepcopy(memory(machine))
        if point is not None and ledger.facts == point.fact + beyond:
            raise Killed
        return False

    def record(fact: Fact, orders: tuple[Order, ...]) -> None:
        journal.record(fact, orders)
        seen.record(fact, orders)

    world = world_of(simulation, training_of(simulation), journal, stop=stop)
    with suppress(Killed):
        drive(machine, _facts(world, began), world.carry_out, record)
    return kept


def _facts(world: World, began: TrainingBegan | None) -> Iterator[Fact]:
    facts = world.facts()
    first = next(facts)
    if began is None:
        yield first
    else:
        world.now = began.at
        world._workers = {worker: SimulatedWorker(step - 1) for worker, _, step in began.members}
        yield began
    yield from facts


class Leased(History):
    """A history that can be killed, and resumed from an earlier fact."""

    def kill_after(self, fact: int, beyond: int) -> None:
        """Have it killed so many facts after that one, of which a snapshot is taken."""
        self.point, self.last = fact, fact + beyond
        self.seen = _Seen()

    def tell(self, fact: Fact) -> None:
        super().tell(fact)
        self.seen.record(*self.pairs[-1])
        if len(self.pairs) == self.point:
            self.kept = deepcopy((self.leases, self.seen, self.settled))
            self.on_point()
        if len(self.pairs) == self.last:
            raise Killed

    def on_point(self) -> None:
        """Called when the snapshot is taken."""

    def resume(self, began: TrainingBegan) -> None:
        """Go on with a fresh machine, from the snapshot."""
        leases, self.seen, self.settled = self.kept
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
    history.kill_after(fact, beyond)
    history.on_point = lambda: run.journal.ledger.mark()  # type: ignore[method-assign]
    run.began(folder)
    run.journal.ledger.note("deaths", {str(worker): "killed by SIGKILL" for worker in range(4)})
    with suppress(Killed):
        _with_epochs(history, run)
    _, seen, settled = history.kept
    if end is not None:  # it records where it stands
        file = f"versions/{seen.version:08d}.safetensors"
        run.journal.recorded(seen.version, run.made[seen.version], settled, "4" * 64, file)
        run.journal.ended(end, None)
    run.journal.ledger.close()
    begins = cut(folder, fact, seen.version)
    tally = tally_of(folder / LEDGER)
    run.journal = Journal(Ledger(folder / LEDGER, resume=True), tally)
    members = tuple((worker, "node-0", step) for worker, step in sorted(seen.next_steps.items()))
    history.resume(
        TrainingBegan(members=members, version=seen.version, at=begins.at + 1.0, seed=seed, done=done(tally))
    )
    run.ended(folder)
    return folder


def _with_epochs(history: Leased, run: AsReal) -> None:
    """Run it. Its epochs are there from the beginning."""
    begin = history.tell

    def tell(fact: Fact) -> None:
        if not history.pairs:
            run.epochs(history)
        begin(fact)

    history.tell = tell  # type: ignore[method-assign]
    history.run()
