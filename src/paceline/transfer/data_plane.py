"""The data plane of a host: it fetches what the host wants of others, and sends what they ask for.

    the host's TransferManager          DataPlane
    want, drop, send          ───►      FetchTable, ServeTable,
    brought, lost, asked      ◄───      and a PeerExchange for each other host   ◄───►   their data planes

It knows numbers, names, ranges and memory. Who waits for an item, and what becomes of it, the host alone knows. A plane
works in the host's loop, or in a process of its own: see `transfer.movers`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from paceline.core.items import Item
from paceline.ipc.memory import Span
from paceline.transfer.data_connection import BulkNews, PeerExchange
from paceline.transfer.fetch_table import (
    Announce,
    Ask,
    Brought,
    CancelRequest,
    FetchTable,
    LetGo,
    Lost,
    Named,
    Order,
    Peer,
    Range,
    Say,
    ServeOrder,
    ServeTable,
    Stop,
)


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


class PlaneEvents(Protocol):
    """What a data plane tells its host. A want ends in one of `brought` with `whole`, `lost` and `settled`."""

    def connected(self, peer: Peer) -> None:
        """There is a connection with that host."""

    def disconnected(self, peer: Peer) -> None:
        """The connection is lost. What was asked over it is asked again over the next one."""

    def came(self, number: int, begin: int, end: int) -> None:
        """These bytes of the item are there. Told where the want says `parts`."""

    def brought(self, number: int, peer: Peer, size: int, whole: bool) -> None:
        """All that this host has of the item is here: so many bytes. `whole`: the item has arrived."""

    def lost(self, number: int, why: str, refused_by: str | None) -> None:
        """The item will not come, and no byte of it comes any more.

        `refused_by`: the host that will never have it, if that is why.
        """

    def settled(self, number: int) -> None:
        """The want was dropped, and no byte of its item comes any more."""

    def asked(self, number: int, item: Item, begin: int, end: int) -> None:
        """By that number another host asks for these bytes. `send` or `refuse` answers once it is known which."""

    def released(self, number: int) -> None:
        """What was asked for by that number is read no more: its memory may change."""


class Plane(Protocol):
    """Moves items between this host and others. `DataPlane` does so in this process."""

    def meet(self, peer: Peer) -> None:
        """That incarnation of a host takes part."""

    def end(self, peer: Peer, why: str) -> None:
        """It takes no part any more. What is wanted of it is lost, and this is why."""

    def begin(self, segment: int) -> None:
        """This segment of the run begins. What is wanted of an earlier one is lost."""

    def want(self, number: int, named: Named, ranges: tuple[Range, ...], span: Span, *, parts: bool) -> None:
        """By that number this item is wanted there, which these hosts have. No number is used again.

        `parts`: whether to tell `came`.
        """

    def drop(self, number: int) -> None:
        """That is not wanted any more. `settled` answers."""

    def send(self, number: int, span: Span) -> None:
        """Send these bytes, which were asked for by that number. They must not change until `released` is told."""

    def refuse(self, number: int, why: str) -> None:
        """What was asked for by that number will not be there."""

    def close(self) -> None:
        """The run is over: leave no connection."""


class DataPlane:
    """See `Plane`."""

    def __init__(self, events: PlaneEvents, exchange: Callable[[Peer, BulkNews], PeerExchange] = PeerExchange) -> None:
        """`exchange` makes what is exchanged with another host."""
        self.exchanges: dict[Peer, PeerExchange] = {}
        """With each host that takes part, or did. `Dialler` and `Port` give them connections."""
        self._events = events
        self._exchange = exchange
        self._fetches, self._serves = FetchTable(), ServeTable()
        self._spans: dict[int, Span] = {}
        """By number of what is wanted: where it goes."""
        self._tells_parts: set[int] = set()
        self._orders = InTurn()
        """The host may want more as it is told something."""

    def meet(self, peer: Peer) -> None:
        """See `Plane`."""
        self.exchanges[peer] = self._exchange(peer, self)

    def end(self, peer: Peer, why: str) -> None:
        """See `Plane`."""
        orders = self._fetches.ended(peer, why)  # before its connection goes: they cancel what was asked over that
        self.exchanges[peer].end()
        self._obey(orders)

    def begin(self, segment: int) -> None:
        """See `Plane`."""
        self._obey([*self._fetches.segment_began(segment), *self._serves.segment_began(segment)])

    def want(self, number: int, named: Named, ranges: tuple[Range, ...], span: Span, *, parts: bool) -> None:
        """See `Plane`."""
        self._spans[number] = span
        if parts:
            self._tells_parts.add(number)
        self._obey(self._fetches.want(number, named, ranges))

    def drop(self, number: int) -> None:
        """See `Plane`."""
        self._forget(number)
        self._obey(self._fetches.drop(number))
        self._events.settled(number)

    def send(self, number: int, span: Span) -> None:
        """See `Plane`. That nobody wants it any more has been told."""
        if (asked := self._serves.send(number)) is not None:
            peer, request = asked
            self.exchanges[peer].send(request, span)

    def refuse(self, number: int, why: str) -> None:
        """See `Plane`."""
        self._obey(self._serves.refuse(number, why))

    def close(self) -> None:
        """See `Plane`."""
        self._orders.clear()
        for exchange in self.exchanges.values():
            exchange.end()

    # --- what exchanges tell: see `BulkNews` --------------------------------------------------------

    def connected(self, peer: Peer) -> None:
        """See `BulkNews`."""
        self._events.connected(peer)
        self._obey(self._fetches.connected(peer))

    def disconnected(self, peer: Peer) -> None:
        """See `BulkNews`."""
        self._fetches.disconnected(peer)
        self._events.disconnected(peer)
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
            self._events.came(missing.number, missing.begin, end)
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
            case Brought(number, peer, size, whole):
                if whole:
                    self._forget(number)
                self._events.brought(number, peer, size, whole)
            case Lost(number, why, refused_by):
                self._forget(number)
                self._events.lost(number, why, refused_by)
            case Announce(number, named, begin, end):
                self._events.asked(number, named.item, begin, end)
            case LetGo(number):
                self._events.released(number)
            case Stop(peer, request):
                self.exchanges[peer].stop(request)
            case Say(peer, request, why):
                self.exchanges[peer].refuse(request, why)

    def _forget(self, number: int) -> None:
        self._spans.pop(number, None)
        self._tells_parts.discard(number)
