"""A protocol in the simulator's virtual time: all that its machine is told there, and all that it orders."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

from paceline.core.choice import choose
from paceline.core.drive import drive
from paceline.core.facts import Fact
from paceline.core.orders import ApplyUpdate, Order, Release, SwitchProtocol
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import NoLedger
from paceline.scenario.scenario import Scenario
from paceline.sim.simulate import Simulation, training_of, world_of
from paceline.sim.world import Limit

T = TypeVar("T")


@dataclass
class Played:
    """What has happened."""

    machine: Any
    story: list[tuple[Fact, Order]]
    """Each order, with the fact that caused it."""
    seconds: float

    def orders(self, kind: type[T]) -> list[tuple[float, T]]:
        """The orders of that kind, each with the second it was given at."""
        return [(fact.at, order) for fact, order in self.story if isinstance(order, kind)]

    def period(self, workers: int) -> float:
        """Seconds in which each worker has an update applied, on average, once the first fifth is over."""
        at = [second for second, order in self.orders(ApplyUpdate) for _ in order.contributions]
        first = len(at) // 5 // workers * workers + workers - 1
        return (at[-1] - at[first]) / (len(at) - 1 - first) * workers

    def computed_on(self) -> dict[tuple[int, int], int]:
        """By worker and step: the version it was computed on."""
        return {(order.worker, order.step): order.version for _, order in self.orders(Release)}

    def ages(self) -> list[int]:
        """Of each applied update, the versions between the one it was computed on and the one before its own."""
        on = self.computed_on()
        return [
            order.version - 1 - on[worker, step]
            for _, order in self.orders(ApplyUpdate)
            for worker, step, _ in order.contributions
        ]

    def switches(self) -> list[tuple[str, str, float]]:
        """Each switch: to what, its reason's code, and when."""
        return [(order.to, str(order.why[0]), at) for at, order in self.orders(SwitchProtocol)]


def played(protocol: str, scenario: Scenario, workers: int, *, batch: int | None = None, **limits: Any) -> Played:
    """Play it to a limit of `seconds`, `steps` or `versions`, or to the end of `data`, which is counted in steps."""
    choice = choose(protocol, registry())
    data = limits.pop("data", None)
    simulation = Simulation(
        choice=choice, scenario=scenario, workers=workers, limit=Limit(**limits), batch=batch, data=data
    )
    simulation.check()
    machine, story = choice.machine(), list[tuple[Fact, Order]]()
    journal = Journal(NoLedger())

    def record(fact: Fact, orders: tuple[Order, ...]) -> None:
        journal.record(fact, orders)
        story.extend((fact, order) for order in orders)

    world = world_of(simulation, training_of(simulation), journal)
    drive(machine, world.facts(), world.carry_out, record)
    assert math.isfinite(world.now)
    return Played(machine, story, world.now)
