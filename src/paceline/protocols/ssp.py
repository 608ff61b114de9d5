"""Stale synchronous parallel: as asynchronous, but a fast worker may lead by `bound` steps only.

Every update is applied as it arrives. Its worker is held while its lead is above the bound.

Source: Ho et al., NIPS 2013 (the bound). The push/OK form is DSSP's (Zhao et al., ICDCS 2019, Algorithm 1
with r = 0): after a push of p the server says OK iff t_p - min(t) <= s.

Counter convention: lead = steps whose updates have arrived, minus the slowest live worker's. A worker is
released while lead <= bound, so the lead seen at its next arrival can reach bound + 1. A joiner counts
from the slowest live worker's number. A resumed run counts leads anew, as all its workers begin on the same version.

Deviations: the gate is at the push, not at the read, and the whole model is one row. That is DSSP's form,
not the table interface of Ho et al. As there, bound=0 lets a worker be one step ahead of the slowest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
from paceline.core.orders import ApplyUpdate, Hold, Order
from paceline.core.reasons import Why
from paceline.core.roster import REASONS, Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """SSP's one parameter."""

    bound: int = parameter(
        3, "steps that a worker may lead the slowest one and still be released", unit="steps", least=0
    )

    def __post_init__(self) -> None:
        check_parameters("ssp", self)


@dataclass(slots=True)
class Machine:
    """`held` has the workers that wait for the slowest, in the order in which they began to wait."""

    config: Config
    version: int = 0
    roster: Roster = field(default_factory=Roster)
    counts: Counts = field(default_factory=Counts)
    held: dict[int, None] = field(default_factory=dict)

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
                return (self._start(worker, ("goes-on", worker, self.version)),)
            case GradientReady(worker=worker):
                return (self.roster.push(worker),)
            case UpdateArrived(worker=worker, step=step):
                self.version += 1
                self.counts.advance(worker)
                why: Why = ("on-arrival", worker, step)
                apply = ApplyUpdate(version=self.version, contributions=((worker, step, 1.0),), why=why)
                self.held[worker] = None
                if self._may_go(worker):
                    return (apply, self._go(worker), *self._released(least))
                return (apply, Hold(worker=worker, why=self._too_far(worker)), *self._released(least))
            case StepDeclined(worker=worker):
                self.counts.leave(worker)
                return self._released(least)
            case WorkerLeft(worker=worker):
                assert seat is not None
                self.held.pop(worker, None)
                if seat.phase != "declined":
                    self.counts.leave(worker)
                return (*Roster.half_pushed(fact, seat), *self._released(least))
            case ParametersTaken():
                return ()
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def _start(self, worker: int, why: Why) -> Order:
        self.counts.enter(worker)
        return self.roster.release(worker, self.version, why)

    def _may_go(self, worker: int) -> bool:
        return self.counts.lead(worker) <= self.config.bound

    def _go(self, worker: int) -> Order:
        del self.held[worker]
        return self.roster.release(worker, self.version, ("within-bound", self.counts.lead(worker), self.config.bound))

    def _released(self, least: int) -> tuple[Order, ...]:
        """Release the held workers that may go, if the slowest is no longer at `least`. If it is, none may."""
        if self.counts.least == least:
            return ()
        return tuple(self._go(worker) for worker in list(self.held) if self._may_go(worker))

    def _too_far(self, worker: int) -> Why:
        return ("above-bound", self.counts.lead(worker), self.config.bound, self.counts.slowest())


SPEC = Spec(
    name="ssp",
    title="Stale synchronous parallel",
    does="a worker more than bound steps ahead of the slowest is paused",
    paper="Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013",
    config=Config,
    machine=Machine,
    rounds=False,
    invariants={
        "no lead passes bound + 1": lambda machine: all(
            machine.counts.lead(worker) <= machine.config.bound + 1 for worker in machine.counts.finished
        ),
        "a worker is held if and only if its lead is above the bound": lambda machine: (
            sorted(machine.held)
            == [
                worker
                for worker in sorted(machine.counts.finished)
                if machine.counts.lead(worker) > machine.config.bound
            ]
        ),
        "the slowest worker is never held": lambda machine: all(
            machine.counts.lead(worker) > 0 for worker in machine.held
        ),
    },
    reasons={
        **REASONS,
        "on-arrival": "step {1} of worker {0} was applied on arrival",
        "within-bound": "its lead is {0}, the bound {1}",
        "above-bound": "its lead is {0}, the bound {1}: it waits for {2:workers}",
    },
)
