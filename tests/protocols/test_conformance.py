"""What every registered protocol must keep. The registry enrols them; a new one is tested by its file alone."""

from __future__ import annotations

import json
import random
import re

import pytest

from paceline.core.choice import Choice, choose, declared
from paceline.core.orders import ApplyUpdate, Reduce, StepReplica
from paceline.protocols import registry
from support.plain_state import restored, to_plain
from support.seeds import each_seed
from support.walk import World, walk, wander

VARIANTS = {
    "ad-psgd": ("topology=bipartite-complete", "overlap=false"),
    "async-diloco": ("every=1", "every=2,local=equal"),
    "balanced": ("batches=7,every=1", "protocol=all-reduce,every=1", "protocol=quorum,batches=5,every=1"),
    "diloco": ("every=2,overlap=1", "every=2,quorum=1,grace=1", "every=2,quorum=2"),
    "dssp": ("lower=0,upper=2", "lower=0,upper=2,cap=false,counting=literal"),
    "hsp": (
        "idle=none,broadcast=all",
        "idle=guarded,stale=next,broadcast=all",
        "idle=none,order=rank",
        "idle=always,order=rank,stale=next,broadcast=all",
        "idle=always,order=rank,stale=accumulate,broadcast=all",
        "idle=always,order=rank,stale=discard,broadcast=all",
    ),
    "ps-plus": ("gate=0", "pull=after-push", "pull=after-push,gate=0", "pull=after-push,modulation=progress,gate=1"),
    "quorum": ("m=1", "m=3", "m=2,grace=auto", "m=1,grace=1"),
    "rennala": ("batch=2", "batch=5"),
    "ringmaster": ("max_delay=1", "max_delay=2"),
    "ripples": (
        "schedule=static",
        "schedule=random",
        "group_size=2,section_length=2",
        "threshold=none",
        "threshold=1,slow_asker=once",
    ),
    "local-sgd": ("every=1", "every=2"),
    "ssp": ("bound=0", "bound=1"),
    "sync-switch": (
        "first=ssp:bound=0,then=bsp,switch_at=0.5",
        "switch_at=0.5,stragglers=greedy,window=2,consecutive=1,min_gap=0.0",
        "switch_at=0.8,stragglers=elastic,window=2,consecutive=1,min_gap=0.0",
        "switch_at=0.4,count=rounds,momentum=ramp",
        "first=bsp,then=ad-psgd,switch_at=0.5",
        "first=all-reduce,then=asp,switch_at=0.5",
        "first=ripples,then=all-reduce,switch_at=0.5",
    ),
}
"""Parameters worth walking beside the defaults."""

CHOICES = [
    choose(text, registry())
    for name in registry()
    for text in (name, *(f"{name}:{settings}" for settings in VARIANTS.get(name, ())))
]


SAME = ["ssp", "dssp", "ringmaster", "rennala:batch=2", "rennala:batch=5", "local-sgd", "diloco", "async-diloco"]
SAME += ["ad-psgd:topology=bipartite-complete", "ps-plus:pull=after-push"]
SAME = [str(choose(text, registry())) for text in SAME]
VAST = [str(choose("ps-plus", registry()))]
"""Three workers with a push and a pull on their way at once have too many states: `test_ps_plus` walks two."""

LARGE = [choice for choice in CHOICES if str(choice) not in VAST]
WALKED = [choice for choice in LARGE if str(choice) not in SAME]
"""All but those whose bound, or whose round's end, no walk of a few steps can reach, the topology that is the ring
among three, and the pull that is walked with two gates."""

MANY = [
    "ad-psgd",
    *(f"hsp:idle=always,order=rank,broadcast=all,stale={stale}" for stale in ("next", "accumulate", "discard")),
]
MANY += ["quorum:m=1,grace=1", "diloco:every=2,quorum=1,grace=1"]
MANY += ["ps-plus:gate=0", "ps-plus:pull=after-push,modulation=progress,gate=1"]
MANY = [str(choose(text, registry())) for text in MANY]
"""Those with so many states that by default two walks stand for one: of fewer steps, and of fewer workers."""


def world(choice: Choice, seed: int) -> tuple[World, random.Random]:
    """A random company in which workers die, join and pause."""
    chance = random.Random(f"{choice} {seed}")
    workers, steps = chance.randrange(1, 6), chance.randrange(1, 8)
    return World.of(choice, workers, steps, departures=3, joins=3, pauses=3, work=chance.randrange(60)), chance


@pytest.mark.parametrize("choice", WALKED, ids=str)
def test_in_every_reachable_state_nobody_is_stuck_and_no_update_is_lost_or_applied_twice(choice: Choice) -> None:
    if str(choice) in MANY:
        assert walk(choice, workers=3, steps=1, departures=1) > 100
        assert walk(choice, workers=2, steps=2, departures=1) > 100
    else:
        assert walk(choice, workers=3, steps=2, departures=1) > 100


