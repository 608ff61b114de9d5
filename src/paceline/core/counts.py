"""Step counters: how many steps each worker has finished, and who is last."""

from __future__ import annotations

from dataclasses import dataclass, field

NAMED_UP_TO = 64  # workers; a scan of so few costs less than the sentence that names them


@dataclass(slots=True)
class Counts:
    """Steps finished by each live worker, with the least of them always at hand.

    A count of the workers at each number and a pointer to the smallest make every operation O(1)
    amortized: the pointer only climbs, and never further than the steps that were finished.
    """

    finished: dict[int, int] = field(default_factory=dict)
    at: dict[int, int] = field(default_factory=dict)
    """How many workers have finished exactly so many steps; no zeros."""
    least: int = 0
    """The smallest number in `finished`; where there is none, the last that was."""

    def enter(self, worker: int) -> None:
        """A newcomer counts from the slowest live worker's number, so that nobody waits for it to catch up."""
        self.finished[worker] = self.least
        self.at[self.least] = self.at.get(self.least, 0) + 1

    def advance(self, worker: int) -> None:
        """One more step finished."""
        count = self.finished[worker]
        self.finished[worker] = count + 1
        self.at[count + 1] = self.at.get(count + 1, 0) + 1
        self._vacate(count)

    def leave(self, worker: int) -> None:
        """It counts no more."""
        self._vacate(self.finished.pop(worker))

    def lead(self, worker: int) -> int:
        """Steps finished minus the slowest live worker's."""
        return self.finished[worker] - self.least

    def slowest(self) -> str:
        """Who is last, by name in a small company, else by number: a scan of thousands would not be O(1)."""
        if len(self.finished) > NAMED_UP_TO:
            return f"the slowest of {len(self.finished)} workers ({self.at[self.least]} of them)"
        return "worker " + ", ".join(str(one) for one, count in self.finished.items() if count == self.least)

    def _vacate(self, count: int) -> None:
        self.at[count] -= 1
        if not self.at[count]:
            del self.at[count]
        while self.at and self.least not in self.at:
            self.least += 1
