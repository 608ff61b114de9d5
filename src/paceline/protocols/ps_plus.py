"""PS+: pulls that don't wait for the worker's own push, so that both go on beside its next computation.

A worker's next parameters are pulled while it computes. When its gradient is ready, the worker pushes its update, adds
it to what it has pulled, and computes on at once. By then it knows how far it was behind, and scales the push by that.

Source: Jin, Xu, Guo, Hu, Yeung, PS+, IEEE TPDS 33(12), 2022. Its abstract has the eager pull, both transfers
overlapped with computation, and learning rates that the workers set themselves. The authors' public demo has
the rest: the optimizer is the worker's, the store subtracts its delta over the number of workers, the pull of
the next step is served right after the push before is applied, the worker's own last delta is taken off what
it pulled, and an SSP gate may keep back that pull.

`pull` says when the parameters of a worker's next step are pulled, once for each step. With `after-push` the pull
follows the worker's own push, as in the demo: an iteration takes as long as the longer of computation and push plus
pull. With `free` the pull begins when there is a newer version than the one that the worker computes on, and the
worker pulls nothing else, whatever its push does. That is the abstract's sentence to the letter, and an iteration
takes as long as the longest of computation, push and pull.

Counter convention: a version is one applied update, which weighs 1/N. With `after-push` step t + 1 is computed on a
version that has the worker's steps to t - 1, never t. With `free` that version may lack t - 1, too, as the pull may
have begun with the push of t - 1. A worker has one push on its way, so a version lacks two of its steps at most. The
worker takes off all that the version lacks, whole and not over N.

Staleness is tau = versions between the one that a gradient was computed on and the one pulled for the next step. In
lockstep it is about N. Lead = steps whose updates have arrived, minus the slowest live worker's. The gate asks for the
lead before a pull: right after the update is applied. With `free` it asks right after the step is released, and the
update on its way counts as arrived. Either way the lead can reach gate + 1, and one further step may be computed
meanwhile.

Deviations: N is the number of live workers when the update is applied, where the demo has a constant. The gate
is open to a worker's first pull, and a joiner counts from the slowest live worker's number. With `free` a worker's
second step is computed on the version of its first if there is no other by then. With `after-push` that version
is pulled once more.

Ours: of `free` all but that sentence: one pull for each step, one push at a time, and that a worker waits for the newer
version that is on its way to it. Ours is also how the learning rate follows staleness. The paper says that it does. Its
formula is not public, and the demo has a placeholder. `inverse` is the staleness-aware rule of Zhang et al. (IJCAI
2016) with tau counted in rounds, and the others are relatives of it. `progress` looks at the step counters alone, which
the demo returns to its workers. The floor is ours, too. So is scaling the pushed update, as momentum is the worker's
own. A resumed run counts steps anew, so that `progress` looks at the machines that it goes on with. A worker that
resumes begins as a joiner does, once nothing is on its way to it or from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Literal, assert_never

from paceline.core.choice import check_parameters, parameter
from paceline.core.counts import Counts
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
from paceline.core.orders import ApplyUpdate, Hold, Order, StartPull
from paceline.core.reasons import Why
from paceline.core.roster import ANY_TIME, REASONS, Roster, WorkerProgress

FLOOR = 0.1
"""The least factor of an update, however stale it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How stale updates are scaled down, and whether fast workers wait."""

    modulation: Literal["off", "inverse", "inverse1", "sqrt", "progress"] = parameter(
        "inverse",
        "what an update is multiplied by, at least 0.1; with s = its staleness / workers: inverse is 1/max(1, s), "
        "inverse1 1/(1 + s), sqrt 1/sqrt(max(1, s)); progress is its worker's steps over the mean of all, at most 1",
    )
    gate: int | None = parameter(
        None, "steps that a worker may lead the slowest one and still pull; none: any number", unit="steps", least=0
    )
    pull: Literal["free", "after-push"] = parameter(
        "free",
        "when the next step's parameters are pulled: free of the worker's own push, as soon as there is a newer "
        "version than the one that it computes on, or once its own push is through",
    )

    def __post_init__(self) -> None:
        check_parameters("ps-plus", self)

    def factor(self, staleness: float, progress: float) -> float:
        """Return what an update is multiplied by: `FLOOR` to 1.

        `staleness` is tau / N: 1 in lockstep. `progress` is the worker's steps over the mean of all.

        >>> Config(modulation="inverse").factor(2.0, 1.0)
        0.5
        """
        match self.modulation:
            case "off":
                return 1.0
            case "inverse":
                value = 1 / max(1.0, staleness)
            case "inverse1":
                value = 1 / (1 + staleness)
            case "sqrt":
                value = 1 / sqrt(max(1.0, staleness))
            case "progress":
                value = min(1.0, progress)
            case _:
                assert_never(self.modulation)
        return max(FLOOR, value)


@dataclass(slots=True)
class Ahead:
    """The parameters of a worker's next step."""

    after: Literal["fetch", "push", "newer", "gate", "pull", "nothing"] = "fetch"
    """What these parameters wait for: the plain fetch of the first step's parameters, the worker's own last push
    (`after-push`), a newer version than the one that it computes on (`free`), slower workers, their transfer."""
    version: int = -1
    """The version that has come; -1 until then."""


