"""Checks recorded versions: that they were made and due, and how they were evaluated."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeGuard

from paceline.core.phrases import count
from paceline.records.check.checking import Checking
from paceline.records.check.versions_made import VersionsMade
from paceline.records.reading import note
from paceline.records.recording_schedule import RecordingSchedule
from paceline.records.violations import (
    CONSENSUS,
    EVALUATED,
    READABLE,
    RECORDED,
    RECORDED_DUE,
    RECORDED_SAMPLES,
    Violation,
)


def to_be_made(checking: Checking) -> VersionsMade:
    """Return the collector of what facts and orders say about the recorded versions."""
    recorded = dict(checking.run.ledger.execute("SELECT version, samples FROM versions"))
    return VersionsMade(checking.run.choice, recorded=recorded, due=_due(checking))


def _due(checking: Checking) -> RecordingSchedule | None:
    """Return when versions are due; None if the ledger has no `record`."""
    times = checking.run.config.get("record")
    if not _whole(times):
        return None
    due = RecordingSchedule(times)
    for (samples,) in checking.run.ledger.execute("SELECT expected FROM epochs WHERE expected > 0 AND first = 0"):
        due.epoch_opened(samples)
    return due


def versions(checking: Checking) -> None:
    """Check that recorded versions follow from the facts, and that all or none were evaluated."""
    checking.table = "versions"
    rows = checking.run.ledger.execute("SELECT rowid, version, at, samples, sha256, file FROM versions ORDER BY rowid")
    # a script with leased data opens an epoch, and its samples are counted
    counted = checking.run.ledger.execute("SELECT 1 FROM epochs LIMIT 1").fetchone() is not None
    recorded: dict[int, _Recorded] = {}
    newest = -1
    for number, version, at, samples, sha256, file in rows:
        checking.row = number
        if not (_whole(version) and isinstance(at, float) and (samples is None or _whole(samples))):
            raise Violation(READABLE, "numbers in version, at and samples", [version, at, samples])
        if not (isinstance(sha256, str) and len(sha256) == 64 and isinstance(file, str)):
            raise Violation(READABLE, "64 hexadecimal digits, and a file", [sha256, file])
        if not checking.trained:
            raise Violation(RECORDED, "none: no script was run", f"version {version}")
        if version <= newest:
            raise Violation(RECORDED, f"one after version {newest}", f"version {version}")
        if samples is None and counted:
            raise Violation(RECORDED_SAMPLES, f"samples of version {version}", samples)
        recorded[version] = _Recorded(number, at, samples)
        newest = version
    checking.row = None
    made = checking.made
    means = {version: one for version, one in recorded.items() if made.is_mean(version)}
    if checking.run.choice.has_store:
        ordered = {
            version: one for version, one in recorded.items() if version in made.versions or version not in means
        }
        _of_store(checking, ordered)
    if checking.run.choice.has_replicas:
        _of_means(checking, means, counted)
    _consensus(checking, recorded, means)
    _evaluations(checking, list(recorded))


class _Recorded(NamedTuple):
    """A row of `versions`."""

    row: int
    at: float
    samples: int | None


def _of_store(checking: Checking, recorded: Mapping[int, _Recorded]) -> None:
    """Check a store's versions: each was ordered, and its samples decide whether it is recorded."""
    made = checking.made
    for version, (checking.row, _, samples) in recorded.items():
        expected = made.versions.get(version, None if version else 0)
        if expected is None:
            raise Violation(RECORDED, "a version that an order made", f"version {version}")
        if samples not in (None, expected):
            raise Violation(RECORDED_SAMPLES, f"{expected} in version {version}", samples)
    checking.row = None
    if made.due is None:
        return
    due = made.expected | ({made.last} if checking.completed and not made.ends_in_replicas else set())
    so_far = math.inf if checking.completed else max(recorded, default=-1)
    # A run that is stopped records where it stands. One that is killed there may not have: see `RecordedVersions.made`.
    stops = {segment.version for segment in checking.run.segments[1:]}
    for version in sorted(due - recorded.keys() - stops):
        if version <= so_far:
            raise Violation(RECORDED_DUE, f"version {version}", "it is not there")
    if more := recorded.keys() - due - stops - {made.last, checking.until}:
        raise Violation(RECORDED_DUE, "none that is neither due nor the last", f"version {min(more)}")
    if recorded:
        as_due = f"{count(len(recorded), 'recorded version')} as they were due"
        checking.proved.append(f"{as_due}, each with as many samples as the facts say")


