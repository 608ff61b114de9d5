"""Sync-Switch's rules, one test each: when it switches, what becomes of what was begun, and of stragglers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.orders import (
    AdjustTraining,
    ApplyUpdate,
    Hold,
    LeaveOut,
    Order,
    Release,
    StartPush,
    SwitchProtocol,
)
from paceline.errors import ConfigError
from paceline.protocols import registry, sync_switch
from paceline.protocols.sync_switch import Machine, slow, unfit
from support.plain_state import to_plain
from support.seeds import each_seed
from support.tables import (
    apply,
    apply_one,
    arrived,
    began,
    check,
    declined,
    hold,
    joined,
    left,
    push,
    pushed,
    ready,
    reasons,
    refuses,
    release,
    run,
    sentence,
    taken,
)
from support.walk import World, history, wander


def machine(settings: str = "") -> Machine:
    made = choose(f"sync-switch:{settings}" if settings else "sync-switch", registry()).machine()
    assert isinstance(made, Machine)
    return made


def adjust(worker: int, scale: float, momentum: float = 1.0) -> AdjustTraining:
    return AdjustTraining(worker=worker, learning_rate_scale=scale, momentum_scale=momentum)


def switch(
    to: str, *members: tuple[int, int], since: float = 0.0, parameters: tuple[tuple[str, Any], ...] = ()
) -> SwitchProtocol:
    """To that protocol with these (worker, its next step)."""
    company = tuple((worker, "host", step) for worker, step in members)
    return SwitchProtocol(to=to, parameters=parameters, members=company, since=since)


def halfway(settings: str = "rescale=none") -> Machine:
    """ASP, then BSP after 16 samples; 0 has reached the last of them and waits, 1 computes, 2 pushes."""
    return run(
        machine(f"first=asp,then=bsp,switch_at=0.5,{settings}"),
        [
            (began(0, 1, 2, work=32), [release(0, 0, 0), release(1, 0, 0), release(2, 0, 0)]),
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)]),
            (ready(2, 0, 0), [push(2, 0)]),
            (ready(0, 1, 1), [push(0, 1)]),
            (arrived(0, 1, at=5.0), [apply_one(2, 0, 1), hold(0)]),
        ],
    )


# --- when -------------------------------------------------------------------------------------------


def test_seven_hundredths_of_a_hundred_are_seven_and_no_rounding_error_more() -> None:
    begun = machine("switch_at=0.07")
    begun.handle(began(0, work=100))
    assert begun.goal == 7


def test_a_share_of_work_that_nobody_knows_is_refused_and_none_or_all_of_it_is_not() -> None:
    begun = machine("switch_at=0.5")
    refuses(begun, began(0, 1, work=None))
    assert begun.handle(began(0, 1, work=8))
    assert machine("switch_at=0").handle(began(0, work=None))
    assert machine("switch_at=1").handle(began(0, work=None))


@pytest.mark.parametrize(("settings", "plain"), [("switch_at=1", "bsp"), ("switch_at=0", "asp")])
def test_at_the_ends_of_the_range_it_orders_what_the_one_protocol_orders(settings: str, plain: str) -> None:
    for seed in range(100):
        composed = machine(f"{settings},rescale=none")
        for fact, orders in history(choose(plain, registry()), seed):
            got = composed.handle(fact)
            assert got == orders, f"history {seed}: {fact}"
            assert [order.why for order in got] == [order.why for order in orders]


@each_seed(range(20))
def test_the_first_part_s_work_only_grows_and_bsp_is_never_stale(seed: int) -> None:
    chance = random.Random(seed)
    settings = "stragglers=greedy,window=2,consecutive=1,min_gap=0.0,switch_at=0.6"
    world = World.of(choose(f"sync-switch:{settings}", registry()), 4, 10, departures=1, joins=1)
    before, on = 0, {}
    for _, orders in wander(world, chance):
        assert isinstance(world.machine, Machine)
        assert world.machine.done >= before
        before = world.machine.done
        for order in orders:
            if isinstance(order, Release):
                on[order.worker, order.step] = order.version
            elif isinstance(order, ApplyUpdate) and order.why[0] == "round-complete":
                assert {on[worker, step] for worker, step, _ in order.contributions} == {order.version - 1}


# --- what the work is counted in ----------------------------------------------------------------------


def before_the_switch(world: Virtual) -> tuple[int, int]:
    """How many versions and samples the first part came to."""
    made: list[ApplyUpdate] = []
    for _, order in world.told:
        if isinstance(order, SwitchProtocol):
            break
        made += [order] if isinstance(order, ApplyUpdate) else []
    return len(made), sum(len(order.contributions) for order in made) * world.batch


@pytest.mark.parametrize(
    ("settings", "gone", "rounds", "samples"),
    [
        ("switch_at=0.5", 0, 4, 64),
        ("switch_at=0.5,count=rounds", 0, 4, 64),
        ("switch_at=0.5", 1, 6, 72),  # 5 rounds of three workers are 60 samples
        ("switch_at=0.5,count=rounds", 1, 4, 48),
        ("switch_at=0.5", 2, 8, 64),
        ("switch_at=0.5,count=rounds", 2, 4, 32),
        ("switch_at=0.51", 1, 6, 72),
        ("switch_at=0.51,count=rounds", 1, 5, 60),  # what is planned is rounded up to a whole round
    ],
)
def test_samples_keep_bsp_s_share_and_rounds_its_number_of_versions_when_workers_are_missing(
    settings: str, gone: int, rounds: int, samples: int
) -> None:
    """128 samples of four workers with 4 each: a round of all is 16, and half of the work are four such rounds."""
    deaths = [WorkerLeft(worker=3 - number, reason="died", at=0.5) for number in range(gone)]
    world = Virtual(machine(settings), 4, lambda *_: 1.0, work=128, batch=4).run(*deaths)
    assert before_the_switch(world) == (rounds, samples)


def test_elastic_makes_the_planned_rounds_with_fewer_workers_or_more_rounds_with_as_many_samples() -> None:
    """2400 of 4800 samples are 75 rounds of four workers with 8 each."""
    rounds, samples = before_the_switch(virtual("elastic", count="rounds").run())
    assert rounds == 75
    assert samples < 2400
    rounds, samples = before_the_switch(virtual("elastic").run())
    assert rounds > 75
    assert samples >= 2400


def test_greedy_makes_the_planned_rounds_in_all_its_phases() -> None:
    world = virtual("greedy", count="rounds").run()
    assert [way[1] for way in world.switches()] == ["straggler", "recovered", "planned-rounds"]
    made = [order for _, order in world.told if isinstance(order, ApplyUpdate)]
    assert sum(order.why[0] == "round-complete" for order in made) == 75


def test_a_round_counts_as_if_all_had_given_what_those_in_it_gave_on_average() -> None:
    begun = machine("switch_at=0.5,count=rounds,rescale=none")
    begun.handle(began(0, 1, 2, work=100))
    begun.handle(left(2))
    for fact in (ready(0, 0, 0, samples=4), arrived(0, 0), ready(1, 0, 0, samples=3), arrived(1, 0)):
        begun.handle(fact)
    assert begun.done == 11  # 7 samples of two are 10.5 of three


def test_without_rounds_each_update_counts_as_its_samples() -> None:
    for unit in ("samples", "rounds"):
        begun = machine(f"first=asp,then=bsp,switch_at=0.5,count={unit},rescale=none")
        begun.handle(began(0, 1, 2, work=32))
        for fact in (ready(0, 0, 0, samples=5), arrived(0, 0)):
            begun.handle(fact)
        assert begun.done == 5


def test_where_samples_are_not_counted_a_round_counts_as_a_step_of_everybody() -> None:
    begun = machine("switch_at=0.5,count=rounds,rescale=none")
    begun.handle(began(0, 1, 2, work=32))
    begun.handle(left(2))
    for fact in (ready(0, 0, 0, samples=None), arrived(0, 0), ready(1, 0, 0, samples=None), arrived(1, 0)):
        begun.handle(fact)
    assert begun.done == 3


def test_the_reason_of_a_switch_says_that_rounds_were_counted() -> None:
    world = virtual("elastic", count="rounds").run()
    (switched,) = [order for _, order in world.told if isinstance(order, SwitchProtocol)]
    assert sentence(world.machine, switched.why) == (
        "the first part's rounds count as 2,400 (planned: 2,400), each as if all workers of the beginning had been "
        "in it"
    )


# --- momentum -----------------------------------------------------------------------------------------


def momenta(world: Virtual) -> list[tuple[int, float]]:
    """(samples applied before, momentum's scale) of each version that another one than before holds for."""
    scales: dict[int, float] = {}
    seen: list[tuple[int, float]] = []
    samples = 0
    for _, order in world.told:
        if isinstance(order, AdjustTraining):
            scales[order.worker] = order.momentum_scale
        elif isinstance(order, ApplyUpdate):
            (scale,) = {scales.get(worker, 1.0) for worker, _, _ in order.contributions}
            if not seen or seen[-1][1] != scale:
                seen.append((samples, scale))
            samples += len(order.contributions) * world.batch
    return seen


def test_momentum_grows_from_an_nth_in_n_equal_stages_over_a_quarter_of_the_work() -> None:
    """A quarter of 64 steps of four workers, so that each stage is 4 steps; they are the authors' 2,000 of 64,000."""
    world = Virtual(machine("switch_at=0.25,momentum=ramp"), 4, lambda *_: 1.0, work=64, batch=1).run()
    assert momenta(world) == [(0, 1.0), (16, 0.25), (20, 0.5), (24, 0.75), (28, 1.0)]


def test_a_ramp_that_has_no_room_ends_with_the_data() -> None:
    world = Virtual(machine("switch_at=0.9,momentum=ramp"), 4, lambda *_: 1.0, work=640, batch=10).run()
    assert momenta(world) == [(0, 1.0), (600, 0.25)]  # 600 is where the round of 40 ends that reaches 576


@pytest.mark.parametrize(("policy", "wanted"), [("keep", [1.0]), ("zero", [1.0, 0.0, 1.0, 0.0])])
def test_momentum_is_the_script_s_whenever_the_first_part_is_back(policy: str, wanted: list[float]) -> None:
    world = virtual("greedy", momentum=policy).run()
    assert [way[0] for way in world.switches()] == ["asp", "bsp", "asp"]
    assert [scale for _, scale in momenta(world)] == wanted


def test_each_switch_to_the_second_part_begins_a_ramp_of_its_own() -> None:
    """The first is too short for all of it: a straggler's 40 seconds are some 100 of 600 steps, and a stage is 37.5."""
    world = virtual("greedy", momentum="ramp").run()
    assert [way[0] for way in world.switches()] == ["asp", "bsp", "asp"]
    assert [scale for _, scale in momenta(world)] == [1.0, 0.25, 0.5, 0.75, 1.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("worker", [3, 4])
def test_whoever_comes_after_the_switch_is_stepped_with_the_momentum_of_the_others(worker: int) -> None:
    """A newcomer, and one that had left: both begin with the script's own."""
    events = [
        WorkerLeft(worker=3, reason="died", at=50.5),
        WorkerJoined(worker=worker, host="host", step=900, at=60.0),
    ]
    world = Virtual(machine("switch_at=0.25,momentum=zero"), 4, lambda *_: 1.0, work=4800).run(*events)
    assert [way[1] for way in world.switches()] == ["planned"]
    assert world.switches()[0][2] < 50
    assert (worker, 900) in world.applied
    assert [(fact.at, order) for fact, order in world.told if order == adjust(worker, 1.0, 0.0) and fact.at > 60]
    assert [scale for _, scale in momenta(world)] == [1.0, 0.0]


@pytest.mark.parametrize("settings", ["switch_at=0", "switch_at=1", "switch_at=0,first=asp,then=bsp"])
def test_without_a_switch_momentum_stays_as_it_is(settings: str) -> None:
    for policy in ("zero", "ramp"):
        world = Virtual(machine(f"{settings},momentum={policy}"), 3, lambda *_: 1.0, work=240).run()
        assert momenta(world) == [(0, 1.0)]


def test_with_the_script_s_own_rates_momentum_changes_alone() -> None:
    world = Virtual(machine("switch_at=0.5,momentum=zero,rescale=none"), 3, lambda *_: 1.0, work=240).run()
    orders = [order for _, order in world.told if isinstance(order, AdjustTraining)]
    assert orders == [adjust(worker, 1.0, 0.0) for worker in range(3)]
    assert sentence(world.machine, orders[0].why) == "momentum is 0/3 of the script's"


def test_a_ramp_over_work_that_nobody_knows_is_refused() -> None:
    refuses(machine("switch_at=1,stragglers=greedy,momentum=ramp"), began(0, 1, work=None))


@pytest.mark.parametrize("policy", ["zero", "ramp"])
def test_an_optimizer_without_momentum_is_refused_and_one_group_that_has_it_is_enough(policy: str) -> None:
    def said(policy: str, *groups: dict[str, Any]) -> str:
        return unfit(choose(f"sync-switch:momentum={policy}", registry()).config, groups)

    assert said(policy, {"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}) == ""
    assert said("keep", {"lr": 0.1, "betas": [0.9, 0.999]}) == ""
    for groups in ({"lr": 0.1, "betas": [0.9, 0.999]}, {"lr": 0.1, "momentum": 0}):
        assert said(policy, groups).startswith(
            f"sync-switch: momentum is {policy}, and the script's optimizer has none"
        )


# --- how a phase ends -------------------------------------------------------------------------------


def test_whoever_waits_for_the_next_phase_is_told_so_and_why_it_comes() -> None:
    ending = halfway()
    assert reasons(ending, arrived(2, 0))[1:] == ["asp ends, and bsp begins once every update under way is applied"]
    ending.handle(ready(1, 0, 0))
    assert "the first part has done 16 (planned: 16)" in reasons(ending, arrived(1, 0))


def test_the_card_of_the_part_goes_with_the_switch() -> None:
    begun = machine("then=ssp:bound=2,switch_at=0.5")
    begun.handle(began(0, work=16))
    begun.handle(ready(0, 0, 0))
    orders = begun.handle(arrived(0, 0))
    assert switch("ssp", (0, 1), parameters=(("bound", 2),)) in orders


@pytest.mark.parametrize(
    "fact",
    [ready(0, 2, 2), ready(0, 1, 1), arrived(0, 1), declined(0, 2), taken(0, 2), joined(0, 9), began(0), left(9)],
    ids=str,
)
def test_what_cannot_be_true_of_one_who_waits_is_refused(fact: Fact) -> None:
    refuses(halfway(), fact)


# --- learning rates ---------------------------------------------------------------------------------


def test_rounds_that_end_after_the_planned_work_have_the_rates_of_their_gradients() -> None:
    """HSP's workers may be ahead when its work is done: that is one more round, which some leave before it ends."""
    late = 0
    for seed in range(30):
        world = World.of(choose("sync-switch:first=hsp:idle=always,switch_at=0.3", registry()), 4, 12)
        scales: dict[int, float] = {}
        for _, orders in wander(world, random.Random(seed)):
            assert isinstance(world.machine, Machine)
            for order in orders:
                if isinstance(order, AdjustTraining):
                    scales[order.worker] = order.learning_rate_scale
                elif isinstance(order, ApplyUpdate) and order.why[0] == "round-complete":
                    late += world.machine.draining is not None
                    n = len(order.contributions)
                    assert [scales.get(worker, 1.0) for worker, _, _ in order.contributions] == [n] * n
    assert late > 5


def test_from_asp_to_bsp_rates_are_multiplied_as_bsp_begins() -> None:
    ending = run(halfway("rescale=linear"), [(arrived(2, 0), [apply_one(3, 2, 0), hold(2)])])
    orders = ending.handle(left(1))
    assert orders[1:3] == (adjust(0, 2.0), adjust(2, 2.0))


def test_a_newcomer_has_the_script_s_own_rates() -> None:
    begun = machine("switch_at=1")
    begun.handle(began(0, 1))
    begun.handle(left(1))
    begun.handle(joined(1, 1))
    for fact in (ready(0, 0, 0), arrived(0, 0), ready(1, 1, 0)):
        begun.handle(fact)
    assert [order for order in begun.handle(arrived(1, 1)) if isinstance(order, AdjustTraining)] == [adjust(1, 2.0)]


@pytest.mark.parametrize("settings", ["switch_at=0", "first=asp,then=ssp", "rescale=none,switch_at=0.5"])
def test_no_rates_change_without_rounds_or_if_they_are_not_to(settings: str) -> None:
    world = World.of(choose(f"sync-switch:{settings}", registry()), 3, 5, departures=1, joins=1)
    orders = [order for _, orders in wander(world, random.Random(0)) for order in orders]
    assert not any(isinstance(order, AdjustTraining) for order in orders)


def test_one_worker_alone_trains_plainly() -> None:
    world = World.of(choose("sync-switch:switch_at=0.5", registry()), 1, 6)
    orders = [order for _, orders in wander(world, random.Random(0)) for order in orders]
    assert {type(order) for order in orders} == {Release, StartPush, ApplyUpdate, SwitchProtocol}


# --- stragglers -------------------------------------------------------------------------------------


def test_slow_is_who_is_a_deviation_and_the_gap_below_the_mean() -> None:
    assert slow({0: 10.0, 1: 10.0, 2: 10.0, 3: 3.0}, 0.1) == [3]
    assert slow({0: 10.0, 1: 10.0, 2: 10.0, 3: 3.0}, 0.7) == []  # its gap is 0.64
    assert slow({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}, 0.0) == [0]
    assert slow({0: 5.0, 1: 5.0, 2: 5.0}, 0.0) == []


def test_without_noise_any_slowness_of_one_in_eight_is_a_deviation_and_the_gap_keeps_it_in() -> None:
    speeds = dict.fromkeys(range(7), 100.0) | {7: 99.9}
    assert slow(speeds, 0.0) == [7]
    assert slow(speeds, 0.1) == []
    assert slow(speeds | {7: 85.0}, 0.1) == [7]


def test_the_slower_of_two_is_exactly_one_deviation_below_and_no_straggler() -> None:
    assert slow({0: 0.1, 1: 0.7}, 0.0) == slow({}, 0.0) == []


@dataclass
class Virtual:
    """Workers in virtual time, transfers in none; `seconds(worker, at)` is how long a step takes that begins then."""

    machine: Machine
    workers: int
    seconds: Callable[[int, float], float]
    work: int
    batch: int = 8
    now: float = 0.0
    left: int = 0
    told: list[tuple[Fact, Order]] = field(default_factory=list)
    applied: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (worker, step): its samples."""

    def run(self, *events: Fact) -> Virtual:
        self.left = self.work
        heap: list[tuple[float, int, Fact]] = []
        count = 0
        members = tuple((worker, "host", 0) for worker in range(self.workers))
        facts: list[Fact] = [TrainingBegan(members=members, version=0, at=0.0, work=self.work), *events]
        while facts or heap:
            for fact in facts:
                count += 1
                heappush(heap, (fact.at, count, fact))
            self.now, _, fact = heappop(heap)
            facts = []
            gone = not isinstance(fact, TrainingBegan | WorkerJoined) and fact.worker not in self.machine.roster.seats
            if gone:
                continue
            for order in self.machine.handle(fact):
                self.told.append((fact, order))
                facts += self.obey(order)
        return self

    def obey(self, order: Order) -> list[Fact]:
        at = self.now
        match order:
            case Release(worker=worker, step=step, version=version):
                samples = min(self.batch, self.left)
                self.left -= samples
                pulled = ParametersTaken(worker=worker, version=version, at=at)
                if not samples:
                    return [pulled, StepDeclined(worker=worker, step=step, at=at)]
                ends = at + self.seconds(worker, at)
                return [pulled, GradientReady(worker=worker, step=step, version=version, samples=samples, at=ends)]
            case StartPush(worker=worker, step=step):
                return [UpdateArrived(worker=worker, step=step, at=at)]
            case ApplyUpdate(contributions=contributions):
                for worker, step, _ in contributions:
                    assert (worker, step) not in self.applied
                    self.applied[worker, step] = self.batch
        return []

    def switches(self) -> list[tuple[str, str, float]]:
        """(to, the reason's code, when)."""
        return [
            (order.to, str(order.why[0]), fact.at) for fact, order in self.told if isinstance(order, SwitchProtocol)
        ]

    def work_in_rounds(self) -> int:
        made = [order for _, order in self.told if isinstance(order, ApplyUpdate)]
        return sum(len(order.contributions) for order in made if order.why[0] == "round-complete") * self.batch


def lame(worker: int, at: float) -> float:
    """Worker 3 is three times slower from second 20 until second 60."""
    return 3.0 if worker == 3 and 20 <= at < 60 else 1.0


def virtual(policy: str, seconds: Callable[[int, float], float] = lame, **settings: Any) -> Virtual:
    """Four workers and 4800 samples, half of them the first part's."""
    settings = {"switch_at": 0.5, "window": 4, "consecutive": 2, **settings}
    text = ",".join(f"{key}={value}" for key, value in settings.items())
    return Virtual(machine(f"stragglers={policy},{text}"), 4, seconds, work=4800)


def test_without_a_policy_nothing_is_done_about_a_straggler() -> None:
    world = virtual("none").run()
    assert [way[:2] for way in world.switches()] == [("asp", "planned")]
    assert len(world.applied) == 600
    assert not world.machine.windows


def test_greedy_goes_over_while_there_is_a_straggler_comes_back_and_does_all_planned_work() -> None:
    world = virtual("greedy").run()
    ways = world.switches()
    assert [way[:2] for way in ways] == [("asp", "straggler"), ("bsp", "recovered"), ("asp", "planned")]
    assert 23 <= ways[0][2] <= 35
    assert 60 <= ways[1][2] <= 75
    assert len(world.applied) == 600
    assert world.work_in_rounds() == world.machine.done == 2400


def test_a_straggler_is_one_after_so_many_looks_in_a_row() -> None:
    """Its first slow step ends at 23, and every round after it takes three seconds."""
    first = [virtual("greedy", consecutive=looks).run().switches()[0][2] for looks in (1, 2, 4)]
    assert [later - first[0] for later in first] == [0, 3, 9]


def test_elastic_goes_on_without_the_straggler_and_takes_it_back_for_the_rest() -> None:
    world = virtual("elastic").run()
    ((_, code, at),) = world.switches()
    assert code == "planned"
    (switched,) = [order for _, order in world.told if isinstance(order, SwitchProtocol)]
    assert [worker for worker, _, _ in switched.members] == [0, 1, 2, 3]
    out = [(fact.at, order) for fact, order in world.told if isinstance(order, Hold) and order.why[0] == "left-out"]
    assert [order.worker for _, order in out] == [3]
    between = [order for fact, order in world.told if isinstance(order, Release) and out[0][0] < fact.at < at]
    assert {order.worker for order in between} == {0, 1, 2}
    assert len(world.applied) == 600
    assert 2400 <= world.work_in_rounds() == world.machine.done < 2400 + 24


def test_both_policies_are_faster_than_none_and_elastic_s_rates_follow() -> None:
    slow_run, elastic = virtual("none").run(), virtual("elastic").run()
    assert virtual("greedy").run().now < slow_run.now
    assert elastic.now < slow_run.now
    scales = [order.learning_rate_scale for _, order in elastic.told if isinstance(order, AdjustTraining)]
    assert scales == [4.0] * 4 + [3.0] * 3 + [1.0] * 4


def test_once_the_planned_work_is_done_the_policies_are_inert() -> None:
    def late(worker: int, at: float) -> float:
        return 3.0 if worker == 3 and at > 80 else 1.0

    for policy in ("greedy", "elastic"):
        world = virtual(policy, late).run()
        assert [way[:2] for way in world.switches()] == [("asp", "planned")]
        assert world.machine.windows == world.machine.streaks == world.machine.began == {}


def test_a_slightly_slow_worker_without_noise_is_no_straggler() -> None:
    world = virtual("greedy", lambda worker, _: 1.05 if worker == 3 else 1.0).run()
    assert [way[:2] for way in world.switches()] == [("asp", "planned")]


def test_waiting_for_others_makes_nobody_slow() -> None:
    """Of four in lockstep every round takes three seconds, and only the one that computes so long is slow."""
    world = virtual("greedy", lambda worker, _: 3.0 if worker == 3 else 1.0, consecutive=1).run()
    told = [order.why for _, order in world.told if isinstance(order, SwitchProtocol)]
    assert next(sentence(world.machine, why) for why in told) == "worker 3 straggled"


def test_when_the_others_are_gone_the_next_phase_begins_with_those_who_were_left_out() -> None:
    deaths = [WorkerLeft(worker=worker, reason="died", at=70.0 + worker) for worker in range(3)]
    world = virtual("elastic").run(*deaths)
    assert world.switches() == [("asp", "deserted", 72.0)]
    assert world.left == 0


def test_with_all_work_the_first_part_s_it_begins_anew_with_those_who_were_left_out() -> None:
    deaths = [WorkerLeft(worker=worker, reason="died", at=70.0 + worker) for worker in range(3)]
    world = virtual("elastic", switch_at=1).run(*deaths)
    assert world.switches() == [("bsp", "deserted", 72.0)]
    assert world.left == 0


def test_one_who_was_left_out_waits_for_the_next_phase_also_if_it_comes_back() -> None:
    back: list[Fact] = [
        WorkerLeft(worker=3, reason="died", at=70.0),
        WorkerJoined(worker=3, host="host", step=900, at=71.0),
    ]
    world = virtual("elastic").run(*back)
    ((_, code, at),) = world.switches()
    assert code == "planned"
    first = next(fact.at for fact, order in world.told if isinstance(order, Release) and order.step == 900)
    assert first == at
    assert [(fact.at, order.why[0]) for fact, order in world.told if order == hold(3) and fact.at == 71.0] == [
        (71.0, "left-out")
    ]


def test_a_step_s_time_begins_when_its_parameters_have_come_and_counts_by_its_samples() -> None:
    begun = machine("switch_at=1,stragglers=greedy")
    for fact in (
        began(0, 1),
        taken(0, 0, at=5.0),
        ready(0, 0, 0, samples=3, at=7.0),
        ready(1, 0, 0, samples=4, at=8.0),
    ):
        begun.handle(fact)
    assert {worker: (window.samples, window.seconds) for worker, window in begun.windows.items()} == {
        0: (3, 2.0),
        1: (4, 8.0),  # the end of its pull was not told
    }


def test_a_straggler_that_dies_before_it_is_out_is_out_when_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_switch, "slow", lambda *_: [1])
    check(
        machine("first=asp,switch_at=0.5,stragglers=elastic,consecutive=1"),
        [
            (began(0, 1), [release(0, 0, 0), release(1, 0, 0)]),
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)]),
            *pushed(0, 1, 1, [apply_one(2, 0, 1), release(0, 2, 2)]),
            (left(1), []),
            (joined(1, 1), [hold(1)]),
        ],
    )


def test_a_phase_that_ends_for_a_straggler_ends_for_that_also_if_the_planned_work_is_done_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_switch, "slow", lambda *_: [1])
    ending = run(
        machine("first=asp,then=ssp,switch_at=0.5,stragglers=greedy,consecutive=1"),
        [
            (began(0, 1, work=48), [release(0, 0, 0), release(1, 0, 0)]),
            *pushed(0, 0, 0, [apply_one(1, 0, 0), release(0, 1, 1)]),
            (ready(0, 1, 1), [push(0, 1)]),
            (arrived(0, 1, at=3.0), [apply_one(2, 0, 1), hold(0)]),
            (ready(1, 0, 0), [push(1, 0)]),
        ],
    )
    (switched,) = [order for order in ending.handle(arrived(1, 0, at=9.0)) if isinstance(order, SwitchProtocol)]
    assert (switched.since, switched.why) == (3.0, ("straggler", (1,)))
    assert ending.done == ending.goal == 24


