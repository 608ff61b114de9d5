"""The machines against their obvious twins, and against each other where they must coincide."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from protocols.twins import Asp, Bsp, Ssp, Twin
from support.walk import World, wander

from paceline.core.choice import choose
from paceline.core.facts import Fact
from paceline.core.orders import ApplyUpdate, Order, Release
from paceline.protocols import registry

TWINS: dict[str, Callable[[], Twin]] = {
    "bsp": Bsp,
    "asp": Asp,
    "ssp:bound=0": lambda: Ssp(bound=0),
    "ssp:bound=1": lambda: Ssp(bound=1),
    "ssp:bound=3": lambda: Ssp(bound=3),
}

History = list[tuple[Fact, tuple[Order, ...]]]


def history(text: str, seed: int, **settings: int) -> History:
    """What happened to that protocol's machine in a random world, from the beginning."""
    chance = random.Random(f"{text} {seed}")
    sizes = {"workers": chance.randrange(1, 6), "steps": chance.randrange(1, 7), **settings}
    turmoil = {"departures": chance.randrange(4), "joins": chance.randrange(4)}
    world = World.begin(choose(text, registry()), **sizes, **turmoil, version=chance.randrange(3))
    return list(wander(world, chance))


def compare(text: str, seeds: range) -> None:
    for seed in seeds:
        twin = TWINS[text]()
        chance = random.Random(f"{text} {seed}")
        world = World.begin(
            choose(text, registry()),
            workers=chance.randrange(1, 6),
            steps=chance.randrange(1, 7),
            departures=chance.randrange(4),
            joins=chance.randrange(4),
            machine=_Beside(choose(text, registry()).machine(), twin, seed),
        )
        for _ in wander(world, chance):
            pass
