"""What `paceline check` proves of honest runs, and which rule it names of edited ones."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.core.choice import Choice
from paceline.core.facts import Fact
from paceline.core.orders import DropUpdate, Order
from paceline.protocols import registry
from paceline.records import violations
from paceline.records.check import check
from paceline.records.ledger import SCHEMA
from paceline.records.reading import open_run
from paceline.scenario.scenario import Kill, Network, Scenario
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit
from support.recorded import AS_REAL, checked, crashed, edited, ends_here, leased, said, simulated, wrong
from support.runs import run
from support.scripts import training

EVENTFUL = Scenario(
    compute=0.05,
    jitter=0.2,
    nodes=2,
    speeds={3: 0.5},
    network=Network(bandwidth=1e9, message=10_000_000, latency=0.001),
    events=(Kill(worker=1, at=0.4, rejoin_after=0.3), Kill(worker=0, at=0.8)),
)
PROTOCOLS = [*registry(), "ssp:bound=0", "ripples:schedule=random", "sync-switch:first=dssp,then=asp"]


# --- honest runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_run_in_which_workers_die_and_come_back_passes(tmp_path: Path, protocol: str) -> None:
    found = checked(simulated(tmp_path / "run", protocol, steps=150, scenario=EVENTFUL))
    assert found.wrong is None
    assert found.counts["applied"] >= 150
    assert found.counts["invariants"] >= len(registry()[protocol.partition(":")[0]].invariants)


@pytest.mark.parametrize("protocol", ["asp", "bsp", "ssp:bound=2"])
@pytest.mark.parametrize("pauses", [0.0, 0.2])
def test_every_batch_of_a_run_with_leases_is_found_to_be_used_once(
    tmp_path: Path, protocol: str, pauses: float
) -> None:
    """Also if workers pause, and resume."""
    folder = leased(tmp_path / "run", protocol, pauses=pauses)
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        (resumed,) = ledger.execute("SELECT count(*) FROM facts WHERE kind = 'WorkerResumed'").fetchone()
    assert (resumed > 0) == (pauses > 0)
    found = checked(folder)
    assert found.wrong is None
    assert (found.counts["samples"], found.counts["samples_used"]) == (100, 100)
    assert "100 of 100 samples in 2 epochs each used once" in found.proved


@pytest.mark.real_run
def test_a_real_run_with_a_death_and_an_evaluation_passes(tmp_path: Path) -> None:
    inside = "if me == 1 and step == 5: os.kill(os.getpid(), signal.SIGKILL)"
    script = training(inside, before='evaluate = lambda model: {"constant": 1.5}')
    real = run(script, "-p", "ssp", "-n", "3", "--target", "constant>=1", tmp_path=tmp_path).completed()
    found = checked(real.folder)
    assert found.wrong is None
    assert found.counts["samples_used"] == 128


@pytest.mark.real_run
def test_a_real_run_of_replicas_that_was_stopped_at_a_limit_passes(tmp_path: Path) -> None:
    real = run(training(), "-p", "ripples", "-n", "3", "--max-steps", "20", tmp_path=tmp_path).completed()
    found = checked(real.folder)
    assert found.wrong is None
    assert found.counts["samples"] > found.counts["samples_used"] >= 80


def test_a_replay_that_stopped_at_a_version_is_checked_up_to_there(tmp_path: Path) -> None:
    folder = said(simulated(tmp_path / "run", "asp"), **{**AS_REAL, "simulated": True, "simulation": None})
    said(folder, replay_of="runs/once", scenario={})
    edited(
        folder,
        "DELETE FROM step_times",
        "INSERT INTO pushes SELECT worker, step, '[0.1]', 8 FROM facts WHERE kind = 'GradientReady'",
        "INSERT INTO checksums SELECT version, '0000000000000000' FROM orders WHERE kind = 'ApplyUpdate'",
    )
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        removes_the_last_facts(database)
    (folder / "summary.json").unlink()
    ends_here(folder)
    assert any(line.startswith("it is a replay of a run that did not come") for line in checked(folder).proved)
    said(folder, until=40)
    assert (
        "it is a replay up to version 40: workers may be there still, and gradients be left" in checked(folder).proved
    )


@pytest.mark.parametrize("why", ["'[\"because\"]'", "NULL", "'no JSON'"])
def test_reasons_are_compared(tmp_path: Path, why: str) -> None:
    folder = edited(simulated(tmp_path / "run", "sync-switch:first=bsp,then=asp"), f"UPDATE orders SET why = {why}")
    found = wrong(folder)
    assert (found.table, found.row) == ("orders", 1)
    assert found.rule == (violations.SAME_REASONS if "because" in why else violations.READABLE)


def test_a_run_that_crashed_is_checked_up_to_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = crashed(tmp_path / "run", 60)
    assert main(["check", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "crashed before its end" in out
    told = "60 recorded events in the order of time; the protocol, told them again, makes the same"
    assert re.search(rf"{told} \d+ decisions\n", out)


# --- edited ones ------------------------------------------------------------------------------------

Edit = Callable[[sqlite3.Connection], Any]
"""Edits a ledger, and returns the row that is wrong then."""


def nth(database: sqlite3.Connection, table: str, kind: str, number: int = 8) -> tuple[int, dict[str, Any]]:
    """Id and body of the n-th row of that kind."""
    query = f"SELECT id, body FROM {table} WHERE kind = ? ORDER BY id LIMIT 1 OFFSET {number}"
    row, body = database.execute(query, (kind,)).fetchone()
    return row, json.loads(body)


def rewrite(database: sqlite3.Connection, table: str, row: int, body: dict[str, Any]) -> int:
    """Change a row's body, and its columns with it."""
    columns = [body.get(name) for name in ("worker", "step", "version")]
    database.execute(
        f"UPDATE {table} SET body = ?, worker = ?, step = ?, version = ? WHERE id = ?",
        (json.dumps(body), *columns, row),
    )
    if table == "facts":
        database.execute("UPDATE facts SET at = ? WHERE id = ?", (body["at"], row))
    return row


