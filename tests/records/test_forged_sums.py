"""Sums of a host's updates, as somebody has changed them by hand in the ledger: each change is caught."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from paceline.records import violations
from support import runs
from support.recorded import checked, wrong
from support.shards import TWO_EACH, script

pytestmark = pytest.mark.real_run

SUM = "json_extract(body, '$.sum')"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run in rounds, on three hosts with two workers each, which all make a range."""
    run = runs.run(script(), *TWO_EACH, "-p", "bsp", tmp_path=tmp_path_factory.mktemp("made")).completed()
    assert (found := checked(run.folder)).ok, found.wrong
    return run.folder


FORGERIES: dict[str, tuple[str, str | tuple[str, str]]] = {
    "no host has fetched it": ("DELETE FROM fetches WHERE kind = 'sum' AND number = {number}", violations.FETCHED),
    "one host has not fetched it": (
        "DELETE FROM fetches WHERE rowid = (SELECT max(rowid) FROM fetches WHERE kind = 'sum' AND number = {number})",
        violations.FETCHED,
    ),
    "it is fetched twice": (
        "UPDATE fetches SET number = {number} WHERE kind = 'sum' AND number = {number} + 1",
        (violations.FETCHED_ONCE, violations.FETCHED),
    ),
    "another host made it": (
        "UPDATE fetches SET source = 'node-9' WHERE kind = 'sum' AND number = {number}",
        violations.FETCHES,
    ),
    "it was fetched before its updates were ready": (
        "UPDATE fetches SET began = 0.0 WHERE kind = 'sum' AND number = {number}",
        violations.FETCHES,
    ),
    "it is of one update": (
        f"UPDATE facts SET body = json_set(body, '$.sum', NULL) WHERE id = (SELECT max(id) FROM facts WHERE {SUM} = "
        "{number})",
        violations.FETCHED,
    ),
    "it has updates of two hosts": (
        f"UPDATE facts SET body = json_set(body, '$.sum', {{number}}) WHERE {SUM} = {{number}} + 1",
        (violations.FETCHES, violations.FETCHED),
    ),
    "it has another size": (
        "UPDATE fetches SET bytes = 7 WHERE kind = 'sum' AND number = {number}",
        violations.FETCHES,
    ),
    "it is of a worker": (
        "UPDATE fetches SET worker = 1 WHERE kind = 'sum' AND number = {number}",
        violations.READABLE,
    ),
}


# two of them are caught by one rule or another, whichever host was first
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_sum_that_is_not_as_it_was_is_caught(forgery: str, made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "run"))
    change, rule = FORGERIES[forgery]
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        (number,) = database.execute(f"SELECT {SUM} FROM facts WHERE {SUM} > 2 ORDER BY id LIMIT 1").fetchone()
        assert database.execute(change.format(number=number)).rowcount
    assert wrong(folder).rule in ((rule,) if isinstance(rule, str) else rule), wrong(folder)


def test_a_run_on_one_host_has_no_sums(tmp_path: Path) -> None:
    run = runs.run(script(), "-n", "2", "--threads", "1", "-p", "bsp", tmp_path=tmp_path).completed()
    with closing(sqlite3.connect(run.folder / "ledger.sqlite")) as database, database:
        database.execute("UPDATE facts SET body = json_set(body, '$.sum', 1) WHERE kind = 'UpdateArrived'")
    assert wrong(run.folder).rule == violations.FETCHES


def test_a_ledger_whose_comments_say_less_has_the_same_tables(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "run"))
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        database.execute("PRAGMA writable_schema = ON")
        change = (
            "UPDATE sqlite_schema SET sql = replace(sql, '-- version, update, sum of updates', '-- version, update')"
        )
        assert database.execute(f"{change} WHERE name = 'fetches'").rowcount
    assert (found := checked(folder)).ok, found.wrong
