"""Rounds of own steps: each worker steps parameters of its own, and a version has what all of them have subtracted.

The protocols that share this differ in the outer optimizer, which makes a version of the mean difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from paceline.core.facts import (
    AlarmRang,
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
from paceline.core.grace import REASONS as OF_GRACE
from paceline.core.grace import Grace, Seconds, fits
from paceline.core.orders import ApplyUpdate, Hold, Order, Release
from paceline.core.reasons import Why, awaited_of
from paceline.core.roster import REASONS as SHARED
from paceline.core.roster import Roster, WorkerProgress, mean_of

REASONS = {
    **SHARED,
    **OF_GRACE,
    "round-ends": "that was the last of the {0} steps of its round",
    "no-data": "it makes no further step, and has made {0} of {1} in its round",
    "revoked": "its round was ended after {0} of {1} steps",
    "differences-complete": "all differences of version {0} have arrived",
    "enough-differences": "version {0} has enough differences: {1}",
    "quorum-open": "version {0} waits for {1} of {2:workers}",
    "round-open": "version {0} waits for {1:workers}",
    "next-round": "it takes part from version {0} on, which waits for {1:workers}",
}
"""Sentences of the reasons that these machines share."""


class Rounds(Protocol):
    """What all of these protocols have as parameters, or for good."""

    @property
    def round(self) -> int:
        """Own steps of each worker in a round, after which there is a version."""

    @property
    def overlap(self) -> int:
        """How many of them a worker makes while its difference is pushed. They are in the next one."""

    @property
    def quorum(self) -> int | None:
        """How many differences make a version; None: those of all workers. With a quorum there is no overlap."""

    @property
    def grace(self) -> Seconds:
        """How long a round stays open for further differences after that."""


@dataclass(slots=True)
class OpenRound:
    """One worker's part in the open round."""

    steps: int = 0
    """Own steps that it has made."""
    weight: float | None = 0.0
    """The sum of what they weigh, if that is known."""

    def merged(self, *, by_pace: bool) -> float | None:
        """What the difference weighs in a version; None if that is unknown.

        `by_pace`: as Decoupled DiLoCo has it, times what a step of it weighs on average. So of two workers with as
        many samples the one that took them in fewer, larger steps counts more.
        """
        return self.weight * self.weight / self.steps if by_pace and self.weight is not None else self.weight


