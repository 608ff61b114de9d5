"""How fast data moves over the links of a cluster: one fluid model, for simulations and for runs that a scenario paces.

A flow uses all ways of its route at once. A *way* is one direction of a link, the memory of a node, or the cores of a
machine. At every moment the rates of all flows are max-min fair: none can grow without shrinking one that is no larger.
A flow has its rate until its last byte has left, and ends its latency later. So M bytes alone take latency + M/B, where
B is the least bandwidth of the route, and n equal ones at once on the same way take latency + n·M/B.

- The store's link is full duplex. While more than one push is under way, it carries `incast` of its bandwidth inwards.
  That factor is ours. It stands for what is lost when many senders at once overflow a switch's buffer.
- A group of g members averages M bytes as a ring does: each member sends 2(g - 1) pieces of M/g bytes, one latency
  each. On one node it uses the node's memory, and otherwise the link of each of its nodes. A group with several members
  on a node may be slower, as they share that link. So averages share links in parts of time: one that would take a
  second alone uses each of its ways for a second. The store's link is not among them.
- Encoded, the M bytes of each member go to all others as they are: each sends g - 1 pieces of M bytes.
- Each host has a full-duplex link to all others. A transfer uses its source's way out and its target's way in.

Source: max-min fairness as in Bertsekas and Gallager, Data Networks (1992), section 6.5.2. A ring's time is the usual
cost of a reduce-scatter and an all-gather. That links share this way is our assumption.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Generic, Literal, TypeVar

from paceline.scenario.scenario import Network, Scenario

Direction = Literal["push", "pull"]
"""Into the store, or out of it."""
What = TypeVar("What")
Share = tuple[float, int]
"""(bytes a second, among so many flows): in two numbers simple times are exact."""


def _rate(share: Share) -> float:
    return share[0] / share[1]


@dataclass(eq=False, slots=True)
class Way:
    """What flows share."""

    bandwidth: float = math.inf
    """Bytes a second; infinity is unlimited."""
    contended: float = 1.0
    """The share of the bandwidth that is left when there is more than one flow."""
    each: float = math.inf
    """The most that one flow gets, in bytes a second."""
    flows: int = 0
    routes: dict[Route, None] = field(default_factory=dict)
    """Routes over this way that have flows."""

    def goodput(self) -> float:
        """Return the bytes a second of all its present flows together."""
        return self.bandwidth if self.flows == 1 else self.bandwidth * self.contended

    def for_each(self, goodput: float, flows: int) -> Share:
        """Return what one of so many flows gets that share this goodput."""
        return (self.each, 1) if self.each < goodput / flows else (goodput, flows)


@dataclass(eq=False, slots=True)
class Route:
    """Ways, with the flows that use all of them, whose last byte has not left. They have the same rate.

    `served` counts the bytes that a flow has got that has been here since the route was last idle. A flow leaves when
    `served` reaches a mark that never changes. So no event looks at more than the first of a heap.
    """

    ways: tuple[Way, ...]
    flows: int = 0
    marks: list[tuple[float, int, Flow[Any]]] = field(default_factory=list)
    """A heap of (`served` at which it leaves, number, flow). The first one has not been cancelled."""
    served: float = 0.0
    now: float = 0.0
    """The moment that `served` is for."""
    share: Share = (math.inf, 1)
    """The rate of each of its flows."""
    due: float = math.inf
    """When the next flow leaves, if nothing changes."""

    def serve(self, at: float) -> None:
        """Advance to `at`. No flow leaves before."""
        if self.flows and at > self.now:  # 0 seconds at an infinite goodput would be NaN
            got = (at - self.now) * self.share[0] / self.share[1]
            self.served = min(self.served + got, self.marks[0][0])  # the rounding must not pass a mark
        self.now = at


@dataclass(eq=False, slots=True)
class Flow(Generic[What]):
    """Data under way. Times are in seconds."""

    what: What
    """The caller's."""
    began: float
    latency: float
    route: Route | None
    """None: its last byte has left, or it was cancelled."""
    ended: float = math.inf
    """With its latency. Known once its last byte has left."""
    cancelled: bool = False


