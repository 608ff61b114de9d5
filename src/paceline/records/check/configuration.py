"""Checks the configuration in config.toml and the ledger, the ledger's tables, its scalars, and who takes part."""

from __future__ import annotations

import tomllib
from typing import Any

from paceline.core.facts import Fact, TrainingBegan, UpdateArrived, WorkerJoined
from paceline.core.phrases import workers_named
from paceline.files import read_record
from paceline.records.check.checking import Checking
from paceline.records.ledger import made, without_comments
from paceline.records.segments import AVERAGED, LACKING, MOVES, ON_DEVICES, PLACEMENT
from paceline.records.summary import MOVED
from paceline.records.violations import (
    GOES_ON,
    MEMBERS,
    READABLE,
    SAME_CONFIG,
    SAYS_OF_ITSELF,
    SCALARS,
    SCHEMA_KEPT,
    SUMS,
    Violation,
    brief,
)

CONFIG = "config.toml"
IN_THE_LEDGER = frozenset(
    {
        *(
            "absent",
            "admitted",
            "beginning",
            "deaths",
            "gave",
            "handed",
            AVERAGED,
            LACKING,
            MOVED,
            MOVES,
            ON_DEVICES,
            PLACEMENT,
        ),
        *("replay_of", "simulation", "unmeasured", "until"),
    }
)
"""Keys of the table `run` that are noted after config.toml is written."""
OF_A_SCRIPT: dict[str, type | tuple[type, ...]] = {
    "script": str,
    "directory": str,
    "script_sha256": str,
    "arguments": list,
    "threads": int,
    "shards": str,
    "buffers": str,
    "record": int,
    "on_loss": str,
    "on_divergence": str,
    "saves": str,
    "learning_rate_scale": (float, int),
    "targets": list,
    "environment": dict,
}
"""Keys that a run of a script has, with the type of each value."""
ENVIRONMENT = ("python", "torch", "numpy", "cpu_capability", "platform", "cores")


def configuration(checking: Checking) -> None:
    """Check that `config.toml`, which is for people, and the ledger's table `run` agree in every key."""
    checking.table = "run"
    config = dict(checking.run.config)
    written = _written(checking)
    begun = checking.run.ledger.execute("SELECT 1 FROM facts LIMIT 1").fetchone() is not None
    if begun or checking.end is not None:  # else the run may have been killed before the ledger had the script's part
        for key in {**written, **config}:
            if key not in written and key in IN_THE_LEDGER:
                continue
            if key not in written or key not in config or written[key] != config[key]:
                expected = _said(key, written)
                raise Violation(SAME_CONFIG, f"{expected}, as {CONFIG} has it", _said(key, config), "run", key)
    _of_its_kind(checking)


