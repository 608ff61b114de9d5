"""The data plane of a host: it fetches what the host wants of others, and sends what they ask for.

    the host's TransferManager          DataPlane
    Want, DropWant, Send      ───►      FetchTable, ServeTable,
    Brought, Lost, Asked      ◄───      and a PeerExchange for each other host   ◄───►   their data planes

It knows numbers, names, ranges and memory. A plane works in the host's loop, or in a process of its own: see
`transfer.movers`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from paceline.ipc.memory import Span
from paceline.transfer.data_connection import BulkNews, PeerExchange
from paceline.transfer.fetch_table import (
    Ask,
    CancelRequest,
    FetchTable,
    Order,
    Say,
    ServeOrder,
    ServeTable,
    Stop,
)
from paceline.transfer.messages import (
    BeginSegment,
    Brought,
    Came,
    Command,
    Connected,
    Disconnected,
    DropWant,
    EndPeer,
    Event,
    Lost,
    Meet,
    Named,
    Peer,
    Refuse,
    Send,
    Settled,
    Want,
)

Hear = Callable[[Event], object]
"""Takes what a plane tells its host. It may tell the plane something at once."""


class InTurn:
    """Does one thing after another: what is added meanwhile comes after the rest."""

    def __init__(self) -> None:
        self._steps: deque[Callable[[], None]] = deque()
        self._busy = False

    def do(self, *steps: Callable[[], None]) -> None:
        """Do these, after what is to be done before."""
        self._steps.extend(steps)
        if self._busy:
            return
        self._busy = True
        try:
            while self._steps:
                self._steps.popleft()()
        finally:
            self._busy = False

    def clear(self) -> None:
        """Do nothing of the rest. One step may have raised something."""
        self._steps.clear()


class Plane(Protocol):
    """Moves items between this host and others. `DataPlane` does so in this process."""

    def tell(self, command: Command, memory: Span | None = None) -> None:
        """Do that. `memory` comes along with `Want` and `Send`."""

    def close(self) -> None:
        """The run is over: leave no connection."""


class DataPlane:
    """See `Plane`."""

    def __init__(self, hear: Hear, exchange: Callable[[Peer, BulkNews], PeerExchange] = PeerExchange) -> None:
        """`hear` is told what happens. `exchange` makes what is exchanged with another host."""
        self.exchanges: dict[Peer, PeerExchange] = {}
        """With each host that takes part, or did. `Dialler` and `Port` give them connections."""
        self._hear = hear
        self._exchange = exchange
        self._fetches, self._serves = FetchTable(), ServeTable()
        self._spans: dict[int, Span] = {}
        """By number of what is wanted: where it goes."""
        self._tells_parts: set[int] = set()
        self._orders = InTurn()
        """The host may want more as it is told something."""

    def tell(self, command: Command, memory: Span | None = None) -> None:
        """See `Plane`."""
        match command:
            case Want(number, named, ranges, parts):
                assert memory is not None
                self._spans[number] = memory
                if parts:
                    self._tells_parts.add(number)
                self._obey(self._fetches.want(number, named, ranges))
            case DropWant(number):
                self._forget(number)
                self._obey(self._fetches.drop(number))
                self._hear(Settled(number))
            case Send(number):
                assert memory is not None
                if (asked := self._serves.send(number)) is not None:  # else it has been told that nobody wants it
                    peer, request = asked
                    self.exchanges[peer].send(request, memory)
            case Refuse(number, why):
                self._obey(self._serves.refuse(number, why))
            case BeginSegment(segment):
                self._obey([*self._fetches.segment_began(segment), *self._serves.segment_began(segment)])
            case Meet(peer):
                self.exchanges[peer] = self._exchange(peer, self)
            case EndPeer(peer, why):
                orders = self._fetches.ended(peer, why)  # before its connection goes, over which they cancel
                self.exchanges[peer].end()
                self._obey(orders)

    def close(self) -> None:
        """See `Plane`."""
        self._orders.clear()
        for exchange in self.exchanges.values():
            exchange.end()

    # --- what exchanges tell: see `BulkNews` --------------------------------------------------------

    def connected(self, peer: Peer) -> None:
        """See `BulkNews`."""
        self._hear(Connected(peer))
        self._obey(self._fetches.connected(peer))

    def disconnected(self, peer: Peer) -> None:
        """See `BulkNews`."""
        self._fetches.disconnected(peer)
        self._hear(Disconnected(peer))
        self._obey(self._serves.disconnected(peer))

    def asked(self, peer: Peer, request: int, named: Named, begin: int, end: int) -> None:
        """See `BulkNews`."""
        self._obey(self._serves.asked(peer, request, named, begin, end))

    def cancelled(self, peer: Peer, request: int) -> None:
        """See `BulkNews`."""
        self._obey(self._serves.cancelled(peer, request))

    def sent(self, peer: Peer, request: int) -> None:
        """See `BulkNews`."""
        self._obey(self._serves.sent(peer, request))

    def refused(self, peer: Peer, request: int, why: str) -> None:
        """See `BulkNews`."""
        self._obey(self._fetches.refused(peer, request, why))

    def memory(self, peer: Peer, request: int) -> Span | None:
        """See `BulkNews`."""
        missing = self._fetches.missing(peer, request)
        return None if missing is None else self._spans[missing.number].part(missing.begin, missing.end)

    def came(self, peer: Peer, request: int, count: int) -> None:
        """See `BulkNews`."""
        if (missing := self._fetches.missing(peer, request)) is None:
            return
        end = missing.begin + count
        if missing.number in self._tells_parts:
            self._hear(Came(missing.number, missing.begin, end))
        self._obey(self._fetches.arrived(peer, request, missing.begin, end))

    # --- inside -------------------------------------------------------------------------------------

    def _obey(self, orders: Sequence[Order | ServeOrder]) -> None:
        self._orders.do(*(partial(self._carry_out, order) for order in orders))

    def _carry_out(self, order: Order | ServeOrder) -> None:
        match order:
            case Ask(peer, request, named, begin, end):
                self.exchanges[peer].ask(request, named, begin, end)
            case CancelRequest(peer, request):
                self.exchanges[peer].cancel(request)
            case Stop(peer, request):
                self.exchanges[peer].stop(request)
            case Say(peer, request, why):
                self.exchanges[peer].refuse(request, why)
            case _:
                if isinstance(order, Lost) or (isinstance(order, Brought) and order.whole):
                    self._forget(order.number)
                self._hear(order)

    def _forget(self, number: int) -> None:
        self._spans.pop(number, None)
        self._tells_parts.discard(number)