@dataclass(slots=True)
class LocalRounds:
    """The machine. A round ends when the differences of all its workers have arrived.

    A worker without data pushes what it has. A worker that joins waits for the next round. One that resumes takes part
    in the open round, unless a worker has ended its steps in it: after `paceline.agree` all resume, one after another.

    With a quorum a round ends when so many differences have arrived, and its time of grace is over. Grace is for the
    workers that began their steps with the newest version. A difference that comes later goes into the next version. A
    worker that joins begins at once.
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
    grace: Grace = field(default_factory=Grace)

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        seat = self.roster.observe(fact)
        match fact:
            case TrainingBegan(members=members, version=version, at=at):
                self.version = version
                self.grace.begin_round(at)
                return tuple(self._begin(worker, ("began", version)) for worker, _, _ in members)
            case WorkerJoined(worker=worker) if self.config.quorum is not None:
                return (self._begin(worker, ("joined", worker, self.version)),)
            case WorkerResumed(worker=worker) if self._is_young():  # those that wait in one place resume one by one
                self.entering[worker] = None
                return self._let_in()
            case WorkerJoined(worker=worker) | WorkerResumed(worker=worker):
                self.waiting[worker] = None
                return self._close_round(fact.at) or (Hold(worker=worker, why=self._missing("next-round")),)
            case GradientReady(worker=worker):
                assert seat is not None
                return self._computed(worker, seat, fact.weighs)
            case UpdateArrived(worker=worker, step=step):
                assert seat is not None
                self.arrived[worker, step] = self.open.pop(worker).merged(by_pace=self.config.quorum is not None)
                if seat.phase == "arrived":
                    self.waiting[worker] = None
                closed = self._close_round(fact.at)
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
                return self._close_round(fact.at)
            case WorkerLeft(worker=worker):
                assert seat is not None
                self.open.pop(worker, None)
                self.ahead.pop(worker, None)
                self.waiting.pop(worker, None)
                self.entering.pop(worker, None)
                return (*Roster.half_pushed(fact, seat), *self._close_round(fact.at))
            case AlarmRang(at=at):
                return self._close_round(at) if self.grace.rang(fact, self.version + 1) else ()
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
        if not pushed and left == self.config.overlap and (not left or seat.version == self.version):
            if left:
                self.ahead[worker] = OpenRound()
            return (self.roster.push(worker, ("round-ends", mine.steps)),)
        if left:
            return ()
        if not pushed:  # the version is there
            return (self._release(worker, ("goes-on", worker, self.version)), *self._let_in())
        self.waiting[worker] = None
        return (Hold(worker=worker, why=self._missing()),)

    @property
    def has_quorum(self) -> bool:
        """Whether a version can be made without the differences that are awaited."""
        return self.config.quorum is not None and len(self.arrived) >= self.config.quorum

    def _close_round(self, at: float) -> tuple[Order, ...]:
        """If no difference is awaited, make the version, and begin the next round with all that wait for it.

        With a quorum and those that are still on their way, give them time first.
        """
        if self.open and not self.has_quorum:
            return self._let_in()
        if self.config.grace and self.grace.state != "over" and self.has_quorum and (in_time := self._in_time()):
            return self._give_grace(in_time, at)
        orders: list[Order] = []
        why: Why = ()
        if self.arrived:
            contributions, self.arrived = mean_of(self.arrived), {}
            self.version += 1
            why = ("differences-complete", self.version)
            if self.open:
                why = ("enough-differences", self.version, len(contributions))
            orders.append(ApplyUpdate(version=self.version, contributions=contributions, why=why))
            self.grace.begin_round(at)
        ahead, self.ahead = self.ahead, {}
        self.open |= ahead
        for worker, mine in sorted(ahead.items()):
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
        seats = (self.roster.seats[worker] for worker in self.open) if self.config.overlap else ()
        if any(seat.version < self.version and seat.phase == "computing" for seat in seats):
            return ()
        entering, self.entering = self.entering, {}
        return tuple(self._begin(worker, why or ("goes-on", worker, self.version)) for worker in entering)

    def _is_young(self) -> bool:
        """Whether a further worker can take part in the open round: no other has ended its steps in it."""
        if self.arrived or self.ahead or not self.open:
            return False
        seats = [self.roster.seats[worker] for worker in self.open]
        if any(seat.phase != "computing" or seat.version != self.version for seat in seats):
            return False
        return not self.config.overlap or not any(mine.steps for mine in self.open.values())

    def _in_time(self) -> list[int]:
        """The workers that are awaited and began their steps with the newest version."""
        return [worker for worker in self.open if self.roster.seats[worker].version == self.version]

    def _give_grace(self, in_time: list[int], at: float) -> tuple[Order, ...]:
        """Set the alarm that ends the round's time of grace, unless it is set. From then on workers wait for that."""
        if self.grace.state == "now":
            return ()
        number, got, enough = self.version + 1, len(self.arrived), self.config.quorum or 1
        alarm = self.grace.begin(self.roster, number, got, self.config.grace, enough, at)
        why = self.grace.why(number, in_time)
        return (alarm, *(Hold(worker=worker, why=why) for worker in sorted(self.waiting)))

    def _missing(self, code: str = "round-open") -> Why:
        version = self.version + 1
        if self.grace.state == "now":
            return self.grace.why(version, self._in_time())
        if code == "round-open" and self.config.quorum is not None:
            lacking = min(self.config.quorum - len(self.arrived), len(self.open))
            return ("quorum-open", version, lacking, awaited_of(self.open))
        return (code, version, awaited_of(self.open))


def _is_awaited(seat: WorkerProgress) -> bool:
    """Whether the worker's difference is still to arrive."""
    return seat.phase in ("computing", "ready", "pushing") or (seat.pushing, seat.unpushed) != (None, None)


def _is_on_time(machine: LocalRounds) -> bool:
    """Whether no worker is further behind the newest version than it may be."""
    if machine.config.quorum is not None:
        return True
    behind = int(machine.config.overlap > 0)
    seats = machine.roster.seats.values()
    versions = [seat.version for seat in seats if seat.phase in ("computing", "ready", "pushing")]
    return all(version in (machine.version, machine.version - behind) for version in versions)


INVARIANTS = {
    "every worker computes on the newest version or, with an overlap or a quorum, on an earlier one": _is_on_time,
    "the workers that compute or push are awaited, and no others": lambda machine: (
        sorted(machine.open | machine.ahead)
        == sorted(one for one, seat in machine.roster.seats.items() if _is_awaited(seat))
    ),
    "no worker makes more own steps in a round than that has": lambda machine: all(
        one.steps <= machine.config.round for one in (*machine.open.values(), *machine.ahead.values())
    ),
    "a round with a quorum is open only in its time of grace": lambda machine: fits(
        machine.grace, machine.roster, machine.version + 1, enough=machine.has_quorum
    ),
    "a worker waits only while a difference is awaited": lambda machine: bool(machine.open) or not machine.waiting,
}
"""What is true of these machines after every fact."""
