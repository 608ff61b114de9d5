"""Fetches between hosts whose links a scenario describes: each takes what the model of the links says, or longer.

The bytes go over the real connection meanwhile. At the head, `Linked` asks the model. It ends an update's fetch when
both the bytes and the model have come to an end. A worker elsewhere may have a version once the model says so: the head
then tells its host, where `Told` waits for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from paceline.core.facts import Fact
from paceline.core.items import Buffers, Replica, Sum, Update, Version
from paceline.host.contract import News
from paceline.records.times import Fetch
from paceline.scenario.host_traffic import Came, HostTraffic
from paceline.transfer.fetcher import Fetchable, Fetcher, Then

LATE = 10.0
"""Seconds after its moment by which a fact is handled."""


@dataclass(slots=True)
class _Crossing:
    """An update on its way to the head."""

    then: Then
    here: bool = False
    """Whether its bytes are here."""
    came: Came | None = None
    """What the model says of it, once that has ended."""


class Linked:
    """See `Fetcher`. What the model does not delay is another fetcher's alone."""

    def __init__(
        self,
        traffic: HostTraffic,
        inner: Fetcher,
        news: News,
        now: Callable[[], float],
        moment: Callable[[], float],
    ) -> None:
        """`inner` brings updates, and calls for versions at once. See `Paced` for `now` and `moment`."""
        self.size = 0
        """Bytes of one model. Set when training begins."""
        self._traffic = traffic
        self._inner = inner
        self._news = news
        self._now = now
        self._moment = moment
        self._made: dict[int, float] = {}
        """By version, in order: when it was made. Those that no fact comes before any more are forgotten."""
        self._updates: dict[Update, _Crossing] = {}
        self._versions: dict[tuple[int, Version], list[Then]] = {}
        """By worker elsewhere and version on its way: what is to be done then."""

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """See `Fetcher`."""
        began = self._moment()
        if isinstance(item, Version):  # it may have been made after the fact whose orders are carried out
            began = max(began, self._made.get(item.version, began))
        assert not isinstance(item, Sum | Buffers)  # one store makes all, and updates come to it one by one
        if isinstance(item, Replica) or not self._traffic.begin(worker, item, self.size, began):
            self._inner.fetch(worker, item, then)
        elif isinstance(item, Update):
            self._updates[item] = _Crossing(then)
            self._inner.fetch(worker, item, partial(self._here, item))
        else:
            self._versions.setdefault((worker, item), []).append(then)

    def made(self, version: int, at: float) -> None:
        """The store has made that version, at that moment."""
        self._made[version] = at
        while self._made[oldest := next(iter(self._made))] < at - LATE:
            del self._made[oldest]

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        """See `Fetcher`."""
        return self._inner.gather(group, members, then)

    def cancel(self, worker: int) -> None:
        """See `Fetcher`."""
        self._traffic.leaves(worker, self._now())
        for update in [update for update in self._updates if update.worker == worker]:
            del self._updates[update]
        for key in [key for key in self._versions if key[0] == worker]:
            del self._versions[key]
        self._inner.cancel(worker)

    def next(self, until: float) -> Fact | None:
        """See `Fetcher`."""
        while (came := self._traffic.finish(until)) is not None:
            if (fact := self._came(came)) is not None:
                return fact
        return self._inner.next(until)

    def due(self) -> float | None:
        """See `Fetcher`."""
        change, inner = self._traffic.next_change(), self._inner.due()
        if change is None:
            return inner
        due = max(0.0, change - self._now())
        return due if inner is None else min(due, inner)

    def _here(self, update: Update, at: float) -> Fact | None:
        """The update's bytes are here."""
        one = self._updates[update]
        one.here = True
        return None if one.came is None else self._over(one, one.came, at)

    def _came(self, came: Came) -> Fact | None:
        """By the model, the item has come."""
        if isinstance(came.item, Update):
            one = self._updates[came.item]
            one.came = came
            return self._over(one, came, came.ended) if one.here else None
        self._note(came, came.ended)
        for worker, _ in came.waiting:
            self._versions[worker, came.item].pop(0)(came.ended)
            if not self._versions[worker, came.item]:
                del self._versions[worker, came.item]
        return None

    def _over(self, one: _Crossing, came: Came, at: float) -> Fact | None:
        assert isinstance(came.item, Update)
        del self._updates[came.item]
        self._note(came, at)
        return one.then(at)

    def _note(self, came: Came, at: float) -> None:
        if isinstance(came.item, Version):
            for worker, since in came.waiting:
                self._news.brought(worker, since, at)
        self._news.fetched(
            Fetch.of(came.item, host=came.target, source=came.source, size=came.size, began=came.began, ended=at)
        )


class Told:
    """See `Fetcher`. A version that is brought is a worker's once the head has said so."""

    def __init__(self, inner: Fetcher, now: Callable[[], float], happened: Callable[[Fact], None]) -> None:
        """`now()` is seconds since the run's start. `happened` takes the facts."""
        self._inner = inner
        self._now = now
        self._happened = happened
        self._newest: dict[int, int] = {}
        """By worker: the newest version that the head has let it have."""
        self._waiting: dict[int, list[tuple[int, Then]]] = {}
        """By worker: versions that are here, and what is to be done once it may have them."""

    def let(self, worker: int, version: int) -> None:
        """The worker may have that version, and older ones."""
        self._newest[worker] = version
        waiting = self._waiting.pop(worker, [])
        self._waiting[worker] = [one for one in waiting if one[0] > version]
        for number, then in waiting:
            if number <= version and (fact := then(self._now())) is not None:
                self._happened(fact)

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """See `Fetcher`."""
        self._inner.fetch(worker, item, partial(self._here, worker, item, then) if isinstance(item, Version) else then)

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        """See `Fetcher`."""
        return self._inner.gather(group, members, then)

    def cancel(self, worker: int) -> None:
        """See `Fetcher`."""
        self._newest.pop(worker, None)
        self._waiting.pop(worker, None)
        self._inner.cancel(worker)

    def next(self, until: float) -> Fact | None:
        """See `Fetcher`."""
        return self._inner.next(until)

    def due(self) -> float | None:
        """See `Fetcher`."""
        return self._inner.due()

    def _here(self, worker: int, version: Version, then: Then, at: float) -> Fact | None:
        if version.version <= self._newest.get(worker, -1):
            return then(at)
        self._waiting.setdefault(worker, []).append((version.version, then))
        return None