@dataclass(slots=True)
class Fluid(Generic[What]):
    """All flows that have begun, and were neither returned by `finish` nor cancelled.

    Only calls advance the time: to the `at` of a `begin` or `cancel`, and to the end of what `finish` returns. A caller
    that keeps two rules gets exactly the model's times, however late it asks. It calls `finish` for every end before it
    tells of later events. What an end causes begins at that flow's `ended`.
    """

    moment: float = 0.0
    """The second that all has been advanced to. No flow begins before it."""
    under_way: int = 0
    """Flows that `finish` still returns, unless they are cancelled."""
    numbers: int = 0
    leaving: list[tuple[float, int, Route]] = field(default_factory=list)
    """A heap of (when the next flow of a route leaves, a number, the route). Skip those whose `due` has changed."""
    ends: list[tuple[float, int, Flow[What]]] = field(default_factory=list)
    """A heap of flows whose last byte has left. Skip those that are cancelled."""

    def begin(self, route: Route, size: float, at: float, what: What, latency: float = 0.0) -> Flow[What]:
        """Begin a flow of `size` bytes, 0 or more, at second `at`, or at `moment` if that is later."""
        self._go_on(at)
        flow = Flow(what, self.moment, latency, route)
        self.numbers += 1
        self.under_way += 1
        route.serve(self.moment)
        heappush(route.marks, (route.served + size, self.numbers, flow))
        route.flows += 1
        for way in route.ways:
            way.flows += 1
            way.routes[route] = None
        self._share_out(route)
        return flow

    def cancel(self, flow: Flow[What], at: float) -> bool:
        """Cancel the flow: from `at` on the others have its share. Return whether it was under way.

        One that has ended by then is not cancelled, and `finish` still returns it.
        """
        self._go_on(at)
        if flow.cancelled or flow.ended <= self.moment:
            return False
        flow.cancelled = True
        self.under_way -= 1
        route = flow.route
        if route is not None:
            route.serve(self.moment)
            self._leave_ways(route, flow)
            while route.marks and route.marks[0][2].cancelled:
                heappop(route.marks)
            self._share_out(route)
        return True

    def next_change(self) -> float | None:
        """Return when a last byte next leaves or a flow ends, if no other begins; None without a flow.

        No flow ends before.
        """
        change = min(self._leaving(), self._end())
        return None if change == math.inf else change

    def finish(self, until: float) -> Flow[What] | None:
        """Return the next flow that has ended by `until`, or None.

        Flows come in the order of their ends, and of their beginnings where they end at the same instant.
        """
        if not self.under_way:
            return None
        end = self._end()
        while (leaving := self._leaving()) <= until and leaving <= end and leaving < math.inf:
            self._leave(leaving)
            end = self._end()
        if end > until or end == math.inf:
            return None
        self.moment = max(self.moment, end)
        self.under_way -= 1
        return heappop(self.ends)[2]

    def _go_on(self, at: float) -> None:
        while (leaving := self._leaving()) <= at:
            self._leave(leaving)
        self.moment = max(self.moment, at)

    def _leaving(self) -> float:
        """Return when the next last byte leaves."""
        heap = self.leaving
        while heap and heap[0][2].due != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else math.inf

    def _end(self) -> float:
        """Return when the next of the flows ends whose last byte has left."""
        heap = self.ends
        while heap and heap[0][2].cancelled:
            heappop(heap)
        return heap[0][0] if heap else math.inf

    def _leave(self, at: float) -> None:
        """Let the last bytes leave that are due at this moment, on the first of the routes."""
        route = heappop(self.leaving)[2]
        marks = route.marks
        self.moment = max(self.moment, at)
        route.due, route.now, route.served = math.inf, at, marks[0][0]
        while marks and (marks[0][0] <= route.served or marks[0][2].cancelled):
            _, number, flow = heappop(marks)
            if not flow.cancelled:
                flow.ended = at + flow.latency
                heappush(self.ends, (flow.ended, number, flow))
                self._leave_ways(route, flow)
        self._share_out(route)

    def _leave_ways(self, route: Route, flow: Flow[Any]) -> None:
        flow.route = None
        route.flows -= 1
        for way in route.ways:
            way.flows -= 1
            if not route.flows:
                del way.routes[route]

    def _share_out(self, changed: Route) -> None:
        """Give all routes their rates from now on that share ways with this one, directly or by others."""
        if not changed.flows:
            changed.due, changed.served = math.inf, 0.0  # an idle route starts from 0, so that errors don't add up
            changed.marks.clear()
        elif len(changed.ways) == 1 and len((way := changed.ways[0]).routes) == 1:  # it shares it with no other
            changed.share = way.for_each(way.goodput(), way.flows)
            self._expect(changed)
            return
        routes: dict[Route, None] = {}
        todo = [changed]
        while todo:
            for way in todo.pop().ways:
                todo += [route for route in way.routes if route not in routes]
                routes |= way.routes
        for route in routes:
            route.serve(changed.now)
        _share_fairly(routes)
        for route in routes:
            self._expect(route)

    def _expect(self, route: Route) -> None:
        """Note when the route's next flow leaves, if nothing changes."""
        rate, flows = route.share
        due = route.now + (route.marks[0][0] - route.served) * flows / rate
        if due != route.due:
            route.due = due
            self.numbers += 1
            heappush(self.leaving, (due, self.numbers, route))


