"""The workers that own replicas: their steps, their replicas' versions, and the groups that average.

All decentralized machines share this, as machines with a parameter server share `core.roster`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

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
    WorkerResumed,
)
from paceline.core.orders import CopyReplica, DropUpdate, Hold, Reduce, Release, StepReplica
from paceline.core.reasons import Why
from paceline.core.roster import check_beginning
from paceline.errors import ProtocolViolation

REASONS = {
    "began": "training began",
    "own-gradient": "its gradient of step {0} is ready",
    "never-shared": "worker {0} {1} before its replica was averaged with another one's",
    "joined": "worker {0} joined, and starts from the replica of worker {1}",
    "goes-on": "worker {0} goes on from its own replica",
    "behind": "worker {0} goes on, and gets the replica of worker {1}, which has changed more often",
    "copied": "it has the replica of worker {0}",
    "nobody-here": "worker {0} joined, and there is no replica that it could copy",
    "no-replica-yet": "worker {0} waits for a replica: none can be copied before a group has ended or a copy is there",
}
"""Sentences of the reasons that these machines share."""

Phase = Literal["parked", "copying", "computing", "ready", "applied", "declined"]


@dataclass(slots=True)
class ReplicaProgress:
    """One live worker and its replica."""

    step: int
    """The step that it was last released for; before its first release, the one before its first step."""
    version: int = 0
    """How often its replica has changed; -1: it has none."""
    computed_on: int = -1
    """The replica's version that this step computes on."""
    phase: Phase = "parked"
    """`parked`: the worker has joined and waits for a replica to copy, or has resumed and is not released yet.
    `copying`: that copy is on its way. `ready`: the gradient is there and not applied. `applied`: the gradient is in
    the replica."""
    group: int | None = None
    """The group that averages its replica, or its gradient, now."""
    alone: list[int] = field(default_factory=list)
    """Steps in its replica that are in no other one yet."""


