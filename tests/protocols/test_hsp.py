"""HSP in random histories, and the times of its model. Its rules, one by one, are in `transcripts/hsp.txt`."""

from __future__ import annotations

import pytest

from paceline.core.choice import choose
from paceline.core.facts import Fact, UpdateArrived, WorkerLeft
from paceline.core.orders import ApplyUpdate, Release, StartPush
from paceline.protocols import registry
from paceline.scenario.scenario import Network, Scenario
from support.virtual_time import Played, played
from support.walk import history, walk

# Random histories.

VARIANTS = [
    f"hsp:idle={idle},stale={stale},broadcast={broadcast},order={order}"
    for idle, stale, order in (
        ("guarded", "next", "ready"),
        ("always", "next", "rank"),
        ("always", "accumulate", "ready"),
        ("always", "discard", "rank"),
    )
    for broadcast in ("all", "order")
]


@pytest.mark.parametrize("text", VARIANTS)
def test_in_any_history_one_transfer_at_a_time_and_one_gradient_of_age_0_or_1_each(text: str) -> None:
    stale = 0
    for seed in range(60):
        on_the_way: set[tuple[int, int]] = set()
        versions: dict[tuple[int, int], int] = {}
        for fact, orders in history(choose(text, registry()), seed):
            if isinstance(fact, UpdateArrived):
                on_the_way.remove((fact.worker, fact.step))
            on_the_way = {(worker, step) for worker, step in on_the_way if not has_left(fact, worker)}
            for order in orders:
                if isinstance(order, StartPush):
                    on_the_way.add((order.worker, order.step))
                elif isinstance(order, Release):
                    versions[order.worker, order.step] = order.version
                elif isinstance(order, ApplyUpdate):
                    ages = [
                        (worker, order.version - 1 - versions[worker, step]) for worker, step, _ in order.contributions
                    ]
                    assert {age for _, age in ages} <= {0, 1}
                    stale += sum(age for _, age in ages)
            assert len(on_the_way) <= 1
    assert stale > 20


def has_left(fact: Fact, worker: int) -> bool:
    return isinstance(fact, WorkerLeft) and fact.worker == worker


@pytest.mark.parametrize("stale", ["next", "accumulate", "discard"])
@pytest.mark.parametrize("broadcast", ["all", "order"])
def test_two_workers_come_to_their_end_in_every_order_of_events(stale: str, broadcast: str) -> None:
    assert walk(choose(f"hsp:idle=always,stale={stale},broadcast={broadcast}", registry()), 2, 4, pulls=True) > 100


# Times.


def timed(text: str, compute: float, transfer: float, workers: int, speeds: dict[int, float] | None = None) -> Played:
    """Transfers share the store's link, and lose two fifths of it where several pushes enter at once."""
    network = Network(bandwidth=1e6, message=round(1e6 * transfer), incast=0.6)
    scenario = Scenario(compute=compute, speeds=speeds or {}, network=network)
    return played(text, scenario, workers, versions=41)


def period(world: Played) -> float:
    """Seconds for a version, over the last twenty: an even number, since two may alternate."""
    made = [at for at, _ in world.orders(ApplyUpdate)]
    return (made[-1] - made[-21]) / 20


@pytest.mark.parametrize(
    ("workers", "compute", "transfer", "bsp", "guarded", "share", "always"),
    [(4, 0.4, 0.05, 0.800, 0.800, 0.0, 0.450), (4, 0.4, 0.10, 1.200, 0.600, 1.0, 0.600)],
)
def test_one_push_at_a_time_loses_nothing_and_periods_and_stale_shares_are_the_models(
    workers: int, compute: float, transfer: float, bsp: float, guarded: float, share: float, always: float
) -> None:
    """With equal workers the guard allows all or nothing: it does from the point on at which a tie is reached."""
    for idle, seconds, stale in (("none", bsp, 0.0), ("guarded", guarded, share), ("always", always, 1.0)):
        world = timed(f"hsp:idle={idle},stale=next,broadcast=all", compute, transfer, workers)
        assert period(world) == pytest.approx(seconds, abs=2e-3), idle
        ages = world.ages()[-20 * workers :]
        assert sum(ages) / len(ages) == stale, idle


@pytest.mark.parametrize(("others", "allowed"), [(0.4, False), (1.79, False), (1.8, True), (1.81, True), (5.0, True)])
def test_the_guard_allows_who_is_done_when_the_version_comes(others: float, allowed: bool) -> None:
    """Worker 0 computes for 1 s. Its wait: 0.2 s for a broadcast, after what worker 1 computes longer (or a push)."""
    world = timed("hsp:idle=guarded,stale=next,broadcast=all", 1.0, 0.1, 2, speeds={1: 1.0 / others})
    ahead = [one for _, one in world.orders(Release) if one.worker == 0 and one.parameters == "held"]
    assert bool(ahead) == allowed


@pytest.mark.parametrize(("workers", "compute", "transfer"), [(4, 0.4, 0.05), (8, 0.8, 0.1), (4, 0.1, 0.1)])
def test_a_broadcast_in_order_is_a_pipeline_without_idle_computing(
    workers: int, compute: float, transfer: float
) -> None:
    """A round takes a computation and n + 1 transfers, instead of 2 n of them."""
    world = timed("hsp:idle=none,broadcast=order", compute, transfer, workers)
    assert period(world) == pytest.approx(compute + (workers + 1) * transfer, abs=1e-6)
