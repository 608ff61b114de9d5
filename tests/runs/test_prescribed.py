"""What a recorded run prescribes to its replay."""

from __future__ import annotations

import sqlite3
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.coordinator.run_policy import Answer, RunPolicy
from paceline.core.leases import Batch
from paceline.records.ledger import TABLES
from paceline.runs.recorded_schedule import RecordedPart


@pytest.fixture
def ledger() -> sqlite3.Connection:
    """One that nothing is in yet."""
    ledger = sqlite3.connect(":memory:")
    ledger.executescript(TABLES)
    return ledger


def parts(ledger: sqlite3.Connection) -> list[RecordedPart]:
    """Two segments, of which the second one goes on from the snapshot of fact 5."""
    ends = SimpleNamespace(fact=5)
    given: dict[str, Any] = {"segment": SimpleNamespace(workers=1), "recorded": SimpleNamespace(ledger=ledger)}
    return [
        RecordedPart(**given, begins=None, ends=ends),
        RecordedPart(**given, begins=SimpleNamespace(state=ends), ends=None),
    ]  # type: ignore[arg-type]


def test_a_segment_that_ended_before_its_first_lease_prescribes_none(ledger: sqlite3.Connection) -> None:
    ledger.execute("INSERT INTO leases (worker, during, epoch, batch) VALUES (0, 0, 0, 0)")
    ledger.execute("INSERT INTO marks VALUES (5, 0, 0, 0, 0)")
    first, second = parts(ledger)
    assert first.leases() == {0: deque()}
    assert second.leases() == {0: deque([Answer(0, Batch(0, 0))])}


def test_a_lease_that_another_worker_was_given_since_is_prescribed_as_that(ledger: sqlite3.Connection) -> None:
    rows = [(0, 0, 0, 3), (0, 0, -1, -1), (0, None, 0, 3), (0, 0, 0, 3), (0, None, None, None), (0, 0, None, None)]
    ledger.executemany("INSERT INTO leases (worker, during, epoch, batch) VALUES (?, ?, ?, ?)", rows)
    given: dict[str, Any] = {"segment": SimpleNamespace(workers=1), "recorded": SimpleNamespace(ledger=ledger)}
    assert RecordedPart(**given, begins=None, ends=None).leases()[0] == deque(
        [
            Answer(0, Batch(0, 3), taken=True),
            Answer(0, None, for_now=True),
            Answer(0, Batch(0, 3)),
            None,
            Answer(0, None),
        ]
    )


def test_of_a_worker_that_came_several_times_before_it_joined_the_last_time_counts(ledger: sqlite3.Connection) -> None:
    policy = RunPolicy()
    notes = {"admitted": [(1, 1, 2), (1, 1, 3)], "handed": [(1, 1, 0), (1, 1, None)]}
    choice = SimpleNamespace(has_replicas=False)
    segment = SimpleNamespace(workers=2, hosts=1, fact=1, notes=notes, choice=choice)
    given: dict[str, Any] = {"segment": segment, "recorded": SimpleNamespace(ledger=ledger, folder=Path("run"))}
    RecordedPart(**given, begins=None, ends=None).prescribe(policy)
    assert (policy.admitted, policy.handed) == ({(1, 1): 3}, {(1, 1): None})


def test_the_epochs_that_the_next_segment_goes_on_with_are_those_opened_before_its_snapshot(
    ledger: sqlite3.Connection,
) -> None:
    for epoch in range(2):
        ledger.execute("INSERT INTO epochs VALUES (?, 1, 2, 'digest', '[[0, 1]]', 0, 2)", (epoch,))
    ledger.execute("INSERT INTO marks VALUES (5, 0, 0, 1, 0)")
    first, second = parts(ledger)
    assert first.opened() == [(0, [[0, 1]], "digest", 0, 2)]
    assert second.opened() == []
