"""Hybrid synchronous parallel, reconstructed from the abstract: one transfer at a time, one version per round.

The gradients of a round come to the store one after the other, and their weighted mean makes the next version for all
workers. With `idle`, a worker that would wait until then may compute its next gradient on the version that it holds.

Source: Li, Huang, Li, Zhou, Jiang, Wang, ICPP 2022 (doi 10.1145/3545008.3545024), of which only the abstract was at
hand. From it: gradients are pulled sequentially; all parameters are synchronised after each iteration; idle workers
are cautiously allowed to compute with parameters that are out of date. All else is inferred: the orders of transfer,
the guard that stands for "cautiously", the bound of one version, what becomes of a stale gradient, and how a version
goes out. So results of this protocol are a reconstruction's. `idle=none` makes the same versions as bsp.

The defaults are all three sentences of the abstract. `stale` and `broadcast`, of which it says nothing, are those that
were first at a target beside `idle=guarded` in `benchmarks/papers/learning.py` (decision 0057).

Counter convention: round k makes version k + 1, of a gradient of each worker, whatever its step's number. The age of
a gradient is k minus the version that it was computed on: 0 (fresh), or 1 (stale), never more.

The guard is ours. A worker may compute ahead if its own compute time is not more than the time until the next
version is here. That time has two parts. The first is how long the gradients that are still to come will be on their
way one by one, or, if that is later, until the last one that is still being computed has come. The second is the
broadcast. Each of the three durations is a moving average. A broadcast lasts from the order until its last pull has
ended: where all pulls share the link, they end at about the same time. What was never measured allows nothing.

Deviations: membership may change, as in bsp. One worker alone never computes ahead: it is to train plainly.

Ours: `order` chooses among the workers whose gradient is ready, and waits for no other. A gradient of the next round
that is ready early waits until that round is open. `stale=discard` drops a gradient whose transfer has not begun when
the fresh version has come. With `stale=accumulate` a fresh gradient follows each stale one, and both are in the round.
A resumed run measures anew. After one round it has all three durations, and older ones may be another machine's.

A worker that resumes enters the open round, unless its gradient is in that already. It goes on once no version is on
its way to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Literal

from paceline.core.choice import check_parameters, parameter
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
from paceline.core.machine import Spec
from paceline.core.orders import ApplyUpdate, DropUpdate, Hold, Order, Release, StartPush
from paceline.core.reasons import Why, awaited_of
from paceline.core.roster import REASONS, Roster, WorkerProgress, mean_of

NEWEST_WEIGHS = 0.25  # the share of the newest duration in a moving average; ours
IDLE = ("arrived", "parked")  # phases of a worker that may be released; it is parked when it has resumed
TOLERANCE = 1e-9  # relative: a tie must not depend on rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The order of transfers, which workers compute ahead, what becomes of that, and how versions go out."""

    order: Literal["ready", "rank"] = parameter(
        "ready",
        "whose gradient is transferred next, of those that are ready: the first to be ready, or the lowest worker",
    )
    idle: Literal["none", "guarded", "always"] = parameter(
        "guarded",
        "which workers compute on the version that they hold while they wait for the next one: none, "
        "those that are predicted to be done before it comes, all",
    )
    stale: Literal["next", "accumulate", "discard"] = parameter(
        "discard",
        "what becomes of such a gradient: it is its worker's in the next round, it is there beside a fresh one, "
        "it is dropped if the fresh parameters come before its transfer begins",
    )
    broadcast: Literal["all", "order"] = parameter(
        "order", "how a version goes out: to all workers at once, or to one after the other as their gradients came"
    )

    def __post_init__(self) -> None:
        check_parameters("hsp", self)


@dataclass(slots=True)
class Desk:
    """What is known of a worker that has not declined. Times in seconds."""

    holds: int = -1
    """The newest version that has come to it."""
    began: float = 0.0
    """When the worker could begin its step: at its release, or when the parameters for it had come."""
    compute: float | None = None
    """How long the worker computes: a moving average; None before its first gradient."""
    expected: float | None = None
    """When the gradient that it computes is predicted to be ready; None if it computes none, or that is unknown."""


