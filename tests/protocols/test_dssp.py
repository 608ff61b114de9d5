"""DSSP's rules, one test each; its controller against all pairs; and the counts that a virtual run comes out at."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import pytest

from paceline.core.choice import choose
from paceline.core.facts import Fact, StepDeclined, TrainingBegan, UpdateArrived, WorkerJoined, WorkerLeft
from paceline.core.orders import Hold, Release
from paceline.core.reasons import sentence
from paceline.errors import ConfigError
from paceline.protocols import dssp, registry
from paceline.protocols.dssp import Config, Machine, controller
from protocols.twins import Ssp
from support.plain_state import from_plain, to_plain
from support.seeds import each_seed
from support.tables import (
    REFUSED,
    arrived,
    began,
    check,
    declined,
    joined,
    left,
    ready,
    release,
    spec_of,
)
from support.walk import World, history, walk, wander


def begun(workers: int, **settings: object) -> Machine:
    machine = Machine(Config(**settings))  # type: ignore[arg-type]
    machine.handle(began(*range(workers)))
    return machine


def arrive(machine: Machine, worker: int, at: float) -> list[str]:
    """The worker's step is ready and arrives: who goes on or waits then, and why."""
    seat = machine.roster.seats[worker]
    machine.handle(ready(worker, seat.step, seat.version, at=at))
    return told(machine, arrived(worker, seat.step, at=at))


def told(machine: Machine, fact: Fact) -> list[str]:
    orders = machine.handle(fact)
    words = {Release: "goes", Hold: "waits"}
    return [f"{order.worker} {words[type(order)]}: {order.why[0]}" for order in orders if type(order) in words]


def arrive_in_turn(machine: Machine, *arrivals: tuple[int, float]) -> list[str]:
    return [line for worker, at in arrivals for line in arrive(machine, worker, at)]


def fast_and_slow(lower: int = 1, upper: int = 5, **settings: object) -> Machine:
    """0 has pushed at 8 and 9 s, 1 at 0 and 10 s: both count 2, and 1 is predicted to push at 20, 30, … s."""
    machine = begun(2, lower=lower, upper=upper, **settings)
    arrive_in_turn(machine, (1, 0.0), (0, 8.0), (0, 9.0), (1, 10.0))
    return machine


# The controller


def by_all_pairs(fast_at: float, fast_interval: float, slow_at: float, slow_interval: float, most: int) -> int:
    def wait(steps: int) -> float:
        stop = fast_at + steps * fast_interval
        return min(abs(slow_at + (k + 1) * slow_interval - stop) for k in range(most + 1))

    return min(range(most + 1), key=wait)


@pytest.mark.parametrize(
    ("fast_at", "fast_interval", "slow_at", "slow_interval", "most", "steps"),
    [
        pytest.param(290.0, 57.5, 272.0, 100.0, 4, 3, id="figure-2"),
        pytest.param(290.0, 57.5, 272.0, 100.0, 8, 5, id="figure-2-with-a-wider-range"),
        (10.0, 1.0, 9.0, 3.0, 12, 2),
        (10.0, 1.0, 9.0, 2.0, 12, 1),
        pytest.param(10.0, 2.0, 9.5, 2.0, 12, 1, id="a-stop-shortly-after-the-push-is-near-too"),
    ],
)
def test_the_controller_stops_the_fastest_where_the_slowest_is_nearest(
    fast_at: float, fast_interval: float, slow_at: float, slow_interval: float, most: int, steps: int
) -> None:
    assert controller(fast_at, fast_interval, slow_at, slow_interval, most)[0] == steps


def test_of_equally_near_stops_the_first_is_taken() -> None:
    assert controller(10.0, 1.0, 8.5, 1.0, 12) == (0, 0.5)
    assert controller(10.0, 0.0, 10.0, 5.0, 12) == (0, 5.0)
    assert controller(10.0, 0.0, 10.0, 0.0, 12) == (0, 0.0)


def test_an_empty_range_leaves_no_choice() -> None:
    assert controller(10.0, 1.0, 9.0, 3.0, 0) == (0, 2.0)


