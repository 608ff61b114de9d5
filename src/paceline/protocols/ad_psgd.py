"""AD-PSGD: a worker computes its gradient on a copy while its replica is averaged with a random neighbour's.

Half of the workers are active, half passive, and every edge of the topology joins an active with a passive one.
With each step an active worker asks one neighbour for an exchange: the two replicas become their mean, atomically.
A gradient is computed on the replica before the average and applied after it.

Source: Lian, Zhang, Zhang, Liu, ICML 2018 (arXiv 1710.06952): the gradient that is taken before the average and
applied after it, the atomic average of a pair, the bipartite roles against deadlock. Its full text was not at
hand. What this file does where our sources say nothing is ours, below.

Counter convention: a replica's version counts its own steps and its averages. A gradient is as stale as the number
of the replica's changes between the `Release` and the `StepReplica` of its step.

Ours:
- Of the workers that begin, those at an even position are active, those at an odd one passive.
- An active worker makes one exchange in each step. It asks as the step begins. With `overlap=false` it asks once its
  gradient is ready, and waits, as in the baseline that other systems compare with. A passive worker computes on in both
  cases. A neighbour that is at another exchange serves those that ask in turn (a conflict; the reason of the `Reduce`
  says so). The active worker steps only when its exchange is done. A passive worker waits only for the end of an
  exchange that is running.
- In a ring of an odd number the first and the last are both active: that edge is left out.
- A worker that has left, or has no data left, is not asked any more. In a ring the next passive worker in that
  direction is asked instead. An active worker without a passive one to ask trains alone. So does a passive worker that
  no active one asks.
- An exchange that fails is not repeated: the survivor steps without it.
- A joiner, also one that comes back, takes part as soon as it has a copy of another replica. It is passive if
  there are fewer passive workers than active ones, else active. The ring goes by the workers' numbers, and stays
  as open or closed as it began. As workers leave and join, it may fall into parts, which never average with each other.
- A worker that has resumed goes on from its own replica, in the role that a joiner would take. If it is in an exchange,
  it goes on after that.
- A resumed run goes on with its draws, so that segments don't repeat each other's. Roles are given out anew.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Literal

from paceline.core.choice import check_parameters, parameter
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
from paceline.core.orders import Hold, Order, Reduce
from paceline.core.reasons import Why
from paceline.core.replicas import REASONS, ReplicaProgress, Replicas
from paceline.core.rng import Rng


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Which workers are neighbours, and when they average."""

    topology: Literal["bipartite-ring", "bipartite-complete"] = parameter(
        "bipartite-ring",
        "which workers an active one averages with: one of the two passive ones beside it in the ring of all, or any",
    )

    overlap: bool = parameter(
        True, "whether an active worker's exchange goes on while it computes, or begins once its gradient is ready"
    )

    def __post_init__(self) -> None:
        check_parameters("ad-psgd", self)


