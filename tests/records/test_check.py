"""What `paceline check` proves of honest runs, and which rule it names of those whose ledger was edited."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
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
from paceline.records import violations as rules
from paceline.records.check import check
from paceline.records.reading import open_run
from paceline.scenario.scenario import Kill, Network, Scenario
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit
from support.recorded import AS_REAL, checked, crashed, edited, ends_here, leased, said, simulated, summarized, wrong

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
def test_every_batch_of_a_run_with_leases_is_used_once(tmp_path: Path, protocol: str, pauses: float) -> None:
    folder = leased(tmp_path / "run", protocol, pauses=pauses)
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        (resumed,) = ledger.execute("SELECT count(*) FROM facts WHERE kind = 'WorkerResumed'").fetchone()
    assert (resumed > 0) == (pauses > 0)
    found = checked(folder)
    assert found.wrong is None
    assert (found.counts["samples"], found.counts["samples_used"]) == (100, 100)
    assert (found.counts["epochs"], found.counts["epochs_to_their_end"]) == (2, 2)
    assert "100 of 100 samples in 2 epochs each used once" in found.proved


@pytest.mark.parametrize(("protocol", "ran_out"), [("asp", 2), ("bsp", 0)])
def test_an_epoch_has_run_out_once_all_workers_asked_in_vain(tmp_path: Path, protocol: str, ran_out: int) -> None:
    folder = edited(
        leased(tmp_path / "run", protocol),
        "DELETE FROM leases WHERE batch IS NULL AND during IS NOT NULL AND worker > 0",
    )
    assert checked(folder).counts["epochs_to_their_end"] == ran_out


WITHOUT_ITS_END = "DELETE FROM facts WHERE id >= (SELECT min(id) FROM facts WHERE kind = 'WorkerLeft')"


def test_a_replay_that_stopped_at_a_version_is_checked_up_to_there(tmp_path: Path) -> None:
    folder = said(simulated(tmp_path / "run", "asp"), **{**AS_REAL, "simulated": True, "simulation": None})
    said(folder, replay_of="runs/once", scenario={})
    edited(
        folder,
        "DELETE FROM step_times",
        "INSERT INTO pushes SELECT worker, step, '[0.1]', 8 FROM facts WHERE kind = 'GradientReady'",
        "INSERT INTO checksums SELECT version, '0000000000000000' FROM orders WHERE kind = 'ApplyUpdate'",
        WITHOUT_ITS_END,
    )
    (folder / "summary.json").unlink()
    ends_here(folder)
    assert any(line.startswith("it is a replay of a run that did not come") for line in checked(folder).proved)
    said(folder, until=40)
    assert (
        "it is a replay up to version 40: workers may be there still, and gradients be left" in checked(folder).proved
    )


def test_a_run_that_crashed_is_checked_up_to_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = crashed(tmp_path / "run", 60)
    assert main(["check", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "crashed before its end" in out
    told = "60 recorded events in the order of time; the protocol, told them again, makes the same"
    assert re.search(rf"{told} \d+ decisions\n", out)


def test_the_row_of_a_return_that_was_not_told_is_borne_where_a_run_crashed(tmp_path: Path) -> None:
    """A worker had asked for its first batch, and the run was killed at that moment."""
    folder = leased(tmp_path / "run")
    edited(folder, "INSERT INTO leases VALUES (0, NULL, NULL, NULL)", "DELETE FROM run WHERE key = 'end'")
    (folder / "summary.json").unlink()
    assert checked(folder).wrong is None


# --- edited ones ------------------------------------------------------------------------------------


def nth(table: str, kind: str, number: int = 8) -> str:
    """The id of the n-th row of that kind."""
    return f"(SELECT id FROM {table} WHERE kind = '{kind}' ORDER BY id LIMIT 1 OFFSET {number})"


def changed(kind: str, key: str, value: str, table: str = "facts") -> tuple[str, str]:
    """The ninth row of that kind has this value, in its body and in its column; and where that is."""
    column = f", {key} = {value}" if key in ("worker", "step", "version", "at") else ""
    row = nth(table, kind)
    return f"UPDATE {table} SET body = json_set(body, '$.{key}', {value}){column} WHERE id = {row}", f"{table} {row}"


def ordered(kind: str, key: str, value: str) -> tuple[str, str]:
    """The same of an order."""
    return changed(kind, key, value, "orders")


def contributions_of(other: int) -> tuple[str, str]:
    """An update is applied a second time, or before it has arrived."""
    theirs = (
        f"(SELECT json_extract(body, '$.contributions') FROM orders WHERE id = {nth('orders', 'ApplyUpdate', other)})"
    )
    return ordered("ApplyUpdate", "contributions", f"json({theirs})")


def added(columns: str, of: str) -> tuple[str, str]:
    """Another order, which has these columns of that one."""
    names = "fact, position, kind, worker, step, body, why"
    return (
        f"INSERT INTO orders ({names}) SELECT {columns} FROM orders WHERE id = {of}",
        "orders (SELECT max(id) FROM orders)",
    )


APPLIED = nth("orders", "ApplyUpdate")
PUSHED = nth("orders", "StartPush")
BATCH = "(SELECT min(rowid) FROM batches WHERE batch < 12 AND epoch = 0)"
LATER = "(SELECT max(rowid) FROM batches WHERE batch < 12)"
ITSELF = f"(SELECT epoch, batch FROM batches WHERE rowid = {BATCH})"
ITS_STEP = f"(SELECT worker, step FROM batches WHERE rowid = {BATCH})"
WITHOUT_A_BATCH = (
    f"UPDATE pushes SET samples = samples - 4 WHERE (worker, step) = {ITS_STEP}",
    "UPDATE facts SET body = json_set(body, '$.samples', json_extract(body, '$.samples') - 4) "
    f"WHERE kind = 'GradientReady' AND (worker, step) = {ITS_STEP}",
    f"DELETE FROM batches WHERE rowid = {BATCH}",
)
"""A batch is in no gradient: so it may be if the run was stopped."""
LOOKED = "INSERT INTO looks SELECT worker, epoch, batch FROM batches LIMIT 1"
HAD_AGAIN = "INSERT INTO leases SELECT worker, epoch, epoch, batch FROM batches LIMIT 1"
LAST = "WHERE rowid = (SELECT max(rowid) FROM leases WHERE during IS NULL)"
"""The row of a worker's last return."""

