"""What each worker did when, read from a run's ledger: for pictures, pages and sums.

A worker's stay in the training is parted, without gap or overlap, into computing and waiting; its pushes and pulls,
and the averages that its replica takes part in, go on beside these. All times are seconds since the run's start.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple, TypeVar

from paceline.core.facts import (
    Fact,
    GradientReady,
    ReduceFailed,
    ReduceFinished,
    TrainingBegan,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.orders import ApplyUpdate, Order, Reduce, SwitchProtocol
from paceline.records.update_outcomes import Applied, UpdateOutcomes

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """A step, from its first batch to its gradient, padded as the scenario asks."""

    began: float
    ended: float
    step: int
    version: int
    """The version that it was computed on."""
    made: int | None
    """The version, of store or replica, that its update went into; None if it was never applied, or lost."""
    to_device: float | None = None
    """Seconds of copies of its version to the device; None where parameters are in memory."""
    from_device: float | None = None
    """The same from the device. They overlap the step and what is around it."""

    @property
    def copies(self) -> dict[str, float]:
        """Seconds of copies by direction, in words; empty where parameters are in memory."""
        both = {"to the device": self.to_device, "from the device": self.from_device}
        return {way: seconds for way, seconds in both.items() if seconds is not None}

    @property
    def staleness(self) -> int | None:
        """Versions made between the one that it was computed on and the one that it went into; None if not applied."""
        return None if self.made is None else self.made - 1 - self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A push or a pull that took time. A pull from another host is that host's fetch, for several workers."""

    began: float
    ended: float
    direction: Literal["push", "pull"]
    number: int
    """The step that was pushed, or the version that was pulled."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """A group's average, from its order to its end. It is the same in the lane of each member."""

    began: float
    ended: float
    """The last fact's time, if it had not ended by then."""
    group: int
    members: tuple[int, ...]
    """Ascending."""
    what: Literal["parameters", "gradients"]
    outcome: Literal["finished", "failed"] | None
    """None if it had not ended by the last fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Time between two steps, waiting for others, transfers, averages or data; or time in an unfinished step."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A worker's stay, from its coming until it left."""

    began: float
    ended: float
    left: str | None
    """`finished`, `died`, `stopped` or `drained`; `interrupted` if the run was, and went on without what came after a
    snapshot; None if it was still there at the ledger's last fact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One worker's lane. Each kind is in the order of its times."""

    worker: int
    stays: tuple[Stay, ...]
    computing: tuple[Computing, ...]
    waiting: tuple[Waiting, ...]
    transfers: tuple[Transfer, ...]
    averaging: tuple[Averaging, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """When the version was ordered to be made, and of how many updates."""

    version: int
    at: float
    updates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One protocol took over from another."""

    to: str
    """The new protocol's name."""
    since: float
    """When the previous protocol began its last steps."""
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The run was resumed: a segment began."""

    at: float
    version: int
    """The version that it went on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run, or as much of it as its ledger has."""

    protocol: str
    """The protocol's name; empty if the ledger does not say."""
    began: float
    """When training began."""
    ended: float
    """The last fact's time; both are 0 if there was none."""
    lanes: tuple[Lane, ...]
    """By worker, ascending."""
    versions: tuple[Version, ...]
    switches: tuple[Switch, ...]
    resumed: tuple[Resumed, ...] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)
    """By worker, in a run on several hosts: where it was last."""


class Course:
    """Which workers were there when, and which protocol took over: of any run, however long."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.latest = 0.0
        """The last fact's time."""
        self.switches: list[Switch] = []
        self.resumed: list[Resumed] = []
        self.hosts: dict[int, str] = {}
        """By worker: where it was last."""
        self._here: dict[int, float] = {}
        """Since when a worker has been there."""
        self._stays: dict[int, list[Stay]] = {}

    def record(self, fact: Fact, orders: Iterable[Order]) -> None:
        """Take the next fact, and the orders that followed from it."""
        before, self.latest = self.latest, max(self.latest, fact.at)
        match fact:
            case TrainingBegan(members=members, version=version, at=at):
                if self.began is None:
                    self.began = at
                else:
                    self.resumed.append(Resumed(at=at, version=version))
                for worker in list(self._here):
                    self._leave(worker, before, "interrupted")
                for worker, host, _ in members:
                    self._here[worker], self.hosts[worker] = at, host
            case WorkerJoined(worker=worker, host=host, at=at):
                self._here.setdefault(worker, at)
                self.hosts[worker] = host
            case WorkerLeft(worker=worker, reason=reason, at=at):
                self._leave(worker, at, reason)
        for order in orders:
            if isinstance(order, SwitchProtocol):
                self.switches.append(Switch(to=order.to, since=order.since, at=fact.at))

    def _leave(self, worker: int, at: float, why: str) -> None:
        stay = Stay(began=self._here.pop(worker), ended=at, left=why)
        self._stays.setdefault(worker, []).append(stay)

    def stays(self) -> dict[int, tuple[Stay, ...]]:
        """Return the stays of each worker, ascending. One that is still there stays until the last fact."""
        open_ = {worker: Stay(began=at, ended=self.latest, left=None) for worker, at in self._here.items()}
        return {
            worker: (*self._stays.get(worker, ()), *([open_[worker]] if worker in open_ else []))
            for worker in sorted({*self._stays, *open_})
        }


