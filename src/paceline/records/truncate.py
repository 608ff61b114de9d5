"""Cuts a run's ledger at a snapshot, so that the run can go on from there as if nothing had come after it.

What came after the snapshot is undone. It is first written to a ledger of its own. Then one transaction removes it from
the run's ledger. So a process that is killed meanwhile leaves the whole ledger or the cut one, and a second cut gives
the same result.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, RunFailed
from paceline.files import to_disk
from paceline.records.ledger import MARKED, SCHEMA, TABLES, connect
from paceline.records.reading import LEDGER, SUMMARY, is_written
from paceline.records.segments import ASKED, OF_ONE, Stretch, undone_before
from paceline.records.snapshots import SNAPSHOTS, Snapshot, newest

_LAST_STEPS = """
    CREATE TEMP TABLE last_steps AS SELECT worker, max(step) AS step FROM (
        SELECT worker, step FROM facts WHERE kind = 'GradientReady' AND id <= :fact
        UNION ALL SELECT worker, step FROM orders WHERE kind = 'StepReplica' AND fact <= :fact
    ) GROUP BY worker
"""
"""By worker: the last step that is in the snapshot."""

_OF_A_STEP = ("pushes", "batches", "step_times", "undone", "scalars")
_OF_A_VERSION = ("checksums", "commits", "versions", "evaluations", "consensus")
_UNDONE = {
    "facts": "id > :fact",
    "orders": "fact > :fact",
    "fetches": "fact > :fact",
    "agreed": "fact > :fact",
    "marks": "snapshot > :fact",
    "segments": "fact > :fact",
    **{
        table: f"step > coalesce((SELECT step FROM temp.last_steps WHERE worker = {table}.worker), -1)"
        for table in _OF_A_STEP
    },
    **dict.fromkeys(_OF_A_VERSION, "version > :version"),
    **{table: f"rowid > (SELECT {table} FROM marks WHERE snapshot = :fact)" for table in MARKED},
}
"""By table: the SQL condition of rows that came after the snapshot.

A step's row stays if the step's gradient was ready, and a version's row stays if the snapshot has the version, whenever
the row was written.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The result of cutting a ledger."""

    segment: int
    """The number of the next segment."""
    at: float
    """The last moment in the cut ledger, in seconds since the run's start. The run's clock goes on from it."""
    undone: Stretch
    """What came after the snapshot, with what earlier cuts undid if no segment has trained since."""


def cut(folder: Path, fact: int, version: int) -> Cut:
    """Cut the ledger of the run in this folder at the snapshot of this version that was taken after this fact.

    Raises ConfigError, in one line, if the run is still going on, or if the ledger ends before the snapshot. An earlier
    snapshot may do then. Raises RunFailed if the ledger can't be written.
    """
    path = folder / LEDGER
    _refuse_if_written(folder)
    connect(path).close()  # rolls back what was half written
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as ledger:
            return _cut(folder, ledger, {"fact": fact, "version": version})
    except (sqlite3.Error, OSError) as error:
        raise RunFailed(f"{path}: the ledger cannot be cut: {error}; is the disk full, or the folder gone?") from error


def _refuse_if_written(folder: Path) -> None:
    if is_written(folder):
        raise ConfigError(f"{folder}: this run is still going on; try again when it has ended")


def newest_to_go_on_from(folder: Path) -> tuple[Snapshot | None, list[str]]:
    """Return the newest snapshot at which the ledger of the run in this folder can be cut.

    Return a line on each newer one that is passed over, too.
    """
    return newest(folder, lambda state: _why_not(folder, state.fact, state.version))


def _why_not(folder: Path, fact: int, version: int) -> str:
    """Return why the ledger of the run in this folder can't be cut at this snapshot; empty if it can."""
    with closing(connect(folder / LEDGER)) as ledger:
        try:
            _look_at(folder, ledger, {"fact": fact, "version": version})
        except ConfigError as error:
            return str(error).partition(": ")[2]
    return ""


