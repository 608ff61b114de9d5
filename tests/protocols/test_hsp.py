"""HSP's rules, one test each; and the times of its model, with the link that BSP's are computed with, too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.core.facts import Fact, GradientReady, ParametersTaken, UpdateArrived, WorkerLeft
from paceline.core.machine import Machine as AnyMachine
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Release, StartPull, StartPush
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.protocols.hsp import Config, Machine
from paceline.scenario.network import SharedLink
from support.tables import (
    Row,
    apply,
    arrived,
    began,
    check,
    hold,
    pull,
    push,
    pushed,
    ready,
    reasons,
    release,
    run,
    taken,
)
from support.walk import history, walk

THIRD = 1 / 3


PLAIN: Any = {"order": "ready", "idle": "guarded", "stale": "next", "broadcast": "all"}
"""What the tests here mean where they name nothing else, whatever the default is."""


def begun(workers: int, version: int = 0, **settings: Any) -> Machine:
    """Everybody has its parameters and computes its first step."""
    return run(
        Machine(Config(**(PLAIN | settings))),
        [
            (began(*range(workers), version=version), [release(worker, 0, version) for worker in range(workers)]),
            *((taken(worker, version), []) for worker in range(workers)),
        ],
    )


def held(worker: int, step: int, version: int) -> Release:
    return release(worker, step, version, "held")


def halves(version: int, first: int, second: int) -> Order:
    return apply(version, (0, first, 0.5), (1, second, 0.5))


# Transfers.


def turns(order: str, rows: list[Row], workers: int) -> list[int]:
    """In which order the gradients of workers that are ready while worker 9 transfers are taken."""
    machine = Machine(Config(**(PLAIN | {"order": order, "idle": "none"})))
    members = (*range(workers), 9)
    check(
        machine,
        [
            (began(*members), [release(worker, 0, 0) for worker in members]),
            *((taken(worker, 0), []) for worker in members),
            *rows,
        ],
    )
    return order_of_pushes(machine, 9, 0)


def order_of_pushes(machine: Machine, worker: int, step: int) -> list[int]:
    """One arrival after the other from that push on, until nothing is on its way: who comes when."""
    order = []
    while True:
        orders = machine.handle(arrived(worker, step))
        granted = [one for one in orders if isinstance(one, StartPush)]
        if not granted:
            return order
        worker, step = granted[0].worker, granted[0].step
        order.append(worker)


NINE_FIRST: list[Row] = [
    (ready(9, 0, 0, at=9.0), [push(9, 0)]),
    (ready(2, 0, 0, at=30.0), [hold(2)]),
    (ready(0, 0, 0, at=40.0), [hold(0)]),
    (ready(1, 0, 0, at=20.0), [hold(1)]),
]


@pytest.mark.parametrize(("order", "expected"), [("ready", [2, 0, 1]), ("rank", [0, 1, 2])])
def test_of_those_that_are_ready_the_first_by_order_is_next(order: str, expected: list[int]) -> None:
    assert turns(order, NINE_FIRST, workers=3) == expected


@pytest.mark.parametrize("order", ["ready", "rank"])
def test_the_link_is_not_kept_free_for_one_that_is_not_ready(order: str) -> None:
    check(begun(3, order=order, idle="none"), [(ready(2, 0, 0), [push(2, 0)])])


# Who computes ahead.


BOTH_FRESH = [halves(1, 0, 0), release(0, 1, 1), release(1, 1, 1)]


def ahead(**settings: Any) -> Machine:
    """Both workers compute step 1 on version 0, for the round that makes version 2; version 1 is on its way to them."""
    return run(
        begun(2, idle="always", **settings),
        [
            *pushed(0, 0, 0, [held(0, 1, 0)]),
            *pushed(1, 0, 0, [held(1, 1, 0), halves(1, 0, 0), pull(0, 1), pull(1, 1)]),
        ],
    )


@pytest.mark.parametrize(("others", "allowed"), [(0.4, False), (1.79, False), (1.8, True), (1.81, True), (5.0, True)])
def test_the_guard_allows_who_is_done_when_the_version_comes(others: float, allowed: bool) -> None:
    """Worker 0 computes for 1 s. Its wait: 0.2 s for a broadcast, after what worker 1 computes longer (or a push)."""
    world = Timed.of("hsp:idle=guarded,stale=next,broadcast=all", [1.0, others], transfer=0.1).play(rounds=6)
    ahead = [one for one in world.releases if one.worker == 0 and one.parameters == "held"]
    assert bool(ahead) == allowed
    if allowed:
        assert ahead[0] == held(0, 2, 1)  # worker 1 had to be known first


def timed(worker: int, step: int, version: int, at: float, orders: list[Order]) -> list[Row]:
    """As `pushed`, in a push that takes no time."""
    return [(ready(worker, step, version, at=at), [push(worker, step)]), (arrived(worker, step, at=at), orders)]


def measured(first: float, second: float) -> Machine:
    """Worker 0 has computed for so many seconds, worker 1 for so many, fewer; a broadcast took 10 s, a push none."""
    return run(
        Machine(Config(**PLAIN)),
        [
            (began(0, 1), [release(0, 0, 0), release(1, 0, 0)]),
            (taken(0, 0, at=10.0), []),
            (taken(1, 0, at=10.0), []),
            *timed(1, 0, 0, 10.0 + second, [hold(1)]),
            *timed(0, 0, 0, 10.0 + first, [halves(1, 0, 0), release(0, 1, 1), release(1, 1, 1)]),
        ],
    )


# What becomes of a stale gradient.


# How a version goes out.


# Who comes and goes.


# What is said, and what is refused.


def test_a_hold_names_who_transfers_whom_a_round_waits_for_and_what_has_not_come() -> None:
    machine = begun(3, idle="none")
    check(machine, [(ready(1, 0, 0), [push(1, 0)])])
    assert reasons(machine, ready(0, 0, 0)) == ["worker 1 transfers the gradient of its step 0"]
    assert reasons(machine, arrived(1, 0))[0] == "version 1 waits for workers 0, 2"
    machine = ahead()
    check(machine, [(ready(0, 1, 0), [push(0, 1)])])
    assert reasons(machine, arrived(0, 1)) == ["version 1 has not reached it yet"]
    machine = begun(2, idle="always")
    check(machine, pushed(0, 0, 0, [held(0, 1, 0)]))
    assert reasons(machine, ready(0, 1, 0)) == ["its gradient is of the round after version 1, which is not made yet"]


def test_in_order_a_hold_names_who_gets_the_version_first() -> None:
    machine = begun(2, idle="none", broadcast="order")
    check(machine, [*pushed(1, 0, 0, [hold(1)]), (ready(0, 0, 0), [push(0, 0)])])
    assert reasons(machine, arrived(0, 0))[1:] == ["version 1 goes to worker 1 first", "version 1 goes to all workers"]


def test_a_release_ahead_says_why() -> None:
    machine = run(begun(2), [*pushed(0, 0, 0, [hold(0)]), (ready(1, 0, 0), [push(1, 0)])])
    assert reasons(machine, arrived(1, 0))[0] == (
        "version 1 is predicted to come in 0 s, and its gradient to be computed in 0 s"
    )


@pytest.mark.parametrize("name", ["order", "idle", "stale", "broadcast"])
def test_a_parameter_is_one_of_its_words(name: str) -> None:
    with pytest.raises(ConfigError, match=f'hsp: {name} is "some"; it must be one of '):
        Config(**{name: "some"})  # type: ignore[arg-type]


# Random histories.

VARIANTS = [
    f"hsp:idle={idle},stale={stale},broadcast={broadcast},order={order}"
    for idle, stale in (("guarded", "next"), ("always", "next"), ("always", "accumulate"), ("always", "discard"))
    for broadcast in ("all", "order")
    for order in ("ready", "rank")
]


@pytest.mark.parametrize("order", ["ready", "rank"])
def test_without_idle_computing_versions_and_releases_are_bsps(order: str) -> None:
    """So the weights are, too, bit for bit. What it orders besides are the turns of the transfers."""

    def but_turns(orders: tuple[Order, ...]) -> list[Order]:
        return [one for one in orders if isinstance(one, ApplyUpdate | Release | DropUpdate)]

    for seed in range(100):
        bsp = choose("bsp", registry()).machine()
        for fact, orders in history(choose(f"hsp:idle=none,broadcast=all,order={order}", registry()), seed):
            assert but_turns(bsp.handle(fact)) == but_turns(orders), f"history {seed}: {fact}"


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

SIZE = 1_000_000  # bytes of a transfer; what it takes is the link's bandwidth


@dataclass
class Timed:
    """A machine among workers that compute for known times, with a link that all transfers share."""

    machine: AnyMachine
    compute: list[float]
    link: SharedLink
    coming: list[tuple[float, int, Fact]] = field(default_factory=list)
    """A heap of (second, worker, gradient)."""
    pulled_for: dict[int, Release] = field(default_factory=dict)
    """Steps that begin when their parameters have come."""
    pushing: dict[int, int] = field(default_factory=dict)
    releases: list[Release] = field(default_factory=list)
    made: list[float] = field(default_factory=list)
    """When each version was ordered."""
    stale: list[float] = field(default_factory=list)
    """The share of stale gradients in each version."""
    versions: dict[int, int] = field(default_factory=dict)
    """What is on its way to each worker, or was last."""
    pushes: int = 0
    """The most that were on their way at once."""

    @classmethod
    def of(cls, text: str, compute: list[float], transfer: float, incast: float = 1.0) -> Timed:
        return cls(choose(text, registry()).machine(), compute, SharedLink(SIZE / transfer, 0.0, incast))

    def play(self, rounds: int) -> Timed:
        self.obey(self.machine.handle(began(*range(len(self.compute)))), 0.0)
        for fact in self.facts():
            self.obey(self.machine.handle(fact), fact.at)
            self.pushes = max(self.pushes, len(self.pushing))
            if len(self.made) >= rounds:
                break
        return self

    def facts(self) -> Iterator[Fact]:
        while True:
            end = self.link.next_end()
            if end is None or (self.coming and self.coming[0][0] < end):
                yield heappop(self.coming)[2]
                continue
            ended = self.link.finish(end)
            assert ended is not None
            worker, at = ended.worker, ended.ended
            if ended.direction == "push":
                yield UpdateArrived(worker=worker, step=self.pushing.pop(worker), at=at)
                continue
            if worker in self.pulled_for:
                self.begin(self.pulled_for.pop(worker), at)
            yield ParametersTaken(worker=worker, version=self.versions[worker], at=at)

    def obey(self, orders: tuple[Order, ...], at: float) -> None:
        for order in orders:
            match order:
                case Release(worker=worker, parameters=parameters):
                    self.releases.append(order)
                    if parameters == "pull":
                        self.pulled_for[worker] = order
                        self.pull(worker, order.version, at)
                    else:
                        self.begin(order, at)
                case StartPull(worker=worker, version=version):
                    self.pull(worker, version, at)
                case StartPush(worker=worker, step=step):
                    self.pushing[worker] = step
                    self.link.begin(worker, "push", SIZE, at)
                case ApplyUpdate(version=version, contributions=parts):
                    on = {(one.worker, one.step): one.version for one in self.releases[-5 * len(self.compute) :]}
                    old = [on[worker, step] < version - 1 for worker, step, _ in parts]
                    self.made.append(at)
                    self.stale.append(sum(old) / len(old))

    def pull(self, worker: int, version: int, at: float) -> None:
        self.versions[worker] = version
        self.link.begin(worker, "pull", SIZE, at)

    def begin(self, order: Release, at: float) -> None:
        done = at + self.compute[order.worker]
        fact = GradientReady(worker=order.worker, step=order.step, version=order.version, samples=1, at=done)
        heappush(self.coming, (done, order.worker, fact))

    def period(self) -> float:
        """Seconds for a round, over the last twenty: an even number, since two may alternate."""
        return (self.made[-1] - self.made[-21]) / 20

    def stale_share(self) -> float:
        return sum(self.stale[-20:]) / 20


MODEL = [  # workers, compute, transfer; periods of bsp, bsp at incast 0.6, hsp guarded and its stale share, hsp always
    (4, 0.4, 0.05, 0.800, 0.933, 0.800, 0.0, 0.450),
    (4, 0.4, 0.10, 1.200, 1.467, 0.600, 1.0, 0.600),
    (8, 0.8, 0.10, 2.400, 2.933, 1.199, 1.0, 1.199),
]


@pytest.mark.parametrize(("n", "compute", "transfer", "bsp", "incast", "guarded", "share", "always"), MODEL)
def test_periods_and_stale_shares_are_the_models(
    n: int,
    compute: float,
    transfer: float,
    bsp: float,
    incast: float,
    guarded: float,
    share: float,
    always: float,
) -> None:
    """With equal workers the guard allows all or nothing: it does from the point on at which a tie is reached."""

    def played(text: str, factor: float = 1.0) -> Timed:
        return Timed.of(text, [compute] * n, transfer, factor).play(rounds=41)

    assert played("bsp").period() == pytest.approx(bsp, abs=1e-3)
    assert played("bsp", 0.6).period() == pytest.approx(incast, abs=1e-3)
    for text, period, old in (("idle=none", bsp, 0.0), ("idle=guarded", guarded, share), ("idle=always", always, 1.0)):
        world = played(f"hsp:{text},stale=next,broadcast=all", 0.6)  # one push at a time loses nothing
        assert world.period() == pytest.approx(period, abs=2e-3), text
        assert world.stale_share() == old, text
        assert world.pushes == 1, text


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("compute", [0.1, 0.2, 0.8, 1.6])
def test_two_rounds_computed_ahead_take_one_computation_and_2_n_transfers_if_nothing_else_bounds_them(
    n: int, compute: float
) -> None:
    """A worker's own cycle does, and the link."""
    transfer = 0.1
    world = Timed.of("hsp:idle=always,stale=next,broadcast=all", [compute] * n, transfer).play(rounds=41)
    bound = max(compute + transfer, n * transfer, (compute + 2 * n * transfer) / 2)
    assert world.period() == pytest.approx(bound, abs=1e-6)


@pytest.mark.parametrize(("n", "compute", "transfer"), [(4, 0.4, 0.05), (4, 0.4, 0.1), (8, 0.8, 0.1), (4, 0.1, 0.1)])
def test_a_broadcast_in_order_is_a_pipeline_without_idle_computing(n: int, compute: float, transfer: float) -> None:
    """A round takes a computation and n + 1 transfers, instead of 2 n of them."""
    world = Timed.of("hsp:idle=none,broadcast=order", [compute] * n, transfer).play(rounds=41)
    assert world.period() == pytest.approx(compute + (n + 1) * transfer, abs=1e-6)