@dataclass(slots=True)
class Machine:
    """Workers with data left: `actives`, with the neighbour in whose queue each is, and `passives`."""

    config: Config
    replicas: Replicas = field(default_factory=Replicas)
    lots: Rng = field(default_factory=Rng)
    closed: bool = True
    """Whether the ring's last and first are neighbours: they are if an even number of workers began."""
    actives: dict[int, int | None] = field(default_factory=dict)
    passives: list[int] = field(default_factory=list)
    """Ascending."""
    queues: dict[int, dict[int, None]] = field(default_factory=dict)
    """By passive worker: the active ones that wait for an exchange with it, in the order in which they asked."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        ended = self.replicas.still_here(fact.group) if isinstance(fact, ReduceFinished | ReduceFailed) else []
        seat = self.replicas.observe(fact)
        # Copies come first: what follows may put their sources into the next exchange.
        return (*self.replicas.copy(), *self._follow(fact, seat, ended))

    def _follow(self, fact: Fact, seat: ReplicaProgress | None, ended: list[int]) -> tuple[Order, ...]:
        match fact:
            case TrainingBegan(members=members, seed=seed, memory=memory):
                self.lots.state = seed if memory is None else memory["draws"]
                return self._begin([worker for worker, _, _ in members])
            case WorkerJoined(worker=worker):
                return (*self._begin_alone(), *self.replicas.hold(worker))
            case ReplicaCopied(worker=worker, source=source):
                return self._enter(worker, ("copied", source))
            case WorkerResumed(worker=worker):
                assert seat is not None
                if seat.group is not None:  # it goes on once that exchange is over
                    return (self._hold(worker),)
                return self._enter(worker, ("goes-on", worker))
            case GradientReady(worker=worker):
                assert seat is not None
                if seat.group is not None or self.actives.get(worker) is not None:
                    return (self._hold(worker),)
                asks = () if self.config.overlap or worker not in self.actives else self._ask(worker)
                waits = seat.group is not None or self.actives.get(worker) is not None
                return (*asks, self._hold(worker)) if waits else self._step(worker)
            case StepDeclined(worker=worker):
                return self._retire(worker)
            case WorkerLeft(worker=worker):
                assert seat is not None
                return (*Replicas.lost_with(fact, seat), *self._retire(worker), *self._begin_alone())
            case ReduceFinished() | ReduceFailed():
                return self._go_on(ended)
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def neighbours(self, active: int) -> list[int]:
        """The passive workers that an active one may ask now. O(log n)."""
        if self.config.topology == "bipartite-complete" or not self.passives:
            return self.passives
        place = bisect_left(self.passives, active)
        if not self.closed:
            return self.passives[max(place - 1, 0) : place + 1]
        left, right = self.passives[place - 1], self.passives[place % len(self.passives)]
        return [left] if left == right else [left, right]

    def _begin(self, workers: list[int]) -> tuple[Order, ...]:
        self.closed = len(workers) % 2 == 0
        self.actives = dict.fromkeys(workers[::2])
        self.passives = workers[1::2]
        self.queues = {worker: {} for worker in self.passives}
        releases = [self.replicas.release(worker, ("began",)) for worker in workers]
        return (*releases, *(order for worker in self.actives for order in self._ask_ahead(worker)))

    def _begin_alone(self) -> tuple[Order, ...]:
        alone = self.replicas.begin_alone()
        return () if alone is None else self._enter(alone, ("nobody-here", alone))

    def _enter(self, worker: int, why: Why) -> tuple[Order, ...]:
        """The worker has its replica, and takes the role that fewer workers have."""
        release = self.replicas.release(worker, why)
        if len(self.passives) < len(self.actives):
            insort(self.passives, worker)  # moves n pointers, once for each worker
            self.queues[worker] = {}
            return (release,)
        self.actives[worker] = None
        return (release, *self._ask_ahead(worker))

    def _step(self, worker: int) -> tuple[Order, ...]:
        """Apply the worker's gradient to its replica as that is now. It computes on; an active one asks once more."""
        why: Why = ("own-gradient", self.replicas.seats[worker].step)
        orders = (self.replicas.apply(worker, why), self.replicas.release(worker, why))
        return (*orders, *self._ask_ahead(worker)) if worker in self.actives else orders

    def _ask_ahead(self, active: int) -> tuple[Order, ...]:
        """An active worker begins a step. It asks for its exchange now, if that may go on meanwhile."""
        return self._ask(active) if self.config.overlap else ()

    def _ask(self, active: int, queued: bool = False) -> tuple[Order, ...]:
        """Draw a neighbour. If it is free the exchange begins, else the active worker queues for it."""
        neighbours = self.neighbours(active)
        if not neighbours:
            return ()
        passive = neighbours[self.lots.below(len(neighbours)) if len(neighbours) > 1 else 0]
        if self.replicas.seats[passive].group is None:
            return (self._exchange(active, passive, queued),)
        self.queues[passive][active] = None
        self.actives[active] = passive
        return ()

    def _exchange(self, active: int, passive: int, queued: bool) -> Reduce:
        pair = (min(active, passive), max(active, passive))
        return self.replicas.reduce(pair, ("in-turn" if queued else "free", active, passive))

    def _go_on(self, ended: list[int]) -> tuple[Order, ...]:
        """The exchange of these workers is over. The passive one serves its queue before the active one asks again."""
        orders: list[Order] = []
        for worker in sorted(ended, key=lambda worker: worker in self.actives):
            if self.replicas.seats[worker].phase == "ready":
                orders += self._step(worker)
            if queue := self.queues.get(worker):
                active = next(iter(queue))
                self._leave_queue(active)
                orders.append(self._exchange(active, worker, queued=True))
        for worker in ended:
            if self.replicas.seats[worker].phase == "parked":  # it resumed meanwhile
                orders += self._enter(worker, ("goes-on", worker))
        return tuple(orders)

    def _retire(self, worker: int) -> tuple[Order, ...]:
        """The worker has no data left, or has left: it no longer asks, and is no longer asked."""
        if worker in self.actives:
            self._leave_queue(worker)
            del self.actives[worker]
        if worker not in self.queues:
            return ()
        del self.passives[bisect_left(self.passives, worker)]  # moves n pointers, once for each worker
        stranded = list(self.queues[worker])
        for active in stranded:
            self._leave_queue(active)
        del self.queues[worker]
        return tuple(order for active in stranded for order in self._ask_another(active))

    def _leave_queue(self, active: int) -> None:
        passive = self.actives[active]
        if passive is not None:
            del self.queues[passive][active]
            self.actives[active] = None

    def _ask_another(self, active: int) -> tuple[Order, ...]:
        """Ask another passive worker than the one in whose queue it was. Without any, the active one goes on alone."""
        orders = self._ask(active, queued=True)
        if orders or self.replicas.seats[active].phase != "ready":
            return orders
        return self._step(active) if self.actives[active] is None else (self._hold(active),)

    def _hold(self, worker: int) -> Hold:
        group = self.replicas.seats[worker].group
        if group is None:
            passive = self.actives[worker]
            assert passive is not None  # it is in that one's queue
            return Hold(worker=worker, why=("queued", passive))
        first, second = self.replicas.groups[group].members
        return Hold(worker=worker, why=("averaging", first + second - worker, group))