def _cut(folder: Path, ledger: sqlite3.Connection, point: dict[str, int]) -> Cut:
    _look_at(folder, ledger, point)
    ledger.execute(_LAST_STEPS, point)
    begun = "SELECT count(*) FROM segments WHERE at IS NOT NULL AND fact <= :fact"
    (number,) = ledger.execute(begun, point).fetchone()
    earlier = dict(undone_before(ledger))
    files = [file for undone in earlier.values() for file in undone.files]
    undone = sum((earlier[one] for one in earlier if one >= number), Stretch())  # these segments are undone, too
    at, present = _last_moment(ledger, point), _undone(ledger, point)
    if present.facts or _more(ledger, point):
        file = next(name for name in _names(number) if name not in files)
        _write_aside(folder, file, ledger, point)
        present += Stretch(files=(file,))
    undone += present
    _move(folder / SUMMARY, folder / f"undone-{number}")  # first: a run with a summary has an end
    _take_away(folder, ledger, point, number, at, undone)
    _move_versions(folder, point["version"], number)
    return Cut(segment=number, at=at, undone=undone)


def _look_at(folder: Path, ledger: sqlite3.Connection, point: dict[str, int]) -> None:
    """Raise ConfigError if the ledger lacks a part of the snapshot, as a killed run loses its last moments."""
    what = f"{folder}: its ledger lacks a part of {SNAPSHOTS}/{point['fact']:08d}"
    if ledger.execute("SELECT 1 FROM marks WHERE snapshot = :fact", point).fetchone() is None:
        raise ConfigError(f"{what}; only an earlier snapshot may do")
    made = (f"SELECT 1 FROM {table} WHERE version = :version" for table in ("commits", "checksums", "versions"))
    if point["version"] and not any(ledger.execute(query, point).fetchone() for query in made):
        raise ConfigError(f"{what}: version {point['version']} is not noted as made; only an earlier one may do")


def _last_moment(ledger: sqlite3.Connection, point: dict[str, int]) -> float:
    """Return the snapshot's moment, or when its version was made and recorded, which may be a little later."""
    moments = (
        "SELECT at FROM facts WHERE id = :fact",
        "SELECT max(at) FROM commits WHERE version <= :version",
        "SELECT max(at) FROM versions WHERE version <= :version",
    )
    return max(found or 0.0 for query in moments for (found,) in ledger.execute(query, point))


def _undone(ledger: sqlite3.Connection, point: dict[str, int]) -> Stretch:
    """Count what came after the snapshot."""

    def one(query: str) -> Any:
        return ledger.execute(query, point).fetchone()[0]

    facts = one("SELECT count(*) FROM facts WHERE id > :fact")
    made = one("SELECT count(*) FROM orders WHERE kind = 'ApplyUpdate' AND fact > :fact")
    gradients = "FROM facts WHERE kind = 'GradientReady' AND id > :fact"
    uncounted = one(f"SELECT count(*) {gradients} AND json_extract(body, '$.samples') IS NULL")
    samples = one(f"SELECT coalesce(sum(json_extract(body, '$.samples')), 0) {gradients}")
    seconds = one("SELECT max(at) - (SELECT at FROM facts WHERE id = :fact) FROM facts")
    return Stretch(
        versions=made or one("SELECT count(*) FROM versions WHERE version > :version"),
        samples=None if uncounted else samples,
        seconds=max(0.0, seconds or 0.0),
        facts=facts,
    )


def _more(ledger: sqlite3.Connection, point: dict[str, int]) -> bool:
    """Whether any table but `segments` has rows that came after the snapshot."""
    rest = {table: which for table, which in _UNDONE.items() if table != "segments"}
    queries = (f"SELECT 1 FROM {table} WHERE {which} LIMIT 1" for table, which in rest.items())
    return any(ledger.execute(query, point).fetchone() for query in queries)


def _names(number: int) -> Iterator[str]:
    """Yield names for the ledger of what is undone. Later ones are for a segment that is undone again."""
    yield f"undone-{number}.sqlite"
    yield from (f"undone-{number}-{more}.sqlite" for more in count(2))


