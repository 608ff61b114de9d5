"""Moving items is one operation: a fetch. On one host every item is there already, so a fetch is over as it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from paceline.core.facts import Fact
from paceline.core.items import Buffers, Replica, Sum, Update, Version

Then = Callable[[float], Fact | None]
"""Called once the item is there, with that moment in seconds since the run's start. It says what has happened, if
anything has."""


Fetchable = Update | Sum | Buffers | Version | Replica


class Fetcher(Protocol):
    """Brings updates of workers to the store, versions to workers, and what members of a group average together."""

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """Bring that worker's update to the store, or that version or another worker's replica to the worker.

        A sum of updates comes to the store as an update does, for the worker of one of them.

        It ends in one call of `then`, unless the worker leaves before, or the item can't come.
        """

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        """Bring together what the group averages, and the mean to its members. Return when that began."""

    def cancel(self, worker: int) -> None:
        """The worker takes no part any more: what is on the way to it or from it never arrives."""

    def next(self, until: float) -> Fact | None:
        """Return what came of the earliest fetch that has ended by then: each once, in the order of their ends."""

    def due(self) -> float | None:
        """Seconds until the next fetch may end, if one is under way."""


class Local:
    """Everything lies on this host: nothing moves, and no fetch takes any time."""

    def __init__(self, now: Callable[[], float], happened: Callable[[Fact], None]) -> None:
        """`now()` is seconds since the run's start. `happened` takes the facts."""
        self._now = now
        self._happened = happened

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """See `Fetcher`."""
        self._over(then)

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        """See `Fetcher`."""
        began = self._now()
        self._over(then)
        return began

    def cancel(self, worker: int) -> None:
        """See `Fetcher`. Nothing is ever on the way."""

    def next(self, until: float) -> Fact | None:
        """See `Fetcher`."""
        return None

    def due(self) -> float | None:
        """See `Fetcher`."""
        return None

    def _over(self, then: Then) -> None:
        if (fact := then(self._now())) is not None:
            self._happened(fact)
