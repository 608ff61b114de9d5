"""What things cost in virtual time, in seconds: a step, a version, a group's average."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from paceline.cluster.scenario import Network, Scenario, Slowdown
from paceline.core.orders import ApplyUpdate, Reduce

RING = """A ring of p members that average M bytes over a link of B bytes a second with latency a takes
2(p - 1)·a + 2(p - 1)/p · M/B: the usual cost model of a reduce-scatter and an all-gather."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """Work before a step's computing, or after it, in seconds."""

    own: float = 0.0
    """The worker's own part: it fetches data, or fills its push."""
    messages: float = 0.0
    """The part of the processes that carry and read its messages. The worker waits meanwhile."""

    @property
    def seconds(self) -> float:
        """Both parts together."""
        return self.own + self.messages

    @property
    def own_share(self) -> float:
        """The share of the worker's own part."""
        return self.own / self.seconds if self.seconds else 0.0


NOTHING = Overhead()


class Costs(Protocol):
    """What the world asks. Answers depend only on the arguments, and on what the costs were made from."""

    cores: int | None
    """How many cores share all work, each job on one core at most. None: each job has a core of its own."""

    def before(self, worker: int, step: int) -> Overhead:
        """From the moment when that step is ordered and its parameters are there, until the worker computes."""
        ...

    def compute(self, worker: int, step: int, at: float) -> float:
        """Seconds of that worker's step, which begins to compute at second `at`, until its gradient is there."""
        ...

    def works(self, worker: int, step: int) -> float:
        """How much of a step's computing is work. The work comes first, then the worker sleeps, as in padded steps.

        Asked only if cores are shared.
        """
        ...

    def after(self, worker: int, step: int) -> Overhead:
        """From that step's gradient until it is told of, without any transfers."""
        ...

    def commit(self, order: ApplyUpdate) -> float:
        """Seconds of making that version, in a store that makes one at a time. It is work."""
        ...

    def average(self, order: Reduce) -> float:
        """Seconds of that group's average, once all its members have come. It is work."""
        ...


class ScenarioCosts:
    """Costs from the scenario. Messages take no time, nothing comes between steps, and cores are not shared."""

    cores: int | None = None

    def __init__(self, scenario: Scenario, workers: int, seed: int, message: int = 0) -> None:
        """`message`: bytes of a replica, if the scenario's network does not say."""
        network = scenario.network or Network()
        self._seed = seed
        self._network = network
        self._message = network.message if network.message is not None else message
        self._hosts = scenario.hosts(workers)
        self._quiet = replace(scenario, events=())
        self._busy: dict[int, Scenario] = {}
        """The scenario with only that worker's slow-downs, so that asking it does not look at all the others'."""
        for event in scenario.events:
            if isinstance(event, Slowdown):
                own = self._busy.get(event.worker, self._quiet)
                self._busy[event.worker] = replace(own, events=(*own.events, event))
        steady = scenario.jitter == 0 and scenario.compute is not None
        self._constant = {
            worker: self._quiet.step_seconds(worker, 0, 0.0, 0.0, seed)
            for worker in range(workers)
            if steady and worker not in self._busy
        }
        """By worker whose steps are all equally long: that length."""

    def before(self, worker: int, step: int) -> Overhead:
        """See `Costs`."""
        return NOTHING

    def compute(self, worker: int, step: int, at: float) -> float:
        """See `Costs`."""
        constant = self._constant.get(worker)
        if constant is not None:
            return constant
        return self._busy.get(worker, self._quiet).step_seconds(worker, step, at, 0.0, self._seed)

    def works(self, worker: int, step: int) -> float:
        """See `Costs`."""
        return 0.0

    def after(self, worker: int, step: int) -> Overhead:
        """See `Costs`."""
        return NOTHING

    def commit(self, order: ApplyUpdate) -> float:
        """See `Costs`."""
        return self._network.commit

    def average(self, order: Reduce) -> float:
        """See `Costs`. By the ring's cost model, at the bandwidth of the links that the group needs."""
        members = len(order.members)
        bandwidth = self._bandwidth([self._hosts[worker] for worker in order.members])
        passes = 2 * (members - 1)
        return passes * self._network.latency + passes / members * self._message / bandwidth

    def _bandwidth(self, hosts: Sequence[str]) -> float:
        """Bytes a second within a node, between one worker of each of several nodes, or in a mixed group."""
        on_each = Counter(hosts)
        if len(on_each) == 1:
            given = self._network.within_nodes
        elif max(on_each.values()) == 1:
            given = self._network.between_nodes
        else:
            given = self._network.mixed if self._network.mixed is not None else self._network.between_nodes
        return math.inf if given is None else given
