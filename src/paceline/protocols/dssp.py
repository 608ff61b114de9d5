"""Dynamic stale synchronous parallel: SSP whose bound is picked, for each decision, from a range.

Every update is applied as it arrives. When the lead of the fastest worker passes `lower`, the worker is granted
further steps: so many that it is predicted to stop nearest to a push of the slowest. All others are held there.

Source: Zhao, An, Liu, Chen, ICDCS 2019 (arXiv 1908.11848), Algorithm 1 (the server), Algorithm 2 (the
controller) and Figure 2. Its s_L is `lower`, its s_U `upper`, its r_max their difference, its A the times in
`pace`, its t the counts there, its r `grants`.

Counter convention: lead = steps whose updates have arrived, minus the slowest live worker's. It is compared
after the arrival has been counted. A held worker is released at lead <= lower. With the cap no worker is released
above `upper`, so the lead seen at an arrival can reach upper + 1. A joiner counts from the slowest live worker's
number.

Deviations, each where the paper's text and its algorithms disagree or leave something open. How we read them
is ours:
- Times are noted at every worker's arrival, before the decision. As printed, the controller alone refreshes
  them, while the text has the last two pushes of all workers in the table.
- `counting=corrected`: a grant of r* is r* further steps, as in Figure 2 and the text. As printed
  (`literal`) the release that comes with the grant is not counted, and the worker makes r* + 1.
- `cap=true`: no worker is released while its lead is above `upper`. As printed (`cap=false`) a used-up grant may
  be followed by the next one without end. Then leads pass `upper`, and what Theorem 2 rests on (never
  looser than SSP at `upper`) no longer holds.
- After the release at a lead within `lower` nothing more is done. Taken to the letter, the printed lines
  would go on to wait and release once more.
- Updates of the same instant are applied one after the other, since facts come in a sequence.

Ours: of several slowest workers, the one that has not pushed for longest counts, then the lowest. A worker that ties
with the fastest is the fastest. A worker that has pushed less than twice, or waits for such a one, is granted
nothing. A worker that is held at the cap loses what is left of its grant.

A resumed run counts leads and times anew: all its workers begin on the same version. Two pushes of each worker are all
that a decision looks at, and those from before the break may be another machine's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from paceline.core.choice import check_parameters, parameter
from paceline.core.counts import Pace
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
from paceline.core.orders import ApplyUpdate, Hold, Order
from paceline.core.reasons import Why
from paceline.core.roster import REASONS, Roster
from paceline.errors import ConfigError

WIDEST = 10_000  # bounds between lower and upper: with so many, a decision of the controller takes milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The range of the bound, and how strictly grants keep to it. A decision costs O(upper - lower)."""

    lower: int = parameter(
        3, "steps that any worker may lead the slowest one and still be released", unit="steps", least=0
    )
    upper: int = parameter(
        15, "steps that a worker with a grant may lead it; `lower` or more (equal to it: ssp)", unit="steps", least=0
    )
    cap: bool = parameter(True, "whether no worker is ever released with a lead above `upper`, whatever is granted")
    counting: Literal["corrected", "literal"] = parameter(
        "corrected", "whether a grant of r steps is r steps, or r + 1 as the paper's algorithm prints it"
    )

    def __post_init__(self) -> None:
        check_parameters("dssp", self)
        if self.upper < self.lower:
            raise ConfigError(
                f"dssp: upper is {self.upper} steps, and lower {self.lower}; "
                f"upper must be {self.lower} or more ({self.lower}: the same as ssp:bound={self.lower})"
            )
        if self.upper - self.lower > WIDEST:
            raise ConfigError(
                f"dssp: upper is {self.upper} steps, and lower {self.lower}; upper must be {self.lower + WIDEST} or "
                "less: each decision looks at every bound between them"
            )


