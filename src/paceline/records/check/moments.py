"""When things happened according to the facts. The other tables' times are compared with these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReduceFinished,
    TrainingBegan,
    UpdateArrived,
    WorkerLeft,
)
from paceline.core.orders import Order, Reduce, Release, StartPull, StartPush


@dataclass(slots=True)
class Stay:
    """One worker, from its coming to its leaving."""

    steps: list[int] = field(default_factory=list)
    """Its steps whose gradients were ready, in order."""
    left: float | None = None
    """None: the worker was still here after the last fact."""


@dataclass(slots=True)
class Moments:
    """Seconds since the run's start."""

    began: float | None = None
    last: float = 0.0
    """The last fact's moment."""
    released: dict[tuple[int, int], float] = field(default_factory=dict)
    """By (worker, step)."""
    ready: dict[tuple[int, int], float] = field(default_factory=dict)
    """The same for gradients."""
    stays: dict[int, list[Stay]] = field(default_factory=dict)
    """By worker."""
    came: dict[tuple[int, str, int], list[float]] = field(default_factory=dict)
    """By (worker, "push" or "pull", the step or the version): when its transfer had ended."""
    ordered: dict[tuple[int, str, int], list[float]] = field(default_factory=dict)
    """The same keys: when the transfer was ordered."""
    reduced: dict[int, tuple[tuple[int, ...], float]] = field(default_factory=dict)
    """By group: its members, and when its average was ordered."""
    averaged: dict[int, float] = field(default_factory=dict)
    """By group: when it had averaged."""
    failed: dict[int, None] = field(default_factory=dict)
    """Groups whose average failed."""

    def note(self, fact: Fact, orders: Sequence[Order]) -> None:
        """A fact, and the orders that followed from it."""
        self.last = fact.at
        match fact:
            case TrainingBegan():
                self.began = fact.at
            case GradientReady(worker=worker, step=step):
                self.ready[worker, step] = fact.at
                self._stay(worker).steps.append(step)
            case WorkerLeft(worker=worker):
                self._stay(worker).left = fact.at
            case UpdateArrived(worker=worker, step=step):
                self.came.setdefault((worker, "push", step), []).append(fact.at)
            case ParametersTaken(worker=worker, version=version):
                self.came.setdefault((worker, "pull", version), []).append(fact.at)
            case ReduceFinished(group=group):
                self.averaged[group] = fact.at
            case ReduceFailed(group=group):
                self.failed[group] = None
        for order in orders:
            match order:
                case Release(worker=worker, step=step):
                    self.released[worker, step] = fact.at
                    if order.parameters == "pull":
                        self._order((worker, "pull", order.version), fact.at)
                case StartPull(worker=worker, version=version):
                    self._order((worker, "pull", version), fact.at)
                case StartPush(worker=worker, step=step):
                    self._order((worker, "push", step), fact.at)
                case Reduce(group=group, members=members):
                    self.reduced[group] = members, fact.at

    def leaves_after(self, worker: int, at: float) -> float:
        """When this worker left next; infinity if it did not."""
        times = [stay.left for stay in self.stays.get(worker, ()) if stay.left is not None and stay.left >= at]
        return min(times, default=float("inf"))

    def _order(self, key: tuple[int, str, int], at: float) -> None:
        self.ordered.setdefault(key, []).append(at)

    def _stay(self, worker: int) -> Stay:
        stays = self.stays.setdefault(worker, [])
        if not stays or stays[-1].left is not None:
            stays.append(Stay())
        return stays[-1]
