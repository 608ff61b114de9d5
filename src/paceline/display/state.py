"""The view of a run at one moment, derived from what the run counts anyway."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from paceline.coordinator.evaluation import Evaluation
from paceline.coordinator.member import Member
from paceline.core.reasons import Why, awaited, sentence
from paceline.host.cluster import Cluster
from paceline.job.settings import Settings
from paceline.records.summary import Tally, Target, first_logged

WINDOW = 5.0
"""Seconds over which a speed is averaged."""
WAITING = "waiting"
NAMED = 16
"""The most numbers and ranges of workers in one list."""


class State(NamedTuple):
    """What a worker does."""

    doing: str
    """`starting`, `computing`, `pushing`, `waiting` or `idle`; of a worker that left, how it did."""
    awaited: str = ""
    """The workers that it waits for; empty if it waits for something else."""
    why: str = ""
    """Why it waits, if not for workers."""

    def __str__(self) -> str:
        if self.awaited:
            return f"{self.doing} for {self.awaited}"
        return f"{self.doing}: {self.why}" if self.why else self.doing


@dataclass(frozen=True, slots=True)
class Row:
    """One worker at this moment."""

    worker: int
    steps: int
    """Steps whose updates are applied."""
    speed: float
    """Recent steps a second."""
    state: State
    lead: int | None
    """None if it takes no part."""
    stale: int | None
    """The staleness of its last applied update; None before that."""
    logged: tuple[str, float] | None
    """The last logged value: the loss, if there is one."""
    awaited_by: int = 0
    """How many workers are known to wait for it."""


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of the versions evaluated so far."""

    metric: str
    value: float | None
    """The best value if there is a target, else the last version's; None before the first."""
    target: str | None = None
    """The target as typed."""
    met: float | None = None
    """When the first version that meets the target was made, in seconds since training began."""


@dataclass(frozen=True, slots=True)
class View:
    """All workers at this moment."""

    seconds: float
    """Since training began."""
    steps: int
    speed: float
    done: float | None
    """The share of the run that is done, 0 to 1; None if its length is unknown."""
    rows: tuple[Row, ...]
    passed: float | None = None
    """Real seconds since training began, if `seconds` are virtual; else None."""
    until: str = ""
    """What ends the run, if it has a name: `20 epochs`, `--max-steps 400`."""
    curve: tuple[float, ...] = ()
    """The workers' mean loss, or another logged value, over the run."""
    evaluated: tuple[int, int] | None = None
    """How many of the recorded versions are evaluated; None during training."""
    scores: tuple[Score, ...] = ()
    samples: int | None = None
    """Samples in these steps; None if they are not counted."""
    samples_speed: float | None = None
    """Recent samples a second."""
    epoch: tuple[int, int] | None = None
    """The present epoch, from 1, and how many there are; None if unknown."""

    @property
    def left(self) -> float | None:
        """Seconds until the end at the present pace."""
        passed = self.seconds if self.passed is None else self.passed
        return passed * (1 - self.done) / self.done if self.done else None

    @property
    def logged(self) -> tuple[str, float] | None:
        """The name and mean of the workers' last logged values."""
        return _mean(self.rows)

    @property
    def evaluates(self) -> bool:
        """Whether recorded versions are being evaluated."""
        return self.evaluated is not None and self.evaluated[0] < self.evaluated[1]

    @property
    def trains(self) -> bool:
        """Whether any worker takes part."""
        return any(row.lead is not None for row in self.rows)


def _mean(rows: Iterable[Row]) -> tuple[str, float] | None:
    logged = [row.logged for row in rows if row.logged]
    if not logged:
        return None
    values = [value for name, value in logged if name == logged[0][0]]
    return logged[0][0], sum(values) / len(values)


class Curve:
    """A value's curve in few points. If there are too many, neighbours are replaced by their mean."""

    MOST = 128

    def __init__(self) -> None:
        self.points: list[float] = []
        self._each = 1
        """Values in a point."""
        self._open: list[float] = []
        """Values of the next point."""

    def add(self, value: float) -> None:
        """Add the next value. NaN and infinities are left out."""
        if not math.isfinite(value):
            return
        self._open.append(value)
        if len(self._open) < self._each:
            return
        self.points.append(sum(self._open) / self._each)
        self._open.clear()
        if len(self.points) == self.MOST:
            self.points = [(one + other) / 2 for one, other in zip(self.points[::2], self.points[1::2], strict=True)]
            self._each *= 2


