"""When a version is due to be recorded, for runs and checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RecordingSchedule:
    """A version is due each time another share of an epoch's samples is applied."""

    times_an_epoch: int
    every: float | None = None
    """Samples between recordings; None before an epoch is opened."""
    next: float = 0.0
    """Samples at which the next version is due."""

    def epoch_opened(self, samples: int) -> None:
        """Set the distance between recordings from the first epoch's samples."""
        if self.every is None and self.times_an_epoch and samples:
            self.every = self.next = max(1.0, samples / self.times_an_epoch)  # no recording lies between two samples

    def reached(self, samples: int) -> bool:
        """Whether these samples complete another share. A second call with the same samples returns False."""
        if self.every is None or samples < self.next:
            return False
        while self.next <= samples:
            self.next += self.every
        return True
