"""A disk that is slower than the run is waited for, and that is said."""

from __future__ import annotations

import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.coordinator.coordinator import Coordinator
from paceline.coordinator.run import _write_config
from paceline.core.facts import Fact, StepDeclined
from paceline.records import ledger as ledgers
from paceline.records.journal import Journal
from paceline.records.ledger import Ledger, NoLedger, connect
from support.run_state import SETTINGS, Stage

FACT = StepDeclined(worker=0, step=0, at=0.0)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(ledgers, "MOST_BEHIND", 10)
    monkeypatch.setattr(ledgers, "AT_MOST", 0)  # beside the first in a transaction
    return Ledger(tmp_path / "ledger.sqlite")


class Slow:
    """Takes the place of a ledger's database: no transaction begins before it may."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.may_begin = threading.Event()

    def __enter__(self) -> object:
        self.may_begin.wait()
        return self._database.__enter__()

    def __exit__(self, *error: object) -> None:
        self._database.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def slowed(ledger: Ledger) -> threading.Event:
    """Let the ledger write nothing until this is set."""
    slow: Any = Slow(ledger._database)
    ledger._database = slow
    return slow.may_begin


def fill(ledger: Ledger) -> int:
    """Put as much in as it keeps, beside what its thread has taken out to write. How many records those are in all."""
    ledger.undone(0, 0)
    while ledger._queue.qsize():
        time.sleep(0.001)
    count = 1
    while not ledger.behind:
        ledger.undone(0, count)
        count += 1
    return count


class Full(NoLedger):
    """A ledger that is too far behind for a while."""

    behind = 0


def test_no_fact_is_under_way_while_a_run_waits_for_the_disk_in_its_loop(tmp_path: Path) -> None:
    """What the loop hears meanwhile is told after it, and as at any other time: not in the midst of another fact."""
    stage = Stage(tmp_path)
    run_state, ledger = stage.run_state, Full()
    run_state.journal.ledger = ledger
    coordinator = Coordinator(run_state, lambda _: None)
    first, second = FACT, replace(FACT, step=1)
    waiting: list[tuple[str | None, list[Fact]]] = []

    def wait(most: float | None = None) -> None:
        waiting.append((coordinator._busy_with(), list(run_state.happened)))
        if len(waiting) == 1:
            run_state.happened.append(second)
        else:
            ledger.behind = 0

    stage.loop.wait = wait  # type: ignore[attr-defined]
    facts = coordinator.facts()
    run_state.happened.append(first)
    ledger.behind = 200_000
    told = [next(facts), next(facts)]
    assert told == [first, second]
    why = "the disk is slower than the ledger"
    assert waiting == [(why, [first]), (why, [first, second])]
    assert coordinator._busy_with() is None
    assert stage.output.lines == [
        "the disk is slower than the run: waiting for it, with 200,000 records still to be written"
    ]


def test_who_records_a_fact_waits_while_the_disk_is_too_far_behind_and_nothing_is_lost(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A simulation has no loop."""
    may_begin = slowed(ledger)
    count = fill(ledger)
    recording = threading.Thread(target=ledger.record, args=(FACT, ()))
    recording.start()
    recording.join(0.1)
    assert recording.is_alive()
    may_begin.set()
    recording.join()
    ledger.close()
    database = connect(tmp_path / "ledger.sqlite")
    counts = "SELECT (SELECT count(*) FROM undone), (SELECT count(*) FROM facts)"
    assert database.execute(counts).fetchone() == (count, 1)
    database.close()


def test_what_a_run_notes_of_itself_is_whole_or_not_there(ledger: Ledger, tmp_path: Path) -> None:
    """In the ledger: nothing is written between its first key and its last."""
    ledger.note_all({"a": 1, "b": [2]})
    assert ledger._queue.qsize() <= 1
    ledger.close()
    database = connect(tmp_path / "ledger.sqlite")
    assert dict(database.execute("SELECT key, value FROM run")) == {"a": "1", "b": "[2]"}
    database.close()


def test_a_reader_of_config_toml_never_sees_half_of_it(ledger: Ledger, tmp_path: Path) -> None:
    """It is written anew when the script's part is known; the file that a reader has open stays as it was."""
    script = tmp_path / "train.py"
    script.write_text("")
    settings = replace(
        SETTINGS,
        script=script,
        source=script.read_bytes(),
        workers=2,
        folder=tmp_path,
        record=4,
        on_loss="continue",
        report_waits=30.0,
        quiet=False,
    )
    _write_config(settings, None, Journal(ledger), {})
    with (tmp_path / "config.toml").open() as file:
        _write_config(replace(settings, shards="static"), None, Journal(ledger), {})
        assert tomllib.loads(file.read())["shards"] == "dynamic"
    assert tomllib.loads((tmp_path / "config.toml").read_text())["shards"] == "static"
    assert {path.name for path in tmp_path.iterdir() if "toml" in path.name} == {"config.toml"}
    ledger.close()
