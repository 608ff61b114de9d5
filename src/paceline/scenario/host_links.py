"""The links between hosts, as a fluid model: when each transfer ends, given when it began and all other transfers.

Each host has one full-duplex link to all others. A transfer uses its source's way out and its target's way in. Each of
k transfers on one way gets 1/k of its bandwidth at every moment. A transfer whose other way gives it less leaves the
rest to the others in equal parts. So the shares are max-min fair: none can grow without shrinking one that is no
larger. A transfer has its share until its last byte has left. It ends the latencies of both hosts later. So M bytes
alone take both latencies + M/B, where B is the lesser bandwidth of the two.

Source: max-min fairness as in Bertsekas and Gallager, Data Networks (1992), section 6.5.2. That hosts' links share this
way is our assumption.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal

from paceline.scenario.network import Way
from paceline.scenario.scenario import Scenario

Pair = tuple[str, str]
"""Two hosts: a source and a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A transfer that has ended. Times are in seconds, and `ended` includes the latencies."""

    number: int
    """In the order in which transfers began, from 0."""
    source: str
    target: str
    size: int
    began: float
    ended: float


@dataclass(slots=True)
class _Open:
    """A transfer that was neither returned by `finish` nor cancelled."""

    pair: Pair
    size: int
    began: float
    ended: float = math.inf
    """Known once its last byte has left."""


@dataclass(slots=True)
class HostLinks:
    """The links, with all transfers that have begun and were neither returned by `finish` nor cancelled.

    `SharedLink` has the rules for callers. A beginning or an end takes time in proportion to the pairs of hosts with
    transfers between them.
    """

    bandwidths: Mapping[str, float]
    """By host: bytes a second, each way; infinity is unlimited."""
    latencies: Mapping[str, float]
    """By host: seconds."""
    moment: float = 0.0
    """The second that the links have been advanced to. No transfer begins before it."""
    begun: int = 0
    """Transfers that ever began: the next one's number."""
    open: dict[int, _Open] = field(default_factory=dict)
    """By number."""
    ways: dict[Pair, Way] = field(default_factory=dict)
    """By pair of hosts: the transfers whose bytes are still leaving, which all have the same share."""
    ends: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (end, number) of transfers whose last byte has left. Skip those that are no longer in `open`."""

    @classmethod
    def of(cls, scenario: Scenario) -> HostLinks:
        """Return the links of the scenario's hosts."""
        tables = scenario.host_tables
        return cls(
            {table.name: math.inf if table.bandwidth is None else table.bandwidth for table in tables},
            {table.name: table.latency for table in tables},
        )

    def begin(self, source: str, target: str, size: int, at: float) -> int:
        """Begin a transfer of `size` bytes at second `at`, or at `moment` if that is later. Return its number."""
        self._go_on(at)
        number = self.begun
        self.begun += 1
        pair = source, target
        self.open[number] = _Open(pair, size, self.moment)
        self.ways.setdefault(pair, Way(math.inf, math.inf, now=self.moment)).enter(number, size)
        self._share_out()
        return number

    def cancel(self, number: int, at: float) -> None:
        """Cancel the transfer: from `at` on the others have its share. `finish` still returns one that has ended."""
        self._go_on(at)
        one = self.open[number]
        if one.ended <= self.moment:
            return
        del self.open[number]
        if (way := self.ways.get(one.pair)) is not None:
            way.remove(number)
            self._share_out()

    def next_change(self) -> float | None:
        """Return when a last byte next leaves or a transfer ends, if no other begins; None without a transfer.

        No transfer ends before.
        """
        while self.ends and self.ends[0][1] not in self.open:
            heappop(self.ends)
        moments = [self._leaving(), self.ends[0][0] if self.ends else math.inf]
        return None if min(moments) == math.inf else min(moments)

    def finish(self, until: float) -> Carried | None:
        """Return the next transfer that has ended by `until`, or None.

        Transfers come in the order of their ends, and of their beginnings where they end at the same instant.
        """
        while (change := self.next_change()) is not None and change <= until:
            if self._leaving() > change:
                ended, number = heappop(self.ends)
                self.moment = max(self.moment, ended)
                one = self.open.pop(number)
                source, target = one.pair
                return Carried(number=number, source=source, target=target, size=one.size, began=one.began, ended=ended)
            self._leave(change)
        return None

    def _go_on(self, at: float) -> None:
        """Advance time to `at`."""
        self.moment = max(self.moment, at)
        while (leaving := self._leaving()) <= self.moment:
            self._leave(leaving)
        for way in self.ways.values():
            way.serve(self.moment)

    def _leaving(self) -> float:
        """Return when the next last byte leaves."""
        return min((way.first() or 0.0 for way in self.ways.values()), default=math.inf)

    def _leave(self, at: float) -> None:
        """Let the last bytes leave that are due at this moment, which `_leaving` gave."""
        for pair, way in self.ways.items():
            if (way.first() or 0.0) > at:
                way.serve(at)
                continue
            while way.flows and (way.first() or 0.0) <= at:
                one = self.open[number := way.leave(at)]
                one.ended = at + self.latencies[pair[0]] + self.latencies[pair[1]]
                heappush(self.ends, (one.ended, number))
        self._share_out()

    def _share_out(self) -> None:
        """Give each transfer its share: first those on the fullest way, and the others what is left."""
        self.ways = {pair: way for pair, way in self.ways.items() if way.flows}
        users: dict[_End, dict[Pair, int]] = {}
        for pair, way in self.ways.items():
            for end in _ends(pair):
                users.setdefault(end, {})[pair] = len(way.flows)
        left = {end: self.bandwidths[end[0]] for end in users}
        while users:
            shares = {end: left[end] / sum(pairs.values()) for end, pairs in users.items()}
            fullest = min(shares, key=shares.__getitem__)
            share = shares[fullest]
            for pair, flows in list(users[fullest].items()):
                self.ways[pair].goes_at(share * flows)
                for end in _ends(pair):
                    del users[end][pair]
                    if share < math.inf:  # the rounding must leave the others no less
                        left[end] = max(left[end] - share * flows, share * sum(users[end].values()))
            users = {end: pairs for end, pairs in users.items() if pairs}


_End = tuple[str, Literal["out", "in"]]
"""One way of a host's link."""


def _ends(pair: Pair) -> tuple[_End, _End]:
    return (pair[0], "out"), (pair[1], "in")
