"""Tells everything worth keeping of a run to two books at once: the ledger keeps each thing, the tally counts."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.facts import Fact
from paceline.core.orders import Order
from paceline.records.ledger import Ledger
from paceline.records.summary import MOVED, Tally
from paceline.records.times import Fetch, StepTimes


class Journal:
    """Tells both books what they have in common. Tell `ledger` directly what only the ledger keeps."""

    def __init__(self, ledger: Ledger, tally: Tally | None = None) -> None:
        """`tally`: what is known of a run that is resumed."""
        self.ledger = ledger
        self.tally = Tally() if tally is None else tally
        self._deaths: dict[str, str] = {}
        self._unmeasured = [version for version, metrics in self.tally.metrics.items() if not metrics]

    def record(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        """A fact, and the orders that followed from it."""
        self.ledger.record(fact, orders)
        self.tally.record(fact, orders)

    def undone(self, worker: int, step: int) -> None:
        """The worker had already left when its replica was ordered to make that step."""
        self.ledger.undone(worker, step)
        self.tally.undone(worker, step)

    def ended(self, outcome: str, error: str | None, at: float | None = None, stopped: str | None = None) -> None:
        """The run has come to its end, `at` seconds since its start (default: at the last fact).

        `stopped`: why a script had it end.
        """
        self.ledger.ended(outcome, error, self.tally.latest if at is None else at, stopped)

    def died(self, worker: int, how: str) -> None:
        """The worker's process has ended so, before its script had."""
        self._deaths[str(worker)] = how
        self.ledger.note("deaths", self._deaths)

    def step_times(self, worker: int, step: int, times: StepTimes) -> None:
        """Where a finished step's time went."""
        self.ledger.step_times(worker, step, times)
        self.tally.step_times(worker, times)

    def fetched(self, fetch: Fetch) -> None:
        """A host has fetched an item from another one."""
        self.ledger.fetched(fetch)
        self.tally.fetched(fetch)

    def moved(self, cpu_seconds: Mapping[str, float]) -> None:
        """By host: moving bytes between hosts has taken so much time of processors since the run began, or went on."""
        self.tally.moved(cpu_seconds)
        if cpu_seconds:
            self.ledger.note(MOVED, self.tally.moved_seconds)

    def recorded(self, version: int, at: float, samples: int | None, sha256: str, file: str) -> None:
        """A recorded version: made `at` seconds, of so many samples in all, in that file of the run's folder."""
        self.ledger.version_recorded(version, at, samples, sha256, file)
        self.tally.recorded(version, at, samples)

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        """What the script's `evaluate` said of a recorded version."""
        self.ledger.evaluated(version, metrics)
        self.tally.evaluated(version, metrics)
        if not metrics:  # otherwise no row of the ledger would tell this
            self._unmeasured.append(version)
            self.ledger.note("unmeasured", self._unmeasured)

    def consensus(self, version: int, at: float, replicas: int, distance: float) -> None:
        """How far so many replicas were from their mean, which is that recorded version. See `Tally.consensus`."""
        self.ledger.consensus(version, at, replicas, distance)
        self.tally.consensus(version, at, distance)
