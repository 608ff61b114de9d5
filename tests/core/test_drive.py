"""The one loop."""

from __future__ import annotations

import pytest

from paceline.core.choice import choose
from paceline.core.drive import drive
from paceline.core.facts import Fact
from paceline.core.orders import Order
from paceline.errors import ProtocolViolation
from paceline.protocols import registry
from support.tables import began, push, ready, release


def test_facts_are_recorded_with_their_orders_before_any_is_carried_out_and_cause_others() -> None:
    story: list[object] = []
    waiting: list[Fact] = [began(0)]

    def carry_out(order: Order) -> None:
        story.append(order)
        if order == release(0, 0, 0):
            waiting.append(ready(0, 0, 0))

    drive(choose("asp", registry()).machine(), waiting, carry_out, lambda *recorded: story.append(recorded))
    assert story == [
        (began(0), (release(0, 0, 0),)),
        release(0, 0, 0),
        (ready(0, 0, 0), (push(0, 0),)),
        push(0, 0),
    ]


def test_an_illegal_fact_is_raised_and_not_recorded() -> None:
    recorded: list[Fact] = []
    with pytest.raises(ProtocolViolation, match="begun already"):
        drive(
            choose("asp", registry()).machine(),
            [began(0), began(0)],
            lambda order: None,
            lambda fact, _: recorded.append(fact),
        )
    assert recorded == [began(0)]
