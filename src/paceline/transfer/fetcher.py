"""Versions and replicas come to a worker by a fetch.

`RemoteFetcher` is for several hosts. On one host nothing moves, and a fetch by `ShapedFetcher` takes the time that a
scenario says.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Protocol

from paceline.core.facts import Fact
from paceline.core.items import EarlyVersion, Replica, Update, Version
from paceline.core.machine import Fragments
from paceline.host.claims import Owner
from paceline.records.times import TransferTimes
from paceline.scenario.links import ClusterLinks, Direction, Flow, average_bytes

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.manager import TransferManager

Then = Callable[[float], Fact | None]
"""Called once the item is there, with that moment in seconds since the run's start. It says what has happened, if
anything has."""
Fetchable = Update | Version | Replica
Ended = Callable[[int, str, int, int, TransferTimes], None]
"""Told of each transfer: the worker, what it was, the number of its step, version or group, bytes, times."""
Called = Callable[..., Fact | None]
"""Called with a flow at its end, as `Then`."""


class Fetcher(Protocol):
    """Brings versions and replicas to workers, and updates of workers to the store where a scenario paces that."""

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """Bring that version or another worker's replica to the worker, or its update to the store.

        It ends in one call of `then`, unless the worker leaves before, or the item can't come.
        """

    def cancel(self, worker: int) -> None:
        """The worker takes no part any more: what is on the way to it or from it never arrives."""


class ShapedFetcher:
    """See `Fetcher`. Everything lies on this host, so no byte moves. A fetch ends when the model of links says so.

    The end is the model's time, to the last bit, however late the loop comes to it. What no link paces is over as it
    begins.
    """

    def __init__(
        self,
        links: ClusterLinks[Called],
        now: Callable[[], float],
        moment: Callable[[], float],
        happened: Callable[[Fact], None],
        ended: Ended,
        fragments: Fragments,
    ) -> None:
        """`links` pace pushes, pulls and averages, of `fragments`. `now()` is seconds since the run's start.

        `moment()` is the time of the event that is being handled: at that time a fetch begins. `happened` takes what
        has happened if no link paces it. Otherwise `next` returns that.
        """
        self.sizes = 0, 0
        """Bytes of an update, and of a version or a replica. Set when training begins."""
        self._links = links
        self._now = now
        self._moment = moment
        self._happened = happened
        self._ended = ended
        self._fragments = fragments
        self._took: dict[int, int] = {}
        """By worker: the last version that it has taken."""
        self._flows: dict[Flow[Called], int] = {}
        """By transfer under way: its worker."""

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """See `Fetcher`."""
        if not self._links.paces_store:
            self._ends(then)
            return
        direction: Direction = "push" if isinstance(item, Update) else "pull"
        pushed, size = self.sizes
        match item:
            case Update(step=number):
                size = pushed // self._fragments.total
            case Version(version=number):
                size, self._took[worker] = self._fragments.bytes_taken(size, self._took.get(worker), number), number
            case Replica(worker=number):
                pass

        def ended(flow: Flow[Called]) -> Fact | None:
            del self._flows[flow]
            self._ended(worker, direction, number, size, self._times(flow))
            return then(flow.ended)

        self._flows[self._links.transfer(direction, size, self._moment(), ended)] = worker

    def cancel(self, worker: int) -> None:
        """See `Fetcher`. An average goes on: its other members may make the worker's share."""
        self._took.pop(worker, None)
        for flow in [flow for flow, one in self._flows.items() if one == worker]:
            if self._links.cancel(flow, self._now()):
                del self._flows[flow]

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        """Bring together what the group averages, and the mean to its members. Return when that began."""
        if not self._links.paces_averages:
            began = self._now()
            self._ends(then)
            return began

        size, whole = self.sizes
        encoded = size < whole

        def moved(flow: Flow[Called]) -> Fact | None:
            for worker in members:
                each = average_bytes(len(members), size, encoded=encoded)
                self._ended(worker, "average", group, each, self._times(flow))
            return then(flow.ended)

        return self._links.average(members, size, self._moment(), moved, encoded=encoded).began

    def next(self, until: float) -> Fact | None:
        """Return what came of the earliest fetch that has ended by then: each once, in the order of their ends."""
        while (flow := self._links.finish(until)) is not None:
            if (fact := flow.what(flow)) is not None:
                return fact
        return None

    def due(self) -> float | None:
        """Seconds until the next fetch may end, if one is under way."""
        change = self._links.next_change()
        return None if change is None else max(0.0, change - self._now())

    def _times(self, flow: Flow[Called]) -> TransferTimes:
        return TransferTimes(flow.began, flow.ended, self._now())

    def _ends(self, then: Then) -> None:
        if (fact := then(self._now())) is not None:
            self._happened(fact)


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
        comes_as: Callable[[Version], Version | EarlyVersion],
        lost: Callable[[int, str], None],
        brought: Callable[[int, float, float], None] = lambda worker, began, ended: None,
    ) -> None:
        """`away(item)`: whether it is not here, and lies on another host. `comes_as(item)`: the name that it comes by.

        `lost(worker, why)` is told in place of `then` if an item of the worker can't come. `brought(worker, began,
        ended)` is told of each version that has come for a worker, before `then`. See `ShapedFetcher` for the others.
        """
        self._carrier = carrier
        self._now = now
        self._happened = happened
        self._away = away
        self._comes_as = comes_as
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
        self._carrier.fetch(self._comes_as(item), owner, arrived, lost)

    def cancel(self, worker: int) -> None:
        """See `Fetcher`. The last one to leave has the item left where it is."""
        for owner in [owner for owner, one in self._under_way.items() if one == worker]:
            del self._under_way[owner]
            self._carrier.cancel(owner)

    def _ends(self, then: Then) -> None:
        if (fact := then(self._now())) is not None:
            self._happened(fact)
