"""Items between this host and all others: who waits for what, and what is served. A `DataPlane` moves the bytes.

An item is wanted once, however many fetch it. The host lays out its place, and its plane tells what becomes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol

from paceline.core.items import Item
from paceline.host.claims import Owner
from paceline.ipc.memory import Span
from paceline.records.times import FetchTimes
from paceline.transfer.data_plane import DataPlane, Hear, InTurn, Plane
from paceline.transfer.fetch_table import Where
from paceline.transfer.item_names import fields_of, item_of
from paceline.transfer.messages import (
    Asked,
    BeginSegment,
    Brought,
    Came,
    Connected,
    Disconnected,
    DropWant,
    EndPeer,
    Event,
    Lost,
    Meet,
    Named,
    Peer,
    Range,
    Refuse,
    Released,
    Send,
    Settled,
    Want,
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

    def fetched(self, fetch: FetchTimes) -> None:
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


@dataclass(slots=True, eq=False)
class _Want:
    """An item that somebody fetches, and its place."""

    number: int
    item: Item
    named: Named
    ranges: tuple[Range, ...]
    parts: bool
    """Whether the plane tells of bytes as they come."""
    here: bool = False
    """Whether all has come."""
    wanted: bool = True
    """Whether anybody still wants it, and it may come, or has."""
    waiting: dict[Owner, _Waiting] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A fetch that is under way."""

    want: _Want
    told: _Told | None
    """None: the item is only expected."""
    more: Callable[[int, int], object] | None
    """Told of bytes as they come."""
    since: float | None
    """None: nothing has come of what is expected."""
    brought: list[FetchTimes] = field(default_factory=list)
    """What has come of what is expected, host by host."""


class _Asked(NamedTuple):
    """Bytes of an item that another host asks for."""

    item: Item
    begin: int
    end: int


