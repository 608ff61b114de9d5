"""DSSP: its controller against all pairs, its machine against a slow twin, and what it gains in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from paceline.core.choice import choose
from paceline.core.facts import Fact, StepDeclined, TrainingBegan, UpdateArrived, WorkerJoined, WorkerLeft
from paceline.core.orders import ApplyUpdate, Hold
from paceline.errors import ConfigError
from paceline.protocols import dssp, registry
from paceline.protocols.dssp import Config, controller
from paceline.scenario.scenario import Scenario, Slowdown
from protocols.twins import Ssp
from support.seeds import each_seed
from support.virtual_time import played
from support.walk import World, walk, wander

# The controller


def by_all_pairs(fast_at: float, fast_interval: float, slow_at: float, slow_interval: float, most: int) -> int:
    def wait(steps: int) -> float:
        stop = fast_at + steps * fast_interval
        return min(abs(slow_at + (k + 1) * slow_interval - stop) for k in range(most + 1))

    return min(range(most + 1), key=wait)


@pytest.mark.parametrize(
    ("fast_at", "fast_interval", "slow_at", "slow_interval", "most", "steps"),
    [
        pytest.param(10.0, 1.0, 9.0, 3.0, 0, 0, id="an-empty-range-leaves-no-choice"),
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
def test_in_every_reachable_state_with_the_widest_grants_nobody_is_stuck(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk stands still in time: the controller would never grant anything in it."""
    monkeypatch.setattr(dssp, "controller", lambda *arguments: (arguments[-1], 0.0))
    assert walk(choose(text, registry()), workers=2, steps=5, departures=1) > 100


# Virtual time


@pytest.mark.parametrize("jitter", [0.0, 0.02])
def test_equal_workers_are_never_asked_and_never_wait(jitter: float) -> None:
    world = played("dssp", Scenario(compute=1.0, jitter=jitter), 4, seconds=200.0)
    assert {order.why[0] for _, order in world.story} == {"began", "any-time", "on-arrival", "lead"}


def in_bursts(seconds: float) -> Scenario:
    """A step takes 1 s, three times as long in so many of every 40 seconds, of the two workers in turn."""
    bursts = (Slowdown(worker=worker, at=20.0 * worker, for_=seconds, every=40.0, factor=3.0) for worker in range(2))
    return Scenario(compute=1.0, jitter=0.02, events=tuple(bursts))


@pytest.mark.parametrize("seconds", [12.0, 18.0])
def test_where_bursts_of_slowness_alternate_it_does_more_than_ssp_at_lower_and_no_more_than_at_upper(
    seconds: float,
) -> None:
    steps = {
        text: len(played(text, in_bursts(seconds), 2, seconds=1000.0).orders(ApplyUpdate))
        for text in ("ssp:bound=3", "dssp", "ssp:bound=15", "asp")
    }
    assert 1.02 * steps["ssp:bound=3"] < steps["dssp"] <= steps["ssp:bound=15"] <= steps["asp"]


def test_the_range_ends_where_it_begins_or_later() -> None:
    with pytest.raises(ConfigError, match="dssp: upper is 3 steps, and lower 4; upper must be 4 or more"):
        Config(lower=4, upper=3)
