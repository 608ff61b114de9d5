"""Items between this host and all others: what is fetched and served. It carries out what `fetch_table` says.

    want, drop, ended, begins    ──►  FetchTable ── Ask, Cancel ────►  a connection with each other host,
    made, never, begins ───────────►  Serves ── Send, Stop, Say ────►  whose frames and bytes come back here

An item is wanted once, however many fetch it. `FetchTable` and `Serves` know names. The bytes go by here: out of the
memory of an item that is here, and into the place of one that comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from paceline.core.items import Item
from paceline.host.version_shelf import Owner
from paceline.ipc.memory import Span
from paceline.records.times import Fetch
from paceline.transfer.data_connection import PeerExchange, Pipe, PipeNews
from paceline.transfer.fetch_table import (
    Arrived,
    Ask,
    Brought,
    Cancel,
    Claim,
    FetchTable,
    FreePlace,
    Lost,
    Named,
    Order,
    Peer,
    Range,
    Release,
    Say,
    Send,
    ServeOrder,
    Serves,
    Stop,
    TakePlace,
    Where,
)


class Items(Protocol):
    """The items of a host, and places for those that come."""

    def ranges(self, item: Item) -> Sequence[tuple[str, int, int]]:
        """Which hosts have the item: each with its first byte, and the byte after its last one."""

    def lay(self, item: Item, number: int) -> Span:
        """Lay out a place for an item that is to come, and return its bytes.

        By that number bytes come there until `settled`. Before that, nothing that is written here may lie there.
        """

    def free(self, item: Item, whole: bool) -> None:
        """The item comes no more. Who needs it has claimed it by now.

        `whole`: whether all of the item is there. If not, it isn't here, and may come again.
        """

    def settled(self, number: int) -> None:
        """No byte comes by that number any more, not even a late one of what was cancelled."""

    def fetched(self, fetch: Fetch) -> None:
        """All that one host has of an item has come. Who waits for the item hears once it is whole, after this."""

    def look(self, item: Item, begin: int, end: int) -> Where:
        """Where these bytes are of an item that another host asks for."""

    def claim(self, item: Item, owner: Owner) -> None:
        """Keep the item for that owner, whether it is made or not."""

    def release(self, item: Item, owner: Owner) -> None:
        """The owner needs the item no more."""

    def view(self, item: Item) -> Span:
        """The bytes of an item that is here. They don't change while an owner claims it."""


@dataclass(frozen=True, slots=True)
class _Told:
    """Who is told how a fetch has ended."""

    arrived: Callable[[], object]
    lost: Callable[[str], object] | None
    more: Callable[[int, int], object] | None = None


@dataclass(slots=True)
class _Want:
    """An item that somebody fetches, and its place."""

    number: int
    named: Named
    ranges: tuple[Range, ...]
    span: Span | None = None
    """None: it has no place."""
    here: bool = False
    """Whether all has come."""
    waiting: dict[Owner, _Waiting] = field(default_factory=dict)
    late: set[tuple[Peer, int]] = field(default_factory=set)
    """Requests that were cancelled, and of which bytes may still be written."""


@dataclass(slots=True)
class _Waiting:
    """A fetch that is under way."""

    want: _Want
    told: _Told | None
    """None: the item is only expected."""
    since: float | None
    """None: nothing has come of what is expected."""
    brought: list[Fetch] = field(default_factory=list)
    """What has come of what is expected, host by host."""


