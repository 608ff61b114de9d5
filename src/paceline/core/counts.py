"""Step counters: how many steps each worker has finished, which workers are last and first, and when updates came."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

NAMED_UP_TO = 64  # workers: scanning so few costs less than the sentence that names them


@dataclass(slots=True)
class Counts:
    """Steps finished by each live worker, with the least and the most of them always at hand.

    A count of the workers at each number, and pointers to its ends, make every operation O(1) amortized.
    One pointer only climbs. The other never falls further than it climbed. Neither climbs further than the
    steps that were finished.
    """

    finished: dict[int, int] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    """How many workers have finished exactly so many steps; no zeros."""
    least: int = 0
    """The smallest number in `finished`, or the last one if `finished` is empty."""
    most: int = 0
    """The greatest number, in the same way."""

    def enter(self, worker: int) -> None:
        """A newcomer counts from the slowest live worker's number, so no worker waits for it to catch up."""
        self.finished[worker] = self.least
        self.at[self.least] = self.at.get(self.least, 0) + 1

    def advance(self, worker: int) -> None:
        """One more step finished."""
        count = self.finished[worker]
        self.finished[worker] = count + 1
        self.at[count + 1] = self.at.get(count + 1, 0) + 1
        if count == self.most:
            self.most = count + 1
        self._vacate(count)

    def leave(self, worker: int) -> None:
        """The worker counts no more."""
        self._vacate(self.finished.pop(worker))

    def lead(self, worker: int) -> int:
        """Steps finished minus the slowest live worker's."""
        return self.finished[worker] - self.least

    def slowest(self) -> tuple[int, ...] | int:
        """Return the slowest workers, or how many they are of many workers: a scan of thousands would not be O(1)."""
        if len(self.finished) > NAMED_UP_TO:
            return self.at[self.least]
        return tuple(one for one, count in self.finished.items() if count == self.least)

    def _vacate(self, count: int) -> None:
        left = self.at[count] - 1
        if left:
            self.at[count] = left
            return
        del self.at[count]
        if self.at:
            while self.least not in self.at:
                self.least += 1
            while self.most not in self.at:
                self.most -= 1


@dataclass(slots=True)
class Pace:
    """Counts of steps, and the times at which each live worker's last two updates arrived, in seconds.

    Each number of steps has a heap of the workers that came to it, by the time at which they did. Outdated
    entries are dropped when they come up, and when they are the greater part. So every operation is
    O(log n) amortized, and all that is kept is O(n).
    """

    counts: Counts = field(default_factory=Counts)
    times: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """For each live worker: its latest arrival and the one before, as far as there were any."""
    queues: dict[int, list[tuple[tuple[float, ...], int]]] = field(default_factory=dict)
    """(latest arrival if there was one, worker) of the workers at each number. Those without an arrival sort first."""

    def enter(self, worker: int) -> None:
        """A newcomer counts from the slowest live worker's number, and nothing is known of its pace."""
        self.counts.enter(worker)
        self.times[worker] = ()
        self._queue(worker)

    def advance(self, worker: int, at: float) -> None:
        """One more step finished, at this time."""
        count = self.counts.finished[worker]
        self.counts.advance(worker)
        self.times[worker] = (at, *self.times[worker][:1])
        self._queue(worker)
        self._thin(count)

    def leave(self, worker: int) -> None:
        """The worker counts no more, and what was known of it is forgotten."""
        count = self.counts.finished[worker]
        self.counts.leave(worker)
        del self.times[worker]
        self._thin(count)

    def laggard(self) -> int:
        """The slowest worker: of those with the fewest steps the one that has not pushed for longest, then the lowest.

        A worker that has never pushed comes before all others. There must be a worker.
        """
        queue = self.queues[self.counts.least]
        while not self._holds(self.counts.least, queue[0]):
            heappop(queue)
        return queue[0][1]

    def _queue(self, worker: int) -> None:
        entry = (self.times[worker][:1], worker)
        heappush(self.queues.setdefault(self.counts.finished[worker], []), entry)

    def _thin(self, count: int) -> None:
        here = self.counts.at.get(count, 0)
        if not here:
            del self.queues[count]
        elif len(self.queues[count]) > 2 * here:
            # A sorted list is a heap, too. A worker that left and came back at the same number may be in it twice.
            self.queues[count] = sorted({entry: None for entry in self.queues[count] if self._holds(count, entry)})

    def _holds(self, count: int, entry: tuple[tuple[float, ...], int]) -> bool:
        """Whether this entry of that number's queue is still true."""
        latest, worker = entry
        return self.counts.finished.get(worker) == count and self.times[worker][:1] == latest