def _share_fairly(routes: Iterable[Route]) -> None:
    """Give these routes max-min fair rates. They share no way with others.

    The way with the least for each of its flows is full first. Its flows get that, and all others share what is left.
    """
    rising = dict.fromkeys(routes)
    left = {way: (way.goodput(), way.flows) for route in rising for way in route.ways}
    while rising:
        shares = {way: way.for_each(*rest) for way, rest in left.items()}
        fullest = min(shares, key=lambda way: _rate(shares[way]))
        rate = _rate(shares[fullest])
        for route in [route for route in fullest.routes if route in rising]:
            del rising[route]
            route.share = shares[fullest]
            for way in route.ways:
                goodput, flows = left.pop(way)
                flows -= route.flows
                if flows:  # the rounding must leave the others no less, and infinity less infinity would be NaN
                    left[way] = max(goodput - rate * route.flows if rate < math.inf else rate, rate * flows), flows


class ClusterLinks(Fluid[What]):
    """All flows on the links of a scenario's cluster."""

    def __init__(self, scenario: Scenario, workers: int) -> None:
        """Where the scenario does not mention nodes or their memory, each worker is a node of its own."""
        super().__init__()
        network = scenario.network or Network()
        each = _or_unlimited(network.worker_bandwidth)
        bandwidth = _or_unlimited(network.bandwidth) * network.servers  # every transfer is spread evenly over them
        self._latency = network.latency
        self._store: dict[Direction, Route] = {
            "push": Route((Way(bandwidth, network.incast, each),)),
            "pull": Route((Way(bandwidth, each=each),)),
        }
        self.paces_store = min(bandwidth, each) < math.inf or network.latency > 0
        """Whether pushes and pulls take any time."""
        self._nodes = [str(worker) for worker in range(workers)] if _alone(scenario) else scenario.hosts(workers)
        self._within = _or_unlimited(network.within_nodes)
        self._between = _or_unlimited(_own(network) if network.between_nodes is None else network.between_nodes)
        self._mixed = self._between if network.mixed is None else network.mixed
        self._of_nodes: dict[tuple[str, bool], Way] = {}
        """(node, True): its memory. (node, False): its link to the other nodes."""
        self.paces_averages = min(self._within, self._between, self._mixed) < math.inf or network.latency > 0
        """Whether averages take any time."""
        self._hosts = {
            table.name: (Way(_or_unlimited(table.bandwidth)), Way(_or_unlimited(table.bandwidth)), table.latency)
            for table in scenario.host_tables
        }
        """By host: its way out, its way in, and its latency."""

    def transfer(self, direction: Direction, size: int, at: float, what: What) -> Flow[What]:
        """Begin a push or a pull of so many bytes."""
        return self.begin(self._store[direction], size, at, what, self._latency)

    def average(
        self, members: tuple[int, ...], message: int, at: float, what: What, *, encoded: bool = False
    ) -> Flow[What]:
        """Begin a group's average of a message of so many bytes."""
        on_each = Counter(self._nodes[worker] for worker in members)
        inside = len(on_each) == 1
        speed = self._within if inside else self._between if max(on_each.values()) == 1 else self._mixed
        ways = tuple(self._of_nodes.setdefault((node, inside), Way(1.0)) for node in on_each)
        seconds = average_bytes(len(members), message, encoded=encoded) / speed
        return self.begin(_route(ways), seconds, at, what, (1 if encoded else 2) * (len(members) - 1) * self._latency)

    def between(self, source: str, target: str, size: int, at: float, what: What) -> Flow[What]:
        """Begin to move so many bytes from one host to another."""
        (out, _, latency), (_, into, more) = self._hosts[source], self._hosts[target]
        return self.begin(_route((out, into)), size, at, what, latency + more)


def average_bytes(members: int, message: int, *, encoded: bool = False) -> int:
    """Return the bytes that each of so many members sends, and receives, to average a message."""
    pieces = 2 * (members - 1)
    return pieces * message // 2 if encoded else -(-pieces * message // members)  # rounded up


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


def _route(ways: tuple[Way, ...]) -> Route:
    """Return the route over these ways that has flows, or a new one."""
    return next((route for route in ways[0].routes if route.ways == ways), None) or Route(ways)


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
