"""Checks recorded versions: that they were made and due, and their measurements."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any, TypeGuard

from paceline.records.check.checking import Checking
from paceline.records.check.first_mean import FirstMean
from paceline.records.check.versions_made import PossibleVersion, VersionsMade
from paceline.records.reading import unmeasured
from paceline.records.recording_schedule import RecordingSchedule
from paceline.records.violations import (
    CONSENSUS,
    EVALUATED,
    READABLE,
    RECORDED,
    RECORDED_DUE,
    RECORDED_SAMPLES,
    RECORDED_WHEN,
    Violation,
    count,
)


def to_be_made(checking: Checking, undone: frozenset[tuple[int, int]]) -> VersionsMade:
    """Return the collector of what facts and orders say about the recorded versions."""
    recorded = dict(checking.run.ledger.execute("SELECT version, samples FROM versions"))
    first = FirstMean(several_hosts=any(segment.hosts > 1 for segment in checking.run.segments))
    return VersionsMade(undone=undone, recorded=recorded, due=_due(checking), first=first)


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
    recorded: dict[int, tuple[float, int | None]] = {}
    numbers: dict[int, int] = {}
    newest, before = -1, 0.0
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
        if at < before:
            raise Violation(RECORDED_WHEN, f"at {before!r} or later", at)
        recorded[version], numbers[version] = (at, samples), number
        newest, before = version, at
    checking.row = None
    if checking.run.choice.spec.family == "parameter-server":
        _of_store(checking, recorded, numbers)
    else:
        _of_means(checking, recorded, numbers)
    _consensus(checking, recorded)
    _evaluations(checking, list(recorded))


def _of_store(checking: Checking, recorded: dict[int, tuple[float, int | None]], numbers: dict[int, int]) -> None:
    """Check a store's versions: each was ordered, and its samples decide whether it is recorded."""
    made = checking.made
    # a real store makes a version after its order, and virtual time does not wait for processes that stop
    exact = _virtual(checking) and not (checking.trained and "stopped" in checking.rules.reasons)
    counted = _counted(checking)
    last = max(made.versions, default=0)
    for version, (at, samples) in recorded.items():
        checking.row = numbers[version]
        moment = made.versions.get(version, PossibleVersion(0.0, 0) if version == 0 else None)
        if moment is None:
            raise Violation(RECORDED, "a version that an order made", f"version {version}")
        if (samples is None and counted) or (samples is not None and samples != moment.samples):
            raise Violation(RECORDED_SAMPLES, f"{moment.samples} in version {version}", samples)
        if version and (at < moment.at or (exact and at > moment.at)):
            raise Violation(RECORDED_WHEN, f"at {moment.at!r}{'' if exact else ' or later'}", at)
    checking.row = None
    if made.due is None:
        return
    expected = list(made.expected)
    if checking.completed and last not in expected:
        expected.append(last)
    so_far = math.inf if checking.completed else max(recorded, default=-1)
    # A run that is stopped records where it stands. One that is killed there may not have: see `StoredVersions.made`.
    stops = {segment.version for segment in checking.run.segments[1:]}
    for version in expected:
        if version not in recorded and version <= so_far and version not in stops:
            raise Violation(RECORDED_DUE, f"version {version}", "it is not there")
    for version in recorded:
        if version not in expected and version != last and version not in stops:
            raise Violation(RECORDED_DUE, "none that is neither due nor the last", f"version {version}")
    if recorded:
        checking.proved.append(f"{count(len(recorded), 'recorded version')}, made when and of what the facts say")


