"""Checks the table of segments against the facts, the snapshots' marks and the undone ledgers."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.records.check.checking import Checking
from paceline.records.ledger import MARKED, connect
from paceline.records.segments import Segment, Stretch
from paceline.records.violations import GOES_ON, SEGMENTS, Violation

SETTINGS = ("workers", "protocol", "environment")
"""Columns that the newest segment's row has in common with the table `run`."""


def segments(checking: Checking) -> None:
    """Check that each segment has a row and a fact, and that undone ledgers have as many facts as were undone."""
    _marks(checking)
    checking.table = "segments"
    _rows(checking)
    several = checking.run.segments
    if not several:
        return
    _newest(checking, several[-1])
    for segment in several[1:]:
        checking.row = segment.number
        _files(checking, segment)
    checking.row = None
    if len(several) > 1:
        points = ", ".join(str(segment.snapshot) for segment in several[1:])
        checking.proved.append(
            f"{len(several)} segments: the run went on from the snapshots after fact {points}, and "
            f"{sum((one.undone for one in several), Stretch())} were undone"
        )


def _rows(checking: Checking) -> None:
    ledger = checking.run.ledger
    began = iter(
        ledger.execute("SELECT id, at, version FROM facts WHERE kind = 'TrainingBegan' ORDER BY id").fetchall()
    )
    columns = "segment, fact, at, version, workers, snapshot, notes"
    undone = "undone_versions, undone_samples, undone_seconds, undone_facts, undone_files"
    rows = ledger.execute(f"SELECT {columns}, {undone} FROM segments ORDER BY segment").fetchall()
    for number, row in enumerate(rows):
        segment, fact, at, version, workers, snapshot, notes, *amounts = row
        checking.row = segment
        last = number == len(rows) - 1
        if segment != number:
            raise Violation(SEGMENTS, f"segment {number}", f"segment {segment}")
        if at is None:
            trained = checking.end is not None and checking.end.get("outcome") in ("completed", "diverged")
            if not last or fact != checking.counts["facts"] + 1 or trained:  # else its scripts may have failed before
                raise Violation(SEGMENTS, "when it began", at)
        elif (found := next(began, None)) != (fact, at, version):
            expected = "no further one" if found is None else f"fact, at, version = {found}"
            raise Violation(SEGMENTS, expected, (fact, at, version))
        if at is not None and not (isinstance(workers, int) and workers > 0):
            raise Violation(SEGMENTS, "how many workers there were to be", workers)
        if last != (notes is None) and not (last and at is None):
            raise Violation(SEGMENTS, "notes of every segment but the newest", notes)
        _goes_on(checking, number, fact, snapshot, amounts)
    checking.row = None
    if (missing := next(began, None)) is not None:
        raise Violation(SEGMENTS, f"a segment that begins with fact {missing[0]}", "none")


def _goes_on(checking: Checking, number: int, fact: int, snapshot: Any, amounts: list[Any]) -> None:
    """Check that a later segment goes on from the fact before its own, and the first from nothing."""
    if number == 0:
        if snapshot is not None or any(one is not None for one in amounts):
            raise Violation(SEGMENTS, "nothing undone before the first segment", (snapshot, *amounts))
        return
    marked = checking.run.ledger.execute("SELECT 1 FROM marks WHERE snapshot = ?", (snapshot,)).fetchone()
    if snapshot != fact - 1 or marked is None:
        raise Violation(GOES_ON, f"a snapshot after fact {fact - 1}, with its mark", snapshot)
    versions, samples, seconds, facts, _ = amounts
    whole = [one for one in (versions, 0 if samples is None else samples, facts) if isinstance(one, int) and one >= 0]
    if len(whole) < 3 or not (isinstance(seconds, float | int) and 0 <= seconds < math.inf):
        raise Violation(SEGMENTS, "how much was undone: 0 or more", tuple(amounts[:-1]))


def _newest(checking: Checking, segment: Segment) -> None:
    """Check that the newest segment's row agrees with the table `run`."""
    row = checking.run.ledger.execute(
        f"SELECT {', '.join(SETTINGS)} FROM segments WHERE segment = ?", (segment.number,)
    ).fetchone()
    if row is None or checking.resumed_in_vain:  # else the table is about a segment that has not trained
        return
    checking.row = segment.number
    for key, value in zip(SETTINGS, row, strict=True):
        found = json.loads(value) if isinstance(value, str) else value
        if found != checking.run.config.get(key):
            raise Violation(SEGMENTS, f"{key} = {checking.run.config.get(key)}, as the table run has it", found)
    kinds = {(one.choice.has_store, one.choice.has_replicas) for one in checking.run.segments}
    if len(kinds) > 1:
        raise Violation(SEGMENTS, "parameters in a store, or in replicas", "both")


def _files(checking: Checking, segment: Segment) -> None:
    """Check the number of facts in the undone ledgers. A missing ledger is no inconsistency."""
    paths = [checking.run.folder / file for file in segment.undone.files]
    if strange := [file for file in segment.undone.files if Path(file).name != file]:
        raise Violation(SEGMENTS, "ledgers in the run's folder", strange[0])
    if not paths and segment.undone.facts:
        raise Violation(SEGMENTS, f"a ledger of the {segment.undone.facts} facts that were undone", "none")
    if not all(path.is_file() for path in paths):
        return
    facts = 0
    for path in paths:
        try:
            with closing(connect(path)) as aside:
                facts += aside.execute("SELECT count(*) FROM facts").fetchone()[0]
        except (ConfigError, sqlite3.Error) as error:
            raise Violation(SEGMENTS, f"a ledger in {path.name}", error) from None
    if facts != segment.undone.facts:
        found = f"{facts} in {', '.join(segment.undone.files)}"
        raise Violation(SEGMENTS, f"{segment.undone.facts} facts that were undone", found)


def _marks(checking: Checking) -> None:
    """Check that marks ascend, and that none is beyond the tables' ends."""
    checking.table = "marks"
    before = (0,) * (1 + len(MARKED))
    ledger = checking.run.ledger
    last = [ledger.execute(f"SELECT coalesce(max(rowid), 0) FROM {table}").fetchone()[0] for table in MARKED]
    most = (checking.counts["facts"], *last)
    for row in ledger.execute(f"SELECT snapshot, {', '.join(MARKED)} FROM marks ORDER BY snapshot"):
        checking.row = row[0]
        for name, least, found, greatest in zip(("snapshot", *MARKED), before, row, most, strict=True):
            if not isinstance(found, int) or not least <= found <= greatest:
                raise Violation(SEGMENTS, f"{name} from {least} to {greatest}", found)
        before = row
    checking.row = None
