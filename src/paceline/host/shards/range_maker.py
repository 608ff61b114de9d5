"""Makes this host's range of each version: its store process does. A host without others makes all of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from paceline.core.items import Update, Version
from paceline.host import messages as host_messages
from paceline.host.awaited import Awaited
from paceline.host.claims import Owner
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.pushes import Pushed
from paceline.host.shards.early_versions import BegunVersion
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.transfer.byte_ranges import ByteRanges

MOST_THREADS = 8
"""A commit is bound by memory, so a few cores are all that it can use.

Two take all that the memory of a small machine gives. On a server of 16 cores eight made a version of 124 million
parameters in 0.1 s; other numbers were not tried there (benchmarks/results/gpu.md).
"""


def kept(version: int) -> Owner:
    """Who claims the range of a version, until no host needs it."""
    return "made here", version


@dataclass(frozen=True, slots=True)
class RangeOrder:
    """A version that waits for its turn, or is being made."""

    order: host_messages.MakeRange
    pushed: Pushed
    """The order's terms, as items."""
    summed: Sequence[Update]
    begun: BegunVersion | None
    """What was made of it before it was ordered."""


class RangeMaker:
    """Does what is ordered of versions in the order of the orders. One version is made at a time, of the one before."""

    def __init__(
        self, shelf: Shelf, plan: MemoryPlan, store: StoreProcess, idle_cores: Callable[[], int], *, tells: bool
    ) -> None:
        """`idle_cores()` are those that the process may use in addition to its own.

        `tells`: see the attribute. What was told is asked for by `has`.
        """
        self.tells = tells
        """Whether the process is asked what is made of a version while the rest is being made."""
        self.newest = 0
        """The newest version whose range is made."""
        self.making: RangeOrder | None = None
        """The order that the process is at work on."""
        self.rests = False
        """Whether nothing that is ordered begins, as the range becomes wider."""
        self._shelf = shelf
        self._plan = plan
        self._store = store
        self._idle_cores = idle_cores
        self._orders: deque[RangeOrder | messages.store.SendShare] = deque()
        self._made = ByteRanges()
        """What there is of the version that is being made, as far as that was told."""
        self._awaits_norms: messages.store.Commit | None = None
        """What makes the version once the norms of all hosts' ranges are known."""
        self._beginning = Awaited()
        """What waits for a version whose range is not being made yet."""
        self._used: set[int] = set()
        """Places that a version has been in."""

    @property
    def idle(self) -> bool:
        """Whether all that was ordered is made, and more may be."""
        return self.making is None and not (self._orders or self.rests or self._store.lost)

    def begins(self, version: int) -> None:
        """Training begins with that version, which has its place."""
        self.newest = version
        self.uses(self._shelf.place(Version(version)))

    def uses(self, place: int) -> None:
        """A version is in that place, or is about to be."""
        self._used.add(place)

    def takes(self, place: int) -> bool:
        """A version is about to be written in that place. Return whether that is for the first time."""
        first = place not in self._used
        self.uses(place)
        return first

    def make(
        self,
        order: host_messages.MakeRange,
        pushed: Pushed,
        summed: Sequence[Update] = (),
        begun: BegunVersion | None = None,
    ) -> None:
        """Make the range of that version, the next one. `pushed`: the order's terms, as items.

        `summed`: updates in sums, whose buffers are here. `begun`: what was made early of it, in the version's place.
        """
        if begun is not None:
            self._shelf.claim(kept(order.version), Version(order.version))
        self._orders.append(RangeOrder(order, pushed, summed, begun))
        self.go_on()

    def make_with(self, norms: messages.store.Norms) -> None:
        """These are the norms of all ranges, which the version that is being made waits for."""
        order = self._awaits_norms
        if order is not None and order.version == norms.version:
            self._awaits_norms = None
            self._store.send(msgspec.structs.replace(order, norms=norms.norms))

    def send_share(self, number: int) -> None:
        """Have what the optimizer has for this range packed, once all that was ordered before is made."""
        self._orders.append(messages.store.SendShare(number))
        self.go_on()

    def free(self, version: int) -> None:
        """The range of that version is needed no more, or others claim it here."""
        self._shelf.release(kept(version))
        self.go_on()

    def when_begun(self, version: int, call: Callable[[], None]) -> None:
        """See `Versions`."""
        if version <= self.newest or version == self._now:
            call()
        else:
            self._beginning.add(version, call)

    def has(self, version: int, begin: int, end: int) -> bool:
        """Whether these bytes are made, which are in this host's range, of a version that is made or being made."""
        if version <= self.newest:
            return True
        return version == self._now and self._made.has(begin, end)

    def heard(self, message: messages.store.Making | messages.store.Norms | messages.store.Committed) -> bool:
        """The process has come so far with a version. Return whether it was to. Call `go_on` once that is passed on."""
        if message.version != self._now:
            return False
        if isinstance(message, messages.store.Making):
            self._made.add(message.begin, message.end)
        elif isinstance(message, messages.store.Committed):
            self.newest, self.making = message.version, None
        return True

    def lost(self) -> None:
        """The process has gone: what was ordered will not be done."""
        self._orders.clear()
        self._beginning.clear()
        making, self.making = self.making, None
        if making is not None:
            self._shelf.release(kept(making.order.version))

    def go_on(self) -> None:
        """Make the next version's range, if none is being made and there is a place."""
        if self.rests or self.making is not None or not self._orders or self._store.lost:
            return
        ordered = self._orders[0]
        if isinstance(ordered, messages.store.SendShare):
            self._store.send(ordered)
            self._orders.popleft()
            self.go_on()
            return
        order, begun = ordered.order, ordered.begun
        if begun is None:
            target = self._shelf.put(Version(order.version), kept(order.version), self._plan.shared)
        else:
            target = begun.place
        if target is None:
            return
        self._orders.popleft()
        self.making = ordered
        self._made = ByteRanges() if begun is None else begun.made
        self._begin(ordered, target)
        self._beginning.come(order.version)

    @property
    def _now(self) -> int | None:
        """The version whose range is being made."""
        return None if self.making is None else self.making.order.version

    def _begin(self, ordered: RangeOrder, target: int) -> None:
        order = ordered.order
        pushed = [(self._plan.area(self._shelf.place(item)), weight) for item, weight in ordered.pushed]
        commit = messages.store.Commit(
            version=order.version,
            source=self._shelf.place(Version(order.version - 1)),
            target=target,
            pushed=pushed,
            scalars=order.scalars,
            threads=min(MOST_THREADS, max(1, self._idle_cores())),
            look=order.look,
            first=self.takes(target),
            tells=self.tells,
            edits=order.edits,
            summed=[self._plan.area(self._shelf.place(update)) for update in ordered.summed],
            early=None if ordered.begun is None else ordered.begun.number,
        )
        self._awaits_norms = commit if order.exchanges else None
        norms = messages.store.TakeNorms(order.version, target, pushed, commit.threads, commit.first)
        self._store.send(norms if order.exchanges else commit)
