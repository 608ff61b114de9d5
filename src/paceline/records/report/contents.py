"""The contents of a report: numbers and words from ledgers, as one plain value that JSON can write.

Long runs are thinned out here, so that a report's size has a bound: everything in it but the runs' own sentences is
a fixed number of points a run, or a share of `SLICES`.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any

from paceline.core.choice import brief
from paceline.core.counts import Counts
from paceline.core.facts import Fact, StepDeclined, TrainingBegan, UpdateArrived, WorkerJoined, WorkerLeft
from paceline.core.orders import Order, StepReplica
from paceline.records.reading import LEDGER, RecordedRun, measure
from paceline.records.summary import Summary, Tally, metrics_of
from paceline.records.timeline import Lane, Timeline, Transfer, read_timeline
from paceline.records.waits import Wait, waits
from paceline.version import __version__

Contents = dict[str, Any]
History = Iterable[tuple[Fact, tuple[Order, ...]]]

SLICES = 50_000
"""How many steps all timelines of one report show one by one, together."""
WORKERS = 64
"""How many workers a run's charts of single workers show. Of more workers, those that waited most are shown."""
BINS = 300
"""Points of a curve over a run's time."""
PLACES = 6
"""Decimal places of seconds."""
TICKS = 1e7
"""A timeline's times are whole ticks: so many or fewer in a run, none shorter than a microsecond."""


