"""What the live page is told of a run: `told` makes it from a view and a tally. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.choice import Choice
from paceline.core.reasons import sentence
from paceline.display.state import Curve, Row, View
from paceline.records.summary import Tally
from paceline.records.times import StepTotals
from paceline.records.waits import WaitSums

MOST_ROWS = 128
"""Workers that are told of. Those that others wait for come first."""
MOST_CURVES = 32
"""Names of logged values that have a curve."""
MOST_POINTS = 256
"""Points of an evaluated metric."""
MOST_CAUSES = 12
BESIDES = "its version was being made, or no core was free"
"""Why workers wait that no protocol holds."""
LEAST = 0.01
"""Seconds of such waits that are told."""
LONGEST = 400
"""Characters of a line, a name or a reason."""


@dataclass(frozen=True, slots=True)
class About:
    """What does not change while a run goes."""

    title: str
    """The protocol as it is typed."""
    script: str
    folder: str
    reasons: Mapping[str, str]
    """The sentences of why workers wait, by code."""
    has_store: bool

    @classmethod
    def of(cls, choice: Choice, script: object, folder: object, reasons: Mapping[str, str]) -> About:
        """`reasons`: those of the protocol, and others."""
        return cls(plain(choice.name), plain(script), plain(folder), reasons, choice.has_store)


@dataclass(slots=True)
class LoggedCurves:
    """LoggedCurves of all that scripts log, over the run's time: the mean over the workers, in few points."""

    _curves: dict[str, tuple[Curve, Curve]] = field(default_factory=dict)
    """By name: moments and values."""

    def add(self, name: str, at: float, value: float) -> None:
        """Add a value that a worker logged at that moment. NaN and infinities are left out, as are too many names."""
        if name not in self._curves:
            if len(self._curves) == MOST_CURVES:
                return
            self._curves[name] = Curve(), Curve()
        if math.isfinite(value):
            moments, values = self._curves[name]
            moments.add(at)
            values.add(value)

    def told(self) -> list[dict[str, Any]]:
        """Return the curves that have a point."""
        return [
            {"name": plain(name), "of": "log", "points": [*zip(moments.points, values.points, strict=True)]}
            for name, (moments, values) in self._curves.items()
            if values.points
        ]


def told(
    about: About,
    view: View,
    tally: Tally,
    curves: LoggedCurves,
    remarks: Iterable[str] = (),
    end: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return all that the page shows, ready for JSON. `remarks`: what the run has said. `end`: see `ended`."""
    model = tally.model
    rows = sorted(view.rows, key=lambda row: (-row.awaited_by, row.worker))[:MOST_ROWS]
    hosts = model.hosts if len(set(model.hosts.values())) > 1 else {}
    stale = tally.staleness
    return {
        "title": about.title,
        "script": about.script,
        "folder": about.folder,
        "seconds": view.seconds,
        "training": 0.0 if model.began is None else max(0.0, model.at - model.began - model.paused),
        "done": view.done,
        "until": plain(view.until),
        "left": view.left,
        "epoch": view.epoch,
        "version": model.versions if about.has_store else None,
        "steps": view.steps,
        "samples": view.samples,
        "speed": view.speed,
        "samples_speed": view.samples_speed,
        "evaluated": view.evaluated,
        "staleness": {
            "mean": sum(one * times for one, times in stale.items()) / tally.steps if tally.steps else None,
            "max": max(stale, default=None),
            "histogram": sorted(stale.items())[:64],
        },
        "workers": [_row(row, tally, hosts) for row in sorted(rows, key=lambda row: row.worker)],
        "more": len(view.rows) - len(rows),
        "causes": _causes(tally, about.reasons),
        "curves": [*_evaluations(tally), *curves.told()],
        "scores": [
            {
                "metric": plain(one.metric),
                "value": one.value,
                "target": one.target and plain(one.target),
                "met": one.met,
            }
            for one in view.scores
        ],
        "remarks": [plain(line) for line in remarks],
        "end": end,
    }


def ended(outcome: str, error: str | None, *, kept: bool = True) -> dict[str, Any]:
    """Return what is told of a run's end. `error`: why, if it has not completed. `kept`: whether it has a folder."""
    return {"outcome": outcome, "error": error, "kept": kept}


def _row(row: Row, tally: Tally, hosts: Mapping[int, str]) -> dict[str, Any]:
    times = tally.shares[row.worker].times if row.worker in tally.shares else StepTotals()
    return {
        "worker": row.worker,
        "host": plain(hosts[row.worker]) if row.worker in hosts else None,
        "steps": row.steps,
        "speed": row.speed,
        "doing": plain(row.state.doing),
        "for": plain(row.state.awaited),
        "why": plain(row.state.why),
        "awaited_by": row.awaited_by,
        "lead": row.lead,
        "stale": row.stale,
        "logged": None if row.logged is None else [plain(row.logged[0]), row.logged[1]],
        "compute": times.compute,
        "wait": times.wait,
        "transfer": times.transfer,
    }


def _causes(tally: Tally, reasons: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return why workers waited, the longest first: for each reason, how often, and whose events ended the waits.

    A protocol orders waits. Whatever else workers waited between their steps was for the store or for a core.
    """
    waits = tally.model.waits
    if not isinstance(waits, WaitSums):
        return []
    found: list[tuple[float, dict[str, Any]]] = []
    for code, by in waits.seconds.items():
        known = [[worker, seconds] for worker, seconds in by.most_common(8) if worker is not None]
        why = plain(sentence(waits.last[code], reasons))
        found.append((sum(by.values()), {"why": why, "times": waits.times[code], "by": known}))
    rest = sum(share.times.wait for share in tally.shares.values()) - waits.before - sum(one[0] for one in found)
    if rest > LEAST:
        found.append((rest, {"why": BESIDES, "times": None, "by": []}))
    found.sort(key=lambda one: -one[0])
    return [{**told, "seconds": seconds} for seconds, told in found[:MOST_CAUSES]]


def _evaluations(tally: Tally) -> list[dict[str, Any]]:
    """Return a curve for each metric of the evaluated versions. Of too many points every second, third, … is told."""
    points: dict[str, list[tuple[float, float]]] = {}
    for version, metrics in tally.metrics.items():
        at = tally.recorded_versions[version][0] if version in tally.recorded_versions else None
        for name, value in metrics.items():
            if at is not None and math.isfinite(value):
                points.setdefault(name, []).append((at, value))
    return [{"name": plain(name), "of": "evaluate", "points": _thinned(sorted(of))} for name, of in points.items()]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `MOST_POINTS` of the points, with the last one."""
    every = -(-len(points) // MOST_POINTS)
    return list(reversed(points[::-1][::every])) if points else []


def plain(text: object) -> str:
    """Return the text as JSON can hold it: a file's name may be no UTF-8. A long one is cut."""
    told = str(text).encode(errors="backslashreplace").decode()
    return told if len(told) <= LONGEST else f"{told[: LONGEST - 1]}…"
