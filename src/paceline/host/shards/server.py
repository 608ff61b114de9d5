"""What a host besides the head's needs to make its range of each version: updates, sums, and another host's range."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Sequence
from functools import partial

from paceline.core.items import Item, Sum, Update, Version
from paceline.core.shards import Shard, taken_over
from paceline.host import messages as host_messages
from paceline.host.attachments import file_bytes
from paceline.host.claims import Owner
from paceline.host.events import Attached
from paceline.host.memory_plan import MemoryPlan
from paceline.host.shards.migration import Taking
from paceline.host.shards.range_maker import RangeMaker, kept
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.ipc.memory import Span
from paceline.transfer.item_names import fields_of, summand_of
from paceline.transfer.manager import TransferManager


def _brought(item: Update | Sum) -> Owner:
    """Who claims the range of an update or of a sum, until it is in a version."""
    return "for the range made here", *item


class ShardServer:
    """Does what the head orders of this host's range. See `RangeMaker` for versions."""

    def __init__(
        self,
        shard: Shard,
        shelf: Shelf,
        plan: MemoryPlan,
        store: StoreProcess,
        carrier: TransferManager,
        report: Callable[[host_messages.OfShard], object],
        attach: Callable[[str, Span], Attached],
        *,
        own: Container[int],
        idle_cores: Callable[[], int],
    ) -> None:
        """`own` are this host's workers, whose updates are here. `idle_cores`: see `RangeMaker`."""
        self.maker = RangeMaker(shelf, plan, store, idle_cores, tells=True)
        self.shard = shard
        """The range that is made here, or is about to be."""
        self._shelf = shelf
        self._plan = plan
        self._store = store
        self._carrier = carrier
        self._report = report
        self._attach = attach
        self._own = own
        self._taking: Taking | None = None
        """What is lacking to make another host's range as well."""
        self._bringing: dict[Update | Sum, None] = {}
        """What is on its way here, in the order in which it was asked for."""
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

    def expect(self, worker: int, step: int) -> None:
        """Bring what there is of this host's range of an update that is being computed."""
        if worker not in self._own:
            update = Update(worker, step)
            self._bringing[update] = None
            self._carrier.expect(update, _brought(update))

    def bring(self, item: Update | Sum, host: str | None) -> None:
        """Bring this host's range of that update here, or of that sum, which that host makes."""
        if isinstance(item, Sum):
            assert host is not None
            self._hosts[item] = host
        if self._is_own(item):
            if self._shelf.has(item):
                self._shelf.claim(_brought(item), item)
                self._report(host_messages.Stored(fields_of(item)))
            return  # else the worker has left, which the head is about to hear
        self._bringing[item] = None
        self._carrier.fetch(item, _brought(item), lambda: self._stored(item), None)

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
        if self._shelf.has(item):  # it was here in part
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
        if item in self._bringing:
            del self._bringing[item]
            self._carrier.cancel(_brought(item))
        self._needs_no_more(item)

    def take(self, order: host_messages.TakeRange, lacking: Sequence[Item], state: int) -> None:
        """Take over that range, with what the optimizer has for it, which comes into that file. No version is made.

        `lacking`: what is to be brought here besides updates.
        """
        known = [
            item
            for owner, item, _ in self._shelf.claims()
            if isinstance(item, Update | Sum) and owner == _brought(item)
        ]
        elsewhere = dict.fromkeys(item for item in (*known, *self._bringing) if not self._is_own(item))
        arrived = dict.fromkeys(item for item in map(summand_of, order.arrived) if item in elsewhere)
        coming, had = [item for item in elsewhere if item not in arrived], elsewhere.keys() - self._bringing.keys()
        for item in self._bringing:
            self._carrier.cancel(_brought(item))
        self._bringing.clear()
        source = Shard(order.host, order.begin, order.end)
        _, begin, end = taken_over([self.shard, source], order.host, self.shard.host)[0]
        self.shard = Shard(self.shard.host, begin, end)

        def there() -> None:
            self._taking, self.maker.rests = None, False
            self._store.send(messages.store.ExtendRange(order.begin, order.end), (state,))
            os.close(state)
            self._report(host_messages.RangeTaken())
            self.maker.go_on()

        def lost(why: str) -> None:
            self._store.lose(f"it was to take over the range of host {order.host}: {why}")

        self.maker.rests = True
        self._taking = Taking(source, arrived, had, self._carrier, there, lost)
        self._taking.begin(lacking, {item: partial(self._stored, item) for item in coming})

    # --- what the store process says -----------------------------------------------------------

    def hear(self, message: messages.Message, descriptors: Sequence[int]) -> bool:
        """The process has said this of versions. Return whether it was asked to."""
        match message:
            case messages.store.Making(version=version):
                if not self.maker.heard(message):
                    return False
                self._carrier.made(Version(version))
            case messages.store.Norms():
                if not self.maker.heard(message):
                    return False
                self._report(host_messages.RangeNorms(message))
            case messages.store.Committed(version=version):
                order = self.maker.making
                if order is None or not self.maker.heard(message):
                    return False
                for fields, _ in order.terms:
                    self._needs_no_more(summand_of(fields))
                self._carrier.made(Version(version))
                self._report(host_messages.RangeMade(message))
                self.maker.go_on()
            case messages.store.ShareReady(number=number, error=error):
                attached = None
                if descriptors:
                    attached = self._attach(f"share {number} of {self.shard.host}", file_bytes(descriptors[0]))
                self._report(host_messages.StatePacked(number, error, attached))
            case _:
                return False
        return True

    def lost(self, why: str) -> None:
        """The process has gone: no versions are made here any more."""
        self.maker.lost()
        self._report(host_messages.ShardLost(why))

    def _stored(self, item: Update | Sum) -> None:
        self._bringing.pop(item, None)
        self._report(host_messages.Stored(fields_of(item)))

    def _is_own(self, item: Update | Sum) -> bool:
        """Whether it is of this host's workers: all of it is here."""
        return item.worker in self._own if isinstance(item, Update) else self._hosts[item] == self.shard.host

    def _needs_no_more(self, item: Update | Sum) -> None:
        self._shelf.release(_brought(item))
        if isinstance(item, Sum):
            self._hosts.pop(item, None)
