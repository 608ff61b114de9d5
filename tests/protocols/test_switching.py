"""A live switch from any protocol to any other, and back: nobody is stuck, nothing is lost.

This is of machines: what becomes of the optimizer's state is in `tests/runtime/test_switches.py`.
"""

from __future__ import annotations

import random
from itertools import product

import pytest

from paceline.core.choice import choose
from paceline.core.orders import ApplyUpdate, Order, SwitchProtocol
from paceline.protocols import registry, sync_switch
from support.walk import World, walk, wander

SIMPLE = [spec.name for spec in registry().values() if not spec.parts]
SPECIAL = [
    "local-sgd:every=3",
    "ssp:bound=0",
    "hsp:idle=always,stale=accumulate",
    "hsp:idle=always,order=rank,stale=discard",
    "quorum:m=1",
    "quorum:m=1,grace=1",
    "diloco:every=3,quorum=1",
    "rennala:batch=4",
    "ringmaster:max_delay=1",
]
IN_ROUNDS = [name for name in (*SIMPLE, *SPECIAL) if registry()[name.partition(":")[0]].rounds]
AMONG = ("bsp", "asp", "all-reduce")
"""What those with special parameters are switched from and to."""
PAIRS = [*product(SIMPLE, SIMPLE), *product(SPECIAL, AMONG), *product(AMONG, SPECIAL)]
POINTS = ("0.0", "0.2", "0.5", "0.9", "1.0")
FICKLE = "stragglers=greedy,window=2,consecutive=1,min_gap=0.0"
"""With random times there is a straggler now and then: there and back, over and over."""


def run(text: str, seed: int) -> list[Order]:
    """All orders of one random history with deaths, joins and pauses, to its end. The world checks every one."""
    chance = random.Random(f"{text} {seed}")
    workers, steps = chance.randrange(1, 6), chance.randrange(1, 12)
    world = World.of(choose(text, registry()), workers, steps, departures=2, joins=3, pauses=3)
    world.pulls = chance.random() < 0.7
    orders = [order for _, orders in wander(world, chance, turmoil=0.05) for order in orders]
    assert not world.unsettled
    return orders


@pytest.mark.parametrize(("first", "then"), PAIRS)
def test_from_any_protocol_to_any_other_every_run_comes_to_its_end(first: str, then: str) -> None:
    for seed, point in enumerate(POINTS):
        run(f"sync-switch:switch_at={point},first={first},then={then}", seed)


@pytest.mark.parametrize(("first", "then"), PAIRS)
def test_there_and_back_every_run_comes_to_its_end(first: str, then: str) -> None:
    for seed in range(4):
        run(f"sync-switch:{FICKLE},switch_at=0.8,first={first},then={then}", seed)


@pytest.mark.parametrize("first", IN_ROUNDS)
def test_with_workers_sent_out_and_taken_back_every_run_comes_to_its_end(first: str) -> None:
    for seed in range(20):
        policy = FICKLE.replace("greedy", "elastic")
        run(f"sync-switch:{policy},switch_at={POINTS[seed % 5]},first={first},then=asp", seed)


def test_those_runs_switch_there_and_back_and_versions_go_on() -> None:
    """What the tests above rest on."""
    ways: dict[tuple[str, str], int] = {}
    for seed in range(60):
        orders = run(f"sync-switch:{FICKLE},switch_at=0.8,first=bsp,then=ssp:bound=1", seed)
        made = [order.version for order in orders if isinstance(order, ApplyUpdate)]
        assert made == list(range(1, len(made) + 1))
        for order in orders:
            if isinstance(order, SwitchProtocol):
                way = (order.to, str(order.why[0]))
                ways[way] = ways.get(way, 0) + 1
    assert set(ways) == {("ssp", "planned"), ("ssp", "straggler"), ("bsp", "recovered")}
    assert min(ways.values()) > 5


@pytest.mark.parametrize(
    ("policy", "first", "workers", "joins"),
    [
        pytest.param("greedy", "bsp", 3, 0, marks=pytest.mark.long),
        pytest.param("greedy", "bsp", 2, 1, marks=pytest.mark.long),
        ("elastic", "bsp", 3, 0),
        ("elastic", "bsp", 2, 1),
        pytest.param("elastic", "local-sgd:every=2", 2, 1, marks=pytest.mark.long),
    ],
)
def test_every_straggler_policy_holds_in_every_reachable_state(
    policy: str, first: str, workers: int, joins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Walks know no time. Here worker 0 is slow at every fourth version, and worker 1 at the two that follow."""
    monkeypatch.setattr(sync_switch.Machine, "_speeds", _by_version)
    monkeypatch.setattr(sync_switch, "slow", lambda speeds, _: [one for one, speed in speeds.items() if speed == 0])
    choice = choose(f"sync-switch:stragglers={policy},consecutive=1,switch_at=0.8,first={first}", registry())
    assert walk(choice, workers, steps=2, departures=1, joins=joins) > 100


def _by_version(machine: sync_switch.Machine) -> dict[int, float]:
    slow = {1: machine.version % 4 in (1, 2), 0: machine.version % 4 == 0}
    return {worker: 0.0 if slow.get(worker) else 1.0 for worker in machine.members}