def changes(table: str, kind: str, **fields: Any) -> Edit:
    """The ninth row of that kind gets these fields, given, or made from what was there."""

    def edit(database: sqlite3.Connection) -> int:
        row, body = nth(database, table, kind)
        new = {name: value(body[name]) if callable(value) else value for name, value in fields.items()}
        return rewrite(database, table, row, {**body, **new})

    return edit


def swaps_two_applies(database: sqlite3.Connection) -> int:
    (first, one), (second, other) = nth(database, "orders", "ApplyUpdate", 8), nth(database, "orders", "ApplyUpdate", 9)
    rewrite(database, "orders", second, {**other, "contributions": one["contributions"]})
    return rewrite(database, "orders", first, {**one, "contributions": other["contributions"]})


def applies_once_more(database: sqlite3.Connection) -> int:
    (_, one), (second, other) = nth(database, "orders", "ApplyUpdate", 8), nth(database, "orders", "ApplyUpdate", 9)
    return rewrite(database, "orders", second, {**other, "contributions": one["contributions"]})


def drops_what_was_applied(database: sqlite3.Connection) -> int:
    row, body = nth(database, "orders", "ApplyUpdate")
    ((worker, step, _),) = body["contributions"]
    drop = json.dumps({"worker": worker, "step": step, "samples": "return"})
    (fact,) = database.execute("SELECT fact FROM orders WHERE id = ?", (row,)).fetchone()
    values = (fact, "DropUpdate", worker, step, None, drop, "[]")
    return int(database.execute("INSERT INTO orders VALUES (NULL, ?, 9, ?, ?, ?, ?, ?, ?)", values).lastrowid or 0)