def _of_means(checking: Checking, recorded: dict[int, tuple[float, int | None]], numbers: dict[int, int]) -> None:
    """Check means: they count up by one, each is of the replicas after some step, and the first and last were due."""
    made = checking.made
    over = PossibleVersion(made.at, made.samples, made.replicas)
    # without a step no order moves a replay's clock, and a segment may stop before its first step
    at_once = (checking.replays and not made.steps) or len(checking.run.segments) > 1
    begun = [PossibleVersion(0.0, 0, made.replicas)] if at_once else []
    candidates, place = [*begun, *made.means, over], 0
    with_samples: dict[int, list[int]] = {}
    for number, moment in enumerate(candidates):
        with_samples.setdefault(moment.samples, []).append(number)
    counted, virtual = _counted(checking), _virtual(checking)
    moments, stops = [at for at, _ in recorded.values()], [segment.at for segment in checking.run.segments[1:]]
    for number, (version, (at, samples)) in enumerate(recorded.items(), 1):
        checking.row = numbers[version]
        if version != number:
            raise Violation(RECORDED, f"version {number}, as means count up by one", f"version {version}")
        if samples is None:
            if counted:
                raise Violation(RECORDED_SAMPLES, f"samples of version {version}", samples)
            continue
        same = with_samples.get(samples, [])
        same = same[bisect_left(same, place) :]
        if not same:
            raise Violation(RECORDED_SAMPLES, "as many as all replicas had, after some step", samples)
        place = next((n for n in same if candidates[n].at == at), same[0])
        earliest = candidates[place].at
        ends, following = ([over.at], math.inf) if number == len(recorded) else (stops, moments[number])
        # in a replay, a segment's last mean is recorded when all workers have left, whatever its clock then shows
        latest = next((end for end in ends if at <= end <= following), earliest)
        if at < earliest or (virtual and at > latest):
            raise Violation(RECORDED_WHEN, f"at {earliest!r}{'' if virtual else ' or later'}", at)
    checking.row = None
    if checking.completed and recorded and counted:
        last, (_, samples) = max(recorded.items())
        if samples != over.samples:
            raise Violation(
                RECORDED_DUE, f"a last version of all {over.samples} samples", f"{samples} in version {last}"
            )
    if checking.completed and not recorded and checking.trained and checking.made.replicas:
        raise Violation(RECORDED_DUE, "the mean of all replicas at the end", "no version")
    if (due := made.first.due) is not None and recorded and not checking.replays:
        _, samples = recorded[1]
        stopped = bool(stops) and (samples or 0) < due  # the mean of where it stopped was not due
        if not stopped and not made.first.may_be(samples, over.samples):
            raise Violation(RECORDED_DUE, f"a first version of {due} samples", f"{samples} in version 1")
    if recorded:
        checking.proved.append(f"{count(len(recorded), 'recorded mean')}, each of replicas as the facts have them")


def _consensus(checking: Checking, recorded: dict[int, tuple[float, int | None]]) -> None:
    """Check that every mean has the replicas' distance from it, and that a store's versions have none."""
    checking.table = "consensus"
    rows = checking.run.ledger.execute("SELECT rowid, version, at, replicas, distance FROM consensus ORDER BY rowid")
    decentralized = checking.run.choice.spec.family == "decentralized"
    means = list(recorded) if decentralized else []
    seen: list[int] = []
    for checking.row, version, at, replicas, distance in rows:
        awaited = means[len(seen)] if len(seen) < len(means) else None
        # a run may have crashed between measuring a mean and noting it as recorded
        following = decentralized and version == max(means, default=0) + 1
        cut_off = awaited is None and not checking.completed and following
        if version != awaited and not cut_off:
            raise Violation(
                CONSENSUS, "none" if awaited is None else f"that of version {awaited}", f"version {version}"
            )
        if version in recorded and at != recorded[version][0]:
            raise Violation(CONSENSUS, f"at {recorded[version][0]!r}, as version {version}", at)
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
    silent = unmeasured(checking.run.ledger)
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


def _virtual(checking: Checking) -> bool:
    """Whether versions are made at the moment of their orders."""
    return checking.run.simulated or checking.replays


def _counted(checking: Checking) -> bool:
    """Whether samples are counted. A script with leased data opens an epoch."""
    return checking.run.ledger.execute("SELECT 1 FROM epochs LIMIT 1").fetchone() is not None


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
