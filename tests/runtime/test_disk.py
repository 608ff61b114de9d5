"""A disk that is slower than the run is waited for, and that is said."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from paceline.core.facts import StepDeclined
from paceline.records import ledger as ledgers
from paceline.records.ledger import Ledger, connect
from paceline.runtime.disk import Disk
from paceline.runtime.loop import Loop

FACT = StepDeclined(worker=0, step=0, at=0.0)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(ledgers, "MOST_BEHIND", 10)
    return Ledger(tmp_path / "ledger.sqlite")


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


def test_a_run_waits_for_the_disk_in_its_loop_and_says_so_once(ledger: Ledger, tmp_path: Path) -> None:
    loop, said, heard = Loop(), list[str](), list[str | None]()
    disk = Disk(ledger, loop, said.append)
    disk.wait()
    for _ in range(2):
        still = ledger.still()
        still.__enter__()
        fill(ledger)

        def go_on(still=still) -> None:
            heard.append(disk.busy_with)
            still.__exit__(None, None, None)

        loop.after(0.0, go_on)
        disk.wait()
        assert not ledger.behind
        assert disk.busy_with is None
    assert heard == ["the disk is slower than the ledger"] * 2
    assert said == ["the disk is slower than the run: waiting for it, with 10 records still to be written"]
    ledger.close()
    loop.close()


def test_who_records_a_fact_waits_while_the_disk_is_too_far_behind_and_nothing_is_lost(
    ledger: Ledger, tmp_path: Path
) -> None:
    """A simulation has no loop."""
    with ledger.still():
        count = fill(ledger)
        recording = threading.Thread(target=ledger.record, args=(FACT, ()))
        recording.start()
        recording.join(0.1)
        assert recording.is_alive()
    recording.join()
    ledger.close()
    database = connect(tmp_path / "ledger.sqlite")
    counts = "SELECT (SELECT count(*) FROM undone), (SELECT count(*) FROM facts)"
    assert database.execute(counts).fetchone() == (count, 1)
    database.close()


def test_a_fork_waits_until_the_ledger_s_thread_is_out_of_sqlite(ledger: Ledger) -> None:
    """Else the child has a lock of SQLite's that nobody opens."""
    writing, go_on, still = threading.Event(), threading.Event(), threading.Event()
    real = ledger._database

    class Slow:
        def __enter__(self) -> object:
            writing.set()
            go_on.wait()
            return real.__enter__()

        def __exit__(self, *error: object) -> None:
            real.__exit__(*error)

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    ledger._database = Slow()  # type: ignore[assignment]

    def fork() -> None:
        with ledger.still():
            still.set()

    ledger.undone(0, 0)
    writing.wait()
    forking = threading.Thread(target=fork)
    forking.start()
    assert not still.wait(0.1)
    go_on.set()
    forking.join()
    assert still.is_set()
    ledger.close()
