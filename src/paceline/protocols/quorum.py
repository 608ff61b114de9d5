"""A quorum: each version is the mean of the first `m` gradients that are computed on the one before.

All workers compute on the newest version. Once m of them have brought their gradients, these make the next one. The
others are this round's backup workers: what they compute on the version before is dropped, and its batch is leased
again. Other workers may be late in the next round.

With `grace` a round stays open for that many seconds after its m-th gradient, and takes in the gradients that come
meanwhile. It is closed at once when no worker computes on its version any more.

Source: Chen, Pan, Monga, Bengio and Jozefowicz, Revisiting Distributed Synchronous SGD, 2016 (arXiv 1604.00981).

Counter convention: round r makes version r + 1 of the gradients of m workers, whatever their steps' numbers.

Deviations: membership may change. If fewer than m workers have data, the round waits for all of them. A late worker
computes its step to its end, as nothing stops it. Weights by samples are ours, as under `bsp`. So is the default of m:
all workers of the beginning but one. The paper has no grace, and 0 is the default. `auto` is ours: a round that has got
m gradients in T seconds stays open for T/m more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline.core.choice import check_parameters, parameter
from paceline.core.facts import (
    AlarmRang,
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
from paceline.core.grace import REASONS as OF_GRACE
from paceline.core.grace import Grace, fits
from paceline.core.machine import Spec
from paceline.core.orders import ApplyUpdate, Hold, Order, Release
from paceline.core.reasons import Why, awaited_of
from paceline.core.roster import REASONS, Roster, mean_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How many are enough, and how long the others may still come."""

    m: int | None = parameter(
        None, "how many workers' gradients make a version; none: all but one", unit="workers", least=1
    )
    grace: float | Literal["auto"] = parameter(
        0.0,
        "how long a round stays open for further gradients after the m-th one; auto: as long as the m took for each",
        unit="seconds",
        least=0,
    )

    def __post_init__(self) -> None:
        check_parameters("quorum", self)


