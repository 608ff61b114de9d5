"""The machines against their obvious twins, and against each other where they must coincide."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from paceline.core.choice import choose
from paceline.core.machine import Machine
from paceline.core.orders import ApplyUpdate, Order, Release, StartPush
from paceline.protocols import registry
from protocols.twins import Asp, Bsp, Ssp, Twin
from support.walk import World, history, wander

TWINS: dict[str, Callable[[], Twin]] = {
    "bsp": Bsp,
    "asp": Asp,
    "ssp:bound=0": lambda: Ssp(bound=0),
    "ssp:bound=1": lambda: Ssp(bound=1),
    "ssp:bound=3": lambda: Ssp(bound=3),
}


def fresh(text: str) -> Machine:
    return choose(text, registry()).machine()


def compare(text: str, seeds: range) -> None:
    for seed in seeds:
        twin = TWINS[text]()
        for number, (fact, orders) in enumerate(history(choose(text, registry()), seed), start=1):
            expected = twin.handle(fact)
            assert orders == expected, f"history {seed}, fact {number}: {fact}"


@pytest.mark.parametrize("text", TWINS)
def test_the_machine_answers_as_its_obvious_twin(text: str) -> None:
    compare(text, range(100))


@pytest.mark.long
@pytest.mark.parametrize("text", TWINS)
def test_the_machine_answers_as_its_obvious_twin_in_thousands_of_histories(text: str) -> None:
    compare(text, range(100, 5_000))


def test_ssp_without_a_bound_is_asp() -> None:
    """The same facts cause the same versions and the same releases."""
    for seed in range(100):
        unbounded = fresh("ssp:bound=1000000000")
        for fact, orders in history(choose("asp", registry()), seed):
            assert unbounded.handle(fact) == orders, f"history {seed}: {fact}"


@pytest.mark.parametrize("text", TWINS)
def test_one_worker_under_any_protocol_is_plain_training(text: str) -> None:
    """Step k is computed on version k and makes version k + 1 alone, at full weight; nothing waits."""
    world = World.of(choose(text, registry()), workers=1, steps=10)
    orders = [order for _, orders in wander(world, random.Random(0)) for order in orders]
    expected: list[Order] = [Release(worker=0, step=0, version=0)]
    for step in range(10):
        expected += [
            StartPush(worker=0, step=step),
            ApplyUpdate(version=step + 1, contributions=((0, step, 1.0),)),
            Release(worker=0, step=step + 1, version=step + 1),
        ]
    assert orders == expected
