"""If the disk is slower than the run, the run waits for it and does not keep ever more of its ledger in memory."""

from __future__ import annotations

from collections.abc import Callable

from paceline.host.loop import Loop
from paceline.records.ledger import GATHER, Ledger


class Disk:
    """Lets the coordinator wait until the ledger is no longer too far behind, while its loop goes on."""

    def __init__(self, ledger: Ledger, loop: Loop, say: Callable[[str], None]) -> None:
        self._ledger = ledger
        self._loop = loop
        self._say = say
        self._said = False
        self.busy_with: str | None = None
        """Why the run waits, if it does."""

    def wait(self) -> None:
        """Tell the machine nothing until the disk has caught up. This is said once in a run."""
        if not (behind := self._ledger.behind):
            return
        self.busy_with = "the disk is slower than the ledger"
        if not self._said:
            self._said = True
            self._say(f"the disk is slower than the run: waiting for it, with {behind:,} records still to be written")
        while self._ledger.behind:
            self._loop.wait(GATHER / 10)
        self.busy_with = None
