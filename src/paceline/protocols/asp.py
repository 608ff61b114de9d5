"""Asynchronous parallel: every update is applied as it arrives, and no worker ever waits.

Each update makes the next version by itself. Its worker is released on that version at once.

Source: the asynchronous mode of parameter servers as DSSP restates it (Zhao et al., ICDCS 2019).

Counter convention: version v holds exactly v applied updates (from the version that training began at).

Deviations: none known. As in the source, a push is a full-size step: n workers take n steps where BSP takes one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
from paceline.core.orders import ApplyUpdate, Order
from paceline.core.reasons import Why
from paceline.core.roster import REASONS, Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """ASP has no parameters."""


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
            case GradientReady(worker=worker):
                return (self.roster.push(worker),)
            case UpdateArrived(worker=worker, step=step):
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


SPEC = Spec(
    name="asp",
    title="Asynchronous parallel",
    does="each update is applied when it arrives; no worker waits for another",
    paper="the usual asynchronous baseline; as restated by DSSP (Zhao et al., ICDCS 2019)",
    config=Config,
    machine=Machine,
    rounds=False,
    invariants={
        "no worker waits": lambda machine: all(seat.phase != "arrived" for seat in machine.roster.seats.values()),
    },
    reasons={
        **REASONS,
        "on-arrival": "step {1} of worker {0} was applied on arrival",
    },
)
