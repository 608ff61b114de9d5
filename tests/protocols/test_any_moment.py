"""A join, a departure and a return at every point of random histories; and what is compared there to the letter."""

from __future__ import annotations

import json
import random
from typing import Literal

import pytest

from paceline.core.choice import Choice, choose
from paceline.core.facts import TrainingBegan
from paceline.core.orders import Order
from paceline.core.state import restored, to_plain
from paceline.protocols import registry
from protocols.test_conformance import CHOICES as WITH_SETTINGS
from support.seeds import each_seed
from support.tables import joined, left
from support.walk import World, history, wander

CHOICES = [choose(text, registry()) for text in [*registry(), "ssp:bound=0"]]
"""Every protocol; and the bound at which workers are held all the time."""

NEWCOMER = 50

TOLD = {
    "parameter-server": ("WorkerJoined", "ParametersTaken", "UpdateArrived"),
    "decentralized": ("WorkerJoined", "ReplicaCopied", "ReduceFinished", "ReduceFailed"),
}
"""What only that family's histories hold."""


Story = list[tuple[Literal["leaves", "comes"], int]]


def changes(world: World) -> list[Story]:
    """A worker comes; or one of those here leaves, for good, or to come back at once, or does that twice.

    Or all leave, and one of them is back then, or a newcomer: the only worker.
    """
    here = list(world.here)
    all_leave: Story = [("leaves", worker) for worker in here]
    stories: list[Story] = [[("comes", NEWCOMER)], [*all_leave, ("comes", NEWCOMER)]]
    for worker in here:
        there_and_back: Story = [("leaves", worker), ("comes", worker)]
        stories += [there_and_back[:1], there_and_back, 2 * there_and_back, [*all_leave, ("comes", worker)]]
    return stories


def survives(choice: Choice, seed: int, steps: int) -> None:
    """The world fails for whoever is stuck then, and for what is lost or applied twice."""
    first = {} if seed == 0 else {0: 3, 2: 1}
    world = World.of(choice, workers=3, steps=steps, version=2 * seed, first=first)
    for _ in wander(world, random.Random(seed)):
        for story in changes(world):
            changed = world.fork()
            changed.departures = changed.joins = len(story)
            for what, worker in story:
                number = changed.gone.get(worker, -1) + 1
                changed.deliver(joined(worker, number, at=world.now) if what == "comes" else left(worker, at=world.now))
            changed.departures = changed.joins = 0
            for _ in wander(changed, random.Random(seed)):
                pass
            assert not changed.unsettled


@pytest.mark.parametrize("choice", WITH_SETTINGS, ids=str)
@each_seed(range(2))
def test_a_join_a_departure_and_a_return_are_survived(choice: Choice, seed: int) -> None:
    survives(choice, seed, steps=2)


@pytest.mark.long
@pytest.mark.parametrize("choice", WITH_SETTINGS, ids=str)
@each_seed(range(5))
def test_so_they_are_in_longer_histories(choice: Choice, seed: int) -> None:
    survives(choice, seed, steps=4)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@each_seed(range(10))
def test_a_machine_restored_at_every_point_gives_the_same_orders_for_the_same_reasons(
    choice: Choice, seed: int
) -> None:
    machine = choice.machine()
    for fact, orders in history(choice, seed):
        state = json.dumps(to_plain(machine), allow_nan=False)
        machine = restored(choice.machine(), json.loads(state))
        assert json.dumps(to_plain(machine)) == state  # dictionaries in their order
        assert _reasoned(machine.handle(fact)) == _reasoned(orders)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_histories_begin_with_training_and_hold_joins_and_departures(choice: Choice) -> None:
    """What the other tests rest on: that the histories are not empty of what they are to try."""
    facts = [fact for seed in range(30) for fact, _ in history(choice, seed)]
    kinds = {type(fact).__name__ for fact in facts}
    assert isinstance(facts[0], TrainingBegan)
    assert {"WorkerLeft", "StepDeclined", *TOLD[choice.spec.family]} <= kinds


def _reasoned(orders: tuple[Order, ...]) -> list[tuple[Order, object]]:
    """Orders that differ also when only their reasons do."""
    return [(order, order.why) for order in orders]
