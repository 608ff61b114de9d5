"""What each worker did when, from a run's ledger, for pictures, pages and sums.

Computing and waiting divide a worker's stay without gap or overlap. Pushes, pulls and averages of its replica go on
beside them. All times are seconds since the run's start.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Literal, NamedTuple, TypeVar

from paceline.core.facts import Fact, GradientReady, ReduceFailed, ReduceFinished
from paceline.core.orders import ApplyUpdate, Order, Reduce
from paceline.records.reading import model_of, note
from paceline.records.run_model import Moment, ResumeMark, RunModel, Stay, Switch
from paceline.records.update_outcomes import Applied
from paceline.records.waits import Waits, WorkerWait

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputingSpan:
    """A step, from its first batch to its gradient, with the scenario's padding."""

    began: float
    ended: float
    step: int
    version: int
    """The version that it was computed on."""
    made: int | None
    """The version, of store or replica, that its update went into; None if it was not applied, or lost."""
    to_device: float | None = None
    """Seconds of copies of its version to the device; None if parameters are in memory."""
    from_device: float | None = None
    """Seconds of copies from the device. Both overlap the step and the time around it."""

    @property
    def copies(self) -> dict[str, float]:
        """Seconds of copies by direction, in words; empty if parameters are in memory."""
        both = {"to the device": self.to_device, "from the device": self.from_device}
        return {way: seconds for way, seconds in both.items() if seconds is not None}

    @property
    def staleness(self) -> int | None:
        """Versions made between the one that it was computed on and the one that it went into; None if not applied."""
        return None if self.made is None else self.made - 1 - self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSpan:
    """A push or a pull that took time. A pull from another host is its host's fetch, which several workers share."""

    began: float
    ended: float
    direction: Literal["push", "pull"]
    number: int
    """The step that was pushed, or the version that was pulled."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingSpan:
    """A group's average, from its order to its end. Each member's lane has it."""

    began: float
    ended: float
    """The last fact's time if it had not ended."""
    group: int
    members: tuple[int, ...]
    """Ascending."""
    what: Literal["parameters", "gradients"]
    outcome: Literal["finished", "failed"] | None
    """None if it had not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Time between two steps: waits for workers, transfers, averages or data. Or time in an unfinished step."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLane:
    """One worker's lane. Each kind of span is in the order of time."""

    worker: int
    stays: tuple[Stay, ...]
    computing: tuple[ComputingSpan, ...]
    waiting: tuple[Waiting, ...]
    transfers: tuple[TransferSpan, ...]
    averaging: tuple[AveragingSpan, ...] = ()
    waits: tuple[WorkerWait, ...] = ()
    """The waits that the protocol ordered. They may overlap steps a little, as clocks differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMark:
    """The order to make a version, and its number of updates."""

    version: int
    at: float
    updates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run, as far as its ledger goes."""

    protocol: str
    """The protocol's name; empty if the ledger does not say."""
    began: float
    """When training began."""
    ended: float
    """The last fact's time. Both are 0 if there is no fact."""
    lanes: tuple[WorkerLane, ...]
    """By worker, ascending."""
    versions: tuple[VersionMark, ...]
    switches: tuple[Switch, ...]
    resumed: tuple[ResumeMark, ...] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)
    """The last host of each worker, in a run on several hosts."""


