"""A connection that is opened to whoever listens, by a command that does nothing else meanwhile."""

from __future__ import annotations

from typing import Any

from paceline.host import opening, tcp
from paceline.host.loop import Loop
from paceline.host.opening import Keys
from paceline.host.tcp import Address

DIALLING = 5.0
"""Seconds in which a connection has to be opened."""


def dialled(address: Address, keys: Keys, purpose: str, loop: Loop) -> tuple[Any, str, bool]:
    """Return an opened connection, or None, why there is none, and whether somebody has answered."""
    ends: list[Any] = []
    whys: list[tuple[str, bool]] = []
    try:
        attempt = opening.dial(
            address, keys, purpose, loop, opened=ends.append, failed=lambda why, final: whys.append((why, final))
        )
    except OSError as error:
        return None, tcp.told(error), False
    until = loop.now() + DIALLING
    while not ends and not whys and (left := until - loop.now()) > 0:
        loop.wait(left)
    attempt.close()
    if ends:
        return ends[0], "", True
    return None, *(whys[0] if whys else (f"no answer within {DIALLING:.0f} s", False))