@dataclass(slots=True)
class Machine:
    """The open round: workers that may still bring a gradient, on whichever version, and gradients that came."""

    config: Config
    version: int = 0
    enough: int = 1
    """How many gradients close a round."""
    roster: Roster = field(default_factory=Roster)
    computing: dict[int, None] = field(default_factory=dict)
    """Workers that compute, or push."""
    in_time: dict[int, None] = field(default_factory=dict)
    """Those of them that are not late: they compute on the newest version."""
    arrived: dict[tuple[int, int], float | None] = field(default_factory=dict)
    """By (worker, step): what it weighs. A worker that left and came back in the same round may have two here."""
    grace: Grace = field(default_factory=Grace)

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        seat = self.roster.observe(fact)
        match fact:
            case TrainingBegan(members=members, version=version, at=at):
                self.version = version
                self.grace.begin_round(at)
                self.enough = enough(self.config, len(members))
                return tuple(self._release(worker, ("began", version)) for worker, _, _ in members)
            case WorkerJoined(worker=worker):
                return (self._release(worker, ("joined", worker, self.version)),)
            case WorkerResumed(worker=worker):
                return (self._release(worker, ("goes-on", worker, self.version)),)
            case GradientReady(worker=worker, step=step):
                return self._late(worker, step) or (self.roster.push(worker),)
            case UpdateArrived(worker=worker, step=step):
                if late := self._late(worker, step):
                    return late
                assert seat is not None
                self.arrived[worker, step] = seat.weight
                self._ends(worker)
                return self._close_round(fact.at) or (Hold(worker=worker, why=self._missing()),)
            case StepDeclined(worker=worker):
                self._ends(worker)
                return self._close_round(fact.at)
            case WorkerLeft(worker=worker):
                assert seat is not None
                self._ends(worker)
                return (*Roster.half_pushed(fact, seat), *self._close_round(fact.at))
            case AlarmRang(at=at):
                return self._close_round(at) if self.grace.rang(fact, self.version + 1) else ()
            case ParametersTaken():
                return ()
            case _:  # the roster has refused it
                raise AssertionError(fact)

    def _release(self, worker: int, why: Why) -> Release:
        self.computing[worker] = self.in_time[worker] = None
        return self.roster.release(worker, self.version, why)

    def _ends(self, worker: int) -> None:
        """The worker computes no more, at least for now."""
        self.computing.pop(worker, None)
        self.in_time.pop(worker, None)

    def _late(self, worker: int, step: int) -> tuple[Order, ...]:
        """Drop this worker's gradient, and have it begin again on the newest version, if its round is closed."""
        drop = self.roster.late(worker, step, self.version)
        return () if drop is None else (drop, self._release(worker, drop.why))

    def _close_round(self, at: float) -> tuple[Order, ...]:
        """Make the version if the round is over, or give the others time if it has just got enough gradients."""
        if not self.arrived or (self.computing and len(self.arrived) < self.enough):
            return ()
        if self.in_time and self.config.grace and self.grace.state != "over":
            return self._give_grace(at)
        contributions, waiting = mean_of(self.arrived), self._waiting()
        self.arrived, self.in_time = {}, {}
        self.grace.begin_round(at)
        self.version += 1
        why: Why = ("quorum", self.version, len(contributions))
        apply = ApplyUpdate(version=self.version, contributions=contributions, why=why)
        return (apply, *(self._release(worker, why) for worker in waiting))

    def _give_grace(self, at: float) -> tuple[Order, ...]:
        """Set the alarm that ends the round's time of grace, unless it is set. From then on workers wait for that."""
        if self.grace.state == "now":
            return ()
        number, got = self.version + 1, len(self.arrived)
        alarm = self.grace.begin(self.roster, number, got, self.config.grace, self.enough, at)
        return (alarm, *(Hold(worker=worker, why=self._missing()) for worker in self._waiting()))

    def _waiting(self) -> list[int]:
        """Return the workers that wait for the open round. Others have brought a gradient and left since."""
        seats = self.roster.seats
        return [worker for worker, step in sorted(self.arrived) if worker in seats and seats[worker].step == step]

    def _missing(self) -> Why:
        if self.grace.state == "now":
            return self.grace.why(self.version + 1, self.in_time)
        lacking = min(self.enough - len(self.arrived), len(self.computing))
        return ("quorum-open", self.version + 1, lacking, awaited_of(self.computing))


def enough(config: Config, workers: int) -> int:
    """Return how many gradients make a version where so many workers begin."""
    return config.m or max(1, workers - 1)


def misfit(config: Config, hosts: Sequence[str]) -> str:
    """Why this config can't train with one worker on each of these hosts; empty if it can."""
    if config.m is None or config.m <= len(hosts):
        return ""
    return f"quorum: m is {config.m} workers, and there are {len(hosts)}; choose m={len(hosts)} or less"


SPEC = Spec(
    name="quorum",
    title="A quorum, with backup workers",
    does="the first m gradients make a version; those that come later are dropped",
    paper="Chen, Pan, Monga, Bengio, Jozefowicz, Revisiting Distributed Synchronous SGD, 2016",
    config=Config,
    machine=Machine,
    rounds=False,
    gradients=enough,
    invariants={
        "workers that compute or push are those that may still bring a gradient": lambda machine: (
            sorted(machine.computing)
            == sorted(
                worker
                for worker, seat in machine.roster.seats.items()
                if seat.phase in ("computing", "ready", "pushing")
            )
        ),
        "who waits has brought a gradient of the open round": lambda machine: all(
            (worker, seat.step) in machine.arrived
            for worker, seat in machine.roster.seats.items()
            if seat.phase == "arrived"
        ),
        "a round with enough gradients is open only in its time of grace": lambda machine: fits(
            machine.grace, machine.roster, machine.version + 1, enough=len(machine.arrived) >= machine.enough
        ),
        "a worker that may be in time computes on the newest version": lambda machine: (
            sorted(machine.in_time)
            == sorted(one for one in machine.computing if machine.roster.seats[one].version == machine.version)
        ),
    },
    misfit=misfit,
    reasons={
        **REASONS,
        **OF_GRACE,
        "quorum": "version {0} has enough gradients: {1}",
        "quorum-open": "version {0} waits for {1} of {2:workers}",
    },
)
