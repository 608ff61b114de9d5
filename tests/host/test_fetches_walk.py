"""Fetches between hosts over a seeded network, with real bytes: what arrives, what is lost, and what is left over."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from paceline.core.items import Item, Version
from paceline.errors import MessageUnreadable
from paceline.fabric.endpoint import Coding, Frames, framed
from paceline.host import fetches
from paceline.host.fetches import Fetches, Named, Part, Peer, Serves
from paceline.host.shelf import Owner
from support.seeded_network import Fault, Faults, Network, all_tried

NAMES = ("a", "b", "c")
FAULTS = Faults(pairs=(("a", "b"), ("a", "c"), ("b", "c")), mortal=NAMES, pausing=NAMES, timeout=10.0, end=40.0)
IN_TIME = 60.0
"""Seconds after the last fault in which every claim must be answered."""
BEAT, SILENT, REDIAL, CHUNK_TAKES = 2.0, 6.0, 0.5, 0.1
SIZE, CHUNK = 48, 9
ITEMS = 6


class Wrong(AssertionError):
    """Something came that should not have, or was said twice."""


class Hello(msgspec.Struct, tag=True, array_like=True):
    host: str
    incarnation: int


class Beat(msgspec.Struct, tag=True, array_like=True):
    pass


class Ask(msgspec.Struct, tag=True, array_like=True):
    request: int
    segment: int
    version: int
    begin: int
    end: int


class Cancel(msgspec.Struct, tag=True, array_like=True):
    request: int


class Bytes(msgspec.Struct, tag=True, array_like=True):
    request: int
    begin: int
    data: bytes


class Refused(msgspec.Struct, tag=True, array_like=True):
    request: int
    why: str


CODING = Coding(Hello | Beat | Ask | Cancel | Bytes | Refused)


def content(named: Named, host: str, life: int) -> bytes:
    """What that life of a host makes of an item: another one makes something else."""
    return random.Random(f"{named} {host} {life}").randbytes(2 * SIZE)


def owners(named: Named, host: str) -> tuple[str, ...]:
    """The other hosts that have ranges of the item."""
    others = [name for name in NAMES if name != host]
    return (others[named.item[0] % 2],) if named.item[0] < ITEMS // 2 else tuple(others)  # type: ignore[call-overload]


@dataclass(slots=True)
class Waits:
    """One claim, and what it was told."""

    expected: bytes
    patient: bool
    told: str | None = None


@dataclass(slots=True)
class Link:
    """One connection."""

    peer: Peer | None = None
    frames: Frames = field(default_factory=Frames)
    heard: float = 0.0


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
        return Node(self, name)

    def tell(self, news: Callable[[Node], object]) -> None:
        for name in NAMES:
            self.news[name] = max(self.news[name], self.network.now + self.lots.choice([0.01, self.lots.uniform(0, 8)]))

            def now(name: str = name) -> None:
                node: Any = self.network.process(name)
                if node is not None:
                    self.network.on(name, lambda: news(node) if node is self.network.process(name) else None)

            self.network.at(self.news[name], now)


class Node:
    """One host: a driver of both machines, its places and its shelf."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.network, self.name = world, world.network, name
        self.incarnation, self.life = world.incarnations[name], world.lives[name]
        self.known = dict(world.incarnations)
        self.segment = world.segment
        self.room = world.lots.choice([1, 2, 8])
        self.fetches = Fetches(self.room)
        self.fetches.segment_began(self.segment)
        self.serves = Serves(self.look, self.segment)
        self.where: dict[Item, str] = {}
        self.places: dict[Named, bytearray] = {}
        self.claims: dict[tuple[Named, Owner], Waits] = {}
        self.shelf: set[tuple[Named, Owner]] = set()
        self.links: dict[int, Link] = {}
        self.dials = itertools.count(1)
        self.dialled: dict[str, int] = {}
        self.dial_at = dict.fromkeys([other for other in NAMES if other > name], 0.0)
        self.beat_at = 0.0
        self.sending: dict[tuple[Peer, int], fetches.Send] = {}
        self.send_at = 0.0

    # --- what the world has it do -------------------------------------------------------------------

    def look(self, item: Item) -> Any:
        return self.where.get(item, "coming")

    def claim(self, version: int, number: int, patient: bool) -> None:
        named, owner = Named(self.segment, Version(version)), ("step", number)
        hosts = owners(named, self.name)
        parts = tuple(Part(host, self.known[host], SIZE * at, SIZE * (at + 1)) for at, host in enumerate(hosts))
        if not all(part.incarnation for part in parts):
            return
        ranges = [content(named, part.host, self.world.lives[part.host])[part.begin : part.end] for part in parts]
        if any(self.world.incarnations[part.host] != part.incarnation for part in parts):
            ranges = [b""]  # it was told late, and can only be lost, or have arrived before
        self.claims[named, owner] = Waits(b"".join(ranges), patient)
        self.carry_out(self.fetches.claim(named, owner, parts))

    def release(self, key: tuple[Named, Owner]) -> None:
        if key in self.claims:
            del self.claims[key]
            self.carry_out(self.fetches.release(*key))

    def make(self, version: int, how: str) -> None:
        """An item of the present segment is made, is never made, or is not needed here any more."""
        item = Version(version)
        named, where = Named(self.segment, item), self.look(item)
        if how == "make" and where == "coming":
            self.where[item] = "here"
            self.serve(self.serves.made(named))
        elif how == "never" and where == "coming":
            self.where[item] = "gone"
            self.serve(self.serves.never(named, "it is not made"))
        elif how == "drop" and where == "here" and not any(one == named for one, _ in self.shelf):
            self.where[item] = "gone"

    def ends(self, peer: Peer) -> None:
        self.carry_out(self.fetches.ended(peer, "the head says so"))

    def begins_segment(self, segment: int) -> None:
        self.segment = segment
        self.where.clear()
        self.carry_out(self.fetches.segment_began(segment))
        self.serve(self.serves.segment_began(segment))

    # --- orders -------------------------------------------------------------------------------------

    def carry_out(self, orders: list[fetches.Order]) -> None:
        for order in orders:
            match order:
                case fetches.TakePlace(named):
                    if named in self.places or len(self.places) >= self.room:
                        raise Wrong(f"{named} has a place, or none is free")
                    self.places[named] = bytearray(2 * SIZE)
                case fetches.FreePlace(named):
                    del self.places[named]
                case fetches.Ask(peer, request, named, begin, end):
                    self.say(peer, Ask(request, named.segment, named.item[0], begin, end))  # type: ignore[arg-type]
                case fetches.Cancel(peer, request):
                    self.say(peer, Cancel(request))
                case fetches.Arrived(named, owner):
                    waits = self.answered(named, owner, "arrived")
                    if waits.expected and bytes(self.places[named][: len(waits.expected)]) != waits.expected:
                        raise Wrong(f"{named} arrived with other bytes than its owner has")
                case fetches.Lost(named, owner):
                    self.answered(named, owner, "lost")

    def answered(self, named: Named, owner: Owner, told: str) -> Waits:
        waits = self.claims.get((named, owner))
        if waits is None or waits.told:
            raise Wrong(f"{owner} is told that {named} has {told}, and {waits and waits.told}")
        waits.told = told
        if waits.patient:
            later = self.network.now + self.world.lots.uniform(0, 5)
            self.network.at(later, lambda: self.network.on(self.name, lambda: self.release((named, owner))))
        return waits

    def serve(self, orders: list[fetches.ServeOrder]) -> None:
        for order in orders:
            match order:
                case fetches.Claim(named, owner):
                    self.shelf.add((named, owner))
                case fetches.Release(named, owner):
                    self.shelf.remove((named, owner))
                case fetches.Send(peer, request):
                    if not self.sending:
                        self.send_at = self.network.now + CHUNK_TAKES
                    self.sending[peer, request] = order
                case fetches.Stop(peer, request):
                    self.sending.pop((peer, request), None)
                case fetches.Say(peer, request, why):
                    self.say(peer, Refused(request, why))

    def say(self, peer: Peer, message: msgspec.Struct) -> None:
        for number, link in self.links.items():
            if link.peer == peer:
                self.network.write(self.name, number, framed(CODING.encode(message)))

    # --- the driver ---------------------------------------------------------------------------------

    def connected(self, connection: int, now: float) -> None:
        self.links[connection] = Link(heard=now)
        hello = Hello(self.name, self.incarnation)
        self.network.write(self.name, connection, framed(CODING.encode(hello)))

    def received(self, connection: int, data: bytes, now: float) -> None:
        link = self.links.get(connection)
        if link is None:
            return
        link.heard = now
        try:
            for body in link.frames.receive(data):
                self.hear(connection, link, CODING.decode(body, ()))
                if connection not in self.links:
                    return
        except MessageUnreadable:
            self.network.close(self.name, connection)
            self.lost(connection, "unreadable", now)

    def hear(self, connection: int, link: Link, message: Any) -> None:
        if isinstance(message, Hello) == (link.peer is not None):
            raise MessageUnreadable("out of turn")
        match message:
            case Hello(host, incarnation):
                for number, other in list(self.links.items()):
                    if other.peer is not None and other.peer.host == host:
                        self.network.close(self.name, number)
                        self.lost(number, "replaced", self.network.now)
                link.peer = Peer(host, incarnation)
                self.carry_out(self.fetches.connected(link.peer))
            case Ask(request, segment, version, begin, end):
                named = Named(segment, Version(version))
                self.serve(self.serves.asked(self.of(link), request, named, begin, end))
                same = [one for key, one in self.serves._requests.items() if key[0] == link.peer and one.named == named]
                if len(same) > 1:
                    raise Wrong(f"{link.peer} asks for {named} twice")
            case Cancel(request):
                self.serve(self.serves.cancelled(self.of(link), request))
            case Refused(request, why):
                self.carry_out(self.fetches.refused(self.of(link), request, why))
            case Bytes(request, begin, data):
                found = self.fetches._requests.get(request)
                orders = self.fetches.arrived(self.of(link), request, begin, begin + len(data))
                if found is not None:
                    self.places[found[0].named][begin : begin + len(data)] = data
                self.carry_out(orders)

    def of(self, link: Link) -> Peer:
        assert link.peer is not None
        return link.peer

    def lost(self, connection: int, why: str, now: float) -> None:
        link = self.links.pop(connection, None)
        for other, dialled in list(self.dialled.items()):
            if dialled == connection:
                del self.dialled[other]
                self.dial_at[other] = now + REDIAL
        if link is not None and link.peer is not None:
            self.fetches.disconnected(link.peer)
            self.serve(self.serves.disconnected(link.peer))

    def due(self) -> float | None:
        times = [self.beat_at, *(at for other, at in self.dial_at.items() if other not in self.dialled)]
        return min([*times, self.send_at] if self.sending else times)

    def tick(self, now: float) -> None:
        for other, at in self.dial_at.items():
            if other not in self.dialled and now >= at:
                self.dialled[other] = next(self.dials)
                self.links[self.dialled[other]] = Link(heard=now)
                self.network.dial(self.name, self.dialled[other], other)
        if now >= self.beat_at:
            self.beat_at = now + BEAT
            for number, link in list(self.links.items()):
                if now - link.heard > SILENT:
                    self.network.close(self.name, number)
                    self.lost(number, "silent", now)
                elif link.peer is not None:
                    self.say(link.peer, Beat())
        if self.sending and now >= self.send_at:
            self.send_at = now + CHUNK_TAKES
            self.send_some()

    def send_some(self) -> None:
        """Send the next bytes of each request."""
        for key, order in list(self.sending.items()):
            if self.look(order.named.item) != "here" or order.named.segment != self.segment:
                raise Wrong(f"{order.named} is sent, and is not here")
            end = min(order.begin + CHUNK, order.end)
            data = content(order.named, self.name, self.life)[order.begin : end]
            self.say(order.peer, Bytes(order.request, order.begin, data))
            if end < order.end:
                self.sending[key] = fetches.Send(order.peer, order.request, order.named, end, order.end)
            else:
                del self.sending[key]
                self.serve(self.serves.sent(*key))


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
        f"{node.name}: {owner} claims {named}, which waits for {why}"
        for node in nodes(network)
        for named, claimed, why in node.fetches.pending()
        for owner in claimed
    ] + [
        f"{node.name}: {owner} waits for {named}"
        for node in nodes(network)
        for (named, owner), waits in node.claims.items()
        if not waits.told
    ]


