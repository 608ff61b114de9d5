"""The parameter server's link, as a fluid model: when each transfer ends, given when it began and all other transfers.

The link is full duplex: pushes share the way in, and pulls the way out. Each of k transfers on one way gets 1/k of its
goodput at every moment, and no more than its worker's own link carries. While there is more than one push, the goodput
inwards is bandwidth × incast, for all of them together. A transfer shares the way from its beginning until its last
byte has left, and ends `latency` later. So a push of M bytes alone takes latency + M/B, n equal ones at once take
latency + n·M/B (without incast), and one of 0 bytes takes the latency alone.

Source: the standard fluid model of fair sharing, ours in this form. The incast factor is ours, too. It stands for the
goodput that is lost when many senders at once overflow a switch's buffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal

from paceline.scenario.scenario import Network

Direction = Literal["push", "pull"]
"""Into the server, or out of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTransfer:
    """A push or pull that has ended. Times are in seconds, and `ended` includes the latency."""

    number: int
    """In the order in which the link's transfers began, from 0."""
    worker: int
    direction: Direction
    size: int
    began: float
    ended: float


@dataclass(slots=True)
class OpenTransfer:
    """A transfer that was neither returned by `finish` nor cancelled."""

    worker: int
    direction: Direction
    size: int
    began: float
    ended: float = math.inf
    """Known once its last byte has left."""


