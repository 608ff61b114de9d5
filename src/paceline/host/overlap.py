"""Updates that go to other hosts while workers still compute them: pushes overlap the backward.

A version needs an update only once the protocol says so. Until then its bytes are brought on trust: a worker that
changes its gradients, or never finishes its step, has all that came of it dropped. So no fact and no order depends on
what came early.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from paceline.core.items import Update
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.pushes import Pushes
from paceline.host.shards.arrivals import Arrivals
from paceline.host.version_shelf import Shelf
from paceline.transfer.byte_ranges import ByteRanges

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.fetch_table import Where


class Computing:
    """What workers have told of their updates. Whether an update counts is not known before it is finished."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[int, ByteRanges]] = {}
        """By worker: the last step of which it has told something, or an average waits for it; and what it has told."""
        self._finished: dict[int, int] = {}
        """By worker: the last step that it has finished."""

    def told(self, worker: int, step: int, begin: int, end: int) -> None:
        """These bytes of the update that the worker computes are in its place."""
        self.there(Update(worker, step)).add(begin, end)

    def finished(self, worker: int, step: int) -> None:
        """All of that update is in its place."""
        self.there(Update(worker, step)).add(0, sys.maxsize)
        self._finished[worker] = step

    def there(self, update: Update) -> ByteRanges:
        """Return which bytes of the worker's last update are in its place, now and as it tells of more."""
        step, coverage = self._told.get(update.worker, (-1, ByteRanges()))
        if step == update.step:
            return coverage
        coverage = ByteRanges()
        if step < update.step:  # else the worker is past it, and it counts for nothing
            self._told[update.worker] = update.step, coverage
        return coverage

    def look(self, update: Update, begin: int, end: int, *, laid: bool) -> Where:
        """Where these bytes are. `laid`: whether the update has a place.

        What is not finished may never be, as its worker leaves. Who waits for it is told by the head, and by nobody
        else: the head might not have heard of the worker's end.
        """
        if update.step <= self._finished.get(update.worker, -1):
            return "here" if laid else "gone"
        step, coverage = self._told.get(update.worker, (-1, None))
        there = laid and coverage is not None and step == update.step and coverage.has(begin, end)
        return "here" if there else "coming"


class Early:
    """Has hosts that make versions expect the updates that workers compute, as the head sees to it."""

    def __init__(self, shelf: Shelf, plan: MemoryPlan, pushes: Pushes, arrivals: Arrivals) -> None:
        self._shelf = shelf
        self._plan = plan
        self._pushes = pushes
        self._arrivals = arrivals
        self.rests = False
        """Whether nothing is expected: a range moves, and is wanted elsewhere then."""

    def rest(self) -> None:
        """A range moves: nothing that came of any update counts before its step is finished."""
        self.rests = True
        for update in self._arrivals.expected():
            self._arrivals.forget(update)

    def released(self, worker: int, step: int, *, elsewhere: bool) -> None:
        """The worker begins that step. Where all of its places are taken, the update is brought once it is computed.

        A place that is free here is free on all hosts: those have let go of what is in a version before the head has.
        """
        if self.rests or self._shelf.free(self._plan.of(worker)) is None:
            return
        if elsewhere:
            self._pushes.lay(worker, step)
        self._arrivals.expect(Update(worker, step))

    def withdrawn(self, worker: int, step: int) -> None:
        """The worker has changed what was told of that step: nothing that came of it counts."""
        self._arrivals.forget(Update(worker, step))
