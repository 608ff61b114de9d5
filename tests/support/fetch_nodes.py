"""A node of the seeded network that fetches items from others and serves its own, with real bytes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paceline.core.items import Item, Version
from paceline.errors import MessageUnreadable
from paceline.host.claims import Owner
from paceline.ipc.endpoint import Coding, Frames, framed
from paceline.transfer import fetch_table
from paceline.transfer.fetch_table import FetchTable, ServeTable
from paceline.transfer.messages import Asked, Brought, Lost, Named, Peer, Range, Released
from support.seeded_network import Network

NAMES = ("a", "b", "c")
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


def content(named: Named, host: str, life: object) -> bytes:
    """What that life of a host makes of an item: another one makes something else."""
    return random.Random(f"{named} {host} {life}").randbytes(3 * SIZE)


def owners(named: Named, host: str) -> tuple[str, ...]:
    """The other hosts that have ranges of the item, in the order of these. One may have two."""
    one, other = (name for name in NAMES if name != host)
    match named.item[0]:
        case int(number) if number < ITEMS // 2:
            return ((one, other)[number % 2],)
        case number if number < ITEMS - 1:
            return one, other
        case _:
            return one, other, one


@dataclass(slots=True)
class Waits:
    """One claim of what is wanted by that number, and what it was told."""

    number: int
    expected: bytes
    patient: bool
    told: str | None = None


@dataclass(slots=True)
class Link:
    """One connection."""

    peer: Peer | None = None
    frames: Frames = field(default_factory=Frames)
    heard: float = 0.0


LifeOf = Callable[[Peer], object]
"""Says which life of a host that incarnation is: nothing if it is none any more."""


class Node:
    """One host: a driver of both machines, its places and its shelf."""

    def __init__(self, network: Network, lots: random.Random, life_of: LifeOf, me: Peer, segment: int) -> None:
        self.network, self.lots, self.life_of = network, lots, life_of
        self.name, self.incarnation = me
        self.life = life_of(me)
        self.known = dict.fromkeys(NAMES, 0)
        """By host: the incarnation that this one was told of."""
        self.segment = segment
        self.fetches = FetchTable()
        self.numbers = itertools.count(1)
        self.wanted: dict[Named, int] = {}
        """By item: the number by which it was wanted last."""
        self.of_number: dict[int, Named] = {}
        self.fetches.segment_began(self.segment)
        self.serves = ServeTable()
        self.serves.segment_began(self.segment)
        self.where: dict[Item, str] = {}
        self.places: dict[int, bytearray] = {}
        """By number of what is wanted."""
        self.brought: dict[int, set[str]] = {}
        """By number of what has a place: the hosts of which all is there."""
        self.claims: dict[tuple[Named, Owner], Waits] = {}
        self.shelf: dict[int, tuple[Named, int, int]] = {}
        """By number: what others ask for."""
        self.links: dict[int, Link] = {}
        self.dials = itertools.count(1)
        self.dialled: dict[str, int] = {}
        self.dial_at = dict.fromkeys([other for other in NAMES if other > self.name], 0.0)
        self.beat_at = 0.0
        self.sending: dict[tuple[Peer, int], tuple[Named, int, int]] = {}
        self.sends: set[int] = set()
        """Numbers of what was sent, or is."""
        self.send_at = 0.0

    # --- what the world has it do -------------------------------------------------------------------

    def look(self, item: Item, begin: int, end: int) -> Any:
        return self.where.get(item, "coming")

    def claim(self, version: int, number: int, patient: bool) -> None:
        named, owner = Named(self.segment, Version(version)), ("step", number)
        hosts = owners(named, self.name)
        ranges = tuple(Range(host, self.known[host], SIZE * at, SIZE * (at + 1)) for at, host in enumerate(hosts))
        if not all(one.incarnation for one in ranges):
            return
        lives = [(one, self.life_of(Peer(one.host, one.incarnation))) for one in ranges]
        contents = [content(named, one.host, life)[one.begin : one.end] for one, life in lives]
        before = self.wanted.get(named, 0)
        joins = before in self.places
        if not all(life for _, life in lives) or joins:
            contents = []  # it was told late, and the item can only be lost; or whoever wants it looks at the bytes
        number = before if joins else next(self.numbers)
        self.claims[named, owner] = Waits(number, b"".join(contents), patient)
        if not joins:
            self.wanted[named], self.of_number[number] = number, named
            self.places[number], self.brought[number] = bytearray(3 * SIZE), set()
            self.carry_out(self.fetches.want(number, named, ranges))
        elif any(waits.told for waits in self.claims.values() if waits.number == number):
            self.answered(named, owner, "arrived")

    def release(self, key: tuple[Named, Owner]) -> None:
        if (waits := self.claims.pop(key, None)) is not None and not self.who_claims(waits.number):
            self.carry_out(self.fetches.drop(waits.number))
            self.places.pop(waits.number, None)

    def who_claims(self, number: int) -> list[tuple[Named, Owner]]:
        """Who claims what is wanted by that number."""
        return [key for key, waits in self.claims.items() if waits.number == number]

    def make(self, version: int, how: str) -> None:
        """An item of the present segment is made, is never made, or is not needed here any more."""
        item = Version(version)
        named, where = Named(self.segment, item), self.look(item, 0, 1)
        if how == "make" and where == "coming":
            self.where[item] = "here"
            self.answer(named)
        elif how == "never" and where == "coming":
            self.where[item] = "gone"
            self.answer(named)
        elif how == "drop" and where == "here" and not any(one == named for one, _, _ in self.shelf.values()):
            self.where[item] = "gone"

    def ends(self, peer: Peer) -> None:
        self.carry_out(self.fetches.ended(peer, "the head says so"))

    def begins_segment(self, segment: int) -> None:
        self.segment = segment
        self.where.clear()
        self.carry_out(self.fetches.segment_began(segment))
        self.serve(self.serves.segment_began(segment))

    # --- orders -------------------------------------------------------------------------------------

    def carry_out(self, orders: list[fetch_table.Order]) -> None:
        for order in orders:
            match order:
                case fetch_table.Ask(peer, request, named, begin, end):
                    self.say(peer, Ask(request, named.segment, named.item[0], begin, end))  # type: ignore[arg-type]
                case fetch_table.CancelRequest(peer, request):
                    self.say(peer, Cancel(request))
                case Brought(number, peer, size, whole):
                    named = self.of_number[number]
                    if peer.host in self.brought[number] or size != SIZE * owners(named, self.name).count(peer.host):
                        raise Wrong(f"{peer} has brought {size} bytes of {named}, or had before")
                    self.brought[number].add(peer.host)
                    if whole != (self.brought[number] == set(owners(named, self.name))):
                        raise Wrong(f"{named} is {'whole' if whole else 'not'}, as {self.brought[number]} have theirs")
                    for _, owner in self.who_claims(number) if whole else ():
                        waits = self.answered(named, owner, "arrived")
                        if waits.expected and bytes(self.places[number][: len(waits.expected)]) != waits.expected:
                            raise Wrong(f"{named} arrived with other bytes than its owner has")
                case Lost(number):
                    if number not in self.of_number:
                        raise Wrong(f"{number} is lost, and is nothing")
                    del self.places[number]
                    for named, owner in self.who_claims(number):
                        self.answered(named, owner, "lost")

    def answered(self, named: Named, owner: Owner, told: str) -> Waits:
        waits = self.claims.get((named, owner))
        if waits is None or waits.told:
            raise Wrong(f"{owner} is told that {named} has {told}, and {waits and waits.told}")
        waits.told = told
        if waits.patient:
            later = self.network.now + self.lots.uniform(0, 5)
            self.network.at(later, lambda: self.network.on(self.name, lambda: self.release((named, owner))))
        return waits

    def serve(self, orders: list[fetch_table.ServeOrder]) -> None:
        for order in orders:
            match order:
                case Asked(number, named, begin, end):
                    self.shelf[number] = named, begin, end
                    self.answer(named)
                case Released(number):
                    del self.shelf[number]
                case fetch_table.Stop(peer, request):
                    self.sending.pop((peer, request), None)
                    self.written(peer, request)
                case fetch_table.Say(peer, request, why):
                    self.say(peer, Refused(request, why))

    def answer(self, named: Named) -> None:
        """Answer all that wait for the item, as far as that can be."""
        where = self.look(named.item, 0, 1)
        for number in [number for number, one in self.shelf.items() if one[0] == named]:
            if where == "gone":
                self.serve(self.serves.refuse(number, "it is not made, or not here any more"))
                self.shelf.pop(number)
            elif where == "here" and number not in self.sends and (asked := self.serves.send(number)) is not None:
                if not self.sending:
                    self.send_at = self.network.now + CHUNK_TAKES
                self.sends.add(number)
                self.sending[Peer(*asked[0]), asked[1]] = self.shelf[number]

    def written(self, peer: Peer, request: int) -> None:
        """What waits to be written of a request that was stopped is written sooner or later."""
        later = self.network.now + self.lots.uniform(0, 3)
        self.network.at(later, lambda: self.network.on(self.name, lambda: self.serve(self.serves.sent(peer, request))))

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
                asked = self.serves._requests.get(self.of(link), {}).values()
                if len([one for one in asked if (one.named, one.end) == (named, end) and not one.stops]) > 1:
                    raise Wrong(f"{link.peer} asks for bytes of {named} twice")
            case Cancel(request):
                self.serve(self.serves.cancelled(self.of(link), request))
            case Refused(request, why):
                self.carry_out(self.fetches.refused(self.of(link), request, why))
            case Bytes(request, begin, data):
                missing = self.fetches.missing(self.of(link), request)
                orders = self.fetches.arrived(self.of(link), request, begin, begin + len(data))
                if missing is not None:
                    self.places[missing.number][begin : begin + len(data)] = data
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
            for key in [key for key in self.sending if key[0] == link.peer]:
                del self.sending[key]
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
        for key, (named, begin, last) in list(self.sending.items()):
            if self.look(named.item, begin, last) != "here" or named.segment != self.segment:
                raise Wrong(f"{named} is sent, and is not here")
            end = min(begin + CHUNK, last)
            data = content(named, self.name, self.life)[begin:end]
            self.say(key[0], Bytes(key[1], begin, data))
            if end < last:
                self.sending[key] = named, end, last
            else:
                del self.sending[key]
                self.serve(self.serves.sent(*key))
