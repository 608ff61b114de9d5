"""Opens a run's folder: its configuration, its ledger, and its summary if the run has ended."""

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

from paceline.core.agreements import Call, Value
from paceline.core.choice import Choice
from paceline.core.facts import Fact
from paceline.core.machine import Spec
from paceline.core.orders import Order
from paceline.core.phrases import error_line
from paceline.core.reasons import Why
from paceline.errors import ConfigError, ProtocolViolation
from paceline.files import opened_record
from paceline.records.comparison import COMPARISON
from paceline.records.ledger import connect, read_facts
from paceline.records.run_model import RunModel
from paceline.records.segments import Segment, choice_of, segment_at, segments_of, undone_before
from paceline.records.summary import MOVED, Summary, Tally, Target, read
from paceline.records.times import FetchTimes, StepTimes
from paceline.records.update_outcomes import UpdateOutcomes
from paceline.records.waits import Waits
from paceline.scenario.scenario import Scenario
from paceline.scenario.scenario_file import from_plain

LEDGER, SUMMARY = "ledger.sqlite", "summary.json"
"""The two files of a run's folder that say how the run went."""
HEAD = b"SQLite format 3\0"
SHOWN = 6
"""Runs of a folder that a message names."""


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
"""Errors from reading a record that no run has written."""


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Turn errors from malformed records of this run into ConfigError, in one line."""
    try:
        yield
    except MALFORMED as error:
        raise ConfigError(f"{folder}: its ledger can't be read ({error_line(error)}); see paceline check") from error


class LedgerDamaged(ConfigError):
    """SQLite can't read the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A recorded run, real or simulated. Close `ledger` after use."""

    folder: Path
    choice: Choice
    """The protocol that the newest segment began with."""
    segments: Sequence[Segment]
    """The segments that have begun, in order; one if the run was never resumed."""
    workers: int
    """The configured workers. The facts say which took part."""
    seed: int
    scenario: Scenario
    config: Mapping[str, Any]
    """The ledger's table `run`, by key, without `end`."""
    simulated: bool
    ledger: sqlite3.Connection
    """For reading only."""
    end: Any
    """The ledger's note `end`; None if the run crashed."""
    summary: Summary | None
    """None if the run crashed."""

    @property
    def ended(self) -> bool:
        """Whether the run reached its end. If not, the ledger lacks its last moments."""
        return self.summary is not None

    def sentence(self, why: Why, at: float) -> str:
        """Write out the reason of an order from that moment."""
        return segment_at(self.segments, at).choice.sentence(why)

    def scenario_of(self, segment: Segment) -> Scenario:
        """Return the scenario of this segment. A resumed run may have another scenario, or other hosts."""
        noted = segment.notes.get("scenario")
        return self.scenario if noted is None else from_plain(noted, str(self.folder))

    @property
    def targets(self) -> list[Target]:
        return [Target.parse(text) for text in self.config.get("targets", ())]

    @property
    def metrics(self) -> list[str]:
        """The targets' metrics."""
        return [target.metric for target in self.targets]

    @property
    def unended(self) -> str:
        """A line for the user if the run crashed; else empty."""
        if self.ended:
            return ""
        return f"{self.folder}: the run crashed before its end; this is what its ledger has, up to there"

    def history(self) -> Iterator[tuple[Fact, tuple[Order, ...]]]:
        """Yield every fact with its orders, `why` included, in their order."""
        return read_facts(self.folder / LEDGER)


def model_of(ledger: sqlite3.Connection, waits: Waits | None = None) -> RunModel:
    """Return a model for the history of this ledger's run. It follows the waits if `waits` is given."""
    undone = frozenset(ledger.execute("SELECT worker, step FROM undone"))
    return RunModel(waits=waits, outcomes=UpdateOutcomes(undone=undone))


def measure(
    ledger: sqlite3.Connection,
    tally: Tally,
    at: Callable[[str], None] = lambda table: None,
    *,
    metrics: Collection[str] = (),
) -> None:
    """Add the ledger's measurements to a tally that has its facts. `at` is called with each table.

    `metrics`: those of the run's targets. Logged values of these count, too.
    """
    at("step_times")
    parts = "compute, push, wait, pull, other, to_device, from_device"
    steps = f"SELECT worker, step, began, {parts} FROM step_times ORDER BY rowid"
    for worker, step, *times in ledger.execute(steps):
        if worker in tally.model.hosts:
            tally.step_times(worker, step, StepTimes(*times))
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
    for version in note(ledger, "unmeasured", []):  # `evaluate` gave no metric for these
        tally.evaluated(version, {})
    at("scalars")
    for row in logged_of(ledger, metrics):
        tally.logs(*row)
    for row in logged_ends(ledger):
        tally.logs_any(*row)
    at("consensus")
    for row in ledger.execute("SELECT version, at, distance FROM consensus ORDER BY rowid"):
        tally.consensus(*row)
    at("segments")
    for _, undone in undone_before(ledger):
        tally.undone_before += undone