class TransferManager:
    """Moves items between this host and others."""

    _items: Items
    """This host's, from the first segment on. Nothing is fetched before, and who asks for something waits."""

    def __init__(self, host: str, now: Callable[[], float], plane: Callable[[Hear], Plane] = DataPlane) -> None:
        """`host` is this one. `plane` makes what moves the bytes: see `Mover`."""
        self.reached: Callable[[str, bool], object] = lambda host, reached: None
        """Told whether data comes from that host: as a connection comes or goes, or is refused. See `fetch`."""
        self._host = host
        self._now = now
        self._segment = -1
        self._plane = plane(self._hear)
        self._asked: dict[int, _Asked] = {}
        """By number: what other hosts ask for, of what is here or may come."""
        self._awaited: dict[Item, dict[int, _Asked]] = {}
        """The part of it that is not here yet."""
        self._incarnations: dict[str, int] = {}
        """By host: the last one that takes part, or did."""
        self._connected: set[Peer] = set()
        self._numbers = count()
        self._wants: dict[int, _Want] = {}
        """By number: what is wanted, and what was dropped until no byte of it comes."""
        self._wanted: dict[Named, _Want] = {}
        self._waiting: dict[Owner, _Waiting] = {}
        self._refused: dict[Owner, str] = {}
        """Who waits on for what a host has refused, and for which host's end."""
        self._steps = InTurn()
        """Who is told something may ask for more."""

    def meet(self, host: str, incarnation: int) -> Peer:
        """That incarnation takes part. See `Mover` for how there is a connection with it."""
        self._incarnations[host] = incarnation
        peer = Peer(host, incarnation)
        self._plane.tell(Meet(peer))
        return peer

    def has_met(self, host: str) -> bool:
        """Whether that host takes part, or did."""
        return host in self._incarnations

    def reaches(self, host: str) -> bool:
        """Whether there is a connection with that host now, and it gives what is waited for."""
        return Peer(host, self._incarnations[host]) in self._connected and host not in self._refused.values()

    def ended(self, host: str, why: str) -> None:
        """The host takes no part any more. Whoever waits for an item of it is told why.

        That doesn't wait for the plane: the item may be wanted of another host at once.
        """
        incarnation = self._incarnations[host]
        self._refused = {owner: one for owner, one in self._refused.items() if one != host}
        self._plane.tell(EndPeer(Peer(host, incarnation), why))
        for want in list(self._wanted.values()):
            if any(one.host == host and one.incarnation <= incarnation for one in want.ranges):
                self._steps.do(partial(self._lose, want, why, settled=False))

    def begins(self, segment: int, items: Items) -> None:
        """This segment begins, and the one before has ended. Who is ahead of this host has waited for that."""
        self._segment, self._items = segment, items
        self._plane.tell(BeginSegment(segment))

    def close(self) -> None:
        """The run is over: nothing is carried any more, and nobody is told."""
        self._waiting.clear()
        self._wants.clear()
        self._wanted.clear()
        self._steps.clear()
        self._plane.close()
        for number in list(self._asked):
            self._release(number)

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
        told = _Told(arrived, lost)
        if (one := self._waiting.get(owner)) is None:
            self._fetch(item, owner, told, more)
            return
        assert one.told is None, f"{owner} fetches {one.want.named}"
        one.told = told
        for fetch in one.brought:
            self._items.fetched(fetch)
        if one.want.here:
            self._arrived(one.want)

    def expect(self, item: Item, owner: Owner, more: Callable[[int, int], object] | None = None) -> None:
        """Bring what there is of an item that is being made, and go on as more is. Only `more` is told of that.

        A `fetch` for that owner follows once it is known that the item counts, or a `cancel`.
        """
        self._fetch(item, owner, None, more)

    def _fetch(self, item: Item, owner: Owner, told: _Told | None, more: Callable[[int, int], object] | None) -> None:
        ranges = tuple(Range(host, self._incarnations[host], *of) for host, *of in self._items.ranges(item))
        named, parts = Named(self._segment, fields_of(item)), told is None or more is not None
        want, joins = self._wanted.get(named), True
        if want is None:
            number, joins = next(self._numbers), False
            want = self._wanted[named] = self._wants[number] = _Want(number, item, named, ranges, parts)
        assert want.here or want.ranges == ranges, f"{named} is asked of {want.ranges} and of {ranges}"
        one = self._waiting[owner] = _Waiting(want, told, more, None if told is None else self._now())
        want.waiting[owner] = one
        if not joins:
            self._steps.do(partial(self._begin, want))
        elif want.here:
            self._steps.do(partial(self._arrived, want))

    def cancel(self, owner: Owner) -> None:
        """The owner does not need its item any more, and is told nothing. The last one stops what is on its way."""
        if (one := self._waiting.pop(owner, None)) is not None:
            self._let_go(owner, one)
        elif (host := self._refused.pop(owner, None)) is not None and self.reaches(host):
            self.reached(host, True)

    def again(self, which: Callable[[Item], bool]) -> None:
        """Other hosts have these items from now on, or more of them is wanted: ask anew for what is on its way."""
        anew = {owner: one for owner, one in self._waiting.items() if which(one.want.item)}
        for owner in anew:
            self.cancel(owner)
        for owner, one in anew.items():  # once what has come of it is let go of
            self._steps.do(partial(self._fetch, one.want.item, owner, one.told, one.more))

    def pending(self) -> list[str]:
        """What does not come to an end: what is waited for here, and what is kept for others."""
        wants = [want for want in self._wants.values() if want.wanted and not want.here]
        fetched = [f"{tuple(want.waiting)} wait for {want.named}" for want in wants]
        return fetched + [f"request {number} claims {one.item}" for number, one in self._asked.items()]

    # --- what is served -----------------------------------------------------------------------------

    def made(self, item: Item) -> None:
        """The item is here from now on, or more of it."""
        if item in self._awaited:
            self._steps.do(partial(self._made, item))

    def never(self, item: Item, why: str) -> None:
        """The item will not be made."""
        for number in list(self._awaited.get(item, {})):
            self._release(number)
            self._plane.tell(Refuse(number, why))

    # --- what the plane tells -----------------------------------------------------------------------

    def _hear(self, event: Event) -> None:
        match event:
            case Connected(peer):
                self._connected.add(peer)
                self.reached(peer.host, peer.host not in self._refused.values())
            case Disconnected(peer):
                self._connected.discard(peer)
                self.reached(peer.host, False)
            case Came(number, begin, end):
                self._came(number, begin, end)
            case _:
                self._steps.do(partial(self._hear_in_turn, event))

    def _hear_in_turn(self, event: Event) -> None:
        match event:
            case Brought(number, peer, size, whole):
                self._brought(number, peer.host, size, whole)
            case Lost(number, why, refused_by):
                self._lost(number, why, refused_by)
            case Settled(number):
                self._settle(number)
            case Asked(number, named, begin, end):
                self._answer(number, _Asked(item_of(named.item), begin, end))
            case Released(number):
                self._release(number)

    # --- inside: what is fetched --------------------------------------------------------------------

    def _begin(self, want: _Want) -> None:
        if not want.wanted:  # it was cancelled before its turn, and who was to lay it out may know nothing of it
            return
        there = self._items.lay(want.item, want.number)
        if want.ranges:
            self._plane.tell(Want(want.number, want.named, want.ranges, want.parts), there)
        else:  # all of it was here
            self._arrived(want)

    def _came(self, number: int, begin: int, end: int) -> None:
        if (want := self._wants.get(number)) is None:
            return
        waiting = list(want.waiting.values())
        for one in waiting:
            one.since = self._now() if one.since is None else one.since
        for one in waiting:
            if one.more is not None:
                one.more(begin, end)

    def _brought(self, number: int, source: str, size: int, whole: bool) -> None:
        if (want := self._wants.get(number)) is None or not want.wanted:
            return
        waiting, now = list(want.waiting.values()), self._now()
        began = min((one.since for one in waiting if one.since is not None), default=now)
        fetch = FetchTimes.of(want.item, host=self._host, source=source, size=size, began=began, ended=now)
        if any(one.told is not None for one in waiting):
            self._items.fetched(fetch)
        else:
            waiting[0].brought.append(fetch)
        if whole:
            self._arrived(want)

    def _arrived(self, want: _Want) -> None:
        """Tell all that wait for it. What is only expected stays until it counts."""
        want.here = True
        for owner, one in list(want.waiting.items()):
            if one.told is not None and self._waiting.get(owner) is one:
                del self._waiting[owner]
                one.told.arrived()
                self._let_go(owner, one)

    def _lost(self, number: int, why: str, refused_by: str | None) -> None:
        if (want := self._wants.get(number)) is None or not want.wanted:
            return
        wait_on = [owner for owner, one in want.waiting.items() if one.told is not None and one.told.lost is None]
        if refused_by is not None and wait_on:
            self._refused |= dict.fromkeys(wait_on, refused_by)
            self.reached(refused_by, False)
        self._lose(want, why, settled=True)

    def _lose(self, want: _Want, why: str, *, settled: bool) -> None:
        """Tell all that wait for it, unless all have left meanwhile, or it is here.

        `settled`: no byte of it comes any more. If not, the plane is to say when.
        """
        if want.here or not want.wanted:
            return
        self._want_no_more(want)
        if not settled:
            self._plane.tell(DropWant(want.number))
        self._items.free(want.item, False)
        if settled:
            self._settle(want.number)
        for owner, one in list(want.waiting.items()):
            if self._waiting.get(owner) is one:
                del self._waiting[owner]
                if one.told is not None and one.told.lost is not None:
                    one.told.lost(why)

    def _let_go(self, owner: Owner, one: _Waiting) -> None:
        """That one waits no more. The last one drops what it has waited for."""
        if one.want.waiting.get(owner) is one:
            del one.want.waiting[owner]
            if not one.want.waiting and one.want.wanted:
                self._want_no_more(one.want)
                self._steps.do(partial(self._drop, one.want))

    def _want_no_more(self, want: _Want) -> None:
        want.wanted = False
        del self._wanted[want.named]

    def _drop(self, want: _Want) -> None:
        if not want.here:
            self._plane.tell(DropWant(want.number))
        self._items.free(want.item, want.here)
        if want.here:
            self._settle(want.number)

    def _settle(self, number: int) -> None:
        """No byte of it comes any more."""
        if self._wants.pop(number, None) is not None:
            self._items.settled(number)

    # --- inside: what is served ---------------------------------------------------------------------

    def _answer(self, number: int, one: _Asked) -> None:
        where = self._items.look(one.item, one.begin, one.end)
        if where == "gone":
            self._plane.tell(Refuse(number, f"{one.item} is not here any more"))
            return
        self._asked[number] = one
        self._items.claim(one.item, _serves(number))
        if where == "here":
            self._send(number, one)
        else:
            self._awaited.setdefault(one.item, {})[number] = one

    def _made(self, item: Item) -> None:
        for number, one in list(self._awaited.get(item, {}).items()):
            if self._items.look(item, one.begin, one.end) == "here":
                self._await_no_more(number, one)
                self._send(number, one)

    def _send(self, number: int, one: _Asked) -> None:
        there = self._items.view(one.item)
        if one.end <= there.nbytes:
            self._plane.tell(Send(number), there.part(one.begin, one.end))
            return
        self._release(number)
        why = f"{one.item} has {there.nbytes:,} bytes here, and {one.end:,} were asked for"
        self._plane.tell(Refuse(number, why))

    def _release(self, number: int) -> None:
        if (one := self._asked.pop(number, None)) is not None:
            self._await_no_more(number, one)
            self._items.release(one.item, _serves(number))

    def _await_no_more(self, number: int, one: _Asked) -> None:
        awaited = self._awaited.get(one.item, {})
        awaited.pop(number, None)
        if not awaited:
            self._awaited.pop(one.item, None)


def _serves(number: int) -> Owner:
    return "serve", number
