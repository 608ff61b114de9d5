"""Checks the measured times of steps against the facts and the scenario's padding."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from paceline.records.check.checking import Checking
from paceline.records.violations import (
    MEASURED,
    PADDED,
    READABLE,
    STEP_TIMES,
    WITHIN,
    First,
    Violation,
    count,
)
from paceline.scenario.scenario import Scenario, Slowdown

TICK = 1e-6
"""Tolerance in seconds. All processes read one clock, in seconds since the machine started. After some years a 64-bit
float still has steps of 30 ns, so what is computed from several readings is off by less than this."""
PARTS = ("compute", "push", "wait", "pull", "other")
COPIES = ("to_device", "from_device")
"""Columns that overlap the parts. NULL if parameters are in memory."""

_STEPS = """
    SELECT orders.worker AS worker, orders.step AS step, 'released' AS what, facts.id, facts.at,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM orders JOIN facts ON facts.id = orders.fact WHERE orders.kind = 'Release'
    UNION ALL SELECT worker, step, 'ready', id, at, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM facts WHERE kind = 'GradientReady'
    UNION ALL SELECT worker, step, 'times', rowid, began, compute, push, wait, pull, other, to_device, from_device
    FROM step_times
    ORDER BY worker, step, what, 4
"""
"""All rows of each step: its release, its gradient and its times."""


@dataclass(slots=True)
class _Step:
    """A step, as the facts and the ledger's `step_times` have it."""

    worker: int
    step: int
    released: float = 0.0
    fact: int | None = None
    """The row of its gradient; None if none was ready."""
    ready: float = 0.0
    row: int | None = None
    """Its row in `step_times`, if it has one."""
    began: float = 0.0
    parts: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"step {self.step} of worker {self.worker}"


def times(checking: Checking) -> None:
    """Compare every step's times with the facts, and in a real run with the scenario."""
    if checking.replays:
        row = checking.run.ledger.execute("SELECT rowid FROM step_times LIMIT 1").fetchone()
        if row is not None:
            expected = "none: a replay has the recorded moments, and measures nothing"
            raise Violation(STEP_TIMES, expected, "one", "step_times", row[0])
        return
    finished = _steps(checking)
    if finished:
        checking.proved.append(f"{count(finished, 'finished step')}, whose times lie within what the facts leave them")


def _steps(checking: Checking) -> int:
    """Go through all steps, worker by worker. Return how many have times.

    Each rule is tried for all steps before the next rule: its first wrong row is the one that is told.
    """
    checking.table = "step_times"
    within, between, measured, padded = First(), First(), First(), First()
    run = checking.run
    begin = [segment.at for segment in run.segments]
    paddings = [None if run.simulated else _Padding.of(run.scenario_of(one), run.seed) for one in run.segments]
    left = _left(checking)
    resumed = [(segment.fact, segment.at) for segment in checking.run.segments[1:]]
    finished = ready = 0
    before: _Step | None = None

    def conclude(step: _Step, after: _Step | None) -> None:
        interrupted = _ended(step, after, left, resumed, between)
        if checking.run.simulated or step.row is None or interrupted or step.parts[1] > 0:
            return
        measured.note(
            Violation(MEASURED, f"the push of {step} takes time", step.parts[1], "step_times", step.row), step.row
        )

    rows = groupby(checking.run.ledger.execute(_STEPS), key=itemgetter(0, 1))
    for step in (_step(checking, worker, number, its, within) for (worker, number), its in rows):
        finished += step.row is not None
        if step.fact is None:
            continue
        ready += 1
        if before is not None:
            conclude(before, step if step.worker == before.worker else None)
        before = step
        if (padding := paddings[max(0, bisect_right(begin, step.released) - 1)]) is not None:
            padding.compare(step, padded)
    if before is not None:
        conclude(before, None)
    within.settle()
    between.settle()
    if not checking.run.simulated:
        began = checking.tally.began  # in virtual time everything begins at 0
        if began is not None and not began > 0:
            raise Violation(MEASURED, "training begins after the clock was set, so later than 0", began, "facts", 1)
        measured.settle()
        padded.settle()
        if any(paddings):
            checking.proved.append(f"{count(ready, 'step')}, none shorter than the scenario says")
    return finished