def _write_aside(folder: Path, name: str, ledger: sqlite3.Connection, point: dict[str, int]) -> None:
    """Write a ledger of what came after the snapshot, whole or not at all."""
    part, file = folder / f".{name}.part", folder / name
    for left in (part, part.with_name(f"{part.name}-journal")):
        left.unlink(missing_ok=True)
    with closing(sqlite3.connect(part)) as aside:
        aside.executescript(f"PRAGMA user_version = {SCHEMA}; {TABLES}")
    ledger.execute("ATTACH ? AS aside", (str(part),))
    ledger.execute("PRAGMA aside.synchronous = FULL")
    ledger.execute("BEGIN")
    ledger.execute("INSERT INTO aside.run SELECT * FROM main.run")
    for table, which in _UNDONE.items():
        ledger.execute(f"INSERT INTO aside.{table} SELECT * FROM main.{table} WHERE {which}", point)
    ledger.execute("COMMIT")
    ledger.execute("DETACH aside")
    part.rename(file)
    to_disk(folder)


def _take_away(
    folder: Path, ledger: sqlite3.Connection, point: dict[str, int], number: int, at: float, undone: Stretch
) -> None:
    """Remove what came after the snapshot, and note the next segment, in one transaction."""
    ledger.execute("PRAGMA synchronous = FULL")
    ledger.execute("BEGIN IMMEDIATE")
    _refuse_if_written(folder)  # another process may have gone on with it meanwhile
    for table, which in _UNDONE.items():
        ledger.execute(f"DELETE FROM {table} WHERE {which}", point)
    _shorten(ledger, at)
    notes = {key: json.loads(value) for key, value in ledger.execute("SELECT key, value FROM run")}
    ledger.execute(
        "UPDATE segments SET notes = ? WHERE segment = ? AND notes IS NULL",
        (json.dumps({key: notes[key] for key in (*OF_ONE, *ASKED) if key in notes}), number - 1),
    )
    ledger.execute(f"DELETE FROM run WHERE key IN ({', '.join('?' * len(OF_ONE))})", OF_ONE)
    if "unmeasured" in notes:
        rest = [version for version in notes["unmeasured"] if version <= point["version"]]
        ledger.execute("UPDATE run SET value = ? WHERE key = 'unmeasured'", (json.dumps(rest),))
    columns = "segment, fact, snapshot, undone_versions, undone_samples, undone_seconds, undone_facts, undone_files"
    counts = (undone.versions, undone.samples, undone.seconds, undone.facts, json.dumps(undone.files))
    places = ", ".join("?" * 8)
    row = (number, point["fact"] + 1, point["fact"], *counts)
    ledger.execute(f"INSERT INTO segments ({columns}) VALUES ({places})", row)
    ledger.execute("COMMIT")


def _shorten(ledger: sqlite3.Connection, at: float) -> None:
    """End each worker's last step where the run's clock goes on. Its later waits are undone."""
    parts = ("wait", "pull", "push")
    rows = ledger.execute(
        f"SELECT rowid, began + compute + push + wait + pull, {', '.join(parts)} FROM step_times "
        "WHERE (worker, step) IN (SELECT worker, step FROM temp.last_steps)"
    ).fetchall()
    for row, ended, *seconds in rows:
        for name, value in zip(parts, seconds, strict=True):
            less = min(value, max(0.0, ended - at))
            ended -= less
            if less:
                ledger.execute(f"UPDATE step_times SET {name} = ? WHERE rowid = ?", (value - less, row))


def _move_versions(folder: Path, version: int, number: int) -> None:
    """Move the files of undone versions aside, and remove the final version."""
    versions = folder / "versions"
    (versions / "final.safetensors").unlink(missing_ok=True)
    for file in sorted(versions.glob("*.safetensors")):
        if file.stem.isdecimal() and int(file.stem) > version:
            _move(file, folder / f"undone-{number}")


def _move(file: Path, folder: Path) -> None:
    """Move this file, if it exists, into this folder."""
    if file.exists():
        folder.mkdir(exist_ok=True)
        file.replace(folder / file.name)
        to_disk(folder)