class TimelineBuilder:
    """Collects a whole timeline, moment by moment. It keeps every step, so it grows with the run."""

    def __init__(self, model: RunModel) -> None:
        """`model`: the run as it is at each moment, with its waits."""
        self._model = model
        self._on: dict[tuple[int, int], int] = {}
        """By worker and step: the version that its gradient was computed on."""
        self._made: dict[tuple[int, int], int] = {}
        """By worker and step: the version that it went into."""
        self._groups: dict[int, AveragingSpan] = {}
        """By number."""
        self._joined: dict[int, list[int]] = {}
        """By worker: the groups that it was in."""
        self._waits: dict[int, list[WorkerWait]] = {}
        """By worker."""
        self._versions: list[VersionMark] = []

    def record(self, moment: Moment) -> None:
        """Take the next moment."""
        match moment.fact:
            case GradientReady(worker=worker, step=step, version=version):
                self._on[worker, step] = version
            case ReduceFinished(group=group, at=at):
                self._groups[group] = replace(self._groups[group], ended=at, outcome="finished")
            case ReduceFailed(group=group, at=at):
                self._groups[group] = replace(self._groups[group], ended=at, outcome="failed")
        for outcome in moment.outcomes:
            if isinstance(outcome, Applied):
                self._made[outcome.worker, outcome.step] = outcome.version
            else:
                self._made.pop((outcome.worker, outcome.step), None)
        for order in moment.orders:
            match order:
                case ApplyUpdate(version=version, contributions=contributions):
                    self._versions.append(VersionMark(version=version, at=moment.fact.at, updates=len(contributions)))
                case Reduce(group=group, members=members, what=what):
                    at = moment.fact.at
                    self._groups[group] = AveragingSpan(
                        began=at, ended=at, group=group, members=members, what=what, outcome=None
                    )
                    for worker in members:
                        self._joined.setdefault(worker, []).append(group)
        self.wait(moment.waits)

    def wait(self, ended: Iterable[WorkerWait]) -> None:
        """Take waits that have ended."""
        for wait in ended:
            self._waits.setdefault(wait.worker, []).append(wait)

    def timeline(self, ledger: sqlite3.Connection) -> Timeline:
        """Return the timeline, with the ledger's times of steps and transfers."""
        model, stays = self._model, self._model.stays()
        steps, transfers = of_each(stays, read_steps(ledger)), of_each(stays, read_transfers(ledger))
        return Timeline(
            protocol=note(ledger, "protocol", {"name": ""})["name"],
            began=model.began or 0.0,
            ended=model.at,
            lanes=tuple(self._lane(*one) for one in zip(stays, stays.values(), steps, transfers, strict=True)),
            versions=tuple(self._versions),
            switches=tuple(model.switches),
            resumed=tuple(model.resumed),
            hosts=model.hosts if fetched(ledger) else {},
        )

    def _lane(
        self, worker: int, stays: tuple[Stay, ...], steps: Iterable[MeasuredStep], transfers: Iterable[TransferSpan]
    ) -> WorkerLane:
        computing = tuple(
            ComputingSpan(
                began=step.began,
                ended=step.ended,
                step=step.step,
                version=self._on[worker, step.step],
                made=self._made.get((worker, step.step)),
                to_device=step.to_device,
                from_device=step.from_device,
            )
            for step in cut(stays, steps)
        )
        averaging = (self._groups[group] for group in self._joined.get(worker, ()))
        return WorkerLane(
            worker=worker,
            stays=stays,
            computing=computing,
            waiting=tuple(_gaps(stays, computing)),
            transfers=tuple(transfers),
            averaging=tuple(one if one.outcome else replace(one, ended=self._model.at) for one in averaging),
            waits=tuple(sorted(self._waits.get(worker, ()), key=attrgetter("began"))),
        )


def read_timeline(ledger: sqlite3.Connection, history: Iterable[tuple[Fact, tuple[Order, ...]]]) -> Timeline:
    """Return the timeline of the run with this ledger and this history, with every step and every wait."""
    waits = Waits()
    model = model_of(ledger, waits)
    builder = TimelineBuilder(model)
    for moment in model.read(history):
        builder.record(moment)
    builder.wait(waits.rest())
    return builder.timeline(ledger)


class MeasuredStep(NamedTuple):
    """A finished step, as it was measured."""

    step: int
    began: float
    ended: float
    to_device: float | None = None
    from_device: float | None = None


