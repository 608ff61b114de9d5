"""Shares by speed: in each round a worker computes as many batches as it is fast, so that all end together.

The protocol inside decides all else: `bsp`, `all-reduce` or `quorum`. Its rounds have more batches than workers. A
worker's gradient is the mean over all of its batches, and weighs as much as these have samples. So a version is made
of the gradient of one large batch, whoever computed which part of it.

Source: shares that are set again at barriers, as in LB-BSP (Chen, Weng, Wang, Li and Li, Semi-Dynamic Load Balancing,
SoCC 2020, arXiv 1806.02508). Whole batches, and the rule below, are ours.

Counter convention: as the protocol inside. A step of a worker is its share of a round, so it has several batches.

The rule: a worker's speed is the samples of its steps in the last `every` rounds, by the seconds from when it could
begin until its gradient was ready. Waiting does not count: in rounds all would seem equally fast. The first three
rounds are not measured, as processes warm up. Every `every` rounds the batches of a round are shared out by speed, so
that the round takes as little time as can be with at least one for each worker, if it gets a twentieth shorter by that.
A worker that left is left out from the next round on. One that joined has one batch in the open round, and counts as
fast as the mean until it is measured.

With `unit=sample` a round has as many samples as batches of the script's size for all workers of the beginning have.
They are shared out in eighths of a batch, and a worker's share is one batch of its loader. With fewer workers a round
has fewer, if no more fit into their memory.

Deviations: LB-BSP predicts speeds. With `batches=auto` the first `every` rounds have one batch for each worker. Then a
round gets as few as would keep the workers nine tenths busy, and at most four for each, for the rest of the run. A
resumed run keeps their number, and measures anew. At the end of an epoch there are fewer batches than in a round, and
they go to those that ask first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from heapq import heapify, heappop, heapreplace
from typing import Any, Literal

from paceline.core.choice import Choice, check_parameters, parameter
from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    TrainingBegan,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.machine import Machine as AnyMachine
from paceline.core.machine import Spec
from paceline.core.orders import ApplyUpdate, Order, Release, ShareOut, StepReplica
from paceline.errors import ConfigError

INSIDE = ("bsp", "all-reduce", "quorum")
"""The protocols whose rounds can be shared out."""
WARM_UP = 3
"""Rounds that are not measured."""
BUSY = 0.9
"""The share of the workers' time that a round's batches should fill."""
MOST = 4
"""The most batches in a round for each worker, on average, unless the user says a number."""
TRIED = 16
"""Up to so many workers, each number of batches is tried. Among more, so many numbers for each batch of a worker."""
PIECES = 8
"""With `unit=sample`: how many pieces a batch is cut into. A share is at least one, so one eighth of a batch."""
SHORTER = 0.05
"""How much shorter a round must get for shares to change: speeds that are measured vary by about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Whose rounds are shared out, and how."""

    protocol: str = parameter("bsp", "the protocol whose rounds are shared out: bsp, all-reduce or quorum")
    batches: int | Literal["auto"] = parameter(
        "auto",
        "batches of all workers in a round; auto: as few as keep them nine tenths busy, and at most four for each",
        unit="batches",
        least=1,
    )
    unit: Literal["batch", "sample"] = parameter(
        "batch",
        "what is shared out: whole batches of the script, or samples, so that a fast worker's batches are larger than "
        "a slow one's",
    )
    max_batch: int | None = parameter(
        None, "with unit=sample: the most samples of a batch that fit into a worker's memory", unit="samples", least=1
    )
    every: int = parameter(10, "rounds from one look at the workers' speeds to the next", unit="rounds", least=1)

    def __post_init__(self) -> None:
        check_parameters("balanced", self)
        if self.unit == "batch" and self.max_batch is not None:
            raise ConfigError(
                f"balanced: max_batch is {self.max_batch}, and workers get batches as the script makes them; leave it "
                "out, or choose unit=sample"
            )
        if self.unit == "sample" and self.max_batch is None:
            raise ConfigError(
                "balanced: unit is sample, so fast workers get larger batches than the script's; say how many samples "
                "fit into each worker's memory, such as max_batch=256"
            )
        if self.unit == "sample" and self.batches != "auto":
            raise ConfigError(
                f"balanced: batches is {self.batches}, and unit is sample: a round has as many samples as the workers' "
                "batches have together; leave out batches"
            )

    @property
    def pieces(self) -> int:
        """Into how many pieces a batch of the script is cut."""
        return PIECES if self.unit == "sample" else 1


@dataclass(slots=True)
class Measured:
    """What a worker has computed since the last look."""

    amount: int = 0
    """Samples, or batches where samples are not counted."""
    seconds: float = 0.0


@dataclass(slots=True)
class Machine:
    """The machine inside, and how fast each worker is."""

    config: Config
    inner: AnyMachine
    total: int | None = None
    """Batches in a round; None: it is not decided yet, and each worker has one."""
    rounds: int = 0
    """Rounds that have ended."""
    members: dict[int, None] = field(default_factory=dict)
    """The workers that are here."""
    shares: dict[int, int] = field(default_factory=dict)
    """By worker: its batches in a round."""
    given: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By worker that is released: its batches, and when it could begin."""
    windows: dict[int, Measured] = field(default_factory=dict)
    speeds: dict[int, float] = field(default_factory=dict)
    """By worker: samples a second by the last look."""
    largest: float = 0.0
    """The most samples in a batch, or a piece of one, until the first look."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        orders = self.inner.handle(self._for_inner(fact))
        self._note(fact)
        before = self.shares
        if isinstance(fact, TrainingBegan):
            self._apportion()
        if any(isinstance(order, ApplyUpdate | StepReplica) for order in orders):
            self.rounds += 1
            self._look()
        told = () if self.shares == before or not self.each else (self._told(),)
        return (*told, *(self._shared(order, fact.at) if isinstance(order, Release) else order for order in orders))

    def _for_inner(self, fact: Fact) -> Fact:
        if isinstance(fact, TrainingBegan) and fact.memory is not None:
            return replace(fact, memory=_own(fact.memory).get("inner"))
        if isinstance(fact, GradientReady) and fact.samples is None and fact.weight is None:
            return replace(fact, weight=1)  # of one batch: a worker says what several weigh
        return fact

    def _note(self, fact: Fact) -> None:
        """Note who is here, and how long each worker takes."""
        match fact:
            case TrainingBegan(members=members, memory=memory):
                self.members = {worker: None for worker, _, _ in members}
                self.total = _own(memory).get("batches")
                if self.total is None and self.config.unit == "sample":
                    self.total = PIECES * len(members)
                elif self.total is None and self.config.batches != "auto":
                    self.total = self.config.batches
            case WorkerJoined(worker=worker):
                self.members[worker] = None
            case WorkerLeft(worker=worker):
                del self.members[worker]
                for of in (self.given, self.windows, self.speeds):
                    of.pop(worker, None)
            case ParametersTaken(worker=worker, at=at) if worker in self.given:
                self.given[worker] = self.given[worker][0], at
            case GradientReady(worker=worker, samples=samples, at=at) if worker in self.given:
                batches, since = self.given.pop(worker)
                if not self.speeds:  # later a loader may have fetched a batch before the share changed
                    self.largest = max(self.largest, (samples or 0) / batches)
                if self.rounds >= WARM_UP and at > since:
                    window = self.windows.setdefault(worker, Measured())
                    window.amount += samples or batches
                    window.seconds += at - since

    def _shared(self, order: Release, at: float) -> Release:
        """Return the release with the worker's share of the round."""
        share = self.shares.get(order.worker, self.config.pieces)
        self.given[order.worker] = share, at
        return replace(order, batches=share)

    def _look(self) -> None:
        """A round has ended. Share out the next ones anew, if they get shorter by that or somebody has come or left."""
        due = self.rounds % self.config.every == 0
        if due:
            self.speeds |= {worker: window.amount / window.seconds for worker, window in self.windows.items()}
            self.windows = {}
            if self.total is None and self.speeds:
                self.total = batches_for(list(self._by_speed().values()))
        if self.shares.keys() != self.members.keys() or (due and self._gets_shorter()):
            self._apportion()

    def _by_speed(self) -> dict[int, float]:
        """How fast each worker is that is here. One that is not measured yet counts as the mean."""
        known = [self.speeds[worker] for worker in self.members if worker in self.speeds]
        mean = sum(known) / len(known) if known else 1.0
        return {worker: self.speeds.get(worker, mean) for worker in sorted(self.members)}

    def _apportion(self) -> None:
        if self.total is not None and self.members:
            self.shares = self._shared_out()

    def _shared_out(self) -> dict[int, int]:
        assert self.total is not None
        return shared_out(max(self.total, len(self.members)), self._by_speed(), self._most)

    @property
    def _most(self) -> int:
        """The largest share that fits into a worker's memory. A batch of the script's own does."""
        if self.config.max_batch is None:
            return sys.maxsize
        if not self.largest:
            return PIECES
        return max(PIECES, int(self.config.max_batch / self.largest))

    def _gets_shorter(self) -> bool:
        """Whether a round would get that much shorter with other shares."""
        speeds = self._by_speed()
        return longest(self._shared_out(), speeds) < (1 - SHORTER) * longest(self.shares, speeds)

    @property
    def each(self) -> float:
        """What one of a share counts for: a batch, or the samples of a piece; 0 as long as nobody knows these."""
        return 1.0 if self.config.unit == "batch" else self.largest

    def _told(self) -> ShareOut:
        shares = sorted(self.shares.items())
        counts = [share for _, share in shares]
        whole, least, most = (round(self.each * number) for number in (sum(counts), min(counts), max(counts)))
        code = "shares" if self.config.unit == "batch" else "shares-of-samples"
        return ShareOut(shares=tuple(shares), why=(code, whole, sum(counts) / len(counts), least, most))


