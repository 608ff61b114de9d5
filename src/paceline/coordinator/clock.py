"""The run's time: seconds since training began."""

from __future__ import annotations

from collections.abc import Callable


class RunClock:
    """Counts from the moment at which training began, so that imports and loading data do not count."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now()` is seconds since any moment."""
        self._now = now
        self._origin = now()
        self.present: float | None = None
        """The time of the fact whose orders are being carried out."""

    def begin(self, at: float = 0.0) -> None:
        """Training begins now, or goes on at that time of the run."""
        self._origin = self._now() - at

    def at(self) -> float:
        """Return the run's time. Before training begins it counts from when this was made."""
        return self._now() - self._origin

    def moment(self) -> float:
        """Return the time of the fact whose orders are being carried out, or of now."""
        return self.at() if self.present is None else self.present

    def of(self, moment: float) -> float:
        """Return the run's time at that moment, which `now()` returned."""
        return moment - self._origin
