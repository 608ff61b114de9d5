"""What a host's data plane has, for tests that bring its bytes themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from paceline.ipc.memory import Span
from paceline.transfer.data_connection import PeerExchange
from paceline.transfer.data_plane import DataPlane, Hear
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Command, Connected, Disconnected, EndPeer, Event, Meet, Peer


class CrossingPlane:
    """A plane to which all that is said comes late, and from which all that is told does. See `Plane`."""

    def __init__(self, hear: Hear) -> None:
        self.inner = DataPlane(lambda event: self.told.append(lambda: self._heard(event)))
        self.hear = hear
        self.said: deque[Callable[[], Any]] = deque()
        self.told: deque[Callable[[], Any]] = deque()
        self.connected: dict[Peer, bool] = {}

    def deliver(self, rng: Random, most: int) -> None:
        """Have some of that arrive, in the order of each side."""
        for _ in range(rng.randrange(most)):
            if queue := rng.choice((self.said, self.told)):
                queue.popleft()()

    def tell(self, command: Command, memory: Span | None = None) -> None:
        if isinstance(command, Meet):
            self.connected[command.peer] = False
            self.inner.tell(command)
            return
        self.said.append(lambda: self.inner.tell(command, memory))
        if isinstance(command, EndPeer) and self.connected.pop(command.peer, False):
            self.hear(Disconnected(command.peer))

    def close(self) -> None:
        self.said.clear()
        self.inner.close()
        self.told.clear()

    def _heard(self, event: Event) -> None:
        """What the plane has told comes to the host."""
        if isinstance(event, Connected | Disconnected):
            if event.peer not in self.connected:
                return
            self.connected[event.peer] = isinstance(event, Connected)
        self.hear(event)


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