EDITS: dict[str, tuple[str, tuple[str, ...] | str, str, str]] = {
    "an update is applied before it arrives": ("asp", *contributions_of(20), rules.ARRIVED),
    "an update is applied twice": ("asp", *contributions_of(7), rules.APPLIED_ONCE),
    "an update is applied and dropped": (
        "asp",
        *added(
            "fact, 9, 'DropUpdate', body ->> '$.contributions[0][0]', body ->> '$.contributions[0][1]', json_object("
            "'worker', body -> '$.contributions[0][0]', 'step', body -> '$.contributions[0][1]', 'samples', 'return'"
            "), '[]'",
            APPLIED,
        ),
        rules.NOT_BOTH,
    ),
    "an update is dropped twice": (
        "hsp:idle=guarded,stale=next,broadcast=all",
        *added("fact, 9, kind, worker, step, body, why", nth("orders", "DropUpdate", 0)),
        rules.DROPPED_ONCE,
    ),
    "an order follows from no fact": (
        "bsp",
        *added("1000000, 0, kind, worker, step, body, why", PUSHED),
        rules.BELONGS,
    ),
    "a fact is gone with its orders": (
        "bsp",
        ("DELETE FROM orders WHERE fact = 20", "DELETE FROM facts WHERE id = 20"),
        "facts 21",
        rules.WITHOUT_GAP,
    ),
    "a fact is gone without its orders": (
        "bsp",
        f"DELETE FROM facts WHERE id = (SELECT fact FROM orders WHERE id = {PUSHED})",
        f"orders {PUSHED}",
        rules.WITHOUT_GAP,
    ),
    "the last facts are gone": ("bsp", WITHOUT_ITS_END, "facts", rules.ALL_LEFT),
    "an order is gone": ("ssp", f"DELETE FROM orders WHERE id = {PUSHED}", "facts", rules.SAME_ORDERS),
    "an order too many": ("ssp", *added("60, 9, kind, worker, step, body, why", PUSHED), rules.SAME_ORDERS),
    "an order's position is not the next": (
        "ssp",
        f"UPDATE orders SET position = position + 1 WHERE id = {nth('orders', 'Hold')}",
        f"orders {nth('orders', 'Hold')}",
        rules.POSITIONS,
    ),
    "a column says something else than the body": (
        "asp",
        "UPDATE facts SET worker = worker + 1 WHERE id = 30",
        "facts 30",
        rules.READABLE,
    ),
    "a body is no JSON": (
        "asp",
        "UPDATE facts SET body = substr(body, 1, 20) WHERE id = 30",
        "facts 30",
        rules.READABLE,
    ),
    "a fact has a key that there is not": ("asp", *changed("GradientReady", "gpu", "1"), rules.READABLE),
    "an order has a key that there is not": ("asp", *ordered("ApplyUpdate", "gpu", "1"), rules.READABLE),
    "another reason": ("sync-switch", "UPDATE orders SET why = '[1]'", "orders 1", rules.SAME_REASONS),
    "no reason": ("sync-switch", "UPDATE orders SET why = NULL", "orders 1", rules.READABLE),
    "a fact at an earlier moment": ("asp", *changed("GradientReady", "at", "0.01"), rules.FORWARD),
    "an update of another worker": ("asp", *changed("UpdateArrived", "worker", "3 - worker"), "its worker is"),
    "a version is pulled again": ("asp", *changed("ParametersTaken", "version", "0"), rules.PULLS),
    "a gradient on a version that was not pulled": ("asp", *changed("GradientReady", "version", "99"), rules.PULLED),
    "a version is left out": ("asp", *ordered("ApplyUpdate", "version", "version + 1"), rules.VERSIONS),
    "weights that do not sum to 1": (
        "bsp",
        *ordered("ApplyUpdate", "contributions", "json('[[0, 8, 1.5]]')"),
        rules.WEIGHT_1,
    ),
    "weights of a mean that do not sum to 1": (
        "all-reduce",
        *ordered("Reduce", "contributions", "json('[[0, 8, 0.5]]')"),
        rules.WEIGHT_1,
    ),
    "a step is begun twice": ("ssp", *ordered("Release", "step", "0"), rules.STEPS_ONCE),
    "parameters of another kind": ("ssp", *ordered("Release", "parameters", "'held'"), rules.SAME_ORDERS),
    "a group's number is used again": ("ad-psgd", *ordered("Reduce", '"group"', "0"), rules.GROUP_ONCE),
    "a group ends twice": ("ad-psgd", *changed("ReduceFinished", '"group"', "0"), rules.ENDS),
    "a replica's version is left out": ("ripples", *ordered("StepReplica", "version", "version + 1"), rules.REPLICAS),
    "no view of the applied updates": (
        "asp",
        "DROP VIEW applied_updates",
        "sqlite_schema 'applied_updates'",
        rules.SCHEMA_KEPT,
    ),
    "a table too many": ("asp", "CREATE TABLE trophies (name TEXT)", "sqlite_schema 'trophies'", rules.SCHEMA_KEPT),
    "a scalar of a step that there is not": (
        "asp",
        "INSERT INTO scalars VALUES (77, 3, 0.3, 'loss', 1.0)",
        "scalars 1",
        rules.SCALARS,
    ),
    "a step is undone of a worker that went on": (
        "ripples",
        "INSERT INTO undone VALUES (0, 2)",
        "undone 1",
        rules.UNDONE,
    ),
    "a step is undone that there is not": ("ripples", "INSERT INTO undone VALUES (9, 999)", "undone 1", rules.UNDONE),
}
"""By what was edited: the run, the statements, the table that is named, with its row where that is known, the rule."""
DATA: dict[str, tuple[tuple[str, ...] | str, str, str]] = {
    "a batch is used twice": (
        (
            f"UPDATE batches SET (epoch, batch) = {ITSELF} WHERE rowid = {LATER}",
            f"INSERT INTO leases SELECT worker, epoch, epoch, batch FROM batches WHERE rowid = {LATER}",
        ),
        "batches",
        rules.ONCE,
    ),
    "a batch of another worker is used": (
        "DELETE FROM leases WHERE (worker, epoch, batch) IN (SELECT worker, epoch, batch FROM batches WHERE rowid = 9)",
        "batches 9",
        rules.LEASED,
    ),
    "nobody was leased a batch": ("DELETE FROM leases WHERE batch >= 0", "batches 1", rules.LEASED),
    "a gradient has lost a batch": (f"DELETE FROM batches WHERE rowid = {BATCH}", "facts", rules.BATCHES),
    "a batch is of an epoch that there is not": (
        "UPDATE batches SET epoch = 7 WHERE rowid = 9",
        "batches 9",
        rules.OPENED,
    ),
    "a batch is used again that was never had": (
        "UPDATE batches SET used = 'again' WHERE rowid = 9",
        "batches 9",
        rules.AGAIN,
    ),
    "a batch is used again in its own step": (
        "INSERT INTO batches SELECT worker, step, epoch, batch, 'again' FROM batches WHERE rowid = 9",
        "batches (SELECT max(rowid) FROM batches)",
        rules.AGAIN,
    ),
    "no gradient counts a batch that is used again": (
        "INSERT INTO batches SELECT later.worker, later.step, first.epoch, first.batch, 'again' FROM batches AS first "
        "JOIN batches AS later USING (worker) WHERE first.step < later.step AND later.rowid = 20 LIMIT 1",
        "facts",
        rules.BATCHES,
    ),
    "an epoch has another sample": (
        "UPDATE epochs SET batch_order = json_set(batch_order, '$[2][0]', 99) WHERE epoch = 1",
        "epochs 2",
        rules.DIGEST,
    ),
    "a push has more samples": ("UPDATE pushes SET samples = samples + 1 WHERE rowid = 9", "pushes 9", rules.PUSHED),
    "a look is at a batch that was used": (LOOKED, "batches", rules.LEASED),
    "a batch was looked at more often than leased": ((HAD_AGAIN, LOOKED, LOOKED), "looks", rules.LEASED),
    "a batch is leased twice": (
        "INSERT INTO leases SELECT worker, during, epoch, batch FROM leases WHERE batch IS NOT NULL AND worker NOT IN "
        "(SELECT worker FROM facts WHERE body LIKE '%\"died\"%') LIMIT 1",
        "leases (SELECT max(rowid) FROM leases)",
        rules.LEASED_ONCE,
    ),
    "a batch was leased to nobody": (
        (f"DELETE FROM leases WHERE (epoch, batch) = {ITSELF}", *WITHOUT_A_BATCH),
        "leases",
        rules.TO_ITS_END,
    ),
    "a batch is neither used nor missed": (WITHOUT_A_BATCH, "summary.json", rules.ACCOUNTED),
    "a push is gone": ("DELETE FROM pushes WHERE rowid = 9", "facts", rules.PUSHES),
    "a push too many": ("INSERT INTO pushes SELECT * FROM pushes LIMIT 1 OFFSET 3", "pushes", rules.PUSHES),
    "no checksums": ("DELETE FROM checksums", "checksums", rules.CHECKSUMS),
    "a checksum is gone": ("DELETE FROM checksums WHERE version = 5", "checksums", rules.CHECKSUMS),
    "a version has two checksums": (
        "UPDATE checksums SET version = 4 WHERE version = 5",
        "checksums 5",
        rules.CHECKSUMS,
    ),
    "a checksum of a version that was not made": (
        "UPDATE checksums SET version = 999 WHERE version = 5",
        "checksums 5",
        rules.CHECKSUMS,
    ),
    **{
        f"a return is {what}": (statement, "leases", rules.READABLE)
        for what, statement in {
            "of another worker": f"UPDATE leases SET worker = 9 {LAST}",
            "of no worker": f"UPDATE leases SET worker = NULL {LAST}",
            "in an epoch": f"UPDATE leases SET epoch = 0 {LAST}",
            "of a batch": f"UPDATE leases SET batch = 0 {LAST}",
            "gone": f"DELETE FROM leases {LAST}",
            "told twice": "INSERT INTO leases SELECT worker, NULL, NULL, NULL FROM leases WHERE during IS NULL LIMIT 1",
        }.items()
    },
    "a lease is taken away and then used": (
        "UPDATE leases SET during = NULL WHERE batch = 3 AND epoch = 0",
        "batches",
        rules.LEASED,
    ),
    "a lease is taken away that was never given": (
        "INSERT INTO leases VALUES (9, NULL, 0, 3)",
        "leases (SELECT max(rowid) FROM leases)",
        rules.LEASED,
    ),
}
"""The same of a run whose batches were leased."""


