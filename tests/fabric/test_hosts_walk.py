"""Hosts come, fall silent, are given up and come back over a seeded network: who takes part, and what that rests on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from paceline.core import hosts
from paceline.core.hosts import Admit, EndHost, Fence, Gathered, Hosts, Refuse
from paceline.fabric.control import (
    BeatAcknowledged,
    Came,
    Connected,
    Disconnected,
    Ended,
    Event,
    HeadEnd,
    HeardFrom,
)
from support.control_nodes import HEAD, HeadNode, HostNode, Register
from support.seeded_network import Fault, Faults, Network, Paused, all_tried

TIMEOUT = 10.0
NAMES = ("b", "c", "d")
FAULTS = Faults(
    pairs=tuple((host, HEAD) for host in NAMES), mortal=NAMES, pausing=(*NAMES, HEAD), timeout=TIMEOUT, end=60.0
)
IN_TIME = 4 * TIMEOUT
"""Seconds after the last fault in which every host that lives must take part."""


class Wrong(AssertionError):
    """Somebody was accused, or trusted, who should not have been."""


class FencedHost(HostNode):
    """A host that ends its workers when its fence says so, and then comes back."""

    def anew(self) -> None:
        super().anew()
        self.fence = Fence(TIMEOUT)

    def tick(self, now: float) -> None:
        if self.fence.tick(now):
            self.carry_out(self.end.end("its beats are not acknowledged"))
        super().tick(now)

    def due(self) -> float | None:
        times = [moment for moment in (HostNode.due(self), self.fence.due()) if moment is not None]
        return min(times, default=None)

    def happened(self, event: Event) -> None:
        if isinstance(event, BeatAcknowledged):
            self.fence.acknowledged(event.sent)
        super().happened(event)


class JudgingHead(HeadNode):
    """A head that admits and ends hosts as `core.hosts` says."""

    def __init__(self, network: Network, register: Register, names: tuple[str, ...]) -> None:
        super().__init__(network, register)
        self.hosts = Hosts(HEAD, len(NAMES), names, timeout=TIMEOUT)
        self.gathered = False
        self.ended: list[EndHost] = []
        self.doors: dict[str, int] = {}

    def tick(self, now: float) -> None:
        super().tick(now)
        self.obey(self.hosts.tick(now))

    def due(self) -> float | None:
        times = [moment for moment in (self.end.due(), self.hosts.due()) if moment is not None]
        return min(times, default=None)

    def happened(self, event: Event) -> None:
        now = self.network.now
        match event:
            case Came(connection, host):
                self.doors[host] = connection
                self.obey(self.hosts.came(host, now))
            case Connected(host, incarnation):
                self.hosts.connected(host, incarnation, now)
            case Disconnected(host, incarnation):
                self.hosts.disconnected(host, incarnation, now)
            case HeardFrom(host, incarnation):
                self.hosts.heard(host, incarnation, now)
            case Ended(host, incarnation, why):
                self.obey(self.hosts.leaves(host, incarnation, why))
            case _:
                super().happened(event)

    def obey(self, orders: list[hosts.Order]) -> None:
        for order in orders:
            match order:
                case Admit(host, incarnation):
                    self.incarnations[host] = incarnation
                    self.carry_out(self.end.admit(self.doors[host], incarnation, self.network.now))
                    if self.gathered:
                        self.hosts.joins(host, incarnation)
                case Refuse(host, why):
                    self.carry_out(self.end.refuse(self.doors[host], why))
                case Gathered(names):
                    if set(names) != set(NAMES):
                        raise Wrong(f"{names} are taken for all")
                    self.gathered = True
                    self.hosts.begins(self.network.now)
                case EndHost():
                    self.judged(order)
                    self.carry_out(self.end.end(order.host, order.incarnation, order.why))

    def judged(self, order: EndHost) -> None:
        """The head gives up only hosts that have ended their workers before, or can't run any."""
        self.ended.append(order)
        process: Any = self.network.process(order.host)
        runs = process is not None and not self.network.paused(order.host)
        if order.why.startswith("silent") and runs and process.end.incarnation == order.incarnation:
            raise Wrong(f"{order} while its workers run")


