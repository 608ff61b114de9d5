"""A host's part of the averages of groups, which its own workers compute in threads beside their scripts.

Members on one host sum in memory. If a group has members on several hosts, each of these hosts first adds up what its
own members have: its *partial*. Then it fetches its slice of every other host's partial, adds the slices up in the
hosts' order, and fetches the other slices of the mean. So a link carries 2 (H - 1) / H models each way, as in a ring.
Encoded gradients can't be summed. So each host fetches those of all members, and makes all of the mean itself.

A replay computes all hosts' parts on one machine, in the same order of sums: to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, cast

from paceline.core.items import Item, Mean, Partial, Update
from paceline.core.shards import Shard, cut, pieces
from paceline.errors import MessageUnreadable, PeerLost
from paceline.host.claims import Owner
from paceline.host.events import Averaged, GivenUp
from paceline.host.host_memory import HostMemory
from paceline.host.item_table import Placed
from paceline.host.memory_plan import MemoryPlan
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.ipc.channel import Channel, End
from paceline.ipc.loop import Loop
from paceline.ipc.send_queue import SendQueue
from paceline.transfer.byte_ranges import ByteRanges

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.fetch_table import Where
    from paceline.transfer.manager import TransferManager


STEP = 4 << 20
"""Bytes that are summed at once between hosts. What is summed leaves while the rest is, and what has come is summed
while the rest comes: 25 orders to a thread for a model of 100 MB, which take a tenth of a millisecond each."""
Range = tuple[int, int]
"""The first byte, and the one after the last."""


@dataclass(frozen=True, slots=True)
class GroupShare:
    """What the members of one host give to an average."""

    host: str
    members: tuple[int, ...]
    sources: tuple[int, ...]
    """The places of what is averaged, one of each member. Another host's are not looked at, but counted."""
    weights: tuple[float, ...] | None
    """None: replicas are averaged, and each weighs the same."""


@dataclass(frozen=True, slots=True)
class Group:
    """An average to be made."""

    number: int
    target: int
    """The place of the mean, which no member has as its replica."""
    parts: tuple[GroupShare, ...]
    """In the order in which they are summed."""
    brought: tuple[Update, ...] = ()
    """What comes from other hosts before anything is summed: encoded gradients of members."""

    @property
    def of(self) -> int:
        """How many members it has."""
        return sum(len(part.members) for part in self.parts)


@dataclass(slots=True)
class _Averager:
    """A worker's thread that makes its shares."""

    channel: Channel
    outbox: SendQueue


@dataclass(slots=True)
class _Work:
    """A group at work here."""

    group: Group
    mine: tuple[int, ...]
    """Members whose threads make shares here."""
    coming: set[Update]
    """What is still to come before anything is summed."""
    awaited: set[int] = field(default_factory=set)
    """Of these, those whose share is not made yet."""
    sums: list[tuple[GroupShare, Range]] = field(default_factory=list)
    """Whose members' sum is still to be made here, and which bytes of it, in order."""
    summed: dict[str, ByteRanges] = field(default_factory=dict)
    """By host: which bytes are here of what its members give: made here, or come from there."""
    slice: list[Range] = field(default_factory=list)
    """Which bytes of the mean are still to be made here."""
    has: ByteRanges = field(default_factory=ByteRanges)
    """Which are made."""
    does: Callable[[], None] | None = None
    """What the shares that are awaited come to."""
    terms: dict[str, int] = field(default_factory=dict)
    """By host: the place of what its members give, if that is here, or comes here."""
    slices: Sequence[Shard] = ()
    """Which host makes which bytes of the mean."""
    whole: bool = False
    """Whether the other slices are here."""
    broken: bool = False
    """Whether a share will never be made, as its worker has ended."""
    dropped: bool = False
    """Whether the group was given up."""
    over: bool = False
    """Whether that was told, or that the mean is there."""


