"""What a ledger must hold, and what must hold of its file."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.coordinator.ledger_backpressure import LedgerBackpressure
from paceline.core.choice import choose
from paceline.core.facts import Fact, StepDeclined, TrainingBegan, UpdateArrived, WorkerLeft
from paceline.core.orders import ApplyUpdate, Hold, Order, StartPush
from paceline.errors import ConfigError, RunFailed
from paceline.protocols import registry
from paceline.records.ledger import FACTS, SCHEMA, Ledger, connect, read_facts
from paceline.records.times import FetchTimes, StepTimes
from records.histories import PROTOCOLS, History

SEEDS = range(4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with closing(Ledger(path)) as ledger:
        yield ledger


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(connect(path)) as database:
        return database.execute(query).fetchall()


def exactly(pairs: list[tuple[Fact, tuple[Order, ...]]]) -> list[object]:
    """With what equality leaves out: `why`, and whether a number in it is whole."""
    return [(fact, orders, [[(type(part), part) for part in order.why] for order in orders]) for fact, orders in pairs]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", SEEDS)
def test_facts_and_orders_are_read_back_equal(protocol: str, seed: int, path: Path, ledger: Ledger) -> None:
    history = History(protocol, seed, on_record=ledger.record).run()
    ledger.close()
    assert exactly(list(read_facts(path))) == exactly(history.pairs)


def test_a_fact_without_samples_and_any_why_are_read_back_equal(path: Path, ledger: Ledger) -> None:
    history = History("bsp", 0, counted=False).run()
    pairs = [
        (fact, (*orders, Hold(worker=1, why=("code", 1, 1.0, -2.5e-300, "ü\"'")))) for fact, orders in history.pairs
    ]
    for fact, orders in pairs:
        ledger.record(fact, orders)
    ledger.close()
    assert exactly(list(read_facts(path))) == exactly(pairs)


def test_a_fetch_is_noted_with_the_last_fact_before_it(path: Path, ledger: Ledger) -> None:
    fetch = FetchTimes(host="node-1", source="node-0", kind="version", number=3, bytes=40, began=0.1, ended=0.2)
    update = FetchTimes(
        host="node-0", source="node-1", kind="update", worker=2, number=9, bytes=8, began=0.1, ended=0.3
    )
    for number, one in enumerate((fetch, update)):
        ledger.record(WorkerLeft(worker=number, reason="died", at=0.0), ())
        ledger.fetched(one)
    ledger.close()
    assert rows(path, "SELECT * FROM fetches ORDER BY rowid") == [
        (1, "node-1", "node-0", "version", None, 3, 40, 0.1, 0.2),
        (2, "node-0", "node-1", "update", 2, 9, 8, 0.1, 0.3),
    ]


def test_applied_samples_has_every_repetition_and_nothing_that_was_not_applied(path: Path, ledger: Ledger) -> None:
    twice = ApplyUpdate(version=7, contributions=((0, 0, 0.5), (0, 0, 0.25), (1, 0, 0.25)))
    ledger.record(UpdateArrived(worker=0, step=0, at=1.0), (twice,))
    ledger.epoch_opened(0, [[10, 11], [12], [13], [14]], "digest")
    ledger.batch_used(0, 0, 0, 1, "step")
    ledger.batch_used(1, 0, 0, 0, "step")
    ledger.batch_used(1, 0, 0, 3, "skipped")
    ledger.batch_used(2, 0, 0, 2, "step")
    ledger.close()
    found = Counter(rows(path, "SELECT epoch, sample, worker, step, version FROM applied_samples"))
    assert found == Counter({(0, 12, 0, 0, 7): 2, (0, 10, 1, 0, 7): 1, (0, 11, 1, 0, 7): 1})


def test_each_step_of_an_update_of_several_own_steps_has_its_row_and_its_samples(path: Path, ledger: Ledger) -> None:
    """The update goes by its last step. One of a single step stands beside it in the same version."""
    pushes = StartPush(worker=0, step=4, since=2), StartPush(worker=1, step=4)
    ledger.record(UpdateArrived(worker=0, step=4, at=1.0), pushes)
    version = ApplyUpdate(version=7, contributions=((0, 4, 0.75), (1, 4, 0.25)))
    ledger.record(UpdateArrived(worker=1, step=4, at=2.0), (version,))
    ledger.epoch_opened(0, [[10], [11], [12], [13]], "digest")
    for index, (worker, step) in enumerate([(0, 2), (0, 3), (0, 4), (1, 4)]):
        ledger.batch_used(worker, step, 0, index, "step")
    ledger.close()
    query = "SELECT version, position, worker, step, weight FROM applied_updates ORDER BY worker, step"
    assert rows(path, query) == [(7, 0, 0, 2, 0.75), (7, 0, 0, 3, 0.75), (7, 0, 0, 4, 0.75), (7, 1, 1, 4, 0.25)]
    samples = rows(path, "SELECT sample, worker, step, version FROM applied_samples ORDER BY sample")
    assert samples == [(10, 0, 2, 7), (11, 0, 3, 7), (12, 0, 4, 7), (13, 1, 4, 7)]


def test_every_measurement_has_its_row(path: Path, ledger: Ledger) -> None:
    ledger.pushed(1, 2, [0.1, 0.01], 32)
    ledger.pushed(1, 3, [0.1, 0.01], None)
    ledger.epoch_opened(0, [[3, 1], [2]], "digest")
    ledger.batch_used(1, 2, 0, 1, "skipped")
    ledger.step_times(1, 2, StepTimes(0.5, 1.0, 2.0, 3.0, 4.0, 5.0))
    ledger.step_times(1, 3, StepTimes(0.5, 1.0, 2.0, 3.0, 4.0, 5.0, to_device=0.25, from_device=0.75))
    ledger.version_recorded(9, 1.5, 288, "hash", "versions/9.safetensors")
    ledger.evaluated(9, {"accuracy": 0.5, "loss": 2.0})
    ledger.logged(1, 2, 0.75, "norm", 3.5)
    ledger.note("torch", "2.6")
    ledger.note("threads", 1)
    ledger.note("threads", [2, {"a": None}])
    ledger.close()
    assert rows(path, "SELECT * FROM pushes") == [(1, 2, "[0.1,0.01]", 32), (1, 3, "[0.1,0.01]", None)]
    assert rows(path, "SELECT * FROM epochs") == [(0, 2, 3, "digest", "[[3,1],[2]]", 0, None)]
    assert rows(path, "SELECT * FROM batches") == [(1, 2, 0, 1, "skipped")]
    assert rows(path, "SELECT * FROM step_times") == [
        (1, 2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, None, None),
        (1, 3, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 0.25, 0.75),
    ]
    assert rows(path, "SELECT * FROM versions") == [(9, 1.5, 288, "hash", "versions/9.safetensors")]
    assert rows(path, "SELECT * FROM evaluations") == [(9, "accuracy", 0.5), (9, "loss", 2.0)]
    assert rows(path, "SELECT * FROM scalars") == [(1, 2, 0.75, "norm", 3.5)]
    notes = {key: json.loads(str(value)) for key, value in rows(path, "SELECT * FROM run")}
    assert notes == {"torch": "2.6", "threads": [2, {"a": None}]}


def test_close_leaves_one_file_that_needs_no_log_and_does_nothing_the_second_time(path: Path, ledger: Ledger) -> None:
    History("asp", 0, on_record=ledger.record).run()
    ledger.close()
    ledger.close()
    assert os.listdir(path.parent) == [path.name]
    assert rows(path, "PRAGMA journal_mode") == [("delete",)]


def test_who_reads_a_running_ledger_neither_waits_nor_makes_it_wait(path: Path, ledger: Ledger) -> None:
    pairs = History("asp", 0).run().pairs
    with closing(connect(path)) as reader, closing(connect(path)) as other:
        reader.execute("BEGIN").execute("SELECT count(*) FROM facts").fetchone()
        ledger.record(*pairs[0])
        while not other.execute("SELECT count(*) FROM facts").fetchone()[0]:
            pass
        assert reader.execute("SELECT count(*) FROM facts").fetchone() == (0,)
        for pair in pairs[1:]:
            ledger.record(*pair)
        ledger.close()
    assert [fact for fact, _ in read_facts(path)] == [fact for fact, _ in pairs], "it was closed whole"


ENDLESS = """
import sys
from pathlib import Path
from paceline.records.ledger import Ledger
from records.histories import History
ledger = Ledger(Path(sys.argv[1]))
print("open", flush=True)
while True:
    History("ssp:bound=2", 3, on_record=ledger.record).run()
