"""Hosts come, fall silent, are given up and come back over a seeded network: who takes part, and what that rests on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from paceline.core import host_liveness as hosts
from paceline.core.host_liveness import Fence, Hosts
from paceline.net.control import HeadEnd
from support.control_nodes import HEAD, Register
from support.judged_nodes import FencedHost, JudgingHead
from support.seeded_network import Fault, Faults, Network, Paused, all_tried

TIMEOUT = 10.0
NAMES = ("b", "c", "d")
FAULTS = Faults(
    pairs=tuple((host, HEAD) for host in NAMES), mortal=NAMES, pausing=(*NAMES, HEAD), timeout=TIMEOUT, end=60.0
)
IN_TIME = 4 * TIMEOUT
"""Seconds after the last fault in which every host that lives must take part."""


def history(seed: int, faults: list[Fault]) -> None:
    """Hosts begin at different moments, and say things. After the last fault, all that live must take part."""
    lots = random.Random(f"history {seed}")
    network, register = Network(seed, faults), Register()
    head = JudgingHead(network, register, len(NAMES), lots.choice([(), NAMES]), TIMEOUT)
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
    all_tried(range(150), FAULTS, history)


@pytest.mark.long
def test_every_host_that_lives_takes_part_in_the_end_in_many_more_histories() -> None:
    all_tried(range(150, 5_000), FAULTS, history)


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
