"""Replicas on a host: it puts its own workers' replicas and what comes from other hosts into places of its own.

Orders name items, and never places. See `host.replicas.replica_table` for what is known of all replicas of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, cast

from paceline.core.items import Beginning, Item, Mean, Replica, Update
from paceline.core.shards import Shard, pieces
from paceline.host import messages as host_messages
from paceline.host.claims import Owner
from paceline.host.host_memory import HostMemory
from paceline.host.item_table import Placed
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.averaging import Averaging
from paceline.host.orders.reducers import Group, GroupShare
from paceline.host.orders.steps import ReplicaSteps, mean_of, shown
from paceline.host.overlap import Computing
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState
from paceline.host.workers import Workers
from paceline.ipc.loop import Loop
from paceline.transfer.byte_ranges import ByteRanges
from paceline.transfer.item_names import item_of

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.fetch_table import Where
    from paceline.transfer.manager import TransferManager


class HostReplicas(Placed[Replica]):
    """Steps and averages the replicas of workers here, keeps what is still needed of them, and brings others'."""

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        memory: HostMemory,
        workers: Workers,
        seats: Mapping[int, WorkerState],
        loop: Loop,
        carrier: TransferManager | None,
        report: Callable[[host_messages.SaidOfReplicas], object],
        computing: Computing,
        *,
        name: str,
        deaths_are_told: bool = False,
        never_comes: Callable[[int, str], None] | None = None,
    ) -> None:
        """`carrier`: None if there are no other hosts. `computing`: what workers here have told of their updates.

        `name`: this host's. `deaths_are_told`: see `GroupAverages`.

        `never_comes(number, why)`: what was to be brought here does not come. None: its host is lost then, or this one.
        """
        super().__init__(shelf, memory)
        self.steps = ReplicaSteps(shelf, plan, seats, workers.send)
        self.averaging = Averaging(
            shelf, plan, loop, carrier, report, workers.give_up, memory, name=name, deaths_are_told=deaths_are_told
        )
        self._plan = plan
        self._name = name
        self._carrier = carrier
        self._report = report
        self._computing = computing
        self._never_comes = never_comes
        self._coming: dict[Item, str] = {}
        """By replica that comes here: its host."""
        self._when_there: dict[Item, Callable[[], None]] = {}
        """By replica that comes here: what is done once it is here."""
        self._copied: set[int] = set()
        """Places that replicas of other hosts were brought to. They take memory here until they are empty."""
        self._members: dict[int, tuple[tuple[int, ...], bool]] = {}
        """By average at work: its members here, and whether it averages gradients."""

    # --- what workers begin with --------------------------------------------------------------------

    def begin(self, changes: Mapping[int, int], there: Item) -> None:
        """The replicas of these workers, which are here, begin as that item, and get these numbers."""
        for worker, change in changes.items():
            self.steps.becomes(worker, change, there)

    def end(self) -> None:
        """No worker here owns a replica any more. What others still need of them stays."""
        for worker in self.steps.workers:
            self.steps.forget(worker)

    def adopted(self, worker: int, changes: Mapping[int, int]) -> None:
        """These replicas here are what that worker has written, and get these numbers."""
        for own, change in changes.items():
            if self.steps.owned_by(own):  # else its host comes anew
                self.steps.becomes(own, change, Beginning(worker))

    def comes_from(self, host: str, worker: int) -> Replica:
        """Give the worker's replica a place. It comes from that host, which has read it from a snapshot. Return it."""
        self.steps.room(worker, 0)
        replica = self.steps.replica(worker)
        self._coming[replica] = host
        return replica

    def read_for(self, worker: int) -> None:
        """Give the replica of another host's worker a place here, where it is read from a snapshot for that host."""
        replica = Replica(worker, 0)
        place = self._shelf.put(replica, _read_for(worker), self._plan.others)
        assert place is not None  # nothing else is here
        self._copied.add(place)

    def begun(self, workers: Iterable[int]) -> None:
        """Hosts that fetch what was read for their workers have claimed that."""
        for worker in workers:
            self._shelf.release(_read_for(worker))

    def shows(self, worker: int, replica: Item | None) -> int:
        """Keep that replica for the worker to show until it takes part. Return its area. None: it shows zeros."""
        if replica is not None and self._shelf.has(replica):
            self._shelf.claim(shown(worker), replica)
        else:
            replica = Replica(worker, -1)
            place = self._shelf.put(replica, shown(worker), self._plan.shared)
            assert place is not None  # `memory_plan.REPLICAS` counts this one
        return self._plan.area(self._shelf.place(replica))

    def area(self, worker: int) -> int:
        """The area of that worker's replica."""
        return self._plan.area(self._shelf.place(self.steps.replica(worker)))

    def when_there(self, worker: int, call: Callable[[], None]) -> None:
        """Call once the worker's replica is here."""
        replica = self.steps.replica(worker)
        if replica in self._coming:
            self._when_there[replica] = call
        else:
            call()

    # --- orders -------------------------------------------------------------------------------------

    def carry_out(self, order: host_messages.OfReplicas) -> None:
        """Carry out an order about replicas."""
        match order:
            case host_messages.TakeStep():
                self.steps.carry_out(order)
            case host_messages.AverageGroup():
                self._average(order)
            case host_messages.DropAverage(number=number):
                self.averaging.drop(number)
            case host_messages.EndAverage():
                self._end_average(order)
            case host_messages.KeepItem(item=item, of=of):
                self._keep(item_of(item), None if of is None else item_of(of))
            case host_messages.ReleaseItem(item=item):
                self._shelf.release(_kept(item_of(item)))
            case host_messages.CopyItem(number=number, item=item, host=host):
                self._copy(number, item_of(item), host)
            case host_messages.DropCopy(number=number):
                self._drop(number)
            case host_messages.TakeReplica(worker=worker, change=change, recorded=recorded):
                if recorded:
                    self.steps.room(worker, change)
                else:
                    self.steps.takes(worker, change)

    def emptied(self, place: int) -> None:
        """Nothing lies in that place any more."""
        if place in self._copied:
            self._copied.discard(place)
            self._memory.discard(place)

    # --- items: see `ItemKind` ----------------------------------------------------------------------

    def ranges(self, item: Replica) -> list[tuple[str, int, int]]:
        """See `ItemKind`: all of it, from the host that has it."""
        host, offer = self._coming[item], self._memory.offer
        return [
            *pieces(offer.averaged_at, [Shard(host, 0, offer.cuts[-1])]),
            (host, offer.cuts[-1], offer.replica_bytes),
        ]

    def free(self, item: Replica, whole: bool) -> None:
        """See `ItemKind`."""
        if whole:
            self._coming.pop(item, None)
            if (call := self._when_there.pop(item, None)) is not None:
                call()

    def look(self, item: Replica, begin: int, end: int) -> Where:
        """See `ItemKind`. Another host may ask before this one has heard that the replica is to be kept."""
        return "here" if self._shelf.has(item) and item not in self._coming else "coming"

    # --- inside -------------------------------------------------------------------------------------

    def _average(self, order: host_messages.AverageGroup) -> None:
        here = [part for part in order.parts if self.averaging.is_at(part.host)]
        members = tuple(worker for part in here for worker in part.members)
        self._members[order.number] = members, order.parts[0].weights is not None
        if order.early and not all(self._shelf.has(update) for part in here for update in _updates(part)):
            self.averaging.decline(order.number)
            return
        target = self._shelf.put(Mean(order.number), mean_of(order.number), self._plan.shared)
        assert target is not None  # `memory_plan.REPLICAS` counts this one
        if order.parts[0].weights is not None and self._memory.offer.encoded_cuts:
            self.averaging.begin(self._gathered(order, target))
            return
        parts = tuple(
            GroupShare(
                part.host,
                part.members,
                self._sources(part) if part in here else part.numbers,
                part.weights,
                self._there(part) if order.early and part in here else None,
            )
            for part in order.parts
        )
        early = [update for part in here for update in _updates(part)] if order.early else []
        self.averaging.begin(Group(order.number, target, parts), early)

    def _there(self, part: host_messages.GroupPart) -> tuple[ByteRanges, ...]:
        """By member here: which bytes of its update there are, now and as it tells of more."""
        return tuple(self._computing.there(update) for update in _updates(part))

    def _gathered(self, order: host_messages.AverageGroup, target: int) -> Group:
        """Encoded gradients can't be summed: all come to each host, which makes all of the mean, in the same order."""
        terms, brought = list[tuple[int, int, float]](), list[Update]()
        for part in order.parts:
            assert part.weights is not None
            for worker, step, weight in zip(part.members, part.numbers, part.weights, strict=True):
                update = Update(worker, step)
                if not self.averaging.is_at(part.host):
                    self.averaging.make_room(update)
                    brought.append(update)
                terms.append((worker, self._shelf.place(update), weight))
        members, sources, weights = zip(*sorted(terms), strict=True)
        return Group(order.number, target, (GroupShare(self._name, members, sources, weights),), tuple(brought))

    def _sources(self, part: host_messages.GroupPart) -> tuple[int, ...]:
        """The places of what the members give, which are here."""
        kind = Replica if part.weights is None else Update
        return tuple(self._shelf.place(kind(*one)) for one in zip(part.members, part.numbers, strict=True))

    def _end_average(self, order: host_messages.EndAverage) -> None:
        self.averaging.end(order.number)
        members, gradients = self._members.pop(order.number)
        for worker, change in order.changes.items():
            self.steps.becomes(worker, change, Mean(order.number))
        if order.made and gradients:
            self.steps.await_steps(order.number, members)
        else:
            self._shelf.release(mean_of(order.number))

    def _keep(self, item: Item, of: Item | None) -> None:
        if of is None:
            self._shelf.claim(_kept(item), item)
        else:
            self._shelf.name(item, of, _kept(item))
        if self._carrier is not None:
            self._carrier.made(item)  # another host may have asked for it by now

    def _copy(self, number: int, item: Item, host: str) -> None:
        """Bring that replica, unless it is here."""
        if self._shelf.has(item):
            self._shelf.claim(_brought(number), item)
        else:
            place = self._shelf.put(item, _brought(number), self._plan.others)
            assert place is not None  # `memory_plan.REPLICAS` counts these
            self._copied.add(place)
            self._coming[item] = host
        if item not in self._coming:
            self._report(host_messages.ItemCopied(number))
            return
        assert self._carrier is not None  # else there is no other host
        never = self._never_comes
        lost = None if never is None else lambda why: never(number, why)
        self._carrier.fetch(item, _brought(number), lambda: self._report(host_messages.ItemCopied(number)), lost)

    def _drop(self, number: int) -> None:
        items = self._shelf.claimed(_brought(number))
        if self._carrier is not None:
            self._carrier.cancel(_brought(number))
        self._shelf.release(_brought(number))
        for item in items:
            if not self._shelf.has(item):
                self._coming.pop(item, None)
                self._when_there.pop(item, None)


def _updates(part: host_messages.GroupPart) -> list[Update]:
    """What its members give, where gradients are averaged."""
    return [Update(worker, step) for worker, step in zip(part.members, part.numbers, strict=True)]


def _kept(item: Item) -> Owner:
    """Who claims a replica that is needed as it is."""
    return "kept", *cast(Owner, tuple(item))


def _brought(number: int) -> Owner:
    """Who claims, and fetches, what is brought by that number."""
    return "brought", number


def _read_for(worker: int) -> Owner:
    """Who claims the replica of another host's worker that is read from a snapshot."""
    return "read for", worker