"""


def test_of_a_killed_writer_everything_committed_is_readable_and_no_fact_lacks_its_orders(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    seen = 0
    while seen < 100 and child.poll() is None:
        ((seen,),) = rows(path, "SELECT count(*) FROM facts")  # type: ignore[assignment]
    child.send_signal(signal.SIGKILL)
    child.communicate()
    expected = exactly(History("ssp:bound=2", 3).run().pairs)
    found = exactly(list(read_facts(path)))
    assert len(found) >= seen >= 100
    assert found[: len(expected)] == expected[: len(found)]
    machine = choose("ssp:bound=2", registry()).machine()
    for fact, orders in read_facts(path):
        if isinstance(fact, TrainingBegan):
            machine = choose("ssp:bound=2", registry()).machine()
        assert machine.handle(fact) == orders


def test_what_cannot_be_written_is_raised_at_close(path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.files.traces", path.parent)
    began, *_ = History("asp", 0).run().pairs
    ledger.record(*began)
    with closing(connect(path)) as reader:  # until it is committed
        while not reader.execute("SELECT count(*) FROM facts").fetchone()[0]:
            pass
    ledger.evaluated(1, {"accuracy": object()})  # type: ignore[dict-item]
    for _ in range(1000):
        ledger.record(*began)
    with pytest.raises(RunFailed, match=str(path)):
        ledger.close()
    ledger.close()
    assert exactly(list(read_facts(path)))[:1] == exactly([began])


def fill_disk(ledger: Ledger, records: int = 5000) -> None:
    """Record more than there is room for."""
    ((pages,),) = ledger._database.execute("PRAGMA page_count")
    ledger._database.execute(f"PRAGMA max_page_count = {pages}")
    began, *_ = History("asp", 0).run().pairs
    for _ in range(records):
        ledger.record(*began)


def test_what_a_full_disk_has_no_room_for_is_written_once_it_has(
    path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.records.ledger.TRY_AGAIN", 0.01)
    tries = iter(range(3))

    def again() -> float:
        """The disk has room from the third try on."""
        if next(tries, None) is None:
            ledger._database.execute("PRAGMA max_page_count = 100000")
        return 0.0

    monkeypatch.setattr("paceline.records.ledger.time", SimpleNamespace(monotonic=again, sleep=time.sleep))
    fill_disk(ledger)
    asked = ledger.ask()
    while not ledger.has(asked):
        assert ledger.broken is None
    ledger.close()
    assert rows(path, "SELECT count(*) FROM facts") == [(5000,)]


def test_a_ledger_that_can_t_be_written_for_long_is_told_once_while_the_run_goes_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.records.ledger.PATIENCE", -1.0)
    said: list[str] = []
    backpressure = LedgerBackpressure(ledger, said.append)
    fill_disk(ledger)
    while ledger.broken is None:
        pass
    assert not backpressure.behind()
    assert not backpressure.behind()
    (line,) = said
    assert line.endswith(
        "is the disk full, or the folder gone? The run goes on without it: it takes no more snapshots, "
        "and fails at its end"
    )
    with pytest.raises(RunFailed, match="the ledger cannot be written: database or disk is full"):
        ledger.close()


def test_a_ledger_that_cannot_be_created_fails_at_once(tmp_path: Path, path: Path, ledger: Ledger) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        Ledger(path)
    with pytest.raises(RunFailed, match="nowhere"):
        Ledger(tmp_path / "nowhere" / "ledger.sqlite")


@pytest.mark.parametrize("other", [SCHEMA - 1, SCHEMA + 1])
def test_what_is_no_ledger_of_this_schema_is_refused(tmp_path: Path, path: Path, ledger: Ledger, other: int) -> None:
    ledger.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {other}")
    with pytest.raises(ConfigError, match=f"its schema is {other}; .* reads only schema {SCHEMA}$"):
        connect(path)
    (tmp_path / "text").write_text("no database, " * 100)
    for name in ("missing", "text"):
        with pytest.raises(ConfigError, match=name):
            list(read_facts(tmp_path / name))


KILLED_WHILE_WRITING = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("PRAGMA cache_size = 1")
database.execute("BEGIN")
database.executemany("INSERT INTO facts (body) VALUES (?)", [("x" * 1000,) for _ in range(1000)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_ledger_whose_writer_was_killed_without_the_write_ahead_log_is_read_as_it_was_before(tmp_path: Path) -> None:
    """So it may be killed at a run's beginning or end. Opened for reading alone, SQLite can't roll it back."""
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, str(path)], check=False)
    assert path.with_name("ledger.sqlite-journal").stat().st_size
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database, pytest.raises(sqlite3.Error):
        database.execute("SELECT count(*) FROM facts")
    assert rows(path, "SELECT count(*) FROM facts") == [(0,)]


def test_a_step_that_was_declined_in_an_older_ledger_was_declined_for_lack_of_data() -> None:
    fact = FACTS["StepDeclined"].decode('{"worker":1,"step":4,"at":0.5}')
    assert fact == StepDeclined(worker=1, step=4, at=0.5, paused=False)
