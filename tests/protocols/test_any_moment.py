"""A join, a departure, a return and a pause at every point of random histories."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from paceline.core.choice import Choice
from paceline.core.facts import Fact, StepDeclined
from protocols.test_conformance import CHOICES
from support.seeds import each_seed
from support.tables import joined, left, paused, resumed
from support.walk import World, wander

NEWCOMER = 50


Story = list[tuple[Literal["leaves", "comes", "pauses", "resumes"], int]]


def changes(world: World) -> list[Story]:
    """A worker comes; or one of those here leaves, for good, or to come back at once, or does that twice.

    Or all leave, and one of them is back then, or a newcomer: the only worker. Or a worker that can pauses, or all that
    can, to resume at once or at any time later. Or one of them leaves meanwhile.
    """
    here = list(world.here)
    all_leave: Story = [("leaves", worker) for worker in here]
    stories: list[Story] = [[("comes", NEWCOMER)], [*all_leave, ("comes", NEWCOMER)]]
    for worker in here:
        there_and_back: Story = [("leaves", worker), ("comes", worker)]
        stories += [there_and_back[:1], there_and_back, 2 * there_and_back, [*all_leave, ("comes", worker)]]
    able = [fact.worker for fact in world.pausing() if isinstance(fact, StepDeclined)]
    all_pause: Story = [("pauses", worker) for worker in able]
    all_resume: Story = [("resumes", worker) for worker in able]
    stories += [all_pause, [*all_pause, *all_resume], [*all_pause, *all_resume[::-1]]]
    for worker in able:
        pause: Story = [("pauses", worker)]
        stories += [pause, [*pause, ("resumes", worker)], [*pause, ("leaves", worker)]]
        stories += [[*all_pause, ("leaves", worker)], [*all_pause, ("resumes", worker), ("leaves", worker)]]
    return stories


def survives(choice: Choice, seed: int, steps: int) -> None:
    """The world fails for whoever is stuck then, and for what is lost or applied twice."""
    first = {} if seed == 0 else {0: 3, 2: 1}
    world = World.of(choice, workers=3, steps=steps, version=2 * seed, first=first)
    for _ in wander(world, random.Random(seed)):
        for story in changes(world):
            changed = world.fork()
            changed.departures = changed.joins = changed.pauses = len(story)
            for what, worker in story:
                changed.deliver(_fact(changed, what, worker))
            changed.departures = changed.joins = changed.pauses = 0
            for _ in wander(changed, random.Random(seed)):
                pass
            assert not changed.unsettled


def _fact(world: World, what: str, worker: int) -> Fact:
    match what:
        case "comes":
            return joined(worker, world.gone.get(worker, -1) + 1, at=world.now)
        case "leaves":
            return left(worker, at=world.now)
        case "pauses":
            return paused(worker, world.here[worker], at=world.now)
        case _:
            return resumed(worker, at=world.now)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@each_seed(range(2))
def test_a_join_a_departure_a_return_and_a_pause_are_survived(choice: Choice, seed: int) -> None:
    survives(choice, seed, steps=2)


@pytest.mark.long
@pytest.mark.parametrize("choice", CHOICES, ids=str)
@each_seed(range(5))
def test_so_they_are_in_longer_histories(choice: Choice, seed: int) -> None:
    survives(choice, seed, steps=4)
