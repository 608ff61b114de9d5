"""PS+'s rules, one test each: pull before push, one exchange at a time, the scale of a push, the gate.

Then its page of numbers, by its machine and its rivals' in a small virtual time, and what holds in random histories.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count
from math import sqrt
from statistics import mean
from typing import Literal

import pytest

from paceline.core.choice import Choice, choose
from paceline.core.facts import Fact, GradientReady, ParametersTaken, UpdateArrived, WorkerLeft
from paceline.core.orders import ApplyUpdate, Order, Release, StartPull, StartPush
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.protocols.ps_plus import Config, Machine
from support.tables import (
    REFUSED,
    Row,
    apply,
    arrived,
    began,
    check,
    declined,
    hold,
    left,
    pull,
    push,
    ready,
    reasons,
    release,
    returned,
    run,
    taken,
)
from support.walk import World, history, walk, wander

Modulation = Literal["off", "inverse", "inverse1", "sqrt", "progress"]
FREE = Config(pull="free", modulation="off")


def begun(
    workers: int, version: int = 0, gate: int | None = None, modulation: Modulation = "inverse", came: bool = True
) -> Machine:
    """All compute their first step; with `came`, the parameters of the second have come to them."""
    first = [release(worker, 0, version) for worker in range(workers)]
    config = Config(gate=gate, modulation=modulation, pull="after-push")
    machine = run(Machine(config), [(began(*range(workers), version=version), first)])
    for worker in range(workers if came else 0):
        check(machine, [(taken(worker, version), [pull(worker, version)]), (taken(worker, version), [])])
    return machine


def goes_on(worker: int, step: int, on: int, ahead: int, scale: float = 1.0) -> Row:
    """Its gradient is ready, and the version `ahead` is there: it pushes, and computes on."""
    return (ready(worker, step, on), [push(worker, step, scale), release(worker, step + 1, ahead, "eager")])


def exchanged(worker: int, step: int, version: int, workers: int) -> list[Row]:
    """Its push arrives and makes `version`; the pull follows, and ends."""
    return [
        (arrived(worker, step), [apply(version, (worker, step, 1 / workers)), pull(worker, version)]),
        (taken(worker, version), []),
    ]


# The worker's loop.


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


def stale(modulation: Modulation) -> Machine:
    """Worker 1 has a gradient on version 0 and has pulled version 4; of four steps of two workers it made one."""
    machine = begun(2, modulation=modulation)
    for fact in (
        *(ready(0, 0, 0), arrived(0, 0), taken(0, 1)),
        *(ready(0, 1, 0), arrived(0, 1), taken(0, 2)),
        *(ready(0, 2, 1), arrived(0, 2), taken(0, 3)),
        *(ready(1, 0, 0), arrived(1, 0), taken(1, 4)),
    ):
        machine.handle(fact)
    return machine


@pytest.mark.parametrize(
    ("modulation", "scale"),
    [("off", 1.0), ("inverse", 1 / 2), ("inverse1", 1 / 3), ("sqrt", 1 / sqrt(2)), ("progress", 1 / 2)],
)
def test_a_push_is_scaled_by_what_its_worker_knows_before_it(modulation: Modulation, scale: float) -> None:
    """tau = 4 of two workers; its steps are 1, the mean 2."""
    check(stale(modulation), [goes_on(1, 1, 0, 4, scale)])


# The gate.


def withheld(workers: int, gate: int) -> Machine:
    """Worker 0 has made gate + 1 steps and computes the next one; the others are at their first."""
    machine = begun(workers, gate=gate, modulation="off")
    rows = [goes_on(0, 0, 0, 0)]
    for step in range(1, gate + 1):
        rows += [*exchanged(0, step - 1, step, workers), goes_on(0, step, step - 1, step)]
    return run(machine, [*rows, (arrived(0, gate), [apply(gate + 1, (0, gate, 1 / workers))])])


@pytest.mark.parametrize("gate", [0, 1, 3])
def test_above_the_gate_a_pull_is_withheld_while_the_worker_computes_one_further_step(gate: int) -> None:
    check(withheld(2, gate), [(ready(0, gate + 1, gate), [hold(0)])])


@pytest.mark.parametrize("gate", [0, 1, 3])
def test_the_withheld_pull_follows_when_the_slowest_arrives_and_is_of_the_newest_version(gate: int) -> None:
    newest = gate + 2
    check(
        withheld(2, gate),
        [
            goes_on(1, 0, 0, 0),
            (arrived(1, 0), [apply(newest, (1, 0, 0.5)), pull(1, newest), pull(0, newest)]),
            (taken(0, newest), []),
            goes_on(0, gate + 1, gate, newest),
        ],
    )


@pytest.mark.parametrize("fact", [left(1), declined(1, 0)], ids=["leaves", "declines"])
def test_the_withheld_pull_follows_when_the_slowest_is_gone(fact: Fact) -> None:
    check(withheld(2, 2), [(fact, [pull(0, 3)])])


# Departures.


@pytest.mark.parametrize("waits", [False, True])
def test_what_was_half_pushed_is_dropped_and_what_waited_for_it_too(waits: bool) -> None:
    machine = run(begun(1), [goes_on(0, 0, 0, 0), *([(ready(0, 1, 0), [hold(0)])] if waits else [])])
    check(machine, [(left(0), [returned(0, step) for step in range(1 + waits)]), (arrived(0, 0), REFUSED)])


@pytest.mark.parametrize("of_first", [True, False])
def test_a_pull_that_ends_when_its_worker_has_no_data_left_changes_nothing(of_first: bool) -> None:
    machine = begun(1, came=False)
    if not of_first:
        check(machine, [(taken(0, 0), [pull(0, 0)])])
    check(machine, [(declined(0, 0), []), (taken(0, 0), []), (left(0, "finished"), [])])


# Free pulls.


def freed(workers: int, gate: int | None = None, version: int = 0) -> Machine:
    """All compute their first step on that version, with `pull=free`: there is nothing newer to pull."""
    first = [release(worker, 0, version) for worker in range(workers)]
    config = Config(pull="free", gate=gate)
    machine = run(Machine(config), [(began(*range(workers), version=version), first)])
    return run(machine, [(taken(worker, version), []) for worker in range(workers)])


def goes_on_pulling(worker: int, step: int, on: int, ahead: int, newest: int) -> Row:
    """Its gradient is ready: it pushes, computes on, on the version `ahead`, and pulls the newest."""
    going = [push(worker, step), release(worker, step + 1, ahead, "eager"), pull(worker, newest)]
    return (ready(worker, step, on), going)


@pytest.mark.parametrize("push_first", [True, False])
def test_a_gradient_goes_on_when_the_later_of_push_and_free_pull_has_come(push_first: bool) -> None:
    machine = freed(2)
    check(machine, [goes_on(0, 0, 0, 0), goes_on(1, 0, 0, 0)])
    check(machine, [(arrived(1, 0), [apply(1, (1, 0, 1 / 2)), pull(0, 1), pull(1, 1)]), (ready(0, 1, 0), [hold(0)])])
    second = apply(2, (0, 0, 1 / 2))
    going = [push(0, 1), release(0, 2, 1, "eager"), pull(0, 2)]
    if push_first:
        check(machine, [(arrived(0, 0), [second, hold(0)]), (taken(0, 1), going)])
    else:
        check(machine, [(taken(0, 1), []), (arrived(0, 0), [second, *going])])


@pytest.mark.parametrize("gate", [0, 1, 3])
def test_at_the_gate_a_free_pull_counts_the_update_on_its_way(gate: int) -> None:
    """No lead passes gate + 1, as with `after-push`: the step after the one on its way is still computed."""
    machine = freed(2, gate=gate)
    check(machine, [goes_on(0, 0, 0, 0)])
    for step in range(gate):
        lets = [pull(1, 1)] if step == 0 else []
        check(machine, [(arrived(0, step), [apply(step + 1, (0, step, 1 / 2)), *lets, pull(0, step + 1)])])
        check(machine, [(taken(0, step + 1), []), goes_on(0, step + 1, step, step + 1)])
    lets = [pull(1, 1)] if gate == 0 else []
    check(machine, [(arrived(0, gate), [apply(gate + 1, (0, gate, 1 / 2)), *lets])])
    check(machine, [(ready(0, gate + 1, gate), [hold(0)])])
    check(machine, [(taken(1, 1), []), (ready(1, 0, 0), goes_on_pulling(1, 0, 0, 1, gate + 1)[1][: 2 + (gate > 0)])])
    first = apply(gate + 2, (1, 0, 1 / 2))
    lets = [pull(0, gate + 2)] if gate else [pull(0, gate + 2), pull(1, gate + 2)]
    check(machine, [(arrived(1, 0), [first, *lets])])


def test_a_hold_under_free_pulls_says_what_the_gradient_waits_for() -> None:
    machine = freed(2)
    check(machine, [goes_on(0, 0, 0, 0), goes_on(1, 0, 0, 0)])
    assert reasons(machine, ready(0, 1, 0)) == [
        "its step 0 is still on its way to the store, and this one's push follows that"
    ]
    assert reasons(machine, arrived(0, 0))[1:] == [
        "version 1 is newer than 0, which it computes on",
        "version 1 is newer than 0, which it computes on",
        "version 1 is still on its way to it",
    ]


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


# What is said and asked.


def test_a_hold_says_what_the_gradient_waits_for() -> None:
    machine = begun(1, came=False)
    check(machine, [(taken(0, 0), [pull(0, 0)])])
    assert reasons(machine, ready(0, 0, 0)) == ["version 0 is still on its way to it"]
    check(machine, [(taken(0, 0), [push(0, 0), release(0, 1, 0, "eager")])])
    assert reasons(machine, ready(0, 1, 0)) == [
        "its step 0 is still on its way to the store, and its pull follows that"
    ]
    assert reasons(withheld(3, 0), ready(0, 1, 0)) == ["its lead is 1, the gate 0: its pull waits for workers 1, 2"]


@pytest.mark.parametrize(
    ("modulation", "why"),
    [
        ("off", "a push may start at any time"),
        ("inverse", "4 updates of 2 workers came since the parameters of its gradient: multiplied by 0.5"),
        ("progress", "its steps are 1, the mean 2: multiplied by 0.5"),
    ],
)
def test_a_push_says_how_its_scale_comes_about(modulation: Modulation, why: str) -> None:
    assert reasons(stale(modulation), ready(1, 1, 0)) == [why, "version 4 has come while it computed"]


def test_parameters_are_read_and_refused() -> None:
    assert choose("ps-plus:modulation=sqrt,gate=3", registry()).config == Config(modulation="sqrt", gate=3)
    assert choose("ps-plus:gate=none", registry()).config == Config()
    with pytest.raises(ConfigError, match="gate is -1 steps; it must be 0 or more"):
        Config(gate=-1)
    assert choose("ps-plus:pull=after-push,gate=1", registry()).config == Config(pull="after-push", gate=1)
    with pytest.raises(ConfigError, match='pull is "early"'):
        choose("ps-plus:pull=early", registry())
    with pytest.raises(ConfigError, match="modulation"):
        choose("ps-plus:modulation=half", registry())


# Random histories: section 4 of the paper's page.

AFTER_PUSH = [
    choose(f"ps-plus:pull=after-push{settings}", registry())
    for settings in ("", ",gate=0", ",gate=2,modulation=progress")
]
FREELY = [choose(f"ps-plus:pull=free{settings}", registry()) for settings in ("", ",gate=1", ",gate=2,modulation=sqrt")]


@pytest.mark.parametrize("choice", [*AFTER_PUSH, *FREELY], ids=str)
def test_a_worker_has_one_exchange_at_a_time_in_any_history_or_one_each_way_if_pulls_are_free(choice: Choice) -> None:
    most = 0
    for seed in range(60):
        going: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for fact, orders in history(choice, seed):
            match fact:
                case UpdateArrived(worker=worker, step=step):
                    going[worker].remove(("push", step))
                case ParametersTaken(worker=worker, version=version):
                    going[worker].remove(("pull", version))
                case WorkerLeft(worker=worker):
                    del going[worker]
            for order in orders:
                match order:
                    case StartPush(worker=worker, step=step):
                        going[worker].append(("push", step))
                    case StartPull(worker=worker, version=version):
                        going[worker].append(("pull", version))
                    case Release(worker=worker, version=version, parameters="pull"):
                        going[worker].append(("pull", version))
                for exchanges in going.values():
                    assert len({way for way, _ in exchanges}) == len(exchanges)
                    most = max(most, len(exchanges))
    assert most == (2 if choice in FREELY else 1)


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


# Virtual time: section 5 of the paper's page.

WORKERS = 8


@dataclass
class Timeline:
    """When what happened, in computations' durations, to (worker, step)."""

    applied: list[float] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    """Versions between the one an update was computed on and the one before its own."""
    released: dict[tuple[int, int], float] = field(default_factory=dict)
    ready: dict[tuple[int, int], float] = field(default_factory=dict)
    pushed: dict[tuple[int, int], float] = field(default_factory=dict)
    scales: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    staleness: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Of each worker's steps, but the first: versions from the one of the step before."""

    def of_a_round(self) -> float:
        """Mean time in which as many updates are applied as there are workers, once all are under way."""
        began = len(self.applied) // 5 // WORKERS * WORKERS + WORKERS - 1  # whole rounds
        return (self.applied[-1] - self.applied[began]) / (len(self.applied) - 1 - began) * WORKERS