@cache
def honest(kind: str, folder: Path) -> Path:
    """A run in which nothing is wrong yet."""
    if kind == "leased":
        return leased(folder, seed=4)
    if kind == "ad-psgd":
        slow_groups = Network(bandwidth=1e9, message=10_000_000, latency=0.01)
        scenario = Scenario(compute=0.05, jitter=0.2, network=slow_groups)
        return simulated(folder, kind, workers=8, steps=100, scenario=scenario)
    return simulated(folder, kind, steps=100)


@pytest.mark.parametrize("what", [*EDITS, *DATA])
def test_the_first_wrong_row_and_its_rule_are_named(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, what: str
) -> None:
    kind, statements, place, rule = EDITS.get(what) or ("leased", *DATA[what])
    folder = shutil.copytree(honest(kind, tmp_path_factory.getbasetemp() / kind.partition(":")[0]), tmp_path / "run")
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        for statement in (statements,) if isinstance(statements, str) else statements:
            assert database.execute(statement).rowcount != 0
        table, _, row = place.partition(" ")
        (named,) = database.execute(f"SELECT {row or 'NULL'}").fetchone()
    found = wrong(folder)
    assert (found.table, found.rule) == (table, rule) or found.rule.startswith(rule)
    assert not row or found.row == named
    assert len(str(found).splitlines()) == 3


