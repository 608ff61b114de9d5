"""A host's part of the averages of groups, which its own workers compute in threads beside their scripts.

A group's `Reducer` says what is fetched, and which sums are made. A replay computes all hosts' parts on one machine, in
the same order of sums: to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from paceline.core.items import Item, Mean, Partial, Update
from paceline.errors import MessageUnreadable, PeerLost
from paceline.host.claims import Owner
from paceline.host.events import Averaged, GivenUp
from paceline.host.host_memory import HostMemory
from paceline.host.item_table import Placed
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.reducers import Gather, Group, Nothing, Reducer, Ring, Summation, needed
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.ipc.channel import Channel, End
from paceline.ipc.loop import Loop
from paceline.ipc.send_queue import SendQueue

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.fetch_table import Where
    from paceline.transfer.manager import TransferManager


@dataclass(slots=True)
class _Averager:
    """A worker's thread that makes its shares."""

    channel: Channel
    outbox: SendQueue


@dataclass(slots=True)
class _Work:
    """A group at work here."""

    number: int
    reducer: Reducer
    mine: tuple[int, ...]
    """Members whose threads make shares here."""
    early: Collection[Update]
    """Updates of members here that are averaged while they are computed."""
    given: list[Update] = field(default_factory=list)
    """Encoded gradients of members here, which other hosts fetch."""
    awaited: set[int] = field(default_factory=set)
    """Of these, those whose share is not made yet."""
    sum: Summation | None = None
    """What the shares that are awaited come to."""
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

    def begin(self, group: Group, early: Collection[Update] = ()) -> None:
        """Make this host's part of that average. `Averaged` is reported once the mean is here.

        `early`: updates of members here that are still computed. See `there_is_more`.
        """
        away = {update.worker for update in group.brought}
        members = sorted(
            worker for part in group.parts if self.is_at(part.host) for worker in part.members if worker not in away
        )
        mine = tuple(worker for worker in members if worker in self._averagers)
        work = self._works[group.number] = _Work(group.number, self._reducer(group), mine, early)
        work.broken = len(mine) < len(members) and not self._deaths_are_told
        if group.brought:
            for update in self._given_here(group, away):
                self._shelf.claim(needed(update), update)
                work.given.append(update)
        for item in work.reducer.fetches():
            self._fetch(work, item)
        if self._carrier is not None:
            self._carrier.made(Partial(group.number, self._name))
        self._go_on(work)

    def _given_here(self, group: Group, away: Collection[int]) -> list[Update]:
        """Return the encoded gradients of members here, which other hosts fetch until the group's end.

        The protocol may drop them before: nobody is to step with the mean once all workers have left.
        """
        places = [
            place
            for part in group.parts
            for worker, place in zip(part.members, part.sources, strict=True)
            if worker not in away
        ]
        return [item for place in places for item in self._shelf.at(place) if isinstance(item, Update)]

    def _reducer(self, group: Group) -> Reducer:
        offer = self._memory.offer
        if len(group.parts) == 1:
            return Gather(group, offer)
        return Ring(group, offer, self._shelf, self._plan, None if self._carrier is None else self._name)

    def decline(self, number: int) -> None:
        """Make nothing of that average: a member here has declined its step, and the head is about to drop it."""
        work = self._works[number] = _Work(number, Nothing(), (), (), dropped=True)
        self._go_on(work)

    def make_room(self, update: Update) -> None:
        """Give that gradient of another host's worker its place, which a group about to begin keeps until its end."""
        if self._shelf.has(update):  # the head keeps the places of all workers' updates
            self._shelf.claim(needed(update), update)
        else:
            place = self._shelf.put(update, needed(update), self._plan.of(update.worker), comes=True)
            assert place is not None, f"there is no place for {update}"

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
        for item in (*work.reducer.needs, *work.given):
            self._shelf.release(needed(item))

    def there_is_more(self, update: Update) -> None:
        """A worker here has told more of that update, which may be averaged while the worker still computes it."""
        for work in [one for one in self._works.values() if update in one.early]:
            if self._carrier is not None and not work.dropped:
                self._carrier.made(Partial(work.number, self._name))
            self._go_on(work)

    def is_at(self, host: str) -> bool:
        """Whether that host's part of averages is made here."""
        return self._carrier is None or host == self._name

    # --- items: see `ItemKind` ----------------------------------------------------------------------

    def ranges(self, item: Partial | Mean) -> list[tuple[str, int, int]]:
        """Which hosts have which bytes of that."""
        return self._works[item.number].reducer.ranges(item)

    def place(self, item: Partial | Mean) -> int:
        """Where that is, or comes to."""
        return self._works[item.number].reducer.place(item)

    def look(self, item: Partial | Mean, begin: int, end: int) -> Where:
        """Where these bytes are, which another host asks for. It may have heard of the group before this one has."""
        work = self._works.get(item.number)
        return "coming" if work is None or work.dropped else work.reducer.look(item, begin, end)

    # --- inside -------------------------------------------------------------------------------------

    def _go_on(self, work: _Work) -> None:
        """Do what is next, if nothing is awaited for that."""
        if work.over or work.awaited:
            return
        if work.sum is not None:
            made, work.sum = work.sum, None
            if not work.broken:  # else a share is not made
                self._made(work, made)
        if work.dropped:
            work.over = True
            self._report(GivenUp(work.number))
        elif work.broken:
            pass  # a member has died: whoever numbers groups is about to give this one up
        elif (following := work.reducer.next()) is not None:
            work.sum = following
            self._order(work, following)
        elif work.reducer.complete:
            work.over = True
            self._report(Averaged(work.number))

    def _made(self, work: _Work, one: Summation) -> None:
        more = work.reducer.made(one)
        if self._carrier is not None and more is not None:
            self._carrier.made(more)

    def _order(self, work: _Work, one: Summation) -> None:
        work.awaited = set(work.mine)
        order = messages.worker.AverageShare(
            number=work.number,
            members=list(work.mine),
            sources=[self._plan.area(source) for source in one.sources],
            target=self._plan.area(one.target),
            weights=None if one.weights is None else list(one.weights),
            of=one.of,
            begin=one.begin,
            end=one.end,
            flags=one.flags,
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
        work = self._works.get(message.number)
        if work is not None and worker in work.awaited:  # otherwise the share was not asked for
            work.awaited.discard(worker)
            self._go_on(work)

    def _fetch(self, work: _Work, item: Item) -> None:
        """Bring that. With its host, members die: then the group fails."""
        assert self._carrier is not None
        more = partial(self._came, work, item) if isinstance(item, Partial) else None
        self._carrier.fetch(item, _fetched(item), partial(self._here, work, item), None, more)

    def _came(self, work: _Work, item: Item, begin: int, end: int) -> None:
        work.reducer.came(item, begin, end)
        self._go_on(work)

    def _here(self, work: _Work, item: Item) -> None:
        work.reducer.here(item)
        self._go_on(work)

    def _cancel(self, work: _Work) -> None:
        """Fetch nothing for it any more."""
        if self._carrier is not None:
            for item in (Mean(work.number), *work.reducer.needs):
                self._carrier.cancel(_fetched(item))


def _fetched(item: Item) -> Owner:
    """Who fetches it."""
    return "average", *cast(Owner, tuple(item))
