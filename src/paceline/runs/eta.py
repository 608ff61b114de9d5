"""The time left for a series of runs, estimated from the runs that have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass
class Eta:
    """A series of runs, and how long they take."""

    names: Sequence[str]
    """The protocol of each run. Runs of one name take about as long."""
    took: list[float | None]
    """The seconds of each run; None until it has ended."""
    clock: Callable[[], float] = time.monotonic
    _present: int = -1
    """The number of the run that began last, from 0."""
    _begun: float = 0.0
    """When that run began."""

    def begin(self, number: int) -> None:
        """Note that the run with this number, from 0, begins."""
        self._present, self._begun = number, self.clock()

    def end(self) -> None:
        """Note that the present run has ended."""
        self.took[self._present] = self.clock() - self._begun

    def left(self) -> float | None:
        """Return the seconds until all runs have ended; None before the first one has.

        A run is taken to last as long as the mean of the ended runs of its name, or else of all.
        """
        known: dict[str, list[float]] = {}
        for name, seconds in zip(self.names, self.took, strict=True):
            if seconds is not None:
                known.setdefault(name, []).append(seconds)
        if not known:
            return None
        usual = fmean([seconds for several in known.values() for seconds in several])
        left = 0.0
        for number, name in enumerate(self.names):
            if self.took[number] is None:
                passed = self.clock() - self._begun if number == self._present else 0.0
                left += max(0.0, (fmean(known[name]) if name in known else usual) - passed)
        return left

    def __str__(self) -> str:
        """Return `run 3 of 10, about 2 min left`."""
        place, left = f"run {self._present + 1} of {len(self.names)}", self.left()
        return place if left is None or None not in self.took else f"{place}, about {roughly(left)} left"


def roughly(seconds: float) -> str:
    """Format as `40 s`, `2 min`, `1 h 20 min`."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