@dataclass(slots=True)
class Way:
    """One direction, with the transfers whose bytes are still leaving.

    `served` counts the bytes that each flow has got since the way was last idle. A transfer has got `served` less its
    value when the transfer began. So it leaves when `served` reaches a mark that never changes. Other transfers only
    change when that happens. No event looks at more than the first of a heap.

    A way that is never idle goes on counting. An error in `served` is then worth no more time than the rounding of a
    moment, times the number of flows, as no bytes are served faster than the goodput.
    """

    alone: float
    """Goodput with one flow, in bytes a second."""
    together: float
    """Goodput of all flows, when there are more."""
    most: float = math.inf
    """The most that one flow gets, in bytes a second: the speed of its worker's own link."""
    now: float = 0.0
    """The moment that `served` is for."""
    served: float = 0.0
    """Bytes that a flow has got that has been here since the way was last idle."""
    flows: dict[int, None] = field(default_factory=dict)
    """Numbers of the transfers that share the way."""
    marks: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (`served` at which it leaves, number). Skip those that are no longer in `flows`."""
    due: float | None = field(default=None, compare=False)
    """The last result of `first`, until anything changes."""

    def first(self) -> float | None:
        """Return when the next flow leaves, if nothing changes."""
        if self.due is None and self.flows:
            while self.marks[0][1] not in self.flows:
                heappop(self.marks)
            rest = self.marks[0][0] - self.served
            self.due = self.now + max(rest * len(self.flows) / self._goodput(), rest / self.most)
        return self.due

    def leave(self, at: float) -> int:
        """Let the next flow leave, at the moment that `first` gave. Return its number."""
        self.served, number = self.marks[0]
        self.now = at
        self.remove(number)
        return number

    def serve(self, at: float) -> None:
        """Advance to `at`. The caller has asked `first`, and no flow leaves until then."""
        if self.flows and at > self.now:  # 0 seconds at an infinite goodput would be NaN
            got = (at - self.now) * self._goodput() / len(self.flows)
            if self.most < math.inf:
                got = min(got, (at - self.now) * self.most)
            self.served = min(self.served + got, self.marks[0][0])  # the rounding must not pass a mark
            self.due = None
        self.now = at

    def enter(self, number: int, size: float) -> None:
        self.flows[number] = None
        self.due = None
        heappush(self.marks, (self.served + size, number))

    def remove(self, number: int) -> None:
        """Remove the flow, as it leaves or is cancelled. It may have left already."""
        self.flows.pop(number, None)
        self.due = None
        if not self.flows:
            self.marks.clear()
            self.served = 0.0  # an idle way starts from 0, so that rounding errors don't add up

    def goes_at(self, goodput: float) -> None:
        """Let all flows together get this goodput from now on. Call `serve` before."""
        self.alone = self.together = goodput
        self.due = None

    def _goodput(self) -> float:
        return self.alone if len(self.flows) == 1 else self.together


@dataclass(slots=True)
class SharedLink:
    """The link, with all transfers that have begun and were neither returned by `finish` nor cancelled.

    Only calls advance the time: to the `at` of a `begin` or `cancel`, and to the end of what `finish` returns. A caller
    that keeps two rules gets exactly the model's times, however late it asks. It calls `finish` for every end before it
    tells of later events. What an end causes begins at that transfer's `ended`. Every call costs O(log n), amortized
    over the transfers.
    """

    bandwidth: float | None
    """Bytes a second, each way; None is unlimited."""
    latency: float
    """Seconds."""
    incast: float
    """The share of the goodput that is left when more than one flow enters the server; above 0, at most 1."""
    each: float | None = None
    """Bytes a second of one worker's own link, each way; None is unlimited."""
    moment: float = 0.0
    """The second that the link has been advanced to. No transfer begins before it."""
    begun: int = 0
    """Transfers that ever began: the next one's number."""
    open: dict[int, OpenTransfer] = field(default_factory=dict)
    """By number."""
    ways: dict[Direction, Way] = field(init=False)
    ends: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (end, number) of transfers whose last byte has left. Skip those that are no longer in `open`."""

    def __post_init__(self) -> None:
        # An infinite goodput needs no special case: all transfers leave before time goes on.
        most = math.inf if self.bandwidth is None else self.bandwidth
        each = math.inf if self.each is None else self.each
        self.ways = {"push": Way(most, most * self.incast, each), "pull": Way(most, most, each)}

    @classmethod
    def of(cls, network: Network | None) -> SharedLink | None:
        """Return the scenario's link; None if it has no bandwidth and no latency.

        Several servers are one link with all their bandwidths, as every transfer is spread evenly over them.
        """
        if network is None:
            return None
        if network.bandwidth is None and network.worker_bandwidth is None and network.latency == 0:
            return None
        bandwidth = None if network.bandwidth is None else network.bandwidth * network.servers
        return cls(bandwidth, network.latency, network.incast, network.worker_bandwidth)

    def begin(self, worker: int, direction: Direction, size: int, at: float) -> int:
        """Begin a transfer of `size` bytes, 0 or more, at second `at`, or at `moment` if that is later.

        Return its number.
        """
        way = self.ways[direction]
        self._go_on(way, at)
        number = self.begun
        self.begun += 1
        self.open[number] = OpenTransfer(worker, direction, size, self.moment)
        way.enter(number, size)
        return number

    def cancel(self, number: int, at: float) -> bool:
        """Cancel the transfer: from `at` on the others have its share. Return whether it was cancelled.

        It is not cancelled if it is unknown, or returned or cancelled before. Nor is it if it has ended by then, and
        `finish` still returns it.
        """
        if number not in self.open:
            return False
        way = self.ways[self.open[number].direction]
        self._go_on(way, at)
        if self.open[number].ended <= self.moment:
            return False
        way.remove(number)
        del self.open[number]
        return True

    def next_end(self) -> float | None:
        """Return when the next transfer ends if no other begins; None if there is none."""
        while self.ends and self.ends[0][1] not in self.open:
            heappop(self.ends)
        end = self.ends[0][0] if self.ends else None
        for way in self.ways.values():
            first = way.first()
            if first is not None and (end is None or first + self.latency < end):
                end = first + self.latency
        return end

    def finish(self, until: float) -> LinkTransfer | None:
        """Return the next transfer that has ended by `until`, or None.

        Transfers come in the order of their ends, and of their beginnings where they end at the same instant. Asking
        too early does no harm.
        """
        end = self.next_end()
        if end is None or end > until:
            return None
        for way in self.ways.values():
            self._let_out(way, end)
        self.moment = max(self.moment, end)
        number = heappop(self.ends)[1]
        one = self.open.pop(number)
        return LinkTransfer(
            number=number, worker=one.worker, direction=one.direction, size=one.size, began=one.began, ended=end
        )

    def _go_on(self, way: Way, at: float) -> None:
        """Advance this way to `at`. The other way stays as it is."""
        self.moment = max(self.moment, at)
        self._let_out(way, self.moment)
        way.serve(self.moment)

    def _let_out(self, way: Way, by: float) -> None:
        """Let out the transfers whose last byte has left by then. Later transfers can't change that."""
        while (left := way.first()) is not None and left <= by:
            number = way.leave(left)
            ended = left + self.latency
            self.open[number].ended = ended
            heappush(self.ends, (ended, number))
