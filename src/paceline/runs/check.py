"""Check the run in a folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from paceline.protocols import registry
from paceline.records.check import Checked, Wrong, check
from paceline.records.reading import LEDGER, LedgerDamaged, RecordedRun, open_run


def checked_run(folder: Path) -> tuple[RecordedRun | None, Checked]:
    """Check the run in this folder. Return the run, with its ledger closed, or None if the ledger can't be read."""
    try:
        run = open_run(folder, registry())
    except LedgerDamaged as error:
        rule, expected = "the ledger can be read", "an SQLite database"
        wrong = Wrong(table=LEDGER, row=None, rule=rule, expected=expected, found=str(error))
        return None, Checked(wrong=wrong, proved=[], counts={})
    with closing(run.ledger):
        return run, check(run)
