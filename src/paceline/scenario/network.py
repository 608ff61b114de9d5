"""The parameter server's link as a fluid: when each transfer ends, given when it began and what else is on the way.

The link is full duplex. Pushes share the way in and pulls the way out, and the two don't disturb each other. Of k
transfers on one way each gets 1/k of its goodput at every moment, and no more than its worker's own link carries.
While more than one push is on its way, the goodput inwards is bandwidth × incast, for all of them together. A transfer
shares the way from the moment it begins until its last byte has left, and ends `latency` later. So a push of M bytes
alone takes latency + M/B, n equal ones at once take latency + n·M/B (without incast), and one of 0 bytes takes the
latency alone.

Source: the standard fluid model of fair sharing, ours in this form. The incast factor is ours too: it stands for
the goodput that is lost when many senders at once overflow a switch's buffer.
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
    """One push or pull that has ended. Bytes and seconds; `ended` includes the latency."""

    number: int
    """In the order in which the link's transfers began, from 0."""
    worker: int
    direction: Direction
    size: int
    began: float
    ended: float


@dataclass(slots=True)
class OpenTransfer:
    """A transfer that was neither reported nor cancelled yet."""

    worker: int
    direction: Direction
    size: int
    began: float
    ended: float = math.inf
    """Known once its last byte has left."""


@dataclass(slots=True)
class Way:
    """One direction, with the transfers whose bytes are still leaving.

    `served` counts the bytes that each flow has got since the way was last idle. What one transfer has got is `served`
    less its value when the transfer began. So a transfer leaves when `served` reaches a mark that never changes. Other
    transfers only change when that is. No event looks at more than the first of a heap.

    A way that is never idle goes on counting. The rounding of `served` is then worth no more time than the rounding of
    a moment, times the number of flows: no bytes are served faster than the goodput.
    """

    alone: float
    """Goodput with one flow, in bytes a second."""
    together: float
    """Goodput of all flows, when there are more."""
    most: float = math.inf
    """What one flow gets at most, in bytes a second: the speed of the worker's own link."""
    now: float = 0.0
    """The moment that `served` is for."""
    served: float = 0.0
    """Bytes that a flow has got that was here ever since the way was last idle."""
    flows: dict[int, None] = field(default_factory=dict)
    """Numbers of the transfers that share the way."""
    marks: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (`served` at which it leaves, number). Skip those that are no longer in `flows`."""
    due: float | None = field(default=None, compare=False)
    """The last result of `first`, until anything changes."""

    def first(self) -> float | None:
        """When the next flow leaves, if nothing changes."""
        if self.due is None and self.flows:
            while self.marks[0][1] not in self.flows:
                heappop(self.marks)
            rest = self.marks[0][0] - self.served
            self.due = self.now + max(rest * len(self.flows) / self._goodput(), rest / self.most)
        return self.due

    def leave(self, at: float) -> int:
        """The first flow leaves, at the moment that `first` gave. Return its number."""
        self.served, number = self.marks[0]
        self.now = at
        self.remove(number)
        return number

    def serve(self, at: float) -> None:
        """Go on to `at`. `first` was asked, and no flow leaves until then."""
        if self.flows and at > self.now:  # no time at an infinite goodput is no number
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
        """The flow leaves or is cancelled. It may have left already."""
        self.flows.pop(number, None)
        self.due = None
        if not self.flows:
            self.marks.clear()
            self.served = 0.0  # an idle way starts afresh, so that no rounding is carried on

    def goes_at(self, goodput: float) -> None:
        """All flows together get so much from now on. They were served until now."""
        self.alone = self.together = goodput
        self.due = None

    def _goodput(self) -> float:
        return self.alone if len(self.flows) == 1 else self.together


@dataclass(slots=True)
class SharedLink:
    """The link, with all transfers that have begun and were neither reported by `finish` nor cancelled.

    Time goes on only by what happens: to the `at` of a `begin` or `cancel`, and to the end of what `finish`
    returns. A caller has exactly the model's times, however late it asks, if it keeps two rules. It takes every end
    with `finish` before it tells of what happened later. What an end causes begins at that transfer's `ended`. Every
    call costs O(log n), amortized over the transfers.
    """

    bandwidth: float | None
    """Bytes a second, each way; None is unlimited."""
    latency: float
    """Seconds."""
    incast: float
    """What is left of the goodput when more than one flow enters the server; above 0, at most 1."""
    each: float | None = None
    """Bytes a second of one worker's own link, each way; None is unlimited."""
    moment: float = 0.0
    """The second that the link has been advanced to. Nothing begins before it any more."""
    begun: int = 0
    """How many transfers ever began: the next one's number."""
    open: dict[int, OpenTransfer] = field(default_factory=dict)
    """By number."""
    ways: dict[Direction, Way] = field(init=False)
    ends: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (end, number) of transfers whose last byte has left. Skip those that are no longer in `open`."""

    def __post_init__(self) -> None:
        # An infinite goodput is no special case: all that is on the way leaves before time goes on.
        most = math.inf if self.bandwidth is None else self.bandwidth
        each = math.inf if self.each is None else self.each
        self.ways = {"push": Way(most, most * self.incast, each), "pull": Way(most, most, each)}

    @classmethod
    def of(cls, network: Network | None) -> SharedLink | None:
        """The link that a scenario asks for; None if it paces nothing: no bandwidth and no latency.

        Several servers are one link of all their bandwidths: every transfer is spread evenly over them.
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

        Nothing happens if there is no such transfer, or if it was reported or cancelled. Nothing happens either if it
        has ended by then: `finish` still reports it.
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
        """When the next transfer ends if nothing else begins; None if there is none."""
        while self.ends and self.ends[0][1] not in self.open:
            heappop(self.ends)
        end = self.ends[0][0] if self.ends else None
        for way in self.ways.values():
            first = way.first()
            if first is not None and (end is None or first + self.latency < end):
                end = first + self.latency
        return end

    def finish(self, until: float) -> LinkTransfer | None:
        """Return the earliest transfer that has ended by `until` and was not reported yet; None if there is none.

        Transfers come in the order of their ends, and of their beginnings where they end at the same instant. Asking
        too early does no harm: time stays where it is.
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
        """Time goes on to `at`, for this way. The other way stays as it is."""
        self.moment = max(self.moment, at)
        self._let_out(way, self.moment)
        way.serve(self.moment)

    def _let_out(self, way: Way, by: float) -> None:
        """Let out the transfers whose last byte has left by then. What begins from now on can't change that."""
        while (left := way.first()) is not None and left <= by:
            number = way.leave(left)
            ended = left + self.latency
            self.open[number].ended = ended
            heappush(self.ends, (ended, number))