def play(text: str, comm: float, slow: float = 1.0, jitter: float = 0.1, updates: int = 8000) -> Timeline:
    """A protocol in a world whose links are never full: push and pull take comm / 2 each, a computation 1.

    More or less by `jitter`; on worker 0 `slow` times as long.
    """
    handle = choose(text, registry()).machine().handle
    chance, numbers, timeline = random.Random(0), count(), Timeline()
    coming: list[tuple[float, int, Callable[[float], Fact]]] = []
    on: dict[tuple[int, int], int] = {}

    def computed(worker: int, step: int, version: int, start: float) -> None:
        lasts = (slow if worker == 0 else 1.0) * chance.uniform(1 - jitter, 1 + jitter)
        fact = ready(worker, step, version)
        heappush(coming, (start + lasts, next(numbers), lambda _: fact))

    def follow(order: Order, now: float) -> None:
        match order:
            case Release(worker=worker, step=step, version=version, parameters=parameters):
                timeline.released[worker, step] = now
                on[worker, step] = version
                if (worker, step - 1) in on:
                    timeline.staleness[worker].append(version - on[worker, step - 1])
                start = now
                if parameters == "pull":
                    start += comm / 2
                    heappush(coming, (start, next(numbers), lambda _: taken(worker, version)))
                computed(worker, step, version, start)
            case StartPull(worker=worker, version=version):
                heappush(coming, (now + comm / 2, next(numbers), lambda _: taken(worker, version)))
            case StartPush(worker=worker, step=step, scale=scale):
                timeline.pushed[worker, step] = now
                timeline.scales[worker].append(scale)
                heappush(coming, (now + comm / 2, next(numbers), lambda _: arrived(worker, step)))
            case ApplyUpdate(version=version, contributions=contributions):
                for worker, step, _ in contributions:
                    timeline.applied.append(now)
                    timeline.delays.append(version - 1 - on[worker, step])

    heappush(coming, (0.0, next(numbers), lambda _: began(*range(WORKERS))))
    while len(timeline.applied) < updates:
        now, _, told = heappop(coming)
        fact = told(now)
        if isinstance(fact, GradientReady):
            timeline.ready[fact.worker, fact.step] = now
        for order in handle(fact):
            follow(order, now)
    return timeline


