"""If the disk is slower than the run, the run waits for it and does not keep ever more of its ledger in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.records.ledger import GATHER, Ledger

PAUSE = GATHER / 10
"""Seconds until the ledger is looked at again."""


@dataclass(slots=True, eq=False)
class LedgerBackpressure:
    """Tells the coordinator when no fact may be taken up, as the ledger is too far behind."""

    _ledger: Ledger
    _say: Callable[[str], None]
    _said: bool = False
    _said_broken: bool = False
    busy_with: str | None = None
    """Why the run waits, if it does."""

    def behind(self) -> bool:
        """Whether the run is to wait for the disk. This is said once in a run."""
        if not self._said_broken and (why := self._ledger.broken) is not None:
            self._said_broken = True
            self._say(f"{why} The run goes on without it: it takes no more snapshots, and fails at its end")
        behind = self._ledger.behind
        if not behind:
            self.busy_with = None
            return False
        self.busy_with = "the disk is slower than the ledger"
        if not self._said:
            self._said = True
            self._say(f"the disk is slower than the run: waiting for it, with {behind:,} records still to be written")
        return True
