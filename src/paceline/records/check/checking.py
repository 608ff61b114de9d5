"""A check on its way through a ledger."""

from __future__ import annotations

from typing import Any

from paceline.records.check.general import Rules
from paceline.records.check.moments import Moments
from paceline.records.check.versions_made import VersionsMade
from paceline.records.reading import RecordedRun
from paceline.records.summary import Tally


class Checking:
    """A check on its way through the ledger: `table` and `row` are where it stands."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.table = "facts"
        self.row: int | str | None = None
        self.proved: list[str] = []
        self.counts: dict[str, int] = {}
        self.rules = Rules(run.choice.spec)
        self.tally = Tally()
        self.moments = Moments()
        self.unproved: list[str] = []
        """What could not be looked at here, a line each."""
        self.here: dict[int, None] = {}
        self.samples: dict[tuple[int, int], int | None] = {}
        """By (worker, step) of every gradient."""
        self.repeating = 0
        """Epochs whose order has some sample more than once."""
        self.made = VersionsMade()
        """When versions came about, and of how many samples."""
        self.final: str | None = None
        """The SHA-256 of the last recorded version."""

    @property
    def end(self) -> dict[str, Any] | None:
        """As the ledger noted it; None if it is of a run that crashed."""
        return self.run.end if isinstance(self.run.end, dict) else None

    @property
    def completed(self) -> bool:
        """Whether it came to its end; once all facts are told. A replay of a run that crashed did not."""
        stopped_short = self.until is not None or (self.replays and bool(self.here))
        return self.end is not None and self.end.get("outcome") == "completed" and not stopped_short

    @property
    def replays(self) -> bool:
        """Whether it made another run again: its moments are that one's."""
        return "replay_of" in self.run.config

    @property
    def until(self) -> int | None:
        """The version that a replay was to go up to, and no further; as `paceline replay --until` notes it."""
        return self.run.config.get("until")

    @property
    def trained(self) -> bool:
        """Whether a script ran, rather than a simulation without gradients."""
        return bool(self.run.config.get("script"))
