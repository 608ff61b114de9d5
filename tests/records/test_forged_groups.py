"""Rows of `fetches` of runs whose workers own replicas, changed by hand: each is caught, and its rule named."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paceline.records import violations
from records.test_forged_fetches import (
    BEGAN,
    BYTES,
    ENDED,
    FACT,
    HOST,
    KIND,
    NUMBER,
    SOURCE,
    WORKER,
    Rows,
    changed,
    forged,
)
from runtime.test_replicas_on_hosts import HOSTS, STOPS_ONCE, script
from support import runs
from support.recorded import checked, edited, wrong

pytestmark = pytest.mark.real_run

THREE = ("--emulate-hosts", "3", "-n", "1", "--threads", "1")
REAL: dict[str, tuple[str, tuple[str, ...]]] = {
    "all-reduce": (script(), (*HOSTS, "-p", "all-reduce")),
    "slices": (script(width=100_000), (*HOSTS, "-p", "all-reduce", "--max-steps", "16")),
    "three": (script(), (*THREE, "-p", "all-reduce")),
    "ad-psgd": (script(), (*HOSTS, "-p", "ad-psgd")),
    "ripples": (script(), (*THREE, "-p", "ripples")),
    "joins": (STOPS_ONCE, (*HOSTS, "-p", "all-reduce", "--restart", "1")),
}
"""Real runs by what they have, each made once: in `slices` both hosts make a slice, and in `joins` a worker returns."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in folders:
            text, flags = REAL[name]
            run = runs.run(text, *flags, tmp_path=tmp_path_factory.mktemp("made")).completed()
            assert (found := checked(run.folder)).wrong is None, found.wrong
            assert any("fetches between hosts" in line for line in found.proved)
            folders[name] = run.folder
        return folders[name]

    return make


@pytest.fixture
def real(made: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(made(name), tmp_path / name))


def of(rows: Rows, kind: str) -> list[list[Any]]:
    return [row for row in rows if row[KIND] == kind]


