"""Fetches at the pace of a scenario's network: each takes what a model of the link says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.cluster.network import Direction, SharedLink
from paceline.core.facts import Fact
from paceline.core.items import Update, Version
from paceline.host.fetch import Then
from paceline.records.times import TransferTimes

Ended = Callable[[int, Direction, int, int, TransferTimes], None]
"""Told of each transfer: the worker, the direction, the step or version, bytes, times."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """A transfer under way."""

    worker: int
    direction: Direction
    number: int
    """The step that is pushed, or the version that is pulled."""
    then: Then


class Paced:
    """See `Fetcher`. No byte moves here either: `next` tells a fetch's end when the model of the link says so.

    `at` is the model's time, to the last bit, however late the loop comes to it.
    """

    def __init__(self, link: SharedLink, now: Callable[[], float], moment: Callable[[], float], ended: Ended) -> None:
        """`now()` is seconds since the run's start.

        `moment()` is the time of the event that is being handled: at that time a fetch begins.
        """
        self.size = 0
        """Bytes of one transfer. Set when training begins."""
        self._link = link
        self._now = now
        self._moment = moment
        self._ended = ended
        self._flows: dict[int, _Flow] = {}

    def fetch(self, worker: int, item: Update | Version, then: Then) -> None:
        """See `Fetcher`."""
        direction: Direction = "push" if isinstance(item, Update) else "pull"
        number = item.step if isinstance(item, Update) else item.version
        flow = self._link.begin(worker, direction, self.size, self._moment())
        self._flows[flow] = _Flow(worker, direction, number, then)

    def cancel(self, worker: int) -> None:
        """See `Fetcher`."""
        for number, flow in list(self._flows.items()):
            if flow.worker == worker and self._link.cancel(number, self._now()):
                del self._flows[number]

    def next(self, until: float) -> Fact | None:
        """See `Fetcher`."""
        ended = self._link.finish(until)
        if ended is None:
            return None
        flow = self._flows.pop(ended.number)
        times = TransferTimes(ended.began, ended.ended, self._now())
        self._ended(flow.worker, flow.direction, flow.number, ended.size, times)
        return flow.then(ended.ended)

    def due(self) -> float | None:
        """See `Fetcher`."""
        end = self._link.next_end()
        return None if end is None else max(0.0, end - self._now())
