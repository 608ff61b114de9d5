"""What a version is made with, without processes."""

from __future__ import annotations

from typing import Any

from paceline.core.facts import Fact
from paceline.core.leases import Leases
from paceline.core.orders import ApplyUpdate, Release, StartPush
from paceline.records.journal import Journal
from paceline.records.ledger import NoLedger
from paceline.runtime import messages
from paceline.runtime.exchange import Exchange
from paceline.runtime.member import Member
from paceline.runtime.slots import Slots


class Store:
    """Keeps what versions were to be made with."""

    def __init__(self) -> None:
        self.scalars: list[Any] = []
        self.slots = Slots(9)

    def apply(self, order: ApplyUpdate, pushed: list[tuple[int, float]], scalars: Any) -> None:
        self.scalars.append(scalars)

    def unclaim(self, version: int) -> None:
        pass


def member(worker: int) -> Member:
    return Member(worker=worker, stage="training")


def test_a_version_is_made_with_the_hyperparameters_of_the_lowest_worker_s_very_step() -> None:
    """It may have computed another one since, with other rates, before the version is ordered."""
    members, facts = {worker: member(worker) for worker in (0, 1)}, list[Fact]()
    exchange = Exchange(None, True, 2, members, Journal(NoLedger()), lambda *_: None, facts.append, lambda: 0.0)
    store = Store()
    exchange.begin(store, Leases("queue", [0, 1]), 0)  # type: ignore[arg-type]
    for step, rate in ((0, 0.1), (1, 0.2)):
        for one in members.values():
            one.scalars = [{"lr": rate + one.worker}]
            one.areas[step], one.scales[step] = step, 1.0
            exchange.gradient_ready(one, step)
    exchange.carry_out(ApplyUpdate(version=1, contributions=((0, 0, 0.5), (1, 0, 0.5))))
    members[1].rate_scale = 10.0
    exchange.carry_out(ApplyUpdate(version=2, contributions=((1, 1, 1.0),)))
    assert store.scalars == [[{"lr": 0.1}], [{"lr": 12.0}]]


def test_an_eager_release_names_all_that_the_worker_pushed_and_that_its_version_lacks() -> None:
    """By the area in which it still lies: also where that is the one which the step is to be put into."""
    one, sent = member(0), list[messages.Compute]()
    exchange = Exchange(
        None,
        False,
        2,
        {0: one},
        Journal(NoLedger()),
        lambda _, message: sent.append(message),
        lambda _: None,
        lambda: 0.0,
    )  # type: ignore[arg-type]
    store = Store()
    exchange.begin(store, Leases("queue", [0]), 0)  # type: ignore[arg-type]

    def released(step: int, version: int, scale: float) -> tuple[int, list[tuple[int, float]]]:
        """The step before is pushed; the area and what is to be added, as the worker hears it."""
        exchange.carry_out(StartPush(worker=0, step=step - 1, scale=scale))
        exchange.carry_out(Release(worker=0, step=step, version=version, parameters="eager"))
        return sent[-1].area, sent[-1].ahead

    def made(version: int, step: int) -> None:
        order = ApplyUpdate(version=version, contributions=((0, step, 1.0),))
        exchange.carry_out(order)
        store.slots.committed(version, version)
        exchange.applied(order)

    one.areas[0], one.scalars_of = 0, {step: [] for step in range(5)}
    assert released(1, 0, 0.5) == (1, [(0, 0.5)])
    made(1, 0)
    assert released(2, 0, 0.25) == (0, [(0, 0.5), (1, 0.25)])
    made(2, 1)
    assert released(3, 2, 1.0) == (1, [(0, 1.0)])
    made(3, 2)
    assert released(4, 2, 1.0) == (0, [(0, 1.0), (1, 1.0)])
