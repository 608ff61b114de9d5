"""Fetches between hosts: what is asked of other hosts, and what is served to them. Pure: names and numbers, no bytes.

`FetchTable` is what a host wants. Each want has a number, which ends in one order unless it is dropped before: the
`Brought` that makes it whole, or `Lost`. `ServeTable` is what others want of this host, which hears of each request by
a number, and answers once the item is there.

    FetchTable                            ServeTable
    Ask           ───────────────────►    asked          Asked: the host claims the item, which may be on its way
    CancelRequest ───────────────────►    cancelled
    arrived       ◄─── bytes ─────────    send           the driver sends them in order, and tells `sent` at their end
    refused       ◄───────────────────    refuse         the item will never be there

Requests belong to a connection. Where it breaks, the server forgets them, and the other side asks again over the next
one, for the rest. A want names the segment of the run, and the owner's incarnation. Once either has ended, it is
`Lost`: nobody waits for what can't come. Connections and membership are the driver's to tell. An order
about a host that is not connected has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal, NamedTuple

from paceline.errors import MessageUnreadable
from paceline.transfer.messages import Asked, Brought, Lost, Named, Peer, Range, Released


class Missing(NamedTuple):
    """Bytes that have not come, of the item that is wanted by that number."""

    number: int
    begin: int
    end: int


# what the driver is to do


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask that host for these bytes."""

    peer: Peer
    request: int
    named: Named
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Tell that host that the request has ended."""

    peer: Peer
    request: int


Order = Ask | CancelRequest | Brought | Lost


@dataclass(slots=True)
class _Coming:
    """How far one range has come."""

    peer: Peer
    end: int
    have: int
    """The bytes before this one are here."""
    request: int | None = None
    """None: it isn't asked for, as its host isn't connected, or as it is whole."""


@dataclass(slots=True)
class _Record:
    """An item that is wanted, and what of it is here."""

    number: int
    named: Named
    ranges: tuple[Range, ...]
    coming: list[_Coming]
    begun: bool = False
    """Whether some of it was asked for. Over a new connection that goes first."""

    @property
    def here(self) -> bool:
        return all(one.have == one.end for one in self.coming)

    def brought(self, peer: Peer) -> list[Order]:
        """Say so if all that this host has of the item is here."""
        if any(one.peer == peer and one.have < one.end for one in self.coming):
            return []
        size = sum(one.end - one.begin for one in self.ranges if one.host == peer.host)
        return [Brought(self.number, peer, size, self.here)]


class FetchTable:
    """What this host wants of others."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}
        """By number of what is wanted."""
        self._requests: dict[int, tuple[_Record, _Coming]] = {}
        self._asked = 0
        self._connected: dict[str, int] = {}
        """By host: the incarnation that is connected."""
        self._ended: dict[str, int] = {}
        """By host: the last incarnation that has ended."""
        self._segment = 0

    # --- what is wanted -----------------------------------------------------------------------------

    def want(self, number: int, named: Named, ranges: tuple[Range, ...]) -> list[Order]:
        """By that number this item is wanted, which these hosts have. No number is used again."""
        assert ranges, f"nobody has {named}"
        assert all(one.begin < one.end for one in ranges), f"one of {ranges} is empty"
        if why := self._why_lost(named, ranges):
            return [Lost(number, why)]
        coming = [_Coming(Peer(one.host, one.incarnation), one.end, one.begin) for one in ranges]
        record = self._records[number] = _Record(number, named, ranges, coming)
        return self._ask(record)

    def drop(self, number: int) -> list[Order]:
        """That is not wanted any more. What is on its way is cancelled."""
        record = self._records.get(number)
        return [] if record is None else self._drop(record)

    # --- what happens -------------------------------------------------------------------------------

    def connected(self, peer: Peer) -> list[Order]:
        """That host can be asked. Its earlier incarnations have ended."""
        if peer.incarnation <= self._ended.get(peer.host, 0):
            return []
        orders = self.ended(Peer(peer.host, peer.incarnation - 1), "its host has come again")
        self._connected[peer.host] = peer.incarnation
        for record in sorted(self._records.values(), key=lambda record: not record.begun):
            orders += self._ask(record)
        return orders

    def disconnected(self, peer: Peer) -> None:
        """The connection is lost. What was asked over it is asked again over the next one."""
        if self._connected.get(peer.host) == peer.incarnation:
            del self._connected[peer.host]
        for request, (_, coming) in list(self._requests.items()):
            if coming.peer == peer:
                del self._requests[request]
                coming.request = None

    def missing(self, peer: Peer, request: int) -> Missing | None:
        """What of the request has not come. None: nobody wants it any more.

        Raises MessageUnreadable if there was no such request.
        """
        found = self._find(peer, request)
        return None if found is None else Missing(found[0].number, found[1].have, found[1].end)

    def arrived(self, peer: Peer, request: int, begin: int, end: int) -> list[Order]:
        """These bytes of the request have come. What comes for one that was cancelled is dropped.

        Raises MessageUnreadable if they are not those that come next.
        """
        found = self._find(peer, request)
        if found is None:
            return []
        record, coming = found
        if begin != coming.have or not begin < end <= coming.end:
            missing = f"{coming.have:,} to {coming.end:,}"
            raise MessageUnreadable(f"bytes {begin:,} to {end:,} came, and {missing} are missing")
        coming.have = end
        if coming.have < coming.end:
            return []
        del self._requests[request]
        coming.request = None
        if record.here:
            del self._records[record.number]
        return record.brought(peer)

    def refused(self, peer: Peer, request: int, why: str) -> list[Order]:
        """The host will never have it. Raises MessageUnreadable if there was no such request."""
        found = self._find(peer, request)
        if found is None:
            return []
        del self._requests[request]
        found[1].request = None
        return self._lose(found[0], why, peer.host)

    def ended(self, peer: Peer, why: str) -> list[Order]:
        """This incarnation has ended, and all before it."""
        self._ended[peer.host] = max(peer.incarnation, self._ended.get(peer.host, 0))
        if self._connected.get(peer.host, peer.incarnation + 1) <= peer.incarnation:
            del self._connected[peer.host]
        return self._lose_all(lambda record: self._why_lost(record.named, record.ranges) and why)

    def segment_began(self, segment: int) -> list[Order]:
        """The run goes on in this segment: nothing of an earlier one comes any more."""
        self._segment = max(segment, self._segment)
        return self._lose_all(lambda record: self._why_lost(record.named, ()))

    # --- what there is ------------------------------------------------------------------------------

    def pending(self) -> Iterator[tuple[int, str]]:
        """What is wanted and not here, and what it waits for."""
        for record in self._records.values():
            coming = next((one for one in record.coming if one.have < one.end), None)
            if coming is not None:
                why = "a connection to" if coming.request is None else "bytes of"
                yield record.number, f"{why} host {coming.peer.host}"

    # --- inside -------------------------------------------------------------------------------------

    def _find(self, peer: Peer, request: int) -> tuple[_Record, _Coming] | None:
        if request > self._asked:
            raise MessageUnreadable(f"request {request:,} is answered, and there were {self._asked:,}")
        found = self._requests.get(request)
        return found if found is not None and found[1].peer == peer else None

    def _why_lost(self, named: Named, ranges: tuple[Range, ...]) -> str | None:
        if named.segment < self._segment:
            return f"segment {named.segment} has ended"
        gone = [one for one in ranges if one.incarnation <= self._ended.get(one.host, 0)]
        return f"incarnation {gone[0].incarnation} of host {gone[0].host} has ended" if gone else None

    def _ask(self, record: _Record) -> list[Order]:
        """Ask for each range whose host is connected."""
        orders: list[Order] = []
        for one in record.coming:
            if one.request is None and one.have < one.end and self._reaches(one):
                self._asked += 1
                one.request, record.begun = self._asked, True
                self._requests[self._asked] = record, one
                orders.append(Ask(one.peer, self._asked, record.named, one.have, one.end))
        return orders

    def _reaches(self, one: _Coming) -> bool:
        return self._connected.get(one.peer.host) == one.peer.incarnation

    def _lose_all(self, why: Callable[[_Record], str | None]) -> list[Order]:
        orders: list[Order] = []
        for record in list(self._records.values()):
            if reason := why(record):
                orders += self._lose(record, reason)
        return orders

    def _lose(self, record: _Record, why: str, refused_by: str | None = None) -> list[Order]:
        return [*self._drop(record), Lost(record.number, why, refused_by)]

    def _drop(self, record: _Record) -> list[Order]:
        """Forget the record, and what was asked for it."""
        del self._records[record.number]
        orders: list[Order] = []
        for one in record.coming:
            if one.request is not None:
                del self._requests[one.request]
                orders.append(CancelRequest(one.peer, one.request))
        return orders


