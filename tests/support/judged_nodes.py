"""Nodes of the seeded network: a head that is lenient, and strict hosts, judged by `core.host_liveness`."""

from __future__ import annotations

from typing import Any

from paceline.core import host_liveness as hosts
from paceline.core.host_liveness import Admit, EndHost, Fence, Hosts, RefuseHost
from paceline.net.control import (
    BeatAcknowledged,
    Event,
    HeardFrom,
    HostCame,
    HostConnected,
    HostDisconnected,
    IncarnationEnded,
)
from support.control_nodes import HEAD, HeadNode, HostNode, Register
from support.seeded_network import Network


class Wrong(AssertionError):
    """Somebody was accused, or trusted, who should not have been."""


class FencedHost(HostNode):
    """A host that ends its workers when its fence says so, and then comes back."""

    def anew(self) -> None:
        super().anew()
        self.fence = Fence(self.timeout)

    def tick(self, now: float) -> None:
        if self.fence.tick(now):
            self.carry_out(self.end.end("its beats are not acknowledged"))
        super().tick(now)

    def due(self) -> float | None:
        times = [moment for moment in (HostNode.due(self), self.fence.due()) if moment is not None]
        return min(times, default=None)

    def happened(self, event: Event) -> None:
        if isinstance(event, BeatAcknowledged):
            self.fence.acknowledged(event.sent)
        super().happened(event)


class JudgingHead(HeadNode):
    """A head that admits and ends hosts as `core.host_liveness` says."""

    def __init__(
        self, network: Network, register: Register, wanted: int, names: tuple[str, ...], timeout: float
    ) -> None:
        super().__init__(network, register)
        self.hosts = Hosts(HEAD, wanted, names, timeout=timeout)
        self.gathered = False
        self.ended: list[EndHost] = []
        self.doors: dict[str, int] = {}

    def tick(self, now: float) -> None:
        super().tick(now)
        self.obey(self.hosts.tick(now))

    def due(self) -> float | None:
        times = [moment for moment in (self.end.due(), self.hosts.due()) if moment is not None]
        return min(times, default=None)

    def happened(self, event: Event) -> None:
        now = self.network.now
        match event:
            case HostCame(connection, host):
                self.doors[host] = connection
                self.obey(self.hosts.came(host, now))
            case HostConnected(host, incarnation):
                self.hosts.connected(host, incarnation, now)
            case HostDisconnected(host, incarnation):
                self.hosts.disconnected(host, incarnation, now)
            case HeardFrom(host, incarnation):
                self.hosts.heard(host, incarnation, now)
            case IncarnationEnded(host, incarnation, why):
                self.obey(self.hosts.leaves(host, incarnation, why))
            case _:
                super().happened(event)

    def obey(self, orders: list[hosts.Order]) -> None:
        for order in orders:
            match order:
                case Admit(host, incarnation):
                    self.incarnations[host] = incarnation
                    self.carry_out(self.end.admit(self.doors[host], incarnation, self.network.now))
                    if self.gathered:
                        self.hosts.joins(host, incarnation)
                    elif not self.hosts.missing:
                        self.gathered = True
                        self.hosts.begins(self.network.now)
                case RefuseHost(host, why):
                    self.carry_out(self.end.refuse(self.doors[host], why))
                case EndHost():
                    self.judged(order)
                    self.carry_out(self.end.end(order.host, order.incarnation, order.why))

    def judged(self, order: EndHost) -> None:
        """The head gives up only hosts that have ended their workers before, or can't run any."""
        self.ended.append(order)
        process: Any = self.network.process(order.host)
        runs = process is not None and not self.network.paused(order.host)
        if order.why.startswith("silent") and runs and process.end.incarnation == order.incarnation:
            raise Wrong(f"{order} while its workers run")