def test_a_batch_that_a_look_gave_back_may_be_leased_again_in_the_same_epoch(tmp_path: Path) -> None:
    folder = edited(leased(tmp_path / "run"), HAD_AGAIN, LOOKED)
    assert checked(folder).wrong is None


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
    assert (found.table, found.row, found.rule) == ("run", "protocol", rules.SAME_CONFIG)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("bound = 2", "bound = 1"))
    assert wrong(folder).rule == rules.SEGMENTS
    edited(folder, "UPDATE segments SET protocol = (SELECT value FROM run WHERE key = 'protocol')")
    assert wrong(folder).rule == rules.SAME_REASONS  # it says how far a worker may lead, before any has to wait


def test_more_missed_samples_than_are_missing_are_caught(tmp_path: Path) -> None:
    assert wrong(summarized(leased(tmp_path / "run"), samples_missed=4)).rule == rules.MISSED


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
    choice = Choice(spec, spec.config())
    simulate(Simulation(choice=choice, scenario=scenario, workers=4, limit=Limit(steps=41)), tmp_path / "run")
    with closing((opened := open_run(tmp_path / "run", {"asp": spec})).ledger):
        found = check(opened).wrong
    assert found is not None
    assert found.rule == rules.SETTLED


# --- the command ------------------------------------------------------------------------------------


def test_a_damaged_ledger_is_no_proof_and_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = simulated(tmp_path / "run", steps=400) / "ledger.sqlite"
    data = bytearray(ledger.read_bytes())
    page = len(data) // 2 // 4096 * 4096
    for damaged, says in (
        (data[:page] + b"\xff" * 4096 + data[page + 4096 :], "wrong"),
        (data[: len(data) // 2], "the ledger can be read"),
    ):
        ledger.write_bytes(damaged)
        assert main(["check", str(tmp_path / "run")]) == 3
        assert says in capsys.readouterr().out


def test_what_was_proved_can_be_read_by_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = simulated(tmp_path / "run", "asp")
    assert main(["check", "--json", str(folder)]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["ok"], plain["ended"], plain["wrong"]) == (True, True, None)
    assert (plain["counts"]["applied"], plain["counts"]["versions"]) == (40, 40)
    edited(folder, "DELETE FROM orders WHERE id = 9")
    assert main(["check", "--json", str(folder)]) == 3
    plain = json.loads(capsys.readouterr().out)
    assert (plain["ok"], plain["wrong"]["rule"]) == (False, rules.SAME_ORDERS)