def contents(runs: Sequence[RecordedRun], slices: int = SLICES) -> Contents:
    """Return the contents of a report of these runs. `slices`: steps that all timelines show one by one."""
    return {
        "paceline": __version__,
        "runs": [_run(run, label, slices // len(runs)) for run, label in zip(runs, labels(runs), strict=True)],
        "differences": differences([run.config for run in runs]),
    }


def labels(runs: Sequence[RecordedRun]) -> list[str]:
    """A short, unique name for each: its protocol; if that is not enough, its folder or number, too."""
    names = [brief(run.choice.spec, run.choice.parameters()) for run in runs]
    for longer in ([run.folder.absolute().name for run in runs], map(str, range(1, len(runs) + 1))):
        times = Counter(names)
        names = [f"{name} ({more})" if times[name] > 1 else name for name, more in zip(names, longer, strict=True)]
    return names


def differences(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Settings that differ between runs: `setting`, and its `values` as text, None where it is not set."""
    flat = [dict(_flat(config)) for config in configs]
    places = {key: place for place, key in enumerate(dict.fromkeys(key for config in configs for key in config))}
    settings = dict.fromkeys(setting for one in flat for setting in one)
    return [
        {"setting": setting, "values": values}
        for setting in sorted(settings, key=lambda setting: places[re.split(r"[.\[]", setting)[0]])
        if len(set(values := [one.get(setting) for one in flat])) > 1
    ]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each setting by its full name, as text."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for place, item in enumerate(value):
            yield from _flat(item, f"{path}[{place}]")
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        yield path, " ".join(value)
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


def summary_of(run: RecordedRun, history: History) -> Summary:
    """The run's own summary. Without one, what its history and ledger come to, up to where they end."""
    if run.summary is not None:
        return run.summary
    tally = Tally(left_undone=frozenset(run.ledger.execute("SELECT worker, step FROM undone")))
    for fact, orders in history:
        tally.record(fact, orders)
    measure(run.ledger, tally)
    return tally.summary(
        protocol=run.choice, workers=run.workers, threads=None, seed=run.seed, outcome="crashed", error=None
    )


def _run(run: RecordedRun, label: str, slices: int) -> Contents:
    history = list(run.history())
    summary = summary_of(run, history)
    timeline = read_timeline(run.folder / LEDGER, history)
    waited = waits(history, run.choice.sentence)
    shown = the_most_waiting(waited, [lane.worker for lane in timeline.lanes])
    evaluations = summary["evaluations"]
    return {
        "label": label,
        "folder": run.folder.absolute().name,
        "protocol": str(run.choice),
        "brief": brief(run.choice.spec, run.choice.parameters()),
        "family": run.choice.spec.family,
        "simulated": run.simulated,
        "unended": run.unended,
        "began": timeline.began,
        "ended": timeline.ended,
        "summary": {key: value for key, value in summary.items() if key not in ("evaluations", "consensus")},
        "metrics": {
            name: [[one["at_seconds"], one["samples"], one[name]] for one in evaluations if name in one]
            for name in metrics_of(evaluations)
        },
        "consensus": [[one["at_seconds"], one["distance"]] for one in summary["consensus"]],
        **curves(history, timeline.began, timeline.ended, shown),
        "waits": matrix(waited, shown),
        "hidden": len(timeline.lanes) - len(shown),
        "timeline": drawn(timeline, waited, slices, shown),
    }


def the_most_waiting(waited: Iterable[Wait], workers: Sequence[int]) -> list[int]:
    """At most `WORKERS` workers: those that waited, and were waited for, the longest; ascending."""
    seconds = dict.fromkeys(workers, 0.0)
    for wait in waited:
        for worker in (wait.worker, wait.awaited):
            if worker in seconds:
                seconds[worker] += wait.seconds
    return sorted(sorted(workers, key=lambda worker: -seconds[worker])[:WORKERS])


def curves(history: History, began: float, ended: float, shown: Sequence[int]) -> Contents:
    """`work`: [seconds, steps finished by all]; `leads`: the most that each of `shown` led by in each of `BINS`.

    A lead is steps finished beyond the slowest worker that is there; None where a worker was away all the time.
    """
    counts = Counts()
    width = (ended - began) / BINS or 1.0
    leads: dict[int, list[int | None]] = {}
    work: list[list[float]] = [[round(began, PLACES), 0]]
    finished = at = 0

    def open_until(now: float) -> None:
        """Begin the bins up to that time. In each, every worker begins with the lead that it had."""
        nonlocal at
        while at < BINS and now >= began + at * width:
            if at and work[-1][1] != finished:
                work.append([round(began + at * width, PLACES), finished])
            for worker, bins in leads.items():
                bins.append(counts.lead(worker) if worker in counts.finished else None)
            at += 1

    def enter(worker: int) -> None:
        counts.enter(worker)
        bins = leads.setdefault(worker, [None] * at)
        bins[-1] = max(bins[-1] or 0, counts.lead(worker))

    for fact, orders in history:
        open_until(max(fact.at, began))
        advanced = [order.worker for order in orders if isinstance(order, StepReplica)]
        match fact:
            case TrainingBegan(members=members):
                counts = Counts()
                for worker, _, _ in members:
                    enter(worker)
            case WorkerJoined(worker=worker):
                enter(worker)
            case UpdateArrived(worker=worker):
                advanced.append(worker)
            case StepDeclined(worker=worker) | WorkerLeft(worker=worker):
                if worker in counts.finished:
                    counts.leave(worker)
        advanced = [worker for worker in advanced if worker in counts.finished]
        for worker in advanced:
            counts.advance(worker)
            finished += 1
        for worker in advanced:
            bins = leads[worker]
            bins[-1] = max(bins[-1] or 0, counts.lead(worker))
    work.append([round(ended, PLACES), finished])
    return {
        "work": work,
        "leads": {
            "began": began,
            "width": width,
            "workers": [{"worker": worker, "lead": leads[worker]} for worker in shown if worker in leads],
        },
    }


def matrix(waited: Iterable[Wait], shown: Sequence[int]) -> Contents:
    """`seconds`: a row for each of `shown`, how long it waited for each of them; `nobody`: for none of them."""
    place = {worker: at for at, worker in enumerate(shown)}
    seconds = [[0.0] * len(shown) for _ in shown]
    nobody = [0.0] * len(shown)
    for wait in waited:
        row, column = place.get(wait.worker), place.get(-1 if wait.awaited is None else wait.awaited)
        if row is None:
            continue
        if column is None:
            nobody[row] += wait.seconds
        else:
            seconds[row][column] += wait.seconds
    return {
        "workers": list(shown),
        "seconds": [[round(cell, PLACES) for cell in row] for row in seconds],
        "nobody": [round(cell, PLACES) for cell in nobody],
    }


def drawn(timeline: Timeline, waited: Iterable[Wait], slices: int, shown: Sequence[int]) -> Contents:
    """A timeline in whole ticks since training began: the lanes of the workers in `shown`.

    Up to `slices` steps, each is there with its transfers, averages, and for whom was waited before it; beyond them,
    so many steps in a row as `each` says are one block, with the ticks of it that were computing, and transfers.
    """
    tick = 10.0 ** max(-6, math.ceil(math.log10(max(timeline.ended - timeline.began, 1e-6) / TICKS)))
    clock = _Clock(timeline.began, tick)
    chosen = [lane for lane in timeline.lanes if lane.worker in set(shown)]
    each = max(1, math.ceil(sum(len(lane.computing) for lane in chosen) / max(slices, 1)))
    by_worker: dict[int, list[Wait]] = {}
    for wait in sorted(waited, key=lambda wait: wait.began):
        by_worker.setdefault(wait.worker, []).append(wait)
    lanes = []
    for lane in chosen:
        parts = _steps(lane, by_worker.get(lane.worker, []), clock) if each == 1 else _blocks(lane, each, clock)
        stays = [[clock(stay.began), clock(stay.ended), stay.left] for stay in lane.stays]
        lanes.append({"worker": lane.worker, "stays": stays, **parts})
    groups = {one.group: one for lane in chosen for one in lane.averaging} if each == 1 else {}
    return {
        "tick": tick,
        "ended": clock(timeline.ended),
        "each": each,
        "lanes": lanes,
        "groups": [
            [number, clock(one.began), clock(one.ended), list(one.members), one.outcome]
            for number, one in sorted(groups.items())
        ],
        "switches": [[clock(switch.since), clock(switch.at), switch.to] for switch in timeline.switches],
    }


@dataclass(frozen=True, slots=True)
class _Clock:
    """Seconds to ticks."""

    began: float
    tick: float

    def __call__(self, at: float) -> int:
        return round((at - self.began) / self.tick)


def _steps(lane: Lane, waited: Sequence[Wait], clock: _Clock) -> Contents:
    """One by one: the gap before each step, its length, its number, the version it is computed on, its staleness (-1:
    never applied), who was awaited in the gap (-1: nobody) and how long; there is one more gap, after the last step.

    Numbers that only grow are said as differences, each from the one before.
    """
    began = [clock(step.began) for step in lane.computing]
    ended = [clock(step.ended) for step in lane.computing]
    ends = [lane.stays[-1].ended if lane.stays else 0.0]
    gaps = zip(
        [lane.stays[0].began if lane.stays else 0.0, *(step.ended for step in lane.computing)],
        [*(step.began for step in lane.computing), *ends],
        strict=True,
    )
    awaited = list(_awaited(gaps, waited))
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
    }


def _awaited(gaps: Iterable[tuple[float, float]], waited: Sequence[Wait]) -> Iterator[tuple[int, float]]:
    """The worker that was awaited for most of each gap, and for how long. Both are in the order of their times."""
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


def _transfers(transfers: Sequence[Transfer], clock: _Clock) -> Contents:
    began = [clock(one.began) for one in transfers]
    return {
        "began": _differences(began),
        "length": [clock(one.ended) - start for one, start in zip(transfers, began, strict=True)],
        "number": _differences([one.number for one in transfers]),
    }


def _blocks(lane: Lane, each: int, clock: _Clock) -> Contents:
    """Join so many steps into one block, which begins where the last one ended. A stay's end ends a block, too."""
    blocks: list[list[int]] = []  # began, ended, first step, steps, computing, transfers
    steps = [one.began for one in lane.computing]
    starts = [one.began for one in lane.transfers]
    at = 0
    for stay in lane.stays:
        free = stay.began
        until = bisect_left(steps, stay.ended)
        for first in range(at, until, each):
            part = lane.computing[first : min(first + each, until)]
            end = part[-1].ended
            moved = sum(
                max(0.0, min(one.ended, end) - max(one.began, free))
                for one in lane.transfers[max(0, bisect_left(starts, free) - 1) : bisect_left(starts, end)]
            )
            computed = sum(one.ended - one.began for one in part)
            ticks = (clock(free), clock(end), part[0].step, len(part))
            blocks.append([*ticks, round(computed / clock.tick), round(min(moved, end - free) / clock.tick)])
            free = end
        at = until
    names = ("began", "ended", "step", "count", "computing", "transfer")
    columns = zip(*blocks, strict=True) if blocks else ((),) * len(names)
    return {"blocks": dict(zip(names, map(list, columns), strict=True))}


def _differences(values: Sequence[int]) -> list[int]:
    """The first value, and then each one's difference from the one before."""
    return [value - before for value, before in zip(values, [0, *values], strict=False)]
