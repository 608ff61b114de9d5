"""The state of a check."""

from __future__ import annotations

from typing import Any

from paceline.records.check.versions_made import VersionsMade
from paceline.records.reading import RecordedRun
from paceline.records.rules import Rules
from paceline.records.run_model import RunModel
from paceline.records.summary import Tally


class Checking:
    """A check's state. `table` and `row` are where it is in the ledger."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.table = "facts"
        self.row: int | str | None = None
        self.proved: list[str] = []
        self.counts: dict[str, int] = {}
        self.rules = Rules(run.choice)
        self.tally = Tally()
        self.made = VersionsMade(run.choice)
        """The versions that can have been recorded, and of how many samples."""
        self.segment = run.segments[0]
        """The segment of the present fact."""

    @property
    def model(self) -> RunModel:
        """What facts and orders come to so far."""
        return self.tally.model

    @property
    def end(self) -> dict[str, Any] | None:
        """The ledger's note of the run's end; None if the run crashed."""
        return self.run.end if isinstance(self.run.end, dict) else None

    @property
    def resumed_in_vain(self) -> bool:
        """Whether the run was resumed and has not trained since: its newest segment has no fact."""
        return self.run.ledger.execute("SELECT 1 FROM segments WHERE at IS NULL").fetchone() is not None

    @property
    def completed(self) -> bool:
        """Whether the run reached its end. Known after all facts. A replay of a crashed run did not."""
        stopped_short = self.until is not None or (self.replays and bool(self.model.present))
        return self.end is not None and self.end.get("outcome") == "completed" and not stopped_short

    @property
    def replays(self) -> bool:
        """Whether it is a replay, which has the other run's moments."""
        return "replay_of" in self.run.config

    @property
    def until(self) -> int | None:
        """The last version of `paceline replay --until`."""
        return self.run.config.get("until")

    @property
    def trained(self) -> bool:
        """Whether a script ran, rather than a simulation without gradients."""
        return bool(self.run.config.get("script"))
