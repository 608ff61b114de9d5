"""Bulk synchronous parallel: all workers compute on the same version, and the next one waits for all of them.

The weighted mean of one gradient from each worker is applied as one update. Then all workers are released on it.

Source: the synchronous mode of parameter servers as DSSP restates it (Zhao et al., ICDCS 2019): the server
waits for all gradients of a round, makes one update, and releases all workers. Weights by samples are ours.

Counter convention: round r makes version r + 1 of one step of each worker, whatever those steps' numbers.

Deviations: membership may change. A joiner enters the open round, on its version. If a worker leaves after its
update has arrived, that update stays in its round. If it leaves before, the round does not wait for it.
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
from paceline.core.orders import ApplyUpdate, Hold, Order, Release
from paceline.core.reasons import Why, awaited_of
from paceline.core.roster import REASONS, Roster, mean_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """BSP has no parameters."""


@dataclass(slots=True)
class Machine:
    """`awaited` and `arrived` are the open round: workers that still owe a gradient, and the gradients that came."""

    config: Config
    version: int = 0
    roster: Roster = field(default_factory=Roster)
    awaited: dict[int, None] = field(default_factory=dict)
    arrived: dict[tuple[int, int], float | None] = field(default_factory=dict)
    """By (worker, step): what it weighs. A worker that left and came back in the same round has two here."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        seat = self.roster.observe(fact)
        match fact:
            case TrainingBegan(members=members, version=version):
                self.version = version
                return tuple(self._release(worker, ("began", version)) for worker, _, _ in members)
            case WorkerJoined(worker=worker):
                return (self._release(worker, ("joined", worker, self.version)),)
            case WorkerResumed(worker=worker):
                return (self._release(worker, ("goes-on", worker, self.version)),)
            case GradientReady(worker=worker):
                return (self.roster.push(worker),)
            case UpdateArrived(worker=worker, step=step):
                assert seat is not None
                self.arrived[worker, step] = seat.weight
                del self.awaited[worker]
                return self._close_round() or (Hold(worker=worker, why=self._missing()),)
            case StepDeclined(worker=worker):
                del self.awaited[worker]
                return self._close_round()
            case WorkerLeft(worker=worker):
                assert seat is not None
                self.awaited.pop(worker, None)
                return (*Roster.half_pushed(fact, seat), *self._close_round())
            case ParametersTaken():
                return ()
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def _release(self, worker: int, why: Why) -> Release:
        self.awaited[worker] = None
        return self.roster.release(worker, self.version, why)

    def _close_round(self) -> tuple[Order, ...]:
        if self.awaited or not self.arrived:
            return ()
        contributions = mean_of(self.arrived)
        self.arrived = {}
        self.version += 1
        why: Why = ("round-complete", self.version, len(contributions))
        apply = ApplyUpdate(version=self.version, contributions=contributions, why=why)
        seats = self.roster.seats
        waiting = [worker for worker, step, _ in contributions if worker in seats and seats[worker].step == step]
        return (apply, *(self._release(worker, why) for worker in waiting))

    def _missing(self) -> Why:
        return ("round-open", self.version + 1, awaited_of(self.awaited))


SPEC = Spec(
    name="bsp",
    title="Bulk synchronous parallel",
    does="every worker contributes to each update",
    paper="the usual synchronous baseline; as restated by DSSP (Zhao et al., ICDCS 2019)",
    config=Config,
    machine=Machine,
    rounds=True,
    sums="hosts",
    invariants={
        "every worker computes on the newest version": lambda machine: all(
            seat.version == machine.version
            for seat in machine.roster.seats.values()
            if seat.phase not in ("parked", "declined")
        ),
        "the workers that compute or push are awaited, and no others": lambda machine: (
            sorted(machine.awaited)
            == sorted(
                worker
                for worker, seat in machine.roster.seats.items()
                if seat.phase in ("computing", "ready", "pushing")
            )
        ),
    },
    reasons={
        **REASONS,
        "round-complete": "version {0} has all its {1} gradients",
        "round-open": "version {0} waits for {1:workers}",
    },
)
