"""How a host's region is divided into places. It is sized for a capacity, however many workers there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.choice import Choice
from paceline.core.machine import Outer
from paceline.ipc.messages.worker import Begin, ForkStore, Offered, ResumePoint

CLAIMS = 3
"""Versions that a worker claims at most: for its step, for a later step that it was pulled for, and to look at."""
BESIDE_READERS = 4
"""Versions besides: the newest one, the one that is being made, those that are being written to disk as a recording and
for a snapshot."""
REPLICAS = 9
"""Of each worker: its replica, what a step or an average of it is made in, what it computes on, what a mean of
gradients is made in, two for the present cut, one that all share: what training began with. On several hosts two more:
what a host adds up for a group, and what another host has added up. A place that is never needed takes no memory."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Places are numbered: the shared ones, then the workers' own, then those of sums.

    A worker's own take its updates only. A version lies in a shared place. So do replicas and what groups average to.
    Sums lie behind what never moves.
    """

    capacity: int
    """The most workers that the region is sized for."""
    slots: int
    """Shared places that have room for parameters only. The others also have flags and buffers, as updates have."""
    areas: int
    """Places with flags and buffers, for each worker."""
    own: int = 1
    """Of these, the worker's own: as many as the updates that may be needed of it at once."""
    sums: int = 0
    """Places with flags and buffers, for sums of updates."""
    stores: bool = True
    """Whether a store makes versions, at least while one of the protocol's parts decides."""

    @property
    def places(self) -> int:
        """How many there are."""
        return self._owned + self.sums

    @property
    def shared(self) -> Sequence[int]:
        """The places that every item but an update may lie in."""
        return range(self.slots + self.capacity * (self.areas - self.own))

    @property
    def others(self) -> Sequence[int]:
        """The same, in the order in which they are taken for what comes from other hosts.

        These are taken from the other end, so the places that are always used here are the same ones.
        """
        return self.shared[::-1]

    def of(self, worker: int) -> Sequence[int]:
        """The worker's own places."""
        return range(len(self.shared) + worker, self._owned, self.capacity)

    @property
    def of_sums(self) -> Sequence[int]:
        """The places that sums may lie in."""
        return range(self._owned, self.places)

    def area(self, place: int) -> int:
        """The number of that place among those with flags and buffers."""
        return place - self.slots

    def bytes_of(self, place: int, offer: Offered) -> tuple[int, int]:
        """The first byte of that place, and the byte after its last one."""
        if place < self.slots:
            return place * offer.slot_bytes, (place + 1) * offer.slot_bytes
        start = self.slots * offer.slot_bytes + self.area(place) * offer.push_bytes
        start += 2 * offer.fixed_bytes if place in self.of_sums else 0
        return start, start + offer.push_bytes

    def fixed(self, offer: Offered) -> tuple[int, int]:
        """The first byte of what never moves, and the byte after its last one."""
        start = self.slots * offer.slot_bytes + self.area(self._owned) * offer.push_bytes
        return start, start + offer.fixed_bytes

    def adopted(self, offer: Offered) -> tuple[int, int]:
        """The same of what takes its place, if a script changes that before its first step."""
        _, start = self.fixed(offer)
        return start, start + offer.fixed_bytes

    def buffers(self, worker: int, offer: Offered) -> tuple[int, int]:
        """The same of where the worker finds its buffers as it goes on: its first own place, behind the parameters."""
        start, stop = self.bytes_of(self.of(worker)[0], offer)
        return start + offer.model_bytes, stop

    def region_bytes(self, offer: Offered) -> int:
        """Bytes of the region, with this model."""
        return self.slots * offer.slot_bytes + self.area(self.places) * offer.push_bytes + 2 * offer.fixed_bytes

    def fork(self, begin: int, end: int, outer: Outer | None, *, only_adds: bool = False) -> ForkStore:
        """The order to fork the store's process, which makes that range. `only_adds`: it makes none, and adds up."""
        outer = Outer() if only_adds or not self.stores else outer
        return ForkStore(self.slots, self.areas, self.sums, outer, begin, end)

    def begin(self, part: Choice, *, tells: bool) -> Begin:
        """The order to train. `tells`: see the message."""
        spec = part.spec
        return Begin(
            self.slots,
            self.areas,
            spec.state,
            spec.local_steps,
            spec.pushes,
            at_once=spec.pushes_at_once,
            tells=tells,
            fragments=part.fragments,
        )

    def admit(self, part: Choice, place: int, epoch: int, at: float, *, tells: bool) -> Begin:
        """The order to show what is in that place, while others train, until the worker takes part. See `Cluster`."""
        begin = self.begin(part, tells=tells)
        begin.place, begin.joins, begin.at = place, True, at
        begin.resumed = ResumePoint(epoch=epoch, buffers=None, kept=False)
        return begin

    @property
    def _owned(self) -> int:
        """How many places there are but for those of sums."""
        return self.slots + self.capacity * self.areas


def plan(choice: Choice, capacity: int, *, encodes: bool = False) -> MemoryPlan:
    """The places that this protocol needs. `encodes`: what workers push is encoded, so no host adds it up.

    With a store a commit finds a place whatever workers claim: they claim `CLAIMS` versions each, and `BESIDE_READERS`
    are claimed besides. It waits if the disk lags behind, with several versions to be written.

    If versions change by fragments, each host keeps one that the next is brought on top of.

    A sum has two workers' updates or more. If a worker dies, those of its host that are left are added up anew while
    the void sum may still be being made, so a host of k workers may need k - 1 places for what these compute at once.
    A place takes memory only where something is summed.
    """
    spec, unapplied = choice.spec, choice.unapplied(capacity)
    if not choice.has_store:
        return MemoryPlan(capacity, slots=0, areas=REPLICAS + 1, stores=False)
    if choice.has_replicas:  # all places have flags and buffers, as one may have a version now and a replica then
        versions = CLAIMS + BESIDE_READERS
        return MemoryPlan(capacity, slots=0, areas=REPLICAS + versions + unapplied, own=unapplied)
    sums = capacity - 1 if spec.sums == "hosts" and not encodes else 0
    streams = any(one.fragments.total > 1 for one in (choice, *choice.parts))
    slots = CLAIMS * capacity + BESIDE_READERS + streams
    return MemoryPlan(capacity, slots=slots, areas=unapplied, own=unapplied, sums=sums)
