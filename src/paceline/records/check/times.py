"""Whether what was measured agrees with the facts: steps' times, a scenario's padding, a network's transfers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.cluster.network import SharedLink
from paceline.cluster.scenario import Scenario, Slowdown
from paceline.records.check.checking import Checking
from paceline.records.check.rules import (
    COMMITS,
    DELIVERED,
    LINK,
    MEASURED,
    PADDED,
    READABLE,
    STEP_TIMES,
    WITHIN,
    Broken,
    count,
)

TICK = 1e-6
"""Seconds. All processes of a run read one clock, in seconds since the machine started: after some years of that a
64-bit float still has steps of 30 ns. What is worked out from several such readings is off by less than this."""
EXACT = 1e-9
"""Relative, and in seconds: the link's model computes with these very moments."""
PARTS = ("compute", "push", "wait", "pull", "other")


def times(checking: Checking) -> None:
    """Compare every step's times with the facts, and in a real run with the scenario."""
    if checking.replays:
        _none_of_a_replay(checking)
        return
    _commits(checking)
    rows = _step_times(checking)
    if not checking.run.simulated:
        _measured(checking, rows)
        _padded(checking, rows)
        _link(checking)
    if rows:
        checking.proved.append(f"{count(len(rows), 'finished step')}, whose times lie within what the facts leave them")


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    began: float
    compute: float
    push: float
    other: float
    total: float


def _none_of_a_replay(checking: Checking) -> None:
    for table, rule in (("step_times", STEP_TIMES), ("transfers", DELIVERED), ("commits", COMMITS)):
        row = checking.run.ledger.execute(f"SELECT rowid FROM {table} LIMIT 1").fetchone()
        if row is not None:
            raise Broken(rule, "none: a replay has the recorded moments, and measures nothing", "one", table, row[0])


def _commits(checking: Checking) -> None:
    """Compare the store's own times with the facts."""
    checking.table = "commits"
    first, last = checking.rules.first or 0, checking.rules.version or 0
    pulled: dict[int, float] = {}
    for (_, direction, version), times in checking.moments.came.items():
        if direction == "pull":
            pulled[version] = min(pulled.get(version, math.inf), *times)
    version, before = first, 0.0
    rows = checking.run.ledger.execute("SELECT rowid, version, at FROM commits ORDER BY rowid")
    for checking.row, noted, at in rows:
        version += 1
        if noted != version or version > last:
            what = f"version {version}" if version <= last else f"none after version {last}"
            raise Broken(COMMITS, what, f"version {noted}")
        since = max(before, checking.made.versions[version].at)
        if not since <= at <= pulled.get(version, math.inf):
            by = f", and by {pulled[version]!r}, when it is pulled" if version in pulled else ""
            raise Broken(COMMITS, f"version {version} is there at {since!r} or later{by}", at)
        checking.made.committed[version] = before = at
    checking.row = None
    if (
        checking.completed
        and checking.trained
        and checking.run.choice.spec.family == "parameter-server"
        and version < last
    ):
        raise Broken(COMMITS, f"the time of version {version + 1}", "none")


def _step_times(checking: Checking) -> dict[tuple[int, int], _Row]:
    moments = checking.moments
    rows: dict[tuple[int, int], _Row] = {}
    checking.table = "step_times"
    found = checking.run.ledger.execute(
        f"SELECT rowid, worker, step, began, {', '.join(PARTS)} FROM step_times ORDER BY rowid"
    )
    for number, worker, step, began, *parts in found:
        checking.row = number
        key, what = (worker, step), f"step {step} of worker {worker}"
        if key not in moments.ready:
            raise Broken(STEP_TIMES, "a step whose gradient was ready", what)
        if key in rows:
            raise Broken(STEP_TIMES, "a step that has none yet", f"{what} once more")
        for name, seconds in zip(("began", *PARTS), (began, *parts), strict=True):
            if not isinstance(seconds, float | int) or not math.isfinite(seconds):
                raise Broken(READABLE, f"{name} in seconds", seconds)
            if seconds < 0:
                raise Broken(WITHIN, f"{name} is 0 or more", seconds)
        released, ready = moments.released.get(key, 0.0), moments.ready[key]
        if began < released - TICK:
            raise Broken(WITHIN, f"{what} began at {released!r}, when it was released, or later", began)
        if began + parts[0] > ready + TICK:
            raise Broken(WITHIN, f"{what} was computed by {ready!r}, when its gradient was ready", began + parts[0])
        compute, push, _, _, other = parts
        rows[key] = _Row(number, began, compute, push, other, sum(parts))
    checking.row = None
    _between_releases(checking, rows)
    return rows