def test_the_last_one_who_computes_goes_on_however_slow_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_switch, "slow", lambda *_: [0, 1, 2])
    check(
        machine("switch_at=0.5,stragglers=elastic,consecutive=1,rescale=none"),
        [
            (began(0, 1, 2), [release(worker, 0, 0) for worker in range(3)]),
            *pushed(0, 0, 0, [hold(0)]),
            *pushed(1, 0, 0, [hold(1)]),
            *pushed(
                2,
                0,
                0,
                [
                    apply(1, *((worker, 0, 1 / 3) for worker in range(3))),
                    release(2, 1, 1),
                    LeaveOut(worker=0),
                    LeaveOut(worker=1),
                    hold(0),
                    hold(1),
                ],
            ),
        ],
    )


def test_the_last_ones_are_never_left_out() -> None:
    """Of whoever remains somebody is slow again and again; one worker always goes on."""

    def uneven(worker: int, at: float) -> float:
        return 1.0 + (worker == 3) * (at > 5) * 3 + (worker == 2) * (at > 40) * 3

    world = virtual("elastic", uneven, window=2, consecutive=1, min_gap=0.0).run()
    assert len(world.applied) == 600
    assert [way[1] for way in world.switches()] == ["planned"]


# --- reasons, parameters, cost ----------------------------------------------------------------------