class Watch:
    """Makes views from the members and the tally. It keeps workers' steps of the last few seconds, for speeds."""

    def __init__(
        self,
        settings: Settings,
        members: Mapping[int, Member],
        cluster: Cluster,
        tally: Tally,
        evaluation: Evaluation,
        hosts: Mapping[int, str],
        reasons: Mapping[str, str],
    ) -> None:
        """`hosts`: by worker, if there are several. `reasons`: the sentences of why workers wait, by code."""
        self.work: int | None = None
        """Samples in the whole run, or steps if samples are not counted; None if unknown."""
        self.epochs: int | None = None
        """The epochs of `work`, if known."""
        self.passed: Callable[[], float] | None = None
        """See `View.passed`."""
        self.share: Callable[[], float] | None = None
        """The share done of a simulation's limit, 0 to 1."""
        self._settings = settings
        self._hosts = hosts
        self._members = members
        self._tally = tally
        self._cluster = cluster
        self._evaluation = evaluation
        self._reasons = reasons
        self._before: deque[tuple[float, dict[int, int], int | None]] = deque()
        self._curve = Curve()

    def begin(self, at: float) -> None:
        """Begin training at this moment, or go on. Speeds count from here."""
        self._before.clear()
        self._before.append((at, self._steps(), samples_of(self._tally)))

    def epoch_opened(self, samples: int, epochs: int | None, passes: int = 1) -> None:
        """Note the samples of a pass, the script's epochs, and the passes of an epoch."""
        self.epochs = self._settings.epochs or epochs
        if self.work is None and self.epochs is not None:
            self.work = samples * passes * self.epochs

    def look(self, at: float) -> View:
        """Return the view at this moment, in seconds since the run's start."""
        shares = self._tally.shares
        steps = self._steps()
        samples = samples_of(self._tally)
        for _, earlier, _ in self._before:
            earlier.update(
                (worker, steps[worker]) for worker in steps.keys() - earlier.keys()
            )  # workers that joined later
        while len(self._before) > 1 and self._before[1][0] <= at - WINDOW:
            self._before.popleft()
        then, before, had = self._before[0] if self._before else (at, steps, samples)  # none before `begin`
        self._before.append((at, steps, samples))
        speeds = {worker: max(0, steps[worker] - before[worker]) / max(at - then, 1e-9) for worker in steps}
        counts = self._tally.model.counts
        leads = {worker: counts.lead(worker) if worker in counts.finished else None for worker in self._members}
        doing = {one: state(member, bool(self._cluster.updates(one).coming)) for one, member in self._members.items()}
        waits = {one: member.waits for one, member in self._members.items() if doing[one] == WAITING and member.waits}
        waiting, awaited_by = settled(waits, leads, self._hosts, self._reasons)
        rows = tuple(
            Row(
                worker=worker,
                steps=steps[worker],
                speed=speeds[worker],
                state=waiting.get(worker) or State(doing[worker]),
                lead=leads[worker],
                stale=shares[worker].stale if worker in shares else None,
                logged=_first(self._members[worker].logged),
                awaited_by=awaited_by[worker],
            )
            for worker in self._members
        )
        if (logged := _mean(rows)) is not None and counts.finished:
            self._curve.add(logged[1])
        done, until = self._done(at)
        return View(
            seconds=at,
            steps=self._tally.steps,
            speed=sum(speeds.values()),
            done=done,
            rows=rows,
            passed=None if self.passed is None else self.passed(),
            until=until,
            curve=tuple(self._curve.points),
            evaluated=self._evaluation.counts,
            scores=scores_of(self._tally, self._settings.targets),
            samples=samples,
            samples_speed=None if samples is None or had is None else max(0, samples - had) / max(at - then, 1e-9),
            epoch=epoch_of(self._tally, self.work, self.epochs),
        )

    def _steps(self) -> dict[int, int]:
        """Return each worker's steps."""
        shares = self._tally.shares
        return {worker: shares[worker].steps if worker in shares else 0 for worker in self._members}

    def _done(self, at: float) -> tuple[float | None, str]:
        """Return the share done of what will end the run first, and its name."""
        tally, settings, shares = self._tally, self._settings, []
        if self.work:
            epochs = "" if self.epochs is None else f"{self.epochs} epoch{'s' if self.epochs > 1 else ''}"
            shares.append((made_of(tally) / self.work, epochs))
        if settings.max_steps is not None:
            shares.append((tally.steps / settings.max_steps, f"--max-steps {settings.max_steps}"))
        if settings.max_seconds is not None:
            shares.append((at / settings.max_seconds, f"--max-seconds {settings.max_seconds:g}"))
        if self.share is not None and (share := self.share()):  # it is 0 without a limit
            shares.append((share, ""))
        if not shares:
            return None, ""
        done, until = max(shares, key=lambda share: share[0])
        return min(1.0, done), until


def scores_of(tally: Tally, targets: Sequence[Target]) -> tuple[Score, ...]:
    """Return how far each target is reached; without targets, the metrics of the last evaluated version."""
    metrics = tally.metrics
    if targets:
        return tuple(_score(tally, target) for target in targets)
    return tuple(Score(name, value) for name, value in metrics[max(metrics)].items()) if metrics else ()


