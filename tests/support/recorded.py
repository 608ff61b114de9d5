"""Folders of runs for the tests that read them: made by the simulator, so at once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from paceline.core.choice import choose
from paceline.core.facts import Fact, GradientReady, StepDeclined
from paceline.core.orders import ApplyUpdate, Order
from paceline.core.scenario import Scenario
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import Ledger
from paceline.records.summary import write
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit
from paceline.training.seeding import order_digest
from records.histories import History


def simulated(
    folder: Path,
    protocol: str = "bsp",
    workers: int = 4,
    steps: int = 40,
    slow: tuple[int, float] | None = (3, 4.0),
    **more: Any,
) -> Path:
    """A simulated run's folder; worker `slow[0]` takes `slow[1]` times as long for a step."""
    speeds = {} if slow is None else {slow[0]: 1 / slow[1]}
    simulate(
        Simulation(
            choice=choose(protocol, registry()),
            scenario=more.pop("scenario", None) or Scenario(compute=0.05, jitter=0.05, speeds=speeds),
            workers=workers,
            limit=Limit(steps=steps),
            batch=8,
            **more,
        ),
        folder,
    )
    return folder


def leased(folder: Path, protocol: str = "asp", seed: int = 0) -> Path:
    """A run with two epochs of leased batches, in which workers die and come back; as if it had been a real one."""
    folder.mkdir()
    choice = choose(protocol, registry())
    with closing(Ledger(folder / "ledger.sqlite")) as ledger:
        journal = Journal(ledger)
        plain = {"name": choice.spec.name, "config": choice.parameters()}
        config = {"protocol": plain, "workers": 4, "seed": seed, "scenario": {}, "limits": {}, "script": "train.py"}
        for key, value in config.items():
            ledger.note(key, value)

        def record(fact: Fact, orders: tuple[Order, ...]) -> None:
            journal.record(fact, orders)
            if isinstance(fact, GradientReady):
                ledger.pushed(fact.worker, fact.step, [0.1], fact.samples)
            elif isinstance(fact, StepDeclined):
                ledger.leased(fact.worker, 0, None)
                ledger.leased(fact.worker, 1, None)
            for order in orders:
                if isinstance(order, ApplyUpdate):
                    ledger.checked(order.version, order.version)

        def use(worker: int, step: int, epoch: int, batch: int) -> None:
            ledger.leased(worker, epoch, (epoch, batch))
            ledger.batch_used(worker, step, epoch, batch, "step")

        history = History(protocol, seed, on_record=record, on_batch=use)
        history.run()
        for number, order in enumerate(history.epochs):
            ledger.epoch_opened(number, order, order_digest(order))
        summary = journal.tally.summary(protocol=choice, workers=4, threads=1, seed=seed, outcome="completed")
    write(folder / "summary.json", summary)
    return folder


def edited(folder: Path, *statements: str) -> Path:
    """The same run after somebody has edited its ledger."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        for statement in statements:
            assert database.execute(statement).rowcount != 0, f"nothing was edited: {statement}"
    return folder
