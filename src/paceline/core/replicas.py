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
    ReplicaCopied,
    StepDeclined,
    TrainingBegan,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.orders import CopyReplica, DropUpdate, Hold, Reduce, Release, StepReplica, Why
from paceline.core.roster import check_beginning
from paceline.errors import ProtocolViolation

REASONS = {
    "began": "training began",
    "own-gradient": "its gradient of step {0} is ready",
    "never-shared": "worker {0} {1} before its replica was averaged with another one's",
    "joined": "worker {0} joined, and starts from the replica of worker {1}",
    "copied": "it has the replica of worker {0}",
    "nobody-here": "worker {0} joined, and nobody is here whose replica it could copy",
    "no-replica-yet": "worker {0} joined, and no replica can be copied before a group has ended or a copy is there",
}
"""Sentences of the reasons that these machines share."""

Phase = Literal["parked", "copying", "computing", "ready", "applied", "declined"]


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
    """`parked`: it has joined and waits for a replica to copy; `copying`: that is on its way to it; `ready`: the
    gradient is there and not applied; `applied`: it is in the replica."""
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

    A joiner is given a copy of somebody's replica first, and takes part from the copy's end on. Whose: of those who
    have data left, or of all if nobody has, the one whose replica has changed most often, in no group at work; while
    all are in one, the joiner waits. If the source dies, the joiner is given another one's. Where nobody is here to
    copy from, or ever will be, a joiner begins alone, with the parameters that it was started with, as version 0.
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
    waiting: dict[int, None] = field(default_factory=dict)
    """Joiners who have been given no replica to copy, in the order in which they came."""
    copies: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By joiner: whose replica is on its way to it, and the last step in that which was in no other one then; or -1."""
    used: dict[int, int] = field(default_factory=dict)
    """The last step number of those who left: numbers only grow, also for one who comes back."""

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
            case WorkerJoined():
                return self._join(fact)
            case ReplicaCopied():
                return self._copied(fact)
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

    def copy(self) -> tuple[CopyReplica, ...]:
        """The orders that give all who wait for a replica one to copy, noted; none while there is none.

        O(n), while somebody waits.
        """
        if not self.waiting or (source := self._source()) is None:
            return ()
        seat = self.seats[source]
        joiners, self.waiting = list(self.waiting), {}
        for worker in joiners:
            self.seats[worker].version, self.seats[worker].phase = seat.version, "copying"
            self.copies[worker] = (source, max(seat.alone, default=-1))
        return tuple(CopyReplica(source=source, worker=worker, why=("joined", worker, source)) for worker in joiners)

    def begin_alone(self) -> int | None:
        """The first of those who wait, if there is nobody else: it waits no longer, and its replica is version 0."""
        if not self.waiting or len(self.waiting) < len(self.seats):
            return None
        worker = next(iter(self.waiting))
        del self.waiting[worker]
        self.seats[worker].version = 0
        return worker

    def still_here(self, group: int) -> list[int]:
        """The members of a group who have not left since it began, ascending, while it is at work.

        Who has come back is not one of them.
        """
        members = self.groups[group].members if group in self.groups else ()
        return [worker for worker in members if worker in self.seats and self.seats[worker].group == group]

    def hold(self, worker: int) -> tuple[Hold, ...]:
        """The order to this joiner to wait, if it could be given no replica yet."""
        return (Hold(worker=worker, why=("no-replica-yet", worker)),) if worker in self.waiting else ()

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

    def _join(self, fact: WorkerJoined) -> Seat:
        if fact.worker in self.seats:
            raise ProtocolViolation(fact, f"worker {fact.worker} is here already")
        if fact.step <= self.used.get(fact.worker, fact.step - 1):
            raise ProtocolViolation(fact, f"step numbers up to {self.used[fact.worker]} are used")
        self.seats[fact.worker] = seat = Seat(step=fact.step - 1)
        self.hosts[fact.worker] = fact.host
        self.waiting[fact.worker] = None
        self.used.pop(fact.worker, None)
        return seat

    def _copied(self, fact: ReplicaCopied) -> Seat:
        source, last = self.copies.get(fact.worker, (None, 0))
        if source != fact.source:
            raise ProtocolViolation(fact, f"no replica of worker {fact.source} is on its way to worker {fact.worker}")
        del self.copies[fact.worker]
        if fact.source in self.seats:  # what was in its replica then is in two now
            seat = self.seats[fact.source]
            seat.alone = [step for step in seat.alone if step > last]
        self.seats[fact.worker].phase = "parked"
        return self.seats[fact.worker]

    def _source(self) -> int | None:
        there = [worker for worker, seat in self.seats.items() if seat.phase not in ("parked", "copying")]
        going = [worker for worker in there if self.seats[worker].phase != "declined"] or there
        free = [worker for worker in going if self.seats[worker].group is None]
        return max(free, key=lambda worker: self.seats[worker].version, default=None)

    def _of_worker(self, fact: WorkerLeft | GradientReady | StepDeclined) -> Seat:
        seat = self.seats.get(fact.worker)
        if seat is None:
            raise ProtocolViolation(fact, f"worker {fact.worker} is not here")
        if isinstance(fact, WorkerLeft):
            del self.seats[fact.worker], self.hosts[fact.worker]
            self.used[fact.worker] = seat.step
            self.waiting.pop(fact.worker, None)
            self.copies.pop(fact.worker, None)
            if fact.reason == "died":
                self._void(fact.worker)
                if seat.group is not None:
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

    def _void(self, source: int) -> None:
        """No copy of its replica comes to its end any more."""
        for worker in [worker for worker, (copied, _) in self.copies.items() if copied == source]:
            del self.copies[worker]
            self.seats[worker].phase = "parked"
            self.waiting[worker] = None

    def _end(self, fact: ReduceFinished | ReduceFailed) -> None:
        order = self.groups.get(fact.group)
        if order is None:
            raise ProtocolViolation(fact, f"group {fact.group} is not at work")
        if isinstance(fact, ReduceFinished) and fact.group in self.broken:
            raise ProtocolViolation(fact, f"a member of group {fact.group} has died, so it can't have averaged")
        if isinstance(fact, ReduceFailed):
            here = set(self.still_here(fact.group)) & set(fact.lost)
            if here or not fact.lost or not set(fact.lost) <= set(order.members):
                raise ProtocolViolation(fact, "those whom a group lost are members of it who have left")
        averaged = isinstance(fact, ReduceFinished) and order.what == "parameters"
        for worker in self.still_here(fact.group):
            seat = self.seats[worker]
            seat.group = None
            if averaged:
                seat.version += 1
                seat.alone.clear()
        del self.groups[fact.group]
        self.broken.pop(fact.group, None)