@dataclass(slots=True)
class Machine:
    """`awaited` and `arrived` are the open round: how many gradients workers still owe, and which have come.

    A worker that is not awaited and has not merely arrived is ahead: its gradient is of the next round.
    """

    config: Config
    version: int = 0
    roster: Roster = field(default_factory=Roster)
    desks: dict[int, Desk] = field(default_factory=dict)
    """Of every worker that has not declined."""
    awaited: dict[int, int] = field(default_factory=dict)
    owing: int = 0
    """The sum of `awaited`: how many gradients are still to come."""
    arrived: dict[tuple[int, int], float | None] = field(default_factory=dict)
    """By (worker, step), in the order of their transfers: what it weighs."""
    kept: dict[int, tuple[int, float | None]] = field(default_factory=dict)
    """(step, weight) of a stale gradient that has not arrived, while its worker is at the fresh one."""
    served: dict[int, None] = field(default_factory=dict)
    """Workers that declined a step of the next round: their gradients of the open one have arrived."""
    early: dict[int, None] = field(default_factory=dict)
    """Workers whose gradient of the next round is ready, in the order in which they became ready."""
    queue: list[tuple[int, int, int]] = field(default_factory=list)
    """A heap of (ticket, worker, step): gradients of this round that are ready. Skip any others."""
    ticket: int = 0
    """The one given last: with `order=ready` they count up, and with `order=rank` all are 0."""
    granted: tuple[int, int] | None = None
    """(worker, step) of the one transfer that is on its way."""
    granted_at: float = 0.0
    made_at: float = 0.0
    """When this version was ordered to be made, or training began."""
    going: dict[int, None] = field(default_factory=dict)
    """The workers that this version has not reached. Kept only for the guard."""
    unsent: list[int] = field(default_factory=list)
    """With `broadcast=order`: workers whose pull is not ordered yet, the next one last. Skip those that left."""
    sending: int | None = None
    """With `broadcast=order`: the worker to which a version is on its way."""
    transfer: float | None = None
    """How many seconds a gradient is on its way: a moving average; None before the first."""
    broadcast: float | None = None
    """The same from a version's order until the last worker has it."""
    latest: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (-expected, worker) of the workers that compute for this round. Skip any others."""
    unknown: dict[int, None] = field(default_factory=dict)
    """Workers that compute for this round, for a time that cannot be predicted yet."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        seat = self.roster.observe(fact)
        match fact:
            case TrainingBegan(members=members, version=version, at=at):
                self.version = version
                self._goes_to([worker for worker, _, _ in members], at)
                return tuple(self._enter(worker, ("began", version), at) for worker, _, _ in members)
            case WorkerJoined(worker=worker, at=at):
                return (self._enter(worker, ("joined", worker, self.version), at),)
            case WorkerResumed(worker=worker, at=at):
                assert seat is not None
                return self._resume(worker, seat, at)
            case GradientReady():
                assert seat is not None
                return self._computed(fact, seat)
            case UpdateArrived():
                assert seat is not None
                return self._received(fact, seat)
            case StepDeclined(worker=worker, at=at):
                if worker not in self.awaited:
                    self.served[worker] = None
                self._forget(worker)
                if worker in self.kept:  # that one is still to come
                    self._await(worker, 1)
                return self._go_on(at)
            case WorkerLeft(worker=worker, at=at):
                assert seat is not None
                self.served.pop(worker, None)
                self._forget(worker)
                if self.granted is not None and self.granted[0] == worker:
                    self.granted = None
                return (*self._lost(fact, seat), *self._go_on(at))
            case ParametersTaken():
                assert seat is not None
                return self._taken(fact, seat)
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def _enter(self, worker: int, why: Why, at: float) -> Release:
        self.desks[worker] = Desk()
        self.owing -= self.awaited.get(worker, 0)
        self._await(worker, 2 if worker in self.kept else 1)
        return self._release(worker, self.version, why, at)

    def _resume(self, worker: int, seat: WorkerProgress, at: float) -> tuple[Order, ...]:
        """A worker that has resumed enters the open round. If its gradient of that has arrived, it is idle."""
        if seat.ahead:
            assert seat.pulling is not None
            return (Hold(worker=worker, why=("on-its-way", seat.pulling)),)
        if worker not in self.served:
            return (self._enter(worker, ("goes-on", worker, self.version), at),)
        del self.served[worker]
        self.desks[worker] = Desk(holds=self.version)  # it had this version, or its round would not be open
        return self._ahead(worker, seat, at) or (Hold(worker=worker, why=self._missing(worker)),)

    def _await(self, worker: int, gradients: int) -> None:
        self.awaited[worker] = gradients
        self.owing += gradients

    def _release(
        self, worker: int, version: int, why: Why, at: float, parameters: Literal["pull", "held"] = "pull"
    ) -> Release:
        desk = self.desks[worker]
        desk.began = at
        self._expect(worker, desk, at if parameters == "held" else at + (self.broadcast or 0.0))
        return self.roster.release(worker, version, why, parameters)

    def _expect(self, worker: int, desk: Desk, began: float) -> None:
        """Predict when the worker is done with the step that it begins at `began`."""
        if self.config.idle != "guarded":
            return
        if desk.compute is None:
            self.unknown[worker] = None
            return
        expected, desk.expected = desk.expected, began + desk.compute
        if worker in self.awaited and desk.expected != expected:
            heappush(self.latest, (-desk.expected, worker))

    def _computed(self, fact: GradientReady, seat: WorkerProgress) -> tuple[Order, ...]:
        worker, at = fact.worker, fact.at
        desk = self.desks[worker]
        if fact.version > desk.holds:  # the worker computed on that version, so it has come
            self._came(worker, desk, fact.version)
        if self.config.idle == "guarded":
            desk.compute = _averaged(desk.compute, at - desk.began)
        desk.expected = None
        self.unknown.pop(worker, None)
        if worker in self.awaited:
            self._queue(worker, seat.step)
        else:
            self.early[worker] = None
        orders = (*self._freshened(worker, seat, desk, at), *self._go_on(at))
        if seat.step == fact.step and seat.phase == "ready":
            return (*orders, Hold(worker=worker, why=self._not_its_turn(worker)))
        return orders

    def _received(self, fact: UpdateArrived, seat: WorkerProgress) -> tuple[Order, ...]:
        worker, step, at = fact.worker, fact.step, fact.at
        if self.config.idle == "guarded":
            self.transfer = _averaged(self.transfer, at - self.granted_at)
        self.granted = None
        weight = seat.weight
        if worker in self.kept and self.kept[worker][0] == step:
            _, weight = self.kept.pop(worker)
        self.arrived[worker, step] = weight
        self.awaited[worker] -= 1
        self.owing -= 1
        if not self.awaited[worker]:
            del self.awaited[worker]
        ahead = () if worker in self.awaited else self._ahead(worker, seat, at)
        if seat.phase in IDLE and self.awaited and worker in self.desks:
            return (Hold(worker=worker, why=self._missing(worker)), *self._go_on(at))
        return (*ahead, *self._go_on(at))

    def _taken(self, fact: ParametersTaken, seat: WorkerProgress) -> tuple[Order, ...]:
        worker, version, at = fact.worker, fact.version, fact.at
        if self.sending == worker:
            self.sending = None
        desk = self.desks.get(worker)
        if desk is None:
            orders = self._resume(worker, seat, at) if seat.phase == "parked" else ()
            return (*orders, *self._go_on(at))
        if worker in self.going and version == self.version and len(self.going) == 1:
            self.broadcast = _averaged(self.broadcast, at - self.made_at)
        self._came(worker, desk, version)
        if seat.phase == "computing" and seat.version == version:
            desk.began = at
            self._expect(worker, desk, at)
        orders = self._freshened(worker, seat, desk, at) or self._ahead(worker, seat, at)
        if version < self.version and self.config.broadcast == "all":
            orders = (*orders, *self._send(worker, at))
        if seat.phase in IDLE and worker not in self.awaited:
            orders = (*orders, Hold(worker=worker, why=self._missing(worker)))
        return (*orders, *self._go_on(at))

    def _came(self, worker: int, desk: Desk, version: int) -> None:
        desk.holds = version
        if version == self.version:
            self.going.pop(worker, None)
        if self.sending == worker:
            self.sending = None

    def _forget(self, worker: int) -> None:
        """The worker computes no more, and no round waits for it."""
        self.desks.pop(worker, None)
        self.owing -= self.awaited.pop(worker, 0)
        self.early.pop(worker, None)
        self.going.pop(worker, None)
        self.unknown.pop(worker, None)
        if self.sending == worker:
            self.sending = None

    def _lost(self, fact: WorkerLeft, seat: WorkerProgress) -> tuple[Order, ...]:
        """Order to drop what the departed worker had computed and not delivered."""
        step, _ = self.kept.pop(fact.worker, (None, None))
        if step is None or step == seat.pushing:
            return Roster.half_pushed(fact, seat)
        why: Why = ("half-pushed", fact.worker, fact.reason)
        drop = DropUpdate(worker=fact.worker, step=step, samples="return", why=why)
        return (drop, *Roster.half_pushed(fact, seat))

    def _ahead(self, worker: int, seat: WorkerProgress, at: float) -> tuple[Order, ...]:
        """Order the worker to compute on the version that it holds, if it is idle and may compute ahead."""
        if self.config.idle == "none" or seat.phase not in IDLE or len(self.desks) == 1 or worker not in self.desks:
            return ()
        desk = self.desks[worker]
        made = worker in self.awaited  # the version that it waits for is made, but has not reached it
        if desk.holds != self.version - made:
            return ()
        why = self._allowed(desk, made, at)
        if why is None:
            return ()
        return (self._release(worker, desk.holds, why, at, "held"),)

    def _allowed(self, desk: Desk, made: bool, at: float) -> Why | None:
        """Why the worker may compute ahead: it is done before the version that it waits for. None: it may not."""
        if self.config.idle == "always":
            return ("idle", desk.holds + 1)
        if desk.compute is None or self.transfer is None or self.broadcast is None:
            return None
        wait = self.broadcast
        if not made:
            if self.unknown:
                return None
            latest = self._latest()
            coming = self.owing * self.transfer
            wait += coming if latest is None else max(coming, latest - at + self.transfer)
        if desk.compute > wait * (1 + TOLERANCE):
            return None
        return ("in-time", desk.holds + 1, wait, desk.compute)

    def _latest(self) -> float | None:
        """When the last worker that computes for this round is predicted to be ready; None if none does."""
        while self.latest:
            negative, worker = self.latest[0]
            if worker in self.awaited and worker in self.desks and self.desks[worker].expected == -negative:
                return -negative
            heappop(self.latest)
        return None

    def _freshened(self, worker: int, seat: WorkerProgress, desk: Desk, at: float) -> tuple[Order, ...]:
        """The orders for a worker with a stale gradient that has since got the version for a fresh one."""
        stale = self.config.stale
        if stale == "next" or worker not in self.awaited or seat.phase == "computing":
            return ()
        if not seat.version < desk.holds == self.version:
            return ()
        why: Why = ("fresh", self.version)
        if stale == "accumulate":
            if seat.phase not in IDLE:
                self.kept[worker] = (seat.step, seat.weight)
            return (self._release(worker, self.version, why, at, "held"),)
        if seat.phase != "ready":  # the gradient on its way is the worker's for this round
            return ()
        drop = DropUpdate(worker=worker, step=seat.step, samples="return", why=("stale", seat.step, self.version))
        return (drop, self._release(worker, self.version, why, at, "held"))

    def _go_on(self, at: float) -> tuple[Order, ...]:
        self._latest()
        return (*self._close_round(at), *self._send_next(at), *self._grant(at))

    def _close_round(self, at: float) -> tuple[Order, ...]:
        if self.awaited or not self.arrived:
            return ()
        line = list(dict.fromkeys(worker for worker, _ in self.arrived if worker in self.desks))
        contributions = mean_of(self.arrived)
        self.arrived = {}
        self.version += 1
        why: Why = ("round-complete", self.version, len(contributions))
        apply = ApplyUpdate(version=self.version, contributions=contributions, why=why)
        workers = sorted(line)
        self._open_round(workers, at)
        if self.config.broadcast == "order":
            self.unsent = line[::-1]
            return (apply, *self._in_line(line))
        return (apply, *(order for worker in workers for order in self._send(worker, at)))

    def _open_round(self, workers: list[int], at: float) -> None:
        """Every worker that has not declined owes a gradient, whether it computes it already or not. Ascending."""
        self.served = {}
        self._goes_to(workers, at)
        self.latest = []
        for worker in workers:
            ahead = self.roster.seats[worker].phase not in IDLE
            self._await(worker, 2 if ahead and self.config.stale == "accumulate" else 1)
            expected = self.desks[worker].expected
            if expected is not None:
                self.latest.append((-expected, worker))
        heapify(self.latest)
        self.queue, self.ticket = [], 0
        for worker in self.early:
            self._queue(worker, self.roster.seats[worker].step)
        self.early = {}

    def _goes_to(self, workers: list[int], at: float) -> None:
        """The present version goes out to these workers: begin to time how long until all have it."""
        if self.config.idle == "guarded":
            self.made_at, self.going = at, dict.fromkeys(workers)

    def _in_line(self, line: list[int]) -> list[Order]:
        """Hold the idle workers of this line: each waits for the one before it."""
        holds: list[Order] = []
        before = self.sending
        for worker in line:
            if before is not None and self.roster.seats[worker].phase in IDLE:
                holds.append(Hold(worker=worker, why=("in-line", self.version, before)))
            before = worker
        return holds

    def _send_next(self, at: float) -> tuple[Order, ...]:
        """With `broadcast=order`: send to the next worker, once the version has reached the one before."""
        while self.sending is None and self.unsent:
            worker = self.unsent.pop()
            if worker in self.desks and self.desks[worker].holds < self.version:
                self.sending = worker
                return self._send(worker, at)
        return ()

    def _send(self, worker: int, at: float) -> tuple[Order, ...]:
        """The order that brings a worker the newest version. For an idle worker that is its next step's own pull."""
        seat, desk = self.roster.seats[worker], self.desks[worker]
        why: Why = ("broadcast", self.version)
        idle = seat.phase in IDLE
        if seat.pulling is not None and seat.pulling > desk.holds:  # one after the other: `_taken` sends this one
            return (Hold(worker=worker, why=("on-its-way", seat.pulling)),) if idle else ()
        if idle:
            return (self._release(worker, self.version, why, at),)
        return (self.roster.pull(worker, self.version, why),)

    def _queue(self, worker: int, step: int) -> None:
        if self.config.order == "ready":
            self.ticket = self.ticket + 1 if self.queue else 0
        heappush(self.queue, (self.ticket, worker, step))

    def _grant(self, at: float) -> tuple[Order, ...]:
        """Order the next gradient's transfer, if none is on its way."""
        while self.queue and not self._waits(*self.queue[0][1:]):
            heappop(self.queue)
        if self.granted is not None or not self.queue:
            return ()
        _, worker, step = heappop(self.queue)
        self.granted, self.granted_at = (worker, step), at
        seat = self.roster.seats[worker]
        why: Why = ("turn", self.config.order)
        if seat.step == step:
            return (self.roster.push(worker, why),)
        seat.pushing = step
        return (StartPush(worker=worker, step=step, why=why),)

    def _waits(self, worker: int, step: int) -> bool:
        """Whether this gradient is ready, and not on its way."""
        seat = self.roster.seats.get(worker)
        if seat is None:
            return False
        if seat.step == step:
            return seat.phase == "ready"
        return worker in self.kept and self.kept[worker][0] == step

    def _not_its_turn(self, worker: int) -> Why:
        if worker in self.early:
            return ("early", self.version + 1)
        assert self.granted is not None
        return ("transferring", *self.granted)

    def _missing(self, worker: int) -> Why:
        if self.desks[worker].holds < self.version:
            return ("on-its-way", self.version)
        return ("round-open", self.version + 1, awaited_of(self.awaited))


