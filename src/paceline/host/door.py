"""Where other hosts dial: one port, whatever a connection is for.

A connection is opened (`host.opening`), and goes to who serves its purpose. Until then it is a stranger's. Strangers
are bounded: a flood of them may keep newcomers out, and never disturbs a host that has come.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from paceline.fabric.control import HANDSHAKE
from paceline.host.loop import Alarm, Loop
from paceline.host.opening import Greeted, Keys, Opened, Opening, Side, Turns, greets, listens
from paceline.host.tcp import Address, Lines, Listener, peer_of

MOST_STRANGERS = 32
"""Connections that are not opened. One more closes the oldest of them."""
MOST_HANDSHAKES = 4
"""TLS handshakes that go on at once: each takes some milliseconds of the loop."""


class _Stranger(NamedTuple):
    """What is known of a connection that is not opened."""

    since: float
    peer: str
    """Where it comes from."""


class Door:
    """Lets connections in."""

    def __init__(self, listener: socket.socket | None, loop: Loop, keys: Keys, show: Callable[[str], object]) -> None:
        """`listener`: see `tcp.listen`. The door closes it. None: another process listens. See `takes`."""
        self._loop = loop
        self._keys = keys
        self._lines = Lines(show, loop.now)
        self._serves: dict[str, Callable[[Any], object]] = {}
        self._hands_over: dict[str, Callable[[Greeted], object]] = {}
        self._strangers: dict[Opening[Opened | Greeted], _Stranger] = {}
        """Those that came first are the first."""
        self._turns = Turns(MOST_HANDSHAKES, loop)
        self._alarm = Alarm(loop, self._see_to_silence)
        self._listener = None if listener is None else Listener(listener, loop, self._accepted, show)

    @property
    def address(self) -> Address:
        """Where it listens."""
        assert self._listener is not None
        return self._listener.address

    def serves(self, purpose: str, call: Callable[[Any], object]) -> None:
        """Hand the socket of each connection for that purpose to this function, once it is opened."""
        self._serves[purpose] = call

    def hands_over(self, purpose: str, call: Callable[[Greeted], object]) -> None:
        """Hand each connection for that purpose to this function, which has the rest of its opening done elsewhere."""
        self._hands_over[purpose] = call

    def takes(self, greeted: Greeted) -> None:
        """Do the rest of an opening whose connection another process has handed over."""
        self._lets_in(listens(greeted, self._keys, self._serves.__contains__), peer_of(greeted.end))

    def close(self) -> None:
        """Let nobody in any more. Closing twice does no harm."""
        self._alarm.turn_off()
        if self._listener is not None:
            self._listener.close()
        for stranger in self._strangers:
            stranger.close()
        self._strangers.clear()

    def _accepted(self, end: Any) -> None:
        self._lets_in(self._answers(end), peer_of(end))

    def _answers(self, end: Any) -> Side[Opened | Greeted]:
        greeted = yield from greets(end)
        if greeted.purpose in self._hands_over:
            return greeted
        return (yield from listens(greeted, self._keys, self._serves.__contains__))

    def _lets_in(self, side: Side[Any], peer: str) -> None:
        if len(self._strangers) >= MOST_STRANGERS:
            self._turn_away(next(iter(self._strangers)), "too many connections have said nothing")
        stranger: Opening[Opened | Greeted] = Opening(
            side,
            self._loop,
            opened=lambda one: self._opened(stranger, one),
            failed=lambda why, final: self._failed(stranger, why if final else ""),
            turns=self._turns,
        )
        self._strangers[stranger] = _Stranger(self._loop.now(), peer)
        self._alarm.set(self._loop.now() + HANDSHAKE)

    def _opened(self, stranger: Opening[Opened | Greeted], one: Opened | Greeted) -> None:
        del self._strangers[stranger]
        if isinstance(one, Greeted):
            self._hands_over[one.purpose](one)
        else:
            self._serves[one.purpose](one.end)

    def _failed(self, stranger: Opening[Opened | Greeted], why: str) -> None:
        known = self._strangers.pop(stranger)
        if why:
            self._lines.show(f"connection from {known.peer} refused: {why}")

    def _turn_away(self, stranger: Opening[Opened | Greeted], why: str) -> None:
        stranger.close()
        self._failed(stranger, why)

    def _see_to_silence(self) -> None:
        for stranger, known in list(self._strangers.items()):
            if self._loop.now() < known.since + HANDSHAKE:
                self._alarm.set(known.since + HANDSHAKE)
                return
            self._turn_away(stranger, f"it has said nothing for {HANDSHAKE:.0f} s")
