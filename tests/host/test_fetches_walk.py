"""Fetches between hosts over a seeded network, with real bytes: what arrives, what is lost, and what is left over."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from paceline.transfer import fetch_table
from paceline.transfer.fetch_table import FetchTable, ServeTable
from paceline.transfer.messages import Brought, Peer
from support.fetch_nodes import ITEMS, NAMES, Node
from support.seeded_network import Fault, Faults, Network, all_tried

FAULTS = Faults(
    pairs=(("a", "b"), ("a", "c"), ("b", "c")),
    mortal=NAMES,
    pausing=NAMES,
    timeout=10.0,
    end=40.0,
    garbles=("double", "noise"),  # requests have no order of their own, and go by that of their connection
)
IN_TIME = 60.0
"""Seconds after the last fault in which every claim must be answered."""


class World:
    """Who is which incarnation, and which segment it is. News are told to every host, in order, sooner or later."""

    def __init__(self, network: Network, seed: int) -> None:
        self.network = network
        self.lots = random.Random(f"world {seed}")
        self.incarnations = dict.fromkeys(NAMES, 0)
        self.lives = dict.fromkeys(NAMES, 0)
        self.segment = 1
        self.news: dict[str, float] = dict.fromkeys(NAMES, 0.0)
        """When each host has heard all that has been told so far."""

    def next_incarnation(self, name: str) -> int:
        return self.incarnations[name] + 1

    def begins(self, name: str) -> Node:
        before = Peer(name, self.incarnations[name])
        self.incarnations[name] = self.next_incarnation(name)
        self.lives[name] += 1
        if before.incarnation:
            self.tell(lambda node: node.ends(before))
        new = self.incarnations[name]
        self.tell(lambda node: node.known.update({name: new}))
        node = Node(self.network, self.lots, self.life_of, Peer(name, self.incarnations[name]), self.segment)
        node.known.update(self.incarnations)
        return node

    def life_of(self, peer: Peer) -> object:
        return self.lives[peer.host] if self.incarnations[peer.host] == peer.incarnation else None

    def tell(self, news: Callable[[Node], object]) -> None:
        for name in NAMES:
            self.news[name] = max(self.news[name], self.network.now + self.lots.choice([0.01, self.lots.uniform(0, 8)]))

            def now(name: str = name) -> None:
                node: Any = self.network.process(name)
                if node is not None:
                    self.network.on(name, lambda: news(node) if node is self.network.process(name) else None)

            self.network.at(self.news[name], now)


def history(seed: int, faults: list[Fault]) -> None:
    """Claim, make, drop and release things. After the last fault every claim is answered, and nothing is left over."""
    network = Network(seed, faults)
    world = World(network, seed)
    lots = random.Random(f"history {seed}")
    for name in NAMES:
        network.add(name, lambda name=name: world.begins(name))  # type: ignore[misc]

    def on(name: str, at: float, call: Callable[[Any], object]) -> None:
        """The host does this at that moment, whichever life it is in."""
        network.at(at, lambda: network.on(name, lambda: call(network.process(name))))

    for number in range(lots.choice([10, 40])):
        name, at, version = lots.choice(NAMES), lots.uniform(0, FAULTS.end), lots.randrange(ITEMS)
        patient = lots.random() < 0.6
        on(name, at, lambda node, v=version, n=number, p=patient: node.claim(v, n, p))
        if not patient:
            key = version, number
            on(name, at + lots.uniform(0, 10), lambda node, key=key: let_go(node, *key))
    for _ in range(60):
        how = lots.choice(["make"] * 8 + ["never", "drop"])
        at, version = lots.uniform(0, FAULTS.end), lots.randrange(ITEMS)
        on(lots.choice(NAMES), at, lambda node, v=version, how=how: node.make(v, how))
    if lots.random() < 0.4:
        network.at(lots.uniform(0, FAULTS.end), lambda: next_segment(world))

    network.run(lambda: False, most=FAULTS.end)
    network.heal()
    for name, version in itertools.product(NAMES, range(ITEMS)):
        how = lots.choice(["make", "never"])
        on(name, FAULTS.end + 20.0, lambda node, v=version, how=how: node.make(v, how))
    for name in NAMES:  # the head gives up who does not come back
        if network.process(name) is None:
            gone = Peer(name, world.incarnations[name])
            world.tell(lambda node, gone=gone: node.ends(gone))  # type: ignore[misc]
    network.run(lambda: not pending(network), most=FAULTS.end + IN_TIME)
    network.run(lambda: not left_over(network), most=FAULTS.end + 2 * IN_TIME)
    assert not pending(network), pending(network)
    assert not left_over(network), left_over(network)


def let_go(node: Node, version: int, number: int) -> None:
    for key in [key for key in node.claims if key[1] == ("step", number)]:
        node.release(key)


def next_segment(world: World) -> None:
    world.segment += 1
    world.tell(lambda node, segment=world.segment: node.begins_segment(segment) if node.segment < segment else None)  # type: ignore[misc]


def nodes(network: Network) -> list[Any]:
    return [node for node in (network.process(name) for name in NAMES) if node is not None]


def pending(network: Network) -> list[str]:
    """Which claims are not answered, and what they wait for. Some items are made only 20 s after the last fault."""
    if network.now < FAULTS.end + 30.0:
        return ["it is too early to say"]
    return [
        f"{node.name}: {node.of_number[number]} waits for {why}"
        for node in nodes(network)
        for number, why in node.fetches.pending()
    ] + [
        f"{node.name}: {owner} waits for {named}"
        for node in nodes(network)
        for (named, owner), waits in node.claims.items()
        if not waits.told
    ]


def left_over(network: Network) -> list[str]:
    """Places and claims that nobody needs any more."""
    found = [f"{node.name} has claims" for node in nodes(network) if node.claims]
    found += [
        f"{node.name} keeps a place for {node.of_number[number]}" for node in nodes(network) for number in node.places
    ]
    found += [f"{node.name} keeps {one[0]} for others" for node in nodes(network) for one in node.shelf.values()]
    return found + [f"{node.name} sends something" for node in nodes(network) if node.sending]


def test_every_claim_is_answered_once_with_the_owners_bytes_and_nothing_is_left_over() -> None:
    all_tried(range(100), FAULTS, history)


@pytest.mark.long
def test_every_claim_is_answered_once_in_many_more_histories() -> None:
    all_tried(range(100, 5_000), FAULTS, history)


# --- faults of ours, which the walk must find ---------------------------------------------------------


def a_claim_for_others_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServeTable, "disconnected", lambda self, peer: [])


def a_cancelled_request_is_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServeTable, "cancelled", lambda self, peer, request: [])


def a_want_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FetchTable, "drop", lambda self, number: [])


def bytes_that_come_twice_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = FetchTable.arrived

    def trusting(self: FetchTable, peer: Peer, request: int, begin: int, end: int) -> list[fetch_table.Order]:
        if (found := self._requests.get(request)) is not None:
            begin, end = found[1].have, min(found[1].have + end - begin, found[1].end)
        return arrived(self, peer, request, begin, end)

    monkeypatch.setattr(FetchTable, "arrived", trusting)


def a_loss_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FetchTable, "ended", lambda self, peer, why: [])


def nothing_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FetchTable, "disconnected", lambda self, peer: None)


def an_incarnation_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "next_incarnation", lambda self, name: 1)


def what_is_on_its_way_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = FetchTable._ask

    def again(self: FetchTable, record: Any) -> list[fetch_table.Order]:
        for one in record.coming:
            one.request = None
        return ask(self, record)

    monkeypatch.setattr(FetchTable, "_ask", again)


def a_host_has_brought_an_item_with_the_first_of_its_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(self: Any, peer: Peer) -> list[fetch_table.Order]:
        size = sum(one.end - one.begin for one in self.ranges if one.host == peer.host)
        return [Brought(self.number, peer, size, whole=self.here)]

    monkeypatch.setattr(fetch_table._Record, "brought", early)


OURS = [
    a_claim_for_others_leaks,
    a_cancelled_request_is_sent_on,
    a_want_leaks,
    bytes_that_come_twice_count_twice,
    a_loss_is_not_told,
    nothing_is_asked_again,
    an_incarnation_is_reused,
    what_is_on_its_way_is_asked_for_again,
    a_host_has_brought_an_item_with_the_first_of_its_ranges,
]


@pytest.mark.parametrize("ours", OURS, ids=lambda ours: ours.__name__)
def test_the_walk_finds(ours: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    ours(monkeypatch)
    with pytest.raises(AssertionError, match=r"seed \d+ fails with \d+ of \d+ faults"):
        all_tried(range(300), FAULTS, history)
