"""The links that averages of groups go over, as a fluid model: when each average has moved its bytes.

A group of g members averages a message of M bytes as a ring does: each member sends 2(g − 1) pieces of M/g bytes, and
receives as many. So one average alone, at B bytes a second and with a link's latency a, takes
2(g − 1)·a + 2(g − 1)/g · M/B.

B depends on the nodes of the members. A group on one node uses the node's own memory. A group across nodes uses the
link of each of its nodes. It is slower if it has several members on one of them, as these share that link.

Simultaneous averages share memory and links at every moment: with k averages in the memory or on the busiest link that
it uses, an average has 1/k of its speed. It uses them until its last byte has left, and ends its latencies later. The
store's link is a separate one, so pushes and pulls do not disturb averages.

Source: the usual cost model of a reduce-scatter and an all-gather. That averages share links in equal parts is ours.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush

from paceline.scenario.scenario import Network, Scenario

Link = tuple[str, bool]
"""(node, True) is a node's memory. (node, False) is its link to the other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageMoved:
    """An average whose bytes have moved. Times are in seconds, and `ended` includes the latencies."""

    group: int
    members: tuple[int, ...]
    size: int
    """Bytes that each member has sent, and received."""
    began: float
    ended: float


@dataclass(slots=True)
class AverageUnderWay:
    """An average that `finish` has not returned yet."""

    members: tuple[int, ...]
    size: int
    began: float
    speed: float
    """Bytes a second, alone."""
    links: tuple[Link, ...]
    left: float
    """Bytes still to be sent at `since`."""
    since: float
    share: int = 0
    """The number of averages on its busiest link, itself included; 0 before it is on any."""
    due: float = math.inf
    """When its last byte leaves, if nothing changes; infinity once that has left."""

    def go_on(self, at: float, share: int) -> None:
        """Share with so many averages from `at` on."""
        if self.share and at > self.since:  # 0 seconds at an infinite speed would be NaN
            self.left = max(0.0, self.left - (at - self.since) * self.speed / self.share)
        self.since, self.share = at, share
        self.due = at + self.left * share / self.speed


