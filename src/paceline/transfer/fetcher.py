"""Versions and replicas come to a worker by a fetch.

`RemoteFetcher` is for several hosts. On one host nothing moves, and a fetch by `ShapedFetcher` takes the time that a
scenario says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Protocol

from paceline.core.facts import Fact
from paceline.core.items import Replica, Update, Version
from paceline.host.claims import Owner
from paceline.records.times import TransferTimes
from paceline.scenario.group_links import AverageMoved, GroupLinks, ring_bytes
from paceline.scenario.network import Direction, LinkTransfer, SharedLink

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.manager import TransferManager

Then = Callable[[float], Fact | None]
"""Called once the item is there, with that moment in seconds since the run's start. It says what has happened, if
anything has."""
Fetchable = Update | Version | Replica
Ended = Callable[[int, str, int, int, TransferTimes], None]
"""Told of each transfer: the worker, what it was, the number of its step, version or group, bytes, times."""


class Fetcher(Protocol):
    """Brings versions and replicas to workers, and updates of workers to the store where a scenario paces that."""

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """Bring that version or another worker's replica to the worker, or its update to the store.

        It ends in one call of `then`, unless the worker leaves before, or the item can't come.
        """

    def cancel(self, worker: int) -> None:
        """The worker takes no part any more: what is on the way to it or from it never arrives."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """A transfer under way on the store's link."""

    worker: int
    number: int
    """The step that is pushed, the version that is pulled, or the worker whose replica is copied."""
    then: Then


class ShapedFetcher:
    """See `Fetcher`. Everything lies on this host, so no byte moves. A fetch ends when the model of its link says so.

    The end is the model's time, to the last bit, however late the loop comes to it. What no link paces is over as it
    begins.
    """

    def __init__(
        self,
        store: SharedLink | None,
        groups: GroupLinks | None,
        now: Callable[[], float],
        moment: Callable[[], float],
        happened: Callable[[Fact], None],
        ended: Ended,
    ) -> None:
        """`store` paces pushes and pulls, `groups` averages. `now()` is seconds since the run's start.

        `moment()` is the time of the event that is being handled: at that time a fetch begins. `happened` takes what
        has happened if no link paces it. Otherwise `next` returns that.
        """
        self.size = 0
        """Bytes of one model. Set when training begins."""
        self._store = store
        self._groups = groups
        self._now = now
        self._moment = moment
        self._happened = happened
        self._ended = ended
        self._flows: dict[int, _Flow] = {}
        self._gathering: dict[int, Then] = {}

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """See `Fetcher`."""
        if self._store is None:
            self._ends(then)
            return
        direction: Direction = "push" if isinstance(item, Update) else "pull"
        match item:
            case Update(step=number) | Version(version=number) | Replica(worker=number):
                pass
        self._flows[self._store.begin(worker, direction, self.size, self._moment())] = _Flow(worker, number, then)

    def cancel(self, worker: int) -> None:
        """See `Fetcher`. An average goes on: its other members may make the worker's share."""
        for number, flow in list(self._flows.items()):
            if flow.worker == worker and self._store is not None and self._store.cancel(number, self._now()):
                del self._flows[number]

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        """Bring together what the group averages, and the mean to its members. Return when that began."""
        if self._groups is None:
            began = self._now()
            self._ends(then)
            return began
        self._gathering[group] = then
        began = self._moment()
        self._groups.begin(group, members, ring_bytes(len(members), self.size), began)
        return began

    def next(self, until: float) -> Fact | None:
        """Return what came of the earliest fetch that has ended by then: each once, in the order of their ends."""
        while True:
            end = None if self._store is None else self._store.next_end()
            before = until if end is None else min(until, end)
            if self._groups is not None and (moved := self._groups.finish(before)) is not None:
                fact = self._gathered(moved)
            elif self._store is not None and (fetched := self._store.finish(until)) is not None:
                fact = self._fetched(fetched)
            else:
                return None
            if fact is not None:
                return fact

    def due(self) -> float | None:
        """Seconds until the next fetch may end, if one is under way."""
        ends = [self._store.next_end() if self._store else None, self._groups.next_change() if self._groups else None]
        due = min((end for end in ends if end is not None), default=None)
        return None if due is None else max(0.0, due - self._now())

    def _ends(self, then: Then) -> None:
        if (fact := then(self._now())) is not None:
            self._happened(fact)

    def _fetched(self, fetched: LinkTransfer) -> Fact | None:
        flow = self._flows.pop(fetched.number)
        times = TransferTimes(fetched.began, fetched.ended, self._now())
        self._ended(flow.worker, fetched.direction, flow.number, fetched.size, times)
        return flow.then(fetched.ended)

    def _gathered(self, moved: AverageMoved) -> Fact | None:
        times = TransferTimes(moved.began, moved.ended, self._now())
        for worker in moved.members:
            self._ended(worker, "average", moved.group, moved.size, times)
        return self._gathering.pop(moved.group)(moved.ended)


class RemoteFetcher:
    """See `Fetcher`. A version that lies on another host is brought here once, for all who wait for it.

    What is here is there at once.
    """

    def __init__(
        self,
        carrier: TransferManager,
        now: Callable[[], float],
        happened: Callable[[Fact], None],
        *,
        away: Callable[[Version], bool],
        lost: Callable[[int, str], None],
        brought: Callable[[int, float, float], None] = lambda worker, began, ended: None,
    ) -> None:
        """`away(item)`: whether it is not here, and lies on another host.

        `lost(worker, why)` is told in place of `then` if an item of the worker can't come. `brought(worker, began,
        ended)` is told of each version that has come for a worker, before `then`. See `ShapedFetcher` for the others.
        """
        self._carrier = carrier
        self._now = now
        self._happened = happened
        self._away = away
        self._lost = lost
        self._brought = brought
        self._numbers = count()
        self._under_way: dict[Owner, int] = {}
        """By fetch from another host: its worker."""

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """See `Fetcher`."""
        if not (isinstance(item, Version) and self._away(item)):
            self._ends(then)
            return
        owner, began = ("fetch", worker, next(self._numbers)), self._now()

        def arrived() -> None:
            del self._under_way[owner]
            self._brought(worker, began, self._now())
            self._ends(then)

        def lost(why: str) -> None:
            del self._under_way[owner]
            self._lost(worker, f"{item} can't come: {why}")

        self._under_way[owner] = worker
        self._carrier.fetch(item, owner, arrived, lost)

    def cancel(self, worker: int) -> None:
        """See `Fetcher`. The last one to leave has the item left where it is."""
        for owner in [owner for owner, one in self._under_way.items() if one == worker]:
            del self._under_way[owner]
            self._carrier.cancel(owner)

    def _ends(self, then: Then) -> None:
        if (fact := then(self._now())) is not None:
            self._happened(fact)