def drops_once_more(database: sqlite3.Connection) -> int:
    row, _ = nth(database, "orders", "DropUpdate", 0)
    copied = "SELECT NULL, fact, 9, kind, worker, step, version, body, why FROM orders WHERE id = ?"
    return int(database.execute(f"INSERT INTO orders {copied}", (row,)).lastrowid or 0)


def follows_from_nothing(database: sqlite3.Connection) -> int:
    values = (10**6, 0, "Hold", 0, None, None, '{"worker": 0}', "[]")
    return int(database.execute("INSERT INTO orders VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)", values).lastrowid or 0)


def removes_a_fact(database: sqlite3.Connection) -> int:
    database.execute("DELETE FROM orders WHERE fact = 20")
    database.execute("DELETE FROM facts WHERE id = 20")
    return 21


def removes_a_fact_alone(database: sqlite3.Connection) -> int:
    row, fact = database.execute("SELECT id, fact FROM orders WHERE kind = 'StartPush' LIMIT 1 OFFSET 8").fetchone()
    database.execute("DELETE FROM facts WHERE id = ?", (fact,))
    return int(row)


def removes_the_last_facts(database: sqlite3.Connection) -> None:
    (row,) = database.execute("SELECT min(id) FROM facts WHERE kind = 'WorkerLeft'").fetchone()
    database.execute("DELETE FROM orders WHERE fact >= ?", (row,))
    database.execute("DELETE FROM facts WHERE id >= ?", (row,))


def removes_an_order(database: sqlite3.Connection) -> int:
    row, fact = database.execute("SELECT id, fact FROM orders WHERE kind = 'StartPush' LIMIT 1 OFFSET 8").fetchone()
    database.execute("DELETE FROM orders WHERE id = ?", (row,))
    return int(fact)


def adds_an_order(database: sqlite3.Connection) -> int:
    values = (60, 9, "Hold", 0, None, None, '{"worker": 0}', "[]")
    return int(database.execute("INSERT INTO orders VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)", values).lastrowid or 0)


def counts_an_order_twice(database: sqlite3.Connection) -> int:
    row, _ = nth(database, "orders", "Hold")
    database.execute("UPDATE orders SET position = position + 1 WHERE id = ?", (row,))
    return row


def column_against_body(database: sqlite3.Connection) -> int:
    database.execute("UPDATE facts SET worker = worker + 1 WHERE id = 30")
    return 30


def no_json(database: sqlite3.Connection) -> int:
    database.execute("UPDATE facts SET body = substr(body, 1, 20) WHERE id = 30")
    return 30


def overlaps(database: sqlite3.Connection) -> int:
    """A group gets a member that is in another one."""
    busy: dict[int, list[int]] = {}
    rows = database.execute(
        "SELECT id, kind, body FROM (SELECT id AS fact, -1 AS position, id, kind, body FROM facts "
        "UNION ALL SELECT fact, position, id, kind, body FROM orders) ORDER BY fact, position"
    )
    for row, kind, text in rows.fetchall():
        body = json.loads(text)
        if kind == "Reduce":
            if others := [worker for members in busy.values() for worker in members]:
                return rewrite(database, "orders", row, {**body, "members": sorted([*body["members"], others[0]])})
            busy[body["group"]] = body["members"]
        elif kind in ("ReduceFinished", "ReduceFailed"):
            del busy[body["group"]]
    raise AssertionError("no two groups averaged at the same time")


def uses_a_batch_twice(database: sqlite3.Connection) -> int:
    """A later batch of the same size becomes one that was used before."""
    rows = database.execute(
        "SELECT uses.rowid, uses.worker, uses.epoch, uses.batch FROM batches AS uses JOIN applied_updates AS applied "
        "ON applied.worker = uses.worker AND applied.step = uses.step WHERE batch < 12 ORDER BY uses.rowid"
    ).fetchall()
    (_, _, epoch, batch), *_, (row, worker, *_) = rows
    database.execute("UPDATE batches SET epoch = ?, batch = ? WHERE rowid = ?", (epoch, batch, row))
    database.execute("INSERT INTO leases VALUES (?, ?, ?, ?)", (worker, epoch, epoch, batch))
    return int(row)