class TransferManager:
    """Moves items between this host and others."""

    _items: Items
    """This host's, from the first segment on. Nothing is fetched before, and who asks for something waits."""

    def __init__(
        self, host: str, now: Callable[[], float], pipe: Callable[[Peer, PipeNews], Pipe] = PeerExchange
    ) -> None:
        """`host` is this one. `pipe`: see `Mover`."""
        self.reached: Callable[[str, bool], object] = lambda host, reached: None
        """Told whether data comes from that host: as a connection comes or goes, or is refused. See `fetch`."""
        self._pipe = pipe
        self._host = host
        self._now = now
        self._segment = -1
        self._fetches = FetchTable()
        self._serves = Serves(lambda *asked: self._items.look(*asked), self._segment)
        self._incarnations: dict[str, int] = {}
        """By host: the last one that takes part, or did."""
        self._pipes: dict[Peer, Pipe] = {}
        self._numbers = count()
        self._wants: dict[int, _Want] = {}
        """By number: what is wanted, and what nobody wants any more until no byte of it comes."""
        self._newest: dict[Named, _Want] = {}
        """By item: how it was wanted last."""
        self._late: dict[tuple[Peer, int], _Want] = {}
        """By request that was cancelled, and of which bytes may still be written."""
        self._waiting: dict[Owner, _Waiting] = {}
        self._refused: dict[Owner, str] = {}
        """Who waits on for what a host has refused, and for which host's end."""
        self._orders: deque[Order | ServeOrder] = deque()
        """What is to be done, in order. Who is told something may ask for more, which comes after the rest."""
        self._obeys = False

    def meet(self, host: str, incarnation: int) -> Any:
        """That incarnation takes part. Return this end of what is exchanged with it: a pipe."""
        self._incarnations[host] = incarnation
        pipe = self._pipes[Peer(host, incarnation)] = self._pipe(Peer(host, incarnation), self)
        return pipe

    def has_met(self, host: str) -> bool:
        """Whether that host takes part, or did."""
        return host in self._incarnations

    def reaches(self, host: str) -> bool:
        """Whether there is a connection with that host now, and it gives what is waited for."""
        connected = self._pipes[Peer(host, self._incarnations[host])].connected
        return connected and host not in self._refused.values()

    def ended(self, host: str, why: str) -> None:
        """The host takes no part any more. Whoever waits for an item of it is told why."""
        peer = Peer(host, self._incarnations[host])
        orders = self._fetches.ended(peer, why)  # before its connection goes: they cancel what was asked over that
        self._pipes[peer].end()
        self._refused = {owner: one for owner, one in self._refused.items() if one != host}
        self._obey(orders)

    def begins(self, segment: int, items: Items) -> None:
        """This segment begins, and the one before has ended. Who is ahead of this host has waited for that."""
        self._segment, self._items = segment, items
        self._obey([*self._fetches.segment_began(segment), *self._serves.segment_began(segment)])

    def close(self) -> None:
        """The run is over: nothing is carried any more, and nobody is told."""
        self._waiting.clear()
        self._wants.clear()
        self._newest.clear()
        self._late.clear()
        self._orders.clear()  # something may have been raised in the midst of them
        for pipe in self._pipes.values():
            pipe.end()

    # --- what is fetched ----------------------------------------------------------------------------

    def fetch(
        self,
        item: Item,
        owner: Owner,
        arrived: Callable[[], object],
        lost: Callable[[str], object] | None,
        more: Callable[[int, int], object] | None = None,
    ) -> None:
        """Bring the item here for that owner. Then call `arrived`, or `lost` with why it can't come.

        None for `lost`: the head orders what is to be done without the item, as it hears that the item's host has
        ended, or its worker. That comes with a `cancel`. A host that refuses the item, and does not end, is not reached
        until then: so of the two hosts one is lost in time.

        `more(begin, end)` is told of bytes as they come, before that. Each fetch has an owner of its own. An item on
        its way is brought once, for all its owners.
        """
        told = _Told(arrived, lost, more)
        if (one := self._waiting.get(owner)) is None:
            self._fetch(item, owner, told)
            return
        assert one.told is None, f"{owner} fetches {one.want.named}"
        one.told = told
        for fetch in one.brought:
            self._items.fetched(fetch)
        if one.want.here:
            self._arrived(one.want)

    def expect(self, item: Item, owner: Owner) -> None:
        """Bring what there is of an item that is being made, and go on as more is. Nobody is told of that.

        A `fetch` for that owner follows once it is known that the item counts, or a `cancel`.
        """
        self._fetch(item, owner, None)

    def _fetch(self, item: Item, owner: Owner, told: _Told | None) -> None:
        ranges = tuple(Range(host, self._incarnations[host], *of) for host, *of in self._items.ranges(item))
        named = Named(self._segment, item)
        want = self._newest.get(named)
        joins = want is not None and self._fetches.wants(want.number)
        if want is None or not joins:
            number = next(self._numbers)
            want = self._newest[named] = self._wants[number] = _Want(number, named, ranges)
        assert want.here or want.ranges == ranges, f"{named} is asked of {want.ranges} and of {ranges}"
        one = self._waiting[owner] = _Waiting(want, told, None if told is None else self._now())
        want.waiting[owner] = one
        if not joins:
            self._obey(self._fetches.want(want.number, named, ranges))
        elif want.here:
            self._obey([Arrived(want.number)])

    def cancel(self, owner: Owner) -> None:
        """The owner does not need its item any more, and is told nothing. The last one stops what is on its way."""
        if (one := self._waiting.pop(owner, None)) is not None:
            self._let_go(owner, one)
        elif (host := self._refused.pop(owner, None)) is not None and self.reaches(host):
            self.reached(host, True)

    def again(self, which: Callable[[Item], bool]) -> None:
        """Other hosts have these items from now on, or more of them is wanted: ask anew for what is on its way.

        What no other host has is here by now.
        """
        anew = {owner: one for owner, one in self._waiting.items() if which(one.want.named.item)}
        for owner in anew:
            self.cancel(owner)
        for owner, one in anew.items():
            if self._items.ranges(one.want.named.item):
                self._fetch(one.want.named.item, owner, one.told)
            elif one.told is not None:
                one.told.arrived()

    # --- what is served -----------------------------------------------------------------------------

    def made(self, item: Item) -> None:
        """The item is here from now on, or more of it."""
        self._obey(self._serves.made(Named(self._segment, item)))

    def never(self, item: Item, why: str) -> None:
        """The item will not be made."""
        self._obey(self._serves.never(Named(self._segment, item), why))

    # --- what is claimed ----------------------------------------------------------------------------

    def pending(self) -> list[str]:
        """What does not come to an end, and why: what is waited for here, and what is kept for others."""
        wants = [(self._wants[number], why) for number, why in self._fetches.pending()]
        fetched = [f"{tuple(want.waiting)} wait for {why}: {want.named}" for want, why in wants]
        return fetched + [f"{owner} claims {named}" for named, owner in self._serves.claims()]

    # --- what pipes tell: see `BulkNews` ------------------------------------------------------------

    def connected(self, peer: Peer) -> None:
        """See `BulkNews`."""
        self.reached(peer.host, peer.host not in self._refused.values())
        self._obey(self._fetches.connected(peer))

    def disconnected(self, peer: Peer) -> None:
        """See `BulkNews`."""
        self.reached(peer.host, False)
        self._fetches.disconnected(peer)
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
        missing = self._fetches.missing(peer, request)
        waiting = {} if missing is None else self._wants[missing.number].waiting
        wait_on = [owner for owner, one in waiting.items() if one.told is not None and one.told.lost is None]
        if wait_on:
            self._refused |= dict.fromkeys(wait_on, peer.host)
            self.reached(peer.host, False)
        self._obey(self._fetches.refused(peer, request, why))

    def memory(self, peer: Peer, request: int) -> Span | None:
        """See `BulkNews`."""
        missing = self._fetches.missing(peer, request)
        span = None if missing is None else self._wants[missing.number].span
        return None if missing is None or span is None else span.part(missing.begin, missing.end)

    def came(self, peer: Peer, request: int, count: int) -> None:
        """See `BulkNews`."""
        if (missing := self._fetches.missing(peer, request)) is None:
            return
        waiting = list(self._wants[missing.number].waiting.values())
        for one in waiting:
            one.since = self._now() if one.since is None else one.since
        for one in waiting:
            if one.told is not None and one.told.more is not None:
                one.told.more(missing.begin, missing.begin + count)
        self._obey(self._fetches.arrived(peer, request, missing.begin, missing.begin + count))

    def settled(self, peer: Peer, request: int) -> None:
        """See `PipeNews`."""
        if (want := self._late.pop((peer, request), None)) is not None:
            want.late.remove((peer, request))
            if not want.late:
                self._settle(want)

    # --- inside -------------------------------------------------------------------------------------

    def _obey(self, orders: Sequence[Order | ServeOrder]) -> None:
        self._orders.extend(orders)
        if self._obeys:
            return
        self._obeys = True
        try:
            while self._orders:
                self._carry_out(self._orders.popleft())
        finally:
            self._obeys = False

    def _carry_out(self, order: Order | ServeOrder) -> None:
        match order:
            case TakePlace(number):
                want = self._wants[number]
                want.span = self._items.lay(want.named.item, number)
            case FreePlace(number, whole):
                want = self._wants[number]
                self._items.free(want.named.item, whole)
                if not want.late:
                    self._settle(want)
            case Ask(peer, request, named, begin, end):
                self._pipes[peer].ask(request, named, begin, end)
            case Cancel(peer, request, number):
                if not self._pipes[peer].cancel(request):
                    want = self._late[peer, request] = self._wants[number]
                    want.late.add((peer, request))
            case Brought(number, peer, size):
                self._tell(self._wants[number], peer.host, size)
            case Arrived(number):
                self._arrived(self._wants[number])
            case Lost(number, why):
                if number in self._wants:  # else all who waited have left, as they heard of another loss
                    self._lose(self._wants[number], why)
            case Claim(named, owner):
                self._items.claim(named.item, owner)
            case Release(named, owner):
                self._items.release(named.item, owner)
            case Send():
                self._send(order)
            case Stop(peer, request):
                self._pipes[peer].stop(request)
            case Say(peer, request, why):
                self._pipes[peer].refuse(request, why)

    def _arrived(self, want: _Want) -> None:
        """Tell all that wait for it. What is only expected stays until it counts."""
        want.here = True
        for owner, one in list(want.waiting.items()):
            if one.told is not None and self._waiting.get(owner) is one:
                del self._waiting[owner]
                one.told.arrived()
                self._let_go(owner, one)

    def _lose(self, want: _Want, why: str) -> None:
        """Tell all that wait for it."""
        for owner, one in list(want.waiting.items()):
            if self._waiting.get(owner) is one:
                del self._waiting[owner]
                if one.told is not None and one.told.lost is not None:
                    one.told.lost(why)
        want.waiting.clear()
        self._forget(want)

    def _let_go(self, owner: Owner, one: _Waiting) -> None:
        """That one waits no more. The last one drops what it has waited for."""
        if one.want.waiting.get(owner) is one:
            del one.want.waiting[owner]
            if not one.want.waiting:
                self._obey(self._fetches.drop(one.want.number))

    def _settle(self, want: _Want) -> None:
        """No byte of it comes any more."""
        self._items.settled(want.number)
        self._forget(want)

    def _forget(self, want: _Want) -> None:
        if not (want.waiting or want.late):
            self._wants.pop(want.number, None)
            if self._newest.get(want.named) is want:
                del self._newest[want.named]

    def _tell(self, want: _Want, source: str, size: int) -> None:
        waiting = list(want.waiting.values())
        began = min(one.since for one in waiting if one.since is not None)
        fetch = Fetch.of(want.named.item, host=self._host, source=source, size=size, began=began, ended=self._now())
        if any(one.told is not None for one in waiting):
            self._items.fetched(fetch)
        else:
            waiting[0].brought.append(fetch)

    def _send(self, order: Send) -> None:
        peer, request, item = order.peer, order.request, order.named.item
        there = self._items.view(item)
        if order.end <= there.nbytes:
            self._pipes[peer].send(request, there.part(order.begin, order.end))
            return
        self._obey(self._serves.sent(peer, request))
        self._pipes[peer].refuse(request, f"{item} has {there.nbytes:,} bytes here, and {order.end:,} were asked for")
