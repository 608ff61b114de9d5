"""Control between hosts over a network that breaks, stalls, doubles and reorders, under seeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from paceline.net.control import HeadEnd
from paceline.net.numbered import Data, Line
from support.control_nodes import HEAD, HeadNode, HostNode, Register
from support.seeded_network import Fault, Faults, Network, all_tried

TIMEOUT = 15.0
HOSTS = ("b", "c")
FAULTS = Faults(
    pairs=tuple((host, HEAD) for host in HOSTS), mortal=HOSTS, pausing=(*HOSTS, HEAD), timeout=TIMEOUT, end=60.0
)
IN_TIME = 30.0
"""Seconds after the last fault in which all must have arrived: a stall is noticed, and three dials fail."""


def history(seed: int, faults: list[Fault]) -> None:
    """Say things at random moments, and let some incarnations end. Then all that live must get what was sent."""
    lots = random.Random(f"history {seed}")
    network, register = Network(seed, faults), Register()
    head = HeadNode(network, register)
    network.add(HEAD, lambda: head)
    for name in HOSTS:
        network.add(name, lambda name=name: HostNode(network, name, register, TIMEOUT))  # type: ignore[misc]
    for _ in range(lots.choice([5, 40])):
        host, moment = lots.choice(HOSTS), lots.uniform(0, FAULTS.end)
        network.at(moment, lambda host=host: network.on(host, lambda: network.process(host).say()))  # type: ignore[misc, union-attr]
        host, moment = lots.choice(HOSTS), lots.uniform(0, FAULTS.end)
        network.at(moment, lambda host=host: network.on(HEAD, lambda: head.say(host)))  # type: ignore[misc]
    if lots.random() < 0.3:
        host = lots.choice(HOSTS)
        network.at(lots.uniform(0, FAULTS.end), lambda: network.on(HEAD, lambda: head.drop(host)))

    network.run(lambda: False, most=FAULTS.end)
    network.heal()
    network.run(lambda: not pending(network, head), most=FAULTS.end + IN_TIME)
    assert not pending(network, head), pending(network, head)


def pending(network: Network, head: HeadNode) -> list[str]:
    """What has not arrived, between ends that live, and why."""
    found = []
    for name in HOSTS:
        host: Any = network.process(name)
        if host is None:
            continue
        said = head.register.to_head[host.nonce]
        if not host.end.incarnation:
            found.append(f"{name} has not been admitted")
        elif (name, host.end.incarnation) in head.register.to_host:
            ordered = head.register.to_host[name, host.end.incarnation]
            if ordered.delivered < ordered.sent:
                found.append(f"{name} has {ordered.delivered} of {ordered.sent} orders")
        if said.delivered < said.sent:
            found.append(f"the head has {said.delivered} of {said.sent} messages of {name}")
        if host.end.unacknowledged:
            found.append(f"{host.end.unacknowledged} messages of {name} are not acknowledged")
        if head.end.unacknowledged(name) and head.incarnations[name] == host.end.incarnation:
            found.append(f"{head.end.unacknowledged(name)} orders to {name} are not acknowledged")
    return found


def test_each_message_arrives_once_and_in_order_whatever_the_network_does() -> None:
    all_tried(range(300), FAULTS, history)


@pytest.mark.long
def test_each_message_arrives_once_and_in_order_in_many_more_histories() -> None:
    all_tried(range(300, 5_000), FAULTS, history)


# --- faults of ours, which the walk must find ---------------------------------------------------------


def nothing_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    carried = Line._carried
    monkeypatch.setattr(Line, "_carried", lambda self: 0 * carried(self))


def what_came_before_is_delivered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Line.take

    def twice(self: Line, data: Data, now: float) -> Any:
        if data.number <= self._received:
            return self._coding.decode(data.body, ())
        return take(self, data, now)

    monkeypatch.setattr(Line, "take", twice)


def a_gap_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Line.take

    def gap(self: Line, data: Data, now: float) -> Any:
        self._received = max(self._received, data.number - 1)
        return take(self, data, now)

    monkeypatch.setattr(Line, "take", gap)


def nothing_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(self: Line, received: int) -> bytes:
        self.acknowledged(received)
        return b""

    monkeypatch.setattr(Line, "again", again)


def an_acknowledgement_counts_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledged = Line.acknowledged

    def more(self: Line, received: int) -> None:
        acknowledged(self, min(received + 1, self._sent))

    monkeypatch.setattr(Line, "acknowledged", more)


def an_incarnation_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadNode, "next_incarnation", lambda self, host: 1)


def an_old_incarnation_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    met = HeadEnd._met

    def lenient(self: HeadEnd, connection: int, one: Any, hello: Any) -> Any:
        if (seat := self._seats.get(hello.host)) is not None:
            hello.nonce, hello.incarnation = seat.nonce, 0
        return met(self, connection, one, hello)

    monkeypatch.setattr(HeadEnd, "_met", lenient)


OURS = [
    nothing_is_acknowledged,
    what_came_before_is_delivered_again,
    a_gap_is_passed_over,
    nothing_is_sent_again,
    an_acknowledgement_counts_one_too_many,
    an_incarnation_is_reused,
    an_old_incarnation_is_let_in,
]


@pytest.mark.parametrize("ours", OURS, ids=lambda ours: ours.__name__)
def test_the_walk_finds(ours: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    ours(monkeypatch)
    with pytest.raises(AssertionError, match=r"seed \d+ fails with \d+ of \d+ faults"):
        all_tried(range(300), FAULTS, history)
