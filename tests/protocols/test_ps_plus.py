"""PS+: the factor of a push, its page of numbers in virtual time, and what holds in random histories.

Its rules, one by one, are in `transcripts/ps-plus.txt`.
"""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise
from math import sqrt
from statistics import mean
from typing import Literal

import pytest

from paceline.core.choice import Choice, choose
from paceline.core.facts import WorkerLeft
from paceline.core.orders import ApplyUpdate, Release, StartPush
from paceline.protocols import registry
from paceline.protocols.ps_plus import Config
from paceline.scenario.scenario import Network, Scenario
from support.tables import arrived, began, push, ready, release, taken
from support.virtual_time import Played, played
from support.walk import World, history, walk, wander

Modulation = Literal["off", "inverse", "inverse1", "sqrt", "progress"]


# The scale of a push.


@pytest.mark.parametrize(
    ("modulation", "staleness", "scale"),
    [
        ("off", 0.0, 1.0),
        ("off", 50.0, 1.0),
        ("inverse", 0.0, 1.0),
        ("inverse", 1.0, 1.0),
        ("inverse", 1.25, 0.8),
        ("inverse", 4.0, 0.25),
        ("inverse", 10.0, 0.1),
        ("inverse", 50.0, 0.1),
        ("inverse1", 0.0, 1.0),
        ("inverse1", 1.0, 0.5),
        ("inverse1", 3.0, 0.25),
        ("inverse1", 50.0, 0.1),
        ("sqrt", 0.5, 1.0),
        ("sqrt", 1.0, 1.0),
        ("sqrt", 4.0, 0.5),
        ("sqrt", 2.0, 1 / sqrt(2)),
        ("sqrt", 400.0, 0.1),
    ],
)
def test_the_factor_of_each_modulation_by_staleness(modulation: Modulation, staleness: float, scale: float) -> None:
    for progress in (0.3, 1.0, 2.0):
        assert Config(modulation=modulation).factor(staleness, progress) == pytest.approx(scale, abs=1e-15)


@pytest.mark.parametrize(("progress", "scale"), [(0.0, 0.1), (0.05, 0.1), (0.5, 0.5), (1.0, 1.0), (3.0, 1.0)])
def test_the_factor_by_progress(progress: float, scale: float) -> None:
    for staleness in (0.0, 1.0, 9.0):
        assert Config(modulation="progress").factor(staleness, progress) == scale


@pytest.mark.parametrize(
    ("modulation", "scale"), [("inverse", 1 / 2), ("inverse1", 1 / 3), ("sqrt", 1 / sqrt(2)), ("progress", 1 / 2)]
)
def test_a_push_is_scaled_by_what_its_worker_knows_before_it(modulation: Modulation, scale: float) -> None:
    """Worker 1 has a gradient on version 0 and pulled version 4. It has made one of four steps of two workers."""
    machine = choose(f"ps-plus:pull=after-push,modulation={modulation}", registry()).machine()
    for fact in (
        *(began(0, 1), taken(0, 0), taken(0, 0), taken(1, 0), taken(1, 0)),
        *(ready(0, 0, 0), arrived(0, 0), taken(0, 1)),
        *(ready(0, 1, 0), arrived(0, 1), taken(0, 2)),
        *(ready(0, 2, 1), arrived(0, 2), taken(0, 3)),
        *(ready(1, 0, 0), arrived(1, 0), taken(1, 4)),
    ):
        machine.handle(fact)
    assert machine.handle(ready(1, 1, 0)) == (push(1, 1, scale), release(1, 2, 4, "eager"))


# Random histories: section 4 of the paper's page.

AFTER_PUSH = [
    choose(f"ps-plus:pull=after-push{settings}", registry())
    for settings in ("", ",gate=0", ",gate=2,modulation=progress")
]
FREELY = [choose(f"ps-plus:pull=free{settings}", registry()) for settings in ("", ",gate=1", ",gate=2,modulation=sqrt")]


