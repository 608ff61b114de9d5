"""A replay's ledger beside its recording's, where the run has several segments."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.records.ledger import TABLES
from paceline.records.replay_comparison import Compared, compare

ORDER = (4, 16, 0, "digest", json.dumps([[0, 1, 2, 3]] * 4))
"""Of an epoch: batches, samples, the first batch, its digest, and all that is in it."""


def ledger(first: Iterable[int | None], second: Iterable[int | None]) -> sqlite3.Connection:
    """Worker 0 was leased these batches in each of two segments, of an epoch that was opened in the first one.

    None: a new process of that worker begins to ask.
    """
    made = sqlite3.connect(":memory:")
    made.executescript(TABLES)
    began = json.dumps({"members": [[0, "node-0", 0]]})
    kinds = [
        ("TrainingBegan", None, began),
        ("TrainingBegan", None, began),
        ("WorkerLeft", 0, '{"reason": "finished"}'),
    ]
    for kind, worker, body in kinds:
        made.execute("INSERT INTO facts (at, kind, worker, body) VALUES (0.0, ?, ?, ?)", (kind, worker, body))
    made.execute("INSERT INTO epochs (epoch, batches, samples, first, digest, batch_order) VALUES (0,?,?,?,?,?)", ORDER)
    before, after = list(first), list(second)
    for batch in before + after:
        row = (None, None, None) if batch is None else (0, 0, batch)
        made.execute("INSERT INTO leases (worker, during, epoch, batch) VALUES (0, ?, ?, ?)", row)
    made.execute("INSERT INTO segments (segment, fact, at, version) VALUES (0, 1, 0.0, 0)")
    made.execute("INSERT INTO segments (segment, fact, at, version, snapshot) VALUES (1, 2, 0.0, 0, 1)")
    made.execute("INSERT INTO marks VALUES (1, ?, 0, 1, 0)", (len(before),))
    return made


def compared(recorded: sqlite3.Connection, again: sqlite3.Connection, outcome: str = "completed") -> Compared:
    run: Any = SimpleNamespace(ledger=recorded, summary={"outcome": outcome}, segments=[SimpleNamespace(version=0)] * 2)
    return compare(run, again)


def test_what_a_worker_that_died_was_leased_is_not_beside_what_its_next_segment_was() -> None:
    """How many batches it had fetched by its death is chance."""
    assert not compared(ledger([0, 1, 2], [1, 2, 3]), ledger([0], [1, 2, 3])).differences


def test_a_process_that_asked_before_the_machine_was_told_of_it_counts_in_its_own_segment() -> None:
    assert not compared(ledger([0, None, 1], [1, 2, 3]), ledger([0], [1, 2, 3])).differences


def test_another_lease_of_the_last_segment_is_found() -> None:
    (found,) = compared(ledger([0, 1], [1, 2, 3]), ledger([0], [1, 3, 2])).differences
    assert (found.table, found.key) == ("leases", {"worker": 0, "number": 2})


def evaluated(loss: float | None) -> sqlite3.Connection:
    """Version 1 is recorded, and its loss is this; None: it was not evaluated."""
    made = ledger([0], [1])
    made.execute("INSERT INTO versions (version, at, sha256, samples) VALUES (1, 0.0, 'digest', 4)")
    if loss is not None:
        made.execute("INSERT INTO evaluations (version, metric, value) VALUES (1, 'loss', ?)", (loss,))
    return made


@pytest.mark.parametrize(
    ("outcome", "then", "now", "differs"),
    [
        ("completed", 0.5, None, True),
        ("completed", None, 0.5, True),
        ("failed", 0.5, None, False),
        ("failed", None, 0.5, False),
        ("failed", 0.5, 0.6, True),
    ],
)
def test_a_run_that_failed_and_its_replay_may_each_have_evaluated_what_the_other_has_not(
    outcome: str, then: float | None, now: float | None, differs: bool
) -> None:
    """A process beside the workers evaluates what they made before they died. In a replay, only workers do."""
    found = compared(evaluated(then), evaluated(now), outcome).differences
    assert [one.table for one in found] == ["evaluations"] * differs


@pytest.mark.parametrize("segment", [0, 1])
@pytest.mark.parametrize("stepped", [0, 1, None])
def test_another_beginning_of_a_segment_is_found_once_a_step_was_made_in_it(segment: int, stepped: int | None) -> None:
    """Until then, it says how far workers had come that change something before their first step."""
    sides = []
    for beginning in ("a", "b"):
        made = ledger([0], [1])
        notes = ["same", "same"]
        notes[segment] = beginning
        made.execute("UPDATE segments SET notes = ? WHERE segment = 0", (json.dumps({"beginning": notes[0]}),))
        made.execute("INSERT INTO run VALUES ('beginning', ?)", (json.dumps(notes[1]),))
        if stepped is not None:
            made.execute("UPDATE segments SET fact = fact + 1 WHERE segment > ?", (stepped,))
            made.execute("UPDATE facts SET id = id + 1 WHERE id = 3")
            made.execute("UPDATE facts SET id = id + 1 WHERE id = 2 AND ? = 0", (stepped,))
            body, after = json.dumps({"worker": 0, "step": 0}), 2 + stepped
            made.execute(
                "INSERT INTO facts (id, at, kind, worker, step, body) VALUES (?, 0.0, 'GradientReady', 0, 0, ?)",
                (after, body),
            )
        sides.append(made)
    assert bool(compared(*sides).differences) == (stepped == segment)
