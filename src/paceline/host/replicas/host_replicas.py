"""Replicas of a host that is not the head. The head says what lies where, as if all hosts had one region.

A place of the head's has one of this host's from the first order that names it, until the head says that it is empty.
So this host's memory holds what its own workers need, and orders need no names but the head's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.core.items import Item, Replica, There
from paceline.core.shards import Shard, pieces
from paceline.host import messages as host_messages
from paceline.host.claims import Owner
from paceline.host.host_memory import HostMemory
from paceline.host.item_table import Placed
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.averaging import Averaging, Group, GroupShare
from paceline.host.place_translation import placed
from paceline.host.version_shelf import Shelf
from paceline.host.workers import Workers
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.transfer.item_names import item_of

if TYPE_CHECKING:
    from paceline.transfer.fetch_table import Where
    from paceline.transfer.manager import TransferManager


class HostReplicas(Placed[Replica]):
    """Has places for what the head places here, averages, and exchanges replicas with other hosts."""

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        workers: Workers,
        carrier: TransferManager,
        report: Callable[[host_messages.SaidOfReplicas], object],
        loop: Loop,
        memory: HostMemory,
        *,
        name: str,
    ) -> None:
        """`name`: this host's."""
        self.averaging = Averaging(shelf, plan, loop, carrier, report, workers.give_up, memory, name=name)
        super().__init__(shelf, memory)
        self._plan = plan
        self._carrier = carrier
        self._report = report
        self._lent: dict[Item, list[int]] = {}
        """By what other hosts may fetch: its place, once for each time that it is lent."""
        self._borrowed: dict[Item, tuple[str, int]] = {}
        """By what is brought: the host that has it, and its place here."""

    def goes_on(self, worker: int, place: int, head: str) -> Item:
        """The worker goes on with a replica that lies in that place at the head. Return what is to be brought here."""
        replica = Replica(worker, 0)
        self._borrowed[replica] = head, self.local(place)
        return replica

    def begins_with(self, item: Item, place: int = 0) -> None:
        """All replicas begin as that, which lies here, and in that place at the head: at first in its first one."""
        self._shelf.name(There(place), item, _there(place))

    def local(self, place: int) -> int:
        """The place here of what lies in that place of the head's."""
        if place not in self._plan.shared:  # a worker's own, which is the same on all hosts
            return place
        if not self._shelf.has(There(place)):
            found = self._shelf.put(There(place), _there(place), self._plan.shared)
            assert found is not None  # the head has no more places than this host
        return self._shelf.place(There(place))

    def told(self, message: Any) -> Any:
        """The message to a worker, as it is here."""
        return placed(message, lambda place: self._plan.area(self.local(place)))

    def carry_out(self, order: host_messages.OfReplicas) -> None:
        """Carry out an order about replicas."""
        match order:
            case host_messages.AverageGroup(group=group, target=target, parts=parts):
                found = tuple(
                    GroupShare(
                        part.host,
                        part.members,
                        tuple(self._source(part.host, source) for source in part.sources),
                        part.weights,
                    )
                    for part in parts
                )
                self.averaging.begin(Group(group, self.local(target), found))
            case host_messages.DropAverage(group=group):
                self.averaging.drop(group)
            case host_messages.EndAverage(group=group):
                self.averaging.end(group)
            case host_messages.Emptied(place=place):
                self._shelf.release(_there(place))
            case host_messages.Lend(item=fields, place=place):
                item = item_of(fields)
                self._lent.setdefault(item, []).append(self.local(place))
                self._carrier.made(item)
            case host_messages.TakeBack(item=fields):
                self._take_back(item_of(fields))
            case host_messages.CopyItem():
                self._borrow(order)

    def ranges(self, item: Replica) -> list[tuple[str, int, int]]:
        """See `ItemKind`."""
        host, _ = self._borrowed[item]
        return whole(host, self._memory.offer)

    def place(self, item: Replica) -> int:
        """See `Placed`."""
        return self._lent[item][0] if item in self._lent else self._borrowed[item][1]

    def look(self, item: Replica, begin: int, end: int) -> Where:
        """See `ItemKind`."""
        return "here" if item in self._lent else "coming"

    def _source(self, host: str, source: int) -> int:
        """Where that is which a member of that host gives. What members of other hosts give comes to other places."""
        return self.local(source) if self.averaging.is_at(host) else source

    def _borrow(self, order: host_messages.CopyItem) -> None:
        item = item_of(order.item)
        self._borrowed[item] = order.host, self.local(order.place)
        self._carrier.fetch(
            item, ("borrows", order.number), lambda: self._report(host_messages.ItemCopied(order.number)), None
        )

    def _take_back(self, item: Item) -> None:
        lent = self._lent[item]
        lent.pop()
        if not lent:
            del self._lent[item]


def whole(host: str, offer: messages.worker.Offered) -> list[tuple[str, int, int]]:
    """What is asked for, of all of a replica that this host has."""
    return [*pieces(offer.averaged_at, [Shard(host, 0, offer.cuts[-1])]), (host, offer.cuts[-1], offer.push_bytes)]


def _there(place: int) -> Owner:
    """Who claims what lies in that place of the head's."""
    return "there", place