# what is served


@dataclass(frozen=True, slots=True)
class Stop:
    """Send no more of this request. Tell `sent` once none of its bytes waits to be written."""

    peer: Peer
    request: int


@dataclass(frozen=True, slots=True)
class Say:
    """Tell that host that the item will never be there."""

    peer: Peer
    request: int
    why: str


ServeOrder = Asked | Released | Stop | Say
Where = Literal["here", "coming", "gone"]
"""Where bytes of an item are that another host asks for: here, on their way here, or neither."""
MOST_ASKED = 10_000
"""Requests that another host may have at a time. A run has a few for each worker."""


@dataclass(slots=True)
class _Request:
    """What one host has asked for."""

    named: Named
    begin: int
    end: int
    number: int | None = None
    """By which this host knows of it. None: its segment has not begun here. A name belongs to another item before."""
    sends: bool = False
    """Whether the item is being sent."""
    stops: bool = False
    """Whether that host wants no more of what is being sent."""


class ServeTable:
    """What others want of this host."""

    def __init__(self) -> None:
        self._segment = -1
        self._requests: dict[Peer, dict[int, _Request]] = {}
        """By host that has asked for something: all hosts are many, and these are few."""
        self._offered: dict[int, tuple[Peer, int]] = {}
        """By number: what this host knows of."""
        self._numbers = count()

    def asked(self, peer: Peer, request: int, named: Named, begin: int, end: int) -> list[ServeOrder]:
        """That host asks for these bytes. A request for a segment that has not begun here waits for it.

        Raises MessageUnreadable if it asks for nothing, for too much, or twice.
        """
        requests = self._requests.get(peer, {})
        if begin >= end or request in requests:
            raise MessageUnreadable(f"request {request} for bytes {begin:,} to {end:,} is empty, or came before")
        if len(requests) >= MOST_ASKED:
            raise MessageUnreadable(f"it asks for more than {MOST_ASKED:,} items at a time")
        if named.segment < self._segment:
            return [Say(peer, request, f"segment {named.segment} has ended")]
        one = requests[request] = _Request(named, begin, end)
        self._requests[peer] = requests
        return self._offer(peer, request, one)

    def send(self, number: int) -> tuple[Peer, int] | None:
        """Its bytes are sent from now on. Return whom they go to, and for which request; None: nobody wants them."""
        if (found := self._offered.get(number)) is not None:
            self._requests[found[0]][found[1]].sends = True
        return found

    def refuse(self, number: int, why: str) -> list[ServeOrder]:
        """They will not be there."""
        if (found := self._offered.get(number)) is None:
            return []
        self._forget(*found)
        return [Say(*found, why)]

    def sent(self, peer: Peer, request: int) -> list[ServeOrder]:
        """All bytes of the request that were to be sent have been written."""
        return self._forget(peer, request)

    def cancelled(self, peer: Peer, request: int) -> list[ServeOrder]:
        """That host wants it no more."""
        one = self._requests.get(peer, {}).get(request)
        if one is None or one.stops:
            return []
        if one.sends:
            one.stops = True
            return [Stop(peer, request)]
        return self._forget(peer, request)

    def disconnected(self, peer: Peer) -> list[ServeOrder]:
        """The connection is lost, and with it all that was asked over it. Nothing waits to be written any more."""
        return [order for request in list(self._requests.get(peer, {})) for order in self._forget(peer, request)]

    def segment_began(self, segment: int) -> list[ServeOrder]:
        """The run goes on in this segment: nothing of an earlier one is served any more."""
        self._segment = max(segment, self._segment)
        orders: list[ServeOrder] = []
        asked = [(peer, *one) for peer, requests in self._requests.items() for one in requests.items()]
        for peer, request, one in asked:
            if one.named.segment < self._segment and not one.stops:
                orders += [*self.cancelled(peer, request), Say(peer, request, "its segment has ended")]
        for peer, request, one in asked:
            orders += self._offer(peer, request, one)
        return orders

    def _offer(self, peer: Peer, request: int, one: _Request) -> list[ServeOrder]:
        if one.named.segment != self._segment or one.number is not None:
            return []
        one.number = next(self._numbers)
        self._offered[one.number] = peer, request
        return [Asked(one.number, one.named, one.begin, one.end)]

    def _forget(self, peer: Peer, request: int) -> list[ServeOrder]:
        requests = self._requests.get(peer, {})
        one = requests.pop(request, None)
        if not requests:
            self._requests.pop(peer, None)
        if one is None or one.number is None:
            return []
        del self._offered[one.number]
        return [Released(one.number)]
