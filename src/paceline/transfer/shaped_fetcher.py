"""Fetches at the pace of a scenario's network: each takes what a model of the links says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.core.facts import Fact
from paceline.core.items import Replica, Update, Version
from paceline.records.times import TransferTimes
from paceline.scenario.group_links import GroupLinks, Moved, ring_bytes
from paceline.scenario.network import Direction, SharedLink, Transfer
from paceline.transfer.fetcher import Fetchable, Local, Then

Ended = Callable[[int, str, int, int, TransferTimes], None]
"""Told of each transfer: the worker, what it was, the number of its step, version or group, bytes, times."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """A transfer under way on the store's link."""

    worker: int
    number: int
    """The step that is pushed, the version that is pulled, or the worker whose replica is copied."""
    then: Then


class Paced:
    """See `Fetcher`. No byte moves here either: `next` tells a fetch's end when the model of its link says so.

    The end is the model's time, to the last bit, however late the loop comes to it. What no link paces is local.
    """

    def __init__(
        self,
        store: SharedLink | None,
        groups: GroupLinks | None,
        local: Local,
        now: Callable[[], float],
        moment: Callable[[], float],
        ended: Ended,
    ) -> None:
        """`store` paces pushes and pulls, `groups` averages. `now()` is seconds since the run's start.

        `moment()` is the time of the event that is being handled: at that time a fetch begins.
        """
        self.size = 0
        """Bytes of one model. Set when training begins."""
        self._store = store
        self._groups = groups
        self._local = local
        self._now = now
        self._moment = moment
        self._ended = ended
        self._flows: dict[int, _Flow] = {}
        self._gathering: dict[int, Then] = {}

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """See `Fetcher`."""
        if self._store is None:
            self._local.fetch(worker, item, then)
            return
        direction: Direction = "push" if isinstance(item, Update) else "pull"
        match item:
            case Update(step=number) | Version(version=number) | Replica(worker=number):
                pass
        self._flows[self._store.begin(worker, direction, self.size, self._moment())] = _Flow(worker, number, then)

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        """See `Fetcher`."""
        if self._groups is None:
            return self._local.gather(group, members, then)
        self._gathering[group] = then
        began = self._moment()
        self._groups.begin(group, members, ring_bytes(len(members), self.size), began)
        return began

    def cancel(self, worker: int) -> None:
        """See `Fetcher`. An average goes on: its other members may make the worker's share."""
        for number, flow in list(self._flows.items()):
            if flow.worker == worker and self._store is not None and self._store.cancel(number, self._now()):
                del self._flows[number]

    def next(self, until: float) -> Fact | None:
        """See `Fetcher`."""
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
        """See `Fetcher`."""
        ends = [self._store.next_end() if self._store else None, self._groups.next_change() if self._groups else None]
        due = min((end for end in ends if end is not None), default=None)
        return None if due is None else max(0.0, due - self._now())

    def _fetched(self, fetched: Transfer) -> Fact | None:
        flow = self._flows.pop(fetched.number)
        times = TransferTimes(fetched.began, fetched.ended, self._now())
        self._ended(flow.worker, fetched.direction, flow.number, fetched.size, times)
        return flow.then(fetched.ended)

    def _gathered(self, moved: Moved) -> Fact | None:
        times = TransferTimes(moved.began, moved.ended, self._now())
        for worker in moved.members:
            self._ended(worker, "average", moved.group, moved.size, times)
        return self._gathering.pop(moved.group)(moved.ended)