def _step(checking: Checking, worker: int, step: int, rows: Iterator[tuple[Any, ...]], within: First) -> _Step:
    """Return what there is of this step. What is wrong in its row of `step_times` is noted."""
    one = _Step(worker, step)
    timed = []
    for _, _, what, number, at, *parts in rows:
        if what == "released":
            one.released = at
        elif what == "ready":
            one.fact, one.ready = number, at
        else:
            timed.append((number, at, *parts))
    for number, began, *measured in timed:
        parts, copies = measured[: len(PARTS)], measured[len(PARTS) :]
        checking.row = number
        try:
            if one.fact is None:
                raise Violation(STEP_TIMES, "a step whose gradient was ready", one)
            if one.row is not None:
                raise Violation(STEP_TIMES, "a step that has none yet", f"{one} once more")
            _possible(one, began, parts, copies)
        except Violation as broken:
            broken.table, broken.row = "step_times", number
            within.note(broken, number)
        else:
            one.row, one.began, one.parts = number, began, tuple(parts)
    checking.row = None
    return one


def _possible(step: _Step, began: float, parts: Sequence[float], copies: Sequence[float | None]) -> None:
    named = dict(zip(("began", *PARTS, *COPIES), (began, *parts, *copies), strict=True))
    for name, seconds in named.items():
        if seconds is None and name in COPIES:
            continue
        if not isinstance(seconds, float | int) or not math.isfinite(seconds):
            raise Violation(READABLE, f"{name} in seconds", seconds)
        if seconds < 0:
            raise Violation(WITHIN, f"{name} is 0 or more", seconds)
    if began < step.released - TICK:
        raise Violation(WITHIN, f"{step} began at {step.released!r}, when it was released, or later", began)
    if began + parts[0] > step.ready + TICK:
        raise Violation(WITHIN, f"{step} was computed by {step.ready!r}, when its gradient was ready", began + parts[0])


def _left(checking: Checking) -> dict[int, list[tuple[int, float]]]:
    """By worker: the row and the moment of each fact with which it left, in order."""
    left: dict[int, list[tuple[int, float]]] = {}
    for worker, *fact in checking.run.ledger.execute(
        "SELECT worker, id, at FROM facts WHERE kind = 'WorkerLeft' ORDER BY id"
    ):
        left.setdefault(worker, []).append((fact[0], fact[1]))
    return left


def _ended(
    step: _Step,
    after: _Step | None,
    left: Mapping[int, Sequence[tuple[int, float]]],
    resumed: Sequence[tuple[int, float]],
    between: First,
) -> bool:
    """A step's row is written as the next step's gradient comes, or its worker leaves.

    Return whether the run was interrupted before that. Then the row may never have been written, and has no time that
    is undone.
    """
    assert step.fact is not None
    gone = next((one for one in left.get(step.worker, ()) if one[0] > step.fact), None)
    anew = next((one for one in resumed if one[0] > step.fact), None)
    later = (after and after.fact, gone and gone[0])
    interrupted = anew is not None and all(anew[0] < one for one in later if one)
    if interrupted:
        if step.row is None:
            return True
        gone, after = anew, None
    if after is not None and after.fact is not None and (gone is None or after.fact < gone[0]):
        until = after.ready if after.row is None else after.began
    elif gone is not None:
        until = gone[1]
    else:
        return False
    if step.row is None:
        between.note(Violation(STEP_TIMES, f"those of {step}", "none", "step_times", None), 0)
    elif (total := sum(step.parts)) > until - step.released + TICK:
        expected = f"{step} and its waits take {until - step.released!r} s or less"
        between.note(Violation(WITHIN, expected, total, "step_times", step.row), 0)
    return interrupted


@dataclass(slots=True)
class _Padding:
    """A padded step takes what the scenario says, or longer. Slow-downs at a *time* go by the worker's own clock."""

    seed: int
    quiet: Scenario
    own: dict[int, Scenario]
    """Of workers with slow-downs at a step."""

    @classmethod
    def of(cls, scenario: Scenario, seed: int) -> _Padding | None:
        """Return the padding of a run's segment; None if its steps are not padded."""
        if scenario.compute is None:
            return None
        by_step = [event for event in scenario.events if isinstance(event, Slowdown) and event.at_step is not None]
        own = {
            worker: replace(scenario, events=tuple(event for event in by_step if event.worker == worker))
            for worker in {event.worker for event in by_step}
        }
        return cls(seed, replace(scenario, events=()), own)

    def compare(self, step: _Step, padded: First) -> None:
        """Note if that step, whose gradient was ready, was too short."""
        least = self.own.get(step.worker, self.quiet).step_seconds(step.worker, step.step, 0.0, 0.0, self.seed)
        began = step.released if step.row is None else step.began
        expected = f"{step} takes {least!r} s or more"
        assert step.fact is not None
        if step.ready - began < least - TICK:
            padded.note(Violation(PADDED, expected, step.ready - began, "facts", step.fact), step.fact)
        elif step.row is not None and step.parts[0] + step.parts[-1] < least - TICK:
            found = step.parts[0] + step.parts[-1]
            padded.note(Violation(PADDED, expected, found, "step_times", step.row), step.fact)