def taken_away(kind: str, **which: str) -> Callable[[Rows], None]:
    """Without the row in the middle of that kind."""

    def change(rows: Rows) -> None:
        its = [row for row in of(rows, kind) if which in ({}, {"host": row[HOST]}, {"source": row[SOURCE]})]
        rows.remove(its[len(its) // 2])

    return change


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("kind", ["partial", pytest.param("mean", marks=pytest.mark.long)])
def test_a_slice_that_no_row_says_was_fetched_is_caught(real: Callable[[str], Path], name: str, kind: str) -> None:
    found = wrong(forged(real(name), taken_away(kind)))
    assert found.table == "facts"
    assert found.rule in (
        violations.FETCHED,
        violations.FETCHES,
    )  # or as if there were fewer slices, which are no whole mean


@pytest.mark.parametrize("name", REAL)
def test_a_replica_that_no_row_says_was_fetched_for_a_recorded_mean_is_caught(
    real: Callable[[str], Path], name: str
) -> None:
    """The last mean is fetched for twice, as workers end with it. So all rows of a worker are taken away."""
    folder = real(name)
    last = "(SELECT max(worker) FROM fetches WHERE kind = 'replica')"
    edited(folder, f"DELETE FROM fetches WHERE kind = 'replica' AND host = 'node-0' AND worker = {last}")
    found = wrong(forged(folder, lambda rows: None))
    assert (found.table, found.rule) == ("consensus", violations.FETCHED)


@pytest.mark.parametrize("name", ["all-reduce", "three", "ripples"])
def test_what_training_begins_with_and_no_row_says_was_fetched_is_caught(
    real: Callable[[str], Path], name: str
) -> None:
    found = wrong(forged(real(name), taken_away("version")))
    assert (found.table, found.rule) == ("facts", violations.FETCHED)
    assert found.expected.startswith("what worker ")


def test_a_copy_that_no_row_says_a_joiner_got_is_caught(real: Callable[[str], Path]) -> None:
    found = wrong(forged(real("joins"), taken_away("replica", host="node-1")))
    assert (found.table, found.rule) == ("facts", violations.FETCHED)
    assert found.expected.startswith("the replica of worker ")


def test_a_copy_that_a_joiner_got_before_it_was_ordered_is_caught(real: Callable[[str], Path]) -> None:
    folder = real("joins")
    copied = "SELECT max(fact) FROM orders WHERE kind = 'CopyReplica'"

    def early(rows: Rows) -> None:
        row = next(row for row in of(rows, "replica") if row[HOST] == "node-1")
        rows.remove(row)
        at = next(place for place, one in enumerate(rows) if one[FACT] == fact - 1)
        rows.insert(at, [*row[:BEGAN], rows[at][BEGAN], rows[at][BEGAN]])
        rows[at][FACT] = rows[at + 1][FACT]

    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        (fact,) = ledger.execute(
            f"SELECT max(fetches.fact) + 1 FROM fetches WHERE fetches.fact < ({copied})"
        ).fetchone()
    found = wrong(forged(folder, early))
    assert found.rule in (violations.FETCHES, violations.FETCHED)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("kind", ["partial", "mean"])
def test_a_slice_that_was_fetched_twice_is_caught(real: Callable[[str], Path], name: str, kind: str) -> None:
    def twice(rows: Rows) -> None:
        row = of(rows, kind)[1]
        rows.insert(rows.index(row), list(row))

    found = wrong(forged(real(name), twice))
    assert (found.table, found.rule) == ("fetches", violations.FETCHED_ONCE)


def test_a_slice_of_a_host_that_makes_none_is_caught(real: Callable[[str], Path]) -> None:
    """A small model has one slice, which the first host of a group makes."""

    def another(rows: Rows) -> None:
        row = of(rows, "mean")[0]
        rows.insert(rows.index(row), [*row[:HOST], row[SOURCE], row[HOST], *row[KIND:]])

    found = wrong(forged(real("three"), another))
    assert (found.table, found.rule) == ("facts", violations.FETCHES)
    assert found.found.startswith("one from node-")


def test_a_slice_that_no_host_has_made_is_caught_though_nothing_says_that_there_was_one(
    real: Callable[[str], Path],
) -> None:
    """As if the first host made the whole mean: then its slice would be all of it."""

    def gone(rows: Rows) -> None:
        rows[:] = [row for row in rows if (row[KIND], row[HOST]) not in (("partial", "node-1"), ("mean", "node-0"))]

    found = wrong(forged(real("slices"), gone))
    assert found.rule == violations.FETCHES
    assert "bytes" in found.expected


@pytest.mark.parametrize("kind", ["partial", "mean", "replica"])
def test_bytes_that_all_rows_of_a_kind_have_alike_are_caught(real: Callable[[str], Path], kind: str) -> None:
    def more(rows: Rows) -> None:
        for row in of(rows, kind):
            row[BYTES] += 8

    assert wrong(forged(real("slices"), more)).rule == violations.FETCHES


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize(
    ("kind", "column", "value", "rule"),
    [
        ("partial", FACT, None, violations.READABLE),
        ("partial", FACT, 10**9, violations.FETCHES),
        ("partial", FACT, 1, violations.FETCHES),
        ("partial", HOST, "node-9", violations.FETCHES),
        ("partial", HOST, 7, violations.FETCHES),
        ("partial", SOURCE, "node-9", violations.FETCHES),
        ("partial", KIND, "mean", violations.FETCHES),
        ("partial", KIND, "version", violations.FETCHES),
        ("partial", KIND, "sum", violations.FETCHES),
        ("partial", KIND, "trophy", violations.READABLE),
        ("partial", WORKER, 1, violations.READABLE),
        ("partial", NUMBER, 3000, violations.FETCHES),
        ("partial", NUMBER, lambda number: number + 1, violations.FETCHES),
        ("partial", NUMBER, None, violations.READABLE),
        ("partial", BYTES, 7, violations.FETCHES),
        ("partial", BYTES, -7, violations.READABLE),
        ("partial", BEGAN, 0.0, violations.FETCHES),
        ("partial", BEGAN, 1e6, violations.FETCHES),
        ("partial", ENDED, lambda ended: ended + 100, violations.FETCHES),
        ("partial", ENDED, "soon", violations.READABLE),
        ("mean", HOST, "node-9", violations.FETCHES),
        ("mean", SOURCE, "node-9", violations.FETCHES),
        ("mean", KIND, "partial", violations.FETCHES),
        ("mean", NUMBER, -1, violations.READABLE),
        ("mean", NUMBER, lambda number: number + 1, violations.FETCHES),
        ("mean", BYTES, lambda size: size + 1, violations.FETCHES),
        ("mean", BYTES, -7, violations.READABLE),
        ("mean", BEGAN, 0.0, violations.FETCHES),
        ("mean", ENDED, lambda ended: ended + 100, violations.FETCHES),
        ("replica", HOST, "node-9", violations.FETCHES),
        ("replica", SOURCE, "node-0", violations.FETCHES),
        ("replica", SOURCE, "node-9", violations.FETCHES),
        ("replica", WORKER, 0, violations.FETCHES),
        ("replica", WORKER, 17, violations.FETCHES),
        ("replica", WORKER, None, violations.READABLE),
        ("replica", NUMBER, 3000, violations.FETCHES),
        ("replica", NUMBER, None, violations.READABLE),
        ("replica", BYTES, lambda size: size - 1, violations.FETCHES),
        ("replica", BEGAN, 1e6, violations.FETCHES),
        ("version", SOURCE, "node-1", violations.FETCHES),
        ("version", NUMBER, 1, violations.FETCHES),
        ("other", HOST, "node-9", violations.FETCHES),
        ("other", BYTES, -7, violations.READABLE),
    ],
)
def test_a_changed_row_is_caught(
    real: Callable[[str], Path], name: str, kind: str, column: int, value: Any, rule: str
) -> None:
    found = wrong(forged(real(name), changed(kind, column, value)))
    assert (found.table, found.rule) in (
        ("fetches", rule),
        ("facts", rule),
        ("fetches", violations.FETCHED_ONCE),
        ("facts", violations.FETCHED),
        ("consensus", violations.FETCHED),
    )


@pytest.mark.parametrize("kind", ["partial", "mean", "replica", "version"])
def test_a_row_from_the_wrong_one_of_three_hosts_is_caught(real: Callable[[str], Path], kind: str) -> None:
    def other(rows: Rows) -> None:
        row = of(rows, kind)[0]
        column = SOURCE if row[HOST] == "node-0" else HOST
        row[column] = {"node-1": "node-2", "node-2": "node-1"}[row[column]]

    found = wrong(forged(real("three"), other))
    assert found.rule in (violations.FETCHES, violations.FETCHED, violations.FETCHED_ONCE)
