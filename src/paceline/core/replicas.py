"""Who takes part where every worker owns a replica: each one's step, its replica's version, the groups that average.

What all decentralized machines share, as `core.roster` is for those with a parameter server.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from paceline.core.facts import (
    Fact,
    GradientReady,
    ReduceFailed,
    ReduceFinished,
    StepDeclined,
    TrainingBegan,
    WorkerLeft,
)
from paceline.core.orders import DropUpdate, Reduce, Release, StepReplica, Why
from paceline.core.roster import check_beginning
from paceline.errors import ProtocolViolation

REASONS = {
    "began": "training began",
    "own-gradient": "its gradient of step {0} is ready",
    "never-shared": "worker {0} {1} before its replica was averaged with another one's",
}
"""Sentences of the reasons that these machines share."""

Phase = Literal["parked", "computing", "ready", "applied", "declined"]


@dataclass(slots=True)
class Seat:
    """One live worker and its replica."""

    step: int
    """The step it was last released for; when it never was, the one before its first."""
    version: int = 0
    """Of its replica: how often it has changed."""
    computed_on: int = -1
    """The replica's version that this step computes on."""
    phase: Phase = "parked"
    """`ready`: the gradient is there and not applied; `applied`: it is in the replica."""
    samples: int | None = None
    """In this step's gradient, once it is there."""
    group: int | None = None
    """The group that averages its replica, or its gradient, now."""
    alone: list[int] = field(default_factory=list)
    """Steps in its replica that are in no other one yet."""


@dataclass(slots=True)
class Replicas:
    """Tells a legal fact from an illegal one, and keeps every worker's step and replica, and the groups at work.

    A step goes computing → ready → applied, then the worker is released for the next one. Its replica may be
    averaged in any phase, by one group at a time, and is not stepped meanwhile. A worker without data declines
    a step and computes no more; its replica may still be averaged. It may leave at any time.
    """

    seats: dict[int, Seat] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    """Of those who take part."""
    groups: dict[int, Reduce] = field(default_factory=dict)
    """Those that are at it."""
    broken: dict[int, None] = field(default_factory=dict)
    """Those of them of which a member has died: what it had may be in no replica, so they can only fail."""
    made: int = 0
    """Groups ordered so far: the next one's number."""
    began: bool = False

    def observe(self, fact: Fact) -> Seat | None:
        """Check `fact`, note it, and return the seat that it is about, if it is about one.

        Of a worker that left, the seat as it was; a group that it is in goes on until its end is told, and has failed
        if the worker died. Raises
        ProtocolViolation with nothing changed.
        """
        if isinstance(fact, TrainingBegan):
            self._begin(fact)
            return None
        if not self.began:
            raise ProtocolViolation(fact, "training has not begun")
        match fact:
            case ReduceFinished() | ReduceFailed():
                self._end(fact)
                return None
            case WorkerLeft() | GradientReady() | StepDeclined():
                return self._of_worker(fact)
            case _:
                raise ProtocolViolation(fact, "it does not happen where every worker owns a replica")

    def release(self, worker: int, why: Why) -> Release:
        """The order that starts the worker's next step on its replica as it is, noted."""
        seat = self.seats[worker]
        seat.step += 1
        seat.computed_on, seat.phase, seat.samples = seat.version, "computing", None
        return Release(worker=worker, step=seat.step, version=seat.version, parameters="own", why=why)

    def apply(self, worker: int, why: Why, group: int | None = None) -> StepReplica:
        """The order that steps its replica with the gradient that it has ready, or with a group's mean, noted."""
        seat = self.seats[worker]
        seat.version += 1
        seat.phase = "applied"
        if group is None:
            seat.alone.append(seat.step)
        return StepReplica(worker=worker, step=seat.step, version=seat.version, group=group, why=why)

    def reduce(
        self,
        members: tuple[int, ...],
        why: Why,
        contributions: tuple[tuple[int, int, float], ...] | None = None,
    ) -> Reduce:
        """The order that averages these replicas, or the gradients contributed, noted. `members` ascend."""
        group, self.made = self.made, self.made + 1
        order = Reduce(
            group=group,
            members=members,
            what="parameters" if contributions is None else "gradients",
            contributions=contributions or (),
            why=why,
        )
        self.groups[group] = order
        for worker in members:
            self.seats[worker].group = group
        return order

    @staticmethod
    def lost_with(fact: WorkerLeft, seat: Seat) -> tuple[DropUpdate, ...]:
        """The orders to drop what the departed had ready and not applied, or, if it died, shared with nobody.

        One that ended in an orderly way keeps its place in the final mean, with all that its replica has.
        """
        why: Why = ("never-shared", fact.worker, fact.reason)
        steps = list(seat.alone) if fact.reason == "died" else []
        steps += [seat.step] if seat.phase == "ready" else []
        return tuple(DropUpdate(worker=fact.worker, step=step, samples="return", why=why) for step in steps)

    def _begin(self, fact: TrainingBegan) -> None:
        check_beginning(fact, self.began)
        self.began = True
        for worker, host, step in fact.members:
            self.seats[worker] = Seat(step=step - 1)
            self.hosts[worker] = host

    def _of_worker(self, fact: WorkerLeft | GradientReady | StepDeclined) -> Seat:
        seat = self.seats.get(fact.worker)
        if seat is None:
            raise ProtocolViolation(fact, f"worker {fact.worker} is not here")
        if isinstance(fact, WorkerLeft):
            del self.seats[fact.worker], self.hosts[fact.worker]
            if fact.reason == "died" and seat.group is not None:
                self.broken[seat.group] = None
            return seat
        if seat.phase != "computing" or seat.step != fact.step:
            raise ProtocolViolation(fact, f"its worker is {seat.phase} at step {seat.step}")
        if isinstance(fact, StepDeclined):
            seat.phase = "declined"
        elif fact.version != seat.computed_on:
            raise ProtocolViolation(fact, f"its step was released on version {seat.computed_on}")
        else:
            seat.phase, seat.samples = "ready", fact.samples
        return seat

    def _end(self, fact: ReduceFinished | ReduceFailed) -> None:
        order = self.groups.get(fact.group)
        if order is None:
            raise ProtocolViolation(fact, f"group {fact.group} is not at work")
        if isinstance(fact, ReduceFinished) and fact.group in self.broken:
            raise ProtocolViolation(fact, f"a member of group {fact.group} has died, so it can't have averaged")
        if isinstance(fact, ReduceFailed):
            here = [worker for worker in fact.lost if worker in self.seats]
            if here or not fact.lost or not set(fact.lost) <= set(order.members):
                raise ProtocolViolation(fact, "those whom a group lost are members of it who have left")
        del self.groups[fact.group]
        self.broken.pop(fact.group, None)
        averaged = isinstance(fact, ReduceFinished) and order.what == "parameters"
        for worker in order.members:
            if worker in self.seats:
                seat = self.seats[worker]
                seat.group = None
                if averaged:
                    seat.version += 1
                    seat.alone.clear()
