"""All of what hosts have between them, over one seeded network: control, membership and fetches, each on the others."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from paceline.core import host_liveness as hosts
from paceline.core.host_liveness import Admit, EndHost
from paceline.net.control import Delivered, Event, HeadEnd
from paceline.transfer.fetch_table import FetchTable
from paceline.transfer.messages import Peer
from support.control_nodes import HEAD, Order, Register
from support.fetch_nodes import ITEMS, NAMES, Node
from support.judged_nodes import FencedHost, JudgingHead
from support.seeded_network import Fault, Faults, Network, all_tried

TIMEOUT = 10.0
FAULTS = Faults(
    pairs=(*((host, HEAD) for host in NAMES), *itertools.combinations(NAMES, 2)),
    mortal=NAMES,
    pausing=(*NAMES, HEAD),
    timeout=TIMEOUT,
    end=50.0,
    garbles=("double", "noise"),  # requests have no order of their own, and go by that of their connection
)
IN_TIME = 80.0
"""Seconds after the last fault in which all must have come to an end. Some items are made only after 30 s."""
DATA = 500_000
"""Numbers of connections from here on are not control."""


class State(msgspec.Struct, tag=True, array_like=True):
    """What a host is told first: which segment it is, and who is here."""

    segment: int
    hosts: dict[str, int]


class Began(msgspec.Struct, tag=True, array_like=True):
    host: str
    incarnation: int


class HasEnded(msgspec.Struct, tag=True, array_like=True):
    host: str
    incarnation: int


class NextSegment(msgspec.Struct, tag=True, array_like=True):
    segment: int


class Host(FencedHost):
    """A host whose fetches rest on what the head tells it."""

    hears = Order | State | Began | HasEnded | NextSegment
    data: Node | None = None
    """None until it was told what there is."""

    def anew(self) -> None:
        super().anew()
        if self.data is not None:
            for number in self.data.links:
                self.network.close(self.name, number)
            self.data.links.clear()
            self.data = None

    def life_of(self, peer: Peer) -> object:
        """Who that incarnation is, if it takes part."""
        other: Any = self.network.process(peer.host)
        runs = other is not None and other.data is not None and other.end.incarnation == peer.incarnation
        return other.nonce if runs else None

    def happened(self, event: Event) -> None:
        match event:
            case Delivered(message=State(segment, here)):
                lots = random.Random(f"{self.name} {self.nonce!r}")
                me = Peer(self.name, self.end.incarnation)
                self.data = Node(self.network, lots, self.life_of, me, segment)
                self.data.life = self.nonce
                self.data.known.update(here)
                self.data.dials = itertools.count(DATA + 1000 * self.lives)
            case Delivered(message=Began(host, incarnation)) if self.data is not None:
                self.data.known[host] = incarnation
            case Delivered(message=HasEnded(host, incarnation)) if self.data is not None:
                self.data.known[host] = 0
                self.data.ends(Peer(host, incarnation))
            case Delivered(message=NextSegment(segment)) if self.data is not None:
                self.data.begins_segment(segment)
            case _:
                super().happened(event)

    def connected(self, connection: int, now: float) -> None:
        if connection < DATA:
            super().connected(connection, now)
        elif self.data is None:
            self.network.close(self.name, connection)
        else:
            self.data.connected(connection, now)

    def received(self, connection: int, data: bytes, now: float) -> None:
        if connection < DATA:
            super().received(connection, data, now)
        elif self.data is not None:
            self.data.received(connection, data, now)

    def lost(self, connection: int, why: str, now: float) -> None:
        if connection < DATA:
            super().lost(connection, why, now)
        elif self.data is not None:
            self.data.lost(connection, why, now)

    def tick(self, now: float) -> None:
        super().tick(now)
        if self.data is not None and (due := self.data.due()) is not None and now >= due:
            self.data.tick(now)

    def due(self) -> float | None:
        times = (super().due(), self.data.due() if self.data is not None else None)
        return min((moment for moment in times if moment is not None), default=None)


class Head(JudgingHead):
    """A head that tells every host who is here, and which segment it is."""

    segment = 1

    def obey(self, orders: list[hosts.Order]) -> None:
        for order in orders:
            super().obey([order])
            match order:
                case Admit(host, incarnation):
                    self.tell(Began(host, incarnation), all_but=host)
                    state = State(self.segment, self.hosts.here())
                    self.carry_out(self.end.send(host, incarnation, state, self.network.now))
                case EndHost(host, incarnation):
                    self.tell(HasEnded(host, incarnation), all_but=host)

    def next_segment(self) -> None:
        self.segment += 1
        self.tell(NextSegment(self.segment), all_but=HEAD)

    def tell(self, news: msgspec.Struct, all_but: str) -> None:
        for host, incarnation in self.hosts.here().items():
            if host != all_but:
                self.carry_out(self.end.send(host, incarnation, news, self.network.now))


def history(seed: int, faults: list[Fault]) -> None:
    """Hosts gather, are lost and come back, while they fetch from each other. After the last fault nothing is left."""
    network, register = Network(seed, faults), Register()
    lots = random.Random(f"history {seed}")
    head = Head(network, register, len(NAMES), (), TIMEOUT)
    network.add(HEAD, lambda: head)
    for name in NAMES:
        network.add(name, lambda name=name: Host(network, name, register, TIMEOUT))  # type: ignore[misc]

    def on(name: str, at: float, call: Callable[[Node], object]) -> None:
        """The host does this at that moment, if it takes part then."""

        def act() -> None:
            host: Any = network.process(name)
            if host.data is not None:
                call(host.data)

        network.at(at, lambda: network.on(name, act))

    for number in range(lots.choice([10, 40])):
        name, at, version = lots.choice(NAMES), lots.uniform(0, FAULTS.end), lots.randrange(ITEMS)
        patient = lots.random() < 0.6
        on(name, at, lambda node, v=version, n=number, p=patient: node.claim(v, n, p))  # type: ignore[misc]
        if not patient:
            on(name, at + lots.uniform(0, 10), lambda node, n=number: let_go(node, n))  # type: ignore[misc]
    for _ in range(60):
        how = lots.choice(["make"] * 8 + ["never", "drop"])
        at, version = lots.uniform(0, FAULTS.end), lots.randrange(ITEMS)
        on(lots.choice(NAMES), at, lambda node, v=version, how=how: node.make(v, how))  # type: ignore[misc]
    if lots.random() < 0.4:
        network.at(lots.uniform(10, FAULTS.end), lambda: network.on(HEAD, head.next_segment))

    network.run(lambda: False, most=FAULTS.end)
    network.heal()
    for name, version in itertools.product(NAMES, range(ITEMS)):
        how = lots.choice(["make", "never"])
        on(name, FAULTS.end + 30.0, lambda node, v=version, how=how: node.make(v, how))  # type: ignore[misc]
    network.run(lambda: False, most=FAULTS.end + 30.0)
    network.run(lambda: not left_over(network, head), most=FAULTS.end + IN_TIME)
    assert not left_over(network, head), left_over(network, head)


def let_go(node: Node, number: int) -> None:
    for key in [key for key in node.claims if key[1] == ("step", number)]:
        node.release(key)


def left_over(network: Network, head: Head) -> list[str]:
    """What has not come to an end, and why."""
    found, here = [], head.hosts.here()
    for name in NAMES:
        host: Any = network.process(name)
        if host is None:
            found += [f"{name} is dead, and counts as here"] if name in here else []
        elif host.data is None or here.get(name) != host.end.incarnation:
            found.append(f"{name} lives, and is not here")
        else:
            data = host.data
            found += [f"{name}: {data.of_number[number]} waits for {why}" for number, why in data.fetches.pending()]
            found += [f"{name} has {len(data.claims)} claims"] * bool(data.claims)
            found += [f"{name} keeps a place for {data.of_number[number]}" for number in data.places]
            found += [f"{name} keeps {one[0]} for others" for one in data.shelf.values()]
            found += [f"{name} knows of {data.known}"] * (
                here.items() - {(name, here[name])} - data.known.items() != set()
            )
    return found


def test_hosts_that_come_and_go_fetch_from_each_other_and_leave_nothing_over() -> None:
    all_tried(range(50), FAULTS, history)


@pytest.mark.long
def test_hosts_that_come_and_go_fetch_from_each_other_in_many_more_histories() -> None:
    all_tried(range(50, 20_000), FAULTS, history)


# --- faults of ours, which the walk must find ---------------------------------------------------------


def the_end_of_a_host_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = Head.tell
    monkeypatch.setattr(
        Head, "tell", lambda self, news, all_but: None if isinstance(news, HasEnded) else tell(self, news, all_but)
    )
    monkeypatch.setattr(FetchTable, "connected", lambda self, peer: self._connected.update([peer]) or self._admit())


def a_host_that_was_ended_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadEnd, "end", lambda self, host, incarnation, why: [])


OURS = [the_end_of_a_host_is_not_told, a_host_that_was_ended_is_not_told]


@pytest.mark.parametrize("ours", OURS, ids=lambda ours: ours.__name__)
def test_the_walk_finds(ours: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    ours(monkeypatch)
    with pytest.raises(AssertionError, match=r"seed \d+ fails with \d+ of \d+ faults"):
        all_tried(range(300), FAULTS, history)
