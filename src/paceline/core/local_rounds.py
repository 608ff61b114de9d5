"""Rounds of own steps: each worker steps parameters of its own, and a version has what all of them have subtracted.

The protocols that share this differ in the outer optimizer, which makes a version of the mean difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

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
from paceline.core.orders import ApplyUpdate, Hold, Order, Release
from paceline.core.reasons import Why, awaited_of
from paceline.core.roster import REASONS as SHARED
from paceline.core.roster import Roster, WorkerProgress, mean_of

REASONS = {
    **SHARED,
    "round-ends": "that was the last of the {0} steps of its round",
    "no-data": "it makes no further step, and has made {0} of {1} in its round",
    "revoked": "its round was ended after {0} of {1} steps",
    "differences-complete": "all differences of version {0} have arrived",
    "round-open": "version {0} waits for {1:workers}",
    "next-round": "it takes part from version {0} on, which waits for {1:workers}",
}
"""Sentences of the reasons that these machines share."""


class Rounds(Protocol):
    """The parameter that all of these protocols have."""

    @property
    def round(self) -> int:
        """Own steps of each worker in a round, after which there is a version."""


@dataclass(slots=True)
class OpenRound:
    """One worker's part in the open round."""

    steps: int = 0
    """Own steps that it has made."""
    weight: float | None = 0.0
    """The sum of what they weigh, if that is known."""


@dataclass(slots=True)
class LocalRounds:
    """The machine. A round ends when the differences of all its workers have arrived.

    A worker without data pushes what it has. A worker that joins or resumes waits for the next round.
    """

    config: Rounds
    version: int = 0
    roster: Roster = field(default_factory=Roster)
    open: dict[int, OpenRound] = field(default_factory=dict)
    """By worker whose difference is awaited."""
    arrived: dict[tuple[int, int], float | None] = field(default_factory=dict)
    """By (worker, last step): what the difference weighs."""
    waiting: dict[int, None] = field(default_factory=dict)
    """Workers that wait for the next version."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        seat = self.roster.observe(fact)
        match fact:
            case TrainingBegan(members=members, version=version):
                self.version = version
                return tuple(self._begin(worker, ("began", version)) for worker, _, _ in members)
            case WorkerJoined(worker=worker) | WorkerResumed(worker=worker):
                self.waiting[worker] = None
                return self._close_round() or (Hold(worker=worker, why=self._missing("next-round")),)
            case GradientReady(worker=worker):
                assert seat is not None
                return self._computed(worker, seat, fact.weighs)
            case UpdateArrived(worker=worker, step=step):
                assert seat is not None
                self.arrived[worker, step] = self.open.pop(worker).weight
                if seat.phase == "arrived":
                    self.waiting[worker] = None
                closed = self._close_round()
                return closed or ((Hold(worker=worker, why=self._missing()),) if worker in self.waiting else ())
            case StepDeclined(worker=worker):
                steps = self.open[worker].steps
                if steps:
                    why = "revoked" if fact.revoked else "no-data"
                    return (self.roster.push(worker, (why, steps, self.config.round)),)
                del self.open[worker]
                return self._close_round()
            case WorkerLeft(worker=worker):
                assert seat is not None
                self.open.pop(worker, None)
                self.waiting.pop(worker, None)
                return (*Roster.half_pushed(fact, seat), *self._close_round())
            case ParametersTaken():
                return ()
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def _begin(self, worker: int, why: Why) -> Release:
        self.open[worker] = OpenRound()
        return self.roster.release(worker, self.version, why, steps=self.config.round)

    def _computed(self, worker: int, seat: WorkerProgress, weighs: float | None) -> tuple[Order, ...]:
        """The worker goes on by itself, or pushes what it has subtracted in this round."""
        mine = self.open[worker]
        mine.steps += 1
        mine.weight = None if mine.weight is None or weighs is None else mine.weight + weighs
        return (self.roster.push(worker, ("round-ends", mine.steps)),) if seat.phase == "ready" else ()

    def _close_round(self) -> tuple[Order, ...]:
        """If no difference is awaited, make the version, and begin the next round with all that wait for it."""
        if self.open:
            return ()
        orders: list[Order] = []
        why: Why = ()
        if self.arrived:
            contributions, self.arrived = mean_of(self.arrived), {}
            self.version += 1
            why = ("differences-complete", self.version)
            orders.append(ApplyUpdate(version=self.version, contributions=contributions, why=why))
        waiting, self.waiting = sorted(self.waiting), {}
        return (*orders, *(self._begin(worker, why or ("goes-on", worker, self.version)) for worker in waiting))

    def _missing(self, code: str = "round-open") -> Why:
        return (code, self.version + 1, awaited_of(self.open))


def _is_awaited(seat: WorkerProgress) -> bool:
    """Whether the worker's difference is still to arrive."""
    return seat.phase in ("computing", "ready", "pushing") or seat.pushing is not None


INVARIANTS = {
    "every worker computes on the newest version, and on its own steps since": lambda machine: all(
        seat.version == machine.version
        for seat in machine.roster.seats.values()
        if seat.phase in ("computing", "ready", "pushing")
    ),
    "the workers that compute or push are awaited, and no others": lambda machine: (
        sorted(machine.open) == sorted(one for one, seat in machine.roster.seats.items() if _is_awaited(seat))
    ),
    "no worker makes more own steps in a round than that has": lambda machine: all(
        one.steps <= machine.config.round for one in machine.open.values()
    ),
    "a worker waits only while a difference is awaited": lambda machine: bool(machine.open) or not machine.waiting,
}
"""What is true of these machines after every fact."""
