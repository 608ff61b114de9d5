"""Rows of `fetches` that somebody has changed by hand: each is caught, and its rule named."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paceline.core.facts import Fact, GradientReady, ParametersTaken, TrainingBegan, UpdateArrived, WorkerLeft
from paceline.core.orders import ApplyUpdate, Order, Release
from paceline.protocols import registry
from paceline.records import violations
from paceline.records.check.checking import Checking
from paceline.records.check.fetches import fetches
from paceline.records.ledger import Ledger
from paceline.records.reading import open_run
from paceline.records.times import FetchTimes
from paceline.records.violations import Violation
from support import runs
from support.recorded import AS_REAL, checked, noted, said, wrong
from support.scripts import training

Rows = list[list[Any]]
FACT, HOST, SOURCE, KIND, WORKER, NUMBER, BYTES, BEGAN, ENDED = range(9)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run in rounds, on two hosts with two workers each, whose updates come one by one."""
    flags = ("--emulate-hosts", "2", "-n", "2", "--threads", "1", "-p", "sync-switch:switch_at=1")
    folder = tmp_path_factory.mktemp("made")
    run = runs.run(training(epochs=1), *flags, tmp_path=folder).completed()
    found = checked(run.folder)
    assert found.wrong is None
    assert any("fetches between hosts" in line for line in found.proved)
    return run.folder


