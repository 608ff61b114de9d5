"""What each worker did when, read from a run's ledger: for pictures, pages and sums.

A worker's stay in the training is parted, without gap or overlap, into computing and waiting; its pushes and pulls,
and the averages that its replica takes part in, go on beside these. All times are seconds since the run's start.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from paceline.core.facts import (
    Fact,
    GradientReady,
    ReduceFailed,
    ReduceFinished,
    TrainingBegan,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Reduce, StepReplica, SwitchProtocol
from paceline.records.ledger import connect, read_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """A step, from its first batch to its gradient, padded as the scenario asks."""

    began: float
    ended: float
    step: int
    version: int
    """The version that it was computed on."""
    made: int | None
    """The version that its update went into, of the store or of the worker's replica; None if it was never applied,
    or was lost with the replica."""

    @property
    def staleness(self) -> int | None:
        """Versions made between the one that it was computed on and the one that it went into; None if not applied."""
        return None if self.made is None else self.made - 1 - self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A push or a pull that took time. There are none if no network paced the run."""

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
    """`finished`, `died` or `stopped`; None if it was still there at the ledger's last fact."""


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


def read_timeline(path: Path, history: Iterable[tuple[Fact, tuple[Order, ...]]] | None = None) -> Timeline:
    """Read the timeline of the run with this ledger, finished or not. Raises ConfigError if there is no readable one.

    `history`: the ledger's facts and orders, if the caller has read them already.
    """
    notes = _Notes()
    for fact, orders in read_facts(path) if history is None else history:
        notes.fact(fact)
        for order in orders:
            notes.order(order, fact.at)
    with closing(connect(path)) as database:
        steps = database.execute("SELECT worker, step, began, began + compute FROM step_times ORDER BY worker, began")
        for worker, step, began, ended in steps:
            notes.computed(worker, step, began, ended)
        transfers = database.execute(
            "SELECT worker, direction, number, bytes, began, ended FROM transfers WHERE direction <> 'average' "
            "ORDER BY worker, began, ended"
        )
        for worker, direction, number, size, began, ended in transfers:
            transfer = Transfer(began=began, ended=ended, direction=direction, number=number, size=size)
            notes.transfers.setdefault(worker, []).append(transfer)
        protocol = database.execute("SELECT value FROM run WHERE key = 'protocol'").fetchone()
    return Timeline(
        protocol="" if protocol is None else json.loads(protocol[0])["name"],
        began=notes.began or 0.0,
        ended=notes.latest,
        lanes=tuple(notes.lane(worker) for worker in sorted({*notes.stays, *notes.here})),
        versions=tuple(notes.versions),
        switches=tuple(notes.switches),
    )


class _Notes:
    """What has been read so far."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.latest = 0.0
        self.here: dict[int, float] = {}
        """Since when a worker has been there."""
        self.stays: dict[int, list[Stay]] = {}
        self.on: dict[tuple[int, int], int] = {}
        """By worker and step: the version that its gradient was computed on."""
        self.made: dict[tuple[int, int], int] = {}
        """By worker and step: the version that it went into."""
        self.groups: dict[int, Averaging] = {}
        """By number."""
        self.joined: dict[int, list[int]] = {}
        """By worker: the groups that it was in."""
        self.gathered: dict[int, tuple[tuple[int, int, float], ...]] = {}
        """By group: what is in its mean gradient, until a replica is stepped with that."""
        self.computing: dict[int, list[Computing]] = {}
        self.transfers: dict[int, list[Transfer]] = {}
        self.versions: list[Version] = []
        self.switches: list[Switch] = []

    def fact(self, fact: Fact) -> None:
        self.latest = max(self.latest, fact.at)
        match fact:
            case TrainingBegan(members=members, at=at):
                self.began = at if self.began is None else self.began
                for worker, _, _ in members:
                    self.here.setdefault(worker, at)
            case WorkerJoined(worker=worker, at=at):
                self.here.setdefault(worker, at)
            case WorkerLeft(worker=worker, reason=reason, at=at):
                self._ends(worker, at, reason)
            case GradientReady(worker=worker, step=step, version=version):
                self.on[worker, step] = version
            case ReduceFinished(group=group, at=at):
                self.groups[group] = replace(self.groups[group], ended=at, outcome="finished")
            case ReduceFailed(group=group, at=at):
                self.groups[group] = replace(self.groups[group], ended=at, outcome="failed")

    def order(self, order: Order, at: float) -> None:
        match order:
            case ApplyUpdate(version=version, contributions=contributions):
                self.versions.append(Version(version=version, at=at, updates=len(contributions)))
                for worker, step, _ in contributions:
                    self.made[worker, step] = version
            case StepReplica(worker=worker, step=step, version=version, group=None):
                self.made[worker, step] = version
            case StepReplica(version=version, group=int(group)):
                for worker, step, _ in self.gathered.pop(group, ()):
                    self.made[worker, step] = version
            case DropUpdate(worker=worker, step=step):
                self.made.pop((worker, step), None)
            case Reduce(group=group, members=members, what=what, contributions=contributions):
                if contributions:
                    self.gathered[group] = contributions
                self.groups[group] = Averaging(
                    began=at, ended=at, group=group, members=members, what=what, outcome=None
                )
                for worker in members:
                    self.joined.setdefault(worker, []).append(group)
            case SwitchProtocol(to=to, since=since):
                self.switches.append(Switch(to=to, since=since, at=at))

    def computed(self, worker: int, step: int, began: float, ended: float) -> None:
        if (worker, step) not in self.on:
            return  # its fact was not written any more
        one = Computing(
            began=began,
            ended=ended,
            step=step,
            version=self.on[worker, step],
            made=self.made.get((worker, step)),
        )
        self.computing.setdefault(worker, []).append(one)

    def lane(self, worker: int) -> Lane:
        if worker in self.here:
            self._ends(worker, self.latest, None)
        stays = tuple(self.stays[worker])
        computing, waiting = _parted(stays, self.computing.get(worker, ()))
        averaging = (self.groups[group] for group in self.joined.get(worker, ()))
        return Lane(
            worker=worker,
            stays=stays,
            computing=tuple(computing),
            waiting=tuple(waiting),
            transfers=tuple(self.transfers.get(worker, ())),
            averaging=tuple(one if one.outcome else replace(one, ended=self.latest) for one in averaging),
        )

    def _ends(self, worker: int, at: float, left: str | None) -> None:
        self.stays.setdefault(worker, []).append(Stay(began=self.here.pop(worker), ended=at, left=left))


def _parted(stays: Iterable[Stay], steps: Iterable[Computing]) -> tuple[list[Computing], list[Waiting]]:
    """Divide the stays into computing and waiting. Both are in the order of their times.

    Clocks may disagree a little: a step begins when the one before has ended, at the earliest.
    """
    computing, waiting = [], []
    todo = deque(steps)
    for stay in stays:
        free = stay.began
        while todo and todo[0].began < stay.ended:
            step = todo.popleft()
            began, ended = max(step.began, free), min(step.ended, stay.ended)
            if ended <= began:
                continue
            if began > free:
                waiting.append(Waiting(began=free, ended=began))
            computing.append(replace(step, began=began, ended=ended))
            free = ended
        if stay.ended > free:
            waiting.append(Waiting(began=free, ended=stay.ended))
    return computing, waiting
