"""The workers that take part, and the state of their steps. All parameter-server machines share this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.core.facts import (
    AlarmRang,
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
    WorkerResumed,
)
from paceline.core.orders import DropUpdate, Release, SetAlarm, StartPull, StartPush
from paceline.core.reasons import Why
from paceline.errors import ProtocolViolation

REASONS = {
    "began": "training began at version {0}",
    "joined": "worker {0} joined at version {1}",
    "goes-on": "worker {0} goes on at version {1}",
    "any-time": "a push may start at any time",
    "round-closed": "version {2} was made without step {1} of worker {0}",
    "half-pushed": "worker {0} {1} before its update had arrived",
}
"""Sentences of the reasons that these machines share."""

ANY_TIME: Why = ("any-time",)
OfWorker = GradientReady | UpdateArrived | ParametersTaken | StepDeclined | WorkerLeft | WorkerResumed
"""Facts of a worker that is here."""


def mean_of(weights: Mapping[tuple[int, int], float | None]) -> tuple[tuple[int, int, float], ...]:
    """Return the contributions to the mean of these gradients, ascending. `weights`: by (worker, step).

    If some weight is unknown, or all are 0, all gradients weigh the same.
    """
    known = None not in weights.values() and any(weights.values())
    parts = [(worker, step, (weight or 0) if known else 1) for (worker, step), weight in sorted(weights.items())]
    total = sum(part for _, _, part in parts)
    return tuple((worker, step, part / total) for worker, step, part in parts)


def check_beginning(fact: TrainingBegan, began: bool) -> None:
    """Raise ProtocolViolation if training has begun already, or its members are not named as they should be."""
    if began:
        raise ProtocolViolation(fact, "training has begun already")
    workers = [worker for worker, _, _ in fact.members]
    if workers != sorted(set(workers)):
        raise ProtocolViolation(fact, "members are named once each, in ascending order")


def ring(alarms: dict[int, Any], fact: AlarmRang) -> Any:
    """Take this alarm, which rings, out of those that are set. Raises ProtocolViolation if it is not set."""
    if fact.number not in alarms:
        raise ProtocolViolation(fact, "no alarm of that number is set")
    return alarms.pop(fact.number)


Phase = Literal["parked", "computing", "ready", "pushing", "arrived", "declined"]


@dataclass(slots=True)
class WorkerProgress:
    """One live worker."""

    step: int
    """The step that it is at by its last release; before its first release, the one before its first step."""
    last: int = -1
    """The last step that its last release permits."""
    version: int = -1
    """The version that this step computes on."""
    phase: Phase = "parked"
    weight: float | None = None
    """The weight of this step's update in a mean, once known."""
    pulling: int | None = None
    """The version that is being transferred to the worker."""
    ahead: bool = False
    """Whether `StartPull` ordered that, ahead of its step."""
    pushing: int | None = None
    """An earlier step whose push goes on while the worker computes this one."""
    first: int | None = None
    """The first of several own steps that are in the update which is pushed meanwhile."""
    since: int | None = None
    """The first of several own steps that go into one update, until that has arrived."""

    @property
    def unpushed(self) -> int | None:
        """The last step that is computed and whose push has not begun."""
        if self.phase == "ready":
            return self.step
        own = self.since is not None and self.phase in ("computing", "declined", "parked")
        return self.step - 1 if own else None

    def first_of(self, step: int) -> int | None:
        """The first step in the update that goes by this one, if it has several."""
        first = self.first if step == self.pushing else self.since
        return None if first == step else first

    @property
    def in_transit(self) -> bool:
        """Whether an earlier step's push, or a version that was sent ahead, is still on its way."""
        return self.pushing is not None or self.ahead