def _between_releases(checking: Checking, rows: Mapping[tuple[int, int], _Row]) -> None:
    """A step's row is written as the next step's gradient comes, or its worker leaves."""
    moments = checking.moments
    for worker, stays in moments.stays.items():
        for stay in stays:
            for place, step in enumerate(stay.steps):
                until, row = stay.left, rows.get((worker, step))
                if place + 1 < len(stay.steps):
                    after = rows.get((worker, stay.steps[place + 1]))
                    until = moments.ready[worker, stay.steps[place + 1]] if after is None else after.began
                if until is None:
                    continue
                if row is None:
                    raise Broken(STEP_TIMES, f"those of step {step} of worker {worker}", "none")
                released = moments.released.get((worker, step), 0.0)
                if row.total > until - released + TICK:
                    expected = f"step {step} of worker {worker} and its waits take {until - released!r} s or less"
                    raise Broken(WITHIN, expected, row.total, "step_times", row.number)


def _measured(checking: Checking, rows: Mapping[tuple[int, int], _Row]) -> None:
    """In virtual time everything begins at 0, and telling of a gradient takes no time."""
    if checking.moments.began is not None and not checking.moments.began > 0:
        found = checking.moments.began
        raise Broken(MEASURED, "training begins after the clock was set, so later than 0", found, "facts", 1)
    for (worker, step), row in rows.items():
        if not row.push > 0:
            what = f"the push of step {step} of worker {worker} takes time"
            raise Broken(MEASURED, what, row.push, "step_times", row.number)


def _padded(checking: Checking, rows: Mapping[tuple[int, int], _Row]) -> None:
    """A padded step takes what the scenario says, or longer. Slow-downs at a *time* go by the worker's own clock."""
    scenario = checking.run.scenario
    if scenario.compute is None:
        return
    by_step = [event for event in scenario.events if isinstance(event, Slowdown) and event.at_step is not None]
    quiet = replace(scenario, events=())
    own: dict[int, Scenario] = {
        worker: replace(scenario, events=tuple(event for event in by_step if event.worker == worker))
        for worker in {event.worker for event in by_step}
    }
    moments = checking.moments
    for (worker, step), ready in moments.ready.items():
        least = own.get(worker, quiet).step_seconds(worker, step, 0.0, 0.0, checking.run.seed)
        row, released = rows.get((worker, step)), moments.released.get((worker, step), 0.0)
        began = released if row is None else row.began
        expected = f"step {step} of worker {worker} takes {least!r} s or more"
        if ready - began < least - TICK:
            fact = checking.run.ledger.execute(
                "SELECT id FROM facts WHERE kind = 'GradientReady' AND worker = ? AND step = ?", (worker, step)
            ).fetchone()
            raise Broken(PADDED, expected, ready - began, "facts", fact[0])
        if row is not None and row.compute + row.other < least - TICK:
            raise Broken(PADDED, expected, row.compute + row.other, "step_times", row.number)
    checking.proved.append(f"{count(len(moments.ready), 'step')}, none shorter than the scenario says")


