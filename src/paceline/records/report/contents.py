"""The contents of a report: numbers and words from ledgers, as one JSON value.

Long runs are thinned out here, so that a report's size is bounded. Each run has a fixed number of points, and its share
of `SLICES`.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import islice
from operator import itemgetter
from typing import Any

from paceline.core.facts import TrainingBegan, WorkerJoined, WorkerResumed
from paceline.records.comparable import differences
from paceline.records.explain.findings import findings
from paceline.records.explain.sentences import whole_run
from paceline.records.reading import LEDGER, RecordedRun, measure, model_of, tally_of
from paceline.records.report.bands import of_metric
from paceline.records.report.compared import ComparisonFolder, compare, labels, protocol_of
from paceline.records.report.opening import opening
from paceline.records.run_model import Moment, ResumeMark, RunModel, Stay, Switch
from paceline.records.spans import RecentSpans, overlap
from paceline.records.summary import Summary, Tally, Target, metrics_of
from paceline.records.timeline import (
    MeasuredStep,
    Timeline,
    TimelineBuilder,
    TransferSpan,
    WorkerLane,
    cut,
    of_each,
    read_steps,
    read_timeline,
    read_transfers,
)
from paceline.records.verdict import target_text
from paceline.records.waits import Waits, WorkerWait
from paceline.version import __version__

Contents = dict[str, Any]

SLICES = 50_000
"""Steps that all timelines of a report together show one by one."""
WORKERS = 64
"""Workers in a run's charts of single workers: those that waited most."""
BINS = 300
"""Points of a curve over a run's time."""
ELSEWHERE = ("evaluations", "logged", "scalars", "consensus")
"""Keys of a summary that the page has in other places."""
METRICS = 12
"""Metrics of a run that have charts: those that are evaluated, then those of targets, then those that are logged."""
PLACES = 6
"""Decimal places of seconds."""
TICKS = 1e7
"""The most ticks of a run. A timeline's times are whole ticks of a microsecond or more."""


