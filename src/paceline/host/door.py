"""Where other hosts dial: one port, whatever a connection is for.

A connection is opened (`host.opening`), and goes to who serves its purpose. Until then it is a stranger's. Strangers
are bounded: a flood of them may keep newcomers out, and never disturbs a host that has come.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from paceline.fabric.control import HANDSHAKE
from paceline.host.loop import Alarm, Loop
from paceline.host.opening import Keys, Opened, Opening, Side, Turns, greets, listens
from paceline.host.tcp import Address, Lines, Listener

MOST_STRANGERS = 32
"""Connections that are not opened. One more closes the oldest of them."""
MOST_HANDSHAKES = 4
"""TLS handshakes that go on at once: each takes some milliseconds of the loop."""


class Door:
    """Lets connections in."""

    def __init__(self, listener: socket.socket, loop: Loop, keys: Keys, show: Callable[[str], object]) -> None:
        """`listener`: see `tcp.listen`. The door closes it."""
        self._loop = loop
        self._keys = keys
        self._lines = Lines(show, loop.now)
        self._serves: dict[str, Callable[[Any], object]] = {}
        self._strangers: dict[Opening[Opened], float] = {}
        """Those that came first are the first, with when that was."""
        self._turns = Turns(MOST_HANDSHAKES, loop)
        self._alarm = Alarm(loop, self._see_to_silence)
        self._listener = Listener(listener, loop, self._accepted, show)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._listener.address

    def serves(self, purpose: str, call: Callable[[Any], object]) -> None:
        """Hand the socket of each connection for that purpose to this function, once it is opened."""
        self._serves[purpose] = call

    def close(self) -> None:
        """Let nobody in any more. Closing twice does no harm."""
        self._alarm.turn_off()
        self._listener.close()
        for stranger in self._strangers:
            stranger.close()
        self._strangers.clear()

    def _accepted(self, end: Any) -> None:
        if len(self._strangers) >= MOST_STRANGERS:
            self._turn_away(next(iter(self._strangers)), "too many connections have said nothing")
        stranger: Opening[Opened] = Opening(
            self._lets_in(end),
            self._loop,
            opened=lambda one: self._opened(stranger, one),
            failed=lambda why, final: self._failed(stranger, why if final else ""),
            turns=self._turns,
        )
        self._strangers[stranger] = self._loop.now()
        self._alarm.set(self._loop.now() + HANDSHAKE)

    def _lets_in(self, end: Any) -> Side[Opened]:
        greeted = yield from greets(end)
        return (yield from listens(greeted, self._keys, self._serves.__contains__))

    def _opened(self, stranger: Opening[Opened], one: Opened) -> None:
        del self._strangers[stranger]
        self._serves[one.purpose](one.end)

    def _failed(self, stranger: Opening[Opened], why: str) -> None:
        del self._strangers[stranger]
        if why:
            self._lines.show(f"connection refused: {why}")

    def _turn_away(self, stranger: Opening[Opened], why: str) -> None:
        stranger.close()
        self._failed(stranger, why)

    def _see_to_silence(self) -> None:
        for stranger, since in list(self._strangers.items()):
            if self._loop.now() < since + HANDSHAKE:
                self._alarm.set(since + HANDSHAKE)
                return
            self._turn_away(stranger, f"it has said nothing for {HANDSHAKE:.0f} s")