def left_over(network: Network) -> list[str]:
    """Places and claims that nobody needs any more."""
    found = [f"{node.name} has claims" for node in nodes(network) if node.claims]
    found += [f"{node.name} keeps a place for {named}" for node in nodes(network) for named in node.places]
    found += [f"{node.name} keeps {named} for {owner}" for node in nodes(network) for named, owner in node.shelf]
    return found + [f"{node.name} sends something" for node in nodes(network) if node.sending]


def test_every_claim_is_answered_once_with_the_owners_bytes_and_nothing_is_left_over() -> None:
    all_tried(range(200), FAULTS, history)


@pytest.mark.long
def test_every_claim_is_answered_once_in_many_more_histories() -> None:
    all_tried(range(200, 20_000), FAULTS, history)


# --- faults of ours, which the walk must find ---------------------------------------------------------


def a_claim_for_others_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Serves, "disconnected", lambda self, peer: [])


def a_cancelled_request_is_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Serves, "cancelled", lambda self, peer, request: [])


def a_claim_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Fetches.release

    def leaky(self: Fetches, named: Named, owner: Owner) -> list[fetches.Order]:
        record = self._records.get(named)
        return [] if record is not None and not record.here else release(self, named, owner)

    monkeypatch.setattr(Fetches, "release", leaky)