@dataclass(slots=True)
class Replicas:
    """Checks facts, and keeps every worker's step and replica, and the groups at work.

    A step goes computing → ready → applied, then the worker is released for the next one. Its replica may be
    averaged in any phase, by one group at a time, and is not stepped meanwhile. A worker without data declines
    a step. It computes no more, unless it resumes: it is parked then. Its replica may still be averaged. It may leave
    at any time.

    A joiner first gets a copy of another worker's replica, and then takes part. The source is the worker whose replica
    has changed most often, of those that have data left, or of all if none has. It must be in no group at work. While
    all are in one, the joiner waits. If the source dies, the joiner gets another worker's replica. If there is no
    replica to copy and none will come, a joiner begins alone, with the newest recorded mean as version 0.

    A worker that has resumed has its own replica. If that must not be behind the others, it waits for a copy as a
    joiner does. Until then it keeps its own.

    In a resumed run every replica begins as version 0, from the snapshot's copy. So no step of an earlier segment is in
    one replica alone.
    """

    seats: dict[int, ReplicaProgress] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    """Of the workers that take part."""
    groups: dict[int, Reduce] = field(default_factory=dict)
    """The groups at work."""
    broken: dict[int, None] = field(default_factory=dict)
    """Groups at work with a member that has died. Its values may be lost, so these groups can only fail."""
    made: int = 0
    """Groups ordered so far: the next one's number."""
    began: bool = False
    waiting: dict[int, None] = field(default_factory=dict)
    """Workers that wait for a replica to copy, in the order in which they came."""
    copies: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By the worker that gets a copy: its source; the last step that only the source's replica had at that time, or -1;
    and the version of the worker's own replica until then."""
    used: dict[int, int] = field(default_factory=dict)
    """The last step number of each worker that left. Numbers only grow, also for a worker that comes back."""

    def memory(self) -> dict[str, Any]:
        """Return what all such machines keep for `Spec.memory`, as group numbers are unique in the run."""
        return {"groups": self.made}

    def observe(self, fact: Fact) -> ReplicaProgress | None:
        """Check `fact`, note it, and return its worker's seat, if it has one.

        For a worker that left, this is its last seat. Its group goes on until the fact of its end, and has failed if
        the worker died. Raises ProtocolViolation without changing anything.
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
            case WorkerLeft() | GradientReady() | StepDeclined() | WorkerResumed():
                return self._of_worker(fact)
            case _:
                raise ProtocolViolation(fact, "it does not happen where every worker owns a replica")

    def note(self, order: Release | StepReplica | Reduce | CopyReplica) -> None:
        """Note that this is ordered."""
        match order:
            case Release():
                seat = self.seats[order.worker]
                if seat.version < 0:  # a joiner that begins alone: `begin_alone` has said so
                    seat.version = order.version
                    self.waiting.pop(order.worker, None)
                seat.step, seat.computed_on, seat.phase = order.step, seat.version, "computing"
            case StepReplica():
                seat = self.seats[order.worker]
                seat.version, seat.phase = order.version, "applied"
                if order.group is None:
                    seat.alone.append(order.step)
            case Reduce():
                self.made = order.group + 1
                self.groups[order.group] = order
                for worker in order.members:
                    self.seats[worker].group = order.group
            case CopyReplica():
                seat, source = self.seats[order.worker], self.seats[order.source]
                self.copies[order.worker] = (order.source, max(source.alone, default=-1), seat.version)
                seat.version, seat.phase = source.version, "copying"
                self.waiting.pop(order.worker, None)

    def release(self, worker: int, why: Why) -> Release:
        """Note and return the order that starts the worker's next step on its present replica."""
        seat = self.seats[worker]
        order = Release(worker=worker, step=seat.step + 1, version=seat.version, parameters="own", why=why)
        self.note(order)
        return order

    def apply(self, worker: int, why: Why, group: int | None = None) -> StepReplica:
        """Note and return the order that steps a replica with its worker's ready gradient, or with a group's mean."""
        seat = self.seats[worker]
        order = StepReplica(worker=worker, step=seat.step, version=seat.version + 1, group=group, why=why)
        self.note(order)
        return order

    def reduce(
        self,
        members: tuple[int, ...],
        why: Why,
        contributions: tuple[tuple[int, int, float], ...] | None = None,
    ) -> Reduce:
        """Note and return the order that averages these replicas, or these gradients. `members` ascend."""
        order = Reduce(
            group=self.made,
            members=members,
            what="parameters" if contributions is None else "gradients",
            contributions=contributions or (),
            why=why,
        )
        self.note(order)
        return order

    def catch_up(self, worker: int) -> None:
        """The worker has resumed, and waits until no other replica is ahead of its own."""
        self.waiting[worker] = None

    def caught_up(self) -> list[int]:
        """Return the waiting workers whose replicas no other one is ahead of. They stop waiting.

        O(n), while a worker waits.
        """
        if not self.waiting:
            return []
        most = max(seat.version for seat in self.seats.values())
        workers = [worker for worker in self.waiting if self.seats[worker].version == most >= 0]
        for worker in workers:
            del self.waiting[worker]
        return workers

    def copy(self) -> tuple[CopyReplica, ...]:
        """Note and return the orders that give each waiting worker a replica to copy; none while there is none.

        O(n), while a worker waits.
        """
        if not self.waiting or (source := self._source()) is None:
            return ()
        orders = []
        for worker in list(self.waiting):
            code = "joined" if self.seats[worker].version < 0 else "behind"
            order = CopyReplica(source=source, worker=worker, why=(code, worker, source))
            self.note(order)
            orders.append(order)
        return tuple(orders)

    def begin_alone(self) -> int | None:
        """Return the first waiting joiner, if all workers wait. It stops waiting, and its replica is version 0."""
        if not self.waiting or len(self.waiting) < len(self.seats):
            return None
        worker = next(iter(self.waiting))
        del self.waiting[worker]
        self.seats[worker].version = 0
        return worker

    def still_here(self, group: int) -> list[int]:
        """Return the members of a group at work that have not left since it began, ascending.

        A worker that has come back is not one of them.
        """
        members = self.groups[group].members if group in self.groups else ()
        return [worker for worker in members if worker in self.seats and self.seats[worker].group == group]

    def hold(self, worker: int) -> tuple[Hold, ...]:
        """Return the order for this joiner to wait, if there is no replica for it yet."""
        return (Hold(worker=worker, why=("no-replica-yet", worker)),) if worker in self.waiting else ()

    @staticmethod
    def lost_with(fact: WorkerLeft, seat: ReplicaProgress) -> tuple[DropUpdate, ...]:
        """Return the orders to drop the departed worker's unapplied gradient, and its unshared steps if it died.

        The replica of a worker that left in good order stays in the final mean.
        """
        why: Why = ("never-shared", fact.worker, fact.reason)
        steps = list(seat.alone) if fact.reason == "died" else []
        steps += [seat.step] if seat.phase == "ready" else []
        return tuple(DropUpdate(worker=fact.worker, step=step, samples="return", why=why) for step in steps)

    def _begin(self, fact: TrainingBegan) -> None:
        check_beginning(fact, self.began)
        self.began = True
        self.made = fact.groups if fact.memory is None else fact.memory["groups"]
        for worker, host, step in fact.members:
            self.seats[worker] = ReplicaProgress(step=step - 1)
            self.hosts[worker] = host

    def _join(self, fact: WorkerJoined) -> ReplicaProgress:
        if fact.worker in self.seats:
            raise ProtocolViolation(fact, f"worker {fact.worker} is here already")
        if fact.step <= self.used.get(fact.worker, fact.step - 1):
            raise ProtocolViolation(fact, f"step numbers up to {self.used[fact.worker]} are used")
        self.seats[fact.worker] = seat = ReplicaProgress(step=fact.step - 1, version=-1)
        self.hosts[fact.worker] = fact.host
        self.waiting[fact.worker] = None
        self.used.pop(fact.worker, None)
        return seat

    def _copied(self, fact: ReplicaCopied) -> ReplicaProgress:
        source, last, _ = self.copies.get(fact.worker, (None, 0, 0))
        if source != fact.source:
            raise ProtocolViolation(fact, f"no replica of worker {fact.source} is on its way to worker {fact.worker}")
        del self.copies[fact.worker]
        if fact.source in self.seats:  # what the source's replica had then is in two replicas now
            seat = self.seats[fact.source]
            seat.alone = [step for step in seat.alone if step > last]
        self.seats[fact.worker].phase = "parked"
        return self.seats[fact.worker]

    def _source(self) -> int | None:
        there = [worker for worker, seat in self.seats.items() if seat.phase not in ("parked", "copying")]
        going = [worker for worker in there if self.seats[worker].phase != "declined"] or there
        free = [worker for worker in going if self.seats[worker].group is None]
        return max(free, key=lambda worker: self.seats[worker].version, default=None)

    def _of_worker(self, fact: WorkerLeft | GradientReady | StepDeclined | WorkerResumed) -> ReplicaProgress:
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
        if isinstance(fact, WorkerResumed):
            if seat.phase != "declined":
                raise ProtocolViolation(fact, f"it is {seat.phase} at step {seat.step}, and has declined none")
            seat.phase = "parked"
            return seat
        if seat.phase != "computing" or seat.step != fact.step:
            raise ProtocolViolation(fact, f"its worker is {seat.phase} at step {seat.step}")
        if isinstance(fact, StepDeclined):
            seat.phase = "declined"
        elif fact.version != seat.computed_on:
            raise ProtocolViolation(fact, f"its step was released on version {seat.computed_on}")
        else:
            seat.phase = "ready"
        return seat

    def _void(self, source: int) -> None:
        """Void the copies of this source's replica."""
        for worker in [worker for worker, (copied, _, _) in self.copies.items() if copied == source]:
            _, _, self.seats[worker].version = self.copies.pop(worker)
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