def contents(runs: Sequence[RecordedRun], slices: int = SLICES, asked: ComparisonFolder | None = None) -> Contents:
    """Return the contents of a report of these runs. `slices`: steps that all timelines show one by one.

    `asked`: what their comparison's folder says, if that is what is reported.
    """
    explained = [line for part in whole_run(findings(runs[0])) for line in part] if len(runs) == 1 else []
    told = [_run(run, label, slices // len(runs)) for run, label in zip(runs, labels(runs), strict=True)]
    summaries = [one.pop("whole_summary") for one in told]
    found = compare(runs, summaries, asked)
    shown = [{**one, "group": group} for one, group in zip(told, found.groups, strict=True)]
    metrics = dict.fromkeys(name for one in told for name in one["metrics"])
    return {
        "paceline": __version__,
        "title": "Training with " + _some(list(dict.fromkeys(found.groups))),
        "opening": opening(shown, summaries, found, explained),
        "runs": shown,
        "bands": {name: of_metric([one["metrics"].get(name, ()) for one in told], found.groups) for name in metrics},
        "target": None if found.target is None else _plain_target(found.target),
        "differences": differences([run.config for run in runs]),
    }


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and others"


def _plain_target(target: Target) -> Contents:
    return {"metric": target.metric, "value": target.value, "text": target_text(target)}


def summary_of(run: RecordedRun) -> Summary:
    """Return the run's own summary, or for a crashed run that of its ledger."""
    return _so_far(run, tally_of(run.folder / LEDGER, run.metrics)) if run.summary is None else run.summary


def _so_far(run: RecordedRun, tally: Tally) -> Summary:
    """Return the summary of a run that crashed. The tally has counted its whole ledger."""
    return tally.summary(protocol=run.choice, workers=run.workers, threads=None, seed=run.seed, outcome="crashed")


def _run(run: RecordedRun, label: str, slices: int) -> Contents:
    """Read the history once. Keep every step only if the timeline can show every step."""
    (steps,) = run.ledger.execute("SELECT count(*) FROM step_times").fetchone()
    waits = Waits()
    model = model_of(run.ledger, waits)
    tally = Tally(model) if run.summary is None else None
    timeline = TimelineBuilder(model) if steps <= slices else None
    waited, curves = WaitMatrix(), Curves(model, *_span(run.ledger))
    for fact, orders in run.history():
        curves.open_until(fact.at)
        moment = model.record(fact, orders) if tally is None else tally.record(fact, orders)
        curves.record(moment)
        waited.add(moment.waits)
        if timeline is not None:
            timeline.record(moment)
    rest = waits.rest()
    waited.add(rest)
    if timeline is not None:
        timeline.wait(rest)
    if tally is not None:
        measure(run.ledger, tally, metrics=run.metrics)
    summary = _so_far(run, tally) if tally is not None else run.summary or {}
    metrics = _metrics(summary, run.ledger, curves.began, curves.ended)
    shown = waited.most(sorted(model.hosts))
    return {
        "label": label,
        "folder": run.folder.absolute().name,
        "protocol": str(run.choice),
        "brief": protocol_of(run),
        "state": run.choice.spec.state,
        "simulated": run.simulated,
        "unended": run.unended,
        "resumed": [
            f"resumed from version {segment.version}, {segment.at:.3g} s after the start: "
            + (f"{segment.undone} were undone, and are not shown" if segment.undone else "nothing was undone")
            for segment in run.segments[1:]
        ],
        "began": curves.began,
        "ended": curves.ended,
        "summary": {key: value for key, value in summary.items() if key not in ELSEWHERE},
        "whole_summary": summary,
        "metrics": {name: metrics[name] for name in list(metrics)[:METRICS]},
        "more_metrics": max(0, len(metrics) - METRICS),
        "consensus": [[one["at_seconds"], one["distance"]] for one in summary["consensus"]],
        **curves.contents(shown),
        "waits": waited.matrix(shown),
        "hidden": len(model.hosts) - len(shown),
        "timeline": _timeline(run, model, timeline, slices, shown),
    }


def _metrics(summary: Summary, ledger: sqlite3.Connection, began: float, ended: float) -> dict[str, list[list[Any]]]:
    """Return moment, samples and value of evaluated versions, and of what was logged, by metric.

    What the workers logged in the same `BINS`th part of the run is one point, with its mean. Its samples are not known.
    """
    evaluations = summary["evaluations"]
    found: dict[str, list[list[Any]]] = {
        name: [[one["at_seconds"], one["samples"], one[name]] for one in evaluations if name in one]
        for name in metrics_of(evaluations)
    }
    targets = [Target.parse(text).metric for text in summary["targets"]]
    for name in (name for name in targets if name in summary.get("logged", {})):
        found.setdefault(name, [])  # before those that no target names
    width = (ended - began) / BINS or 1.0
    bins = (
        "SELECT name, avg(at), avg(value) FROM scalars GROUP BY name, CAST((at - ?) / ? AS INTEGER) ORDER BY min(rowid)"
    )
    for name, at, value in ledger.execute(bins, (began, width)):
        finite = value is not None and math.isfinite(value)
        found.setdefault(name, []).append([round(at, PLACES), None, float(f"{value:.9g}") if finite else None])
    return {name: sorted(rows, key=itemgetter(0)) for name, rows in found.items()}


def _span(ledger: sqlite3.Connection) -> tuple[float, float]:
    """Return when training began, and the last fact's time."""
    began = ledger.execute("SELECT at FROM facts WHERE kind = 'TrainingBegan' ORDER BY id LIMIT 1").fetchone()
    (ended,) = ledger.execute("SELECT max(at) FROM facts").fetchone()
    return 0.0 if began is None else began[0], max(0.0, ended or 0.0)


class WaitMatrix:
    """Adds up how long workers waited for each other."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int | None], float] = {}
        """By worker, and by the worker that it waited for."""
        self._either: dict[int | None, float] = {}
        """By worker: how long it waited, and was waited for."""

    def add(self, ended: Iterable[WorkerWait]) -> None:
        for wait in ended:
            pair = wait.worker, wait.awaited
            self._seconds[pair] = self._seconds.get(pair, 0.0) + wait.seconds
            for worker in pair:
                self._either[worker] = self._either.get(worker, 0.0) + wait.seconds

    def most(self, workers: Iterable[int]) -> list[int]:
        """Return at most `WORKERS` workers that waited, and were waited for, the longest; ascending."""
        return sorted(sorted(workers, key=lambda worker: -self._either.get(worker, 0.0))[:WORKERS])

    def matrix(self, shown: Sequence[int]) -> Contents:
        """Return `seconds`, how long each of `shown` waited for each of them, and `nobody`, for none of them."""
        place = {worker: at for at, worker in enumerate(shown)}
        seconds = [[0.0] * len(shown) for _ in shown]
        nobody = [0.0] * len(shown)
        for (worker, awaited), waited in self._seconds.items():
            row, column = place.get(worker), place.get(-1 if awaited is None else awaited)
            if row is None:
                continue
            if column is None:
                nobody[row] += waited
            else:
                seconds[row][column] += waited
        return {
            "workers": list(shown),
            "seconds": [[round(cell, PLACES) for cell in row] for row in seconds],
            "nobody": [round(cell, PLACES) for cell in nobody],
        }


class Curves:
    """Curves over a run's time, which is divided into `BINS` parts."""

    def __init__(self, model: RunModel, began: float, ended: float) -> None:
        """`model`: the run as it is at each moment."""
        self.began = began
        self.ended = ended
        self._model = model
        self._width = (ended - began) / BINS or 1.0
        self._leads: dict[int, list[int | None]] = {}
        self._work: list[list[float]] = [[round(began, PLACES), 0]]
        self._finished = 0
        self._bins = 0
        """How many have begun."""

    def record(self, moment: Moment) -> None:
        """Take the next moment, after `open_until` its time."""
        match moment.fact:
            case TrainingBegan(members=members):
                for worker, _, _ in members:
                    self._leads_by(worker, 0)
            case WorkerJoined(worker=worker) | WorkerResumed(worker=worker):
                self._leads_by(worker, 0)
        self._finished += len(moment.advanced)
        for worker in moment.advanced:
            self._leads_by(worker, self._model.counts.lead(worker))

    def contents(self, shown: Sequence[int]) -> Contents:
        """Return `work`, as [seconds, steps finished by all], and `leads`, each worker's greatest lead in each bin.

        A lead is in steps, over the slowest present worker. It is None if the worker was away for the whole bin.
        """
        leads = [{"worker": worker, "lead": self._leads[worker]} for worker in shown if worker in self._leads]
        return {
            "work": [*self._work, [round(self.ended, PLACES), self._finished]],
            "leads": {"began": self.began, "width": self._width, "workers": leads},
        }

    def open_until(self, at: float) -> None:
        """Begin the bins up to this time, before the model is told of it. A bin begins with each worker's lead then."""
        now, counts = max(at, self.began), self._model.counts
        while self._bins < BINS and now >= self.began + self._bins * self._width:
            if self._bins and self._work[-1][1] != self._finished:
                self._work.append([round(self.began + self._bins * self._width, PLACES), self._finished])
            for worker, bins in self._leads.items():
                bins.append(counts.lead(worker) if worker in counts.finished else None)
            self._bins += 1

    def _leads_by(self, worker: int, lead: int) -> None:
        bins = self._leads.setdefault(worker, [None] * self._bins)
        bins[-1] = max(bins[-1] or 0, lead)


def _timeline(
    run: RecordedRun, model: RunModel, builder: TimelineBuilder | None, slices: int, shown: Sequence[int]
) -> Contents:
    """Return the lanes of the workers in `shown`, in whole ticks since training began.

    Up to `slices` steps, each step is listed with its transfers, averages and the awaited worker before it. Of more
    steps, `each` steps in a row are one block, with its ticks of computing and of transfers.
    """
    if builder is not None:
        return drawn(builder.timeline(run.ledger), shown)
    stays = model.stays()
    steps = of_each(stays, read_steps(run.ledger))
    number = sum(
        sum(1 for _ in cut(stays[worker], its)) for worker, its in zip(stays, steps, strict=True) if worker in shown
    )
    if number > slices:
        return thinned(run.ledger, model, math.ceil(number / max(slices, 1)), shown)
    return drawn(read_timeline(run.ledger, run.history()), shown)  # most of the steps are of workers that are not shown


def drawn(timeline: Timeline, shown: Collection[int]) -> Contents:
    """Return the lanes of these workers step by step."""
    clock = _Clock.of(timeline.began, timeline.ended)
    chosen = [lane for lane in timeline.lanes if lane.worker in shown]
    lanes = [{"worker": lane.worker, "stays": _stays(lane.stays, clock), **_steps(lane, clock)} for lane in chosen]
    groups = {one.group: one for lane in chosen for one in lane.averaging}
    averages = [
        [number, clock(one.began), clock(one.ended), list(one.members), one.outcome]
        for number, one in sorted(groups.items())
    ]
    return _whole(clock, timeline.ended, 1, lanes, averages, timeline.switches, timeline.resumed)


def thinned(ledger: sqlite3.Connection, model: RunModel, each: int, shown: Collection[int]) -> Contents:
    """Return the lanes of these workers in blocks of `each` steps."""
    clock, stays = _Clock.of(model.began or 0.0, model.at), model.stays()
    steps, transfers = of_each(stays, read_steps(ledger)), of_each(stays, read_transfers(ledger))
    lanes = []
    for worker, its, moved in zip(stays, steps, transfers, strict=True):
        if worker in shown:
            blocks = _blocks(stays[worker], cut(stays[worker], its), moved, each, clock)
            lanes.append({"worker": worker, "stays": _stays(stays[worker], clock), **blocks})
    return _whole(clock, model.at, each, lanes, [], model.switches, model.resumed)


def _whole(
    clock: _Clock,
    ended: float,
    each: int,
    lanes: list[Contents],
    groups: list[Any],
    switches: Iterable[Switch],
    resumed: Iterable[ResumeMark],
) -> Contents:
    return {
        "tick": clock.tick,
        "ended": clock(ended),
        "each": each,
        "lanes": lanes,
        "groups": groups,
        "switches": [[clock(switch.since), clock(switch.at), switch.to] for switch in switches],
        "resumed": [[clock(one.at), one.version] for one in resumed],
    }


@dataclass(frozen=True, slots=True)
class _Clock:
    """Converts seconds to ticks."""

    began: float
    tick: float

    @classmethod
    def of(cls, began: float, ended: float) -> _Clock:
        return cls(began, 10.0 ** max(-6, math.ceil(math.log10(max(ended - began, 1e-6) / TICKS))))

    def __call__(self, at: float) -> int:
        return round((at - self.began) / self.tick)


def _steps(lane: WorkerLane, clock: _Clock) -> Contents:
    """Return the columns of a lane step by step.

    They are the gap before each step, its length, its number, its version, its staleness (-1: never applied), the
    worker awaited in the gap (-1: none), and for how long. There is one more gap after the last step. Growing numbers
    are written as differences from the one before. If parameters are on a device, there are the lengths of copies.
    """
    began = [clock(step.began) for step in lane.computing]
    ended = [clock(step.ended) for step in lane.computing]
    ends = [lane.stays[-1].ended if lane.stays else 0.0]
    gaps = zip(
        [lane.stays[0].began if lane.stays else 0.0, *(step.ended for step in lane.computing)],
        [*(step.began for step in lane.computing), *ends],
        strict=True,
    )
    awaited = list(_awaited(gaps, lane.waits))
    copied = any(step.copies for step in lane.computing)
    return {
        "gap": [start - before for start, before in zip(began, [0, *ended], strict=False)],
        "length": [end - start for start, end in zip(began, ended, strict=True)],
        "step": _differences([step.step for step in lane.computing]),
        "version": _differences([step.version for step in lane.computing]),
        "stale": [-1 if step.staleness is None else step.staleness for step in lane.computing],
        "awaited": [worker for worker, _ in awaited],
        "waited": [round(seconds / clock.tick) for _, seconds in awaited],
        "push": _transfers([one for one in lane.transfers if one.direction == "push"], clock),
        "pull": _transfers([one for one in lane.transfers if one.direction == "pull"], clock),
        **({"copies": [_ticks([one.to_device, one.from_device], clock) for one in lane.computing]} if copied else {}),
    }


def _ticks(lengths: Iterable[float | None], clock: _Clock) -> list[int | None]:
    return [None if seconds is None else round(seconds / clock.tick) for seconds in lengths]


def _awaited(gaps: Iterable[tuple[float, float]], waited: Sequence[WorkerWait]) -> Iterator[tuple[int, float]]:
    """Yield the worker awaited for most of each gap, and for how long. Gaps and waits are in the order of time."""
    at = 0
    for began, ended in gaps:
        while at < len(waited) and waited[at].ended <= began:
            at += 1
        seconds: defaultdict[int, float] = defaultdict(float)
        for wait in islice(waited, at, None):
            if wait.began >= ended:
                break
            if wait.awaited is not None:
                seconds[wait.awaited] += min(wait.ended, ended) - max(wait.began, began)
        yield max(seconds.items(), key=itemgetter(1), default=(-1, 0.0))


def _transfers(transfers: Sequence[TransferSpan], clock: _Clock) -> Contents:
    began = [clock(one.began) for one in transfers]
    return {
        "began": _differences(began),
        "length": [clock(one.ended) - start for one, start in zip(transfers, began, strict=True)],
        "number": _differences([one.number for one in transfers]),
    }


def _stays(stays: Iterable[Stay], clock: _Clock) -> list[Any]:
    return [[clock(stay.began), clock(stay.ended), stay.left] for stay in stays]


def _blocks(
    stays: Iterable[Stay], steps: Iterator[MeasuredStep], transfers: Iterator[TransferSpan], each: int, clock: _Clock
) -> Contents:
    """Join `each` steps into one block, which begins where the last one ended. A stay's end ends a block, too."""
    blocks: list[list[int]] = []  # began, ended, first step, steps, computing, transfers
    near = RecentSpans()
    transfer = next(transfers, None)
    step = next(steps, None)
    for stay in stays:
        free = stay.began
        while step is not None and step.began < stay.ended:
            part: list[MeasuredStep] = []
            while step is not None and step.began < stay.ended and len(part) < each:
                part.append(step)
                step = next(steps, None)
            end = part[-1].ended
            while transfer is not None and transfer.began < end:
                near.add(None, transfer.began, transfer.ended)
                transfer = next(transfers, None)
            moved = sum(overlap(since, until, free, end) for since, until in near.within(None, free, end))
            near.forget(free)
            computed = sum(one.ended - one.began for one in part)
            ticks = (clock(free), clock(end), part[0].step, len(part))
            blocks.append([*ticks, round(computed / clock.tick), round(min(moved, end - free) / clock.tick)])
            free = end
    names = ("began", "ended", "step", "count", "computing", "transfer")
    columns = zip(*blocks, strict=True) if blocks else ((),) * len(names)
    return {"blocks": dict(zip(names, map(list, columns), strict=True))}


def _differences(values: Sequence[int]) -> list[int]:
    """Return the first value, then each one's difference from the one before."""
    return [value - before for value, before in zip(values, [0, *values], strict=False)]


def page(contents: Contents) -> str:
    """Return the page that shows these contents. It contains them as JSON, and the library that draws its curves."""
    told = {key: value for key, value in contents.items() if key not in ("title", "opening")}
    data = json.dumps(told, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    folder = files("paceline.records.report")
    template, library = folder.joinpath("page.html"), folder.joinpath("uplot")
    parts = {
        "__TITLE__": escape(contents["title"]),
        "__OPENING__": contents["opening"],
        "__DATA__": data,
        "__LICENSE__": library.joinpath("LICENSE").read_text(encoding="utf-8"),
        "__CURVES_CSS__": library.joinpath("uPlot.min.css").read_text(encoding="utf-8"),
        "__CURVES_JS__": library.joinpath("uPlot.iife.min.js").read_text(encoding="utf-8"),
    }
    return re.sub("|".join(parts), lambda found: parts[found.group()], template.read_text(encoding="utf-8"))
