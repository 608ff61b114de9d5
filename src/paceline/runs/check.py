"""A check of a run, with all that its rules ask for: the protocols, and a simulation made again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from paceline.protocols import registry
from paceline.records.check import Checked, Wrong, check
from paceline.records.ledger import Ledger
from paceline.records.reading import LEDGER, LedgerDamaged, RecordedRun, open_run


def _again(run: RecordedRun, ledger: Ledger, stop: Callable[[], bool]) -> str:
    from paceline.sim.again import simulate_again

    return simulate_again(run, registry(), ledger, stop)


def checked_run(folder: Path) -> tuple[RecordedRun | None, Checked]:
    """Check the run in that folder; the run, whose ledger is closed, is None if its ledger can't be read."""
    try:
        run = open_run(folder, registry())
    except LedgerDamaged as error:
        rule, expected = "the ledger can be read", "an SQLite database"
        wrong = Wrong(table=LEDGER, row=None, rule=rule, expected=expected, found=str(error))
        return None, Checked(wrong=wrong, proved=[], counts={})
    with closing(run.ledger):
        return run, check(run, _again)
