"""The one loop."""

from __future__ import annotations

from collections import deque

import pytest

from paceline.core.choice import choose
from paceline.core.drive import drive
from paceline.core.facts import Fact, GradientReady, TrainingBegan, UpdateArrived
from paceline.core.orders import Order, Release, StartPush
from paceline.errors import ProtocolViolation
from paceline.protocols import registry

BEGAN = TrainingBegan(members=((0, "host", 0),), version=0, at=0.0)


def test_facts_are_recorded_with_their_orders_before_any_is_carried_out() -> None:
    story: list[object] = []
    waiting: deque[Fact] = deque([BEGAN])

    def facts():  # type: ignore[no-untyped-def]
        while waiting:
            yield waiting.popleft()

    def carry_out(order: Order) -> None:
        story.append(order)
        if isinstance(order, Release) and order.step < 2:
            waiting.append(
                GradientReady(worker=0, step=order.step, version=order.version, samples=1, at=float(order.step))
            )
        elif isinstance(order, StartPush):
            waiting.append(UpdateArrived(worker=0, step=order.step, at=0.5))

    def record(fact: Fact, orders: tuple[Order, ...]) -> None:
        story.append((fact, orders))

    drive(choose("asp", registry()).machine(), facts(), carry_out, record)
    due: list[Order] = []
    for entry in story:
        if isinstance(entry, tuple):
            assert not due, "a fact was handled before the orders of the last were carried out"
            due = list(entry[1])
        else:
            assert due.pop(0) is entry
    assert [type(entry[0]).__name__ for entry in story if isinstance(entry, tuple)] == [
        "TrainingBegan",
        *["GradientReady", "UpdateArrived"] * 2,
    ]


def test_an_illegal_fact_is_raised_and_not_recorded() -> None:
    recorded: list[Fact] = []
    with pytest.raises(ProtocolViolation, match="begun already"):
        drive(
            choose("asp", registry()).machine(),
            [BEGAN, BEGAN],
            lambda order: None,
            lambda fact, _: recorded.append(fact),
        )
    assert recorded == [BEGAN]
