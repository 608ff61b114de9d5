"""A host's range of each version, and what it needs for that: updates, sums, and another host's range."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from paceline.core.items import Buffers, Item, Sum, Update, Version
from paceline.core.shards import Shard, taken_over
from paceline.host import messages as host_messages
from paceline.host.attachments import Attachments, file_bytes
from paceline.host.claims import Owner
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.pushes import Pushed
from paceline.host.shards.early_versions import EarlyOwner, EarlyVersions
from paceline.host.shards.migration import Taking
from paceline.host.shards.range_maker import RangeMaker, kept
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.transfer.item_names import summand_of

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.manager import TransferManager


class ShardHost(Protocol):
    """A host that makes a range of each version, as the head commands it. It answers by `host_messages.OfShard`."""

    def expect(self, update: Update) -> None:
        """Bring what there is of an update that is being computed. Whether it counts, `bring` says."""

    def bring(self, item: Update | Sum, source: str | None) -> None:
        """Bring the host's range of that update, or of that sum, which `source` makes. It is answered by `Stored`."""

    def drop(self, item: Update | Sum) -> None:
        """No version will have what is there of that, or on its way."""

    def make(self, order: host_messages.MakeRange, pushed: Pushed, summed: Sequence[Update]) -> None:
        """Make the range of the next version. `pushed`: the order's terms, as items. `summed`: the updates in sums."""

    def make_with(self, norms: messages.store.Norms) -> None:
        """These are the norms of all ranges, which the version that is being made waits for."""

    def free(self, version: int) -> None:
        """Nobody needs the range of that version any more."""

    def pack_state(self, number: int) -> None:
        """Have what the optimizer has for the range packed. It is answered by `StatePacked`."""

    def take(self, order: host_messages.TakeRange) -> None:
        """Take over another host's range. It is answered by `RangeTaken`."""


class RangeOwner(EarlyOwner, Protocol):
    """The host that a range is made on: what it has for that, and what hears of it."""

    @property
    def keeps_buffers(self) -> bool:
        """Whether workers' buffers are kept here, and so come along with their updates: on the head's host."""

    def buffers_of(self, total: Sum) -> Sequence[Buffers]:
        """The buffers behind the updates in that sum, which another host makes. Asked where buffers are kept."""

    def away(self, version: Version) -> bool:
        """Whether some of that version has to be brought here, or is on its way."""

    def idle_cores(self) -> int:
        """See `RangeMaker`."""

    def range_lost(self, why: str) -> None:
        """The range can't be made any more."""

    def stored(self, item: Update | Sum) -> None:
        """All that the range needs of that is here."""

    def range_made(self, made: messages.store.Committed) -> None:
        """The range of a version is made."""

    def report(self, event: host_messages.OfShard) -> None:
        """Tell the head that."""


def _brought(item: Item) -> Owner:
    """Who claims the range of an update or of a sum, until it is in a version."""
    return "for the range made here", *item


