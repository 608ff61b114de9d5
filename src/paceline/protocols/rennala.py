"""Rennala SGD: each version is the mean of the first `batch` gradients computed on the one before, whoever brings them.

A worker whose gradient has arrived computes another one on the same version, with its next batch, until that version
has enough. So a fast worker brings several gradients to a version, and a slow one none. What a worker still computes on
an older version is dropped when it is ready. Then the worker goes on with the newest version, and the batch is leased
again.

Source: Tyurin and Richtárik, Optimal Time Complexities of Parallel Stochastic Optimization Methods, 2023 (arXiv
2305.12387): collect S gradients of x^k, then x^(k+1) = x^k - γ times their mean; gradients of older points are ignored.

Counter convention: version v + 1 is the mean of `batch` gradients of version v, whatever their steps' numbers.

Deviations: membership may change. If no worker computes any more, a version is made of the gradients that are there.
A worker computes its step to its end, as nothing stops it. Weights by samples are ours, as under `bsp`. In the paper
the batch is the gradients' noise over the accuracy asked for, which nobody knows before a run: the default, the number
of workers, is ours. A gradient lies in memory until its version is made. So a worker brings at most `MOST` gradients to
a version, which is ours, too. Then it waits for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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
from paceline.core.orders import ApplyUpdate, Hold, Order, Release
from paceline.core.reasons import Why
from paceline.core.roster import REASONS, Roster, mean_of

MOST = 8
"""Gradients that a worker brings to one version at most. Each takes as much memory as the parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How many gradients make a version."""

    batch: int | None = parameter(
        None, "how many gradients make a version; none: as many as workers", unit="gradients", least=1
    )

    def __post_init__(self) -> None:
        check_parameters("rennala", self)


@dataclass(slots=True)
class Machine:
    """The version that is being collected for: who computes, on whichever version, and which gradients have come."""

    config: Config
    version: int = 0
    batch: int = 1
    """How many gradients make a version."""
    roster: Roster = field(default_factory=Roster)
    computing: dict[int, None] = field(default_factory=dict)
    """Workers that compute, or push."""
    arrived: dict[tuple[int, int], float | None] = field(default_factory=dict)
    """By (worker, step): what the gradient weighs. All are of the newest version."""
    brought: dict[int, int] = field(default_factory=dict)
    """By worker, also if it has left: how many of these are its own."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        seat = self.roster.observe(fact)
        match fact:
            case TrainingBegan(members=members, version=version):
                self.version = version
                self.batch = gradients(self.config, len(members))
                return tuple(self._release(worker, ("began", version)) for worker, _, _ in members)
            case WorkerJoined(worker=worker):
                return self._go_on(worker, ("joined", worker, self.version))
            case WorkerResumed(worker=worker):
                return self._go_on(worker, ("goes-on", worker, self.version))
            case GradientReady(worker=worker, step=step):
                return self._late(worker, step) or (self.roster.push(worker),)
            case UpdateArrived(worker=worker, step=step):
                if late := self._late(worker, step):
                    return late
                assert seat is not None
                self.arrived[worker, step] = seat.weight
                self.brought[worker] = self.brought.get(worker, 0) + 1
                del self.computing[worker]
                why: Why = ("collecting", self.version + 1, self.batch - len(self.arrived))
                return self._go_on(worker, why, "held")
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

    def _go_on(self, worker: int, why: Why, parameters: Literal["pull", "held"] = "pull") -> tuple[Order, ...]:
        """Have the worker compute on this version, unless that has enough gradients, or as many of it as it may."""
        if len(self.arrived) < self.batch and self.brought.get(worker, 0) < MOST:
            return (self._release(worker, why, parameters),)
        full: Why = ("full", self.brought[worker], self.version + 1)
        return self._make_version() or (Hold(worker=worker, why=full),)

    def _release(self, worker: int, why: Why, parameters: Literal["pull", "held"] = "pull") -> Release:
        self.computing[worker] = None
        return self.roster.release(worker, self.version, why, parameters)

    def _late(self, worker: int, step: int) -> tuple[Order, ...]:
        """Drop this worker's gradient, and have it begin again on the newest version, if it is of an older one."""
        drop = self.roster.late(worker, step, self.version)
        return () if drop is None else (drop, self._release(worker, drop.why))

    def _make_version(self) -> tuple[Order, ...]:
        """Make the next version, if it has enough gradients, or no worker computes any more."""
        if not self.arrived or (self.computing and len(self.arrived) < self.batch):
            return ()
        contributions, brought = mean_of(self.arrived), sorted(self.brought)
        self.arrived, self.brought = {}, {}
        self.version += 1
        why: Why = ("round-complete", self.version, len(contributions))
        apply = ApplyUpdate(version=self.version, contributions=contributions, why=why)
        seats = self.roster.seats
        waiting = [worker for worker in brought if worker in seats and seats[worker].phase in ("arrived", "parked")]
        return (apply, *(self._release(worker, why) for worker in waiting))


def gradients(config: Config, workers: int) -> int:
    """Return how many gradients make a version where so many workers begin."""
    return config.batch or workers


def misfit(config: Config, hosts: Sequence[str]) -> str:
    """Why this config can't train with one worker on each of these hosts; empty if it can."""
    most = MOST * len(hosts)
    if config.batch is None or config.batch <= most:
        return ""
    return (
        f"rennala: batch is {config.batch} gradients, and {len(hosts)} workers bring at most {most}, {MOST} each; "
        f"choose batch={most} or less, and larger batches of samples"
    )


SPEC = Spec(
    name="rennala",
    title="Rennala SGD",
    does="the first gradients of a version make the next one, several of a fast worker among them",
    paper="Tyurin, Richtárik, Optimal Time Complexities of Parallel Stochastic Optimization Methods, 2023",
    config=Config,
    machine=Machine,
    rounds=False,
    gradients=gradients,
    # Those of the open version, the one that is computed, and one of the version that is being made.
    unapplied=lambda config, workers: min(gradients(config, workers), MOST) + 1,
    invariants={
        "workers that compute or push are those that may still bring a gradient": lambda machine: (
            sorted(machine.computing)
            == sorted(
                worker
                for worker, seat in machine.roster.seats.items()
                if seat.phase in ("computing", "ready", "pushing")
            )
        ),
        "who waits has brought as many gradients as a worker may": lambda machine: all(
            machine.brought.get(worker) == MOST
            for worker, seat in machine.roster.seats.items()
            if seat.phase in ("arrived", "parked")
        ),
        "no version with enough gradients is open": lambda machine: len(machine.arrived) < machine.batch,
        "a version lacks gradients only while a worker computes": lambda machine: (
            bool(machine.computing) or not machine.arrived
        ),
        "each gradient that has come is counted for its worker": lambda machine: (
            sum(machine.brought.values()) == len(machine.arrived)
            and all(one <= MOST for one in machine.brought.values())
        ),
    },
    misfit=misfit,
    reasons={
        **REASONS,
        "collecting": "gradients that version {0} still lacks: {1}",
        "full": "it has brought {0} gradients to version {1}, and a worker brings no more",
        "round-complete": "version {0} has all its {1} gradients",
    },
)