@dataclass(slots=True)
class Roster:
    """Checks facts, and keeps every worker's step and phase.

    A step goes computing → ready → pushing → arrived. Then the worker is released for the next one. Where a push may go
    on beside the next step's computation, that release may come while the worker is pushing. A worker without data
    declines instead. It is parked if it resumes. It may leave in any phase.
    """

    seats: dict[int, WorkerProgress] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    """The last step number of each worker that left. Numbers only grow, also for a worker that comes back."""
    alarms: dict[int, None] = field(default_factory=dict)
    """The numbers of alarms that are set and have not rung."""
    began: bool = False

    def observe(self, fact: Fact) -> WorkerProgress | None:
        """Check `fact`, note it, and return its worker's seat. Return None for `TrainingBegan` and `AlarmRang`.

        For a worker that left, this is its last seat. Raises ProtocolViolation without changing anything.
        """
        if not self.began and not isinstance(fact, TrainingBegan):
            raise ProtocolViolation(fact, "training has not begun")
        match fact:  # the three facts of every step first
            case GradientReady():
                seat = self._seat(fact)
                self._expect(fact, seat, fact.step, "computing")
                if fact.version != seat.version:
                    raise ProtocolViolation(fact, f"its step was released on version {seat.version}")
                seat.phase, seat.weight = "ready", fact.weighs
                if fact.step < seat.last:  # the worker goes on by itself
                    seat.since = fact.step if seat.since is None else seat.since
                    seat.step, seat.phase, seat.weight = fact.step + 1, "computing", None
            case UpdateArrived():
                seat = self._seat(fact)
                if fact.step == seat.pushing:
                    seat.pushing = seat.first = None
                else:
                    self._expect(fact, seat, fact.step, "pushing")
                    seat.phase, seat.since = "arrived", None
            case ParametersTaken():
                seat = self._seat(fact)
                if seat.pulling is None or fact.version != seat.pulling:
                    raise ProtocolViolation(fact, f"worker {fact.worker} is not pulling that version")
                seat.pulling, seat.ahead = None, False
            case TrainingBegan():
                self._begin(fact)
                return None
            case WorkerJoined():
                return self._join(fact)
            case WorkerLeft():
                seat = self._seat(fact)
                del self.seats[fact.worker]
                self.used[fact.worker] = seat.step
            case StepDeclined():
                seat = self._seat(fact)
                self._expect(fact, seat, fact.step, "computing")
                seat.phase = "declined"
            case WorkerResumed():
                seat = self._seat(fact)
                if seat.phase != "declined":
                    raise ProtocolViolation(fact, f"it is {seat.phase} at step {seat.step}, and has declined none")
                seat.phase = "parked"
                if not seat.ahead:  # the parameters of the step that it declined have come, though no fact told it
                    seat.pulling = None
            case AlarmRang():
                ring(self.alarms, fact)
                return None
            case ReduceFinished() | ReduceFailed() | ReplicaCopied():
                raise ProtocolViolation(fact, "there are no replicas where a parameter server has the parameters")
        return seat

    def _seat(self, fact: OfWorker) -> WorkerProgress:
        seat = self.seats.get(fact.worker)
        if seat is None:
            raise ProtocolViolation(fact, f"worker {fact.worker} is not here")
        return seat

    def note(self, order: Release | StartPush | StartPull) -> None:
        """Note that this is ordered."""
        seat = self.seats[order.worker]
        match order:
            case Release():
                self._released(seat, order)
            case StartPush():
                self._pushed(seat, order.step)
            case StartPull():
                seat.pulling, seat.ahead = order.version, True

    @staticmethod
    def _released(seat: WorkerProgress, order: Release) -> None:
        if seat.phase == "pushing":
            seat.pushing, seat.first, seat.since = seat.step, seat.since, None
        seat.step, seat.last = order.step, order.last
        seat.version, seat.phase, seat.weight = order.version, "computing", None
        if order.parameters == "pull":
            seat.pulling, seat.ahead = order.version, False

    @staticmethod
    def _pushed(seat: WorkerProgress, step: int) -> None:
        if seat.phase == "ready" and step == seat.step:
            seat.phase = "pushing"
        else:  # beside the next step's computation, or it has declined the next one
            seat.pushing, seat.first, seat.since = step, seat.since, None

    def release(
        self,
        worker: int,
        version: int,
        why: Why,
        parameters: Literal["pull", "held", "eager", "own"] = "pull",
        steps: int = 1,
        overlap: int = 0,
    ) -> Release:
        """Note and return the order that starts the worker's next steps. Its last push may still be on its way."""
        seat = self.seats[worker]
        step = seat.step + 1
        order = Release(
            worker=worker, step=step, version=version, parameters=parameters, steps=steps, overlap=overlap, why=why
        )
        self._released(seat, order)
        return order

    def push(self, worker: int, why: Why = ANY_TIME, scale: float = 1.0) -> StartPush:
        """Note and return the order that transfers the worker's ready gradient, or the update of its own steps."""
        seat = self.seats[worker]
        step = seat.unpushed
        assert step is not None
        order = StartPush(worker=worker, step=step, since=seat.first_of(step), scale=scale, why=why)
        self._pushed(seat, step)
        return order

    def pull(self, worker: int, version: int, why: Why) -> StartPull:
        """Note and return the order that transfers a version to the worker without starting a step."""
        order = StartPull(worker=worker, version=version, why=why)
        self.note(order)
        return order

    def set_alarm(self, number: int, seconds: float, why: Why) -> SetAlarm:
        """Note and return the order that sets this alarm."""
        self.alarms[number] = None
        return SetAlarm(number=number, seconds=seconds, why=why)

    def late(self, worker: int, step: int, version: int) -> DropUpdate | None:
        """Return the order to drop the worker's gradient, if it is of an older version than that one."""
        computed_on = self.seats[worker].version
        if computed_on == version:
            return None
        why: Why = ("round-closed", worker, step, computed_on + 1)
        return DropUpdate(worker=worker, step=step, samples="return", why=why)

    @staticmethod
    def half_pushed(fact: WorkerLeft, seat: WorkerProgress) -> tuple[DropUpdate, ...]:
        """Return the orders to drop the departed worker's updates that had not arrived."""
        why: Why = ("half-pushed", fact.worker, fact.reason)
        pushed = seat.step if seat.phase == "pushing" else None
        steps = [step for step in (seat.pushing, pushed, seat.unpushed) if step is not None]
        return tuple(
            DropUpdate(worker=fact.worker, step=step, since=seat.first_of(step), samples="return", why=why)
            for step in steps
        )

    def _begin(self, fact: TrainingBegan) -> None:
        check_beginning(fact, self.began)
        self.began = True
        for worker, _, step in fact.members:
            self.seats[worker] = WorkerProgress(step=step - 1)

    def _join(self, fact: WorkerJoined) -> WorkerProgress:
        if fact.worker in self.seats:
            raise ProtocolViolation(fact, f"worker {fact.worker} is here already")
        if fact.step <= self.used.get(fact.worker, fact.step - 1):
            raise ProtocolViolation(fact, f"step numbers up to {self.used[fact.worker]} are used")
        self.seats[fact.worker] = seat = WorkerProgress(step=fact.step - 1)
        self.used.pop(fact.worker, None)
        return seat

    @staticmethod
    def _expect(fact: Fact, seat: WorkerProgress, step: int, phase: Phase) -> None:
        if seat.phase != phase or seat.step != step:
            raise ProtocolViolation(fact, f"its worker is {seat.phase} at step {seat.step}")
