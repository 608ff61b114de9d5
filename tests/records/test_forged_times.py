"""Times that somebody has changed by hand, in runs and simulations: each is caught, and its rule named."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from paceline.protocols import registry
from paceline.records import violations
from paceline.records.reading import open_run
from paceline.scenario.scenario import Kill, Network, Scenario
from support import runs
from support.recorded import AS_REAL, checked, edited, ends_here, moved, said, simulated, wrong
from support.scripts import training

SCENARIO = """
[cluster]
compute = "20ms"
jitter = 0.1
[network]
bandwidth = "40Mbit/s"
message = "20KB"
latency = "1ms"
incast = 0.8
[[worker]]
index = 1
speed = 0.5
[[event]]
worker = 0
at_step = 2
for_steps = 2
slow = 2.0
"""
"""Four milliseconds for a transfer that is alone."""

STEP = ("began", "compute", "push", "wait", "pull", "other")
NETWORK = Network(bandwidth=1e8, latency=0.001, message=1_000_000, incast=0.7)

VIRTUAL = Scenario(compute=0.05, jitter=0.2, network=NETWORK, events=(Kill(worker=1, at=0.4, rejoin_after=0.3),))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run, with padded steps and a network."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "scenario.toml").write_text(SCENARIO)
    flags = ("-p", "asp", "-n", "3", "--scenario", str(folder / "scenario.toml"))
    run = runs.run(training(epochs=1), *flags, tmp_path=folder).completed()
    found = checked(run.folder)
    assert found.wrong is None
    assert "16 steps, none shorter than the scenario says" in found.proved
    return run.folder


@pytest.fixture
def real(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def stretched(folder: Path, factor: float) -> Path:
    """All its times are so many times as long."""
    moved(folder, lambda row, at: at * factor)
    ends_here(folder)
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        for table, names in (
            ("step_times", STEP),
            ("transfers", ("began", "ended", "delivered")),
            ("commits", ("at",)),
        ):
            values = ", ".join(f"{name} = {name} * ?" for name in names)
            database.execute(f"UPDATE {table} SET {values}", (factor,) * len(names))
    return folder


# --- real runs --------------------------------------------------------------------------------------


@pytest.mark.real_run
def test_halved_times_are_shorter_than_the_padded_steps(real: Path) -> None:
    found = wrong(stretched(real, 0.5))
    assert (found.table, found.rule) == ("facts", violations.PADDED)


@pytest.mark.real_run
@pytest.mark.parametrize(
    ("statement", "rule", "expected"),
    [
        ("DELETE FROM step_times", violations.STEP_TIMES, "those of step 0 of worker"),
        ("DELETE FROM step_times WHERE rowid = 7", violations.STEP_TIMES, "those of step"),
        ("INSERT INTO step_times SELECT * FROM step_times", violations.STEP_TIMES, "has none yet"),
        ("UPDATE step_times SET step = 999 WHERE rowid = 7", violations.STEP_TIMES, "whose gradient was ready"),
        ("UPDATE step_times SET compute = compute * 2", violations.WITHIN, "when its gradient was ready"),
        ("UPDATE step_times SET wait = wait + 0.1 WHERE rowid = 7", violations.WITHIN, "and its waits take"),
        ("UPDATE step_times SET wait = wait + 2 * push, push = -push", violations.WITHIN, "push is 0 or more"),
        ("UPDATE step_times SET began = 0.0 WHERE rowid = 7", violations.WITHIN, "when it was released"),
        ("UPDATE step_times SET wait = 9e999 WHERE rowid = 7", violations.READABLE, "wait in seconds"),
        ("UPDATE step_times SET compute = compute / 2, wait = wait + compute / 2", violations.PADDED, "s or more"),
        ("UPDATE step_times SET to_device = -1.0 WHERE rowid = 7", violations.WITHIN, "to_device is 0 or more"),
        ("UPDATE step_times SET from_device = 'none' WHERE rowid = 7", violations.READABLE, "from_device in seconds"),
        ("UPDATE step_times SET push = 0.0, wait = wait + push", violations.MEASURED, "takes time"),
    ],
)
def test_steps_are_held_against_the_facts(real: Path, statement: str, rule: str, expected: str) -> None:
    found = wrong(edited(real, statement))
    assert (found.table, found.rule) == (statement.split()[1 if statement.startswith("UPDATE") else 2], rule)
    assert expected in found.expected


# --- simulations ------------------------------------------------------------------------------------


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    folder = simulated(tmp_path / "run", "ssp", scenario=VIRTUAL)
    assert checked(folder).wrong is None
    return folder


@pytest.mark.parametrize("changes", [{"limits": 7}, {"simulation": 7}, {"simulation": {"limits": 7}}])
def test_settings_that_can_t_be_read_are_named(virtual: Path, changes: dict[str, object]) -> None:
    assert wrong(said(virtual, **changes)).rule == violations.READABLE


def test_a_simulation_does_not_pass_for_a_real_run(virtual: Path) -> None:
    found = wrong(said(virtual, simulated=False))
    assert (found.row, found.rule) == ("simulation", violations.SAYS_OF_ITSELF)
    found = wrong(said(virtual, simulated=False, simulation=None))
    assert (found.row, found.rule) == ("script", violations.SAYS_OF_ITSELF)
    config = open_run(virtual, registry()).config
    kept = {key: config[key] for key in ("scenario", "limits")}
    kept["deaths"] = {str(worker): "killed by SIGKILL" for worker in range(config["workers"])}
    said(virtual, simulation=None, **{**AS_REAL, **kept})
    edited(
        virtual,
        "INSERT INTO pushes SELECT worker, step, '[0.1]', 8 FROM facts WHERE kind = 'GradientReady'",
        "INSERT INTO checksums SELECT version, '0000000000000000' FROM orders WHERE kind = 'ApplyUpdate'",
        "INSERT INTO leases SELECT worker, NULL, NULL, NULL FROM facts WHERE kind = 'WorkerJoined'",
    )
    assert wrong(virtual).rule == violations.MEASURED


@pytest.mark.parametrize("told", [2, 40, 90])
def test_a_simulation_that_was_interrupted_is_right(tmp_path: Path, told: int) -> None:
    asked = iter(range(1, 1000))
    folder = simulated(
        tmp_path / "run", "bsp", scenario=Scenario(compute=0.05, network=NETWORK), stop=lambda: next(asked) == told
    )
    assert json.loads((folder / "summary.json").read_text())["outcome"] == "interrupted"
    assert checked(folder).wrong is None


def test_a_network_that_only_says_what_a_version_takes_paces_no_transfers(tmp_path: Path) -> None:
    scenario = Scenario(compute=1.0, network=Network(commit=0.25))
    run = simulated(tmp_path / "run", "asp", scenario=scenario)
    assert (found := checked(run)).ok, found.wrong