def _of_means(checking: Checking, recorded: Mapping[int, _Recorded], counted: bool) -> None:
    """Check means: they count up by one, each is of the replicas after some step, and the last was of all samples."""
    made = checking.made
    candidates, place = [0, *made.means, made.samples], 0
    number, ends = 0, {end for _, end in made.spans}
    for version, (checking.row, _, samples) in recorded.items():
        begin = max(begin for begin, _ in made.spans if begin < version)
        number = max(number, begin) + 1
        if version != number and version not in ends:
            raise Violation(RECORDED, f"version {number}, as means count up by one", f"version {version}")
        if samples is None:
            continue
        while place < len(candidates) and candidates[place] != samples:
            place += 1
        if place == len(candidates):
            raise Violation(RECORDED_SAMPLES, "as many as all replicas had, after some step", samples)
    checking.row = None
    goes_on = made.ends_in_replicas
    newest = max(recorded, default=0)
    if goes_on and newest and checking.completed and counted and (last := recorded[newest].samples) != made.samples:
        found = f"{last} in version {newest}"
        raise Violation(RECORDED_DUE, f"a last version of all {made.samples} samples", found)
    if goes_on and not recorded and checking.completed and checking.trained and checking.rules.reasons - {"died"}:
        raise Violation(RECORDED_DUE, "the mean of all replicas at the end", "no version")
    if recorded:
        checking.proved.append(f"{count(len(recorded), 'recorded mean')}, each with the samples of all replicas")


def _consensus(checking: Checking, recorded: Mapping[int, _Recorded], of_replicas: Collection[int]) -> None:
    """Check that every mean has the replicas' distance from it, and that a store's versions have none."""
    checking.table = "consensus"
    rows = checking.run.ledger.execute("SELECT rowid, version, at, replicas, distance FROM consensus ORDER BY rowid")
    means = list(of_replicas)
    seen: list[int] = []
    for checking.row, version, at, replicas, distance in rows:
        awaited = means[len(seen)] if len(seen) < len(means) else None
        # a run may have crashed between measuring a mean and noting it as recorded
        following = checking.made.is_mean(version) and version > max(means, default=0)
        cut_off = awaited is None and not checking.completed and following
        if version != awaited and not cut_off:
            raise Violation(
                CONSENSUS, "none" if awaited is None else f"that of version {awaited}", f"version {version}"
            )
        if version in recorded and at != recorded[version].at:
            raise Violation(CONSENSUS, f"at {recorded[version].at!r}, as version {version}", at)
        most = max(segment.workers for segment in checking.run.segments)
        if not (_whole(replicas) and 1 <= replicas <= most):
            raise Violation(CONSENSUS, f"1 to {most} replicas", replicas)
        if distance is not None and not (isinstance(distance, float) and distance >= 0):
            raise Violation(CONSENSUS, "a distance of 0 or more", distance)
        seen.append(version)
    checking.row = None
    if len(seen) < len(means):
        raise Violation(CONSENSUS, f"that of version {means[len(seen)]}", "none")


def _evaluations(checking: Checking, recorded: list[int]) -> None:
    """Check that evaluations are of recorded versions, in order, and in the end of all of them or none.

    The ledger notes versions for which `evaluate` gave no metric.
    """
    silent = note(checking.run.ledger, "unmeasured", [])
    if not isinstance(silent, list) or not all(_whole(version) and version in recorded for version in silent):
        raise Violation(READABLE, "a list of recorded versions", silent, "run", "unmeasured")
    told = [version for version in recorded if version not in silent]
    checking.table = "evaluations"
    seen: dict[tuple[int, str], None] = {}
    evaluated: list[int] = []
    rows = checking.run.ledger.execute("SELECT rowid, version, metric FROM evaluations ORDER BY rowid")
    for checking.row, version, metric in rows:
        if version not in recorded:
            raise Violation(EVALUATED, "a recorded version", f"version {version}")
        if (version, metric) in seen:
            raise Violation(EVALUATED, "another one", f"{metric} of version {version} once more")
        seen[version, metric] = None
        if version in evaluated[-1:]:
            continue
        awaited = told[len(evaluated)] if len(evaluated) < len(told) else None
        if version != awaited:
            raise Violation(
                EVALUATED, "none" if awaited is None else f"that of version {awaited}", f"version {version}"
            )
        evaluated.append(version)
    checking.row = None
    evaluates = checking.run.config.get("evaluates")
    if (evaluated or silent) and evaluates is False:
        raise Violation(EVALUATED, "none: the script has no evaluate", f"that of version {(*evaluated, *silent)[0]}")
    wanted = bool(evaluated) or bool(evaluates)
    if checking.completed and wanted and len(evaluated) < len(told):
        raise Violation(EVALUATED, f"that of version {told[len(evaluated)]}", "none")
    if evaluated:
        checking.proved.append(f"{count(len(evaluated), 'evaluation')}, one of each recorded version in order")


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