def takes_a_batch_of_another(database: sqlite3.Connection) -> int:
    row, worker, epoch, batch = database.execute(
        "SELECT rowid, worker, epoch, batch FROM batches LIMIT 1 OFFSET 9"
    ).fetchone()
    database.execute("DELETE FROM leases WHERE worker = ? AND epoch = ? AND batch = ?", (worker, epoch, batch))
    return int(row)


def gradient_of(database: sqlite3.Connection, worker: int, step: int) -> int:
    """The fact that it is ready."""
    query = "SELECT id FROM facts WHERE kind = 'GradientReady' AND worker = ? AND step = ?"
    return int(database.execute(query, (worker, step)).fetchone()[0])


def loses_a_batch(database: sqlite3.Connection) -> int:
    worker, step = database.execute("SELECT worker, step FROM batches WHERE rowid = 9").fetchone()
    database.execute("DELETE FROM batches WHERE rowid = 9")
    return gradient_of(database, worker, step)


def invents_an_epoch(database: sqlite3.Connection) -> int:
    database.execute("UPDATE batches SET epoch = 7 WHERE rowid = 9")
    return 9


def uses_a_batch_again_that_it_never_had(database: sqlite3.Connection) -> int:
    database.execute("UPDATE batches SET used = 'again' WHERE rowid = 9")
    return 9


def uses_a_batch_again_in_its_own_step(database: sqlite3.Connection) -> int:
    copied = "SELECT worker, step, epoch, batch, 'again' FROM batches WHERE used = 'step' LIMIT 1 OFFSET 8"
    return int(database.execute(f"INSERT INTO batches {copied}").lastrowid or 0)


def uses_a_batch_again_that_no_gradient_counts(database: sqlite3.Connection) -> int:
    (worker, step) = database.execute("SELECT worker, step FROM batches WHERE rowid = 20").fetchone()
    before = "SELECT epoch, batch FROM batches WHERE worker = ? AND step < ? AND used = 'step' LIMIT 1"
    kept = database.execute(before, (worker, step)).fetchone()
    database.execute("INSERT INTO batches VALUES (?, ?, ?, ?, 'again')", (worker, step, *kept))
    return gradient_of(database, worker, step)


def exchanges_a_sample(database: sqlite3.Connection) -> int:
    database.execute("UPDATE epochs SET batch_order = json_set(batch_order, '$[2][0]', 99) WHERE epoch = 1")
    return 2


def claims_more_samples(database: sqlite3.Connection) -> int:
    database.execute("UPDATE pushes SET samples = samples + 1 WHERE rowid = 9")
    return 9


def leases_twice(database: sqlite3.Connection) -> int:
    """To a worker that left once, at the end."""
    (worker,) = database.execute(
        "SELECT min(worker) FROM leases WHERE worker NOT IN (SELECT worker FROM facts WHERE body LIKE '%\"died\"%')"
    ).fetchone()
    copied = "SELECT worker, during, epoch, batch FROM leases WHERE worker = ? AND batch IS NOT NULL LIMIT 1"
    return int(database.execute(f"INSERT INTO leases {copied}", (worker,)).lastrowid or 0)


def has_no_leases(database: sqlite3.Connection) -> int:
    database.execute("DELETE FROM leases")
    return 1


