"""What strangers say who flood a port. `benchmarks/flood.py` has so many of them a second."""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import dataclass

from paceline.net.handshake import FRAME, MAGIC, PROTOCOL, Kind


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