@pytest.mark.parametrize("choice", [*AFTER_PUSH, *FREELY], ids=str)
def test_parameters_pulled_ahead_lack_the_worker_s_last_step_and_with_free_pulls_perhaps_the_one_before(
    choice: Choice,
) -> None:
    """Steps of the same incarnation. And each version is one update's, the scale of a push that of its staleness."""
    checked, lacked = 0, set()
    for seed in range(60):
        made: dict[tuple[int, int], int] = {}
        computed_on: dict[int, int] = {}
        first: dict[int, int] = {}
        company: set[int] = set()
        for fact, orders in history(choice, seed):
            if isinstance(fact, WorkerLeft):
                company.discard(fact.worker)
            for order in orders:
                match order:
                    case ApplyUpdate(version=version, contributions=((worker, step, weight),)):
                        assert weight == 1 / len(company)
                        made[worker, step] = version
                    case Release(worker=worker, step=step, version=version, parameters="pull"):
                        first[worker], computed_on[worker] = step, version
                        company.add(worker)
                    case StartPush(worker=worker, scale=scale):
                        pushed = (worker, scale, len(company))
                    case Release(worker=worker, step=step, version=version):
                        assert all(own in made for own in ((worker, one) for one in range(first[worker], step - 1)))
                        lacking = [own for own in range(first[worker], step) if made.get((worker, own), 99) > version]
                        assert lacking == list(range(step - len(lacking), step))
                        lacked.add(len(lacking))
                        staleness = version - computed_on[worker]
                        assert staleness >= 0
                        assert pushed[0] == worker
                        assert 0.1 <= pushed[1] <= 1
                        if choice in (AFTER_PUSH[0], FREELY[0]):
                            assert pushed[1] == pytest.approx(max(0.1, min(1.0, pushed[2] / max(staleness, 1))))
                        computed_on[worker] = version
                        checked += 1
    assert checked > 300
    assert lacked == ({1, 2} if choice in FREELY else {1})


@pytest.mark.parametrize("choice", [AFTER_PUSH[0], FREELY[0]], ids=str)
def test_one_worker_computes_on_exactly_what_plain_training_would(choice: Choice) -> None:
    """On numbers without rounding: the version released on, less the worker's own updates that it lacks, is plain
    training's."""
    for seed in range(20):
        store, versions, deltas, made = Fraction(5), {0: Fraction(5)}, {}, {}
        plain = [Fraction(5)]
        for _, orders in wander(World.of(choice, 1, 6), random.Random(seed)):
            for order in orders:
                match order:
                    case Release(step=step, version=version, parameters=parameters):
                        own = [deltas[one] for one in deltas if made.get(one, 99) > version]
                        assert bool(own) == (parameters == "eager")
                        here = versions[version] - sum(own)
                        assert here == plain[step]
                        deltas[step] = (here * here + 1) / 100
                        plain.append(plain[step] - deltas[step])
                    case StartPush(scale=scale):
                        assert scale == 1.0
                    case ApplyUpdate(version=version, contributions=((_, step, weight),)):
                        made[step] = version
                        store -= Fraction(weight) * deltas[step]
                        versions[version] = store
        assert store == plain[6]


def test_in_every_reachable_state_of_two_workers_free_pulls_keep_the_rules() -> None:
    """With every version told from the newest one. With a gate of 0 three are walked beside all other protocols."""
    assert walk(choose("ps-plus:pull=free", registry()), workers=2, steps=3, departures=1) > 1000
    assert walk(choose("ps-plus:pull=free", registry()), workers=2, steps=2, departures=1, pulls=True) > 1000
    assert walk(choose("ps-plus:pull=free", registry()), workers=1, steps=2, departures=1, joins=1) > 1000


@pytest.mark.long
def test_the_same_in_longer_walks_and_among_three() -> None:
    choice = choose("ps-plus:pull=free", registry())
    assert walk(choice, workers=2, steps=4, departures=2, pulls=True) > 4000
    assert walk(choice, workers=3, steps=2, departures=0) > 30_000


# Virtual time: section 5 of the paper's page.

WORKERS = 8


def play(text: str, comm: float, slow: float = 1.0, jitter: float = 0.058, updates: int = 4000) -> Played:
    """Links are never full: push and pull take comm / 2 each, a computation 1 more or less; on worker 0 `slow`."""
    speeds = {} if slow == 1.0 else {0: 1 / slow}
    scenario = Scenario(compute=1.0, jitter=jitter, speeds=speeds, network=Network(latency=comm / 2))
    return played(text, scenario, WORKERS, steps=updates)


