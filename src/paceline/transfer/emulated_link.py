"""The links of emulated hosts, as a scenario's `[[host]]` tables describe them: a token bucket each way, and a delay.

Hosts that are emulated on one machine exchange bytes over its loopback interface. Each host holds back the bytes of
models that it sends and that have come, so that they take the time of its link. What is small, such as a buffer or what
a script has kept, takes none.

Of what one host sends to several others at a time, each gets a part in turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from paceline.core.items import EarlyVersion, Mean, Partial, Replica, Sum, Update, Version
from paceline.ipc.loop import Alarm, Loop
from paceline.ipc.memory import Span
from paceline.net.numbered import Frame
from paceline.scenario.scenario import HostTable, Scenario
from paceline.transfer.data_connection import PART, BulkNews, Fetch, PeerExchange, Sending
from paceline.transfer.item_names import item_of
from paceline.transfer.messages import Named, Peer

MODELS = Version, EarlyVersion, Update, Sum, Mean, Partial, Replica
"""What has the bytes of a model, or of a part of one."""
TICK = 0.002
"""Seconds of one part on the narrower link."""
LATE = 0.05
"""Seconds. The loop may write a part so late, and the next ones make up for it."""


class TokenBucket:
    """One way of a link. Bytes pass it one after the other, no faster than its bandwidth."""

    def __init__(self, bandwidth: float | None) -> None:
        """`bandwidth`: bytes a second. None: unlimited."""
        self.bandwidth = math.inf if bandwidth is None else bandwidth
        self._free = 0.0
        """When the last bytes have passed."""

    def passes(self, size: float, since: float) -> float:
        """Take these bytes, which may begin to pass then. Return when they have passed."""
        self._free = max(self._free, since) + size / self.bandwidth
        return self._free


class EmulatedLink:
    """The link of this host to all others."""

    def __init__(self, scenario: Scenario, host: str, loop: Loop) -> None:
        self.loop = loop
        self._tables = {table.name: table for table in scenario.host_tables}
        self.own = self._tables[host]
        self.outward, self.inward = TokenBucket(self.own.bandwidth), TokenBucket(self.own.bandwidth)
        self.weight = 1.0
        """How many bytes each byte counts as."""
        self._message = None if scenario.network is None else scenario.network.message

    @classmethod
    def of(cls, scenario: Scenario, host: str, loop: Loop) -> EmulatedLink | None:
        """Return that host's link. None: the scenario says nothing of links between hosts."""
        return cls(scenario, host, loop) if scenario.links_hosts else None

    def carries(self, model: int) -> None:
        """A model has so many bytes. They count as `network.message`, if the scenario gives that."""
        if self._message is not None:
            self.weight = self._message / model

    def exchange(self, peer: Peer, news: BulkNews) -> PeerExchange:
        """Return what this host exchanges with that one. See `DataPlane`."""
        return EmulatedExchange(peer, news, self, self._tables[peer.host])


@dataclass(slots=True)
class _Coming:
    """What was asked for."""

    left: int
    """Bytes that were not told of."""
    held: int = 0
    """Of these, bytes that are here, and held back."""


class EmulatedExchange(PeerExchange):
    """What this host exchanges with another one, at the pace of both links."""

    def __init__(self, peer: Peer, news: BulkNews, link: EmulatedLink, there: HostTable) -> None:
        """`there`: the table of the other host."""
        super().__init__(peer, news)
        self._link = link
        self._latency = link.own.latency + there.latency
        self._takes = TokenBucket(there.bandwidth)
        """What the other host takes. It may take less, from others as well, which it sees to itself."""
        self._small: set[int] = set()
        """Requests of the other host that take no time."""
        self._may_begin: dict[int, float] = {}
        """By request that is being sent: when its bytes may begin to leave."""
        self._leaves: float | None = None
        """When the next part leaves. None: nothing was reserved for it."""
        self._coming: dict[int, _Coming] = {}
        """By request of this host that takes time."""
        self._alarm = Alarm(link.loop, self._pump)

    # --- what leaves --------------------------------------------------------------------------------

    def frame(self, frame: Frame) -> None:
        """See `PeerExchange`."""
        if isinstance(frame, Fetch) and not isinstance(item_of(frame.item), MODELS):
            self._small.add(frame.number)
        super().frame(frame)

    def send(self, request: int, span: Span) -> None:
        """See `PeerExchange`. The first byte waits for the latency, so that the last one comes so much later."""
        if request in self._small:
            self._small.remove(request)
        else:
            self._may_begin[request] = self._link.loop.now() + self._latency
        super().send(request, span)

    def stop(self, request: int) -> None:
        """See `PeerExchange`."""
        self._may_begin.pop(request, None)
        self._small.discard(request)
        super().stop(request)

    def _may_leave(self, one: Sending) -> int:
        """See `PeerExchange`."""
        if (begins := self._may_begin.get(one.request)) is None:
            return PART
        link, now = self._link, self._link.loop.now()
        rate = min(link.outward.bandwidth, self._takes.bandwidth) / link.weight
        size = min(len(one.left), max(1, int(min(PART, rate * TICK))))
        if self._leaves is None:
            since, counts = max(begins, now - LATE), size * link.weight
            self._leaves = max(link.outward.passes(counts, since), self._takes.passes(counts, since))
        if now < self._leaves:
            self._alarm.set(self._leaves)
            return 0
        self._leaves = None
        if size == len(one.left):
            del self._may_begin[one.request]
        return size

    # --- what comes ---------------------------------------------------------------------------------

    def ask(self, request: int, named: Named, begin: int, end: int) -> None:
        """See `PeerExchange`."""
        if isinstance(item_of(named.item), MODELS):
            self._coming[request] = _Coming(end - begin)
        super().ask(request, named, begin, end)

    def cancel(self, request: int) -> None:
        """See `PeerExchange`."""
        self._coming.pop(request, None)
        super().cancel(request)

    def memory(self, request: int) -> memoryview | None:
        """See `PeerExchange`. What is held back is in memory already."""
        there = super().memory(request)
        return there[self._coming[request].held :] if there is not None and request in self._coming else there

    def came(self, request: int, count: int) -> None:
        """See `PeerExchange`. Hold the bytes back until they have passed this host's link."""
        if (one := self._coming.get(request)) is None:
            super().came(request, count)
            return
        one.held += count
        link, now, counts = self._link, self._link.loop.now(), count * self._link.weight
        passed = link.inward.passes(counts, now - counts / link.inward.bandwidth)  # they came since the ones before
        link.loop.after(passed - now, partial(self._passed, request, one, count))

    def _passed(self, request: int, one: _Coming, count: int) -> None:
        if self._coming.get(request) is not one:  # it was cancelled, or the connection is lost
            return
        one.held -= count
        one.left -= count
        if not one.left:
            del self._coming[request]
        super().came(request, count)

    def _forget(self) -> None:
        """See `PeerExchange`."""
        super()._forget()
        self._small.clear()
        self._may_begin.clear()
        self._coming.clear()
        self._leaves = None