def _score(tally: Tally, target: Target) -> Score:
    metrics, recorded = tally.metrics, tally.recorded_versions
    values = [one[target.metric] for one in metrics.values() if math.isfinite(one.get(target.metric, math.nan))]
    best = max if target.sign in (">", ">=") else min
    met = [recorded[version][0] for version in sorted(metrics) if target.met_by(metrics[version])][:1]
    if (logged := tally.logged.get(target.metric)) is not None:
        values += logged.records
        if (found := first_logged(target, logged.plain())) is not None:
            met.append(found["at_seconds"])
    return Score(target.metric, best(values, default=None), target.text, min(met, default=None))


def samples_of(tally: Tally) -> int | None:
    """Return the samples in the applied updates; None if they are not counted."""
    samples = sum(share.samples for share in tally.shares.values())
    return samples if tally.counted and (samples or not tally.steps) else None


def made_of(tally: Tally) -> int:
    """Return what is done of the run's work: samples, or steps if samples are not counted."""
    samples = samples_of(tally)
    return tally.steps if samples is None else samples


def epoch_of(tally: Tally, work: int | None, epochs: int | None) -> tuple[int, int] | None:
    """Return the present epoch, from 1, and the number of epochs, which have so much work; None if unknown."""
    if not work or not epochs:
        return None
    return min(epochs, made_of(tally) * epochs // work + 1), epochs


def state(member: Member, pushing: bool = False) -> str:
    """Return what a worker does, as in `State.doing`."""
    if member.stage in ("ended", "gone") or (member.stage == "closing" and member.waits is None):
        return member.left or "done"
    if member.waits is not None:
        return WAITING
    if member.stage == "starting":
        return "starting"
    if member.step is not None:
        return "computing"
    return "pushing" if pushing else "idle"


def settled(
    waits: Mapping[int, Why], leads: Mapping[int, int | None], hosts: Mapping[int, str], reasons: Mapping[str, str]
) -> tuple[dict[int, State], Counter[int]]:
    """Return the states of the workers that wait, and how many of them wait for each worker.

    `waits`: by worker, why it waits. `hosts`: by worker, if there are several. A reason names the workers that were
    awaited at first. Those of them that wait now have arrived since, and are left out. With many workers a reason has
    only their number: they are the slowest.
    """
    slowest = [worker for worker, lead in leads.items() if lead == 0]
    there = {worker: host for worker, host in hosts.items() if leads.get(worker) is not None}
    now, awaited_by = {}, Counter[int]()
    for why, times in Counter(waits.values()).items():
        found = awaited(why, reasons)
        first = slowest if isinstance(found, int) else found or ()
        if still := [one for one in first if one not in waits] or first:
            now[why] = State(WAITING, awaited=f"{whole_host(still, there)}{named(still)}")
            awaited_by.update(dict.fromkeys(still, times))
        else:
            now[why] = State(WAITING, why=sentence(why, reasons))
    return {worker: now[why] for worker, why in waits.items()}, awaited_by


def named(workers: Sequence[int]) -> str:
    """Format as `worker 3`, `workers 0-4, 7`."""
    return f"worker{'s' if len(workers) > 1 else ''} {ranges(workers)}"


def whole_host(workers: Sequence[int], hosts: Mapping[int, str]) -> str:
    """Return `host node-1, ` if these are all workers of that host, else an empty string. `hosts`: by worker."""
    names = {hosts.get(worker, "") for worker in workers}
    host = names.pop() if len(names) == 1 else ""
    return f"host {host}, " if host and len(workers) == list(hosts.values()).count(host) else ""


def ranges(workers: Iterable[int], most: int = NAMED) -> str:
    """Format as `0-4, 7`, with at most `most` parts."""
    ordered = sorted(workers)
    starts = [0, *(at for at, (one, other) in enumerate(pairwise(ordered), 1) if other != one + 1), len(ordered)]
    parts = [
        str(ordered[start]) if end == start + 1 else f"{ordered[start]}-{ordered[end - 1]}"
        for start, end in list(pairwise(starts))[:most]
    ]
    rest = len(ordered) - starts[most] if len(starts) > most + 1 else 0
    return ", ".join(parts) + (f" and {rest} more" if rest else "")


def duration(seconds: float) -> str:
    """Format as `8 s`, `2:05`, `1:02:05`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return time.strftime("%M:%S" if whole < 3600 else f"{whole // 3600}:%M:%S", time.gmtime(whole)).lstrip("0")


def _first(logged: Mapping[str, float]) -> tuple[str, float] | None:
    name = "loss" if "loss" in logged else next(iter(logged), None)
    return None if name is None else (name, logged[name])
