"""Whether simulating again, from what the ledger notes, gives the same ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from paceline.core.facts import Fact
from paceline.core.orders import Order
from paceline.errors import ConfigError
from paceline.records.broken import SIMULATED_AGAIN, Broken, brief, count
from paceline.records.check.checking import Checking
from paceline.records.ledger import FACTS, Ledger, NoLedger
from paceline.records.reading import RecordedRun
from paceline.records.times import Fetch, StepTimes, TransferTimes

Again = Callable[[RecordedRun, Ledger, Callable[[], bool]], str]
"""Makes that simulation once more and tells the ledger, until it says so. Returns why it can't be made here, if so."""

_TABLES = {
    "facts": "SELECT id, kind, body FROM facts ORDER BY id",
    "step_times": "SELECT rowid, worker, step, began, compute, push, wait, pull, other, to_device, from_device "
    "FROM step_times ORDER BY rowid",
    "transfers": "SELECT rowid, worker, direction, number, bytes, began, ended, delivered "
    "FROM transfers ORDER BY rowid",
    "fetches": "SELECT rowid, host, source, kind, worker, number, bytes, began, ended FROM fetches ORDER BY rowid",
    "commits": "SELECT rowid, version, at FROM commits ORDER BY rowid",
}


def simulated(checking: Checking, again: Again | None) -> None:
    """The same settings give the same moments, to the last digit. Orders follow from facts: see `history`."""
    if not checking.run.simulated or checking.replays:
        return
    if len(checking.run.segments) > 1:
        checking.unproved.append("it was not simulated again: it was resumed, and a simulation begins once")
        return
    if again is None:
        checking.unproved.append("it was not simulated again: nothing here can do so")
        return
    recorded = _Recorded(checking)
    try:
        why_not = again(checking.run, recorded, recorded.stop)
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Broken(SIMULATED_AGAIN, "settings of a simulation", error, "run", "simulation") from error
    if why_not:
        checking.unproved.append(f"it was not simulated again: {why_not}")
        return
    recorded.conclude()
    checking.proved.append(f"simulated again, it comes to the same {count(recorded.told, 'fact')} at the same moments")


class _Recorded(NoLedger):
    """Compares what a simulation tells with what is recorded."""

    def __init__(self, checking: Checking) -> None:
        super().__init__()
        self._ledger: sqlite3.Connection = checking.run.ledger
        self._rows: dict[str, sqlite3.Cursor] = {table: self._ledger.execute(query) for table, query in _TABLES.items()}
        self._end = checking.end
        self._trained = checking.trained
        self._whole = checking.end is not None and (not self._trained or checking.completed)
        """Whether it came to its own end; else what is there is the beginning of it, and it may have told a little more
        between its last fact and the next one."""
        facts = checking.counts["facts"]
        (first,) = self._ledger.execute(
            "SELECT min(id) FROM facts WHERE kind = 'WorkerLeft' AND json_extract(body, '$.reason') = 'stopped'"
        ).fetchone()
        cut = facts if first is None else first - 1
        interrupted = checking.end is not None and checking.end["outcome"] == "interrupted"
        self._stop_at = cut if interrupted else None if self._whole else facts
        self._most = None if self._whole else facts
        self.told = 0

    def stop(self) -> bool:
        """Whether the recorded simulation was ended here from outside, or goes no further."""
        return self._stop_at is not None and self.told >= self._stop_at

    def record(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        """See `Ledger`."""
        if self._most is not None and self.told >= self._most:
            return
        self.told += 1
        row = self._next("facts", fact)
        recorded = FACTS[row[1]].decode(row[2])
        if recorded != fact:
            raise Broken(SIMULATED_AGAIN, fact, recorded, "facts", row[0])

    def step_times(self, worker: int, step: int, times: StepTimes) -> None:
        """See `Ledger`."""
        self._compare("step_times", (worker, step, *astuple(times)))

    def transferred(self, worker: int, direction: str, number: int, size: int, times: TransferTimes) -> None:
        """See `Ledger`."""
        moments = (times.began, times.ended, times.delivered)
        self._compare("transfers", (worker, direction, number, size, *moments))

    def fetched(self, fetch: Fetch) -> None:
        """See `Ledger`."""
        self._compare("fetches", astuple(fetch))

    def committed(self, version: int, at: float) -> None:
        """See `Ledger`."""
        self._compare("commits", (version, at))

    def ended(self, outcome: str, error: str | None, at: float, stopped: str | None = None) -> None:
        """See `Ledger`. No simulation is stopped by a script."""
        end = {"outcome": outcome, "error": error, "at": at, "facts": self.told}
        if self._end is not None and not self._trained:
            for key, value in end.items():
                if self._end[key] != value:
                    raise Broken(SIMULATED_AGAIN, f"{key} = {value}", self._end[key], "run", "end")

    def conclude(self) -> None:
        """Nothing may be recorded that the simulation did not tell."""
        for table, rows in self._rows.items():
            if (self._whole or table == "facts") and (row := next(rows, None)) is not None:
                raise Broken(SIMULATED_AGAIN, "no further one", brief(row[1:]), table, row[0])
            rows.close()  # a query that is not read to its end keeps the file locked

    def _compare(self, table: str, expected: tuple[Any, ...]) -> None:
        if self._most is not None and self.told >= self._most:
            return
        row = self._next(table, expected)
        if row[1:] != expected:
            raise Broken(SIMULATED_AGAIN, expected, row[1:], table, row[0])

    def _next(self, table: str, expected: object) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = next(self._rows[table], None)
        if row is None:
            raise Broken(SIMULATED_AGAIN, expected, "no further one", table)
        return row