def history(seed: int, faults: list[Fault]) -> None:
    """Hosts begin at different moments, and say things. After the last fault, all that live must take part."""
    lots = random.Random(f"history {seed}")
    network, register = Network(seed, faults), Register()
    head = JudgingHead(network, register, lots.choice([(), NAMES]))
    network.add(HEAD, lambda: head)
    for name in NAMES:
        moment = lots.choice([0.0, lots.uniform(0, 20)])
        begin = lambda name=name: FencedHost(network, name, register, TIMEOUT)  # noqa: E731
        network.at(moment, lambda name=name, begin=begin: network.add(name, begin))  # type: ignore[misc]
    for _ in range(20):
        host, moment = lots.choice(NAMES), lots.uniform(20, FAULTS.end)
        network.at(moment, lambda host=host: network.on(host, lambda: network.process(host).say()))  # type: ignore[misc, union-attr]
        host, moment = lots.choice(NAMES), lots.uniform(20, FAULTS.end)
        network.at(moment, lambda host=host: network.on(HEAD, lambda: head.say(host)))  # type: ignore[misc]

    network.run(lambda: False, most=FAULTS.end)
    paused = [fault for fault in faults if isinstance(fault, Paused) and fault.node == HEAD]
    if len(paused) == len(faults) and sum(one.until - one.at for one in paused) < TIMEOUT / 2:
        assert head.ended == [], f"a head that was late has accused: {head.ended}"
    network.heal()
    network.run(lambda: not pending(network, head), most=FAULTS.end + IN_TIME)
    assert not pending(network, head), pending(network, head)
    for ended in head.ended:
        assert (ended.host, ended.incarnation) not in head.hosts.here().items()


def pending(network: Network, head: JudgingHead) -> list[str]:
    """What is not yet as it should be, and why."""
    found, here = [], head.hosts.here()
    for name in NAMES:
        host: Any = network.process(name)
        if host is None:
            if name in here:
                found.append(f"{name} is dead, and incarnation {here[name]} counts as here")
            continue
        if name not in here:
            found.append(f"{name} lives, and is not here")
        elif host.end.incarnation != here[name]:
            found.append(f"{name} is incarnation {host.end.incarnation}, and counts as {here[name]}")
        elif head.gathered and name not in head.hosts.members():
            found.append(f"{name} is here, and takes no part")
        if host.end.unacknowledged or head.end.unacknowledged(name):
            found.append(f"not all that {name} and the head have said has arrived")
    if not head.gathered and len(here) == len(NAMES):
        found.append("all are here, and the run does not begin")
    return found


def test_every_host_that_lives_takes_part_in_the_end_and_none_is_given_up_while_its_workers_run() -> None:
    all_tried(range(300), FAULTS, history)


@pytest.mark.long
def test_every_host_that_lives_takes_part_in_the_end_in_many_more_histories() -> None:
    all_tried(range(300, 20_000), FAULTS, history)


# --- faults of ours, which the walk must find ---------------------------------------------------------


def an_incarnation_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Hosts._ends

    def forgetful(self: Hosts, one: Any, why: str) -> list[hosts.Order]:
        orders = ends(self, one, why)
        one.incarnation -= 1
        return orders

    monkeypatch.setattr(Hosts, "_ends", forgetful)


def a_host_waits_longer_than_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledged = Fence.acknowledged
    monkeypatch.setattr(Fence, "acknowledged", lambda self, sent: acknowledged(self, sent + 0.5 * TIMEOUT))


def the_head_gives_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hosts, "tick", lambda self, now: self._listen(now) or [])


def an_ended_incarnation_is_let_in_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadEnd, "end", lambda self, host, incarnation, why: [])


OURS = [
    an_incarnation_is_reused,
    a_host_waits_longer_than_the_head,
    the_head_gives_nobody_up,
    an_ended_incarnation_is_let_in_again,
]


@pytest.mark.parametrize("ours", OURS, ids=lambda ours: ours.__name__)
def test_the_walk_finds(ours: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    ours(monkeypatch)
    with pytest.raises(AssertionError, match=r"seed \d+ fails with \d+ of \d+ faults"):
        all_tried(range(300), FAULTS, history)
