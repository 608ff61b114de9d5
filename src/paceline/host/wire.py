"""Fetches between hosts: an item that lies on another host is brought here once, for all who wait for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from paceline.core.facts import Fact
from paceline.core.items import Blob, Item, Replica, Update, Version
from paceline.host.fetch import Fetcher, Then

FIXED = Blob("fixed")
"""What never moves."""


class Carrier(Protocol):
    """Moves bytes from the host that has an item."""

    def fetch(self, item: Item, into: memoryview, done: Callable[[], None], lost: Callable[[str], None]) -> None:
        """Bring the item there, and then call `done`; or `lost`, if its host has gone."""

    def cancel(self, item: Item) -> None:
        """Nobody waits for the item any more: nothing is written there from now on."""


class Wire:
    """Keeps the contract `Fetcher`. What is here, or comes to be, is another fetcher's."""

    def __init__(
        self,
        local: Fetcher,
        carrier: Carrier,
        now: Callable[[], float],
        happened: Callable[[Fact], None],
        *,
        away: Callable[[Update | Version], bool],
        room: Callable[[Update | Version], memoryview],
        came: Callable[[Update | Version], None],
    ) -> None:
        """`away(item)`: whether it lies on another host alone. `room(item)`: where it is to lie here.

        `came(item)` is called when all who waited for it have gone on, or have left. See `Local` for the others.
        """
        self._local = local
        self._carrier = carrier
        self._now = now
        self._happened = happened
        self._away = away
        self._room = room
        self._came = came
        self._waiting: dict[Update | Version, list[tuple[int, Then]]] = {}
        """By item on its way: the workers that it is fetched for, and what is to be done then."""

    def fetch(self, worker: int, item: Update | Version | Replica, then: Then) -> None:
        """See `Fetcher`."""
        if isinstance(item, Replica):
            self._local.fetch(worker, item, then)
        elif item in self._waiting:
            self._waiting[item].append((worker, then))
        elif self._away(item):
            self._waiting[item] = [(worker, then)]
            self._carrier.fetch(item, self._room(item), partial(self._arrived, item), partial(self._lost, item))
        else:
            self._local.fetch(worker, item, then)

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        """See `Fetcher`."""
        return self._local.gather(group, members, then)

    def cancel(self, worker: int) -> None:
        """See `Fetcher`. The last one to leave has the item left where it is."""
        self._local.cancel(worker)
        for item, waiting in list(self._waiting.items()):
            waiting[:] = [one for one in waiting if one[0] != worker]
            if not waiting:
                del self._waiting[item]
                self._carrier.cancel(item)
                self._came(item)

    def next(self, until: float) -> Fact | None:
        """See `Fetcher`."""
        return self._local.next(until)

    def due(self) -> float | None:
        """See `Fetcher`."""
        return self._local.due()

    def _arrived(self, item: Update | Version) -> None:
        at = self._now()
        for _, then in self._waiting.pop(item):
            if (fact := then(at)) is not None:
                self._happened(fact)
        self._came(item)

    def _lost(self, item: Update | Version, why: str) -> None:
        """The host that has the item has gone: whoever waits for it leaves for the same reason."""
        del self._waiting[item]
        self._came(item)
