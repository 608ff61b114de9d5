"""Strangers who flood a port, and a way that is long: what a host on another continent sees, on loopback."""

from __future__ import annotations

import errno
import multiprocessing
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from paceline.net.handshake import FRAME, MAGIC, PROTOCOL, Kind
from support.throttle import Throttle

Address = tuple[str, int]

HERE = ("127.0.0.1",)
ELSEWHERE = tuple(f"127.0.1.{last}" for last in range(1, 5))
"""Addresses of loopback where nobody else is."""
MOST = 1500
"""Connections that a flood keeps. It closes the oldest for another one."""


def _frame(kind: Kind) -> bytes:
    return FRAME.pack(MAGIC, PROTOCOL, kind, b"control", bytes(32))


def _first_flight() -> bytes:
    """What somebody says first who speaks TLS."""
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


@dataclass(frozen=True)
class Manners:
    """What each stranger of a flood says."""

    first: bytes = b""
    answers: bytes = b""
    """What it says once the other side has said something."""
    slowly: bool = False
    """Whether a byte goes out each second, instead of all."""
    leaves: bool = False
    """Whether it closes the connection at once."""


_GREETING, _FLIGHT = _frame(Kind.GREETING_BEFORE_TLS), _first_flight()
KINDS = {
    "part of a handshake": Manners(_GREETING + _FLIGHT[:20]),
    "whole ClientHello": Manners(_GREETING + _FLIGHT),
    "wrong answer": Manners(_GREETING, _frame(Kind.ANSWER) + _FLIGHT),
    "part of an answer": Manners(_GREETING, _frame(Kind.ANSWER)[:50]),
    "nothing": Manners(),
    "a byte a second": Manners(_GREETING, slowly=True),
    "closed at once": Manners(leaves=True),
}
"""By what its strangers say."""


@contextmanager
def flood(address: Address, kind: str, rate: float, sources: tuple[str, ...] = HERE) -> Iterator[None]:
    """Have so many strangers a second dial that port from these addresses, in a process of their own."""
    process = multiprocessing.get_context("spawn").Process(
        target=_flood, args=(address, KINDS[kind], rate, sources), daemon=True
    )
    process.start()
    try:
        yield
    finally:
        assert process.is_alive(), "the flood has gone on"
        process.kill()
        process.join()


def _flood(address: Address, manners: Manners, rate: float, sources: tuple[str, ...]) -> None:
    selector = selectors.DefaultSelector()
    ends: deque[socket.socket] = deque()
    left: dict[socket.socket, bytes] = {}
    began, opened, bytewise_at = time.monotonic(), 0, 0.0

    def close(end: socket.socket) -> None:
        if end.fileno() >= 0:
            selector.unregister(end)
            left.pop(end, None)
            end.close()

    def dials(source: str) -> None:
        end = socket.socket()
        end.setblocking(False)
        end.bind((source, 0))
        if end.connect_ex(address) not in (0, errno.EINPROGRESS):
            end.close()
            return
        ends.append(end)
        selector.register(end, selectors.EVENT_WRITE, False)
        if len(ends) > MOST:
            close(ends.popleft())

    while True:
        while opened < (time.monotonic() - began) * rate:
            dials(sources[opened % len(sources)])
            opened += 1
        for key, _ in selector.select(0.5 / rate):
            end: socket.socket = key.fileobj  # type: ignore[assignment]
            try:
                if not key.data and manners.leaves:
                    close(end)
                elif not key.data:  # it is connected
                    if manners.slowly:
                        left[end] = manners.first
                    else:
                        end.send(manners.first)
                    selector.modify(end, selectors.EVENT_READ, True)
                elif end.recv(1 << 16):
                    end.send(manners.answers)
                else:
                    close(end)
            except OSError:
                close(end)
        if manners.slowly and time.monotonic() >= bytewise_at:
            bytewise_at = time.monotonic() + 1.0
            for end, data in list(left.items()):
                with suppress(OSError):
                    end.send(data[:1])
                left[end] = data[1:]


@contextmanager
def far_from(target: Address, delay: float = 0.025, source: str = "127.0.0.1") -> Iterator[Address]:
    """Return where to dial, so that bytes take so long each way. The connection comes from that address."""
    link = Throttle(target, delay=delay, source=source)
    try:
        yield link.address
    finally:
        link.close()