class ShardServer:
    """Does what is commanded of this host's range: see `ShardHost`. See `RangeMaker` for versions."""

    def __init__(
        self,
        shard: Shard,
        shelf: Shelf,
        plan: MemoryPlan,
        store: StoreProcess,
        carrier: TransferManager | None,
        attachments: Attachments,
        owner: RangeOwner,
        *,
        head: str,
    ) -> None:
        """`carrier`: None if there are no other hosts. `head` is told what the optimizer has for the range."""
        self.maker = RangeMaker(shelf, plan, store, owner.idle_cores, tells=carrier is not None)
        self.shard = shard
        """The range that is made here, or is about to be."""
        self.early = EarlyVersions(shelf, plan, store, self.maker, carrier, owner, lambda: self.shard)
        """The version that is likely to be ordered next, as far as it is made here."""
        self.keeps_buffers = owner.keeps_buffers
        """Whether workers' buffers come here with their updates."""
        self._shelf = shelf
        self._plan = plan
        self._store = store
        self._carrier = carrier
        self._owner = owner
        self._attachments = attachments
        self._head = head
        self._taking: Taking | None = None
        """What is lacking to make another host's range as well."""
        self._bringing: dict[Update | Sum, set[Item]] = {}
        """What is on its way here, in the order in which it was asked for: itself, or buffers that come along."""
        self._when_taken: list[Callable[[], object]] = []
        """What waits for another host's range to be taken over."""
        self._hosts: dict[Sum, str] = {}
        """By sum that no version has yet: the host that makes it."""

    # --- the start ----------------------------------------------------------------------------------

    def begins(self, version: int, state: int | None) -> None:
        """Training begins with that version, which is here, and with what that file says of the optimizer."""
        self._shelf.claim(kept(version), Version(version))
        self.maker.begins(version)
        if state is not None:
            self._store.send(messages.store.Load(), (state,))

    def adopted(self, state: int | None) -> None:
        """The first version has become another one, and the optimizer's state is in that file, if it has changed."""
        self._shelf.claim(kept(0), Version(0))  # what it was is needed by those only who compute on it
        self.maker.uses(self._shelf.place(Version(0)))
        self._store.adopt([] if state is None else [state])

    # --- what the head orders -----------------------------------------------------------------------

    def expect(self, update: Update) -> None:
        """See `ShardHost`."""
        if update.worker not in self._owner.own:
            self._bringing[update] = {update}
            self._carries.expect(update, _brought(update), partial(self.early.came, update))
        self.early.computes(update)

    def bring(self, item: Update | Sum, source: str | None) -> None:
        """See `ShardHost`."""
        if isinstance(item, Sum):
            assert source is not None
            self._hosts[item] = source
        if self._is_own(item):
            if self._shelf.has(item):
                self._shelf.claim(_brought(item), item)
                self._owner.stored(item)
            return  # else the worker has left, which the head is about to hear
        parts: list[Item] = [item]
        if isinstance(item, Sum) and self.keeps_buffers:
            parts += self._owner.buffers_of(item)
        self._bringing[item] = {*parts}
        for part in parts:
            self._carries.fetch(part, _brought(part), partial(self._came, item, part), None)

    def source_of(self, total: Sum) -> str:
        """The host that makes that sum, which no version has yet."""
        return self._hosts[total]

    def parts_of(self, item: Update | Sum) -> Shard | None:
        """Where another host's range of it is to come from, if it is taken over and the rest is here."""
        return self._taking.source if self._taking is not None and item in self._taking.arrived else None

    def had(self, item: Update | Sum) -> bool:
        """Whether this host's own range of it is here, and another's comes, too."""
        return self._taking is not None and item in self._taking.had

    def place_of(self, item: Update | Sum) -> int:
        """Lay out a place for what is to come, and return it. The head has one for it, too."""
        if self._shelf.has(item):  # it was here in part, or this is the head's host
            self._shelf.claim(_brought(item), item)
            return self._shelf.place(item)
        places = self._plan.of(item.worker) if isinstance(item, Update) else self._plan.of_sums
        place = self._shelf.put(item, _brought(item), places, comes=True)
        assert place is not None, f"there is no place for {item}"
        return place

    def comes_no_more(self, item: Update | Sum, whole: bool) -> None:
        """Nothing of it comes any more. If this host's range of it is not `whole`, nobody needs it."""
        if not whole:
            self._shelf.release(_brought(item))

    def drop(self, item: Update | Sum) -> None:
        """No version will have what is here of that, or on its way."""
        if self._taking is not None:
            self._taking.drop(item)
        if isinstance(item, Update):
            self.early.dropped(item)
        for part in self._bringing.pop(item, ()):
            self._carries.cancel(_brought(part))
        self._needs_no_more(item)

    def make(self, order: host_messages.MakeRange, pushed: Pushed, summed: Sequence[Update] = ()) -> None:
        """See `ShardHost`."""
        begun = self.early.ordered(order, pushed)
        self.maker.make(order, pushed, summed, begun)
        if begun is not None:
            self.early.counts(begun)

    def make_with(self, norms: messages.store.Norms) -> None:
        """See `ShardHost`."""
        self.maker.make_with(norms)

    def free(self, version: int) -> None:
        """See `ShardHost`."""
        self.maker.free(version)

    def pack_state(self, number: int) -> None:
        """See `ShardHost`."""
        self.maker.send_share(number)

    def when_taken(self, call: Callable[[], object]) -> None:
        """Call once all of the range that is made here is here. Some may be on its way, and nobody else has it now."""
        if self._taking is None:
            call()
        else:
            self._when_taken.append(call)

    def take(self, order: host_messages.TakeRange) -> None:
        """See `ShardHost`. No version is made meanwhile."""

        def lost(why: str) -> None:
            self._owner.range_lost(f"it was to take over the range of host {order.host}: {why}")

        versions = [version for version in map(Version, order.versions) if self._owner.away(version)]
        lacking: list[Item] = [self.early.comes_as(version) for version in versions]
        try:
            lacking += self._attachments.comes(order.state, order.host)
        except OSError as full:
            lost(f"the optimizer's state has no room here: {full.strerror}")
            return
        state = self._attachments.take_file(order.state)
        known = [
            item
            for owner, item, _ in self._shelf.claims()
            if isinstance(item, Update | Sum) and owner == _brought(item)
        ]
        elsewhere = dict.fromkeys(item for item in (*known, *self._bringing) if not self._is_own(item))
        arrived = dict.fromkeys(item for item in map(summand_of, order.arrived) if item in elsewhere)
        coming = [item for item in elsewhere if item not in arrived]
        had = {item for item in elsewhere if item not in self._bringing.get(item, ())}
        for item in self._bringing:
            self._carries.cancel(_brought(item))
        source = Shard(order.host, order.begin, order.end)
        own = [self.shard] if self.shard.begin < self.shard.end else []
        (self.shard,) = taken_over([*own, source], source.host, self.shard.host)

        def there() -> None:
            self._taking, self.maker.rests = None, False
            self._store.send(messages.store.ExtendRange(order.begin, order.end), (state,))
            os.close(state)
            later, self._when_taken = self._when_taken, []
            for call in later:
                call()
            self._owner.report(host_messages.RangeTaken())
            self.maker.go_on()

        self.maker.rests = True
        self._taking = Taking(source, arrived, had, self._carries, there, lost)
        self._taking.begin(lacking, {item: partial(self._came, item, item) for item in coming})

    # --- what the store process says -----------------------------------------------------------

    def hear(self, message: messages.Message, descriptors: Sequence[int]) -> bool:
        """The process has said this of versions. Return whether it was asked to."""
        match message:
            case messages.store.Making(version=version):
                if not self.maker.heard(message):
                    return False
                self._there(version)
            case messages.store.MadeEarly():
                return self.early.heard(message)
            case messages.store.Norms():
                if not self.maker.heard(message):
                    return False
                self._owner.report(host_messages.RangeNorms(message))
            case messages.store.Committed(version=version):
                making = self.maker.making
                if making is None or not self.maker.heard(message):
                    return False
                for item in (*(item for item, _ in making.pushed), *making.summed):
                    self._needs_no_more(item)
                self._there(version)
                self._owner.range_made(message)
                self.maker.go_on()
                self.early.go_on()
            case messages.store.ShareReady(number=number, error=error):
                attached = None
                if descriptors:
                    name, packed = f"share {number} of {self.shard.host}", file_bytes(descriptors[0])
                    attached = self._attachments.offer(name, packed, self._head)
                self._owner.report(host_messages.StatePacked(number, error, attached))
            case _:
                return False
        return True

    def lost(self, why: str) -> None:
        """The process has gone: no versions are made here any more."""
        self.maker.lost()
        self._owner.report(host_messages.ShardLost(why))

    @property
    def _carries(self) -> TransferManager:
        assert self._carrier is not None  # else all items are here
        return self._carrier

    def _there(self, version: int) -> None:
        """More of that version is made. Other hosts may have asked for it, by either name."""
        if self._carrier is not None:
            self._carrier.made(Version(version))
            if (named := self.early.named(version)) is not None:
                self._carrier.made(named)

    def _came(self, item: Update | Sum, part: Item) -> None:
        """That part of the item is here."""
        lacking = self._bringing.get(item, set())
        lacking.discard(part)
        if not lacking:
            self._bringing.pop(item, None)
            self._owner.stored(item)

    def _is_own(self, item: Update | Sum) -> bool:
        """Whether it is of this host's workers: all of it is here."""
        return item.worker in self._owner.own if isinstance(item, Update) else self._hosts[item] == self.shard.host

    def _needs_no_more(self, item: Update | Sum) -> None:
        self._shelf.release(_brought(item))
        if isinstance(item, Sum):
            self._hosts.pop(item, None)
