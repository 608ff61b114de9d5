"""Whether the ledger has its schema's tables and views, and only its own workers' scalars."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

from paceline.records.broken import SCALARS, SCHEMA_KEPT, Broken
from paceline.records.check.checking import Checking
from paceline.records.ledger import TABLES

_SCHEMA = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"


def tables(checking: Checking) -> None:
    """Programs read a ledger through its views. A view with another definition would tell them something else."""
    checking.table, checking.row = "sqlite_schema", None
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(TABLES)
        expected = _without_comments(fresh)
    found = _without_comments(checking.run.ledger)
    for name in expected:
        if found.get(name) != expected[name]:
            there = "another one of that name" if name in found else "none"
            raise Broken(SCHEMA_KEPT, f"{name} as this version of Paceline makes it", there, "sqlite_schema", name)
    if strange := sorted(found.keys() - expected.keys()):
        raise Broken(SCHEMA_KEPT, "nothing else", strange[0], "sqlite_schema", strange[0])


def _without_comments(ledger: sqlite3.Connection) -> dict[str, str]:
    """By name: how it is made. What a table's comments say of its columns may be put better later."""
    return {name: " ".join(re.sub("--[^\n]*", "", sql).split()) for name, sql in ledger.execute(_SCHEMA)}


def scalars(checking: Checking) -> None:
    """Only the run's workers log."""
    checking.table = "scalars"
    workers = max(segment.workers for segment in checking.run.segments)
    for row, worker in checking.run.ledger.execute("SELECT rowid, worker FROM scalars ORDER BY rowid"):
        if worker not in range(workers):
            raise Broken(SCALARS, f"worker 0 to {workers - 1}", f"worker {worker}", "scalars", row)
