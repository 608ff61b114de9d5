"""Balanced: how a round's batches are shared out, when that changes, and what stays as the protocol inside has it.

Joins, deaths and the first rounds are in `transcripts/balanced.txt`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.core.choice import check_fit, choose
from paceline.core.facts import TrainingBegan
from paceline.core.orders import ApplyUpdate, Release, ShareOut
from paceline.errors import ConfigError
from paceline.files import read_json
from paceline.protocols import registry
from paceline.protocols.balanced import batches_for, busy_with, longest, shared_out, targets
from paceline.runs.resume import check_protocol
from paceline.scenario.scenario import Kill, Scenario, Slowdown
from support.recorded import checked, simulated
from support.seeds import each_seed
from support.tables import arrived, began, ready
from support.virtual_time import Played, played
from support.walk import history


def shares(world: Played) -> list[tuple[int, tuple[int, ...]]]:
    """After which version batches were shared out, and how."""
    told, version = [], 0
    for _, order in world.story:
        if isinstance(order, ShareOut):
            told.append((version, tuple(share for _, share in order.shares)))
        elif isinstance(order, ApplyUpdate):
            version = order.version
    return told


@pytest.mark.parametrize(
    ("total", "speeds", "wanted"),
    [
        (13, (1, 1, 1, 0.25), (4, 4, 4, 1)),
        (13, (1, 1, 0.25, 0.25), (6, 5, 1, 1)),
        (12, (5, 3, 1), (7, 4, 1)),
        (10, (1, 1, 1), (4, 3, 3)),
        (4, (1, 1, 1, 0.001), (1, 1, 1, 1)),
        (3, (7,), (3,)),
    ],
)
def test_each_batch_goes_to_the_worker_that_is_done_with_it_first(
    total: int, speeds: tuple[float, ...], wanted: tuple[int, ...]
) -> None:
    assert tuple(shared_out(total, dict(enumerate(speeds))).values()) == wanted


@each_seed(range(200))
def test_all_batches_are_shared_out_and_no_other_shares_of_at_least_one_end_earlier(seed: int) -> None:
    chance = random.Random(seed)
    speeds = {worker: chance.choice([0.01, 0.3, 1.0, 1.0, 7.0]) * chance.random() + 1e-6 for worker in range(6)}
    total = chance.randrange(6, 60)
    ours, ideal = shared_out(total, speeds), targets(total, speeds)
    assert sum(ours.values()) == total == sum(ideal.values())
    assert min(ours.values()) >= 1
    rounded = {worker: int(share) for worker, share in ideal.items()}
    by_remainder = sorted(ideal, key=lambda worker: (rounded[worker] - ideal[worker], worker))
    for worker in by_remainder[: total - sum(rounded.values())]:
        rounded[worker] += 1
    assert longest(ours, speeds) <= longest(rounded, speeds)
    slowest = max(ours, key=lambda worker: ours[worker] / speeds[worker])
    for worker in speeds:  # its last batch would end no earlier elsewhere
        assert ours[slowest] == 1 or (ours[worker] + (worker != slowest)) / speeds[worker] >= longest(ours, speeds)


@pytest.mark.parametrize(
    ("speeds", "batches"),
    [
        ((1, 1, 1, 1), 4),
        ((1, 1, 1, 0.95), 4),
        ((1, 1, 1, 0.5), 7),
        ((1, 1, 1, 0.25), 12),
        ((1, 1, 1, 0.01), 16),
        ((3,), 1),
    ],
)
def test_a_round_has_as_few_batches_as_keep_the_workers_busy(speeds: tuple[float, ...], batches: int) -> None:
    assert batches_for(speeds) == batches
    busy = [busy_with(number, speeds) for number in range(len(speeds), batches)]
    assert max(busy, default=0) < 0.9


@pytest.mark.parametrize("inside", ["bsp", "all-reduce", "quorum:m=2"])
def test_with_a_batch_for_each_worker_it_gives_the_orders_of_the_protocol_inside(inside: str) -> None:
    for seed in range(50):
        machine = choose(f"balanced:batches=1,protocol={inside}", registry()).machine()
        for fact, orders in history(choose(inside, registry()), seed):
            wrapped = replace(fact, memory=None) if isinstance(fact, TrainingBegan) else fact
            answer = tuple(order for order in machine.handle(wrapped) if not isinstance(order, ShareOut))
            assert answer == orders, f"history {seed}: {fact}"


def test_workers_that_are_as_fast_as_each_other_or_nearly_keep_a_batch_each() -> None:
    for scenario in (
        Scenario(compute=1.0),
        Scenario(compute=1.0, jitter=0.03),
        Scenario(compute=1.0, speeds={1: 0.95}),
    ):
        world = played("balanced", scenario, 4, batch=8, versions=100)
        assert shares(world) == [(9, (1, 1, 1, 1))]
        assert {order.batches for _, order in world.orders(Release)} == {1}


@pytest.mark.parametrize("batches", ["auto", 16, 33])
def test_shares_stay_where_speeds_vary_by_a_few_percent(batches: str | int) -> None:
    scenario = Scenario(compute=1.0, jitter=0.03, speeds={3: 0.25})
    assert len(shares(played(f"balanced:batches={batches}", scenario, 4, batch=8, versions=200))) <= 2


@pytest.mark.parametrize("inside", ["bsp", "all-reduce", "quorum"])
def test_shares_follow_a_worker_that_becomes_slow_within_two_looks_and_one_that_recovers(
    inside: str, tmp_path: Path
) -> None:
    slow = Slowdown(worker=1, at=100.0, for_=300.0, factor=4.0)
    protocol, scenario = f"balanced:batches=12,protocol={inside}", Scenario(compute=1.0, events=(slow,))
    folder = simulated(tmp_path / "run", protocol, scenario=scenario, steps=600, slow=None)
    assert (found := checked(folder)).ok, found.wrong
    told = played(protocol, scenario, 4, batch=8, steps=600).orders(ShareOut)

    def held(second: float) -> tuple[int, ...]:
        return [tuple(share for _, share in order.shares) for at, order in told if at <= second][-1]

    longest_round = 3 * 4
    assert held(100) == (3, 3, 3, 3)
    assert held(100 + 20 * longest_round) == (4, 1, 4, 3)
    assert held(400 + 20 * 4) == (3, 3, 3, 3)


def test_a_round_takes_a_tenth_longer_at_most_than_if_batches_could_be_divided() -> None:
    world = played("balanced", Scenario(compute=1.0, speeds={3: 0.25}), 4, batch=8, versions=60)
    at = [second for second, _ in world.orders(ApplyUpdate)]
    (total,) = {sum(share) for _, share in shares(world)}
    seconds = (at[-1] - at[20]) / (len(at) - 21)
    assert total / 3.25 <= seconds <= 1.1 * total / 3.25


def test_a_dead_workers_share_is_the_others_and_one_that_joins_is_measured_before_it_has_more() -> None:
    events = (Kill(worker=2, at=30.0, rejoin_after=50.0),)
    world = played("balanced:batches=8", Scenario(compute=1.0, events=events), 4, batch=8, versions=60)
    told = [share for _, share in shares(world)]
    assert told == [(2, 2, 2, 2), (3, 3, 2), (2, 2, 2, 2)]
    rejoined = [order.batches for at, order in world.orders(Release) if order.worker == 2 and at > 30]
    assert rejoined[:3] == [1, 2, 2]


def test_a_resumed_run_keeps_the_batches_of_a_round_and_measures_its_workers_anew() -> None:
    choice = choose("balanced:protocol=quorum", registry())
    machine = played(
        "balanced:protocol=quorum", Scenario(compute=1.0, speeds={3: 0.25}), 4, batch=8, versions=60
    ).machine
    assert choice.spec.memory is not None
    memory = choice.spec.memory(machine)
    first, *releases = choice.machine().handle(began(0, 1, 2, 3, memory=memory))
    assert first == ShareOut(shares=((0, 3), (1, 3), (2, 3), (3, 3)))
    assert [order.batches for order in releases if isinstance(order, Release)] == [3] * 4


def test_gradients_of_a_script_that_draws_its_own_batches_weigh_as_many_steps_as_they_are_of() -> None:
    """A worker that made several says so, and one that made one does not."""
    machine = choose("balanced:batches=3", registry()).machine()
    machine.handle(began(0, 1))
    several = replace(ready(0, 0, 0, samples=None), weight=2)
    orders = list(machine.handle(several))
    orders += machine.handle(ready(1, 0, 0, samples=None))
    for worker in (0, 1):
        orders += machine.handle(arrived(worker, 0))
    (made,) = [order for order in orders if isinstance(order, ApplyUpdate)]
    assert made.contributions == ((0, 0, 2 / 3), (1, 0, 1 / 3))


@pytest.mark.parametrize(
    ("parameters", "gradients"),
    [("", 4), (":batches=12", 12), (":protocol=quorum:m=3", 3), (":protocol=quorum:m=3,batches=12", 9)],
)
def test_a_version_is_the_mean_of_as_many_gradients_as_batches(parameters: str, gradients: int) -> None:
    """So `compare --learning-rate-rule linear` multiplies the rate by that, where a run is told the number before."""
    assert choose(f"balanced{parameters}", registry()).gradients(4) == gradients


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("batches=0", "balanced: batches is 0 batches; it must be 1 or more, or auto"),
        ("every=0", "balanced: every is 0 rounds; it must be 1 or more"),
        ("protocol=balanced", "balanced: protocol is balanced; balanced can't contain itself"),
        *(
            (
                f"protocol={inside}",
                f"balanced: protocol is {inside}, in which a version is no mean of gradients that were all computed on "
                "the one before; choose bsp, all-reduce or quorum",
            )
            for inside in ("asp", "hsp", "local-sgd", "ripples")
        ),
        (
            "batches=3",
            "balanced: batches is 3 a round, and each of the 4 workers computes one at least; choose batches=4 or more",
        ),
        ("protocol=quorum:m=9", "quorum: m is 9 workers, and there are 4; choose m=4 or less"),
    ],
)
def test_what_can_not_be_shared_out_is_refused_in_one_line(parameters: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_fit(choose(f"balanced:{parameters}", registry()), ["host"] * 4)
    assert str(refused.value) == said


@pytest.mark.parametrize("protocol", ["balanced:protocol=all-reduce", "balanced:unit=sample,max_batch=64", "balanced"])
def test_a_run_goes_on_under_its_own_protocol(protocol: str) -> None:
    check_protocol(Path("run"), choose(protocol, registry()), choose(protocol, registry()), 2, 2)


@pytest.mark.parametrize(("before", "after"), [("balanced", "sync-switch"), ("sync-switch", "balanced:batches=4")])
def test_what_another_protocol_has_kept_is_left_alone(before: str, after: str) -> None:
    """A run may go on under another protocol if its state is in the store."""
    earlier, later = choose(before, registry()), choose(after, registry())
    machine = earlier.machine()
    machine.handle(began(0, 1, work=64))
    assert earlier.spec.memory is not None
    kept = earlier.spec.memory(machine)
    first = later.machine().handle(began(0, 1, work=64))
    assert later.machine().handle(replace(began(0, 1, work=64), memory=kept)) == first


def test_a_worker_that_dies_before_its_first_gradient_has_a_row_in_the_summary(tmp_path: Path) -> None:
    scenario = Scenario(compute=1.0, events=(Kill(worker=1, at=0.5),))
    folder = simulated(tmp_path / "run", "balanced:batches=8", scenario=scenario, workers=3, slow=None)
    row = read_json(folder / "summary.json")["per_worker"][1]
    assert (row["computed"], row["gradient_seconds"]) == (0, None)
