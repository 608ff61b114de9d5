"""All-Reduce: every worker has a replica, and the mean gradient of all of them steps each one, round by round.

One group of all workers with a gradient averages the gradients of a round, in ascending order of worker, weighed
by samples. Then each worker steps its own replica with the mean. All replicas stay the same.

Source: the usual synchronous baseline, as in PyTorch's DistributedDataParallel or Horovod. Weights by samples are
ours.

Counter convention: round r is one step of each worker, whatever those steps' numbers.

Deviations: membership may change. A worker that has no data left leaves the rounds: its replica stays as it is
from then on, behind those of the workers that go on. If a worker is lost while the gradients are averaged, they are
averaged again without its own.
A single worker averages nothing.

Ours: all replicas are stepped with the hyperparameters of the round's lowest worker, as one version under bsp is, so
that they stay the same where scripts have other rates. A joiner copies the replica of a worker in the open round. The
round waits for the copy and then for the joiner's gradient, so the joiner's replica is never behind. While gradients
are averaged, a joiner waits for the next round. A worker that has resumed does as a joiner if rounds were closed
without it. Else it enters the open round. A resumed run counts its rounds on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
from paceline.core.machine import Spec
from paceline.core.orders import DropUpdate, Hold, Order, Release, StepReplica
from paceline.core.reasons import Why, awaited_of
from paceline.core.replicas import REASONS, ReplicaProgress, Replicas
from paceline.core.roster import mean_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All-Reduce has no parameters."""


