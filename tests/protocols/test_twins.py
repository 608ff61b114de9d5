"""The machines against their obvious twins, and against each other where they must coincide."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from paceline.core.choice import choose
from paceline.core.facts import Fact
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Reduce, Release, StepReplica
from paceline.protocols import registry
from paceline.protocols.all_reduce import Config
from paceline.protocols.all_reduce import Machine as AllReduce
from protocols.twins import Asp, AsyncRounds, Bsp, Quorum, Rennala, Ringmaster, Rounds, Ssp, Twin
from support.seeds import each_seed
from support.tables import arrived, averaged, began, declined, left, ready
from support.walk import history

TWINS: dict[str, Callable[[], Twin]] = {
    "bsp": Bsp,
    "asp": Asp,
    "ssp:bound=0": lambda: Ssp(bound=0),
    "ssp:bound=1": lambda: Ssp(bound=1),
    "ssp:bound=3": lambda: Ssp(bound=3),
    "ringmaster:max_delay=1": lambda: Ringmaster(max_delay=1),
    "ringmaster:max_delay=3": lambda: Ringmaster(max_delay=3),
    "quorum:m=1": lambda: Quorum(m=1),
    "quorum:m=2": lambda: Quorum(m=2),
    "quorum:m=4": lambda: Quorum(m=4),
    "quorum:m=1,grace=1": lambda: Quorum(m=1, grace=1),
    "quorum:m=2,grace=1": lambda: Quorum(m=2, grace=1),
    "rennala:batch=2": lambda: Rennala(batch=2),
    "rennala:batch=4": lambda: Rennala(batch=4),
    "local-sgd:every=1": lambda: Rounds(every=1),
    "local-sgd:every=3": lambda: Rounds(every=3),
    "diloco:every=2": lambda: Rounds(every=2),
    "diloco:every=6,fragments=3": lambda: Rounds(every=2),
    "async-diloco:every=1": lambda: AsyncRounds(every=1),
    "async-diloco:every=4": lambda: AsyncRounds(every=4),
    "async-diloco:every=3,local=equal": lambda: AsyncRounds(every=3, by_speed=False),
}


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


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("ssp:bound=1000000000", "asp"),
        ("dssp:lower=1000000000,upper=1000000000", "asp"),
        ("ringmaster:max_delay=1000000000", "asp"),
        ("quorum:m=1000000000", "bsp"),
        ("quorum:m=1000000000,grace=1", "bsp"),
        ("rennala:batch=1", "ringmaster:max_delay=1"),
        ("async-diloco:every=1", "async-diloco:every=1,local=equal"),
        ("dssp:lower=0,upper=0", "ssp:bound=0"),
        ("dssp:lower=1,upper=1,cap=false,counting=literal", "ssp:bound=1"),
        ("sync-switch:switch_at=0,rescale=none", "asp"),
        ("sync-switch:switch_at=1,rescale=none", "bsp"),
    ],
)
def test_at_the_ends_of_its_parameters_a_protocol_gives_another_one_s_orders(text: str, plain: str) -> None:
    """Releases, holds and all."""
    for seed in range(100):
        machine = choose(text, registry()).machine()
        for fact, orders in history(choose(plain, registry()), seed):
            assert machine.handle(fact) == orders, f"history {seed}: {fact}"


@pytest.mark.parametrize("order", ["ready", "rank"])
def test_without_idle_computing_versions_and_releases_of_hsp_are_bsps(order: str) -> None:
    """So the weights are, too, bit for bit. What it orders besides are the turns of the transfers."""

    def but_turns(orders: tuple[Order, ...]) -> list[Order]:
        return [one for one in orders if isinstance(one, ApplyUpdate | Release | DropUpdate)]

    for seed in range(100):
        bsp = choose("bsp", registry()).machine()
        for fact, orders in history(choose(f"hsp:idle=none,broadcast=all,order={order}", registry()), seed):
            assert but_turns(bsp.handle(fact)) == but_turns(orders), f"history {seed}: {fact}"


@each_seed(range(50))
def test_all_reduce_makes_bsps_contributions_in_the_same_history(seed: int) -> None:
    """To the last bit, on the same versions; workers have more or less data, and may die computing."""
    chance = random.Random(seed)
    workers = range(chance.randrange(1, 6))
    ours, theirs = AllReduce(Config()), choose("bsp", registry()).machine()
    last = [chance.randrange(1, 8) for _ in workers]
    counted = chance.random() < 0.7
    computing = [(worker, 0, 0) for worker in workers]
    ours.handle(began(*workers))
    theirs.handle(began(*workers))
    rounds = 0
    while computing:
        worker, step, version = computing.pop(chance.randrange(len(computing)))
        facts: list[Fact] = [ready(worker, step, version, samples=chance.randrange(1, 9) if counted else None)]
        if step >= last[worker]:
            facts = [chance.choice([declined(worker, step), left(worker), left(worker, "finished")])]
        averaging = [order for fact in facts for order in ours.handle(fact)]
        made = [order.contributions for order in averaging if isinstance(order, Reduce)]
        made += [((order.worker, order.step, 1.0),) for order in averaging if isinstance(order, StepReplica)]
        following = [*averaging, *(order for _ in made for order in _end(ours))]
        if step < last[worker]:
            facts.append(arrived(worker, step))
        wanted = [order for fact in facts for order in theirs.handle(fact)]
        assert made == [order.contributions for order in wanted if isinstance(order, ApplyUpdate)]
        assert _releases(following) == _releases(wanted)
        computing += _releases(following)
        rounds += len(made)
    assert rounds == max(last)


def _end(machine: AllReduce) -> list[Order]:
    """The group that averages, if any, is through."""
    return [order for group in list(machine.replicas.groups) for order in machine.handle(averaged(group))]


def _releases(orders: list[Order]) -> list[tuple[int, int, int]]:
    return [(order.worker, order.step, order.version) for order in orders if isinstance(order, Release)]
