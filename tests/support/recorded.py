"""Folders of runs for the tests that read them: made by the simulator, so at once."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import tomli_w

from paceline.core.choice import Choice, choose
from paceline.core.facts import Fact, GradientReady, StepDeclined, WorkerJoined
from paceline.core.orders import ApplyUpdate, Order
from paceline.protocols import registry
from paceline.records.check import Checked, Wrong, check
from paceline.records.journal import Journal
from paceline.records.ledger import Ledger
from paceline.records.reading import open_run
from paceline.records.summary import write
from paceline.records.times import StepTimes
from paceline.scenario.scenario import Scenario
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit
from paceline.training.seeding import order_digest
from paceline.version import __version__
from records.histories import History

AS_REAL: dict[str, Any] = {
    "paceline": __version__,
    "script": "train.py",
    "directory": "/somewhere",
    "script_sha256": "0" * 64,
    "arguments": [],
    "threads": 1,
    "start": "staggered",
    "shards": "dynamic",
    "buffers": "mean",
    "record": 0,
    "on_loss": "auto",
    "on_divergence": "stop",
    "saves": "first",
    "learning_rate_scale": 1.0,
    "targets": [],
    "limits": {},
    "environment": {
        "python": "3.12",
        "torch": "2",
        "numpy": "2",
        "cpu_capability": "AVX2",
        "platform": "Linux",
        "cores": 2,
    },
    "simulated": False,
    "scenario": {},
}
"""What a real run notes of itself."""


def noted(folder: Path, ledger: Ledger, config: dict[str, Any]) -> None:
    """As a run notes it: in config.toml, and in the ledger."""
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    for key, value in config.items():
        ledger.note(key, value)


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
    stop = more.pop("stop", None)
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
        stop=stop,
    )
    return folder


@dataclass
class AsReal:
    """Notes a history of two epochs of leased batches, as a real run would."""

    journal: Journal
    choice: Choice
    seed: int
    made: dict[int, float] = field(default_factory=dict)

    def record(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        self.journal.record(fact, orders)
        ledger = self.journal.ledger
        if isinstance(fact, GradientReady):
            self.journal.step_times(fact.worker, fact.step, StepTimes(fact.at, 0.0, 1e-9, 0.0, 0.0, 0.0))
            ledger.pushed(fact.worker, fact.step, [0.1], fact.samples)
        elif isinstance(fact, StepDeclined) and not fact.paused:
            ledger.leased(fact.worker, 0, None)
            ledger.leased(fact.worker, 1, None)
        elif isinstance(fact, WorkerJoined):
            ledger.leased(fact.worker, None, None)
        for order in orders:
            if isinstance(order, ApplyUpdate):
                ledger.checked(order.version, order.version)
                ledger.committed(order.version, fact.at)
                self.made[order.version] = fact.at

    def use(self, worker: int, step: int, epoch: int, batch: int) -> None:
        self.journal.ledger.leased(worker, epoch, (epoch, batch))
        self.journal.ledger.batch_used(worker, step, epoch, batch, "step")

    def epochs(self, history: History) -> None:
        for number, order in enumerate(history.epochs):
            self.journal.ledger.epoch_opened(number, order, order_digest(order), 0, sum(map(len, order)))

    def began(self, folder: Path) -> None:
        config = {**AS_REAL, "protocol": self.choice.to_plain(), "workers": 4, "seed": self.seed}
        noted(folder, self.journal.ledger, config)

    def ended(self, folder: Path, sha256: str = "5" * 64) -> None:
        """All workers died; the last version is recorded."""
        self.journal.ledger.note("deaths", {str(worker): "killed by SIGKILL" for worker in range(4)})
        tally = self.journal.tally
        version, samples = tally.model.versions, sum(share.samples for share in tally.shares.values())
        self.journal.recorded(version, self.made[version], samples, sha256, f"versions/{version:08d}.safetensors")
        self.journal.ended("completed", None)
        summary = tally.summary(
            protocol=self.choice,
            workers=4,
            threads=1,
            seed=self.seed,
            outcome="completed",
            final_parameters_sha256=sha256,
        )
        self.journal.ledger.close()
        write(folder / "summary.json", summary)


def leased(folder: Path, protocol: str = "asp", seed: int = 0, pauses: float = 0.0) -> Path:
    """A run with two epochs of leased batches, in which workers die and come back; as if it had been a real one.

    With probability `pauses` a worker pauses in the place of a step.
    """
    folder.mkdir()
    run = AsReal(Journal(Ledger(folder / "ledger.sqlite")), choose(protocol, registry()), seed)
    run.began(folder)
    run.epochs(History(protocol, seed, pauses=pauses, on_record=run.record, on_batch=run.use).run())
    run.ended(folder)
    return folder


def checked(folder: Path) -> Checked:
    """What `paceline check` finds in that folder."""
    with closing((opened := open_run(folder, registry())).ledger):
        return check(opened)


def wrong(folder: Path) -> Wrong:
    """What it finds wrong there, which must be something."""
    found = checked(folder).wrong
    assert found is not None
    return found


def said(folder: Path, **changes: Any) -> Path:
    """The same run after its configuration was edited, in both places alike; None takes a key away."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        config = {key: json.loads(value) for key, value in database.execute("SELECT key, value FROM run")} | changes
        for key, value in changes.items():
            database.execute("DELETE FROM run WHERE key = ?", (key,))
            if value is not None:
                database.execute("INSERT INTO run VALUES (?, ?)", (key, json.dumps(value)))
        for key in ("workers", "protocol", "environment"):
            newest = f"UPDATE segments SET {key} = (SELECT value FROM run WHERE key = ?) WHERE notes IS NULL"
            database.execute(newest, (key,))
    only = ("absent", "beginning", "deaths", "end", "replay_of", "until")
    plain = {key: value for key, value in config.items() if value is not None and key not in only}
    (folder / "config.toml").write_text(tomli_w.dumps(plain))
    return folder


def summarized(folder: Path, **changes: Any) -> Path:
    """The same run after its summary was edited."""
    file = folder / "summary.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return folder


def edited(folder: Path, *statements: str) -> Path:
    """The same run after somebody has edited its ledger."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        for statement in statements:
            assert database.execute(statement).rowcount != 0, f"nothing was edited: {statement}"
    return folder


class Killed(Exception):
    """Ends a simulation at once, as SIGKILL would."""


def crashed(folder: Path, facts: int, **settings: Any) -> Path:
    """A simulated run's folder, as it is when the simulation is killed after so many facts, two or more."""
    asked = count(2)

    def stop() -> bool:
        if next(asked) == facts:
            raise Killed
        return False

    with suppress(Killed):
        simulated(folder, stop=stop, **settings)
    return folder


def ends_here(folder: Path, **changes: Any) -> Path:
    """The same run with a note of its end that agrees with its last fact, but for these changes."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        end = json.loads(database.execute("SELECT value FROM run WHERE key = 'end'").fetchone()[0])
        facts, at = database.execute("SELECT count(*), max(at) FROM facts").fetchone()
        end = {**end, "facts": facts, "at": at, **changes}
        database.execute("UPDATE run SET value = ? WHERE key = 'end'", (json.dumps(end),))
    return folder
