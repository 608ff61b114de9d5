"""Records a run in its ledger, which keeps everything, and in its tally, which counts."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.facts import Fact
from paceline.core.orders import Order
from paceline.records.ledger import Ledger
from paceline.records.summary import MOVED, Tally
from paceline.records.times import FetchTimes, StepTimes


class Journal:
    """Writes what the ledger and the tally have in common. What only the ledger keeps goes to `ledger` directly."""

    def __init__(self, ledger: Ledger, tally: Tally | None = None) -> None:
        """`tally`: that of a resumed run."""
        self.ledger = ledger
        self.tally = Tally() if tally is None else tally
        self._deaths: dict[str, str] = {}
        self._unmeasured = [version for version, metrics in self.tally.metrics.items() if not metrics]

    def record(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        self.ledger.record(fact, orders)
        self.tally.record(fact, orders)

    def undone(self, worker: int, step: int) -> None:
        """Note a step that a replica was ordered when its worker had already left."""
        self.ledger.undone(worker, step)
        self.tally.undone(worker, step)

    def ended(self, outcome: str, error: str | None, at: float | None = None, stopped: str | None = None) -> None:
        """Note the run's end, `at` seconds since its start (default: at the last fact). See `Ledger.ended`."""
        self.ledger.ended(outcome, error, self.tally.model.at if at is None else at, stopped)

    def died(self, worker: int, how: str) -> None:
        """Note how the worker's process ended before its script did."""
        self._deaths[str(worker)] = how
        self.ledger.note("deaths", self._deaths)

    def step_times(self, worker: int, step: int, times: StepTimes) -> None:
        self.ledger.step_times(worker, step, times)
        self.tally.step_times(worker, step, times)

    def fetched(self, fetch: FetchTimes) -> None:
        self.ledger.fetched(fetch)
        self.tally.fetched(fetch)

    def moved(self, cpu_seconds: Mapping[str, float]) -> None:
        """Add the CPU seconds of moving bytes between hosts, by host, since the run began or was resumed."""
        self.tally.moved(cpu_seconds)
        if cpu_seconds:
            self.ledger.note(MOVED, self.tally.moved_seconds)

    def recorded(self, version: int, at: float, samples: int | None, sha256: str, file: str) -> None:
        """Note a recorded version. See `Ledger.version_recorded`."""
        self.ledger.version_recorded(version, at, samples, sha256, file)
        self.tally.recorded(version, at, samples)

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        """Note the metrics of a recorded version."""
        self.ledger.evaluated(version, metrics)
        self.tally.evaluated(version, metrics)
        if not metrics:  # the ledger has no row for a version without metrics
            self._unmeasured.append(version)
            self.ledger.note("unmeasured", self._unmeasured)

    def consensus(self, version: int, at: float, replicas: int, distance: float) -> None:
        """Note how far the replicas were from their mean. See `Ledger.consensus`."""
        self.ledger.consensus(version, at, replicas, distance)
        self.tally.consensus(version, at, distance)