@dataclass(slots=True)
class GroupLinks:
    """The links, with all averages that have begun and that `finish` has not returned.

    `SharedLink` has the rules for callers. A beginning or an end takes time in proportion to the averages on the same
    links.
    """

    nodes: tuple[str, ...]
    """By worker: its node."""
    within: float
    """Bytes a second of a group that is on one node."""
    between: float
    """Of a group with one member on each of several nodes."""
    mixed: float
    """Of any other group."""
    latency: float
    """Seconds that a piece takes from one member to the next, in addition."""
    moment: float = 0.0
    """The second that the links have been advanced to. No average begins before it."""
    open: dict[int, AverageUnderWay] = field(default_factory=dict)
    """By group."""
    on: dict[Link, dict[int, None]] = field(default_factory=dict)
    """By link: the groups whose bytes are still leaving."""
    leaving: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (when the last byte leaves, group). Skip groups whose `due` has changed."""
    ends: list[tuple[float, int]] = field(default_factory=list)
    """A heap of (end, group) of averages whose last byte has left."""

    @classmethod
    def of(cls, scenario: Scenario, workers: int) -> GroupLinks | None:
        """Return the scenario's links; None if they have no bandwidth and no latency.

        Where the scenario does not mention nodes or their memory, each worker is a node of its own.
        """
        network = scenario.network
        if network is None:
            return None
        between = _or_unlimited(_own(network) if network.between_nodes is None else network.between_nodes)
        mixed = between if network.mixed is None else network.mixed
        within = _or_unlimited(network.within_nodes)
        if network.latency == 0 and min(within, between, mixed) == math.inf:
            return None
        nodes = [str(worker) for worker in range(workers)] if _alone(scenario) else scenario.hosts(workers)
        return cls(tuple(nodes), within, between, mixed, network.latency)

    def begin(self, group: int, members: tuple[int, ...], size: int, at: float) -> None:
        """Begin that group's average at second `at`, or at `moment` if that is later. `size`: see `ring_bytes`."""
        while (leaving := self._leaving()) and leaving[0][0] <= at:
            self._leave()
        self.moment = max(self.moment, at)
        on_each = Counter(self.nodes[worker] for worker in members)
        inside = len(on_each) == 1
        speed = self.within if inside else self.between if max(on_each.values()) == 1 else self.mixed
        links = tuple((node, inside) for node in on_each)
        self.open[group] = AverageUnderWay(members, size, self.moment, speed, links, size, self.moment)
        for link in links:
            self.on.setdefault(link, {})[group] = None
        self._share_out(links)

    def next_change(self) -> float | None:
        """Return when an average next leaves its links or ends, if no other begins; None if there is none.

        No average ends before.
        """
        moments = [heap[0][0] for heap in (self._leaving(), self.ends) if heap]
        return min(moments, default=None)

    def finish(self, until: float) -> AverageMoved | None:
        """Return the next average that has ended by `until`, or None.

        Averages come in the order of their ends, and of their groups' numbers where they end at the same instant.
        """
        while True:
            leaving = self._leaving()
            if leaving and leaving[0][0] <= min(until, self.ends[0][0] if self.ends else math.inf):
                self._leave()
            elif self.ends and self.ends[0][0] <= until:
                break
            else:
                return None
        ended, group = heappop(self.ends)
        self.moment = max(self.moment, ended)
        one = self.open.pop(group)
        return AverageMoved(group=group, members=one.members, size=one.size, began=one.began, ended=ended)

    def _leave(self) -> None:
        """Let the last byte of the next average leave its links."""
        self.moment, group = heappop(self.leaving)
        one = self.open[group]
        one.due = math.inf
        for link in one.links:
            del self.on[link][group]
        heappush(self.ends, (self.moment + 2 * (len(one.members) - 1) * self.latency, group))
        self._share_out(one.links)

    def _leaving(self) -> list[tuple[float, int]]:
        """Return the heap `leaving`, with a valid first entry."""
        heap = self.leaving
        while heap and (heap[0][1] not in self.open or self.open[heap[0][1]].due != heap[0][0]):
            heappop(heap)
        return heap

    def _share_out(self, links: tuple[Link, ...]) -> None:
        """Update the shares of the averages on these links."""
        for group in {group: None for link in links for group in self.on[link]}:
            one = self.open[group]
            share = max(len(self.on[link]) for link in one.links)
            if share != one.share:
                one.go_on(self.moment, share)
                heappush(self.leaving, (one.due, group))


def ring_bytes(members: int, message: int) -> int:
    """Return the bytes that each of so many members sends, and receives, to average a message."""
    return -(-2 * (members - 1) * message // members)  # rounded up


def assumed(scenario: Scenario, protocol: str) -> str | None:
    """Say which links averages are assumed to use, if the scenario gives only other links. None: it gives theirs."""
    network = scenario.network
    if network is None or network.between_nodes is not None or _own(network) is None:
        return None
    if scenario.nodes == 1 and network.within_nodes is not None:
        return None
    like = "the store's" if _own(network) == network.bandwidth else "a worker's own"
    keys = "network.between_nodes or network.within_nodes" if _alone(scenario) else "network.between_nodes"
    each = "worker" if _alone(scenario) else "node"
    return f"averages of {protocol} go over a link of each {each}, as fast as {like}; {keys} says otherwise"


def _alone(scenario: Scenario) -> bool:
    """Return whether each worker counts as a node of its own."""
    network = scenario.network
    return scenario.nodes == 1 and (network is None or network.within_nodes is None)


def _own(network: Network) -> float | None:
    """Return the default bandwidth of a node's link: the store's, or a worker's own if that is less."""
    given = [one for one in (network.bandwidth, network.worker_bandwidth) if one is not None]
    return min(given, default=None)


def _or_unlimited(bandwidth: float | None) -> float:
    return math.inf if bandwidth is None else bandwidth
