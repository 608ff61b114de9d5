"""How every command opens a run's folder: what was run, its ledger, and its summary if the run has ended."""

from __future__ import annotations

import fcntl
import json
import math
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from paceline.core.choice import Choice
from paceline.core.facts import Fact
from paceline.core.machine import Spec
from paceline.core.orders import Order, Why
from paceline.errors import ConfigError, ProtocolViolation
from paceline.files import opened_record
from paceline.records.comparison import COMPARISON
from paceline.records.ledger import connect, read_facts
from paceline.records.segments import Segment, choice_of, segment_at, segments_of, undone_before
from paceline.records.summary import MOVED, Summary, Tally, Target, read
from paceline.records.times import Fetch, StepTimes
from paceline.scenario.scenario import Scenario
from paceline.scenario.scenario_file import from_plain

LEDGER, SUMMARY = "ledger.sqlite", "summary.json"
"""The two files of a run's folder that say how it went."""
HEAD = b"SQLite format 3\0"
SHOWN = 6
"""How many runs of a folder a message names."""


MALFORMED = (
    sqlite3.Error,
    msgspec.MsgspecError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    ProtocolViolation,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that reading a record may raise, if it was not written by a run."""


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn errors from a malformed record of that run into ConfigError, in one line."""
    try:
        yield
    except MALFORMED as error:
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(f"{folder}: its ledger can't be read ({what}); see paceline check") from error


class LedgerDamaged(ConfigError):
    """There is a ledger, but SQLite can't read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run that was made, real or simulated. Close `ledger` when done with it."""

    folder: Path
    choice: Choice
    """The protocol that the run began with; of a run of several segments, its newest one."""
    segments: Sequence[Segment]
    """Those that have begun, in order; one if the run was never resumed."""
    workers: int
    """How many workers there were to be. The facts say which took part."""
    seed: int
    scenario: Scenario
    config: Mapping[str, Any]
    """All that the ledger's table `run` has, by key, except its end."""
    simulated: bool
    ledger: sqlite3.Connection
    """For reading only."""
    end: Any
    """What the ledger noted as the run came to its end; None if it crashed before."""
    summary: Summary | None
    """None if the run ended before it could write one."""

    @property
    def ended(self) -> bool:
        """Whether the run came to its end. If not, its ledger has all but its last moments."""
        return self.summary is not None

    def sentence(self, why: Why, at: float) -> str:
        """Write out a reason of an order that was given at that moment."""
        return segment_at(self.segments, at).choice.sentence(why)

    def scenario_of(self, segment: Segment) -> Scenario:
        """What the machines were like in that segment: a run may go on with another scenario, or on other hosts."""
        noted = segment.notes.get("scenario")
        return self.scenario if noted is None else from_plain(noted, str(self.folder))

    @property
    def targets(self) -> list[Target]:
        """The targets that the run was given."""
        return [Target.parse(text) for text in self.config.get("targets", ())]

    @property
    def metrics(self) -> list[str]:
        """What they are of."""
        return [target.metric for target in self.targets]

    @property
    def unended(self) -> str:
        """A line for the reader if the run did not come to its end; else empty."""
        if self.ended:
            return ""
        return f"{self.folder}: the run crashed before its end; this is what its ledger has, up to there"

    def history(self) -> Iterator[tuple[Fact, tuple[Order, ...]]]:
        """Every fact with its orders, `why` included, in the order in which they were recorded."""
        return read_facts(self.folder / LEDGER)


def measure(
    ledger: sqlite3.Connection,
    tally: Tally,
    at: Callable[[str], None] = lambda table: None,
    *,
    metrics: Collection[str] = (),
) -> None:
    """Tell the tally what the ledger's tables have measured. It knows the facts already. `at` is told each table.

    `metrics` are those of the run's targets: what scripts logged of these counts, too.
    """
    at("step_times")
    parts = "compute, push, wait, pull, other, to_device, from_device"
    steps = f"SELECT worker, began, {parts} FROM step_times ORDER BY rowid"
    for worker, *times in ledger.execute(steps):
        if worker in tally.shares:
            tally.step_times(worker, StepTimes(*times))
    at("fetches")
    for fetch in read_fetches(ledger):
        tally.fetched(fetch)
    at("run")
    tally.moved(moved(ledger))
    at("versions")
    for row in ledger.execute("SELECT version, at, samples FROM versions ORDER BY rowid"):
        tally.recorded(*row)
    at("evaluations")
    for version, metric, value in ledger.execute("SELECT version, metric, value FROM evaluations ORDER BY rowid"):
        tally.evaluated(version, {metric: value})
    for version in unmeasured(ledger):
        tally.evaluated(version, {})
    at("scalars")
    for row in logged_of(ledger, metrics):
        tally.logs(*row)
    at("consensus")
    for row in ledger.execute("SELECT version, at, distance FROM consensus ORDER BY rowid"):
        tally.consensus(*row)
    at("segments")
    for _, undone in undone_before(ledger):
        tally.undone_before += undone


def logged_of(
    ledger: sqlite3.Connection, metrics: Collection[str]
) -> Iterator[tuple[str, int, int, int, float, float]]:
    """What scripts logged of these metrics, in that order: metric, worker, step, version, moment and value.

    A value is of the version that its worker's step was released on.
    """
    names = sorted(set(metrics))
    rows = ledger.execute(
        f"""
        SELECT name, worker, step, version, at, value FROM scalars
        JOIN (SELECT worker, step, version, max(id) FROM orders WHERE kind = 'Release' GROUP BY worker, step)
            USING (worker, step)
        WHERE name IN ({", ".join("?" * len(names))}) ORDER BY scalars.rowid
        """,
        names,
    )
    for *row, value in rows:
        yield (*row, math.nan if value is None else value)


def read_fetches(ledger: sqlite3.Connection) -> Iterator[Fetch]:
    """Every fetch of a run on several hosts, in the order in which they ended."""
    columns = ("host", "source", "kind", "worker", "number", "bytes", "began", "ended")
    for row in ledger.execute(f"SELECT {', '.join(columns)} FROM fetches ORDER BY rowid"):
        yield Fetch(**dict(zip(columns, row, strict=True)))


def moved(ledger: sqlite3.Connection) -> dict[str, float]:
    """By host: the time of processors that moving bytes has taken, as the run has noted it."""
    row = ledger.execute("SELECT value FROM run WHERE key = ?", (MOVED,)).fetchone()
    found = {} if row is None else json.loads(row[0])
    known = found.items() if isinstance(found, dict) else ()
    return {host: seconds for host, seconds in known if isinstance(seconds, int | float)}


def tally_of(path: Path, metrics: Collection[str] = ()) -> Tally:
    """What a tally knows of the run with this ledger: a run that goes on in the ledger counts on from there.

    `metrics`: those of its targets.
    """
    with closing(connect(path)) as ledger:
        tally = Tally(left_undone=frozenset(ledger.execute("SELECT worker, step FROM undone")))
        for fact, orders in read_facts(path):
            tally.record(fact, orders)
        measure(ledger, tally, metrics=metrics)
    return tally


def unmeasured(ledger: sqlite3.Connection) -> Any:
    """The list of recorded versions for which the script's `evaluate` gave no metric, as a run writes it."""
    row = ledger.execute("SELECT value FROM run WHERE key = 'unmeasured'").fetchone()
    return [] if row is None else json.loads(row[0])


def open_run(folder: Path, known: Mapping[str, Spec]) -> RecordedRun:
    """Open the run in that folder. `known` is the registry of protocols.

    Raises LedgerDamaged if its ledger can't be read, and ConfigError, both in one line, for a folder that is no run,
    for a run that is still going on, for one of another version's schema, and for one that knows protocols or
    parameters that this version does not.
    """
    path = folder / LEDGER
    if not path.is_file():
        raise ConfigError(f"{folder}: {_missing(folder)}")
    summary = read(folder / SUMMARY) if (folder / SUMMARY).exists() else None
    if summary is None and is_written(folder):
        raise ConfigError(f"{folder}: this run is still going on; try again when it has ended")
    ledger = _connected(path)
    try:
        config = _config(ledger, path)
        segments = segments_of(ledger, config, known)
        end = config.pop("end", None)
        return RecordedRun(
            folder=folder,
            choice=choice_of(config, known),
            segments=segments,
            workers=int(config["workers"]),
            seed=int(config["seed"]),
            scenario=from_plain(config["scenario"], str(folder)),
            config=config,
            simulated=bool(config.get("simulated")),
            ledger=ledger,
            end=end,
            summary=summary,
        )
    except ConfigError as error:
        ledger.close()
        if isinstance(error, LedgerDamaged) or str(error).startswith(str(folder)):
            raise
        raise ConfigError(f"{folder}: {error}") from None
    except MALFORMED as error:
        ledger.close()
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{folder}: what its ledger says of the run can't be read ({what})") from error


def _missing(folder: Path) -> str:
    """What the folder has instead of a run, and what to name."""
    if not folder.exists():
        return "there is no such folder; name a run's folder"
    if not folder.is_dir():
        return "it is a file; name a run's folder"
    comparison = (folder / COMPARISON).is_file()
    what = "it is a comparison's folder" if comparison else f"there is no {LEDGER} in it"
    runs = sorted(found.parent.name for found in folder.glob(f"*/{LEDGER}"))
    if not runs:
        return f"{what}; name a run's folder"
    more = f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else ""
    return f"{what}; name one of the runs below it: {', '.join(runs[:SHOWN])}{more}"


def is_written(folder: Path) -> bool:
    """Whether a process writes that folder's ledger now: it keeps the folder locked as long as it lives."""
    with suppress(OSError):
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(directory, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(directory)
    return False


def _connected(path: Path) -> sqlite3.Connection:
    """See `connect`. A damaged ledger is told from a file that never was one."""
    try:
        with opened_record(path) as file:
            is_database = file.read(len(HEAD)) == HEAD
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a run's folder that can be read") from error
    try:
        return connect(path)
    except ConfigError as error:
        if is_database and (why := error.__cause__):
            raise LedgerDamaged(f"{path}: the file is damaged ({why}); it was truncated or overwritten") from error
        raise


def _config(ledger: sqlite3.Connection, path: Path) -> dict[str, Any]:
    try:
        config = {key: json.loads(value) for key, value in ledger.execute("SELECT key, value FROM run")}
    except (sqlite3.Error, TypeError, ValueError, RecursionError) as error:
        raise LedgerDamaged(f"{path}: the table run can't be read ({error})") from error
    if not config:
        raise ConfigError(f"{path.parent}: this run ended before it had written what it was to do")
    return config
