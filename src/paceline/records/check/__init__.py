"""Verifies a run's ledger: tells its facts to a fresh machine, and checks every rule.

The rules are the protocol's invariants after every fact, the rules of all protocols, and the relations between the
ledger's tables and the summary. The first row that breaks a rule is reported.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.phrases import count
from paceline.records.check.checking import Checking
from paceline.records.check.configuration import configuration, scalars, tables
from paceline.records.check.data import data
from paceline.records.check.files import files
from paceline.records.check.history import history
from paceline.records.check.replays import for_replay
from paceline.records.check.segments import segments
from paceline.records.check.summed_up import summary
from paceline.records.check.versions import to_be_made, versions
from paceline.records.reading import MALFORMED, RecordedRun
from paceline.records.violations import READABLE, Violation, Wrong

__all__ = ["Checked", "Wrong", "check"]


@dataclass(slots=True, kw_only=True)
class Checked:
    """The result of a check."""

    wrong: Wrong | None
    """The first inconsistency, or None."""
    proved: list[str]
    """A line for each thing verified, with counts. What comes after the first wrong row is not checked."""
    counts: dict[str, int]

    @property
    def ok(self) -> bool:
        """Whether there is no inconsistency."""
        return self.wrong is None


def check(run: RecordedRun) -> Checked:
    """Check the run. O(facts), and O(facts × workers) for the invariants."""
    checking = Checking(run)
    wrong = None
    try:
        _everything(checking)
    except Violation as broken:
        wrong = broken.wrong(checking.table, checking.row)
    except MALFORMED as error:
        found = str(error) or type(error).__name__
        wrong = Wrong(table=checking.table, row=checking.row, rule=READABLE, expected="a row", found=found)
    if wrong is not None and not checking.proved and checking.counts:
        checking.proved.append(f"{count(checking.counts['facts'], 'fact')} before it, with all that follows from them")
    return Checked(wrong=wrong, proved=checking.proved, counts=checking.counts)


def _everything(checking: Checking) -> None:
    tables(checking)
    configuration(checking)
    undone = frozenset(checking.run.ledger.execute("SELECT worker, step FROM undone"))
    checking.rules.outcomes.undone = checking.model.outcomes.undone = undone
    checking.made = to_be_made(checking)
    history(checking)
    segments(checking)
    data(checking)
    scalars(checking)
    for_replay(checking)
    versions(checking)
    files(checking)
    if checking.run.summary is not None:
        summary(checking, checking.run.summary)