LoggedValue = tuple[str, int, int, int, float, float]
"""Metric, worker, step, version, moment and value. The version is the one that the worker's step was released on."""


def logged_of(ledger: sqlite3.Connection, metrics: Collection[str]) -> Iterator[LoggedValue]:
    """Yield logged values of these metrics, in order."""
    names = sorted(set(metrics))
    if names:
        yield from _logged(ledger, f"name IN ({', '.join('?' * len(names))})", names)


def logged_ends(ledger: sqlite3.Connection) -> Iterator[LoggedValue]:
    """Yield the first and the last logged value of every metric, in order."""
    if ledger.execute("SELECT 1 FROM scalars LIMIT 1").fetchone():
        ends = "SELECT min(rowid) AS row FROM scalars GROUP BY name UNION SELECT max(rowid) FROM scalars GROUP BY name"
        yield from _logged(ledger, f"scalars.rowid IN ({ends})", ())


def _logged(ledger: sqlite3.Connection, condition: str, values: Sequence[str]) -> Iterator[LoggedValue]:
    """Yield the logged values for which this condition of SQL holds, in order."""
    rows = ledger.execute(
        f"""
        WITH RECURSIVE released (worker, step, version, id, further) AS (
            SELECT worker, step, version, id, coalesce(json_extract(body, '$.steps'), 1) - 1
            FROM orders WHERE kind = 'Release'
            UNION ALL SELECT worker, step + 1, version, id, further - 1 FROM released WHERE further > 0
        )
        SELECT name, worker, step, version, at, value FROM scalars
        JOIN (SELECT worker, step, version, max(id) FROM released GROUP BY worker, step) USING (worker, step)
        WHERE {condition} ORDER BY scalars.rowid
        """,
        values,
    )
    for *row, value in rows:
        yield (*row, math.nan if value is None else value)


def read_fetches(ledger: sqlite3.Connection) -> Iterator[FetchTimes]:
    """Yield every fetch between hosts, in the order of their ends."""
    columns = ("host", "source", "kind", "worker", "number", "bytes", "began", "ended")
    for row in ledger.execute(f"SELECT {', '.join(columns)} FROM fetches ORDER BY rowid"):
        yield FetchTimes(**dict(zip(columns, row, strict=True)))


def note(ledger: sqlite3.Connection, key: str, default: Any) -> Any:
    """Return what the run noted under this key of the table `run`."""
    row = ledger.execute("SELECT value FROM run WHERE key = ?", (key,)).fetchone()
    return default if row is None else json.loads(row[0])


def moved(ledger: sqlite3.Connection) -> dict[str, float]:
    """Return the CPU seconds that moving bytes has taken, by host, as the run noted them."""
    found = note(ledger, MOVED, {})
    known = found.items() if isinstance(found, dict) else ()
    return {host: seconds for host, seconds in known if isinstance(seconds, int | float)}


def tally_of(path: Path, metrics: Collection[str] = ()) -> Tally:
    """Return the tally of the run with this ledger. A resumed run counts on from there.

    `metrics`: those of its targets.
    """
    with closing(connect(path)) as ledger:
        tally = Tally(model_of(ledger))
        for fact, orders in read_facts(path):
            tally.record(fact, orders)
        measure(ledger, tally, metrics=metrics)
    return tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What the next segment of a resumed run needs from the ledger, once that is cut at the snapshot."""

    recorded: dict[int, str]
    """By recorded version: the hash of its parameters."""
    went_on_from: set[int]
    """Facts from whose snapshots segments of the run began."""
    epoch_samples: int | None
    """Samples in its first epoch; None if no epoch was opened, or they are not counted."""
    agreed: dict[Call, Value]
    """The results of `agree`, by call."""


def read_before(folder: Path) -> Before:
    """Read this from the ledger in that folder."""
    with closing(connect(folder / LEDGER)) as ledger:
        first = ledger.execute("SELECT expected FROM epochs ORDER BY rowid LIMIT 1").fetchone()
        snapshots = ledger.execute("SELECT snapshot FROM segments WHERE snapshot IS NOT NULL")
        return Before(
            recorded=dict(ledger.execute("SELECT version, sha256 FROM versions")),
            went_on_from={fact for (fact,) in snapshots},
            epoch_samples=first[0] if first else None,
            agreed={
                Call(epoch, nth): json.loads(result)
                for epoch, nth, result in ledger.execute("SELECT epoch, nth, result FROM agreed")
            },
        )


def open_run(folder: Path, known: Mapping[str, Spec]) -> RecordedRun:
    """Open the run in this folder. `known` is the registry of protocols.

    Raises LedgerDamaged if the ledger can't be read. Raises ConfigError if the folder is no run's, the run is still
    going on, the schema is another version's, or the protocol or a parameter is unknown. Each message is one line.
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
    """Say what the folder has instead of a run, and what to name."""
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
    """Whether a process writes this folder's ledger now. It keeps the folder locked while it lives."""
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
    """Open the ledger. Raises LedgerDamaged for a damaged ledger, and ConfigError for a file that never was one."""
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