@pytest.fixture
def real(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def forged(folder: Path, change: Callable[[Rows], object]) -> Path:
    """The same run with other rows, which are numbered from 1 again."""
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        rows = [list(row) for row in database.execute("SELECT * FROM fetches ORDER BY rowid")]
        change(rows)
        database.execute("DELETE FROM fetches")
        database.executemany(f"INSERT INTO fetches VALUES ({', '.join('?' * 9)})", rows)
    return folder


def place(rows: Rows, kind: str, number: int, worker: int | None = None) -> int:
    """Where the row of that item is."""
    return next(at for at, row in enumerate(rows) if [row[KIND], row[WORKER], row[NUMBER]] == [kind, worker, number])


@pytest.mark.real_run
def test_a_version_that_no_row_says_was_fetched_is_caught(real: Path) -> None:
    found = wrong(forged(real, lambda rows: rows.pop(place(rows, "version", 2))))
    assert (found.table, found.rule) == ("facts", violations.FETCHED)
    assert found.expected.startswith("version 2 for worker ")
    assert found.found == "it never was"


@pytest.mark.real_run
def test_an_update_that_no_row_says_was_fetched_is_caught(real: Path) -> None:
    found = wrong(forged(real, lambda rows: rows.pop(place(rows, "update", 1, worker=3))))
    assert (found.table, found.rule) == ("facts", violations.FETCHED)
    assert found.expected.startswith("the update of step 1 of worker 3 is fetched by node-0")


@pytest.mark.real_run
def test_an_update_that_was_fetched_twice_is_caught(real: Path) -> None:
    def twice(rows: Rows) -> None:
        at = place(rows, "update", 1, worker=3)
        rows.insert(at, list(rows[at]))

    found = wrong(forged(real, twice))
    assert (found.table, found.rule) == ("fetches", violations.FETCHED_ONCE)


@pytest.mark.real_run
def test_a_version_that_is_fetched_while_a_worker_there_has_it_is_caught(real: Path) -> None:
    with closing(sqlite3.connect(real / "ledger.sqlite")) as database:
        query = "SELECT id, at FROM facts WHERE kind = 'ParametersTaken' AND version = 2 AND worker = 2"
        fact, at = database.execute(query).fetchone()

    def again(rows: Rows) -> None:
        row = list(rows[place(rows, "version", 2)])
        row[FACT], row[BEGAN], row[ENDED] = fact, at, at
        rows.insert(next((number for number, one in enumerate(rows) if one[FACT] > fact), len(rows)), row)

    found = wrong(forged(real, again))
    assert (found.table, found.rule) == ("fetches", violations.FETCHED_ONCE)
    assert found.expected == "version 2 once to host node-1"


def changed(kind: str, column: int, value: Any) -> Callable[[Rows], None]:
    """With another value in that column of a row in the middle, of that kind."""

    def change(rows: Rows) -> None:
        its = [row for row in rows if row[KIND] == kind]
        row = its[len(its) // 2]
        row[column] = value(row[column]) if callable(value) else value

    return change


@pytest.mark.real_run
@pytest.mark.parametrize(
    ("kind", "column", "value", "rule"),
    [
        ("version", FACT, None, violations.READABLE),
        ("version", FACT, 10**9, violations.FETCHES),
        ("version", FACT, 1, violations.FETCHES),
        ("version", HOST, "node-0", violations.FETCHES),
        ("version", HOST, 7, violations.READABLE),
        ("version", SOURCE, "node-1", violations.FETCHES),
        ("version", KIND, "trophy", violations.READABLE),
        ("version", NUMBER, 3000, violations.FETCHES),
        ("version", NUMBER, None, violations.READABLE),
        ("version", WORKER, 1, violations.READABLE),
        ("version", BYTES, 7, violations.FETCHES),
        ("version", BYTES, -7, violations.READABLE),
        ("version", BEGAN, 0.0, violations.FETCHES),
        ("version", BEGAN, 1e6, violations.FETCHES),
        ("version", ENDED, lambda ended: ended + 100, violations.FETCHES),
        ("version", ENDED, "soon", violations.READABLE),
        ("update", HOST, "node-1", violations.FETCHES),
        ("update", SOURCE, "node-0", violations.FETCHES),
        ("update", WORKER, 0, violations.FETCHES),
        ("update", WORKER, 17, violations.FETCHES),
        ("update", WORKER, None, violations.READABLE),
        ("update", NUMBER, 3000, violations.FETCHES),
        ("update", BYTES, 7, violations.FETCHES),
        ("update", BEGAN, 0.0, violations.FETCHES),
    ],
)
def test_a_changed_row_is_caught(real: Path, kind: str, column: int, value: Any, rule: str) -> None:
    found = wrong(forged(real, changed(kind, column, value)))
    assert (found.table, found.rule) in (("fetches", rule), ("facts", violations.FETCHED))


@pytest.mark.real_run
def test_fetches_of_a_run_that_says_it_was_on_one_host_are_caught(real: Path) -> None:
    found = wrong(said(real, hosts=None))
    assert (found.table, found.row, found.rule) == ("fetches", 1, violations.FETCHES)


# --- histories by hand --------------------------------------------------------------------------------

MEMBERS = ((0, "node-0", 0), (1, "node-1", 0), (2, "node-1", 0))
BEGAN_AT_0 = TrainingBegan(members=MEMBERS, version=0, at=0.0)


def version(number: int, ended: float, host: str = "node-1", source: str = "node-0", size: int = 40) -> FetchTimes:
    return FetchTimes(host=host, source=source, kind="version", number=number, bytes=size, began=ended, ended=ended)


def update(
    worker: int, step: int, ended: float, host: str = "node-0", source: str = "node-1", size: int = 48
) -> FetchTimes:
    return FetchTimes(
        host=host, source=source, kind="update", worker=worker, number=step, bytes=size, began=ended, ended=ended
    )


def taken(worker: int, number: int, at: float) -> Fact:
    return ParametersTaken(worker=worker, version=number, at=at)


def ready(worker: int, step: int, number: int, at: float) -> Fact:
    return GradientReady(worker=worker, step=step, version=number, samples=1, at=at)


def broken_rule(
    folder: Path, told: Iterable[Fact | FetchTimes | tuple[Fact, Order]], scenario: Mapping[str, Any] | None = None
) -> str | None:
    """The rule of fetches that this history breaks; None: it breaks none."""
    folder.mkdir()
    with closing(Ledger(folder / "ledger.sqlite")) as ledger:
        choice = {"name": "asp", "config": {}}
        noted(folder, ledger, {**AS_REAL, "protocol": choice, "workers": 3, "hosts": 2, "seed": 0, **(scenario or {})})
        for one in told:
            if isinstance(one, FetchTimes):
                ledger.fetched(one)
            else:
                fact, *orders = one if isinstance(one, tuple) else (one,)
                ledger.record(fact, tuple(orders))  # type: ignore[arg-type]
        for number in range(1, 10):
            ledger.committed(number, 0.01 * number)
        facts = ledger.facts
    with closing((opened := open_run(folder, registry())).ledger):
        checking = Checking(opened)
        checking.counts["facts"], checking.rules.first = facts, 0
        try:
            fetches(checking)
        except Violation as found:
            return found.wrong(checking.table, checking.row).rule
    return None


HELD = [BEGAN_AT_0, version(0, 0.1), version(5, 0.2), taken(1, 5, 0.3)]
"""Worker 1 has version 5."""


@pytest.mark.parametrize(
    ("then", "rule"),
    [
        ([version(5, 0.4), ready(1, 0, 5, 0.5)], violations.FETCHED_ONCE),
        ([ready(1, 0, 5, 0.4), version(5, 0.5), taken(2, 5, 0.6)], None),
        ([version(5, 0.5), ready(1, 0, 5, 0.4)], None),
        ([version(5, 0.5), (ready(2, 0, 0, 0.4), Release(worker=1, step=1, version=6))], None),
        ([version(5, 0.4), WorkerLeft(worker=1, reason="died", at=0.5)], violations.FETCHED_ONCE),
        ([version(5, 0.5), WorkerLeft(worker=1, reason="died", at=0.4)], None),
        ([version(6, 0.4), taken(2, 6, 0.5)], None),
        ([taken(2, 5, 0.4)], None),
        ([taken(2, 6, 0.4)], violations.FETCHED),
        ([version(6, 0.5), taken(2, 6, 0.4)], violations.FETCHED),
    ],
)
def test_a_host_fetches_a_version_again_only_if_no_worker_there_has_it(
    tmp_path: Path, then: list[Any], rule: str | None
) -> None:
    """A row is written as the head hears of it. Facts that it has heard before may still wait to be told."""
    assert broken_rule(tmp_path / "run", [*HELD, *then]) == rule


@pytest.mark.parametrize(
    ("then", "rule"),
    [
        ([update(1, 0, 0.5), UpdateArrived(worker=1, step=0, at=0.5)], None),
        ([update(1, 0, 0.5), WorkerLeft(worker=1, reason="died", at=0.6)], None),
        ([WorkerLeft(worker=1, reason="died", at=0.6), update(1, 0, 0.7)], violations.FETCHES),
        ([update(1, 0, 0.7), UpdateArrived(worker=1, step=0, at=0.6)], violations.FETCHED),
        ([update(2, 0, 0.5)], violations.FETCHES),
        ([update(1, 0, 0.3)], violations.FETCHES),
    ],
)
def test_an_update_is_fetched_once_it_is_ready_and_before_it_arrives(
    tmp_path: Path, then: list[Any], rule: str | None
) -> None:
    assert broken_rule(tmp_path / "run", [*HELD, ready(1, 0, 5, 0.4), *then]) == rule


@pytest.mark.parametrize(("began", "ended", "rule"), [(0.3, 0.5, None), (0.1, 0.5, "it"), (0.3, 0.35, "it")])
@pytest.mark.parametrize("protocol", ["asp", "hsp"])
def test_an_update_is_fetched_from_its_steps_release_on_and_is_not_all_there_before_it_is_ready(
    tmp_path: Path, protocol: str, began: float, ended: float, rule: str | None
) -> None:
    """Where pushes wait for their turn, none begins before."""
    released = (taken(1, 5, 0.2), Release(worker=1, step=0, version=5))
    fetch = FetchTimes(
        host="node-0", source="node-1", kind="update", worker=1, number=0, bytes=48, began=began, ended=ended
    )
    told = [BEGAN_AT_0, version(0, 0.1), version(5, 0.15), released, ready(1, 0, 5, 0.4), fetch]
    expected = violations.FETCHES if rule or protocol == "hsp" else None
    assert broken_rule(tmp_path / "run", told, {"protocol": {"name": protocol, "config": {}}}) == expected


def test_what_an_earlier_segment_fetched_is_fetched_anew(tmp_path: Path) -> None:
    resumed = TrainingBegan(members=MEMBERS, version=5, at=1.0)
    before = [*HELD, ready(1, 0, 5, 0.4), update(1, 0, 0.5), resumed]
    assert broken_rule(tmp_path / "once", [*before, taken(1, 5, 1.2)]) == violations.FETCHED
    assert broken_rule(tmp_path / "twice", [*before, version(5, 1.1), taken(1, 5, 1.2)]) is None
    assert broken_rule(tmp_path / "older", [*before, version(4, 1.1)]) == violations.FETCHES
    arrives = UpdateArrived(worker=1, step=0, at=1.2)
    assert broken_rule(tmp_path / "update", [*before, version(5, 1.1), arrives]) == violations.FETCHED
    assert broken_rule(tmp_path / "held", [*HELD, resumed, version(5, 1.1), taken(1, 5, 1.2)]) is None
    assert broken_rule(tmp_path / "coming", [*HELD, version(6, 0.4), resumed, taken(1, 6, 1.2)]) == violations.FETCHED
    assert (
        broken_rule(tmp_path / "late", [*HELD, ready(1, 0, 5, 0.4), resumed, update(1, 0, 1.1)]) == violations.FETCHES
    )


def test_what_training_begins_with_may_be_fetched_again(tmp_path: Path) -> None:
    """A script may change it before its first step."""
    then = [BEGAN_AT_0, version(0, 0.1), taken(1, 0, 0.2), version(0, 0.3), ready(1, 0, 0, 0.4)]
    assert broken_rule(tmp_path / "run", then) is None


def test_a_version_is_fetched_once_it_is_ordered(tmp_path: Path) -> None:
    ordered = ApplyUpdate(version=5, contributions=((0, 0, 1.0),))
    then = [BEGAN_AT_0, (ready(0, 0, 0, 0.03), ordered)]
    assert broken_rule(tmp_path / "after", [*then, version(5, 0.051)]) is None
    assert broken_rule(tmp_path / "meanwhile", [*then, version(5, 0.031)]) is None
    assert broken_rule(tmp_path / "before", [*then, version(5, 0.029)]) == violations.FETCHES
    assert broken_rule(tmp_path / "never", [*then, version(50, 0.5)]) == violations.FETCHES


def test_another_hosts_clock_may_measure_a_little_too_long(tmp_path: Path) -> None:
    """A thousandth of what it has measured: that host's clock is not the one by which versions are made."""

    def fetch(began: float) -> FetchTimes:
        return FetchTimes(host="node-1", source="node-0", kind="version", number=5, bytes=40, began=began, ended=10.0)

    assert broken_rule(tmp_path / "little", [BEGAN_AT_0, fetch(0.045)]) is None
    assert broken_rule(tmp_path / "much", [BEGAN_AT_0, fetch(0.035)]) == violations.FETCHES


def test_fetches_end_in_the_order_of_their_rows(tmp_path: Path) -> None:
    pushed = [*HELD, ready(1, 0, 5, 0.4), ready(2, 0, 5, 0.4), update(1, 0, 0.6)]
    assert broken_rule(tmp_path / "run", [*pushed, update(2, 0, 0.5)]) == violations.FETCHES


# --- several hosts make each version ------------------------------------------------------------------

THREE = ((0, "node-0", 0), (1, "node-1", 0), (2, "node-1", 0), (3, "node-2", 0))
ALL = {"placement": {"node-0": [0, 20], "node-1": [20, 40], "node-2": [40, 50]}}
FAR = {"placement": {"node-1": [0, 50]}}
THREE_AT_0 = [
    TrainingBegan(members=THREE, version=0, at=0.0),
    version(0, 0.1, size=50),
    version(0, 0.1, "node-2", size=50),
]
PARTS = [version(5, 0.2), version(5, 0.2, source="node-2", size=10)]
"""What node-1 lacks of version 5."""


@pytest.mark.parametrize(
    ("then", "placement", "rule"),
    [
        ([taken(1, 0, 0.2), taken(0, 0, 0.2), taken(3, 0, 0.2)], ALL, None),
        ([version(0, 0.2, "node-2", "node-1"), taken(3, 0, 0.3)], ALL, None),
        ([version(0, 0.2, "node-1", "node-1")], ALL, violations.FETCHES),
        ([version(0, 0.2, "node-1", "node-7")], ALL, violations.FETCHES),
        ([*PARTS, taken(1, 5, 0.3), taken(2, 5, 0.4)], ALL, None),
        ([PARTS[0], taken(1, 5, 0.3)], ALL, violations.FETCHED),
        ([PARTS[1], taken(1, 5, 0.3)], ALL, violations.FETCHED),
        ([*PARTS, taken(1, 5, 0.3), version(5, 0.4, source="node-2", size=10), taken(2, 5, 0.5)], ALL, None),
        (
            [*PARTS, taken(1, 5, 0.3), version(5, 0.4, source="node-2", size=10), ready(1, 0, 5, 0.5)],
            ALL,
            violations.FETCHED_ONCE,
        ),
        ([version(5, 0.2, "node-1", "node-1")], ALL, violations.FETCHES),
        ([*PARTS, version(6, 0.3, source="node-2", size=20)], ALL, violations.FETCHES),
        ([taken(0, 5, 0.3)], ALL, violations.FETCHED),
        ([version(5, 0.2, "node-0", "node-1"), version(5, 0.2, "node-0", "node-2", 10), taken(0, 5, 0.3)], ALL, None),
        ([taken(1, 0, 0.2), taken(1, 5, 0.3)], FAR, None),
        ([taken(0, 5, 0.3)], FAR, violations.FETCHED),
        ([version(5, 0.2, "node-0", "node-1", 50), taken(0, 5, 0.3)], FAR, None),
        ([version(5, 0.2)], FAR, violations.FETCHES),
    ],
)
def test_a_version_is_fetched_from_each_host_that_makes_a_part_of_it(
    tmp_path: Path, then: list[Any], placement: dict[str, Any], rule: str | None
) -> None:
    assert broken_rule(tmp_path / "run", [*THREE_AT_0, *then], placement) == rule


def of_worker(worker: int, *fetches: FetchTimes) -> list[Any]:
    """Its update is ready, fetched, and arrives."""
    return [ready(worker, 0, 0, 0.4), *fetches, UpdateArrived(worker=worker, step=0, at=0.6)]


SLICES = update(1, 0, 0.5), update(1, 0, 0.5, "node-2", size=18)
"""Of worker 1's update."""
LEFT = WorkerLeft(worker=1, reason="died", at=0.45)


@pytest.mark.parametrize(
    ("then", "placement", "rule"),
    [
        (of_worker(1, *SLICES), ALL, None),
        (of_worker(1, SLICES[0]), ALL, violations.FETCHED),
        (of_worker(1, SLICES[1]), ALL, violations.FETCHED),
        (of_worker(1, *SLICES, SLICES[1]), ALL, violations.FETCHED_ONCE),
        ([*of_worker(1, *SLICES), SLICES[1]], ALL, violations.FETCHES),
        (of_worker(1, *SLICES, update(1, 0, 0.5, "node-1", "node-1")), ALL, violations.FETCHES),
        (of_worker(0, update(0, 0, 0.5, "node-1", "node-0"), update(0, 0, 0.5, "node-2", "node-0", 18)), ALL, None),
        (of_worker(0, update(0, 0, 0.5, "node-1", "node-0")), ALL, violations.FETCHED),
        ([*of_worker(1, *SLICES), ready(1, 1, 0, 0.7), update(1, 1, 0.8, "node-2", size=19)], ALL, violations.FETCHES),
        ([ready(1, 0, 0, 0.4), LEFT, SLICES[1]], ALL, None),
        ([ready(1, 0, 0, 0.4), LEFT, SLICES[1], SLICES[1]], ALL, violations.FETCHED_ONCE),
        ([ready(1, 0, 0, 0.4), LEFT, SLICES[0]], ALL, violations.FETCHES),
        ([LEFT, SLICES[1]], ALL, violations.FETCHES),
        (of_worker(1, update(1, 0, 0.5)), FAR, None),
        (of_worker(1), FAR, violations.FETCHED),
        (of_worker(0), FAR, violations.FETCHED),
        (of_worker(3, update(3, 0, 0.5, "node-0", "node-2"), update(3, 0, 0.5, "node-1", "node-2")), FAR, None),
        (of_worker(3, update(3, 0, 0.5, "node-1", "node-2")), FAR, violations.FETCHED),
        (of_worker(3, update(3, 0, 0.5, "node-0", "node-2")), FAR, violations.FETCHED),
        (of_worker(1, update(1, 0, 0.5), update(1, 0, 0.5, "node-2")), FAR, violations.FETCHES),
    ],
)
def test_an_update_is_fetched_by_the_head_and_by_each_host_that_makes_a_part_of_versions(
    tmp_path: Path, then: list[Any], placement: dict[str, Any], rule: str | None
) -> None:
    assert broken_rule(tmp_path / "run", [*THREE_AT_0, *then], placement) == rule


MOVED = {**ALL, "moves": [[6, {"node-0": [0, 20], "node-1": [20, 50]}]]}
"""After version 6, node-1 makes what node-2 made before."""


def to_the_head(number: int, ended: float, *sources: tuple[str, int]) -> list[Any]:
    """The head fetches that version from these hosts, and then its worker has it."""
    return [*(version(number, ended, "node-0", *source) for source in sources), taken(0, number, ended + 0.1)]


@pytest.mark.parametrize(
    ("then", "rule"),
    [
        (to_the_head(5, 0.2, ("node-1", 20), ("node-2", 10)), None),
        (to_the_head(6, 0.2, ("node-1", 30)), None),  # it was asked for anew
        (to_the_head(6, 0.2, ("node-2", 10)), violations.FETCHED),
        (to_the_head(7, 0.2, ("node-1", 30)), None),
        (to_the_head(7, 0.2, ("node-2", 10)), violations.FETCHED),
        (to_the_head(7, 0.2), violations.FETCHED),
        ([*to_the_head(5, 0.2, ("node-1", 20), ("node-2", 10)), *to_the_head(7, 0.4, ("node-1", 30))], None),
        ([*to_the_head(6, 0.2, ("node-1", 30)), version(7, 0.4, "node-0", "node-1", 20)], None),
        ([version(number, 0.2, "node-0", "node-1", 20 + number) for number in (5, 6, 7)], violations.FETCHES),
        ([version(number, 0.2, "node-0", "node-2", 10 + number) for number in (4, 5)], violations.FETCHES),
        (of_worker(1, SLICES[0]), None),
        (of_worker(1, *SLICES), None),
        (of_worker(1, SLICES[1]), violations.FETCHED),
    ],
)
def test_hosts_fetch_from_those_that_make_versions_now_what_they_had_not_fetched_as_a_range_moved(
    tmp_path: Path, then: list[Any], rule: str | None
) -> None:
    assert broken_rule(tmp_path / "run", [*THREE_AT_0, *then], MOVED) == rule


@pytest.mark.real_run
def test_a_replay_fetches_nothing(real: Path) -> None:
    with closing(sqlite3.connect(real / "ledger.sqlite")) as database, database:
        database.execute("INSERT INTO run VALUES ('replay_of', ?)", (json.dumps("before"),))
    with closing((opened := open_run(real, registry())).ledger), pytest.raises(Violation, match="a fetch brings"):
        fetches(Checking(opened))