def a_place_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    drop = Fetches._drop

    def leaky(self: Fetches, record: Any) -> list[fetches.Order]:
        orders = drop(self, record)
        return [one for one in orders if not isinstance(one, fetches.FreePlace)] if not record.here else orders

    monkeypatch.setattr(Fetches, "_drop", leaky)


def bytes_that_come_twice_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = Fetches.arrived

    def trusting(self: Fetches, peer: Peer, request: int, begin: int, end: int) -> list[fetches.Order]:
        if (found := self._requests.get(request)) is not None:
            begin, end = found[1].have, min(found[1].have + end - begin, found[1].end)
        return arrived(self, peer, request, begin, end)

    monkeypatch.setattr(Fetches, "arrived", trusting)


def only_the_first_is_told_of_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    lose = Fetches._lose

    def forgetful(self: Fetches, record: Any, why: str) -> list[fetches.Order]:
        orders = lose(self, record, why)
        lost = [one for one in orders if isinstance(one, fetches.Lost)]
        return [one for one in orders if one not in lost[1:]]

    monkeypatch.setattr(Fetches, "_lose", forgetful)


def a_loss_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fetches, "ended", lambda self, peer, why: [])


def nothing_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fetches, "disconnected", lambda self, peer: None)


def an_incarnation_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "next_incarnation", lambda self, name: 1)


def every_claim_is_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item is asked for again while it is on its way."""
    ask = Fetches._ask

    def again(self: Fetches, record: Any) -> list[fetches.Order]:
        for part in record.coming:
            part.request = None
        return ask(self, record)

    claim = Fetches.claim

    def eager(self: Fetches, named: Named, owner: Owner, parts: tuple[Part, ...]) -> list[fetches.Order]:
        orders = claim(self, named, owner, parts)
        return orders + again(self, self._records[named]) if named in self._records else orders

    monkeypatch.setattr(Fetches, "claim", eager)


OURS = [
    a_claim_for_others_leaks,
    a_cancelled_request_is_sent_on,
    a_claim_leaks,
    a_place_leaks,
    bytes_that_come_twice_count_twice,
    only_the_first_is_told_of_a_loss,
    a_loss_is_not_told,
    nothing_is_asked_again,
    an_incarnation_is_reused,
    every_claim_is_a_fetch,
]


@pytest.mark.parametrize("ours", OURS, ids=lambda ours: ours.__name__)
def test_the_walk_finds(ours: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    ours(monkeypatch)
    with pytest.raises(AssertionError, match=r"seed \d+ fails with \d+ of \d+ faults"):
        all_tried(range(300), FAULTS, history)
