"""Who takes part, and how far each one's step has come: the part that all parameter-server machines share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.orders import DropUpdate, Release, Why
from paceline.errors import ProtocolViolation

REASONS = {
    "began": "training began at version {0}",
    "joined": "worker {0} joined at version {1}",
    "any-time": "a push may start at any time",
    "half-pushed": "worker {0} {1} before its update had arrived",
}
"""Sentences of the reasons that these machines share."""

ANY_TIME: Why = ("any-time",)

Phase = Literal["parked", "computing", "pushing", "arrived", "declined"]


@dataclass(slots=True)
class Seat:
    """One live worker."""

    step: int
    """The step it was last released for; when it never was, the one before its first."""
    version: int = -1
    """The version that this step computes on."""
    phase: Phase = "parked"
    samples: int | None = None
    """In this step's update, once it is known."""
    pulling: bool = False
    """Released on a version that it has not yet reported taken."""


@dataclass(slots=True)
class Roster:
    """Tells a legal fact from an illegal one, and keeps every worker's step and phase.

    A step goes computing → pushing → arrived, then the worker is released for the next one. A worker
    without data declines instead and computes no more. It may leave in any phase.
    """

    seats: dict[int, Seat] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    """The last step number of those who left: numbers only grow, also for one who comes back."""
    began: bool = False

    def observe(self, fact: Fact) -> Seat | None:
        """Check `fact`, note it, and return the seat that it is about (for `TrainingBegan`, None).

        Of a worker that left, the seat as it was. Raises ProtocolViolation with nothing changed.
        """
        if isinstance(fact, TrainingBegan):
            self._begin(fact)
            return None
        if not self.began:
            raise ProtocolViolation(fact, "training has not begun")
        if isinstance(fact, WorkerJoined):
            return self._join(fact)
        seat = self.seats.get(fact.worker)
        if seat is None:
            raise ProtocolViolation(fact, f"worker {fact.worker} is not here")
        match fact:
            case WorkerLeft():
                del self.seats[fact.worker]
                self.used[fact.worker] = seat.step
            case GradientReady():
                self._expect(fact, seat, fact.step, "computing")
                if fact.version != seat.version:
                    raise ProtocolViolation(fact, f"its step was released on version {seat.version}")
                seat.phase, seat.samples = "pushing", fact.samples
            case UpdateArrived():
                self._expect(fact, seat, fact.step, "pushing")
                seat.phase = "arrived"
            case StepDeclined():
                self._expect(fact, seat, fact.step, "computing")
                seat.phase = "declined"
            case ParametersTaken():
                if not seat.pulling or fact.version != seat.version:
                    raise ProtocolViolation(fact, f"worker {fact.worker} is not pulling that version")
                seat.pulling = False
        return seat

    def release(self, worker: int, version: int, why: Why) -> Release:
        """The order that starts the worker's next step, noted."""
        seat = self.seats[worker]
        seat.step += 1
        seat.version, seat.phase, seat.samples, seat.pulling = version, "computing", None, True
        return Release(worker=worker, step=seat.step, version=version, why=why)

    @staticmethod
    def half_pushed(fact: WorkerLeft, seat: Seat) -> tuple[DropUpdate, ...]:
        """The order to drop what the departed had announced but not delivered, if there is any."""
        if seat.phase != "pushing":
            return ()
        why: Why = ("half-pushed", fact.worker, fact.reason)
        return (DropUpdate(worker=fact.worker, step=seat.step, samples="return", why=why),)

    def _begin(self, fact: TrainingBegan) -> None:
        if self.began:
            raise ProtocolViolation(fact, "training has begun already")
        workers = [worker for worker, _, _ in fact.members]
        if workers != sorted(set(workers)):
            raise ProtocolViolation(fact, "members are named once each, in ascending order")
        self.began = True
        for worker, _, step in fact.members:
            self.seats[worker] = Seat(step=step - 1)

    def _join(self, fact: WorkerJoined) -> Seat:
        if fact.worker in self.seats:
            raise ProtocolViolation(fact, f"worker {fact.worker} is here already")
        if fact.step <= self.used.get(fact.worker, fact.step - 1):
            raise ProtocolViolation(fact, f"step numbers up to {self.used[fact.worker]} are used")
        self.seats[fact.worker] = seat = Seat(step=fact.step - 1)
        self.used.pop(fact.worker, None)
        return seat

    @staticmethod
    def _expect(fact: Fact, seat: Seat, step: int, phase: Phase) -> None:
        if seat.phase != phase or seat.step != step:
            raise ProtocolViolation(fact, f"its worker is {seat.phase} at step {seat.step}")
