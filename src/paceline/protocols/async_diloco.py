"""Asynchronous DiLoCo: rounds of own steps without a barrier, and an outer optimizer that is made for late differences.

Each worker's own (inner) optimizer steps its own parameters. At the end of its round the worker pushes the difference
between its own start and its parameters. The store's outer optimizer steps the newest version with it at once, and the
worker begins its next round with the version that this makes. No worker waits for another.

The outer optimizer is Delayed Nesterov. With N = `delay` and a = `activation`, each difference Δ goes into a buffer B,
and every N-th one moves the buffer into the momentum m:

    B ← B + Δ
    every N-th: m ← outer_momentum · m + B/N,  θ ← θ − outer_lr · ((1 − aN + a) · outer_momentum · m + Δ/N),  B ← 0
    else:       θ ← θ − outer_lr · (a · outer_momentum · m + Δ/N)

So with a = 0, N differences move θ as one step of DiLoCo with their mean does, and the momentum is not stepped with
more often. With `delay=1` this is Nesterov momentum with each difference, whatever the number of workers.

With `local=speed` (dynamic local updates, DyLU) a worker makes ⌊every · v/v_max⌋ own steps in a round, at least one.
Its speed v is the number of own steps of its last round over their time, and v_max is the fastest worker's. All rounds
then take about as long. With `equal` every round has `every` steps.

Source: Liu et al., Asynchronous Local-SGD Training for Language Modeling, 2024 (arXiv 2401.09135), Algorithms 2 and 3,
as public code and others restate them.

Counter convention: a version counts differences. A step is an own step of a worker.

Deviations: membership may change. What a worker that left has pushed stays in the momentum. A worker that joins begins
with the newest version. It takes what scripts keep from a worker at the end of a round, so it waits until the rounds
have ended that are open. Out of data in the middle of a round, a worker pushes what it has, with the same weight.
Snapshots have the buffer, the momentum, and the count of differences.

Ours: speeds are measured. The time of a round is from when the worker had its version to its last own step, so
transfers don't count. A worker whose speed is unknown makes `every` steps. A resumed run measures anew. The default of
`delay`, the number of workers that the run begins with, follows the paper's experiments. It stays as it is when workers
join and leave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline.core.choice import check_parameters, parameter, written
from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
    WorkerResumed,
)
from paceline.core.local_rounds import REASONS
from paceline.core.machine import Outer, Spec
from paceline.core.orders import ApplyUpdate, Hold, Order, Release
from paceline.core.reasons import Why, awaited_of
from paceline.core.roster import Roster, WorkerProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How long rounds are, and the outer optimizer."""

    every: int = parameter(50, "own steps in a round of the fastest worker", unit="steps", least=1)
    local: Literal["speed", "equal"] = parameter(
        "speed", "own steps in a round of a slower worker: fewer, by its measured speed, or as many"
    )
    delay: int | None = parameter(
        None,
        "differences after which their mean goes into the outer momentum; none: the number of workers at the beginning",
        least=1,
    )
    outer_lr: float = parameter(
        0.7, "the outer learning rate, of which each difference gets 1/delay", least=0, above=True
    )
    outer_momentum: float = parameter(0.9, "the outer momentum", least=0, most=1)
    activation: float = parameter(
        0.0, "the share of the momentum that each difference in between steps with; at most 1/delay", least=0, most=1
    )

    def __post_init__(self) -> None:
        check_parameters("async-diloco", self)


@dataclass(slots=True)
class OwnRound:
    """A worker's open round."""

    since: float
    """When its steps could begin."""
    steps: int = 0
    """Own steps that it has."""


