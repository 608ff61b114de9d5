"""What a version is made with, without processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.core.facts import Fact
from paceline.core.leases import Leases
from paceline.core.orders import ApplyUpdate
from paceline.records.journal import Journal
from paceline.records.ledger import NoLedger
from paceline.runtime.exchange import Exchange
from paceline.runtime.member import Member


class Store:
    """Keeps what versions were to be made with."""

    def __init__(self) -> None:
        self.scalars: list[Any] = []

    def apply(self, order: ApplyUpdate, pushed: list[tuple[int, float]], scalars: Any) -> None:
        self.scalars.append(scalars)

    def unclaim(self, version: int) -> None:
        pass


def member(worker: int) -> Member:
    one = Member(worker=worker, process=0, watch=0, channel=None, log=Path("log"), printed=None)  # type: ignore[arg-type]
    one.stage = "training"
    return one


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