@dataclass(slots=True)
class Machine:
    """`ahead` has every worker that still computes; `withheld` those that the gate stopped, in that order.

    `up_to_date` has the workers that pull as soon as there is a newer version, in the order in which they wanted one.
    """

    config: Config
    version: int = 0
    roster: Roster = field(default_factory=Roster)
    counts: Counts = field(default_factory=Counts)
    total: int = 0
    """The sum of the counts."""
    ahead: dict[int, Ahead] = field(default_factory=dict)
    withheld: dict[int, None] = field(default_factory=dict)
    up_to_date: dict[int, None] = field(default_factory=dict)

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        seat = self.roster.observe(fact)
        least = self.counts.least
        match fact:
            case TrainingBegan(members=members, version=version):
                self.version = version
                return tuple(self._start(worker, ("began", version)) for worker, _, _ in members)
            case WorkerJoined(worker=worker):
                return (self._start(worker, ("joined", worker, self.version)),)
            case WorkerResumed(worker=worker):
                assert seat is not None
                return self._resume(worker, seat) or (Hold(worker=worker, why=self._awaits(worker)),)
            case GradientReady(worker=worker):
                assert seat is not None
                return self._ready(worker, seat)
            case ParametersTaken(worker=worker, version=version):
                assert seat is not None
                return self._taken(worker, seat, version)
            case UpdateArrived(worker=worker, step=step):
                assert seat is not None
                self.version += 1
                why: Why = ("on-arrival", worker, step)
                contributions = ((worker, step, 1 / len(self.roster.seats)),)
                apply = ApplyUpdate(version=self.version, contributions=contributions, why=why)
                pulls = self._newer()
                if worker not in self.ahead:  # the worker had declined
                    return (apply, *pulls, *self._resume(worker, seat))
                self.counts.advance(worker)
                self.total += 1
                if self.config.pull == "after-push":
                    return (apply, *self._next(worker, seat, why), *self._let_in(least))
                return (apply, *pulls, *self._let_in(least), *self._pushed(worker, seat))
            case StepDeclined(worker=worker):
                self._leave(worker)
                return self._let_in(least)
            case WorkerLeft(worker=worker):
                assert seat is not None
                if worker in self.ahead:
                    self._leave(worker)
                return (*Roster.half_pushed(fact, seat), *self._let_in(least))
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def scale(self, worker: int, version: int) -> float:
        """Return what the worker's ready update is multiplied by, now that it has pulled this version."""
        staleness = (version - self.roster.seats[worker].version) / len(self.roster.seats)
        return self.config.factor(staleness, self._progress(worker))

    def _start(self, worker: int, why: Why) -> Order:
        self.counts.enter(worker)
        self.total += self.counts.finished[worker]
        self.ahead[worker] = Ahead()
        return self.roster.release(worker, self.version, why)

    def _resume(self, worker: int, seat: WorkerProgress) -> tuple[Order, ...]:
        """A worker that has resumed starts anew, once nothing of its earlier steps is on its way."""
        if seat.phase != "parked" or seat.in_transit:
            return ()
        return (self._start(worker, ("goes-on", worker, self.version)),)

    def _leave(self, worker: int) -> None:
        self.total -= self.counts.finished[worker]
        self.counts.leave(worker)
        del self.ahead[worker]
        self.withheld.pop(worker, None)
        self.up_to_date.pop(worker, None)

    def _ready(self, worker: int, seat: WorkerProgress) -> tuple[Order, ...]:
        """Let the worker push and go on if its next parameters are there. Otherwise it waits for them."""
        pulls: tuple[Order, ...] = ()
        if self.ahead[worker].after == "fetch":  # the gradient shows that the fetch has ended, though no fact told it
            seat.pulling = None
            pulls = self._fetched(worker, seat)
        if self._may_go(worker, seat):
            return (*pulls, *self._go(worker, seat))
        return (*pulls, Hold(worker=worker, why=self._awaits(worker)))

    def _may_go(self, worker: int, seat: WorkerProgress) -> bool:
        """Whether the worker may push its ready gradient and compute on."""
        after = self.ahead[worker].after
        if self.config.pull == "after-push":
            return after == "nothing"
        return seat.pushing is None and after in ("nothing", "newer")

    def _fetched(self, worker: int, seat: WorkerProgress) -> tuple[Order, ...]:
        """The parameters of the worker's first step are there."""
        if self.config.pull == "after-push":
            return (self._pull(worker, ("fetched", seat.version)),)
        return self._next(worker, seat, ("newer", self.version, seat.version))

    def _pushed(self, worker: int, seat: WorkerProgress) -> tuple[Order, ...]:
        """With `free`: the worker's push has arrived, so its next one may begin."""
        if seat.phase != "ready":
            return ()
        if self._may_go(worker, seat):
            return self._go(worker, seat)
        return (Hold(worker=worker, why=self._awaits(worker)),)

    def _taken(self, worker: int, seat: WorkerProgress, version: int) -> tuple[Order, ...]:
        """The fetch of the first step's parameters, or the eager pull of the next step's, has ended."""
        ahead = self.ahead.get(worker)
        if ahead is None:  # the worker had declined
            return self._resume(worker, seat)
        if ahead.after == "fetch":
            return self._fetched(worker, seat)
        ahead.after, ahead.version = "nothing", version
        return self._go(worker, seat) if seat.phase == "ready" and self._may_go(worker, seat) else ()

    def _go(self, worker: int, seat: WorkerProgress) -> tuple[Order, ...]:
        """Push the ready update. Compute on: on what has been pulled, or on the same if there is nothing newer."""
        ahead = self.ahead[worker]
        version, released = ahead.version, ("ahead", ahead.version)
        if ahead.after == "newer":
            del self.up_to_date[worker]
            version, released = seat.version, ("newest", seat.version)
        stale = version - seat.version
        ahead.after, ahead.version = "push", -1
        scale = self.scale(worker, version)
        why: Why = ANY_TIME
        if self.config.modulation == "progress":
            why = ("progress", self.counts.finished[worker], self.total / len(self.counts.finished), scale)
        elif self.config.modulation != "off":
            why = ("staleness", stale, len(self.roster.seats), scale)
        push = self.roster.push(worker, why, scale)
        release = self.roster.release(worker, version, released, "eager")
        if self.config.pull == "after-push":
            return (push, release)
        return (push, release, *self._next(worker, seat, ("newer", self.version, version)))

    def _next(self, worker: int, seat: WorkerProgress, why: Why) -> tuple[Order, ...]:
        """Pull the worker's next parameters, unless it is too far ahead or there is nothing newer to pull."""
        if not self._may_pull(worker):
            self.ahead[worker].after = "gate"
            self.withheld[worker] = None
            return (Hold(worker=worker, why=self._awaits(worker)),) if seat.phase == "ready" else ()
        if self.config.pull == "free" and self.version == seat.version:
            self.ahead[worker].after = "newer"
            self.up_to_date[worker] = None
            return ()
        return (self._pull(worker, why),)

    def _newer(self) -> tuple[Order, ...]:
        """With `free`: there is a new version. The workers that had the newest one until now pull it.

        Each of them pays for that with the step that it was released for.
        """
        if not self.up_to_date:
            return ()
        waited, self.up_to_date = self.up_to_date, {}
        return tuple(
            self._pull(worker, ("newer", self.version, self.roster.seats[worker].version)) for worker in waited
        )

    def _lead(self, worker: int) -> int:
        """Steps ahead of the slowest, as the gate counts them. With `free` the update on its way is one of them."""
        on_the_way = self.config.pull == "free" and self.roster.seats[worker].pushing is not None
        return self.counts.lead(worker) + on_the_way

    def _may_pull(self, worker: int) -> bool:
        return self.config.gate is None or self._lead(worker) <= self.config.gate

    def _pull(self, worker: int, why: Why) -> StartPull:
        self.ahead[worker].after = "pull"
        return self.roster.pull(worker, self.version, why)

    def _let_in(self, least: int) -> tuple[Order, ...]:
        """Pull for the workers that are no longer too far ahead. There are none if the slowest is still at `least`.

        Looking at a worker that stays withheld is paid for by the step that made its lead so great.
        """
        if self.counts.least == least:
            return ()
        free = [worker for worker in self.withheld if self._may_pull(worker)]
        for worker in free:
            del self.withheld[worker]
        return tuple(
            order
            for worker in free
            for order in self._next(
                worker, self.roster.seats[worker], ("within-gate", self._lead(worker), self.config.gate or 0)
            )
        )

    def _awaits(self, worker: int) -> Why:
        """Why the worker cannot go on with its gradient ready, or after it has resumed."""
        seat = self.roster.seats[worker]
        if seat.phase == "ready" and self.ahead[worker].after == "gate":
            return ("above-gate", self._lead(worker), self.config.gate or 0, self.counts.slowest())
        if seat.pushing is not None:
            in_turn = self.config.pull == "free" and seat.phase == "ready"
            return ("in-turn" if in_turn else "pushing", seat.pushing)
        return ("pulling", -1 if seat.pulling is None else seat.pulling)

    def _progress(self, worker: int) -> float:
        """The worker's steps over the mean of all workers; 1 as long as no worker has made any."""
        if not self.total:
            return 1.0
        return self.counts.finished[worker] * len(self.counts.finished) / self.total


