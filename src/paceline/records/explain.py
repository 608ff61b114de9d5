"""Explains a run in sentences with numbers: where its time went, which workers waited for which, and why."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from math import inf
from operator import itemgetter
from statistics import median
from typing import Any

from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
    WorkerResumed,
)
from paceline.core.orders import Release
from paceline.core.phrases import count, listed, workers_named
from paceline.core.reasons import Why
from paceline.errors import ConfigError
from paceline.records import violations
from paceline.records.averages import Average, AverageTracker, MovedBytes
from paceline.records.links import InTransit, LinkTraffic, links
from paceline.records.reading import RecordedRun
from paceline.records.segments import Segment
from paceline.records.update_outcomes import Dropped, Fate, Undone, UpdateOutcomes
from paceline.records.waits import LEAST, Blame, Waits, WorkerWait

WORTH_SAYING = 0.05
"""A share of the time. What takes less is not mentioned."""
SLOWER = 1.2
"""The ratio to the others' steps from which a worker is called slow."""
MOVED = {
    "version": "what training began with",
    "partial": "sums of members",
    "mean": "slices of means",
    "replica": "replicas",
    "other": "other things",
}
"""What moves between hosts if each worker owns a replica, by kind."""
SHARED = 0.75
"""A share of the waiting that a host's workers caused. A worker that caused more of it is named instead of the host."""
RATES = ((1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s"))
FEW = 3
"""The longest waits that are shown."""
SHOWN = 16
"""Workers with a row of their own, or with their step explained."""

MILDER = {
    "parameter-server": ("asp", "ssp"),
    "decentralized": ("ad-psgd", "ripples"),
}
"""By family: a protocol without waits for a particular worker, and one that smooths out short slowness."""


@dataclass(slots=True)
class DeviceCopies:
    """Seconds of copies to and from a device, or None if parameters are in memory.

    They overlap all other times, so no sum includes them.
    """

    to_device: float | None = None
    from_device: float | None = None

    def add(self, to_device: float | None, from_device: float | None) -> None:
        if to_device is not None:
            self.to_device = (self.to_device or 0.0) + to_device
        if from_device is not None:
            self.from_device = (self.from_device or 0.0) + from_device

    def __bool__(self) -> bool:
        return (self.to_device, self.from_device) != (None, None)

    def said(self, written: Callable[[float], str]) -> str:
        """Return a sentence about them. `written` formats seconds."""
        both = ("to", self.to_device), ("from", self.from_device)
        took = [f"copies {way} the device took {written(one)}" for way, one in both if one is not None]
        return f"{' and '.join(took).capitalize()}. They overlap the times above and add nothing to them."

    def plain(self) -> dict[str, float | None]:
        """Return JSON values; empty if there were no copies."""
        return {"to_device_seconds": self.to_device, "from_device_seconds": self.from_device} if self else {}


@dataclass(slots=True)
class Spent:
    """One worker's seconds in the run."""

    compute: float = 0.0
    wait: float = 0.0
    transfer: float = 0.0
    copies: DeviceCopies = field(default_factory=DeviceCopies)
    stayed: float = 0.0

    @property
    def other(self) -> float:
        """Time outside these parts: data, the worker's own optimizer, the script between steps."""
        return max(0.0, self.stayed - self.compute - self.wait - self.transfer)

    def share(self, seconds: float) -> float:
        """Return these seconds as a share of its time in the run."""
        return seconds / self.stayed if self.stayed else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One step's seconds, and its copies."""

    compute: float
    push: float
    copies: DeviceCopies


@dataclass(slots=True)
class Meanwhile:
    """The seconds that others waited for workers, and what these did meanwhile."""

    waited: float = 0.0
    computing: float = 0.0
    moving: float = 0.0
    """Not computing, while their versions or updates moved between hosts."""

    def add(self, other: Meanwhile) -> None:
        self.waited += other.waited
        self.computing += other.computing
        self.moving += other.moving


@dataclass(slots=True)
class WaitTotals:
    """Sums over all waits."""

    seconds: float = 0.0
    for_others: float = 0.0
    """Of these, seconds of waits that another worker's fact ended."""
    culprits: Counter[int] = field(default_factory=Counter)
    """By worker: seconds that others waited because of it."""
    victims: Counter[int] = field(default_factory=Counter)
    """By worker: seconds that it waited for others."""
    meanwhile: dict[int, Meanwhile] = field(default_factory=dict)
    """By worker: what it did during the waits for which it is most to blame."""


@dataclass(slots=True)
class Past:
    """The sums over a run, and the details of the worker or step in question."""

    run: RecordedRun
    worker: int | None = None
    """The worker in question; None: all."""
    step: int | None = None
    """The step in question; None: all."""
    spent: dict[int, Spent] = field(default_factory=dict)
    """By worker, ascending."""
    typical: dict[int, float] = field(default_factory=dict)
    """By worker that finished a step: the median of its steps, in seconds."""
    hosts: dict[int, str] = field(default_factory=dict)
    """By worker: its last host."""
    head: str = ""
    """The head's host."""
    links: list[LinkTraffic] = field(default_factory=list)
    """Links between hosts; none in a run on one host."""
    averaged: dict[tuple[str, str], Counter[int]] = field(default_factory=dict)
    """By source and host, and by worker: seconds of waiting for averages whose last part came over that link."""
    averages: list[Average] = field(default_factory=list)
    """The averages between hosts of the worker or step in question."""
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By worker: the first and the last step that it was released for."""
    waited: WaitTotals = field(default_factory=WaitTotals)
    waits: list[tuple[WorkerWait, dict[int, float]]] = field(default_factory=list)
    """The waits of the worker or step in question, each with its seconds by the worker to blame."""
    kept_waiting: Counter[int] = field(default_factory=Counter)
    """By worker: how often it waited because of the worker in question."""
    released: dict[int, tuple[float, int, Why]] = field(default_factory=dict)
    """By worker: the moment, version and reason of the release for the step in question."""
    measured: dict[int, Measured] = field(default_factory=dict)
    """By worker: the times of the step in question, if copies were measured in it."""
    ready: dict[int, float] = field(default_factory=dict)
    """By worker: when the gradient of the step in question was ready."""
    fates: dict[int, Fate] = field(default_factory=dict)
    """By worker: the outcome of the step's update."""
    settled: dict[int, float] = field(default_factory=dict)
    """By worker: when that outcome was decided."""

    def asked(self, worker: int, step: int) -> bool:
        """Whether this step of this worker is in question."""
        return self.worker in (None, worker) and self.step in (None, step)


def past(run: RecordedRun, worker: int | None = None, step: int | None = None) -> Past:
    """Read the run in one pass. `worker` and `step` are in question; None: all."""
    found = Past(run, worker, step)
    here: dict[int, float] = {}
    fates, holds, steps = UpdateOutcomes(), Waits(), _Steps(run, found.spent)
    moving, averages = InTransit(run.ledger, found.hosts), AverageTracker(run.ledger, found.hosts)
    blame = Blame(holds)
    at = 0.0
    for fact, orders in run.history():
        before, at = at, fact.at
        for undone in fates.fact(fact):
            if undone.step == step:
                found.fates[undone.worker] = undone
        match fact:
            case TrainingBegan(members=members):
                for one, since in here.items():  # the run was interrupted, and resumed here
                    found.spent.setdefault(one, Spent()).stayed += before - since
                here = {one: at for one, _, _ in members}
                found.hosts.update((one, host) for one, host, _ in members)
                found.head = members[0][1]
            case WorkerJoined(worker=one, host=host):
                here[one], found.hosts[one] = at, host
            case WorkerLeft(worker=one) if one in here:
                found.spent.setdefault(one, Spent()).stayed += at - here.pop(one)
            case GradientReady(worker=one) if fact.step == step:
                found.ready[one] = at
        for order in orders:
            if isinstance(order, Release):
                _release(found, order, at)
            for fate in fates.order(order):
                if fate.step == step:
                    found.fates[fate.worker], found.settled[fate.worker] = fate, at
        if (average := averages.record(fact, orders)) is not None:
            _averaged(found, steps, average)
        if ended := holds.record(fact, orders):
            _judge(found, blame, steps, moving, ended, at)
        steps.forget(min(blame.horizon(), averages.horizon()))
    _judge(found, blame, steps, moving, holds.rest(), inf)
    for one, since in here.items():
        found.spent.setdefault(one, Spent()).stayed += at - since
    found.spent = dict(sorted(found.spent.items()))
    found.typical = _typical(run, steps.finished)
    if step is not None:
        found.measured = _measured(run, step)
    found.links = links(run.ledger, found.hosts, found.averaged if run.choice.spec.in_groups else None)
    return found


def _release(found: Past, order: Release, at: float) -> None:
    first, last = found.steps.get(order.worker, (order.step, order.step))
    found.steps[order.worker] = min(first, order.step), max(last, order.step)
    if order.step == found.step:
        found.released[order.worker] = at, order.version, order.why


def _judge(
    found: Past, blame: Blame, steps: _Steps, moving: InTransit, ended: Iterable[WorkerWait], now: float
) -> None:
    """Add up the waits that can be judged by now."""
    steps.read(now)
    moving.read(now)
    waited, about_worker = found.waited, found.step is None and found.worker is not None
    for wait, due in blame.judge(ended):
        waited.seconds += wait.seconds
        if wait.awaited is not None:
            waited.for_others += wait.seconds
            waited.victims[wait.worker] += wait.seconds  # type: ignore[assignment]
        waited.culprits.update(due)
        if due:
            culprit = max(due, key=lambda worker: due[worker])
            computing = steps.computing(culprit, wait.began, wait.ended)
            moved = min(moving.seconds(culprit, wait.began, wait.ended), wait.seconds - computing)
            waited.meanwhile.setdefault(culprit, Meanwhile()).add(Meanwhile(wait.seconds, computing, max(0.0, moved)))
        if (found.worker, found.step) != (None, None) and found.asked(wait.worker, wait.step):
            found.waits.append((wait, due))
        if about_worker and found.worker in due:
            found.kept_waiting[wait.worker] += 1
    moving.forget(blame.horizon())


def _averaged(found: Past, steps: _Steps, average: Average) -> None:
    """Add up how long members waited for an average that has ended."""
    if average.last is None:  # it failed before anything moved, or a replay made it on one host
        return
    steps.read(average.ended)
    waited = found.averaged.setdefault(average.last, Counter())
    for worker in average.members:
        average.waited[worker] = steps.waiting(worker, average.began, average.ended)
        if average.waited[worker]:
            waited[worker] += average.waited[worker]  # type: ignore[assignment]
    if (found.worker, found.step) != (None, None) and any(found.asked(*one) for one in average.after.items()):
        found.averages.append(average)


class _Steps:
    """Reads the measured steps in the order of their beginnings, and keeps those that a wait may still overlap."""

    def __init__(self, run: RecordedRun, spent: dict[int, Spent]) -> None:
        self._spent = spent
        columns = "worker, began, compute, push, wait, pull, to_device, from_device"
        self._rows = run.ledger.execute(f"SELECT {columns} FROM step_times ORDER BY began")
        self._next = next(self._rows, None)
        self._steps: dict[int, list[tuple[float, float, float]]] = {}
        """By worker: when each kept step began and was computed, and when the worker went on, in order."""
        self._kept = 0
        self._most = LEAST
        self.finished: Counter[int] = Counter()
        """By worker."""

    def read(self, until: float) -> None:
        """Read the steps that began before `until`, and add up their times."""
        while self._next is not None and self._next[1] < until:
            worker, began, compute, push, wait, pull, *copies = self._next
            spent = self._spent.setdefault(worker, Spent())
            spent.compute += compute
            spent.wait += wait
            spent.transfer += push + pull
            spent.copies.add(*copies)
            self._steps.setdefault(worker, []).append((began, began + compute, began + compute + push + wait + pull))
            self.finished[worker] += 1
            self._kept += 1
            self._next = next(self._rows, None)

    def computing(self, worker: int, began: float, ended: float) -> float:
        """Return the worker's seconds of computing within this time."""
        return sum(
            max(0.0, min(computed, ended) - max(since, began)) for since, computed, _ in self._of(worker, began, ended)
        )

    def waiting(self, worker: int, began: float, ended: float) -> float:
        """Return the seconds within this time after which the worker had computed a step and not gone on."""
        return sum(
            max(0.0, min(goes_on, ended) - max(computed, began))
            for _, computed, goes_on in self._of(worker, began, ended)
        )

    def _of(self, worker: int, began: float, ended: float) -> Iterator[tuple[float, float, float]]:
        steps = self._steps.get(worker, [])
        at = max(0, bisect_right(steps, (began, began)) - 1)
        while at < len(steps) and steps[at][0] < ended:
            yield steps[at]
            at += 1

    def forget(self, before: float) -> None:
        """Forget the steps that ended before `before`, if there are many."""
        if self._kept <= self._most:
            return
        for steps in self._steps.values():
            del steps[: max(0, bisect_right(steps, (before, before)) - 1)]
        self._kept = sum(map(len, self._steps.values()))
        self._most = max(LEAST, 2 * self._kept)


def _typical(run: RecordedRun, finished: Mapping[int, int]) -> dict[int, float]:
    """Return the median of each worker's steps. The ledger sorts them, so they need not be in memory."""
    rows = run.ledger.execute(
        "SELECT worker, began + compute - began AS length FROM step_times ORDER BY worker, length"
    )
    found = {}
    for worker, lengths in groupby(rows, key=itemgetter(0)):
        of = finished[worker]
        found[worker] = median(length for _, length in islice(lengths, (of - 1) // 2, of // 2 + 1))
    return found


def _measured(run: RecordedRun, step: int) -> dict[int, Measured]:
    """Return this step's times by worker, if copies were measured in it."""
    rows = run.ledger.execute(
        "SELECT worker, compute, push, to_device, from_device FROM step_times "
        "WHERE step = ? AND coalesce(to_device, from_device) IS NOT NULL",
        (step,),
    )
    return {worker: Measured(compute, push, DeviceCopies(*copies)) for worker, compute, push, *copies in rows}


def sentences(past: Past) -> list[str]:
    """Explain the step or the worker in question, or else the whole run, in lines. Raises ConfigError."""
    if past.step is not None:
        return _of_step(past, past.step)
    return _verdict(past) if past.worker is None else _of_worker(past, past.worker)


def _verdict(past: Past) -> list[str]:
    """Explain the whole run: where its time went, which workers made others wait, and what would help."""
    if not past.spent or not past.typical:
        return ["No step was finished in this run: there is nothing to explain."]
    total = sum(spent.stayed for spent in past.spent.values())
    phases = {
        "computing": sum(spent.compute for spent in past.spent.values()),
        "waiting": sum(spent.wait for spent in past.spent.values()),
        "transferring": sum(spent.transfer for spent in past.spent.values()),
        "other things": sum(spent.other for spent in past.spent.values()),
    }
    parts = [f"{_percent(seconds, total)} {name}" for name, seconds in phases.items()]
    lines = [
        *_resumed(past),
        f"The workers spent {parts[0]}, {parts[1]}, {parts[2]} and {parts[3]}.",
        *_copied(past.spent.values(), "their"),
        "",
        *_table(past),
        "",
    ]
    lines += [*_who(past, total), *_links(past), *_carried(past)]
    unordered = phases["waiting"] - past.waited.seconds
    if unordered < WORTH_SAYING * total:
        return lines + _what_helps(past, phases, total)
    another, share = "Another " if past.waited.culprits else "", _percent(unordered, total)
    what = "averages" if past.run.choice.spec.in_groups else "the store"
    lines.append(f"{another}{share} of the time went to waiting for {what}, messages or a core.")
    crowded = _crowded(past, share)
    helps = [] if crowded and unordered >= max(phases.values()) / 2 else _what_helps(past, phases, total)
    return [*lines, *crowded, *helps]


def _copied(spent: Iterable[Spent], whose: str) -> Iterator[str]:
    """Yield a sentence about copies to and from devices, if there were any."""
    copies, stayed = DeviceCopies(), 0.0
    for one in spent:
        copies.add(one.copies.to_device, one.copies.from_device)
        stayed += one.stayed if one.copies else 0.0
    if copies:
        yield copies.said(lambda seconds: f"{_percent(seconds, stayed)} of {whose} time")


def _resumed(past: Past) -> Iterator[str]:
    """Yield a sentence for each time that the run was resumed."""
    for segment in past.run.segments[1:]:
        resumed = f"The run was resumed from version {segment.version}, {_seconds(segment.at)} after its start"
        if not segment.undone:
            yield f"{resumed}. Nothing was undone."
            continue
        aside = f" and are in {listed(segment.undone.files)}" if segment.undone.files else ""
        yield f"{resumed}. Undone were {segment.undone}, which are not counted below{aside}."


def _of_worker(past: Past, worker: int) -> list[str]:
    """Explain one worker: where its time went, and its waits. Raises ConfigError if there is no such worker."""
    _known(past, worker)
    spent = past.spent[worker]
    lines = [
        f"Worker {worker} was in the run for {_seconds(spent.stayed)}: {_percent(spent.compute, spent.stayed)} "
        f"computing, {_percent(spent.wait, spent.stayed)} waiting, {_percent(spent.transfer, spent.stayed)} "
        f"transferring, {_percent(spent.other, spent.stayed)} other things.",
        *_copied([spent], "its"),
    ]
    if past.waits:
        due_to: Counter[int] = Counter()
        for _, due in past.waits:
            due_to.update(due)
        parts = [f"{_seconds(seconds)} {_for(other)}" for other, seconds in due_to.most_common()]
        if nobody := sum(wait.seconds for wait, due in past.waits if not due):
            parts.append(f"{_seconds(nobody)} {_for(None)}")
        lines.append(f"It was told to wait {_times(len(past.waits))}: {listed(parts)}.")
    else:
        lines.append("It was never told to wait.")
    if others := past.kept_waiting:
        lines.append(
            f"{workers_named(set(others)).capitalize()} waited for it, {_times(others.total())}, "
            f"{_seconds(past.waited.culprits[worker])} in all."
        )
    for link in past.links:
        for what, waited in link.waited.items():
            if worker in waited:
                seconds, share = _seconds(waited[worker]), _percent(waited[worker], spent.stayed)
                of = "its updates" if what == "updates" else what
                lines.append(f"It waited {seconds}, {share} of its time, for {of} on the link {link}.")
    for wait, due in sorted(past.waits, key=lambda one: -one[0].seconds)[:FEW]:
        when = "Before its first step" if wait.step < 0 else f"After step {wait.step}"
        lines.append(f"{when}: {_wait(past, wait, due)}")
    for one in sorted((one for one in past.averages if one.waited[worker]), key=lambda one: -one.waited[worker])[:FEW]:
        when = "Before its first step" if one.after[worker] < 0 else f"After step {one.after[worker]}"
        lines.append(f"{when}: {_average(one, worker)}")
    return lines


def _of_step(past: Past, step: int) -> list[str]:
    """Explain a step of one worker, or of all that had it. Raises ConfigError, with the range, if none had it."""
    if past.worker is not None:
        _known(past, past.worker)
    having = [one for one in past.spent if one in past.released and past.asked(one, step)]
    if not having:
        steps = [number for one, both in past.steps.items() if past.worker in (None, one) for number in both]
        who = "the workers" if past.worker is None else f"worker {past.worker}"
        began = f"{who} began steps {min(steps)} to {max(steps)}" if steps else f"{who} began no step"
        raise ConfigError(f"--step {step}: {began}; name one of these")
    lines = [line for one in having[:SHOWN] for line in _step(past, one, step)]
    if rest := having[SHOWN:]:
        lines.append(f"{workers_named(rest).capitalize()} had step {step}, too: --worker W tells one of them.")
    return lines


def numbers(past: Past) -> dict[str, Any]:
    """Return the numbers behind the sentences, for the worker or step in question, or for the whole run.

    For the whole run, `others_waited_seconds` takes the place of single waits.
    """
    shown = [one for one in past.spent if past.worker in (None, one) and (past.step is None or one in past.released)]
    workers = [
        {
            "worker": one,
            **({"host": past.hosts[one]} if past.links else {}),
            "seconds": spent.stayed,
            "compute_seconds": spent.compute,
            "wait_seconds": spent.wait,
            "transfer_seconds": spent.transfer,
            "other_seconds": spent.other,
            **spent.copies.plain(),
            "step_seconds": past.typical.get(one),
            "others_waited_seconds": float(past.waited.culprits[one]),
        }
        for one, spent in ((one, past.spent[one]) for one in shown)
    ]
    if past.worker is None and past.step is None:
        found = {"workers": workers, "segments": [_segment(one) for one in past.run.segments]}
        return {**found, "links": [_link(one) for one in past.links]} if past.links else found
    its = [
        {
            "worker": wait.worker,
            "after_step": wait.step,
            "began_seconds": wait.began,
            "ended_seconds": wait.ended,
            "awaited": wait.awaited,
            "due_to": {str(other): seconds for other, seconds in due.items()},
            "why": past.run.sentence(wait.why, wait.began),
            "fact": wait.cause,
        }
        for wait, due in past.waits
    ]
    averages = {"averages": [_plain(one) for one in past.averages]} if past.averages else {}
    if past.step is None:
        return {"workers": workers, "waits": its, **averages}
    steps = [
        {
            "worker": one,
            "step": past.step,
            "released_seconds": past.released[one][0],
            "version": past.released[one][1],
            "why": past.run.sentence(past.released[one][2], past.released[one][0]),
            "ready_seconds": past.ready.get(one),
            **(past.measured[one].copies.plain() if one in past.measured else {}),
            "update": None if one not in past.fates else _became(past, past.fates[one]),
        }
        for one in shown
    ]
    return {"workers": workers, "waits": its, "steps": steps, **averages}


def _link(link: LinkTraffic) -> dict[str, Any]:
    return {
        "source": link.source,
        "host": link.host,
        "bytes": link.bytes,
        "busy_seconds": link.busy.seconds,
        **{
            f"waited_for_{what}_seconds": {str(worker): seconds for worker, seconds in waited.items()}
            for what, waited in link.waited.items()
        },
        "kinds": _kinds(link.kinds),
    }


def _plain(average: Average) -> dict[str, Any]:
    source, host = average.last or (None, None)
    return {
        "group": average.group,
        "what": average.what,
        "members": list(average.members),
        "hosts": list(average.hosts),
        "began_seconds": average.began,
        "ended_seconds": average.ended,
        "outcome": average.outcome,
        "waited_seconds": {str(worker): seconds for worker, seconds in average.waited.items()},
        "moved": [
            {"source": source, "host": host, "kinds": _kinds(kinds)} for (source, host), kinds in average.moved.items()
        ],
        "last": {"source": source, "host": host},
    }


def _kinds(kinds: Mapping[str, MovedBytes]) -> dict[str, Any]:
    return {kind: {"bytes": one.bytes, "busy_seconds": one.busy.seconds} for kind, one in kinds.items()}


def _segment(segment: Segment) -> dict[str, Any]:
    undone = segment.undone
    return {
        "began_seconds": segment.at,
        "version": segment.version,
        "workers": segment.workers,
        "protocol": segment.choice.to_plain(),
        "undone": {"versions": undone.versions, "samples": undone.samples, "seconds": undone.seconds},
    }


def _became(past: Past, fate: Fate) -> str:
    """Return an update's outcome as a clause."""
    if isinstance(fate, Undone):
        return "was undone: the run was interrupted before it went into a version, and its samples were used again"
    if isinstance(fate, Dropped):
        return f"was dropped: {past.run.sentence(fate.why, past.settled[fate.worker])}"
    what = "its replica's version" if fate.replica else "the store's version"
    if fate.group is not None:
        what = f"the mean gradient of group {fate.group}, every replica's version"
    between = violations.count(fate.staleness, "version") if fate.staleness else "with no other"
    return f"went into {what} {fate.version}, {between} made in between"


def _table(past: Past) -> list[str]:
    names = ("host", *(past.hosts[worker] for worker in past.spent))
    wide = max(len(name) for name in names) + 2 if past.links else 0
    host = f"{'host':<{wide}}" if wide else ""
    lines = [f"{host}worker  computing  waiting  transfer   other   a step takes   others waited for it"]
    blamed = past.waited.culprits
    worst = sorted(past.spent, key=lambda worker: (-blamed[worker], worker))[:SHOWN]
    for worker, spent in past.spent.items():
        if worker not in worst:
            continue
        cells = [spent.share(seconds) for seconds in (spent.compute, spent.wait, spent.transfer, spent.other)]
        takes = _seconds(past.typical[worker]) if worker in past.typical else "-"
        host = f"{past.hosts[worker]:<{wide}}" if wide else ""
        waited = _seconds(blamed[worker]) if blamed[worker] else "-"
        shares = f"{cells[0]:>9.0%}  {cells[1]:>7.0%}  {cells[2]:>8.0%}  {cells[3]:>6.0%}"
        lines.append(f"{host}{worker:>6}  {shares}   {takes:>12}   {waited:>20}")
    if rest := len(past.spent) - len(worst):
        lines.append(f"and {violations.count(rest, 'more worker')}, for which others waited no longer")
    without = {one for link in past.links for one in (link.source, link.host)} - {past.head, *past.hosts.values()}
    did = "took no part" if past.run.choice.spec.in_groups else "made a part of every version"
    return [*lines, *(f"host {host} had no workers, and {did}" for host in sorted(without))]


def _who(past: Past, total: float) -> list[str]:
    """Say which workers made others wait most, and which worker waited most."""
    waited, blamed = past.waited.seconds, past.waited.culprits
    if not blamed or waited < WORTH_SAYING * total:
        if not waited:
            return ["No worker waited for another."]
        return [f"Workers waited for one another for {_percent(waited, total)} of their time."]
    victim, most = past.waited.victims.most_common(1)[0]
    culprits, name = _culprits(past)
    seconds = sum(blamed[worker] for worker in culprits)
    others = sum(spent.stayed for worker, spent in past.spent.items() if worker not in culprits)
    return [
        f"{name[0].upper()}{name[1:]} made the others wait most: {_percent(seconds, others)} of their time, "
        f"{_seconds(seconds)} in all, which is {_percent(seconds, sum(blamed.values()))} of what they waited for each "
        "other.",
        _meanwhile(past, culprits),
        f"Worker {victim} suffered most: it waited for others {_seconds(most)}, "
        f"{_percent(most, past.spent[victim].stayed)} of its time.",
    ]


def _culprits(past: Past) -> tuple[list[int], str]:
    """Return the workers that made others wait most, one or those of a host, and what to call them."""
    if (host := _blamed_host(past)) is not None:
        return [worker for worker in past.spent if past.hosts[worker] == host], f"the workers of {host}"
    culprit, _ = past.waited.culprits.most_common(1)[0]
    return [culprit], f"worker {culprit}"


def _blamed_host(past: Past) -> str | None:
    """Return the host whose workers made others wait most, if not mainly one of them did."""
    hosts: Counter[str] = Counter()
    for worker, seconds in past.waited.culprits.items():
        if past.links:
            hosts[past.hosts[worker]] += seconds
    if not hosts:
        return None
    host, seconds = hosts.most_common(1)[0]
    most = max(past.waited.culprits[worker] for worker in past.spent if past.hosts[worker] == host)
    return host if most < SHARED * seconds else None


def _links(past: Past) -> Iterator[str]:
    """Yield a sentence for each link that took much of workers' time, the worst first."""
    found = []
    for link in past.links:
        for what, waited in link.waited.items():
            worth = [worker for worker in waited if past.spent[worker].share(waited[worker]) >= WORTH_SAYING]
            seconds, stayed = sum(waited[one] for one in worth), sum(past.spent[one].stayed for one in worth)
            if worth:
                who = workers_named(worth).capitalize()
                if len(worth) > 1 and len(worth) == len(waited) and len({past.hosts[one] for one in worth}) == 1:
                    who = f"The workers of {past.hosts[worth[0]]}"
                whose = "its" if len(worth) == 1 else "their"
                of = f"{whose} {what}" if what == "updates" else what
                share = f"{_percent(seconds, stayed)} of {whose} time"
                line = f"{who} waited {share} for {of} on the link {link}: {_rate(link.rate)} while anything moved."
                found.append((seconds, line))
    for _, line in sorted(found, key=lambda one: -one[0]):
        yield line


def _carried(past: Past) -> Iterator[str]:
    """If workers own replicas, yield a sentence about what each link carried, the busiest first."""
    if not past.run.choice.spec.in_groups:
        return
    busiest = sorted(past.links, key=lambda link: -link.busy.seconds)
    for link in busiest[:SHOWN]:
        yield f"The link {link} carried {_what_moved(link.kinds)}."
    if rest := busiest[SHOWN:]:
        yield f"{violations.count(len(rest), 'more link')} carried things for a shorter time."


def _what_moved(kinds: Mapping[str, MovedBytes]) -> str:
    there = [(MOVED[kind], kinds[kind]) for kind in MOVED if kind in kinds]
    return listed([f"{_bytes(one.bytes)} of {name} in {_seconds(one.busy.seconds)}" for name, one in there])


def _meanwhile(past: Past, culprits: Sequence[int]) -> str:
    """Say what the culprits did while the others waited."""
    its, culprit = Meanwhile(), culprits[0]
    for worker in culprits:
        its.add(past.waited.meanwhile.get(worker, Meanwhile()))
    one = len(culprits) == 1
    text = (
        f"While they waited for {'it, it was' if one else 'them, they were'} computing for "
        f"{_percent(its.computing, its.waited)} of the time"
    )
    if its.moving >= WORTH_SAYING * its.waited:
        what = "what it needed or had made was" if one else "what they needed or had made was"
        ends = f"{past.hosts[culprit]} and {_other_end(past, past.hosts[culprit])}"
        text += f", and for {_percent(its.moving, its.waited)} of it {what} between {ends}"
    ratio = _ratio(past, culprits) if one else None
    if ratio is not None and ratio >= SLOWER:
        return f"{text}: a step takes it {ratio:.1f} times as long as the others."
    if ratio is not None:
        return f"{text}, though its steps take no longer than the others' ({ratio:.2f} times): now and then one does."
    return f"{text}."


def _other_end(past: Past, host: str) -> str:
    """Return what to call the other ends of this host's links."""
    ends = {one for link in past.links for one in (link.source, link.host) if host in (link.source, link.host)}
    return "the head" if ends - {host} == {past.head} else "other hosts"


def _what_helps(past: Past, phases: Mapping[str, float], total: float) -> list[str]:
    waited = past.waited.for_others
    spec = past.run.choice.spec
    lines = []
    if waited >= WORTH_SAYING * total:
        culprits, whose = _culprits(past)
        seconds = sum(past.waited.culprits[worker] for worker in culprits)
        others = sum(spent.stayed for worker, spent in past.spent.items() if worker not in culprits)
        never, seldom = MILDER[spec.family]
        ratio = _ratio(past, culprits)
        steady = ratio is not None and ratio >= SLOWER
        names = [name for name in ((never,) if steady else (seldom, never)) if name != spec.name]
        if names:
            whom = whose if steady else "one slow step"
            price = "staler parameters" if spec.family == "parameter-server" else "replicas that agree less"
            most = f"{others / (others - seconds):.1f} times as many steps" if others > seconds else "many more steps"
            lines += [
                f"{' or '.join(names)} would not make the others wait for {whom}: at the very best they would do "
                f"{most} in the same time, on {price}.",
                _prediction(past, names),
            ]
        if steady:
            lines.append(f"Or give {whose} less to do, or a machine like the others'.")
    if phases["transferring"] >= max(WORTH_SAYING * total, phases["computing"] / 2):
        than = "" if phases["transferring"] < waited else ", and would help more than another protocol"
        network = past.run.config.get("scenario", {}).get("network")  # without one, memory that all workers map
        how = "larger batches make" if network is None else "a faster network or larger batches make"
        if past.links:
            worst = max(past.links, key=lambda link: sum(sum(waited.values()) for waited in link.waited.values()))
            how = f"a faster link {worst} or larger batches make"
        lines.append(f"Transfers took {_percent(phases['transferring'], total)} of the time: {how} that less{than}.")
    if not lines:
        lines.append(
            f"Computing took {_percent(phases['computing'], total)} of the time: another protocol can't win back more "
            f"than the {_percent(phases['waiting'] + phases['transferring'], total)} of waiting and transfers."
        )
    return lines


def _prediction(past: Past, names: Sequence[str]) -> str:
    """Say how to predict the pace of these protocols."""
    protocols, scenario = f"-p {past.run.choice} -p {' -p '.join(names)}", past.run.scenario
    if not scenario.links_hosts:
        return (
            f"paceline simulate --from {past.run.folder} {protocols} predicts the pace; only a run shows the accuracy."
        )
    if scenario.compute is None:  # links between hosts can be simulated only from a scenario with compute
        return "Only a run shows the pace and the accuracy."
    return (
        f"paceline simulate with the run's scenario file and {protocols} predicts the pace; only a run shows the "
        "accuracy."
    )


def _crowded(past: Past, share: str) -> list[str]:
    """Say what helps on machines with fewer cores than threads; nothing if the cores are unknown."""
    run = past.run
    environment = run.config.get("environment", {})
    if run.simulated or "cores" not in environment:
        return []
    hosts = environment.get("hosts")
    if hosts is None:
        return _waited_for_cores(run.workers, run.config.get("threads") or 1, environment["cores"], "", share)
    machines = list(dict.fromkeys(noted["boot"] for noted in hosts.values()))
    lines = []
    for boot in machines:
        there = [host for host, noted in hosts.items() if noted["boot"] == boot]
        workers = sum(past.hosts[worker] in there for worker in past.spent)
        threads, cores = (max(hosts[host][what] for host in there) for what in ("threads", "cores"))
        of = f" of {listed(there)}" if len(machines) > 1 else ""
        lines += _waited_for_cores(workers, threads, cores, of, share)
    return lines


def _waited_for_cores(workers: int, threads: int, cores: int, of: str, share: str) -> list[str]:
    """Say what helps on one machine, if it has fewer cores than threads. `of`: whose cores they are."""
    if workers * threads <= cores:
        return []
    each = "" if threads == 1 else f" with {threads} threads each"
    fewer = "fewer workers (-n)" if threads == 1 else "--threads 1, or fewer workers (-n)"
    return [
        f"There were {count(workers, 'worker')}{each} on {count(cores, 'core')}{of}, so that some waited for one: "
        f"{fewer} would make less of the {share}."
    ]


def _step(past: Past, worker: int, step: int) -> list[str]:
    at, version, why = past.released[worker]
    because = past.run.sentence(why, at)
    lines = [
        f"Step {step} of worker {worker} was released {_seconds(at)} into the run, on version {version}: {because}."
    ]
    ready = past.ready.get(worker)
    if ready is None:
        lines.append("It was never finished.")
    else:
        typical = past.typical.get(worker)
        usual = "" if typical is None else f" (computing one takes this worker {_seconds(typical)} as a rule)"
        lines.append(f"Its gradient was ready {_seconds(ready - at)} later{usual}.")
    if (measured := past.measured.get(worker)) is not None:
        lines.append(
            f"It computed for {_seconds(measured.compute)} and pushed for {_seconds(measured.push)}. "
            f"{measured.copies.said(_seconds)}"
        )
    its = [_wait(past, wait, due) for wait, due in past.waits if wait.worker == worker]
    its += [_average(one, worker) for one in past.averages if one.after.get(worker) == step]
    lines += its
    if not its and ready is not None:
        lines.append("After it the worker was not told to wait.")
    if worker in past.fates:
        lines.append(f"Its update {_became(past, past.fates[worker])}.")
    return lines


def _wait(past: Past, wait: WorkerWait, due: Mapping[int, float]) -> str:
    behind = max(due, key=lambda worker: due[worker], default=wait.awaited)
    itself = "" if behind == wait.awaited else f", which waited for worker {behind} itself"
    ended = "it had not ended by the end of the ledger" if wait.fact is None else _fact(wait.fact)
    if wait.fact is None and any(segment.at >= wait.ended for segment in past.run.segments[1:]):
        ended = "the run was interrupted"
    number = "" if wait.cause is None else f" (fact {wait.cause})"
    why = past.run.sentence(wait.why, wait.began)
    return f"It waited {_seconds(wait.seconds)} {_for(wait.awaited)}{itself}, as {why}; then {ended}{number}."


def _average(average: Average, worker: int) -> str:
    """Say how long the worker waited for this average, and what moved for it."""
    whose = f"the {average.what} of {workers_named(average.members)} on {listed(average.hosts)}"
    took = f"{average.outcome} after {_seconds(average.ended - average.began)}"
    moved = "; ".join(
        f"{source} → {host} brought {_what_moved(kinds)}" for (source, host), kinds in average.moved.items()
    )
    assert average.last is not None
    seconds = average.waited[worker]
    waited = f"It waited {_seconds(seconds)} for" if seconds else "It did not wait for"
    return (
        f"{waited} group {average.group}, which averaged {whose} and {took}. "
        f"The link {moved}. The last part came over {' → '.join(average.last)}."
    )


def _fact(fact: Fact) -> str:
    """Return a fact as a clause."""
    match fact:
        case GradientReady(worker=worker, step=step):
            return f"the gradient of step {step} of worker {worker} was ready"
        case UpdateArrived(worker=worker, step=step):
            return f"the update of step {step} of worker {worker} arrived"
        case ParametersTaken(worker=worker, version=version):
            return f"worker {worker} had pulled version {version}"
        case StepDeclined(worker=worker, paused=True):
            return f"worker {worker} began to wait for the others in agree()"
        case WorkerResumed(worker=worker):
            return f"worker {worker} went on after agree()"
        case StepDeclined(worker=worker, step=step):
            return f"worker {worker} had no data left for step {step}"
        case WorkerLeft(worker=worker, reason=reason):
            return f"worker {worker} left ({reason})"
        case WorkerJoined(worker=worker):
            return f"worker {worker} joined"
        case ReduceFinished(group=group):
            return f"group {group} had averaged"
        case ReduceFailed(group=group):
            return f"group {group} failed"
        case ReplicaCopied(source=source, worker=worker):
            return f"worker {worker} had its copy of worker {source}'s replica"
        case TrainingBegan():
            return "training began"


def _known(past: Past, worker: int) -> None:
    if worker not in past.spent:
        known = f"workers {min(past.spent)} to {max(past.spent)}" if past.spent else "no workers"
        raise ConfigError(f"--worker {worker}: this run had {known}; name one of these")


def _ratio(past: Past, workers: Sequence[int]) -> float | None:
    """Return the ratio of these workers' median step to the others'; None if it is unknown."""
    theirs = [seconds for worker, seconds in past.typical.items() if worker in workers]
    others = [seconds for worker, seconds in past.typical.items() if worker not in workers]
    if not theirs or not others or not median(others):
        return None
    return median(theirs) / median(others)


def _for(awaited: int | None) -> str:
    return "for no particular worker" if awaited is None else f"for worker {awaited}"


def _rate(rate: float) -> str:
    unit, name = max(((one, name) for one, name in RATES if rate >= one), default=RATES[0])
    return f"{rate / unit:.3g} {name}"


def _bytes(size: float) -> str:
    return _rate(size).removesuffix("/s")


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.1f} ms" if 0 < round(milliseconds, 1) < 10 else f"{milliseconds:.0f} ms"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0.0:.0%}".replace("%", " %")


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