def _averaged(average: float | None, newest: float) -> float:
    return newest if average is None else average + NEWEST_WEIGHS * (newest - average)


def _transfers(machine: Machine) -> list[tuple[int, int]]:
    """(worker, step) of the gradients that are on their way."""
    seats = machine.roster.seats.items()
    current = [(worker, seat.step) for worker, seat in seats if seat.phase == "pushing"]
    return current + [(worker, seat.pushing) for worker, seat in seats if seat.pushing is not None]


def _ages(machine: Machine) -> list[int]:
    """Of every gradient that is being computed, waits or is transferred: its round minus its version."""
    return [
        machine.version + (worker not in machine.awaited) - seat.version
        for worker, seat in machine.roster.seats.items()
        if seat.phase in ("computing", "ready", "pushing")
    ]


SPEC = Spec(
    name="hsp",
    title="Hybrid synchronous parallel (reconstructed from the abstract)",
    does="one transfer at a time; idle workers may compute ahead",
    paper="Li et al., HSP, ICPP 2022, doi 10.1145/3545008.3545024; reconstructed from its abstract",
    config=Config,
    machine=Machine,
    rounds=True,
    pushes_at_once=False,
    # A stale gradient and the fresh one beside it are in the round. One of the next round is computed meanwhile.
    unapplied=lambda config, workers: 3 if config.stale == "accumulate" and config.idle != "none" else 2,
    invariants={
        "at most one gradient is on its way": lambda machine: (
            _transfers(machine) == ([] if machine.granted is None else [machine.granted])
        ),
        "no gradient waits while nothing is on its way": lambda machine: bool(machine.granted) or not machine.queue,
        "every gradient in hand is of age 0 or 1": lambda machine: all(age in (0, 1) for age in _ages(machine)),
        "with idle=none every gradient in hand is of age 0": lambda machine: (
            machine.config.idle != "none" or not any(_ages(machine))
        ),
        "a worker owes a round one gradient, or two of which one is stale": lambda machine: all(
            owed == 1 or (owed == 2 and machine.config.stale == "accumulate") for owed in machine.awaited.values()
        ),
        "a worker that is not awaited has its gradient in the round, and may compute for the next": lambda machine: all(
            worker in machine.awaited or machine.roster.seats[worker].phase in (*IDLE, "computing", "ready")
            for worker in machine.desks
        ),
        "as many gradients are still to come as workers owe": lambda machine: (
            machine.owing == sum(machine.awaited.values())
        ),
    },
    reasons={
        **REASONS,
        "turn": "no other gradient is on its way, and it is the next one (order={0})",
        "transferring": "worker {0} transfers the gradient of its step {1}",
        "early": "its gradient is of the round after version {0}, which is not made yet",
        "round-complete": "version {0} has all its {1} gradients",
        "round-open": "version {0} waits for {1:workers}",
        "broadcast": "version {0} goes to all workers",
        "in-line": "version {0} goes to worker {1} first",
        "on-its-way": "version {0} has not reached it yet",
        "idle": "it would only wait for version {0}",
        "in-time": "version {0} is predicted to come in {1:.3g} s, and its gradient to be computed in {2:.3g} s",
        "fresh": "version {0} has come since it computed a stale gradient",
        "stale": "step {0} is on parameters older than version {1}, which has come",
    },
)
