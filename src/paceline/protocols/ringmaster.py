"""Ringmaster ASGD: as asynchronous, but a gradient that would be `max_delay` versions late, or more, is not applied.

Its delay is how many versions were made since the one that it was computed on. A worker whose gradient is dropped
begins again on the newest version, and the batch is leased again.

Source: Maranjyan, Tyurin and Richtárik, Ringmaster ASGD, 2025 (arXiv 2501.16168), Algorithm 1: x ← x − γg if δ < R,
else the gradient is ignored.

Counter convention: version v holds exactly v applied updates, as under `asp`.

Deviations: a gradient is looked at twice, as it is computed and as it arrives, since others may arrive meanwhile. The
first look saves the push. The paper's second algorithm stops a computation that would end too late, and this one lets
it end. There R depends on the gradients' noise, which nobody knows before a run: the default, twice the workers, is
ours, and drops nothing where all workers are equally fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
from paceline.core.orders import ApplyUpdate, DropUpdate, Order
from paceline.core.reasons import Why
from paceline.core.roster import REASONS, Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Ringmaster's one parameter."""

    max_delay: int | None = parameter(
        None,
        "the delay from which on a gradient is dropped; none: twice the number of workers",
        unit="versions",
        least=1,
    )

    def __post_init__(self) -> None:
        check_parameters("ringmaster", self)


@dataclass(slots=True)
class Machine:
    """The version, and each worker's state."""

    config: Config
    version: int = 0
    roster: Roster = field(default_factory=Roster)

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        seat = self.roster.observe(fact)
        match fact:
            case TrainingBegan(members=members, version=version):
                self.version = version
                began: Why = ("began", version)
                return tuple(self.roster.release(worker, version, began) for worker, _, _ in members)
            case WorkerJoined(worker=worker):
                return (self.roster.release(worker, self.version, ("joined", worker, self.version)),)
            case WorkerResumed(worker=worker):
                return (self.roster.release(worker, self.version, ("goes-on", worker, self.version)),)
            case GradientReady(worker=worker, step=step):
                return self._too_late(worker, step) or (self.roster.push(worker),)
            case UpdateArrived(worker=worker, step=step):
                if late := self._too_late(worker, step):
                    return late
                self.version += 1
                why: Why = ("on-arrival", worker, step)
                return (
                    ApplyUpdate(version=self.version, contributions=((worker, step, 1.0),), why=why),
                    self.roster.release(worker, self.version, why),
                )
            case WorkerLeft():
                assert seat is not None
                return Roster.half_pushed(fact, seat)
            case StepDeclined() | ParametersTaken():
                return ()
            case _:  # the roster has refused it
                raise AssertionError(fact)

    @property
    def max_delay(self) -> int:
        """The delay from which on a gradient is dropped now."""
        return self.config.max_delay or 2 * len(self.roster.seats)

    def _too_late(self, worker: int, step: int) -> tuple[Order, ...]:
        """Drop this worker's gradient, and have it begin again on the newest version, if it is too late."""
        delay = self.version - self.roster.seats[worker].version
        if delay < self.max_delay:
            return ()
        why: Why = ("too-late", worker, step, delay, self.max_delay)
        return (
            DropUpdate(worker=worker, step=step, samples="return", why=why),
            self.roster.release(worker, self.version, why),
        )


SPEC = Spec(
    name="ringmaster",
    title="Ringmaster ASGD",
    does="as asp, but a gradient that is too many versions late is dropped",
    paper="Maranjyan et al., Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity, 2025",
    config=Config,
    machine=Machine,
    rounds=False,
    invariants={
        "no worker waits": lambda machine: all(seat.phase != "arrived" for seat in machine.roster.seats.values()),
    },
    reasons={
        **REASONS,
        "on-arrival": "step {1} of worker {0} was applied on arrival",
        "too-late": "the delay of step {1} of worker {0} is {2}, and from {3} on it is dropped",
    },
)