def forgets_a_batch(database: sqlite3.Connection) -> None:
    """Nobody was leased it, and no gradient says that it is in it: a run may have been so, were it stopped."""
    row, worker, step, epoch, batch = database.execute(
        "SELECT min(rowid), worker, step, epoch, batch FROM batches WHERE batch < 12 AND epoch = 0"
    ).fetchone()
    database.execute("DELETE FROM batches WHERE rowid = ?", (row,))
    database.execute("DELETE FROM leases WHERE epoch = ? AND batch = ?", (epoch, batch))
    database.execute("UPDATE pushes SET samples = samples - 4 WHERE worker = ? AND step = ?", (worker, step))
    (fact, text) = database.execute(
        "SELECT id, body FROM facts WHERE kind = 'GradientReady' AND worker = ? AND step = ?", (worker, step)
    ).fetchone()
    body = json.loads(text)
    rewrite(database, "facts", fact, {**body, "samples": body["samples"] - 4})


def runs(statement: str, row: int | str | None = None) -> Edit:
    """That statement, and the row that is wrong then."""

    def edit(database: sqlite3.Connection) -> Any:
        assert database.execute(statement).rowcount != 0
        return row

    return edit


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs in which nothing is wrong yet, each made once; tests edit copies of them."""
    slow_groups = Scenario(compute=0.05, jitter=0.2, network=Network(bandwidth=1e9, message=10_000_000, latency=0.01))

    @cache
    def made(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("right") / "run"
        if kind == "leases":
            return leased(folder)
        if kind == "ad-psgd":
            return simulated(folder, kind, workers=8, steps=100, scenario=slow_groups)
        return simulated(folder, kind, steps=100)

    return made


@pytest.mark.parametrize(
    ("protocol", "edit", "table", "rule"),
    [
        ("asp", swaps_two_applies, "orders", violations.ARRIVED),
        ("asp", applies_once_more, "orders", violations.APPLIED_ONCE),
        ("asp", drops_what_was_applied, "orders", violations.NOT_BOTH),
        ("hsp:idle=guarded,stale=next,broadcast=all", drops_once_more, "orders", violations.DROPPED_ONCE),
        ("bsp", follows_from_nothing, "orders", violations.BELONGS),
        ("bsp", removes_a_fact, "facts", violations.WITHOUT_GAP),
        ("bsp", removes_a_fact_alone, "orders", violations.WITHOUT_GAP),
        ("bsp", removes_the_last_facts, "facts", violations.ALL_LEFT),
        ("ssp", removes_an_order, "facts", violations.SAME_ORDERS),
        ("ssp", adds_an_order, "orders", violations.SAME_ORDERS),
        ("ssp", counts_an_order_twice, "orders", violations.POSITIONS),
        ("asp", column_against_body, "facts", violations.READABLE),
        ("asp", no_json, "facts", violations.READABLE),
        ("asp", changes("facts", "GradientReady", at=0.01), "facts", violations.FORWARD),
        ("asp", changes("facts", "UpdateArrived", worker=lambda worker: 3 - worker), "facts", None),
        ("asp", changes("facts", "ParametersTaken", version=0), "facts", violations.PULLS),
        ("asp", changes("facts", "GradientReady", version=99), "facts", violations.PULLED),
        ("asp", changes("orders", "ApplyUpdate", version=lambda version: version + 1), "orders", violations.VERSIONS),
        ("bsp", changes("orders", "ApplyUpdate", contributions=[[0, 8, 1.5]]), "orders", violations.WEIGHT_1),
        ("ssp", changes("orders", "Release", step=0), "orders", violations.STEPS_ONCE),
        ("ssp", changes("orders", "Release", parameters="held"), "orders", violations.SAME_ORDERS),
        ("ssp", changes("orders", "Hold", worker=lambda worker: worker + 1), "orders", violations.SAME_ORDERS),
        ("ad-psgd", overlaps, "orders", violations.NO_OVERLAP),
        ("ad-psgd", changes("orders", "Reduce", group=0), "orders", violations.GROUP_ONCE),
        ("ad-psgd", changes("facts", "ReduceFinished", group=0), "facts", violations.ENDS),
        (
            "ripples",
            changes("orders", "StepReplica", version=lambda version: version + 1),
            "orders",
            violations.REPLICAS,
        ),
        ("all-reduce", changes("orders", "Reduce", contributions=[[0, 8, 0.5]]), "orders", violations.WEIGHT_1),
        ("leases", uses_a_batch_twice, "batches", violations.ONCE),
        ("leases", takes_a_batch_of_another, "batches", violations.LEASED),
        ("leases", loses_a_batch, "facts", violations.BATCHES),
        ("leases", invents_an_epoch, "batches", violations.OPENED),
        ("leases", uses_a_batch_again_that_it_never_had, "batches", violations.AGAIN),
        ("leases", uses_a_batch_again_in_its_own_step, "batches", violations.AGAIN),
        ("leases", uses_a_batch_again_that_no_gradient_counts, "facts", violations.BATCHES),
        ("leases", exchanges_a_sample, "epochs", violations.DIGEST),
        ("leases", claims_more_samples, "pushes", violations.PUSHED),
        ("leases", leases_twice, "leases", violations.LEASED_ONCE),
        ("leases", has_no_leases, "batches", violations.LEASED),
        ("leases", forgets_a_batch, "leases", violations.TO_ITS_END),
        ("asp", runs("DROP VIEW applied_updates", "applied_updates"), "sqlite_schema", violations.SCHEMA_KEPT),
        ("asp", runs("CREATE TABLE trophies (name TEXT)", "trophies"), "sqlite_schema", violations.SCHEMA_KEPT),
        ("asp", runs("INSERT INTO scalars VALUES (77, 3, 0.3, 'loss', 1.0)", 1), "scalars", violations.SCALARS),
        ("asp", changes("facts", "GradientReady", accuracy=0.99), "facts", violations.READABLE),
        ("asp", changes("orders", "ApplyUpdate", accuracy=0.99), "orders", violations.READABLE),
        ("leases", runs("DELETE FROM pushes", 0), "facts", violations.PUSHES),
        ("leases", runs("DELETE FROM pushes WHERE rowid = 9", 0), "facts", violations.PUSHES),
        ("leases", runs("INSERT INTO pushes SELECT * FROM pushes LIMIT 1 OFFSET 3", 0), "pushes", violations.PUSHES),
        ("leases", runs("DELETE FROM checksums"), "checksums", violations.CHECKSUMS),
        ("leases", runs("DELETE FROM checksums WHERE version = 5"), "checksums", violations.CHECKSUMS),
        ("leases", runs("UPDATE checksums SET version = 4 WHERE version = 5", 5), "checksums", violations.CHECKSUMS),
        ("leases", runs("UPDATE checksums SET version = 999 WHERE version = 5", 5), "checksums", violations.CHECKSUMS),
        ("ripples", runs("INSERT INTO undone VALUES (0, 2)", 1), "undone", violations.UNDONE),
        ("ripples", runs("INSERT INTO undone VALUES (9, 999)", 1), "undone", violations.UNDONE),
    ],
)
def test_the_first_wrong_row_and_its_rule_are_named(
    tmp_path: Path, right: Callable[[str], Path], protocol: str, edit: Edit, table: str, rule: str | None
) -> None:
    folder = shutil.copytree(right(protocol), tmp_path / "run")
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        row = edit(database)
    found = wrong(folder)
    assert found.table == table
    assert found.row == row or row == 0  # 0: the last one
    assert found.rule == rule or (rule is None and found.rule.startswith("its worker is"))  # the machine's own words
    assert len(str(found).splitlines()) == 3


def test_a_ledger_whose_comments_say_less_has_the_same_tables(tmp_path: Path) -> None:
    folder = simulated(tmp_path / "run")
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        database.execute("PRAGMA writable_schema = ON")
        less = (
            "UPDATE sqlite_schema SET sql = replace(sql, '-- seconds since', '-- since') WHERE sql LIKE '%-- seconds %'"
        )
        assert database.execute(less).rowcount
    assert (found := checked(folder)).ok, found.wrong


def test_a_protocol_with_other_parameters_decides_otherwise(tmp_path: Path) -> None:
    folder = simulated(tmp_path / "run", "ssp:bound=2", steps=100)
    edited(folder, "UPDATE run SET value = json_set(value, '$.config.bound', 1) WHERE key = 'protocol'")
    found = wrong(folder)
    assert (found.table, found.row, found.rule) == ("run", "protocol", violations.SAME_CONFIG)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("bound = 2", "bound = 1"))
    assert wrong(folder).rule == violations.SEGMENTS
    edited(folder, "UPDATE segments SET protocol = (SELECT value FROM run WHERE key = 'protocol')")
    assert wrong(folder).rule == violations.SAME_REASONS  # it says how far a worker may lead, before any has to wait


@pytest.mark.parametrize(
    ("edit", "row", "rule"),
    [
        (
            lambda summary: summary["staleness"]["histogram"].update({"0": 99}),
            "staleness.histogram.0",
            violations.SUMMED_UP,
        ),
        (lambda summary: summary.update(steps=41), "steps", violations.SUMMED_UP),
        (lambda summary: summary["per_worker"][2].update(max_lead=99), "per_worker[2].max_lead", violations.SUMMED_UP),
        (
            lambda summary: summary["per_worker"][1].update(compute_seconds=0.5),
            "per_worker[1].compute_seconds",
            violations.SUMMED_UP,
        ),
        (
            lambda summary: summary.update(final_parameters_sha256="0" * 64),
            "final_parameters_sha256",
            violations.SUMMED_UP,
        ),
        (lambda summary: summary.pop("versions"), "versions", violations.SUMMED_UP),
    ],
)
def test_a_summary_that_says_something_else_is_caught(
    tmp_path: Path, edit: Callable[[dict[str, Any]], Any], row: str, rule: str
) -> None:
    folder = simulated(tmp_path / "run", "asp")
    summary = json.loads((folder / "summary.json").read_text())
    edit(summary)
    (folder / "summary.json").write_text(json.dumps(summary))
    found = wrong(folder)
    assert (found.table, found.row, found.rule) == ("summary.json", row, rule)


def test_more_missed_samples_than_are_missing_are_caught(tmp_path: Path) -> None:
    folder = leased(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "samples_missed": 4}))
    assert wrong(folder).rule == violations.MISSED


def test_a_batch_that_was_leased_and_is_neither_used_nor_missed_is_caught(tmp_path: Path) -> None:
    folder = leased(tmp_path / "run")
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        (leases,) = database.execute(
            "SELECT json_group_array(json_array(rowid, worker, during, epoch, batch)) FROM leases WHERE epoch = 0"
        ).fetchone()
        forgets_a_batch(database)
        columns = "rowid, worker, during, epoch, batch"
        database.executemany(f"INSERT OR REPLACE INTO leases ({columns}) VALUES (?, ?, ?, ?, ?)", json.loads(leases))
    found = wrong(folder)
    assert (found.rule, found.expected) == (violations.ACCOUNTED, "4 or more missed")


def test_of_a_run_that_ended_for_want_of_data_every_sample_is_accounted_for(tmp_path: Path) -> None:
    found = checked(leased(tmp_path / "run"))
    assert (found.counts["epochs"], found.counts["epochs_to_their_end"]) == (2, 2)


@pytest.mark.parametrize(("protocol", "ran_out"), [("asp", 2), ("bsp", 0)])
def test_where_batches_are_set_aside_an_epoch_has_run_out_once_all_workers_asked_in_vain(
    tmp_path: Path, protocol: str, ran_out: int
) -> None:
    folder = edited(
        leased(tmp_path / "run", protocol),
        "DELETE FROM leases WHERE batch IS NULL AND during IS NOT NULL AND worker > 0",
    )
    assert checked(folder).counts["epochs_to_their_end"] == ran_out


@pytest.mark.real_run
def test_an_epoch_that_every_worker_left_early_is_not_said_to_have_run_out_of_data(tmp_path: Path) -> None:
    inside = "if step % 5 == 4: break"
    real = run(training(inside), "-p", "asp", "-n", "2", tmp_path=tmp_path).completed()
    found = checked(real.folder)
    assert found.wrong is None
    assert found.counts["samples_used"] < found.counts["samples"]
    assert found.counts["epochs_to_their_end"] == 0


@pytest.mark.parametrize("protocol", ["asp", "sync-switch:first=bsp,then=asp"])
def test_an_invariant_is_named_with_the_fact_after_which_it_does_not_hold(tmp_path: Path, protocol: str) -> None:
    opened = open_run(simulated(tmp_path / "run", protocol), registry())
    told = iter(range(100))
    spec = replace(opened.choice.spec, invariants={"nothing happens ten times": lambda machine: next(told) < 9})
    with closing(opened.ledger):
        segment = replace(opened.segments[0], choice=replace(opened.choice, spec=spec))
        found = check(replace(opened, segments=[segment])).wrong
    assert found is not None
    assert (found.table, found.row, found.rule) == ("facts", 10, f"{spec.name}: nothing happens ten times")


class Forgetful:
    """`asp` that says nothing of updates that will never arrive."""

    def __init__(self, config: Any) -> None:
        self._asp = registry()["asp"].machine(config)

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        return tuple(order for order in self._asp.handle(fact) if not isinstance(order, DropUpdate))


def test_a_gradient_that_a_protocol_has_forgotten_is_named(tmp_path: Path) -> None:
    spec = replace(registry()["asp"], machine=Forgetful, invariants={})
    scenario = Scenario(compute=0.05, network=Network(latency=0.02))
    simulate(
        Simulation(choice=Choice(spec, spec.config()), scenario=scenario, workers=4, limit=Limit(steps=41)),
        tmp_path / "run",
    )
    with closing((opened := open_run(tmp_path / "run", {"asp": spec})).ledger):
        found = check(opened).wrong
    assert found is not None
    assert found.rule == violations.SETTLED


# --- the command ------------------------------------------------------------------------------------


def test_a_truncated_ledger_is_no_proof_and_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = simulated(tmp_path / "run")
    ledger = folder / "ledger.sqlite"
    ledger.write_bytes(ledger.read_bytes()[: ledger.stat().st_size // 2])
    assert main(["check", str(folder)]) == 3
    assert "the ledger can be read" in capsys.readouterr().out


def test_a_page_that_was_overwritten_exits_with_3_and_says_how_far_it_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = simulated(tmp_path / "run", steps=400)
    ledger = folder / "ledger.sqlite"
    data = bytearray(ledger.read_bytes())
    page = len(data) // 2 // 4096 * 4096
    data[page : page + 4096] = b"\xff" * 4096
    ledger.write_bytes(data)
    assert main(["check", str(folder)]) == 3
    assert "wrong" in capsys.readouterr().out


def test_what_is_no_run_exits_with_2_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"paceline: {tmp_path}: there is no ledger.sqlite in it; name a run's folder\n"
    with closing(sqlite3.connect(simulated(tmp_path / "run") / "ledger.sqlite")) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    assert main(["check", str(tmp_path / "run")]) == 2


def test_what_was_proved_can_be_read_by_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = simulated(tmp_path / "run", "asp")
    assert main(["check", "--json", str(folder)]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["ok"], plain["ended"], plain["wrong"]) == (True, True, None)
    assert (plain["counts"]["applied"], plain["counts"]["versions"]) == (40, 40)
    edited(folder, "DELETE FROM orders WHERE id = 9")
    assert main(["check", "--json", str(folder)]) == 3
    plain = json.loads(capsys.readouterr().out)
    assert (plain["ok"], plain["wrong"]["rule"]) == (False, violations.SAME_ORDERS)
