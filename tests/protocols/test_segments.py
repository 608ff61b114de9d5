"""A run that is cut anywhere and resumed: a fresh machine goes on where the one before was, and nothing is lost."""

from __future__ import annotations

import random

import msgspec
import pytest

from paceline.core.choice import Choice, choose
from paceline.core.facts import TrainingBegan
from paceline.core.orders import Reduce, SwitchProtocol
from paceline.protocols import registry
from protocols.test_conformance import LARGE
from protocols.test_conformance import world as begun
from support.seeds import each_seed
from support.tables import began
from support.walk import World, walk, wander

REMEMBER = {name for name, spec in registry().items() if spec.memory is not None}


def cut_anywhere(choice: Choice, seed: int) -> None:
    """After each fact of a random history another segment begins, and comes to its end."""
    world, chance = begun(choice, seed)
    for _ in wander(world, chance):
        following = world.resumed(steps=2)
        following.departures = following.joins = 1
        for _ in wander(following, chance):
            pass
        assert not following.unsettled
        assert following.version >= world.version


@pytest.mark.parametrize("choice", LARGE, ids=str)
@each_seed(range(2))
def test_a_run_that_is_cut_anywhere_comes_to_its_end_in_the_next_segment(choice: Choice, seed: int) -> None:
    cut_anywhere(choice, seed)


@pytest.mark.long
@pytest.mark.parametrize("choice", LARGE, ids=str)
@each_seed(range(2, 10))
def test_more_runs_that_are_cut_anywhere_come_to_their_end(choice: Choice, seed: int) -> None:
    cut_anywhere(choice, seed)


@pytest.mark.parametrize("choice", LARGE, ids=str)
def test_any_version_and_any_step_numbers_are_a_beginning(choice: Choice) -> None:
    """A single step of each worker, in every reachable state."""
    assert walk(choice, workers=2, steps=1, departures=1, version=7, first={0: 5, 1: 2}, done=30) > 10


@pytest.mark.parametrize("choice", LARGE, ids=str)
def test_the_first_orders_of_a_segment_have_its_version_and_step_numbers(choice: Choice) -> None:
    world = World.of(choice, workers=3, steps=1, version=7, first={0: 5, 2: 9})
    _, orders = next(wander(world, random.Random(0)))
    released = {order.worker: (order.step, order.version) for order in orders if type(order).__name__ == "Release"}
    version = 7 if choice.part(choice.begins).spec.state == "store" else 0
    assert released == {0: (5, version), 1: (0, version), 2: (9, version)}


@pytest.mark.parametrize("name", registry())
def test_what_a_machine_remembers_is_the_same_after_the_ledger_had_it(name: str) -> None:
    world = World.of(choose(name, registry()), workers=3, steps=4)
    for _ in wander(world, random.Random(0)):
        memory = None if world.spec.memory is None else world.spec.memory(world.machine)
        fact = TrainingBegan(members=((0, "host", 1),), version=1, at=0.5, done=3, memory=memory)
        assert msgspec.json.decode(msgspec.json.encode(fact), type=TrainingBegan) == fact


def test_a_beginning_of_an_older_ledger_is_that_of_a_first_segment() -> None:
    line = b'{"members":[[0,"host",0]],"version":0,"at":0.0,"work":10,"seed":0}'
    fact = msgspec.json.decode(line, type=TrainingBegan)
    assert (fact.done, fact.memory) == (0, None)


def test_replicas_and_sync_switch_remember_and_no_protocol_that_can_be_a_part_does() -> None:
    replicas = {name for name, spec in registry().items() if spec.state == "replicas"}
    assert {*replicas, "sync-switch"} == REMEMBER


@pytest.mark.parametrize("name", ["ad-psgd:topology=bipartite-complete", "ripples:schedule=random", "all-reduce"])
def test_the_groups_of_a_segment_have_numbers_of_their_own(name: str) -> None:
    """The world refuses a group number that is used."""
    world = World.of(choose(name, registry()), workers=4, steps=3)
    numbers: list[int] = []
    for _ in range(3):
        for _, orders in wander(world, random.Random(0)):
            numbers += [order.group for order in orders if isinstance(order, Reduce)]
        world = world.resumed(steps=3)
    assert len(numbers) > 6
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("name", ["ad-psgd:topology=bipartite-complete", "ripples"])
def test_a_segment_does_not_repeat_the_draws_of_the_one_before(name: str) -> None:
    machine = choose(name, registry()).machine()
    world = World.of(choose(name, registry()), workers=6, steps=6)
    for _ in wander(world, random.Random(0)):
        pass
    lots = world.machine.lots.state  # type: ignore[attr-defined]
    assert lots != 0
    machine.handle(TrainingBegan(members=(), version=0, at=0.0, memory=world.spec.memory(world.machine)))  # type: ignore[misc]
    assert machine.lots.state == lots  # type: ignore[attr-defined]


def test_a_phase_of_sync_switch_whose_end_had_begun_is_over() -> None:
    world = World.of(choose("sync-switch:switch_at=0.5,first=asp,then=bsp", registry()), workers=3, steps=8, work=24)
    for _ in wander(world, random.Random(1), turmoil=0.0):
        machine = world.machine
        if machine.draining is not None:  # type: ignore[attr-defined]
            break
    else:
        raise AssertionError("no phase took a while to end")
    memory = world.spec.memory(machine)  # type: ignore[misc]
    assert (memory["active"], memory["ramped"]) == ("then", 0)
    resumed = world.choice.machine()
    orders = resumed.handle(began(0, 1, 2, version=3, work=24, memory=memory))
    assert [order.to for order in orders if isinstance(order, SwitchProtocol)] == ["bsp"]


@pytest.mark.parametrize(("state", "to"), [("first", []), ("then", ["bsp"])])
def test_the_first_part_comes_back_with_a_switch_if_the_state_is_where_the_second_one_had_it(
    state: str, to: list[str]
) -> None:
    memory = {"active": "first", "state": state, "company": 2, "done": 8, "planned": True, "ramped": None}
    orders = choose("sync-switch:switch_at=0.75", registry()).machine().handle(began(0, 1, work=80, memory=memory))
    assert [order.to for order in orders if isinstance(order, SwitchProtocol)] == to


@pytest.mark.parametrize("active", ["first", "then"])
def test_a_segment_of_sync_switch_in_which_nothing_happens_remembers_what_the_one_before_did(active: str) -> None:
    ramped = None if active == "first" else 7
    memory = {
        "active": active,
        "state": active,
        "company": 4,
        "done": 40,
        "planned": active == "first",
        "ramped": ramped,
        "version": 20,
        "groups": 0,
    }
    machine = choose("sync-switch:switch_at=0.75", registry()).machine()
    machine.handle(began(0, 1, work=80, memory=memory))
    assert registry()["sync-switch"].memory(machine) == memory  # type: ignore[misc]