@pytest.mark.parametrize(
    ("comm", "slow", "bsp", "asp", "ps_plus"),
    [(0.1, 1, 1.18, 1.10, 1.00), (0.5, 1, 1.58, 1.50, 1.00), (0.1, 3, 3.11, 1.20, 1.09), (0.5, 3, 3.51, 1.61, 1.09)],
)
def test_a_rounds_time_is_as_on_the_papers_page(
    comm: float, slow: float, bsp: float, asp: float, ps_plus: float
) -> None:
    assert play("bsp", comm, slow).of_a_round() == pytest.approx(bsp, abs=0.02)
    assert play("asp", comm, slow).of_a_round() == pytest.approx(asp, abs=0.02)
    assert play("ps-plus:pull=after-push", comm, slow).of_a_round() == pytest.approx(ps_plus, abs=0.02)


@pytest.mark.parametrize("comm", [0.1, 0.5, 1.0, 1.5, 2.0])
def test_an_iteration_takes_as_long_as_the_longer_of_computation_and_exchange(comm: float) -> None:
    timeline = play("ps-plus:pull=after-push", comm, jitter=0.0, updates=800)
    assert timeline.of_a_round() == pytest.approx(max(1.0, comm), abs=0.02)


@pytest.mark.parametrize("comm", [0.1, 1.0, 1.5, 2.0, 3.0])
def test_with_free_pulls_an_iteration_takes_as_long_as_the_longest_of_computation_push_and_pull(comm: float) -> None:
    timeline = play("ps-plus:pull=free", comm, jitter=0.0, updates=800)
    assert timeline.of_a_round() == pytest.approx(max(1.0, comm / 2), abs=0.02)