def _queues_agree(machine: Machine) -> bool:
    asked = {active: passive for active, passive in machine.actives.items() if passive is not None}
    queued = {active: passive for passive, queue in machine.queues.items() for active in queue}
    return asked == queued and sum(map(len, machine.queues.values())) == len(queued)


SPEC = Spec(
    name="ad-psgd",
    title="AD-PSGD: asynchronous decentralized parallel SGD",
    does="a replica is averaged with one neighbour's while its worker computes",
    paper="Lian et al., Asynchronous Decentralized Parallel Stochastic Gradient Descent, ICML 2018",
    config=Config,
    machine=Machine,
    rounds=False,
    state="replicas",
    local_steps=True,
    pushes="nothing",
    optimizer="worker",
    groups=True,
    memory=lambda machine: {**machine.replicas.memory(), "draws": machine.lots.state},
    invariants={
        "a replica that is being averaged is in one group that is at work": lambda machine: all(
            sum(worker in machine.replicas.still_here(group) for group in machine.replicas.groups)
            == (seat.group is not None)
            for worker, seat in machine.replicas.seats.items()
        ),
        "of a pair at most one is active, and at most one passive": lambda machine: all(
            sum(worker in machine.actives for worker in machine.replicas.still_here(group)) <= 1
            and sum(worker in machine.queues for worker in machine.replicas.still_here(group)) <= 1
            for group in machine.replicas.groups
        ),
        "a worker in a queue is in one queue only, and in no group": lambda machine: (
            _queues_agree(machine)
            and all(
                machine.replicas.seats[active].group is None
                for active, passive in machine.actives.items()
                if passive is not None
            )
        ),
        "a queue is at a passive worker that is at an exchange": lambda machine: all(
            machine.replicas.seats[passive].group is not None for passive, queue in machine.queues.items() if queue
        ),
        "a gradient waits only for an exchange that runs or is queued": lambda machine: all(
            seat.group is not None or machine.actives.get(worker) is not None
            for worker, seat in machine.replicas.seats.items()
            if seat.phase == "ready"
        ),
        "every worker with a replica and data left is active or passive": lambda machine: (
            sorted([*machine.actives, *machine.passives])
            == sorted(
                worker
                for worker, seat in machine.replicas.seats.items()
                if seat.phase not in ("declined", "parked", "copying")
            )
            and machine.passives == sorted(machine.queues)
        ),
    },
    reasons={
        **REASONS,
        "free": "worker {0} asks worker {1}, which is free",
        "in-turn": "worker {0} had to wait for an exchange: now it is its turn with worker {1}",
        "queued": "worker {0} is at another exchange, and this one's turn is to come",
        "averaging": "its replica is being averaged with that of worker {0}, in group {1}",
    },
)
