"""Where other hosts dial: one port for connections of all purposes.

An open connection (`net.handshake`) goes to the function that serves its purpose. Until a dialler has proved that it
has the token, it is a stranger. Strangers have a limited number of places, and get no TLS and no other process.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from paceline.ipc.loop import Alarm, Loop
from paceline.net.control import HANDSHAKE
from paceline.net.handshake import Answered, Handshake, Keys, Side, challenges, welcomes
from paceline.net.tcp import Address, Lines, Listener, peer_of, shown

MOST_STRANGERS = 128
"""Places for strangers. If 1,000 dial in a second, each has 128 ms for the one round trip that an answer takes."""

T = TypeVar("T")


def network(host: str) -> str | bytes:
    """Return the address, or the first half of an IPv6 address, as whoever has one address there has them all."""
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8] if ":" in host else host


def goes(strangers: Mapping[T, str | bytes]) -> T:
    """Return the stranger that makes room for a new one: the first, which is the oldest, of the most crowded network.

    So a flood from a few networks displaces only itself. If the newest had to go, a few silent strangers would keep
    all others out.
    """
    counts = Counter(strangers.values())
    return max(strangers, key=lambda one: counts[strangers[one]])


class _Waiting(NamedTuple):
    """A connection that is not open yet."""

    since: float
    peer: str
    """Where it comes from, for the user."""
    network: str | bytes
    """Where a stranger comes from. Empty: its dialler is no stranger."""


class HostListener:
    """Opens connections that other hosts dial, and hands them to the functions that serve their purposes."""

    def __init__(self, listener: socket.socket | None, loop: Loop, keys: Keys, show: Callable[[str], object]) -> None:
        """`listener`: see `tcp.listen`. This closes it. None: another process listens. See `takes`."""
        self.crowded: Callable[[], object] = lambda: None
        """Called when a connection has to go that may be a host's."""
        self._loop = loop
        self._keys = keys
        self._lines = Lines(show, loop.now)
        self._serves: dict[str, Callable[[Any], object]] = {}
        self._hands_over: dict[str, Callable[[Answered], object]] = {}
        self._waiting: dict[Handshake[Any], _Waiting] = {}
        """In the order in which they came."""
        self._known: set[str | bytes] = set()
        """Networks of hosts. Strangers from elsewhere can't take their places."""
        self._alarm = Alarm(loop, self._see_to_silence)
        self._listener = None if listener is None else Listener(listener, loop, self._accepted, show)

    @property
    def address(self) -> Address:
        """Where it listens."""
        assert self._listener is not None
        return self._listener.address

    def serves(self, purpose: str, call: Callable[[Any], object]) -> None:
        """Hand the socket of each open connection for that purpose to this function."""
        self._serves[purpose] = call

    def hands_over(self, purpose: str, call: Callable[[Answered], object]) -> None:
        """Hand each connection for that purpose to this function, which has another process finish the handshake."""
        self._hands_over[purpose] = call

    def takes(self, answered: Answered) -> None:
        """Finish a handshake, which another process may have handed over."""
        side = welcomes(answered, self._keys, self._serves.__contains__)
        self._opens(side, lambda one: self._serves[one.purpose](one.end), peer_of(answered.end), "")

    def close(self) -> None:
        """Accept no further connection. Closing twice does no harm."""
        self._alarm.turn_off()
        if self._listener is not None:
            self._listener.close()
        for one in self._waiting:
            one.close()
        self._waiting.clear()

    def _accepted(self, end: Any, address: Address) -> None:
        where = network(address[0])
        known = where in self._known
        rivals = {
            one: it.network for one, it in self._waiting.items() if it.network and (it.network in self._known) == known
        }
        while len(rivals) >= MOST_STRANGERS:
            one = goes(rivals)
            del rivals[one]
            self._close(one, "too many connections have said nothing")
            if known:
                self.crowded()
        self._opens(challenges(end, self._keys), partial(self._answered, where), shown(address), where)

    def _answered(self, where: str | bytes, one: Answered) -> None:
        self._known.add(where)
        self._hands_over.get(one.purpose, self.takes)(one)

    def _opens(self, side: Side[T], then: Callable[[T], object], peer: str, where: str | bytes) -> None:
        def opened(one: T) -> None:
            del self._waiting[opening]
            then(one)

        opening: Handshake[T] = Handshake(
            side,
            self._loop,
            opened=opened,
            failed=lambda why, final: self._failed(opening, why if final else ""),
        )
        self._waiting[opening] = _Waiting(self._loop.now(), peer, where)
        self._alarm.set(self._loop.now() + HANDSHAKE)

    def _failed(self, one: Handshake[Any], why: str) -> None:
        known = self._waiting.pop(one)
        if why:
            self._lines.show(f"connection from {known.peer} refused: {why}")

    def _close(self, one: Handshake[Any], why: str) -> None:
        one.close()
        self._failed(one, why)

    def _see_to_silence(self) -> None:
        for one, known in list(self._waiting.items()):
            if self._loop.now() < known.since + HANDSHAKE:
                self._alarm.set(known.since + HANDSHAKE)
                return
            self._close(one, f"it has said nothing for {HANDSHAKE:.0f} s")