def test_a_straggler_delays_nobody_s_free_pull() -> None:
    assert play("ps-plus:pull=free", 1.5, slow=3).of_a_round() == pytest.approx(8 / (7 + 1 / 3), abs=0.02)


@pytest.mark.parametrize("comm", [0.1, 0.5, 1.0, 2.0])
def test_a_step_begins_when_the_push_of_the_one_before_does(comm: float) -> None:
    timeline = play("ps-plus:pull=after-push", comm, updates=800)
    for (worker, step), at in timeline.pushed.items():
        assert timeline.released[worker, step + 1] == at


@pytest.mark.parametrize("comm", [0.1, 0.5, 0.85])
def test_where_an_exchange_is_shorter_than_any_computation_no_worker_ever_waits(comm: float) -> None:
    timeline = play("ps-plus:pull=after-push", comm, slow=3, updates=800)
    for (worker, step), at in timeline.ready.items():
        assert timeline.released[worker, step + 1] == at


def test_workers_alike_are_a_round_apart_and_hardly_scaled() -> None:
    """tau is as many as there are workers: each makes one update between two pulls of any one of them."""
    timeline = play("ps-plus:pull=after-push", 0.1)
    steady = [one for every in timeline.staleness.values() for one in every[10:]]
    assert mean(steady) == pytest.approx(WORKERS, abs=0.05)
    assert min(steady) >= 0
    assert mean(scale for every in timeline.scales.values() for scale in every) > 0.9


