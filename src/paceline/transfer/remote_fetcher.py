"""Fetches between hosts: an item that lies on another host is brought here once, for all who wait for it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from paceline.core.facts import Fact
from paceline.core.items import Blob, Buffers, Replica, Sum, Update, Version
from paceline.host.version_shelf import Owner
from paceline.transfer.fetcher import Fetchable, Fetcher, Then

if TYPE_CHECKING:  # which a run on one host does without
    from paceline.transfer.manager import TransferManager

FIXED = Blob("fixed")
"""What never moves."""
ADOPTED = Blob("adopted")
"""What takes its place, if a script changes that before its first step."""


class Wire:
    """Keeps the contract `Fetcher`. What is here, or comes to be, is another fetcher's."""

    def __init__(
        self,
        local: Fetcher,
        carrier: TransferManager,
        now: Callable[[], float],
        happened: Callable[[Fact], None],
        *,
        away: Callable[[Update | Sum | Buffers | Version], bool],
        lost: Callable[[int, str], None],
        brought: Callable[[int, float, float], None] = lambda worker, began, ended: None,
    ) -> None:
        """`away(item)`: whether it is not here, and lies on another host.

        `lost(worker, why)` is told in place of `then` if an item of the worker can't come. `brought(worker, began,
        ended)` is told of each version that has come for a worker, before `then`. See `Local` for the others.
        """
        self._local = local
        self._carrier = carrier
        self._now = now
        self._happened = happened
        self._away = away
        self._lost = lost
        self._brought = brought
        self._numbers = count()
        self._under_way: dict[Owner, int] = {}
        """By fetch from another host: its worker."""
        self._expected: dict[Update, Owner] = {}
        """Who claims what is only expected. See `expect`."""

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """See `Fetcher`."""
        if isinstance(item, Replica) or not self._away(item):
            self._local.fetch(worker, item, then)
            return
        expected = self._expected.pop(item, None) if isinstance(item, Update) else None
        owner, began = expected or self._owner(worker), self._now()

        def arrived() -> None:
            del self._under_way[owner]
            if isinstance(item, Version):
                self._brought(worker, began, self._now())
            if (fact := then(self._now())) is not None:
                self._happened(fact)

        def lost(why: str) -> None:
            del self._under_way[owner]
            self._lost(worker, f"{item} can't come: {why}")

        self._under_way[owner] = worker
        self._carrier.fetch(item, owner, arrived, lost)

    def expect(self, update: Update) -> None:
        """Bring what there is of that update, whose worker computes it on another host.

        See `TransferManager.expect`.
        """
        owner = self._expected[update] = self._owner(update.worker)
        self._under_way[owner] = update.worker
        self._carrier.expect(update, owner)

    def expected(self) -> list[Update]:
        """What is only expected."""
        return list(self._expected)

    def forget(self, update: Update) -> None:
        """What has come of that update does not count, if anything has."""
        if (owner := self._expected.pop(update, None)) is not None:
            del self._under_way[owner]
            self._carrier.cancel(owner)

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        """See `Fetcher`."""
        return self._local.gather(group, members, then)

    def cancel(self, worker: int) -> None:
        """See `Fetcher`. The last one to leave has the item left where it is."""
        self._local.cancel(worker)
        for owner in [owner for owner, one in self._under_way.items() if one == worker]:
            del self._under_way[owner]
            self._carrier.cancel(owner)
        for update in [update for update in self._expected if update.worker == worker]:
            del self._expected[update]

    def _owner(self, worker: int) -> Owner:
        return "fetch", worker, next(self._numbers)

    def next(self, until: float) -> Fact | None:
        """See `Fetcher`."""
        return self._local.next(until)

    def due(self) -> float | None:
        """See `Fetcher`."""
        return self._local.due()