@dataclass(slots=True)
class Machine:
    """The version, and each worker's round and speed."""

    config: Config
    version: int = 0
    roster: Roster = field(default_factory=Roster)
    rounds: dict[int, OwnRound] = field(default_factory=dict)
    """By worker: its round, from its release until its push is ordered."""
    speeds: dict[int, float] = field(default_factory=dict)
    """By worker: own steps in a second of its last round."""
    entering: dict[int, dict[int, None]] = field(default_factory=dict)
    """By worker that has joined: those whose rounds were open then, and still are."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`. Costs O(n) once in a worker's round."""
        seat = self.roster.observe(fact)
        match fact:
            case TrainingBegan(members=members, version=version, at=at):
                self.version = version
                return tuple(self._release(worker, at, ("began", version)) for worker, _, _ in members)
            case WorkerJoined(worker=worker, at=at):
                self.entering[worker] = dict.fromkeys(self.rounds)
                return self._let_in(at) or (Hold(worker=worker, why=("rounds-open", awaited_of(self.rounds))),)
            case WorkerResumed(worker=worker, at=at):
                assert seat is not None
                if seat.in_transit:
                    return (Hold(worker=worker, why=("own-update", worker)),)
                return (self._release(worker, at, ("goes-on", worker, self.version)),)
            case ParametersTaken(worker=worker, at=at):
                if (own := self.rounds.get(worker)) is not None and not own.steps:
                    own.since = at
                return ()
            case GradientReady(worker=worker, at=at):
                assert seat is not None
                return self._computed(worker, seat, at)
            case StepDeclined(worker=worker, at=at):
                assert seat is not None
                steps = self.rounds.pop(worker).steps
                why: Why = ("revoked" if fact.revoked else "no-data", steps, steps + seat.last - seat.step + 1)
                push = (self.roster.push(worker, why),) if steps else ()
                return (*push, *self._let_in(at))
            case UpdateArrived(worker=worker, step=step, at=at):
                assert seat is not None
                return self._apply(worker, step, seat, at)
            case WorkerLeft(worker=worker, at=at):
                assert seat is not None
                for known in (self.rounds, self.speeds, self.entering):
                    known.pop(worker, None)
                return (*Roster.half_pushed(fact, seat), *self._let_in(at))
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def _computed(self, worker: int, seat: WorkerProgress, at: float) -> tuple[Order, ...]:
        """The worker goes on by itself, or its round is over."""
        own = self.rounds[worker]
        own.steps += 1
        if seat.phase == "computing":
            return ()
        if at > own.since:
            self.speeds[worker] = own.steps / (at - own.since)
        del self.rounds[worker]
        return (self.roster.push(worker, ("round-ends", own.steps)), *self._let_in(at))

    def _apply(self, worker: int, step: int, seat: WorkerProgress, at: float) -> tuple[Order, ...]:
        """Make a version of this difference, and begin the worker's next round, unless the worker has no data."""
        self.version += 1
        why: Why = ("difference", worker, step)
        apply = ApplyUpdate(version=self.version, contributions=((worker, step, 1.0),), why=why)
        return (apply,) if seat.phase == "declined" else (apply, self._release(worker, at, why))

    def _let_in(self, at: float) -> tuple[Order, ...]:
        """Release the workers that have joined, once the rounds have ended that were open then."""
        for rounds in self.entering.values():
            for one in [one for one in rounds if one not in self.rounds]:
                del rounds[one]
        ready = [worker for worker, rounds in self.entering.items() if not rounds]
        for worker in ready:
            del self.entering[worker]
        return tuple(self._release(worker, at, ("joined", worker, self.version)) for worker in ready)

    def _release(self, worker: int, at: float, why: Why) -> Release:
        self.rounds[worker] = OwnRound(at)
        steps, speed = self.config.every, self.speeds.get(worker)
        if self.config.local == "speed" and speed is not None:
            fastest = max(self.speeds.values())
            if (paced := own_steps(steps, speed, fastest)) < steps:
                steps, why = paced, ("by-speed", paced, steps, speed, fastest)
        return self.roster.release(worker, self.version, why, steps=steps)


def own_steps(every: int, speed: float, fastest: float) -> int:
    """Return the own steps in a round of a worker with this speed, where the fastest one makes `every`.

    Workers that differ by less than a rounding error make as many.

    >>> [own_steps(50, 1 / seconds, 1 / 0.58) for seconds in (0.58, 0.75, 1.51, 3.33)]
    [50, 38, 19, 8]
    """
    return max(1, math.floor(every * (speed / fastest) + 1e-6))


def delay_of(config: Config, workers: int) -> int:
    """Return after how many differences their mean goes into the momentum, where so many workers begin."""
    return config.delay or max(1, workers)


def outer_of(config: Config, workers: int) -> Outer:
    """Return the outer optimizer that the parameters describe."""
    delay, momentum = delay_of(config, workers), config.outer_momentum
    if not momentum:
        return Outer(config.outer_lr / delay)
    return Outer(config.outer_lr, momentum, delay == 1, delay, config.activation)


def misfit(config: Config, hosts: Sequence[str]) -> str:
    """Why this config can't train with one worker on each of these hosts; empty if it can."""
    delay = delay_of(config, len(hosts))
    if config.activation * delay <= 1:
        return ""
    return (
        f"async-diloco: activation is {written(config.activation)}, and delay {delay}; activation must be at most "
        f"1/delay, which is {1 / delay:.3g}"
    )


SPEC = Spec(
    name="async-diloco",
    title="Asynchronous DiLoCo: own steps, and Delayed Nesterov",
    does="as diloco, but each worker's difference is applied on arrival, and no worker waits",
    paper="Liu et al., Asynchronous Local-SGD Training for Language Modeling, 2024",
    config=Config,
    machine=Machine,
    rounds=False,
    local_steps=True,
    pushes="difference",
    optimizer="outer",
    outer=outer_of,
    pushes_at_once=False,
    invariants={
        "the workers that compute have an open round, and no others": lambda machine: (
            sorted(machine.rounds)
            == sorted(worker for worker, seat in machine.roster.seats.items() if seat.phase == "computing")
        ),
        "no worker makes more own steps in a round than the fastest one": lambda machine: all(
            own.steps < machine.config.every for own in machine.rounds.values()
        ),
        "a worker waits only for its own update, or to join": lambda machine: all(
            seat.in_transit or worker in machine.entering
            for worker, seat in machine.roster.seats.items()
            if seat.phase in ("parked", "arrived")
        ),
        "a worker that has joined waits only for open rounds": lambda machine: all(
            rounds and all(worker in machine.rounds for worker in rounds) for rounds in machine.entering.values()
        ),
        "only workers that are here have a speed": lambda machine: all(
            worker in machine.roster.seats for worker in machine.speeds
        ),
    },
    misfit=misfit,
    reasons={
        **REASONS,
        "difference": "the difference of worker {0} up to step {1} was applied on arrival",
        "by-speed": "its round has {0} of {1} steps: it makes {2:.3g} steps a second, and the fastest worker {3:.3g}",
        "rounds-open": "it joins once the open rounds of {0:workers} have ended",
        "own-update": "the last update of worker {0} is still on its way",
    },
)