def test_a_straggler_is_scaled_by_how_much_slower_it_is() -> None:
    """In its one step the seven others make three each: tau is 22 of eight workers."""
    timeline = play("ps-plus:pull=after-push", 0.1, slow=3)
    assert mean(timeline.staleness[0][10:]) == pytest.approx(22, abs=0.1)
    assert mean(timeline.scales[0][10:]) == pytest.approx(8 / 22, abs=0.01)


def test_an_update_is_twice_as_stale_as_with_asp() -> None:
    assert mean(play("asp", 0.1).delays[800:]) == pytest.approx(WORKERS - 1, abs=0.1)
    assert mean(play("ps-plus:pull=after-push", 0.1).delays[800:]) == pytest.approx(2 * WORKERS - 1, abs=0.1)


@pytest.mark.parametrize("comm", [0.1, 1.0, 2.0])
def test_with_free_pulls_an_update_is_two_computations_and_a_push_old(comm: float) -> None:
    """Pulled while the step before is computed, then computed on, then pushed. Three of them are its worker's own."""
    delays = play("ps-plus:pull=free", comm).delays[800:]
    assert mean(delays) == pytest.approx((2 + comm / 2) * (WORKERS - 1) + 3 - 1, abs=0.5)


@pytest.mark.parametrize("pull", ["after-push", "free"])
@pytest.mark.parametrize("gate", [0, 1, 3])
def test_the_gate_bounds_the_lead_and_slows_all_to_the_straggler(gate: int, pull: str) -> None:
    timeline = play(f"ps-plus:pull={pull},gate={gate}", 0.1, slow=3)
    finished = dict.fromkeys(range(WORKERS), 0)
    order = sorted((at, worker) for (worker, _), at in timeline.pushed.items())
    for _, worker in order:
        finished[worker] += 1
        assert max(finished.values()) - min(finished.values()) <= gate + 2  # pushes begun, not through
    assert timeline.of_a_round() == pytest.approx(3.0, abs=0.15)
