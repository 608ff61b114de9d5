"""A head and hosts of one run over real sockets on loopback, in one loop, and all that their links tell."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from paceline.ipc.loop import Loop
from paceline.net import tcp
from paceline.net.control import HeadEnd, HostEnd
from paceline.net.handshake import Keys
from paceline.net.link import HeadLink, HostLink
from paceline.net.listener import HostListener
from paceline.net.token import Token

PATIENCE = 30.0
"""Seconds after which a test that waits has failed."""


class Order(msgspec.Struct, tag=True, array_like=True):
    value: int
    more: bytes = b""


class Told(msgspec.Struct, tag=True, array_like=True):
    value: int
    more: bytes = b""


TOKEN = Token(bytes(32))
"""That of all hosts, unless a test has others."""
KEYS = Keys.plain(TOKEN)


@cache
def tls_keys() -> Keys:
    """The token's, for connections with TLS."""
    return Keys.encrypted(TOKEN)


EACH_KEYS: dict[str, Callable[[], Keys]] = {"plain": lambda: KEYS, "TLS": tls_keys}


def without_port(line: str) -> str:
    """The line with a dialler's own port left out, which the kernel chooses."""
    return re.sub(r"^connection from 127\.0\.0\.1:\d+ refused", "connection from 127.0.0.1 refused", line)


class AtHead:
    """Admits whoever comes, and remembers all."""

    def __init__(self) -> None:
        self.link: HeadLink
        self.incarnations = 0
        self.events: list[Any] = []
        self.values: list[int] = []
        self.heard_from: set[str] = set()
        self.lines: list[str] = []
        """Without ports of diallers."""
        self.answers: Callable[[str, int, Any], None] = lambda host, incarnation, message: None

    def came(self, connection: int, host: str) -> None:
        self.incarnations += 1
        self.link.admit(connection, self.incarnations)

    def connected(self, host: str, incarnation: int) -> None:
        self.events.append(("connected", host, incarnation))

    def heard(self, host: str, incarnation: int) -> None:
        self.heard_from.add(host)

    def delivered(self, host: str, incarnation: int, message: Any) -> None:
        self.values.append(message.value)
        self.answers(host, incarnation, message)

    def disconnected(self, host: str, incarnation: int, why: str) -> None:
        self.events.append(("disconnected", host, incarnation))

    def ended(self, host: str, incarnation: int, why: str) -> None:
        self.events.append(("ended", host, incarnation, why))

    def show(self, line: str) -> None:
        self.lines.append(without_port(line))


class AtHost:
    """Remembers all."""

    def __init__(self) -> None:
        self.incarnation = 0
        self.connections = 0
        self.values: list[int] = []
        self.losses: list[str] = []
        self.ends: list[str] = []
        self.lines: list[str] = []

    def connected(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.connections += 1

    def acknowledged(self, sent: float) -> None:
        pass

    def delivered(self, message: Any) -> None:
        self.values.append(message.value)

    def disconnected(self, why: str) -> None:
        self.losses.append(why)

    def ended(self, why: str) -> None:
        self.ends.append(why)

    def show(self, line: str) -> None:
        self.lines.append(line)


class InLoop:
    """What goes on in one loop."""

    loop: Loop

    def until(self, there: Callable[[], object]) -> None:
        """Let the loop go round until that is so."""
        end = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < end, "it never came to that"
            self.loop.wait(0.02)  # what it waits for may be at a socket that the loop does not watch


class Cluster(InLoop):
    """A head and hosts in one loop."""

    def __init__(self, keys: Keys = KEYS) -> None:
        self.loop = Loop()
        self.keys = keys
        self.head = AtHead()
        self.door = HostListener(tcp.listen(), self.loop, keys, self.head.show)
        self.head.link = HeadLink(HeadEnd("a", os.urandom(8), Told), self.door, self.loop, self.head)
        self.links: list[HostLink] = []

    def close_head(self) -> None:
        self.door.close()
        self.head.link.close()

    def host(self, name: str = "b", *, timeout: float = 15.0) -> tuple[HostLink, AtHost]:
        """Begin a host. It has not come yet."""
        news = AtHost()
        end = HostEnd(name, os.urandom(8), Order, timeout=timeout)
        link = HostLink(end, self.door.address, self.keys, self.loop, news, timeout)
        self.links.append(link)
        return link, news

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.close_head()
        self.loop.close()


def sockets(link: HeadLink | HostLink) -> list[socket.socket]:
    """Of all connections that the link has, once they are opened."""
    return [one._end for one in link._streams.values() if isinstance(one, tcp.Stream)]