def _own(memory: Any) -> Mapping[str, Any]:
    """Return what a run under this protocol has kept; nothing, if it was under `sync-switch` until now."""
    return memory if memory is not None and "batches" in memory else {}


def targets(total: int, speeds: Mapping[int, float]) -> dict[int, Fraction]:
    """Return each worker's share of `total` by speed, at least 1, as if batches could be divided."""
    free = {worker: Fraction(speed) for worker, speed in speeds.items()}
    left = total
    while True:
        of_all = sum(free.values())
        slow = [worker for worker, speed in free.items() if left * speed < of_all]
        if not slow:
            return {worker: left * free[worker] / of_all if worker in free else Fraction(1) for worker in speeds}
        left -= len(slow)
        for worker in slow:
            del free[worker]


def shared_out(total: int, speeds: Mapping[int, float], most: int = sys.maxsize) -> dict[int, int]:
    """Return how many of `total` each worker gets, from 1 to `most`, so that the one that takes longest ends first.

    So each next one goes to the worker that would be done with it first; among equal ones, to the lower worker.

    >>> shared_out(13, {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.25})
    {0: 4, 1: 4, 2: 4, 3: 1}
    """
    shares = {worker: min(int(share), most) for worker, share in targets(total, speeds).items()}
    ends = [((share + 1) / Fraction(speeds[worker]), worker) for worker, share in shares.items() if share < most]
    heapify(ends)
    for _ in range(total - sum(shares.values())):
        if not ends:
            break
        end, worker = ends[0]
        shares[worker] += 1
        if shares[worker] < most:
            heapreplace(ends, (end + 1 / Fraction(speeds[worker]), worker))
        else:
            heappop(ends)
    return shares


