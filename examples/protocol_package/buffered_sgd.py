"""Buffered: each version is the mean of the next `size` gradients that arrive, of whichever workers.

A worker whose gradient is in the buffer waits until the version is made. A gradient that was computed on an older
version counts like any other. If all workers wait, the version is made of what there is.

Source: the buffer of FedBuff (Nguyen et al., AISTATS 2022), without its clients' own steps.

Counter convention: version v is made of v buffers (from the version that training began at).

Deviations: in FedBuff a client does not wait for the buffer that it is in.
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
from paceline.core.orders import ApplyUpdate, Hold, Order, Release
from paceline.core.reasons import Why, awaited_of
from paceline.core.roster import REASONS, Roster, mean_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The one parameter."""

    size: int = parameter(2, "gradients in a version", unit="gradients", least=1)

    def __post_init__(self) -> None:
        check_parameters("buffered", self)


@dataclass(slots=True)
class Machine:
    """The buffer, and the workers that may still bring a gradient to it."""

    config: Config
    version: int = 0
    roster: Roster = field(default_factory=Roster)
    computing: dict[int, None] = field(default_factory=dict)
    arrived: dict[tuple[int, int], float | None] = field(default_factory=dict)
    """By (worker, step): what it weighs. A worker that left and came back may have two here."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `paceline.core.machine.Machine`."""
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
                del self.computing[worker]
                return self._make_version() or (Hold(worker=worker, why=self._missing()),)
            case StepDeclined(worker=worker):
                del self.computing[worker]
                return self._make_version()
            case WorkerLeft(worker=worker):
                assert seat is not None
                self.computing.pop(worker, None)
                return (*Roster.half_pushed(fact, seat), *self._make_version())
            case ParametersTaken():
                return ()
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def _release(self, worker: int, why: Why) -> Release:
        self.computing[worker] = None
        return self.roster.release(worker, self.version, why)

    def _make_version(self) -> tuple[Order, ...]:
        """Make the version if the buffer is full, or nobody is left to fill it."""
        if not self.arrived or (self.computing and len(self.arrived) < self.config.size):
            return ()
        contributions = mean_of(self.arrived)
        self.arrived = {}
        self.version += 1
        why: Why = ("full", self.version, len(contributions))
        seats = self.roster.seats
        waiting = [worker for worker, step, _ in contributions if worker in seats and seats[worker].step == step]
        apply = ApplyUpdate(version=self.version, contributions=contributions, why=why)
        return (apply, *(self._release(worker, why) for worker in waiting))

    def _missing(self) -> Why:
        return ("open", self.version + 1, self.config.size - len(self.arrived), awaited_of(self.computing))


SPEC = Spec(
    name="buffered",
    title="Buffered asynchronous",
    does="each version is the mean of the next gradients that arrive, of whichever workers",
    paper="Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022",
    config=Config,
    machine=Machine,
    rounds=False,
    gradients=lambda config, workers: min(config.size, workers),
    invariants={
        "who waits has a gradient in the buffer": lambda machine: all(
            (worker, seat.step) in machine.arrived
            for worker, seat in machine.roster.seats.items()
            if seat.phase == "arrived"
        ),
        "the buffer is not full": lambda machine: len(machine.arrived) < machine.config.size or not machine.arrived,
    },
    reasons={
        **REASONS,
        "full": "version {0} has {1} gradients",
        "open": "version {0} waits for {1} of {2:workers}",
    },
)