def _exchanges_told(machine: Machine) -> bool:
    """Whether each worker has a push on its way, or a pull, or neither. With `free` it may have both at once."""
    after_push = machine.config.pull == "after-push"
    for worker, seat in machine.roster.seats.items():
        if seat.phase == "pushing" or (after_push and seat.pushing is not None and seat.pulling is not None):
            return False
        ahead = machine.ahead.get(worker)
        if ahead is None:
            continue
        if ahead.after == "push" if not after_push else (ahead.after == "push") != (seat.pushing is not None):
            return False
        if (ahead.after in ("fetch", "pull")) != (seat.pulling is not None):
            return False
    return True


SPEC = Spec(
    name="ps-plus",
    title="PS+: decoupled push and pull",
    does="pushes and pulls go on beside the next computation",
    paper="Jin et al., PS+: A Simple yet Effective Framework for Fast Training on Parameter Server, IEEE TPDS 2022",
    config=Config,
    machine=Machine,
    rounds=False,
    local_steps=True,
    pushes="difference",
    optimizer="outer",
    invariants={
        "each worker has at most one push or pull on its way; with pull=free one of each": _exchanges_told,
        "a gradient waits only for the next step's parameters; with pull=free for the push before it, too": (
            lambda machine: (
                not any(
                    machine.roster.seats[worker].phase == "ready"
                    and machine._may_go(worker, machine.roster.seats[worker])
                    for worker in machine.ahead
                )
            )
        ),
        "with pull=free a worker pulls unless it has the newest version, or the gate stops it": lambda machine: (
            sorted(machine.up_to_date)
            == sorted(worker for worker, ahead in machine.ahead.items() if ahead.after == "newer")
            and all(machine.roster.seats[worker].version == machine.version for worker in machine.up_to_date)
        ),
        "no worker holds a version newer than the newest, or older than the one it computes on": lambda machine: all(
            machine.roster.seats[worker].version <= ahead.version <= machine.version
            for worker, ahead in machine.ahead.items()
            if ahead.after == "nothing"
        ),
        "every worker that still computes is counted, and the total is the sum of their counts": lambda machine: (
            list(machine.ahead) == list(machine.counts.finished)
            and machine.total == sum(machine.counts.finished.values())
        ),
        "no lead passes gate + 1": lambda machine: (
            machine.config.gate is None
            or all(machine.counts.lead(worker) <= machine.config.gate + 1 for worker in machine.counts.finished)
        ),
        "a pull is withheld if and only if its worker's lead is above the gate": lambda machine: (
            sorted(machine.withheld)
            == sorted(worker for worker in machine.counts.finished if not machine._may_pull(worker))
            == sorted(worker for worker, ahead in machine.ahead.items() if ahead.after == "gate")
        ),
        "every update is multiplied by 0.1 to 1": lambda machine: all(
            FLOOR <= machine.scale(worker, ahead.version) <= 1
            for worker, ahead in machine.ahead.items()
            if ahead.after == "nothing"
        ),
    },
    reasons={
        **REASONS,
        "fetched": "version {0} is there for its first step: the next one's parameters follow",
        "newer": "version {0} is newer than {1}, which it computes on",
        "ahead": "version {0} has come while it computed",
        "newest": "version {0} is still the newest",
        "on-arrival": "step {1} of worker {0} was applied on arrival",
        "within-gate": "its lead is {0}, the gate {1}",
        "above-gate": "its lead is {0}, the gate {1}: its pull waits for {2:workers}",
        "pushing": "its step {0} is still on its way to the store, and its pull follows that",
        "in-turn": "its step {0} is still on its way to the store, and this one's push follows that",
        "pulling": "version {0} is still on its way to it",
        "staleness": "{0} updates of {1} workers came since the parameters of its gradient: multiplied by {2:.3g}",
        "progress": "its steps are {0}, the mean {1:.3g}: multiplied by {2:.3g}",
    },
)