@each_seed(range(20))
def test_the_controller_agrees_with_looking_at_all_pairs(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        draw: Callable[[], float] = chance.choice([chance.random, lambda: float(chance.randrange(12))])
        fast_interval, slow_interval = draw(), draw() * chance.choice([1.0, 5.0])
        slow_at = chance.choice([100.0 * draw(), 1e16])  # the latter so great that pushes round to the same time
        fast_at = slow_at + chance.choice([-1.0, 1.0]) * draw() * 5
        most = chance.randrange(16)
        steps, wait = controller(fast_at, fast_interval, slow_at, slow_interval, most)
        assert steps == by_all_pairs(fast_at, fast_interval, slow_at, slow_interval, most)
        stop = fast_at + steps * fast_interval
        assert wait == min(abs(slow_at + (k + 1) * slow_interval - stop) for k in range(most + 1))


# Grants


def test_up_to_the_lower_bound_nobody_is_asked() -> None:
    machine = begun(2, lower=3, upper=15)
    assert arrive_in_turn(machine, (0, 1.0), (0, 2.0), (0, 3.0)) == ["0 goes: lead"] * 3


def test_above_it_the_fastest_is_granted_steps_until_the_slowest_is_predicted() -> None:
    """At 17 s it leads by 2. The slowest is due at 20 s, three steps later: it stops at lead lower + 1 + 3."""
    machine = fast_and_slow()
    assert arrive_in_turn(machine, (0, 16.0), (0, 17.0), (0, 18.0), (0, 19.0), (0, 20.0)) == [
        "0 goes: lead",
        "0 goes: granted",
        "0 goes: using-grant",
        "0 goes: using-grant",
        "0 waits: stop-now",
    ]
    assert machine.pace.counts.lead(0) == 5


def test_counted_literally_a_grant_is_for_one_step_more() -> None:
    machine = fast_and_slow(counting="literal", cap=False)
    lines = arrive_in_turn(machine, *((0, 16.0 + step) for step in range(6)))
    assert lines[1:] == ["0 goes: granted", *["0 goes: using-grant"] * 3, "0 waits: stop-now"]
    assert machine.pace.counts.lead(0) == 6


def test_an_interval_is_between_arrivals_also_of_those_that_nobody_asked_about() -> None:
    """1 pushed last at 10 and 12 s, unasked: it is due at 14 s, which is now."""
    machine = begun(2, lower=1, upper=5)
    arrive_in_turn(machine, (1, 0.0), (1, 10.0), (0, 10.5), (0, 11.0), (1, 12.0), (0, 12.5), (0, 13.0))
    assert arrive(machine, 0, 14.0) == ["0 waits: stop-now"]


@pytest.mark.parametrize("settings", [{}, {"counting": "literal"}])
def test_the_cap_holds_a_worker_whatever_it_was_granted(settings: dict[str, object]) -> None:
    machine = fast_and_slow(upper=3, **settings)
    lines = arrive_in_turn(machine, (0, 11.0), (0, 12.0), (0, 13.0), (0, 14.0))
    assert lines == ["0 goes: lead", "0 goes: granted", "0 goes: using-grant", "0 waits: cap"]
    assert machine.pace.counts.lead(0) == 4


def test_a_worker_held_at_the_cap_loses_what_is_left_of_its_grant() -> None:
    machine = fast_and_slow(upper=3, counting="literal")
    arrive_in_turn(machine, (0, 11.0), (0, 12.0), (0, 13.0), (0, 14.0))
    assert arrive_in_turn(machine, (1, 20.0), (1, 21.0), (1, 22.0)) == [*["1 goes: lead"] * 3, "0 goes: lead"]
    assert arrive(machine, 0, 22.5) == ["0 waits: stop-now"]  # asked anew


def test_without_the_cap_a_used_up_grant_is_followed_by_the_next() -> None:
    machine = fast_and_slow(upper=3, cap=False)
    lines = arrive_in_turn(machine, *((0, 11.0 + step) for step in range(6)))
    assert lines[1:] == [*["0 goes: granted", "0 goes: using-grant"] * 2, "0 goes: granted"]
    assert machine.pace.counts.lead(0) == 6 > 3 + 1


def test_a_held_worker_waits_until_its_lead_is_within_the_lower_bound() -> None:
    machine = fast_and_slow()
    arrive_in_turn(machine, *((0, 16.0 + step) for step in range(5)))
    assert arrive_in_turn(machine, (1, 21.0), (1, 22.0), (1, 23.0)) == ["1 goes: lead"] * 3
    assert arrive(machine, 1, 24.0) == ["1 goes: lead", "0 goes: lead"]


def three() -> Machine:
    """As `fast_and_slow`, with 2 as fast as 0; both are due to be asked at their next arrival."""
    machine = begun(3, lower=1, upper=5)
    arrive_in_turn(machine, (1, 0.0), (0, 8.0), (2, 8.0), (0, 9.0), (2, 9.0), (1, 10.0), (0, 16.0), (2, 16.0))
    return machine


def test_who_is_not_the_fastest_is_not_granted_anything() -> None:
    assert arrive_in_turn(three(), (0, 17.0), (0, 18.0), (2, 18.5)) == [
        "0 goes: granted",
        "0 goes: using-grant",
        "2 waits: too-far",
    ]


def test_who_ties_with_the_fastest_is_the_fastest() -> None:
    assert arrive_in_turn(three(), (0, 17.0), (2, 17.0)) == ["0 goes: granted", "2 goes: granted"]


def test_a_grant_holds_also_when_its_worker_is_no_longer_the_fastest() -> None:
    machine = three()
    arrive_in_turn(machine, (0, 17.0), (2, 17.0), (2, 18.0), (2, 19.0))
    assert arrive(machine, 0, 19.5) == ["0 goes: using-grant"]


def test_a_grant_is_used_up_also_within_the_lower_bound() -> None:
    """As printed: whoever has a grant is released on it, before anybody looks at its lead."""
    machine = fast_and_slow()
    arrive_in_turn(machine, (0, 16.0), (0, 17.0), (1, 17.5), (1, 17.6))
    assert arrive(machine, 0, 18.0) == ["0 goes: using-grant"]
    assert machine.pace.counts.lead(0) == 1


@pytest.mark.parametrize("arrivals", [[(0, 1.0), (0, 2.0)], [(1, 0.5), (0, 1.0), (0, 2.0), (0, 3.0)]])
def test_nothing_is_granted_before_the_slowest_has_pushed_twice(arrivals: list[tuple[int, float]]) -> None:
    assert arrive_in_turn(begun(2, lower=1, upper=5), *arrivals)[-1] == "0 waits: unpredicted"


def test_nothing_is_granted_to_one_that_has_pushed_once() -> None:
    machine = begun(2, lower=0, upper=4)
    arrive_in_turn(machine, (1, 1.0), (0, 1.0), (1, 2.0), (0, 2.0))
    machine.handle(joined(2))
    assert arrive(machine, 2, 2.5) == ["2 waits: unpredicted"]


def test_of_the_slowest_the_one_unheard_of_for_longest_is_waited_for() -> None:
    """1 and 2 are last. 2 is due at 19 s, 1 at 20 s; 2 was heard of last before 1 was, so its push counts."""
    machine = begun(3, lower=1, upper=5)
    arrive_in_turn(machine, (1, 0.0), (2, 0.0), (0, 7.0), (0, 8.0), (2, 9.5), (1, 10.0), (0, 16.0), (0, 17.0))
    assert machine.grants == {0: 1}
    assert machine.pace.laggard() == 2


# Who comes and goes


def held() -> Machine:
    """0 waits at lead 5; 1 is slow, and computes."""
    machine = fast_and_slow()
    arrive_in_turn(machine, *((0, 16.0 + step) for step in range(5)))
    assert list(machine.held) == [0]
    return machine


def test_the_held_one_is_released_when_the_slowest_leaves() -> None:
    assert told(held(), left(1)) == ["0 goes: lead"]


def test_the_held_one_is_released_when_the_slowest_declines() -> None:
    machine = held()
    assert told(machine, declined(1, 2)) == ["0 goes: lead"]
    check(machine, [(left(1, "finished"), [])])


def test_when_the_fastest_leaves_the_next_one_is_asked() -> None:
    machine = three()
    arrive_in_turn(machine, (0, 17.0), (0, 18.0))
    machine.handle(left(0))
    assert arrive(machine, 2, 18.0) == ["2 goes: granted"]


@pytest.mark.parametrize("going", ["leaves", "declines"])
def test_who_goes_takes_its_counts_times_and_grants_with_it(going: str) -> None:
    machine = fast_and_slow()
    arrive_in_turn(machine, (0, 16.0), (0, 17.0))
    assert machine.grants == {0: 2}
    machine.handle(left(0) if going == "leaves" else declined(0, 4))
    assert machine.grants == {}
    assert machine.pace.times == {1: (10.0, 0.0)}
    assert machine.pace.counts.finished == {1: 2}
    assert machine.pace.queues == {2: [((10.0,), 1)]}


def test_who_comes_back_counts_from_the_slowest_and_starts_without_times() -> None:
    machine = fast_and_slow()
    arrive_in_turn(machine, (0, 16.0), (0, 17.0))
    machine.handle(left(0))
    check(machine, [(joined(0, step=4), REFUSED), (joined(0, step=5), [release(0, 5, 6)])])
    assert arrive(machine, 0, 18.0) == ["0 goes: lead"]
    assert arrive(machine, 0, 19.0) == ["0 goes: granted"]


def test_a_joiner_is_the_slowest_of_whom_nothing_is_known() -> None:
    machine = fast_and_slow()
    machine.handle(joined(2))
    assert machine.pace.laggard() == 2
    assert arrive_in_turn(machine, (0, 16.0), (0, 17.0)) == ["0 goes: lead", "0 waits: unpredicted"]


def test_one_worker_never_waits() -> None:
    machine = begun(1, lower=0, upper=0)
    assert arrive_in_turn(machine, *((0, float(at)) for at in range(20))) == ["0 goes: lead"] * 20


# What it coincides with


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("settings", ["cap=true", "cap=false,counting=literal"])
def test_with_lower_as_upper_it_is_ssp(bound: int, settings: str) -> None:
    """The same facts cause the same orders: releases, holds and all."""
    ssp = choose(f"ssp:bound={bound}", registry())
    text = f"dssp:lower={bound},upper={bound},{settings}"
    holds = 0
    for seed in range(60):
        machine = choose(text, registry()).machine()
        world = World.of(ssp, workers=3, steps=15, departures=1, joins=1)
        for fact, orders in wander(world, random.Random(seed), turmoil=0.02):
            assert machine.handle(fact) == orders, f"history {seed}: {fact}"
            holds += any(isinstance(order, Hold) for order in orders)
    assert holds > 60


def test_with_a_lower_bound_beyond_reach_it_is_asp() -> None:
    for seed in range(60):
        machine = choose("dssp:lower=1000000000,upper=1000000000", registry()).machine()
        for fact, orders in history(choose("asp", registry()), seed):
            assert machine.handle(fact) == orders, f"history {seed}: {fact}"


# Random histories


@dataclass
class Twin(Ssp):
    """Each answer but the rest of a grant is worked out anew from the whole history."""

    config: Config = field(default_factory=Config)
    grants: dict[int, int] = field(default_factory=dict)

    def answer(self, fact: Fact) -> None:
        if isinstance(fact, StepDeclined | WorkerLeft):
            self.grants.pop(fact.worker, None)
        if isinstance(fact, UpdateArrived):
            self.apply((fact.worker, fact.step, 1.0))
            if self.goes_on(fact.worker):
                self.release(fact.worker)
            else:
                self.orders.append(Hold(worker=fact.worker))
        finished = self.finished()
        for one in [one for one in self.facts if isinstance(one, UpdateArrived) and one.worker in finished]:
            waits = one.step == self.step(one.worker)
            if waits and finished[one.worker] - min(finished.values()) <= self.config.lower:
                self.release(one.worker)

    def goes_on(self, worker: int) -> bool:
        finished, times, config = self.finished(), self.times(), self.config
        least, most = min(finished.values()), max(finished.values())
        if config.cap and finished[worker] - least > config.upper:
            self.grants[worker] = 0
            return False
        if self.grants.get(worker, 0) > 0:
            self.grants[worker] -= 1
            return True
        if finished[worker] - least <= config.lower:
            return True
        slowest = min(finished, key=lambda one: (finished[one], times[one][-1:], one))
        if finished[worker] < most or len(times[worker]) < 2 or len(times[slowest]) < 2:
            return False
        (fast_before, fast_at), (slow_before, slow_at) = times[worker][-2:], times[slowest][-2:]
        range_ = config.upper - config.lower
        steps = by_all_pairs(fast_at, fast_at - fast_before, slow_at, slow_at - slow_before, range_)
        self.grants[worker] = steps - 1 if config.counting == "corrected" else steps
        return steps > 0

    def times(self) -> dict[int, list[float]]:
        times: dict[int, list[float]] = {}
        for fact in self.facts:
            match fact:
                case TrainingBegan(members=members):
                    times = {worker: [] for worker, _, _ in members}
                case WorkerJoined(worker=worker):
                    times[worker] = []
                case UpdateArrived(worker=worker, at=at):
                    times[worker].append(at)
        return times


LIVELY = ("dssp:lower=0,upper=3", "dssp:lower=1,upper=4,counting=literal", "dssp:lower=0,upper=2,cap=false")


def lively(text: str, seed: int) -> World:
    """A company whose steps are many enough for grants."""
    return World.of(choose(text, registry()), workers=2 + seed % 3, steps=14, departures=2, joins=2, pulls=False)


@pytest.mark.parametrize("text", LIVELY)
def test_the_machine_answers_as_its_obvious_twin(text: str) -> None:
    codes: set[object] = set()
    for seed in range(40):
        twin = Twin(config=choose(text, registry()).config)
        for number, (fact, orders) in enumerate(wander(lively(text, seed), random.Random(seed), 0.02), start=1):
            assert orders == twin.handle(fact), f"history {seed}, fact {number}: {fact}"
            codes |= {order.why[0] for order in orders}
    wanted = {"granted", "using-grant", "stop-now", "too-far", "unpredicted", "lead"}
    assert codes >= (wanted if "cap=false" in text else wanted | {"cap"})


@pytest.mark.parametrize("text", LIVELY)
@each_seed(range(5))
def test_a_machine_restored_from_json_in_the_middle_of_a_grant_decides_the_same(text: str, seed: int) -> None:
    restored = choose(text, registry()).machine()
    for fact, orders in wander(lively(text, seed), random.Random(seed), 0.02):
        restored = from_plain(Machine, json.loads(json.dumps(to_plain(restored), allow_nan=False)))
        answer = restored.handle(fact)
        assert [(order, order.why) for order in answer] == [(order, order.why) for order in orders]


@pytest.mark.parametrize("text", LIVELY)
def test_in_every_reachable_state_with_the_widest_grants_nobody_is_stuck(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk stands still in time: the controller would never grant anything in it."""
    monkeypatch.setattr(dssp, "controller", lambda *arguments: (arguments[-1], 0.0))
    assert walk(choose(text, registry()), workers=2, steps=5, departures=1) > 100


# Virtual time


@dataclass
class Outcome:
    done: list[int]
    gap: int = 0
    """The greatest difference of two workers' steps."""
    codes: dict[str, int] = field(default_factory=dict)
    """How often each reason was given."""


def emulate(text: str, workers: int, compute: Callable[[int, int], float], until: float) -> Outcome:
    """The machine in a world without transfers, in which a worker's step takes compute(worker, step) seconds."""
    machine = choose(text, registry()).machine()
    outcome = Outcome(done=[0] * workers)
    numbers = count()
    computing: list[tuple[float, int, Release]] = []
    orders = machine.handle(began(*range(workers)))
    now = 0.0
    while True:
        for order in orders:
            code = str(order.why[0])
            outcome.codes[code] = outcome.codes.get(code, 0) + 1
            if isinstance(order, Release):
                heappush(computing, (now + compute(order.worker, order.step), next(numbers), order))
        now, _, release = heappop(computing)
        if now > until:
            return outcome
        machine.handle(ready(release.worker, release.step, release.version, at=now))
        orders = machine.handle(arrived(release.worker, release.step, at=now))
        outcome.done[release.worker] += 1
        outcome.gap = max(outcome.gap, max(outcome.done) - min(outcome.done))


@pytest.mark.parametrize(
    ("text", "done", "gap"),
    [
        ("asp", [1000, 500], 500),
        ("ssp:bound=3", [503, 500], 4),
        ("ssp:bound=15", [515, 500], 16),
        ("dssp:cap=false,counting=literal", [1000, 500], 500),
        ("dssp:cap=false", [1000, 500], 500),
        ("dssp", [503, 500], 16),
    ],
)
def test_counts_of_two_workers_of_which_one_is_twice_as_fast(text: str, done: list[int], gap: int) -> None:
    """The cap decides: without it the fastest is granted steps for ever, with it the long-run rate is SSP's."""
    outcome = emulate(text, 2, lambda worker, step: (1.0, 2.0)[worker], until=1000.0)
    assert (outcome.done, outcome.gap) == (done, gap)


@pytest.mark.parametrize("jitter", [0.0, 0.02])
def test_equal_workers_are_never_asked_and_never_wait(jitter: float) -> None:
    chance = random.Random(1)
    outcome = emulate("dssp", 4, lambda worker, step: chance.uniform(1 - jitter, 1 + jitter), until=200.0)
    assert set(outcome.codes) == {"began", "on-arrival", "lead"}


def bursts(length: int, seed: int) -> Callable[[int, int], float]:
    """A step takes 1 s ± 2 %; three times as long in so many of 40 in a row, of the two workers in turn."""
    chances = [random.Random(f"{seed} {worker}") for worker in range(2)]

    def compute(worker: int, step: int) -> float:
        return (3.0 if (step + 20 * worker) % 40 < length else 1.0) * chances[worker].gauss(1.0, 0.02)

    return compute


@pytest.mark.parametrize("length", [4, 6])
@each_seed(range(3))
def test_where_bursts_of_slowness_alternate_it_does_more_than_ssp_at_lower_and_no_more_than_at_upper(
    length: int, seed: int
) -> None:
    steps, gaps = {}, {}
    for text in ("ssp:bound=3", "dssp", "ssp:bound=15", "asp"):
        outcome = emulate(text, 2, bursts(length, seed), until=1000.0)
        steps[text], gaps[text] = sum(outcome.done), outcome.gap
    assert 1.02 * steps["ssp:bound=3"] < steps["dssp"] <= steps["ssp:bound=15"] <= steps["asp"]
    assert gaps["ssp:bound=3"] < gaps["dssp"] <= 15 + 1


# What is said


def test_a_grant_says_how_much_and_why() -> None:
    machine = fast_and_slow()
    arrive(machine, 0, 16.0)
    version = machine.roster.seats[0].version
    machine.handle(ready(0, 3, version))
    *_, order = machine.handle(arrived(0, 3, at=17.0))
    said = sentence(order.why, spec_of(machine).reasons)
    assert said == "its lead is 2: granted 3 more steps, to stop 0 s from a push of worker 1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lower": -1}, "dssp: lower is -1 steps; it must be 0 or more"),
        ({"upper": -1}, "dssp: upper is -1 steps; it must be 0 or more"),
        ({"lower": 4, "upper": 3}, "dssp: upper is 3 steps, and lower 4; upper must be 4 or more"),
    ],
)
def test_the_range_begins_at_0_or_more_and_ends_where_it_begins_or_later(
    settings: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**settings)