class Averaging(Placed[Partial | Mean]):
    """Makes this host's part of averages."""

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        loop: Loop,
        carrier: TransferManager | None,
        report: Callable[[Averaged | GivenUp], object],
        give_up: Callable[[int, str], None],
        memory: HostMemory,
        *,
        name: str,
        deaths_are_told: bool = False,
    ) -> None:
        """`name`: this host's. `carrier`: None if there is no other host: all parts of a group are made here then.

        `give_up(worker, why)` ends a worker that can't go on. `memory`: which bytes replicas have. For
        `deaths_are_told` see `GroupAverages`.
        """
        super().__init__(shelf, memory)
        self._plan = plan
        self._loop = loop
        self._carrier = carrier
        self._report = report
        self._give_up = give_up
        self._name = name
        self._deaths_are_told = deaths_are_told
        self._averagers: dict[int, _Averager] = {}
        self._works: dict[int, _Work] = {}

    # --- workers' threads ---------------------------------------------------------------------------

    def connect(self, worker: int) -> End:
        """Open a channel to that worker's averaging thread. Return its other end, to be passed on and closed."""
        channel, theirs = self._loop.connect(messages.worker.FromAverager, f"worker {worker}'s averager")
        self._loop.watch(channel, lambda: self._hear(worker, channel))
        outbox = SendQueue(channel, self._loop, lambda: self._give_up(worker, "its averager does not read"))
        self._averagers[worker] = _Averager(channel, outbox)
        return theirs

    def gone(self, worker: int) -> None:
        """The worker's process has ended: it makes no share any more."""
        averager = self._averagers.pop(worker, None)
        if averager is not None:
            averager.outbox.forget()
            if self._loop.watches(averager.channel):
                self._loop.unwatch(averager.channel)
            averager.channel.close()
        for work in list(self._works.values()):
            if worker in work.awaited:
                work.awaited.discard(worker)
                work.broken = not self._deaths_are_told
                self._go_on(work)
            elif worker in work.mine:
                work.broken = work.broken or not self._deaths_are_told

    # --- what is ordered ----------------------------------------------------------------------------

    def begin(self, group: Group) -> None:
        """Make this host's part of that average. `Averaged` is reported once the mean is here."""
        here = [part for part in group.parts if self.is_at(part.host)]
        elsewhere = [part for part in group.parts if not self.is_at(part.host)]
        away = {update.worker for update in group.brought}
        members = sorted(worker for part in here for worker in part.members if worker not in away)
        mine = tuple(worker for worker in members if worker in self._averagers)
        work = self._works[group.number] = _Work(group, mine, set(group.brought))
        work.broken = len(mine) < len(members) and not self._deaths_are_told
        hosts = [part.host for part in group.parts]
        work.slices = cut(self._memory.offer.averaged_at, hosts) if elsewhere else [Shard(self._name, 0, self._end)]
        for part in group.parts if len(group.parts) > 1 else ():
            self._give(work, part)
        own = self._own(work)
        work.slice = [] if own is None else self._steps(own) if elsewhere else [(0, self._end)]
        work.whole = all(one.host == self._name for one in work.slices)
        for part in elsewhere if own is not None else ():
            self._fetch(Partial(group.number, part.host), lambda: None, partial(self._came, work, part.host))
        if not work.whole:
            self._fetch(Mean(group.number), partial(self._whole, work))
        for update in group.brought:
            self._fetch(update, partial(self._brought, work, update))
        if self._carrier is not None and len(group.parts) > 1:
            self._carrier.made(Partial(group.number, self._name))
        self._go_on(work)

    def make_room(self, update: Update) -> None:
        """Give that gradient of another host's worker its place, which a group about to begin keeps until its end."""
        if self._shelf.has(update):  # the head keeps the places of all workers' updates
            self._shelf.claim(_owner(update), update)
        else:
            place = self._shelf.put(update, _owner(update), self._plan.of(update.worker), comes=True)
            assert place is not None, f"there is no place for {update}"

    def _give(self, work: _Work, part: GroupShare) -> None:
        """Lay out what the members of a host give, if that is no member's own place."""
        here, summed = self.is_at(part.host), work.summed.setdefault(part.host, ByteRanges())
        if here and len(part.sources) == 1:
            work.terms[part.host] = part.sources[0]
            summed.add(0, self._memory.offer.push_bytes)
            return
        term = Partial(work.group.number, part.host)
        place = self._shelf.put(term, _owner(term), self._plan.shared)
        assert place is not None  # `memory_plan.REPLICAS` counts these
        work.terms[part.host] = place
        if here:
            steps = [self._steps(one) for one in work.slices] if self._carrier is not None else [[(0, self._end)]]
            # of each slice some, in turn: the host that makes it waits for no other's
            work.sums += [(part, one) for these in zip_longest(*steps) for one in these if one is not None]

    def _steps(self, one: Shard) -> list[Range]:
        """The bytes of a slice, as they are summed at once."""
        found: list[Range] = []
        for _, begin, end in pieces(self._memory.offer.averaged_at, [one]):
            if found and end - found[-1][0] <= STEP:
                begin = found.pop()[0]
            found.append((begin, end))
        return found

    def drop(self, number: int) -> None:
        """The group fails: give its average up. `GivenUp` is reported once nothing is written for it."""
        if (work := self._works.get(number)) is None or work.dropped:
            return
        work.dropped = True
        self._cancel(work)
        self._go_on(work)

    def end(self, number: int) -> None:
        """All know how that group has ended. What it needed besides its mean is needed no more."""
        work = self._works.pop(number)
        self._cancel(work)
        for item in _items(work):
            self._shelf.release(_owner(item))

    def is_at(self, host: str) -> bool:
        """Whether that host's part of averages is made here."""
        return self._carrier is None or host == self._name

    # --- items: see `ItemKind` ----------------------------------------------------------------------

    def ranges(self, item: Partial | Mean) -> list[tuple[str, int, int]]:
        """Which hosts have which bytes of that: of a partial, those of the slice that is made here."""
        work = self._works[item.group]
        if isinstance(item, Partial):
            own = self._own(work)
            assert own is not None
            return [
                (item.host, *self._flags(own)),
                *pieces(self._memory.offer.averaged_at, [own._replace(host=item.host)]),
            ]
        found = list[tuple[str, int, int]]()
        for one in work.slices:
            if one.host != self._name:
                found += pieces(self._memory.offer.averaged_at, [one])
                found += [(one.host, *self._flags(one))] if one.begin == 0 else []
        return found

    def place(self, item: Partial | Mean) -> int:
        """Where that is, or comes to."""
        work = self._works[item.group]
        return work.terms[item.host] if isinstance(item, Partial) else work.group.target

    def look(self, item: Partial | Mean, begin: int, end: int) -> Where:
        """Where these bytes are, which another host asks for. It may have heard of the group before this one has."""
        work = self._works.get(item.group)
        if work is None or work.dropped:
            return "coming"
        has: ByteRanges | None = work.has
        if isinstance(item, Partial):
            has = work.summed.get(self._name) if item.host == self._name else None
        if has is None:
            return "gone"
        return "here" if has.has(begin, end) else "coming"

    # --- inside -------------------------------------------------------------------------------------

    def _own(self, work: _Work) -> Shard | None:
        """The bytes of the mean that are made here; None if the model has too few pieces for that."""
        return next((one for one in work.slices if one.host == self._name), None)

    @property
    def _end(self) -> int:
        return self._memory.offer.cuts[-1]

    def _flags(self, one: Shard) -> Range:
        """The bytes behind the parameters that go with that slice: flags of all, and with the first one buffers."""
        offer = self._memory.offer
        return self._end, offer.push_bytes if one.begin == 0 else self._end + offer.flags_bytes

    def _go_on(self, work: _Work) -> None:
        """Do what is next, if nothing is awaited for that."""
        if work.over or work.awaited:
            return
        if work.does is not None:
            does, work.does = work.does, None
            if not work.broken:  # else a share is not made
                does()
        if work.dropped:
            work.over = True
            self._report(GivenUp(work.group.number))
        elif work.broken or work.coming:
            pass  # a member has died: whoever numbers groups is about to give this one up
        elif work.sums:
            part, within = work.sums.pop(0)
            work.does = partial(self._summed, work, part.host, within)
            self._order(work, part.sources, work.terms[part.host], part.weights, 0, within)
        elif work.slice:
            if (ready := self._next(work)) is not None:
                work.slice.remove(ready)
                work.does = partial(self._made, work, ready)
                sources, weights = self._terms(work.group, work)
                self._order(work, sources, work.group.target, weights, work.group.of, ready)
        elif work.whole:
            work.over = True
            self._report(Averaged(work.group.number))

    def _next(self, work: _Work) -> Range | None:
        """Some of the slice of which all terms are here, flags included."""
        own = self._own(work)
        assert own is not None
        flags = self._flags(own)
        if not all(summed.has(*flags) for summed in work.summed.values()):
            return None
        return next((one for one in work.slice if all(summed.has(*one) for summed in work.summed.values())), None)

    def _summed(self, work: _Work, host: str, within: Range) -> None:
        """So much is there of what the members of a host give."""
        self._grows(work.summed[host], within)
        if self._carrier is not None:
            self._carrier.made(Partial(work.group.number, host))

    def _made(self, work: _Work, within: Range) -> None:
        """So much of the slice is made."""
        self._grows(work.has, within)
        if self._carrier is not None and len(work.group.parts) > 1:
            self._carrier.made(Mean(work.group.number))

    def _grows(self, coverage: ByteRanges, within: Range) -> None:
        """These bytes are made. What lies behind the parameters goes with the first of them."""
        coverage.add(*within)
        if within[0] == 0:
            coverage.add(self._end, self._memory.offer.push_bytes)

    def _terms(self, group: Group, work: _Work) -> tuple[Sequence[int], Sequence[float] | None]:
        """What is averaged: what each host gives, or where there is one, what each member has. And the weights."""
        if len(group.parts) == 1:
            return group.parts[0].sources, group.parts[0].weights
        weights = None
        if all(part.weights is not None for part in group.parts):
            weights = [_weight(part) for part in group.parts]
        return [work.terms[part.host] for part in group.parts], weights

    def _order(
        self,
        work: _Work,
        sources: Sequence[int],
        target: int,
        weights: Sequence[float] | None,
        of: int,
        within: tuple[int, int],
    ) -> None:
        work.awaited = set(work.mine)
        order = messages.worker.AverageShare(
            group=work.group.number,
            members=list(work.mine),
            sources=[self._plan.area(source) for source in sources],
            target=self._plan.area(target),
            weights=None if weights is None else list(weights),
            of=of,
            begin=within[0],
            end=within[1],
        )
        for worker in work.mine:
            self._averagers[worker].outbox.send(order)

    def _hear(self, worker: int, channel: Channel) -> None:
        """The worker has made its share of an average, or has left."""
        try:
            message, _ = channel.receive()
        except PeerLost:
            self._loop.unwatch(channel)
            return
        except MessageUnreadable as error:
            self._loop.unwatch(channel)
            self._give_up(worker, f"its averager sent a message that can't be read ({error})")
            return
        work = self._works.get(message.group)
        if work is not None and worker in work.awaited:  # otherwise the share was not asked for
            work.awaited.discard(worker)
            self._go_on(work)

    def _fetch(
        self, item: Partial | Mean | Update, there: Callable[[], None], more: Callable[[int, int], None] | None = None
    ) -> None:
        assert self._carrier is not None
        self._carrier.fetch(item, _fetched(item), there, None, more)  # with its host, members die: the group fails

    def _brought(self, work: _Work, update: Update) -> None:
        work.coming.discard(update)
        self._go_on(work)

    def _came(self, work: _Work, host: str, begin: int, end: int) -> None:
        work.summed[host].add(begin, end)
        self._go_on(work)

    def _whole(self, work: _Work) -> None:
        work.whole = True
        self._go_on(work)

    def _cancel(self, work: _Work) -> None:
        """Fetch nothing for it any more."""
        if self._carrier is not None:
            for item in (Mean(work.group.number), *_items(work)):
                self._carrier.cancel(_fetched(item))


def _items(work: _Work) -> list[Item]:
    """What the group needs besides its mean."""
    return [*(Partial(work.group.number, host) for host in work.terms), *work.group.brought]


def _weight(part: GroupShare) -> float:
    """The weight of what a host gives: of a sum 1, as its terms have theirs."""
    assert part.weights is not None
    return part.weights[0] if len(part.sources) == 1 else 1.0


def _owner(item: Item) -> Owner:
    """Who claims that item's place, as long as the group is at work."""
    return "averaging", *cast(Owner, tuple(item))


def _fetched(item: Item) -> Owner:
    """Who fetches it."""
    return "average", *cast(Owner, tuple(item))