def _written(checking: Checking) -> dict[str, Any]:
    try:
        return tomllib.loads(read_record(checking.run.folder / CONFIG).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise Violation(READABLE, "a TOML file", error, CONFIG) from None


def _said(key: str, config: dict[str, Any]) -> str:
    return f"{key} = {brief(config[key])}" if key in config else f"no {key}"


def _of_its_kind(checking: Checking) -> None:
    """Check the keys of a real run, which has a script, of a simulation, and of a replay."""
    config, simulated = checking.run.config, checking.run.simulated
    for key, table in (("limits", config.get("limits")), ("simulation", config.get("simulation", {}))):
        if not isinstance(table, dict) or not isinstance(table.get("limits", {}), dict):
            raise Violation(READABLE, f"{key}, as a table", table, "run", key)
    marks = [key for key in ("simulation", "replay_of") if key in config]
    if simulated and len(marks) != 1:
        found = " and ".join(marks) or "neither"
        raise Violation(SAYS_OF_ITSELF, "simulation, or replay_of, as it was simulated", found, "run", "simulated")
    if not simulated and marks:
        raise Violation(SAYS_OF_ITSELF, f"no {marks[0]}, as it was not simulated", "one", "run", marks[0])
    if checking.until is not None and not checking.replays:
        raise Violation(SAYS_OF_ITSELF, "until in a replay alone", checking.until, "run", "until")
    if checking.trained or not simulated or checking.replays:
        for key, kind in OF_A_SCRIPT.items():
            value = config.get(key)
            if not isinstance(value, kind):
                raise Violation(SAYS_OF_ITSELF, f"{key}, as a script was run", _said(key, dict(config)), "run", key)
        missing = [key for key in ENVIRONMENT if key not in config["environment"]]
        if missing:
            raise Violation(SAYS_OF_ITSELF, f"{missing[0]} in the environment", "none", "run", "environment")
    cluster = config["scenario"].get("cluster", {}).get("workers")
    if cluster is not None and cluster != checking.run.workers:
        found = f"{cluster} in its scenario"
        raise Violation(SAYS_OF_ITSELF, f"{checking.run.workers} workers", found, "run", "scenario")


def tables(checking: Checking) -> None:
    """Check the definitions of tables and views. Programs read a ledger through its views."""
    checking.table, checking.row = "sqlite_schema", None
    rows = checking.run.ledger.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    expected, found = made(), {name: without_comments(sql) for name, sql in rows}
    for name in expected:
        if found.get(name) != expected[name]:
            there = "another one of that name" if name in found else "none"
            raise Violation(SCHEMA_KEPT, f"{name} as this version of Paceline makes it", there, "sqlite_schema", name)
    if strange := sorted(found.keys() - expected.keys()):
        raise Violation(SCHEMA_KEPT, "nothing else", strange[0], "sqlite_schema", strange[0])


def scalars(checking: Checking) -> None:
    checking.table = "scalars"
    workers = max(segment.workers for segment in checking.run.segments)
    for row, worker in checking.run.ledger.execute("SELECT rowid, worker FROM scalars ORDER BY rowid"):
        if worker not in range(workers):
            raise Violation(SCALARS, f"worker 0 to {workers - 1}", f"worker {worker}", "scalars", row)


def as_configured(checking: Checking, fact: Fact) -> None:
    """Hold a fact against the configuration, which has the workers, their hosts and the seed."""
    match fact:
        case TrainingBegan():
            _begins_as_configured(checking, fact)
        case WorkerJoined(worker=worker, host=host):
            _on_its_node(checking, worker, host)
        case UpdateArrived(sum=int(number)) if checking.segment.hosts == 1 and not checking.replays:
            raise Violation(SUMS, "none: there is one host", f"sum {number}")


def _begins_as_configured(checking: Checking, fact: TrainingBegan) -> None:
    run = checking.run
    if fact.seed != run.seed:
        raise Violation(MEMBERS, f"seed {run.seed}", f"seed {fact.seed}")
    absent = checking.segment.notes.get("absent", []) if not run.simulated else []
    expected = [worker for worker in range(checking.segment.workers) if worker not in absent]
    members = [worker for worker, _, _ in fact.members]
    if members != expected:
        raise Violation(MEMBERS, workers_named(expected), workers_named(members))
    for worker, host, _ in fact.members:
        _on_its_node(checking, worker, host)
    applied = checking.tally.shares.values()
    done = sum(share.samples if checking.tally.counted else share.steps for share in applied)
    if fact.done != done:
        raise Violation(GOES_ON, f"{done} done", f"{fact.done} done")


def _on_its_node(checking: Checking, worker: int, host: str) -> None:
    hosts = checking.run.scenario_of(checking.segment).hosts(checking.segment.workers)
    if not 0 <= worker < len(hosts) or hosts[worker] != host:
        expected = f"one of {len(hosts)} workers" if worker >= len(hosts) else f"worker {worker} on {hosts[worker]}"
        raise Violation(MEMBERS, expected, f"worker {worker} on {host}")