def batches_for(speeds: Sequence[float]) -> int:
    """Return as few batches a round as keep workers of these speeds busy enough; else the number that does best.

    >>> batches_for([1.0, 1.0, 1.0, 0.25])
    12
    """
    workers = len(speeds)
    numbers = range(workers, MOST * workers + 1, max(1, workers // TRIED))
    busy = {number: busy_with(number, speeds) for number in numbers}
    return next((number for number in numbers if busy[number] >= BUSY), max(numbers, key=lambda one: busy[one]))


def busy_with(total: int, speeds: Sequence[float]) -> float:
    """Return the share of these workers' time that a round of so many batches fills, from 0 to 1.

    >>> busy_with(4, [1.0, 1.0, 1.0, 0.25])
    0.3076923076923077
    """
    by_worker = dict(enumerate(speeds))
    return total / (longest(shared_out(total, by_worker), by_worker) * sum(speeds))


def longest(shares: Mapping[int, int], speeds: Mapping[int, float]) -> float:
    """Return how long the worker takes whose share takes longest."""
    return max(share / speeds[worker] for worker, share in shares.items())


def around(config: Config, part: Choice) -> Spec:
    """Return the entry of this protocol around another one."""
    inner = part.spec
    return replace(
        SPEC,
        machine=lambda config: Machine(config, part.machine()),
        parts=(),
        around=None,
        pieces=config.pieces,
        gradients=lambda config, workers: _batches(config, workers) * part.gradients(workers) // workers,
        state=inner.state,
        optimizer=inner.optimizer,
        groups=inner.groups,
        sums=inner.sums,
        unapplied=lambda config, workers: part.unapplied(workers),
        memory=lambda machine: {
            "batches": machine.total,
            "inner": None if inner.memory is None else inner.memory(machine.inner),
        },
        misfit=lambda config, hosts: misfit(config, part, hosts),
        invariants={
            **SPEC.invariants,
            **{
                sentence: lambda machine, holds=holds: holds(machine.inner)  # type: ignore[misc]
                for sentence, holds in inner.invariants.items()
            },
        },
        reasons={**inner.reasons, **SPEC.reasons},
    )


def misfit(config: Config, part: Choice, hosts: Sequence[str]) -> str:
    """Why this config can't train with one worker on each of these hosts; empty if it can."""
    if part.spec.misfit is not None and (why := part.spec.misfit(part.config, hosts)):
        return why
    if config.batches == "auto" or config.batches >= len(hosts):
        return ""
    return (
        f"balanced: batches is {config.batches} a round, and each of the {len(hosts)} workers computes one at least; "
        f"choose batches={len(hosts)} or more"
    )


def parts_misfit(config: Config, parts: Sequence[Spec]) -> str:
    """Why this config can't have this protocol inside; empty if it can."""
    (inner,) = parts
    if inner.name in INSIDE:
        return ""
    return (
        f"balanced: protocol is {inner.name}, in which a version is no mean of gradients that were all computed on the "
        "one before; choose bsp, all-reduce or quorum"
    )


def _batches(config: Config, workers: int) -> int:
    """Return how many batches a round has, as far as that is known before."""
    return workers if config.batches == "auto" else config.batches


SPEC = Spec(
    name="balanced",
    title="Balanced: shares by speed",
    does="a fast worker computes more batches of each round than a slow one, so that all end together",
    paper="after Chen et al., Semi-Dynamic Load Balancing, SoCC 2020",
    config=Config,
    machine=Machine,
    parts=("protocol",),
    around=around,
    parts_misfit=parts_misfit,
    rounds=False,
    gradients=_batches,
    invariants={
        "a round's batches are all shared out, and at least one to each worker": lambda machine: (
            not machine.shares
            or (
                (sum(machine.shares.values()) == max(machine.total, len(machine.shares)) or machine.config.max_batch)
                and min(machine.shares.values()) >= 1
            )
        ),
        "who is measured is here": lambda machine: (
            machine.members.keys() >= machine.given.keys() | machine.windows.keys() | machine.speeds.keys()
        ),
    },
    reasons={
        "shares-of-samples": "a round has {0} samples: by speed each worker gets from {2} to {3}",
        "shares": "a round has {0} batches, {1:.3g} times the number of workers: by speed each gets from {2} to {3}",
    },
)