def test_no_two_protocols_of_a_family_give_one_code_two_sentences() -> None:
    """Orders keep the reasons of the part that gave them, and parts are of the whole's family."""
    said: dict[tuple[str, str], dict[str, list[str]]] = {}
    for spec in registry().values():
        for code, text in spec.reasons.items():
            said.setdefault((spec.family, code), {}).setdefault(text, []).append(spec.name)
    assert {code: texts for code, texts in said.items() if len(texts) > 1} == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("first=bps", 'did you mean "bsp"'),
        ("first=sync-switch", "sync-switch can't contain itself"),
        ("first=ssp:bound=-1", "bound is -1"),
        ("first=ssp:bund=1", '"bund"'),
        ("then=", 'unknown protocol ""'),
        ("switch_at=1.5", "from 0 to 1"),
        ("window=1", "2 or more"),
        ("consecutive=0", "1 or more"),
        ("min_gap=-0.1", "from 0 to 1"),
        ("stragglers=lazy", "none, greedy, elastic"),
        ("rescale=square", "linear, none"),
        ("count=steps", "samples, rounds"),
        ("momentum=half", "keep, zero, ramp"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(f"sync-switch:{text}", registry())
    assert str(caught.value).startswith("sync-switch: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_s_own_parameters_stay_with_it_and_come_back_as_they_were_written() -> None:
    choice = choose("sync-switch:first=dssp:lower=2,upper=8,then=ssp:bound=1,window=5", registry())
    assert [str(part) for part in choice.parts] == ["dssp:lower=2,upper=8,cap=true,counting=corrected", "ssp:bound=1"]
    assert choice.config.window == 5
    again = choose(str(choice), registry())
    assert (again, str(again)) == (choice, str(choice))


@pytest.mark.parametrize(("first", "rounds"), [("bsp", True), ("asp", False)])
def test_it_goes_in_rounds_as_its_first_part_does(first: str, rounds: bool) -> None:
    assert choose(f"sync-switch:first={first},then=bsp", registry()).rounds is rounds


def test_what_is_kept_of_the_workers_does_not_grow_with_the_run() -> None:
    def size(work: int) -> int:
        world = Virtual(machine("stragglers=greedy,switch_at=1,window=3"), 4, lambda *_: 1.0, work)
        return len(str(to_plain(world.run().machine)))

    assert abs(size(16000) - size(1600)) < 60


@each_seed(range(40))
def test_no_phase_begins_with_a_pull_while_an_earlier_one_is_on_its_way(seed: int) -> None:
    """Its end would be told after the release. Under hsp, versions are pulled beside a step. Workers die and join."""
    chance = random.Random(seed)
    text = "sync-switch:first=hsp:idle=always,broadcast=all,switch_at=0.5,stragglers=greedy,window=2,consecutive=1"
    world = World.of(choose(text, registry()), 2 + seed % 3, 8, departures=2, joins=2, work=chance.randrange(60))
    assert list(wander(world, chance, turmoil=0.1))  # which judges each order
    assert not world.unsettled