def read_steps(ledger: sqlite3.Connection) -> Iterator[tuple[int, MeasuredStep]]:
    """Yield (worker, step), worker by worker. A step without its fact, in a crashed run, is left out."""
    rows = ledger.execute(
        "SELECT worker, step, began, began + compute, to_device, from_device FROM step_times "
        "WHERE (worker, step) IN (SELECT worker, step FROM facts WHERE kind = 'GradientReady') ORDER BY worker, began"
    )
    for worker, *step in rows:
        yield worker, MeasuredStep(*step)


def read_transfers(ledger: sqlite3.Connection) -> Iterator[tuple[int, TransferSpan]]:
    """Yield (worker, transfer), worker by worker."""
    moved = "SELECT worker, direction, number, bytes, began, ended FROM transfers WHERE direction <> 'average'"
    if fetched(ledger):
        moved = f"{moved} UNION ALL {_FETCHED}"
    rows = ledger.execute(f"{moved} ORDER BY 1, 5, 6")
    for worker, direction, number, size, began, ended in rows:
        yield worker, TransferSpan(began=began, ended=ended, direction=direction, number=number, size=int(size))


_FETCHED = """
    SELECT worker, 'push', number, total(bytes), min(began), max(ended) FROM fetches WHERE kind = 'update'
    GROUP BY worker, number
    UNION ALL SELECT worker, 'pull', number, total(bytes), min(began), max(ended) FROM (
        SELECT taken.id AS taken, taken.worker, fetches.number, fetches.bytes, fetches.began, fetches.ended,
            max(fetches.rowid)
        FROM facts AS taken
        JOIN (
            SELECT facts.id AS id, CAST(json_extract(member.value, '$[0]') AS INTEGER) AS worker,
                json_extract(member.value, '$[1]') AS host
            FROM facts, json_each(facts.body, '$.members') AS member WHERE kind = 'TrainingBegan'
            UNION ALL SELECT id, worker, json_extract(body, '$.host') FROM facts WHERE kind = 'WorkerJoined'
        ) AS stay ON stay.worker = taken.worker AND stay.id < taken.id
        JOIN fetches ON fetches.number = taken.version AND fetches.kind = 'version' AND fetches.host = stay.host
            AND fetches.fact < taken.id
        WHERE taken.kind = 'ParametersTaken'
        GROUP BY taken.id, fetches.source
    ) GROUP BY taken
"""
"""Fetched updates, and for each version that a worker took, its host's last fetch of each part before."""


def fetched(ledger: sqlite3.Connection) -> bool:
    """Whether hosts fetched anything from each other."""
    return ledger.execute("SELECT 1 FROM fetches LIMIT 1").fetchone() is not None


def of_each(workers: Iterable[int], rows: Iterator[tuple[int, T]]) -> Iterator[Iterator[T]]:
    """Yield the rows of each of these workers in turn. Both ascend."""
    groups = groupby(rows, key=itemgetter(0))
    of, group = next(groups, (None, iter(())))
    for worker in workers:
        while of is not None and of < worker:
            of, group = next(groups, (None, iter(())))
        yield (row for _, row in (group if of == worker else ()))


def cut(stays: Iterable[Stay], steps: Iterable[MeasuredStep]) -> Iterator[MeasuredStep]:
    """Yield the steps, cut to the stays. Both are in the order of time.

    Clocks may disagree a little, so a step is also cut to begin after the end of the one before.
    """
    following = iter(steps)
    step = next(following, None)
    for stay in stays:
        free = stay.began
        while step is not None and step.began < stay.ended:
            began, ended = max(step.began, free), min(step.ended, stay.ended)
            if ended > began:
                yield step._replace(began=began, ended=ended)
                free = ended
            step = next(following, None)


def _gaps(stays: Iterable[Stay], computing: Iterable[ComputingSpan]) -> Iterator[Waiting]:
    """Yield the parts of the stays outside these steps, which were cut to the stays."""
    todo = deque(computing)
    for stay in stays:
        free = stay.began
        while todo and todo[0].began < stay.ended:
            step = todo.popleft()
            if step.began > free:
                yield Waiting(began=free, ended=step.began)
            free = step.ended
        if stay.ended > free:
            yield Waiting(began=free, ended=stay.ended)