def pulled_since(world: Played, worker: int) -> list[int]:
    """Of each step of that worker, but the first ones: versions from the one of the step before."""
    on = [order.version for _, order in world.orders(Release) if order.worker == worker]
    return [later - before for before, later in pairwise(on)][10:]


def scales(world: Played, worker: int) -> list[float]:
    return [order.scale for _, order in world.orders(StartPush) if order.worker == worker][10:]


@pytest.mark.parametrize(
    ("comm", "slow", "bsp", "asp", "ps_plus"),
    [(0.1, 1, 1.18, 1.10, 1.00), (0.5, 1, 1.58, 1.50, 1.00), (0.1, 3, 3.11, 1.20, 1.09), (0.5, 3, 3.51, 1.61, 1.09)],
)
def test_a_rounds_time_is_as_on_the_papers_page(
    comm: float, slow: float, bsp: float, asp: float, ps_plus: float
) -> None:
    for text, seconds in (("bsp", bsp), ("asp", asp), ("ps-plus:pull=after-push", ps_plus)):
        assert play(text, comm, slow, updates=1600).period(WORKERS) == pytest.approx(seconds, abs=0.02), text


@pytest.mark.parametrize("comm", [0.1, 1.5, 3.0])
def test_an_iteration_takes_as_long_as_the_longest_of_what_goes_on_at_once(comm: float) -> None:
    """Computation and exchange; with free pulls, push and pull of the exchange go on at once, too."""
    after_push, free = (play(f"ps-plus:pull={pull}", comm, jitter=0.0, updates=800) for pull in ("after-push", "free"))
    assert after_push.period(WORKERS) == pytest.approx(max(1.0, comm), abs=0.02)
    assert free.period(WORKERS) == pytest.approx(max(1.0, comm / 2), abs=0.02)


def test_a_straggler_delays_nobody_s_free_pull() -> None:
    world = play("ps-plus:pull=free", 1.5, slow=3, updates=1600)
    assert world.period(WORKERS) == pytest.approx(8 / (7 + 1 / 3), abs=0.02)


def test_workers_alike_are_a_round_apart_and_hardly_scaled() -> None:
    """tau is as many as there are workers: each makes one update between two pulls of any one of them."""
    world = play("ps-plus:pull=after-push", 0.1)
    steady = [one for worker in range(WORKERS) for one in pulled_since(world, worker)]
    assert mean(steady) == pytest.approx(WORKERS, abs=0.05)
    assert mean(scale for worker in range(WORKERS) for scale in scales(world, worker)) > 0.9


def test_a_straggler_is_scaled_by_how_much_slower_it_is() -> None:
    """In its one step the seven others make three each: tau is 22 of eight workers."""
    world = play("ps-plus:pull=after-push", 0.1, slow=3)
    assert mean(pulled_since(world, 0)) == pytest.approx(22, abs=0.3)
    assert mean(scales(world, 0)) == pytest.approx(8 / 22, abs=0.01)


def test_an_update_is_twice_as_stale_as_with_asp() -> None:
    assert mean(play("asp", 0.1).ages()[800:]) == pytest.approx(WORKERS - 1, abs=0.1)
    assert mean(play("ps-plus:pull=after-push", 0.1).ages()[800:]) == pytest.approx(2 * WORKERS - 1, abs=0.1)


@pytest.mark.parametrize("comm", [0.1, 2.0])
def test_with_free_pulls_an_update_is_two_computations_and_a_push_old(comm: float) -> None:
    """Pulled while the step before is computed, then computed on, then pushed. Three of them are its worker's own."""
    ages = play("ps-plus:pull=free", comm).ages()[800:]
    assert mean(ages) == pytest.approx((2 + comm / 2) * (WORKERS - 1) + 3 - 1, abs=0.5)


@pytest.mark.parametrize("pull", ["after-push", "free"])
@pytest.mark.parametrize("gate", [0, 3])
def test_the_gate_bounds_the_lead_and_slows_all_to_the_straggler(gate: int, pull: str) -> None:
    world = play(f"ps-plus:pull={pull},gate={gate}", 0.1, slow=3, updates=1600)
    begun = dict.fromkeys(range(WORKERS), 0)
    for _, order in world.orders(StartPush):
        begun[order.worker] += 1
        assert max(begun.values()) - min(begun.values()) <= gate + 2  # pushes begun, not through
    assert world.period(WORKERS) == pytest.approx(3.0, abs=0.15)