def controller(
    fast_at: float, fast_interval: float, slow_at: float, slow_interval: float, most: int
) -> tuple[int, float]:
    """Return how many further steps the fastest worker makes before it stops, 0 to `most`, and how good that is.

    `fast_at` and `slow_at` are the latest pushes of the fastest and the slowest worker. The intervals are
    those from the push before. All are in seconds. If both keep their pace, the fastest pushes next at
    fast_at + i * fast_interval, and the slowest at slow_at + (k + 1) * slow_interval. The result is the i for
    which some such push of the slowest, k from 0 to `most`, is nearest, before or after. With it comes how far
    away that push is, in seconds. Of equal ones the smallest i wins. Both sequences ascend, so one pass
    over the two is enough: O(most).

    >>> controller(290.0, 57.5, 272.0, 100.0, 4)
    (3, 9.5)
    """
    best, nearest = 0, float("inf")
    k = 0
    for i in range(most + 1):
        stop = fast_at + i * fast_interval
        distance = abs(slow_at + (k + 1) * slow_interval - stop)
        while k < most and (following := abs(slow_at + (k + 2) * slow_interval - stop)) <= distance:
            k, distance = k + 1, following
        if distance < nearest:
            best, nearest = i, distance
    return best, nearest


@dataclass(slots=True)
class Machine:
    """`held` has the workers that wait for the slowest, in the order in which they began to wait."""

    config: Config
    version: int = 0
    roster: Roster = field(default_factory=Roster)
    pace: Pace = field(default_factory=Pace)
    grants: dict[int, int] = field(default_factory=dict)
    """How many more arrivals of a worker are answered with a release, whatever its lead; no zeros."""
    held: dict[int, None] = field(default_factory=dict)

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        seat = self.roster.observe(fact)
        least = self.pace.counts.least
        match fact:
            case TrainingBegan(members=members, version=version):
                self.version = version
                return tuple(self._start(worker, ("began", version)) for worker, _, _ in members)
            case WorkerJoined(worker=worker):
                return (self._start(worker, ("joined", worker, self.version)),)
            case WorkerResumed(worker=worker):
                return (self._start(worker, ("goes-on", worker, self.version)),)
            case GradientReady(worker=worker):
                return (self.roster.push(worker),)
            case UpdateArrived(worker=worker, step=step, at=at):
                self.version += 1
                self.pace.advance(worker, at)
                why: Why = ("on-arrival", worker, step)
                apply = ApplyUpdate(version=self.version, contributions=((worker, step, 1.0),), why=why)
                return (apply, self._answer(worker), *self._released(least))
            case StepDeclined(worker=worker):
                self._leave(worker)
                return self._released(least)
            case WorkerLeft(worker=worker):
                assert seat is not None
                self.held.pop(worker, None)
                if seat.phase != "declined":
                    self._leave(worker)
                return (*Roster.half_pushed(fact, seat), *self._released(least))
            case ParametersTaken():
                return ()
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def _start(self, worker: int, why: Why) -> Order:
        self.pace.enter(worker)
        return self.roster.release(worker, self.version, why)

    def _leave(self, worker: int) -> None:
        self.pace.leave(worker)
        self.grants.pop(worker, None)

    def _answer(self, worker: int) -> Order:
        """Algorithm 1, after the update is applied: the worker goes on or waits."""
        counts, config = self.pace.counts, self.config
        lead = counts.lead(worker)
        if config.cap and lead > config.upper:
            self.grants.pop(worker, None)
            return self._hold(worker, ("cap", lead, config.upper, counts.slowest()))
        if worker in self.grants:
            left = self._use(worker)
            return self.roster.release(worker, self.version, ("using-grant", lead, left))
        if lead <= config.lower:
            return self._within(worker, lead)
        if counts.finished[worker] < counts.most:
            return self._hold(worker, ("too-far", lead, config.lower, counts.slowest()))
        return self._control(worker, lead)

    def _control(self, worker: int, lead: int) -> Order:
        """The fastest worker has passed the lower bound: grant it further steps, or hold it."""
        config, times = self.config, self.pace.times
        slowest = self.pace.laggard()
        if len(times[worker]) < 2 or len(times[slowest]) < 2:
            return self._hold(worker, ("unpredicted", lead, config.lower, self.pace.counts.slowest()))
        (fast_at, fast_before), (slow_at, slow_before) = times[worker], times[slowest]
        range_ = config.upper - config.lower
        steps, wait = controller(fast_at, fast_at - fast_before, slow_at, slow_at - slow_before, range_)
        if steps == 0:
            return self._hold(worker, ("stop-now", lead, config.lower, slowest, wait))
        self.grants[worker] = steps
        if config.counting == "corrected":  # the release that follows is the first of them
            self._use(worker)
        return self.roster.release(worker, self.version, ("granted", lead, steps, wait, slowest))

    def _use(self, worker: int) -> int:
        """Use one release of the worker's grant. Return how many are left."""
        left = self.grants[worker] - 1
        if left:
            self.grants[worker] = left
        else:
            del self.grants[worker]
        return left

    def _hold(self, worker: int, why: Why) -> Order:
        self.held[worker] = None
        return Hold(worker=worker, why=why)

    def _within(self, worker: int, lead: int) -> Order:
        return self.roster.release(worker, self.version, ("lead", lead, self.config.lower))

    def _released(self, least: int) -> tuple[Order, ...]:
        """Release the held workers that may go, if the slowest is no longer at `least`. If it is, none may.

        Looking at a worker that stays held is paid for by the step that made its lead so great.
        """
        counts = self.pace.counts
        if counts.least == least:
            return ()
        free = [worker for worker in self.held if counts.lead(worker) <= self.config.lower]
        for worker in free:
            del self.held[worker]
        return tuple(self._within(worker, counts.lead(worker)) for worker in free)


