"""Nodes of the seeded network that run an end of `net.control`, and what each of them has said and heard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from paceline.net.control import (
    Close,
    Delivered,
    DialHead,
    Event,
    HeadEnd,
    HostCame,
    HostEnd,
    IncarnationEnded,
    Outcome,
    Write,
)
from support.seeded_network import Network

HEAD = "head"
AGAIN = 1.0
"""Seconds before a host whose incarnation has ended begins another one. It would dial without a pause otherwise."""


class Order(msgspec.Struct, tag=True, array_like=True):
    """The head's message: the how-manieth to this incarnation."""

    incarnation: int
    number: int


class Told(msgspec.Struct, tag=True, array_like=True):
    """A host's message: the how-manieth of this end."""

    nonce: bytes
    number: int


@dataclass(slots=True)
class Said:
    """What went one way within one incarnation."""

    sent: int = 0
    delivered: int = 0


class Broken(AssertionError):
    """A message was delivered that should not have been."""


class Register:
    """What a walk knows: who is which incarnation, what was sent and what was delivered."""

    def __init__(self) -> None:
        self.nonces = 0
        self.named: dict[tuple[str, int], bytes] = {}
        """Who is this incarnation."""
        self.to_head: dict[bytes, Said] = {}
        self.to_host: dict[tuple[str, int], Said] = {}

    def nonce(self) -> bytes:
        self.nonces += 1
        return str(self.nonces).encode()

    def delivered(self, said: Said, number: int, what: object) -> None:
        """Every message is delivered once, in order."""
        said.delivered += 1
        if number != said.delivered or number > said.sent:
            raise Broken(f"{what} came as delivery {said.delivered}, and {said.sent} were sent")

    def known(self, host: str, incarnation: int, nonce: bytes) -> None:
        """An incarnation is one end, and no other."""
        if self.named.setdefault((host, incarnation), nonce) != nonce:
            raise Broken(f"two ends are incarnation {incarnation} of {host}")


class Node:
    """Carries out on the network what a pure end orders."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.before = 0
        """Connections of ends that this node had before the present one."""

    def carry_out(self, outcome: Outcome) -> None:
        for one in outcome:
            match one:
                case DialHead(connection):
                    self.network.dial(self.name, self.before + connection, HEAD)
                case Write(connection, data):
                    self.network.write(self.name, self.before + connection, data)
                case Close(connection):
                    self.network.close(self.name, self.before + connection)
                case _:
                    self.happened(one)

    def happened(self, event: Event) -> None:
        raise NotImplementedError


class EndNode(Node):
    """A node with one end for as long as it is there, which hears of everything."""

    end: HeadEnd | HostEnd

    def connected(self, connection: int, now: float) -> None:
        self.carry_out(self.end.connected(connection, now))

    def received(self, connection: int, data: bytes, now: float) -> None:
        self.carry_out(self.end.received(connection, data, now))

    def lost(self, connection: int, why: str, now: float) -> None:
        self.carry_out(self.end.lost(connection, why, now))

    def tick(self, now: float) -> None:
        self.carry_out(self.end.tick(now))

    def due(self) -> float | None:
        return self.end.due()


class HostNode(Node):
    """A host. Once its incarnation has ended it begins another one."""

    hears: Any = Order
    """What the head may send it."""

    def __init__(self, network: Network, name: str, register: Register, timeout: float) -> None:
        super().__init__(network, name)
        self.register = register
        self.timeout = timeout
        self.lives = 0
        self.anew()

    def anew(self) -> None:
        self.begins_at = self.network.now + AGAIN if self.lives else 0.0
        self.lives += 1
        self.before = 1000 * self.lives
        self.nonce = self.register.nonce()
        self.end = HostEnd(self.name, self.nonce, self.hears, timeout=self.timeout)
        self.register.to_head[self.nonce] = Said()

    def say(self) -> None:
        """Send the next message."""
        said = self.register.to_head[self.nonce]
        said.sent += 1
        self.carry_out(self.end.send(Told(self.nonce, said.sent), self.network.now))

    def connected(self, connection: int, now: float) -> None:
        self.carry_out(self.end.connected(connection - self.before, now))

    def received(self, connection: int, data: bytes, now: float) -> None:
        self.carry_out(self.end.received(connection - self.before, data, now))

    def lost(self, connection: int, why: str, now: float) -> None:
        self.carry_out(self.end.lost(connection - self.before, why, now))

    def tick(self, now: float) -> None:
        if now >= self.begins_at:
            self.carry_out(self.end.tick(now))

    def due(self) -> float | None:
        due = self.end.due()
        return None if due is None else max(due, self.begins_at)

    def happened(self, event: Event) -> None:
        match event:
            case Delivered(host, incarnation, Order() as order):
                self.register.known(host, incarnation, self.nonce)
                if order.incarnation != incarnation:
                    raise Broken(f"{order} came to incarnation {incarnation} of {host}")
                self.register.delivered(self.register.to_host[host, incarnation], order.number, order)
            case IncarnationEnded():
                self.anew()


class HeadNode(EndNode):
    """The head. It admits whoever comes, as a new incarnation."""

    end: HeadEnd

    def __init__(self, network: Network, register: Register) -> None:
        super().__init__(network, HEAD)
        self.register = register
        self.end = HeadEnd(HEAD, b"head", Told)
        self.incarnations: dict[str, int] = {}

    def say(self, host: str) -> None:
        """Send the host the next message."""
        if incarnation := self.incarnations.get(host, 0):
            said = self.register.to_host.setdefault((host, incarnation), Said())
            said.sent += 1
            self.carry_out(self.end.send(host, incarnation, Order(incarnation, said.sent), self.network.now))

    def drop(self, host: str) -> None:
        """End the host's incarnation."""
        self.carry_out(self.end.end(host, self.incarnations.get(host, 0), "the walk ends it"))

    def happened(self, event: Event) -> None:
        match event:
            case HostCame(connection, host):
                self.incarnations[host] = self.next_incarnation(host)
                self.carry_out(self.end.admit(connection, self.incarnations[host], self.network.now))
            case Delivered(host, incarnation, Told() as told):
                self.register.known(host, incarnation, told.nonce)
                self.register.delivered(self.register.to_head[told.nonce], told.number, told)

    def next_incarnation(self, host: str) -> int:
        return self.incarnations.get(host, 0) + 1
