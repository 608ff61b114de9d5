"""The one loop: facts in, orders out. Real runs and simulated ones differ only in its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paceline.core.facts import Fact
from paceline.core.machine import Machine
from paceline.core.orders import Order


def drive(
    machine: Machine,
    facts: Iterable[Fact],
    carry_out: Callable[[Order], None],
    record: Callable[[Fact, tuple[Order, ...]], None],
) -> None:
    """Hand each fact to the machine, record it with the machine's orders, and carry these out in turn.

    `facts` is a live source: it later yields what `carry_out` has caused. `record` is
    called before any order is carried out, so the record never lacks a cause.
    """
    for fact in facts:
        orders = machine.handle(fact)
        record(fact, orders)
        for order in orders:
            carry_out(order)