SPEC = Spec(
    name="dssp",
    title="Dynamic stale synchronous parallel",
    does="as ssp, but the bound is chosen from a range while the run goes on",
    paper="Zhao et al., Dynamic Stale Synchronous Parallel Distributed Training for Deep Learning, ICDCS 2019",
    config=Config,
    machine=Machine,
    rounds=False,
    invariants={
        "with the cap, no lead passes upper + 1": lambda machine: (
            not machine.config.cap or machine.pace.counts.most - machine.pace.counts.least <= machine.config.upper + 1
        ),
        "a held worker's lead is above the lower bound": lambda machine: all(
            machine.pace.counts.lead(worker) > machine.config.lower for worker in machine.held
        ),
        "the slowest worker is never held": lambda machine: all(
            machine.pace.counts.lead(worker) > 0 for worker in machine.held
        ),
        "a worker that has arrived and is not released is held": lambda machine: all(
            (seat.phase == "arrived") == (worker in machine.held) for worker, seat in machine.roster.seats.items()
        ),
        "what is left of a grant is for 1 to upper - lower steps": lambda machine: all(
            1 <= left <= machine.config.upper - machine.config.lower - (machine.config.counting == "corrected")
            for left in machine.grants.values()
        ),
        "a held worker has no grant": lambda machine: not any(worker in machine.grants for worker in machine.held),
        "exactly the counted workers have times, and only they have grants": lambda machine: (
            sorted(machine.pace.times) == sorted(machine.pace.counts.finished)
            and all(worker in machine.pace.times for worker in machine.grants)
        ),
    },
    reasons={
        **REASONS,
        "on-arrival": "step {1} of worker {0} was applied on arrival",
        "lead": "its lead is {0}, the lower bound {1}",
        "granted": "its lead is {0}: granted {1} more steps, to stop {2:.3g} s from a push of worker {3}",
        "using-grant": "its lead is {0}: it uses its grant, of which {1} steps are left after this one",
        "too-far": "its lead is {0}, the lower bound {1}, and it is not the fastest: it waits for {2:workers}",
        "stop-now": "its lead is {0}, the lower bound {1}: no later stop is nearer to a push of worker {2} ({3:.3g} s)",
        "unpredicted": "its lead is {0}, the lower bound {1}, with too few pushes to predict by: it waits for "
        "{2:workers}",
        "cap": "its lead is {0}, the upper bound {1}: it waits for {2:workers}",
    },
)
