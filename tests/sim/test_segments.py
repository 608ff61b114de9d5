"""A simulation that begins with a later segment of a run: all goes on from there, and one ledger has both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from paceline.core.choice import Choice, choose
from paceline.core.drive import drive
from paceline.core.facts import Fact, TrainingBegan, WorkerLeft
from paceline.core.orders import Order
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import Ledger, NoLedger, read_facts
from paceline.scenario.scenario import Kill, Network, Scenario
from paceline.sim.simulate import Simulation, play, training_of, world_of
from paceline.sim.world import Limit
from support.going_on import following

History = list[tuple[Fact, tuple[Order, ...]]]

SCENARIO = Scenario(compute=1.0, jitter=0.3, network=Network(bandwidth=100.0, message=20))


def simulation(choice: Choice, **settings: object) -> Simulation:
    scenario, limit = SCENARIO, Limit(steps=60)
    return replace(
        Simulation(choice=choice, scenario=scenario, workers=4, limit=limit, batch=8),
        **settings,  # type: ignore[arg-type]
    )


def told(one: Simulation) -> History:
    """All facts and orders of a simulation."""
    history: History = []
    journal = Journal(NoLedger())
    world = world_of(one, training_of(one), journal)

    def record(fact: Fact, orders: tuple[Order, ...]) -> None:
        history.append((fact, orders))
        journal.record(fact, orders)

    drive(one.choice.machine(), world.facts(), world.carry_out, record)
    return history


def test_a_worker_of_an_earlier_segment_is_not_killed_once_more() -> None:
    scenario = replace(SCENARIO, events=(Kill(worker=1, at=2.0), Kill(worker=2, at=12.0)))
    choice = choose("asp", registry())
    first = told(simulation(choice, scenario=scenario))
    begins = following(choice, [fact for fact, _ in first if fact.at < 8.0])
    assert [worker for worker, _, _ in begins.members] == [0, 1, 2, 3]
    later = told(simulation(choice, scenario=scenario, begins=begins))
    died = [fact.worker for fact, _ in later if isinstance(fact, WorkerLeft) and fact.reason == "died"]
    assert died == [2]


def test_one_ledger_has_the_segments_one_after_the_other(tmp_path: Path) -> None:
    choice = choose("bsp", registry())
    one = simulation(choice, limit=Limit(versions=3))
    begins = following(choice, [fact for fact, _ in told(one)])
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for segment in (one, replace(one, begins=begins)):
        play(segment, training_of(segment), Journal(ledger))
    ledger.close()
    facts = [fact for fact, _ in read_facts(tmp_path / "ledger.sqlite")]
    assert [fact.version for fact in facts if isinstance(fact, TrainingBegan)] == [0, 3]
