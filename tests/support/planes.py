"""What a host's data plane has, for tests that bring its bytes themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from paceline.transfer.data_connection import PeerExchange
from paceline.transfer.data_plane import DataPlane, PlaneEvents
from paceline.transfer.fetch_table import Peer
from paceline.transfer.manager import TransferManager


class CrossingPlane:
    """A plane to which all that is said comes late, and from which all that is told does. See `Plane`."""

    def __init__(self, events: PlaneEvents) -> None:
        self.inner = DataPlane(_Late(self))
        self.events = events
        self.said: deque[Callable[[], Any]] = deque()
        self.told: deque[Callable[[], Any]] = deque()
        self.connected: dict[Peer, bool] = {}
        self.want, self.drop, self.send, self.refuse, self.begin = (
            partial(self._say, name) for name in ("want", "drop", "send", "refuse", "begin")
        )

    def deliver(self, rng: Random, most: int) -> None:
        """Have some of that arrive, in the order of each side."""
        for _ in range(rng.randrange(most)):
            if queue := rng.choice((self.said, self.told)):
                queue.popleft()()

    def meet(self, peer: Peer) -> None:
        self.connected[peer] = False
        self.inner.meet(peer)

    def end(self, peer: Peer, why: str) -> None:
        self._say("end", peer, why)
        if self.connected.pop(peer, False):
            self.events.disconnected(peer)

    def close(self) -> None:
        self.said.clear()
        self.inner.close()
        self.told.clear()

    def _say(self, name: str, *given: Any, **named: Any) -> None:
        self.said.append(lambda: getattr(self.inner, name)(*given, **named))

    def hear(self, name: str, *given: Any) -> None:
        """What the plane has told comes to the host."""
        if name in ("connected", "disconnected"):
            if given[0] not in self.connected:
                return
            self.connected[given[0]] = name == "connected"
        getattr(self.events, name)(*given)


class _Late:
    """See `PlaneEvents`."""

    def __init__(self, plane: CrossingPlane) -> None:
        self._plane = plane

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: self._plane.told.append(lambda: self._plane.hear(name, *given))


def plane_of(carrier: TransferManager) -> DataPlane:
    """The plane that moves the host's bytes in this process."""
    plane = carrier._plane
    if isinstance(plane, CrossingPlane):
        return plane.inner
    assert isinstance(plane, DataPlane)
    return plane


def meet(carrier: TransferManager, host: str, incarnation: int) -> PeerExchange:
    """Have that incarnation take part. Return what is exchanged with it."""
    carrier.meet(host, incarnation)
    return plane_of(carrier).exchanges[Peer(host, incarnation)]