class Notes:
    """A whole timeline, noted as facts and orders come. It has every step, so it grows with the run."""

    def __init__(self) -> None:
        self.course = Course()
        self._fates = UpdateOutcomes()
        self._on: dict[tuple[int, int], int] = {}
        """By worker and step: the version that its gradient was computed on."""
        self._made: dict[tuple[int, int], int] = {}
        """By worker and step: the version that it went into."""
        self._groups: dict[int, Averaging] = {}
        """By number."""
        self._joined: dict[int, list[int]] = {}
        """By worker: the groups that it was in."""
        self._versions: list[Version] = []

    def record(self, fact: Fact, orders: Iterable[Order]) -> None:
        """Take the next fact, and the orders that followed from it."""
        self.course.record(fact, orders)
        self._fates.fact(fact)
        match fact:
            case GradientReady(worker=worker, step=step, version=version):
                self._on[worker, step] = version
            case ReduceFinished(group=group, at=at):
                self._groups[group] = replace(self._groups[group], ended=at, outcome="finished")
            case ReduceFailed(group=group, at=at):
                self._groups[group] = replace(self._groups[group], ended=at, outcome="failed")
        for order in orders:
            self._order(order, fact.at)

    def _order(self, order: Order, at: float) -> None:
        for fate in self._fates.order(order):
            if isinstance(fate, Applied):
                self._made[fate.worker, fate.step] = fate.version
            else:
                self._made.pop((fate.worker, fate.step), None)
        match order:
            case ApplyUpdate(version=version, contributions=contributions):
                self._versions.append(Version(version=version, at=at, updates=len(contributions)))
            case Reduce(group=group, members=members, what=what):
                self._groups[group] = Averaging(
                    began=at, ended=at, group=group, members=members, what=what, outcome=None
                )
                for worker in members:
                    self._joined.setdefault(worker, []).append(group)

    def timeline(self, ledger: sqlite3.Connection) -> Timeline:
        """Return the timeline, with the times that the ledger has of steps and transfers."""
        course, stays = self.course, self.course.stays()
        protocol = ledger.execute("SELECT value FROM run WHERE key = 'protocol'").fetchone()
        steps, transfers = of_each(stays, read_steps(ledger)), of_each(stays, read_transfers(ledger))
        return Timeline(
            protocol="" if protocol is None else json.loads(protocol[0])["name"],
            began=course.began or 0.0,
            ended=course.latest,
            lanes=tuple(self._lane(*one) for one in zip(stays, stays.values(), steps, transfers, strict=True)),
            versions=tuple(self._versions),
            switches=tuple(course.switches),
            resumed=tuple(course.resumed),
            hosts=course.hosts if fetched(ledger) else {},
        )

    def _lane(self, worker: int, stays: tuple[Stay, ...], steps: Iterable[Step], transfers: Iterable[Transfer]) -> Lane:
        computing = tuple(
            Computing(
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
        return Lane(
            worker=worker,
            stays=stays,
            computing=computing,
            waiting=tuple(_gaps(stays, computing)),
            transfers=tuple(transfers),
            averaging=tuple(one if one.outcome else replace(one, ended=self.course.latest) for one in averaging),
        )


class Step(NamedTuple):
    """A finished step, as it was measured."""

    step: int
    began: float
    ended: float
    to_device: float | None = None
    from_device: float | None = None


def read_steps(ledger: sqlite3.Connection) -> Iterator[tuple[int, Step]]:
    """Yield (worker, its next step), worker by worker. A step whose fact was not written any more is left out."""
    rows = ledger.execute(
        "SELECT worker, step, began, began + compute, to_device, from_device FROM step_times "
        "WHERE (worker, step) IN (SELECT worker, step FROM facts WHERE kind = 'GradientReady') ORDER BY worker, began"
    )
    for worker, *step in rows:
        yield worker, Step(*step)


def read_transfers(ledger: sqlite3.Connection) -> Iterator[tuple[int, Transfer]]:
    """Yield (worker, its next transfer), worker by worker."""
    moved = "SELECT worker, direction, number, bytes, began, ended FROM transfers WHERE direction <> 'average'"
    if fetched(ledger):
        moved = f"{moved} UNION ALL {_FETCHED}"
    rows = ledger.execute(f"{moved} ORDER BY 1, 5, 6")
    for worker, direction, number, size, began, ended in rows:
        yield worker, Transfer(began=began, ended=ended, direction=direction, number=number, size=int(size))


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
"""Updates that were fetched, and for each version that a worker took, its host's last fetch of each part before."""


def fetched(ledger: sqlite3.Connection) -> bool:
    """Whether hosts fetched anything from each other: a run on one host has nothing of the kind."""
    return ledger.execute("SELECT 1 FROM fetches LIMIT 1").fetchone() is not None


def of_each(workers: Iterable[int], rows: Iterator[tuple[int, T]]) -> Iterator[Iterator[T]]:
    """Yield the rows of each of these workers, in turn. Both ascend."""
    groups = groupby(rows, key=itemgetter(0))
    of, group = next(groups, (None, iter(())))
    for worker in workers:
        while of is not None and of < worker:
            of, group = next(groups, (None, iter(())))
        yield (row for _, row in (group if of == worker else ()))


def cut(stays: Iterable[Stay], steps: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps, cut to the stays. Both are in the order of their times.

    Clocks may disagree a little: a step begins when the one before has ended, at the earliest.
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


def _gaps(stays: Iterable[Stay], computing: Iterable[Computing]) -> Iterator[Waiting]:
    """Yield what is left of the stays beside these steps, which were cut to them."""
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
