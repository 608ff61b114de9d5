"""Replicas of workers of other hosts, as the head sees to them.

The head has one shelf for the replicas of all hosts. So it decides what lies where as on one host: what is stepped in
place, what is the mean of a group, what is kept for a joiner. Other hosts have the bytes of what their workers need.
See `host.replicas.host_replicas`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from paceline.core.items import Item, Replica
from paceline.host import messages as host_messages
from paceline.host.claims import Owner
from paceline.host.item_table import Placed
from paceline.host.orders.averaging import Group
from paceline.host.place_translation import places_of
from paceline.host.replicas.host_replicas import whole
from paceline.ipc import messages
from paceline.transfer.item_names import fields_of

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster
    from paceline.transfer.fetch_table import Where
    from paceline.transfer.manager import TransferManager


@dataclass(frozen=True, slots=True)
class _Carried:
    """A replica on its way from one host to another."""

    item: Item
    source: str
    host: str
    then: Callable[[], None]
    lost: Callable[[str], None]


class ReplicaTransfers(Placed[Replica]):
    """Has the hosts of a group's members make its average, and moves replicas between hosts."""

    def __init__(
        self,
        cluster: Cluster,
        carrier: TransferManager | None,
    ) -> None:
        """`carrier`: None if there are no other hosts."""
        super().__init__(cluster.shelf, cluster.memory)
        self._cluster = cluster
        self._carrier = carrier
        self._numbers = count()
        self._groups: dict[int, tuple[str, ...]] = {}
        """By group at work: the hosts that average."""
        self._bound: dict[int, dict[str, None]] = {}
        """By place: the other hosts that have one for it."""
        self._carried: dict[int, _Carried] = {}
        """By number of the request."""
        self._coming: dict[Item, str] = {}
        """By replica that comes here: its host."""
        self._copied: set[int] = set()
        """Places that replicas of other hosts' workers were brought to. They take memory here until they are empty."""
        self._lie_here: set[int] = set()
        """Workers of other hosts that have left with their hosts, in good order: their replicas were brought here."""
        self._without: set[int] = set()
        """Workers that came while others trained, and have not got their replicas."""
        self._goes: list[tuple[str, Callable[[], object]]] = []
        """Hosts that go once nothing of theirs is on its way, and what is called then."""

    # --- what workers are told ----------------------------------------------------------------------

    def binds(self, host: str, worker: int, message: messages.Message) -> None:
        """That host is about to be told this for one of its workers. It has places for what the message names."""
        if isinstance(message, messages.worker.TakeUp):
            self._without.discard(worker)
        for place in places_of(message):
            self.binds_place(host, place)

    def binds_place(self, host: str, place: int) -> None:
        """That host is about to be told of that place."""
        self._bound.setdefault(place, {})[host] = None

    # --- averages ------------------------------------------------------------------------------------

    def begin(self, group: Group) -> set[str]:
        """Have the group average. Return the hosts that do: `GroupAverages.has_made` is told of each.

        A replay has the groups of several hosts, and makes all of each average here.
        """
        parts = tuple(host_messages.GroupPart(one.host, one.members, one.sources, one.weights) for one in group.parts)
        here = self._cluster.name
        hosts: dict[str, None] = {}
        for part in group.parts:
            if self._carrier is not None and part.host != here:
                hosts[part.host] = None
                for place in (group.target, *part.sources):
                    self.binds_place(part.host, place)
                self._cluster.others.tell_host(part.host, host_messages.AverageGroup(group.number, group.target, parts))
            elif here not in hosts:
                hosts[here] = None
                self._cluster.averaging.begin(group)
        self._groups[group.number] = tuple(hosts)
        return set(hosts)

    def drop(self, number: int) -> None:
        """Have these hosts give the group's average up."""
        for host in self._groups[number]:
            if host == self._cluster.name:
                self._cluster.averaging.drop(number)
            else:
                self._cluster.others.tell_host(host, host_messages.DropAverage(number))

    def end(self, number: int) -> None:
        """All know how that group has ended."""
        for host in self._groups.pop(number):
            if host == self._cluster.name:
                self._cluster.averaging.end(number)
            else:
                self._cluster.others.tell_host(host, host_messages.EndAverage(number))

    # --- replicas that move -------------------------------------------------------------------------

    def carry(self, item: Item, source: str, host: str, then: Callable[[], None], lost: Callable[[str], None]) -> None:
        """Bring what has a place at `source` to that place at `host`. The steps that were ordered of it are made."""
        if source == host:
            then()
            return
        for one in (source, host):
            if not self._cluster.others.is_there(one):  # a machine is about to hear of it
                lost(f"host {one} takes no part any more")
                return
        number, place = next(self._numbers), self._shelf.place(item)
        self._carried[number] = _Carried(item, source, host, then, lost)
        self._shelf.claim(_carries(number), item)  # so it stays as it is
        if source != self._cluster.name:
            self.binds_place(source, place)
            self._cluster.others.tell_host(source, host_messages.Lend(fields_of(item), place))
        if host == self._cluster.name:
            self._coming[item] = source
            self._copied.add(place)
            assert self._carrier is not None  # else there is no other host
            self._carrier.fetch(
                item, _carries(number), lambda: self.brought(number, host), partial(self._never_comes, number, source)
            )
        else:
            self.binds_place(host, place)
            self._cluster.others.tell_host(host, host_messages.CopyItem(number, fields_of(item), place, source))

    def show(self, replica: Replica, host: str, then: Callable[[], None]) -> None:
        """Bring what a worker of that host shows until it takes part. It does without if that is lost."""
        lies_at = self._lies_at(replica.worker)
        if self._cluster.others.is_there(lies_at):
            self.carry(replica, lies_at, host, then, lambda why: then())
        else:
            then()

    def brought(self, number: int, host: str) -> bool:
        """What that request was about is at that host. Return whether it may have been brought there."""
        if number not in self._carried:  # it is needed no more
            return True
        if self._carried[number].host != host:
            return False
        carried = self._carried.pop(number)
        self._release(number, carried)
        carried.then()
        self._let_go()
        return True

    def keep(self, host: str, workers: list[int], then: Callable[[], object]) -> None:
        """Their host is about to leave in good order. Bring what these workers have come to here, then go on.

        Cuts that are still to be brought have earlier replicas of theirs. What is on its way from there to another host
        comes there before.
        """
        claimed = [item for _, item, _ in self._shelf.claims() if isinstance(item, Replica)]
        lacking = dict.fromkeys(item for item in claimed if item.worker in workers and item.worker not in self._without)

        def go_on() -> None:
            if not lacking:
                self._lie_here.update(workers)
                self._goes.append((host, then))
                self._let_go()

        def here(item: Replica) -> None:
            del lacking[item]
            go_on()

        go_on()
        for item in list(lacking):
            self.carry(item, self._lies_at(item.worker), self._cluster.name, partial(here, item), _unawaited)

    def lacks(self, workers: list[int]) -> list[int]:
        """Those of these workers of a host that is lost whose replicas are gone with it."""
        return [worker for worker in workers if worker not in self._lie_here | self._without]

    def lost(self, host: str, why: str) -> None:
        """That host takes no part any more."""
        self._goes = [one for one in self._goes if one[0] != host]
        for number, hosts in self._groups.items():  # if it comes again, it knows nothing of these
            self._groups[number] = tuple(one for one in hosts if one != host)
        for bound in self._bound.values():
            bound.pop(host, None)
        for number, one in list(self._carried.items()):
            if (
                host in (one.source, one.host) and self._cluster.name not in (one.source, one.host)
            ) or host == one.host:
                self._lost(number, why)

    def begins(self, workers: Sequence[int]) -> None:
        """Training begins with these workers: each has its replica."""
        self._without.difference_update(workers)

    def back(self, worker: int) -> None:
        """A new process is about to begin as this worker."""
        self._lie_here.discard(worker)
        self._without.add(worker)

    # --- items: see `ItemKind` ----------------------------------------------------------------------

    def ranges(self, item: Replica) -> list[tuple[str, int, int]]:
        """See `ItemKind`."""
        return whole(self._coming[item], self._memory.offer)

    def look(self, item: Replica, begin: int, end: int) -> Where:
        """See `ItemKind`."""
        return "here" if self._shelf.has(item) else "gone"

    # --- inside -------------------------------------------------------------------------------------

    def _lies_at(self, worker: int | None) -> str:
        """The host that has the replica of that worker. None: what training begins with, which the head has."""
        return (
            self._cluster.name if worker is None or worker in self._lie_here else self._cluster.others.host_of(worker)
        )

    def carry_to(self, replica: Replica, source: int | None, worker: int, then: Callable[[], None]) -> None:
        """Bring that replica from its worker's host, or from this one, to that other worker's host. Then call back.

        Nobody is called back if one of these hosts is lost before.
        """
        self.carry(replica, self._lies_at(source), self._cluster.others.host_of(worker), then, _unawaited)

    def bring(self, replicas: Mapping[int, Replica], then: Callable[[], None], lost: Callable[[int], None]) -> None:
        """Bring all of these replicas here, by worker, then go on. `lost(worker)`: that one's can't come."""
        left, failed = dict.fromkeys(replicas), False

        def here(worker: int) -> None:
            left.pop(worker, None)
            if not left and not failed:
                then()

        def gone(worker: int, why: str) -> None:
            nonlocal failed
            if not failed:
                failed = True
                lost(worker)

        for worker, replica in replicas.items():
            self.carry(replica, self._lies_at(worker), self._cluster.name, partial(here, worker), partial(gone, worker))
        if not replicas:
            then()

    def _never_comes(self, number: int, source: str, why: str) -> None:
        """That does not come here. A host that still takes part has it, and does not give it."""
        self._lost(number, why)
        if self._cluster.others.is_there(source):
            self._cluster.others.amiss(source, f"it does not give a replica: {why}")

    def _lost(self, number: int, why: str) -> None:
        if (carried := self._carried.pop(number, None)) is not None:
            self._release(number, carried)
            carried.lost(why)
            self._let_go()

    def _release(self, number: int, carried: _Carried) -> None:
        if carried.source != self._cluster.name:
            self._cluster.others.tell_host(carried.source, host_messages.TakeBack(fields_of(carried.item)))
        if carried.host == self._cluster.name and not any(
            one.item == carried.item and one.host == carried.host for one in self._carried.values()
        ):
            del self._coming[carried.item]
        self._shelf.release(_carries(number))

    def _let_go(self) -> None:
        """Have those hosts go of which nothing is on its way any more."""
        busy = {one.source for one in self._carried.values()}
        ready = [one for one in self._goes if one[0] not in busy]
        self._goes = [one for one in self._goes if one[0] in busy]
        for _, then in ready:
            then()

    def emptied(self, place: int) -> None:
        """Nothing lies in that place any more."""
        for host in self._bound.pop(place, ()):
            self._cluster.others.tell_host(host, host_messages.Emptied(place))
        if place in self._copied:
            self._copied.discard(place)
            self._memory.discard(place)


def _unawaited(why: str) -> None:
    """Nobody waits for it: a host that was to leave in good order is lost, or a joiner is, or copies another one."""


def _carries(number: int) -> Owner:
    """Who claims a replica that is brought to another host."""
    return "carries", number
