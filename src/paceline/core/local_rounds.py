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

    @property
    def overlap(self) -> int:
        """How many of them a worker makes while its difference is pushed. They are in the next one."""


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
    ahead: dict[int, OpenRound] = field(default_factory=dict)
    """By worker that has pushed its difference of the open round: what it has done for the next one."""
    arrived: dict[tuple[int, int], float | None] = field(default_factory=dict)
    """By (worker, last step): what the difference weighs."""
    waiting: dict[int, None] = field(default_factory=dict)
    """Workers that wait for the next version."""
    entering: dict[int, None] = field(default_factory=dict)
    """Workers that take part in the open round once all others have its version."""

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
            case StepDeclined(worker=worker) if worker in self.ahead:  # what it has is pushed as the round closes
                if not self.ahead[worker].steps:
                    del self.ahead[worker]
                return ()
            case StepDeclined(worker=worker):
                steps = self.open[worker].steps
                if steps:
                    why = "revoked" if fact.revoked else "no-data"
                    return (self.roster.push(worker, (why, steps, self.config.round)), *self._let_in())
                del self.open[worker]
                return self._close_round()
            case WorkerLeft(worker=worker):
                assert seat is not None
                self.open.pop(worker, None)
                self.ahead.pop(worker, None)
                self.waiting.pop(worker, None)
                self.entering.pop(worker, None)
                return (*Roster.half_pushed(fact, seat), *self._close_round())
            case ParametersTaken():
                return ()
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def _begin(self, worker: int, why: Why) -> Release:
        self.open[worker] = OpenRound()
        return self._release(worker, why)

    def _release(self, worker: int, why: Why) -> Release:
        """Release the worker for a round's steps. What it has made for the next difference goes on."""
        seat, config = self.roster.seats[worker], self.config
        if seat.phase == "ready" and seat.since is None:
            seat.since = seat.step
        return self.roster.release(worker, self.version, why, steps=config.round, overlap=config.overlap)

    def _computed(self, worker: int, seat: WorkerProgress, weighs: float | None) -> tuple[Order, ...]:
        """The worker goes on by itself, or pushes what it has subtracted in this round, or needs the next version."""
        pushed = worker in self.ahead
        mine = self.ahead[worker] if pushed else self.open[worker]
        mine.steps += 1
        mine.weight = None if mine.weight is None or weighs is None else mine.weight + weighs
        left = 0 if seat.phase == "ready" else seat.last - seat.step + 1
        if not pushed and left == self.config.overlap and seat.version == self.version:
            if left:
                self.ahead[worker] = OpenRound()
            return (self.roster.push(worker, ("round-ends", mine.steps)),)
        if left:
            return ()
        if not pushed:  # the version is there
            return (self._release(worker, ("goes-on", worker, self.version)), *self._let_in())
        self.waiting[worker] = None
        return (Hold(worker=worker, why=self._missing()),)

    def _close_round(self) -> tuple[Order, ...]:
        """If no difference is awaited, make the version, and begin the next round with all that wait for it."""
        if self.open:
            return self._let_in()
        orders: list[Order] = []
        why: Why = ()
        if self.arrived:
            contributions, self.arrived = mean_of(self.arrived), {}
            self.version += 1
            why = ("differences-complete", self.version)
            orders.append(ApplyUpdate(version=self.version, contributions=contributions, why=why))
        self.open, self.ahead = self.ahead, {}
        for worker, mine in sorted(self.open.items()):
            phase = self.roster.seats[worker].phase
            if phase in ("declined", "parked"):  # if it has resumed, it takes part in the round after that
                orders.append(self.roster.push(worker, ("no-data", mine.steps, self.config.round)))
            elif phase == "ready":
                del self.waiting[worker]
                orders.append(self._release(worker, why))
        self.entering |= dict.fromkeys(sorted(worker for worker in self.waiting if worker not in self.open))
        self.waiting = {worker: None for worker in self.waiting if worker in self.open}
        return (*orders, *self._let_in(why))

    def _let_in(self, why: Why = ()) -> tuple[Order, ...]:
        """Begin the round with those that enter it, once all others have its version, and can hand over their state."""
        seats = [self.roster.seats[worker] for worker in self.open]
        if any(seat.version < self.version and seat.phase == "computing" for seat in seats):
            return ()
        entering, self.entering = self.entering, {}
        return tuple(self._begin(worker, why or ("goes-on", worker, self.version)) for worker in entering)

    def _missing(self, code: str = "round-open") -> Why:
        return (code, self.version + 1, awaited_of(self.open))


def _is_awaited(seat: WorkerProgress) -> bool:
    """Whether the worker's difference is still to arrive."""
    return seat.phase in ("computing", "ready", "pushing") or (seat.pushing, seat.unpushed) != (None, None)


INVARIANTS = {
    "every worker computes on the newest version or, with an overlap, on the one before": lambda machine: all(
        seat.version == machine.version or (machine.config.overlap and seat.version == machine.version - 1)
        for seat in machine.roster.seats.values()
        if seat.phase in ("computing", "ready", "pushing")
    ),
    "the workers that compute or push are awaited, and no others": lambda machine: (
        sorted(machine.open | machine.ahead)
        == sorted(one for one, seat in machine.roster.seats.items() if _is_awaited(seat))
    ),
    "no worker makes more own steps in a round than that has": lambda machine: all(
        one.steps <= machine.config.round for one in (*machine.open.values(), *machine.ahead.values())
    ),
    "a worker waits only while a difference is awaited": lambda machine: bool(machine.open) or not machine.waiting,
}
"""What is true of these machines after every fact."""