@pytest.mark.long
@pytest.mark.parametrize("choice", [choice for choice in WALKED if str(choice) in MANY], ids=str)
def test_the_same_where_there_are_many_states(choice: Choice) -> None:
    assert walk(choice, workers=3, steps=2, departures=1) > 1000
    assert walk(choice, workers=2, steps=1, departures=1, joins=1) > 100


@pytest.mark.parametrize("choice", WALKED, ids=str)
def test_it_survives_a_join_and_a_departure_in_every_reachable_state(choice: Choice) -> None:
    """A single step of each; larger ones are in the long suite. Where there are far more states, one worker begins."""
    workers = 1 if choice.spec.state == "replicas" or str(choice) in MANY else 2
    assert walk(choice, workers, steps=1, departures=1, joins=1) > 25


@pytest.mark.parametrize("choice", WALKED, ids=str)
def test_a_worker_that_pauses_at_any_time_and_resumes_at_any_time_is_not_lost(choice: Choice) -> None:
    """Two pauses of two workers: both may be paused at once."""
    assert walk(choice, workers=2, steps=1 if str(choice) in MANY else 2, pauses=2) > 50


@pytest.mark.long
@pytest.mark.parametrize("choice", LARGE, ids=str)
@pytest.mark.parametrize(
    ("workers", "steps", "changes"),
    [
        (3, 1, {"pauses": 2}),
        (2, 2, {"pauses": 2}),
        (2, 1, {"pauses": 2, "departures": 1, "pulls": True}),
        (1, 1, {"pauses": 1, "departures": 1, "joins": 1}),
        (3, 3, {"departures": 1, "pulls": True}),
        (2, 2, {"departures": 1, "joins": 1, "pulls": True}),
    ],
)
def test_the_same_in_larger_companies_where_workers_come_and_go_and_the_end_of_every_pull_is_told(
    choice: Choice, workers: int, steps: int, changes: dict[str, int]
) -> None:
    if "joins" in changes and choice.spec.state == "replicas":
        steps = 1
    assert walk(choice, workers, steps, **changes) > 50  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@each_seed(range(30))
def test_a_random_history_with_deaths_joins_and_pauses_comes_to_its_end(choice: Choice, seed: int) -> None:
    begun, chance = world(choice, seed)
    assert len(list(wander(begun, chance, turmoil=0.1))) > 0
    assert not begun.unsettled


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@each_seed(range(10))
def test_a_machine_restored_at_every_point_gives_the_same_orders_for_the_same_reasons(
    choice: Choice, seed: int
) -> None:
    begun, chance = world(choice, seed)
    machine = choice.machine()
    for fact, orders in wander(begun, chance):
        state = json.dumps(to_plain(machine), allow_nan=False)
        machine = restored(choice.machine(), json.loads(state))
        assert json.dumps(to_plain(machine)) == state  # dictionaries in their order
        answer = machine.handle(fact)
        assert [(order, order.why) for order in answer] == [(order, order.why) for order in orders]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_one_worker_alone_makes_a_version_of_each_step(choice: Choice) -> None:
    """Or of as many as the protocol is told to, and the last of those that are left."""
    alone = World.of(choice, 1, 5)
    orders = [order for _, orders in wander(alone, random.Random(0)) for order in orders]
    changes = [order for order in orders if isinstance(order, ApplyUpdate | StepReplica | Reduce)]
    states = {part.spec.state for part in (choice.parts or (choice,))}
    if states == {"replicas"} and not choice.parts:
        assert changes == [StepReplica(worker=0, step=step, version=step + 1) for step in range(5)]
    elif "replicas" in states:
        assert [one.step if isinstance(one, StepReplica) else one.contributions[0][1] for one in changes] == [*range(5)]
    else:
        every = getattr(choice.config, "every", 1) if choice.spec.local_steps else 1
        last = [*range(every - choice.fragments.overlap - 1, 5, every)]
        last += [4] if 4 not in last else []
        batch = getattr(choice.config, "batch", None) or 1
        made = [last[first : first + batch] for first in range(0, len(last), batch)]
        assert [(one.version, [step for _, step, _ in one.contributions]) for one in changes] == [*enumerate(made, 1)]
        assert all(sum(weight for _, _, weight in one.contributions) == pytest.approx(1.0) for one in changes)


def test_a_code_of_a_reason_has_the_same_arguments_in_all_protocols_that_can_be_parts_of_one() -> None:
    """A protocol that is made of others looks its parts' reasons up in one table, by the state of each."""
    arguments: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for spec in registry().values():
        for code, sentence in () if spec.parts else spec.reasons.items():
            arguments.setdefault((spec.state, code), set()).add(tuple(re.findall(r"{.*?}", sentence)))
    assert {code for code, several in arguments.items() if len(several) > 1} == set()


@pytest.mark.parametrize("name", registry())
def test_a_protocol_has_a_card_that_can_be_shown(name: str) -> None:
    spec = registry()[name]
    assert spec.name == name
    assert spec.title
    assert spec.paper
    assert spec.invariants
    assert all(one.what for one in declared(spec.config).values()), "every parameter says what it means"