@dataclass(slots=True)
class Machine:
    """`awaited` and `ready` are the open round: workers that owe a gradient or copy a replica, and what is there."""

    config: Config
    round: int = 0
    replicas: Replicas = field(default_factory=Replicas)
    awaited: dict[int, None] = field(default_factory=dict)
    ready: dict[tuple[int, int], float | None] = field(default_factory=dict)
    """By (worker, step): what it weighs. They stay until the round ends."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        seat = self.replicas.observe(fact)
        return (*self._follow(fact, seat), *self._welcome(fact))

    def _follow(self, fact: Fact, seat: ReplicaProgress | None) -> tuple[Order, ...]:
        match fact:
            case TrainingBegan(members=members, memory=memory):
                self.round = 0 if memory is None else memory["round"]
                return tuple(self._release(worker, ("began",)) for worker, _, _ in members)
            case WorkerJoined():
                return ()
            case WorkerResumed(worker=worker):
                self.replicas.catch_up(worker)
                return ()
            case ReplicaCopied(worker=worker, source=source):
                return (self._release(worker, ("copied", source)),)
            case GradientReady(worker=worker, step=step):
                self.ready[worker, step] = fact.weighs
                del self.awaited[worker]
                return self._average() or (Hold(worker=worker, why=self._missing()),)
            case StepDeclined(worker=worker):
                del self.awaited[worker]
                return self._average()
            case WorkerLeft():
                assert seat is not None
                return self._left(fact, seat)
            case ReduceFinished(group=group):
                return self._close_round(("mean-made", self.round, group), group)
            case ReduceFailed():
                return (*self._drop_lost(), *self._average())
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def _welcome(self, fact: Fact) -> tuple[Order, ...]:
        """Let workers enter the open round, but not while its mean is made: that mean could not step their replicas."""
        orders: list[Order] = []
        if not self.replicas.groups:
            orders += [self._release(worker, ("goes-on", worker)) for worker in self.replicas.caught_up()]
            if (alone := self.replicas.begin_alone()) is not None:
                orders.append(self._release(alone, ("nobody-here", alone)))
            for order in self.replicas.copy():
                self.awaited[order.worker] = None
                orders.append(order)
        if isinstance(fact, WorkerJoined | WorkerResumed):
            orders += self.replicas.hold(fact.worker)
        return tuple(orders)

    def _release(self, worker: int, why: Why) -> Release:
        self.awaited[worker] = None
        return self.replicas.release(worker, why)

    def _average(self) -> tuple[Order, ...]:
        """If no worker is awaited any more: average the gradients, or step at once if there is only one."""
        if self.awaited or not self.ready or self.replicas.groups:
            return ()
        if len(self.ready) == 1:
            return self._close_round(("nobody-else", self.round))
        members = tuple(worker for worker, _ in sorted(self.ready))
        why: Why = ("all-ready", self.round, len(members))
        return (self.replicas.reduce(members, why, mean_of(self.ready)),)

    def _close_round(self, why: Why, group: int | None = None) -> tuple[Order, ...]:
        here = sorted(worker for worker, _ in self.ready if self._has_ready(worker))
        self.ready = {}
        self.round += 1
        steps: list[StepReplica] = [self.replicas.apply(worker, why, group) for worker in here]
        return (*steps, *(self._release(worker, why) for worker in here))

    def _left(self, fact: WorkerLeft, seat: ReplicaProgress) -> tuple[Order, ...]:
        """The round no longer waits for the worker. Its gradient that is being averaged is lost only if the mean is."""
        self.awaited.pop(fact.worker, None)
        if seat.group is None:
            if seat.phase == "ready":
                del self.ready[fact.worker, seat.step]
            return (*Replicas.lost_with(fact, seat), *self._average())
        if self.replicas.still_here(seat.group):
            return ()
        return self._drop_lost()  # no worker is left whose replica the mean could step

    def _drop_lost(self) -> tuple[DropUpdate, ...]:
        lost = sorted(key for key in self.ready if not self._has_ready(key[0]))
        for key in lost:
            del self.ready[key]
        return tuple(
            DropUpdate(worker=worker, step=step, samples="return", why=("not-averaged", worker))
            for worker, step in lost
        )

    def _has_ready(self, worker: int) -> bool:
        """Whether the worker still has its gradient in the round: it may have left, and come back."""
        return worker in self.replicas.seats and self.replicas.seats[worker].phase == "ready"

    def _missing(self) -> Why:
        return ("awaits-gradients", self.round, awaited_of(self.awaited))


def _in_phase(machine: Machine, *phases: str) -> list[int]:
    return sorted(worker for worker, seat in machine.replicas.seats.items() if seat.phase in phases)


SPEC = Spec(
    name="all-reduce",
    title="All-Reduce",
    does="there is no store; every replica steps with the mean of all gradients",
    paper="the usual synchronous baseline; as in PyTorch's DistributedDataParallel and Horovod",
    config=Config,
    machine=Machine,
    rounds=True,
    state="replicas",
    optimizer="worker",
    groups=True,
    memory=lambda machine: {**machine.replicas.memory(), "round": machine.round},
    invariants={
        "the replicas of all workers with data left have changed equally often": lambda machine: (
            len({seat.version for seat in machine.replicas.seats.values() if seat.phase not in ("declined", "parked")})
            <= 1
        ),
        "every worker computes on its replica as it is": lambda machine: all(
            seat.computed_on == seat.version
            for seat in machine.replicas.seats.values()
            if seat.phase in ("computing", "ready")
        ),
        "the workers that compute or copy a replica are awaited, and besides them only joiners": lambda machine: (
            set(_in_phase(machine, "computing", "copying"))
            <= set(machine.awaited)
            <= set(_in_phase(machine, "computing", "copying", "parked"))
        ),
        "a gradient is in the open round until it is applied": lambda machine: (
            set(_in_phase(machine, "ready")) <= {worker for worker, _ in machine.ready}
        ),
        "while a group averages, no worker computes, and the round's gradients are its members'": lambda machine: (
            len(machine.replicas.groups) <= 1
            and all(
                not machine.awaited
                and (not machine.ready or [worker for worker, _ in sorted(machine.ready)] == list(order.members))
                for order in machine.replicas.groups.values()
            )
        ),
    },
    reasons={
        **REASONS,
        "all-ready": "round {0} has all its {1} gradients",
        "awaits-gradients": "round {0} waits for {1:workers}",
        "mean-made": "group {1} has averaged the gradients of round {0}",
        "nobody-else": "no other worker has a gradient in round {0}: there is nothing to average",
        "not-averaged": "worker {0} left before its gradient was averaged",
    },
)