def _link(checking: Checking) -> None:
    """Ask the model of the link again when each transfer ends, given when it began."""
    network = checking.run.scenario.network
    link = SharedLink.of(network)
    if link is None or checking.run.choice.spec.family != "parameter-server":
        return
    checking.table = "transfers"
    rows = checking.run.ledger.execute(
        "SELECT rowid, worker, direction, number, bytes, began, ended, delivered FROM transfers ORDER BY rowid"
    ).fetchall()
    _delivered(checking, rows)
    again = 0
    for direction in ("push", "pull"):
        unknown = _never_ended(checking, rows, direction)
        for period in _periods([row for row in rows if row[2] == direction], link.latency):
            if any(since <= period[-1][6] and until >= period[0][5] for since, until in unknown):
                continue  # what never ended has used part of the link, at times that are unknown
            _model(checking, period)
            again += len(period)
    if rows:
        checking.proved.append(f"{again:,} of {len(rows):,} transfers take what the link's model gives, asked again")


def _delivered(checking: Checking, rows: Sequence[tuple[Any, ...]]) -> None:
    left = {key: Counter(moments) for key, moments in checking.moments.came.items()}
    sizes = {row[4] for row in rows}
    message = checking.run.scenario.network.message if checking.run.scenario.network else None
    least = _alone(checking, max(sizes, default=0))
    for row in rows:
        checking.row, worker, direction, number, size, began, ended, delivered = row
        what = f"the {direction} of {number} by worker {worker}"
        if len(sizes) > 1 or (message is not None and size != message):
            raise Broken(LINK, f"{message or min(sizes)} bytes, as all transfers", size)
        if ended - began < least * (1 - EXACT) - EXACT:
            raise Broken(LINK, f"{what} takes {least!r} s or more", ended - began)
        if delivered < ended - TICK:
            raise Broken(DELIVERED, f"{what} is acted on at {ended!r}, when it has ended, or later", delivered)
        if (came := left.get((worker, direction, number))) is not None:  # otherwise its fact was not told any more
            if not came[ended]:
                raise Broken(DELIVERED, f"{what} ends at {sorted(came)}, as the facts say", ended)
            came[ended] -= 1
    checking.row = None


def _alone(checking: Checking, size: int) -> float:
    """Seconds of a transfer that has the link to itself."""
    link = SharedLink.of(checking.run.scenario.network)
    assert link is not None
    link.begin(0, "push", size, 0.0)
    return link.next_end() or 0.0


def _never_ended(checking: Checking, rows: Sequence[tuple[Any, ...]], direction: str) -> list[tuple[float, float]]:
    """The times when transfers may have been under way that were ordered, and are not noted."""
    ended = Counter((row[1], row[2], row[3]) for row in rows)
    return [
        (at, checking.moments.leaves_after(key[0], at))
        for key, moments in checking.moments.ordered.items()
        if key[1] == direction
        for at in moments[ended[key] :]
    ]


def _periods(rows: Sequence[tuple[Any, ...]], latency: float) -> list[list[tuple[Any, ...]]]:
    """Transfers of one way, grouped by the periods in which it was never idle. Groups do not affect each other."""
    periods: list[list[tuple[Any, ...]]] = []
    busy = -math.inf
    for row in sorted(rows, key=lambda row: (row[5], row[0])):
        if row[5] > busy + EXACT:
            periods.append([])
        periods[-1].append(row)
        busy = max(busy, row[6] - latency)
    return periods


def _model(checking: Checking, period: Sequence[tuple[Any, ...]]) -> None:
    link = SharedLink.of(checking.run.scenario.network)
    assert link is not None
    by_number: dict[int, tuple[Any, ...]] = {}
    ends: dict[int, float] = {}

    def finish(until: float) -> None:
        while (one := link.finish(until)) is not None:
            ends[one.number] = one.ended

    for row in period:
        finish(row[5])
        by_number[link.begin(row[1], row[2], row[4], row[5])] = row
    finish(math.inf)
    for number, row in by_number.items():
        if not math.isclose(ends[number], row[6], rel_tol=EXACT, abs_tol=EXACT):
            expected = f"the {row[2]} of {row[3]} by worker {row[1]} ends at {ends[number]!r}"
            raise Broken(LINK, expected, row[6], "transfers", row[0])
