"""Whether the ledger has its schema's tables and views, and only its own workers' scalars."""

from __future__ import annotations

from paceline.records.broken import SCALARS, SCHEMA_KEPT, Broken
from paceline.records.check.checking import Checking
from paceline.records.ledger import made, without_comments


def tables(checking: Checking) -> None:
    """Programs read a ledger through its views. A view with another definition would tell them something else."""
    checking.table, checking.row = "sqlite_schema", None
    rows = checking.run.ledger.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    expected, found = made(), {name: without_comments(sql) for name, sql in rows}
    for name in expected:
        if found.get(name) != expected[name]:
            there = "another one of that name" if name in found else "none"
            raise Broken(SCHEMA_KEPT, f"{name} as this version of Paceline makes it", there, "sqlite_schema", name)
    if strange := sorted(found.keys() - expected.keys()):
        raise Broken(SCHEMA_KEPT, "nothing else", strange[0], "sqlite_schema", strange[0])


def scalars(checking: Checking) -> None:
    """Only the run's workers log."""
    checking.table = "scalars"
    workers = max(segment.workers for segment in checking.run.segments)
    for row, worker in checking.run.ledger.execute("SELECT rowid, worker FROM scalars ORDER BY rowid"):
        if worker not in range(workers):
            raise Broken(SCALARS, f"worker 0 to {workers - 1}", f"worker {worker}", "scalars", row)
