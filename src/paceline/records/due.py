"""When a version is due to be recorded: as a run does it, and as a check expects it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Due:
    """A version is due each time that another share of an epoch's samples is applied."""

    times_an_epoch: int
    every: float | None = None
    """Samples between recordings; None while no epoch was opened."""
    next: float = 0.0
    """Samples at which the next version is due."""

    def epoch_opened(self, samples: int) -> None:
        """The first epoch says how far apart recordings are."""
        if self.every is None and self.times_an_epoch and samples:
            self.every = self.next = max(1.0, samples / self.times_an_epoch)  # there is nothing between two samples

    def reached(self, samples: int) -> bool:
        """Whether another share is applied with these samples; asked once more, it is not."""
        if self.every is None or samples < self.next:
            return False
        while self.next <= samples:
            self.next += self.every
        return True
