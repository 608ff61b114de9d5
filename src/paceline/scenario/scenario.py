"""Scenarios: how fast each worker is, when one slows down or dies, and what the network is like.

Real runs and the simulator ask a scenario the same questions. The answers are pure: they depend only on the scenario,
the seed, and the worker, step and moment of the question.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

from paceline.core.phrases import count, printable
from paceline.core.rng import Rng
from paceline.errors import ConfigError
from paceline.scenario.quantities import as_duration

MOST_WORKERS = 100_000
"""More workers are taken for a typing mistake."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The store's link, and those that groups average over. Bandwidths are bytes a second; None is unlimited."""

    bandwidth: float | None = None
    """Of each server's link, each way."""
    latency: float = 0.0
    """Seconds."""
    message: int | None = None
    """Bytes of one push or pull, or of a replica; None is the model's size."""
    incast: float = 1.0
    """The share of the goodput that is left when more than one flow enters the server."""
    servers: int = 1
    """How many servers share the parameters. Every transfer is spread evenly over all their links."""
    worker_bandwidth: float | None = None
    """Of one worker's own link, each way."""
    commit: float = 0.0
    """Seconds that the store takes to make a version. It makes one at a time."""
    within_nodes: float | None = None
    """Of a node's memory, for groups within the node."""
    between_nodes: float | None = None
    """Of a node's link to others, for groups across nodes. None: the lesser of `bandwidth` and `worker_bandwidth`. See
    `links`."""
    mixed: float | None = None
    """The same for a group with several members on one node and others elsewhere. None: as `between_nodes`."""

    @property
    def narrow(self) -> bool:
        """Whether any link has a bandwidth, so that the number of bytes matters."""
        links = (self.bandwidth, self.worker_bandwidth, self.within_nodes, self.between_nodes, self.mixed)
        return any(bandwidth is not None for bandwidth in links)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTable:
    """One host: its workers, how fast they are, and its link to the other hosts."""

    name: str
    workers: range
    """Empty if the host only has a part of the store."""
    speed: float = 1.0
    """Multiplies each of its workers' own speed."""
    bandwidth: float | None = None
    """Bytes a second, each way; None is unlimited."""
    latency: float = 0.0
    """Seconds, in addition to the other host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A worker's steps take `factor` times as long, for a while.

    It is given in seconds (`at`, `for_`, `every`) or in that worker's own steps (`at_step`, `for_steps`), never in
    both, as the time of a step would have to be remembered. Without a length it lasts for ever.
    """

    worker: int
    at: float | None = None
    at_step: int | None = None
    for_: float | None = None
    for_steps: int | None = None
    every: float | None = None
    factor: float

    def active(self, step: int, at: float) -> bool:
        """Return whether this step, which starts at second `at`, is slowed. A step is slowed as a whole, or not."""
        if self.at_step is not None:
            return self.at_step <= step and (self.for_steps is None or step < self.at_step + self.for_steps)
        if self.at is None or at < self.at:
            return False
        since = at - self.at
        if self.every is not None:
            since %= self.every
        return self.for_ is None or since < self.for_


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A worker gets SIGKILL, at a second of the run or as it starts a step."""

    worker: int
    at: float | None = None
    at_step: int | None = None
    rejoin_after: float | None = None
    """Seconds after which the worker comes back; None: it stays away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What a run's machines are like. In `Scenario()` nothing is slow.

    Workers and steps count from 0: with `at_step = 50` a worker's first 50 steps are as usual.
    """

    path: str | None = field(default=None, compare=False)
    """The file that it was read from."""
    workers: int | None = None
    nodes: int = 1
    compute: float | None = None
    """Seconds of a step on a worker of speed 1; None: as long as it takes."""
    jitter: float = 0.0
    """Relative standard deviation of a step's length."""
    network: Network | None = None
    speeds: dict[int, float] = field(default_factory=dict, hash=False)
    """By worker; 1 for workers that are not named."""
    events: tuple[Slowdown | Kill, ...] = ()
    """In the file's order: `events[0]` is the one that messages call `event 1`."""
    host_tables: tuple[HostTable, ...] = ()
    """The head's comes first. If there are tables, `nodes` is their number. See `scenario.links`."""

    def checked_for(self, workers: int) -> Scenario:
        """Return this scenario for a run of so many workers. Raises ConfigError if it names one beyond them."""
        named = [(f"worker table {n}: index", worker) for n, worker in enumerate(self.speeds, 1)]
        named += [(f"event {n}: worker", event.worker) for n, event in enumerate(self.events, 1)]
        for key, worker in named:
            if not 0 <= worker < workers:
                allowed = f"with {workers} workers it must be from 0 to {workers - 1}"
                if workers == 1:
                    allowed = "with 1 worker it must be 0"
                raise ConfigError(f"{self.name}: {key} is {worker}; {allowed}: change it, or ask for more workers")
        if self.host_tables and workers != self.host_tables[-1].workers.stop:
            have = count(self.host_tables[-1].workers.stop, "worker")
            raise ConfigError(
                f"{self.name}: its [[host]] tables have {have}, and {workers} are asked for; change the tables, or ask "
                "for as many"
            )
        if self.nodes > workers and not self.host_tables:
            raise ConfigError(
                f"{self.name}: cluster.nodes is {self.nodes}, and there are {workers} workers; write at most so "
                "many nodes, or ask for more workers"
            )
        return replace(self, workers=workers)

    def placed(self, workers: int) -> dict[str, range]:
        """Return the workers of each host or node, the head first. A host with a table may have none."""
        if self.host_tables:
            return {table.name: table.workers for table in self.host_tables}
        bounds = [-(-node * workers // self.nodes) for node in range(self.nodes + 1)]
        return {f"node-{node}": range(first, after) for node, (first, after) in enumerate(pairwise(bounds))}

    def hosts(self, workers: int) -> list[str]:
        """Return each worker's host or node."""
        return [name for name, there in self.placed(workers).items() for _ in there]

    def only_dealt(self) -> Scenario:
        """Return a scenario with the same hosts and workers, and nothing else: no slowness, links or deaths."""
        tables = tuple(HostTable(name=table.name, workers=table.workers) for table in self.host_tables)
        return Scenario(nodes=self.nodes, host_tables=tables)

    @property
    def links_hosts(self) -> bool:
        """Whether moving data between its hosts takes time."""
        return any(table.bandwidth is not None or table.latency for table in self.host_tables)

    @property
    def narrow(self) -> bool:
        """Whether any link has a bandwidth, so that the number of bytes matters."""
        own = self.network is not None and self.network.narrow
        return own or any(table.bandwidth is not None for table in self.host_tables)

    def speed(self, worker: int) -> float:
        """Return the worker's speed."""
        own = self.speeds.get(worker, 1.0)
        if not self.host_tables:
            return own
        return own * self.host_tables[bisect_right(self.host_tables, worker, key=lambda one: one.workers.stop)].speed

    def checked_for_real_run(self) -> Scenario:
        """Return this scenario. Raises ConfigError if no real run can do what it says.

        A real step can be made longer, never shorter. So speeds above 1 need `compute` as the length to pad to. So does
        jitter, whose factors may be above or below 1. A version's time can't be set.
        """
        if self.network is not None and self.network.commit:
            raise ConfigError(
                f"{self.name}: network.commit is given; a real run's versions take what they take: leave it out, or "
                "see what would come of it with paceline simulate"
            )
        self.checked_to_count()
        if self.compute is None:
            remedy = "a real step can't be made shorter: set cluster.compute, so that a step can be padded"
            for worker in [*self.speeds, *(worker for table in self.host_tables for worker in table.workers)]:
                if (speed := self.speed(worker)) > 1:
                    raise ConfigError(
                        f"{self.name}: worker {worker}: speed is {speed}; {remedy}, or write at most 1 here"
                    )
            if self.jitter > 0:
                raise ConfigError(f"{self.name}: cluster.jitter is {self.jitter}; {remedy}, or leave jitter out")
        return self

    def checked_to_count(self) -> Scenario:
        """Return this scenario. Raises ConfigError if a key of its network would have no effect."""
        link = self.network
        if link is not None:
            given = [f"message is {link.message} B"] if link.message is not None and not self.narrow else []
            if link.bandwidth is None:
                given += [f"incast is {link.incast}"] if link.incast != 1 else []
                given += [f"servers is {link.servers}"] if link.servers != 1 else []
            if given:
                key = "bandwidth in each [[host]]" if self.host_tables else "network.bandwidth"
                raise ConfigError(
                    f"{self.name}: network: {given[0]}, and there is no bandwidth for it to count on; set {key}, such "
                    'as "1Gbit/s", or leave it out'
                )
        if self.links_hosts and len(self.host_tables) == 1:
            raise ConfigError(
                f"{self.name}: host table 1 has a link, and there is no other host; leave bandwidth and latency out, "
                "or write another [[host]]"
            )
        return self

    def checked_to_happen(self, seconds: float, steps: float) -> Scenario:
        """Return this scenario. Raises ConfigError for an event that comes after so many seconds or steps."""
        for number, event in enumerate(self.events, 1):
            earliest = event.at
            if event.at_step is not None:
                earliest = event.at_step * self._fastest_step(event.worker)
                if earliest > seconds * (1 + 1e-9):
                    raise ConfigError(
                        f"{self.name}: event {number}: at_step is {event.at_step}, and worker {event.worker} can't "
                        f"begin it within {as_duration(seconds)}: make it earlier, or the run longer"
                    )
            if event.at is not None and event.at >= seconds:
                raise ConfigError(
                    f"{self.name}: event {number}: at is {as_duration(event.at)}, and all ends after "
                    f"{as_duration(seconds)}: make it earlier, or the run longer"
                )
            if event.at_step is not None and event.at_step >= steps:
                raise ConfigError(
                    f"{self.name}: event {number}: at_step is {event.at_step}, and all workers together make "
                    f"{steps:g} steps: make it earlier, or the run longer"
                )
            if isinstance(event, Kill):
                back = event.rejoin_after
                if back is not None and earliest is not None and earliest + back >= seconds:
                    raise ConfigError(
                        f"{self.name}: event {number}: rejoin_after is {as_duration(back)}, and all ends after "
                        f"{as_duration(seconds)}, before the worker is back: make it shorter, or the run longer"
                    )
        return self

    def _fastest_step(self, worker: int) -> float:
        """Return the fewest seconds that a step of the worker can take; 0 if that is unknown."""
        if self.compute is None or self.jitter > 0:
            return 0.0
        return self.compute / self.speed(worker)

    def checked_to_die_once(self) -> Scenario:
        """Return this scenario. Raises ConfigError if it kills a worker again that it has killed for good."""
        deaths: dict[int, list[tuple[int, Kill]]] = {}
        kills = [(number, event) for number, event in enumerate(self.events, 1) if isinstance(event, Kill)]
        for number, event in kills:
            for first, other in deaths.setdefault(event.worker, []):
                for key in ("at", "at_step"):
                    one, two = getattr(other, key), getattr(event, key)
                    if one is None or two is None:
                        continue
                    earlier, later = (first, number) if one <= two else (number, first)
                    if (other if earlier == first else event).rejoin_after is None:
                        raise ConfigError(
                            f"{self.name}: event {later}: worker {event.worker} is killed, which event {earlier} has "
                            "done by then: leave it out, or let the worker come back with rejoin_after"
                        )
            deaths[event.worker].append((number, event))
        return self

    def step_seconds(self, worker: int, step: int, at: float, measured: float, seed: int, batches: float = 1) -> float:
        """Return how many seconds this step of so many batches should take, which starts at second `at` of the run.

        That is `compute` for each batch, or else the `measured` seconds, × jitter factor × active slowdowns ÷ speed.
        """
        seconds = measured if self.compute is None else self.compute * batches
        if self.jitter:
            seconds *= self.jitter_factor(worker, step, seed)
        if self.events:
            seconds *= self.slowed(worker, step, at)
        return seconds / self.speed(worker)

    def slowed(self, worker: int, step: int, at: float) -> float:
        """Return the factor of all slow-downs of this step, which starts at second `at`."""
        return math.prod(
            event.factor
            for event in self.events
            if isinstance(event, Slowdown) and event.worker == worker and event.active(step, at)
        )

    def jitter_factor(self, worker: int, step: int, seed: int) -> float:
        """Draw from a log-normal distribution with mean 1 and relative deviation `jitter`, by the arguments alone."""
        if self.jitter == 0:
            return 1.0
        variance = math.log1p(self.jitter * self.jitter)
        return math.exp(math.sqrt(variance) * _normal(seed, worker, step) - variance / 2)

    def kill_at_step(self, worker: int, step: int | None) -> Kill | None:
        """Return the event that kills the worker as it starts this step, or None."""
        kills = (event for event in self.events if isinstance(event, Kill) and event.worker == worker)
        return next((kill for kill in kills if kill.at_step is not None and kill.at_step == step), None)

    def kills_by_time(self) -> list[tuple[float, Kill]]:
        """Return (second of the run, event) of each kill that is given in seconds, the earliest first."""
        timed = [(event.at, event) for event in self.events if isinstance(event, Kill) and event.at is not None]
        return sorted(timed, key=lambda one: (one[0], one[1].worker))

    @property
    def name(self) -> str:
        """The file, as messages call it."""
        return "scenario" if self.path is None else printable(self.path)


def _normal(seed: int, worker: int, step: int) -> float:
    """Draw from the standard normal distribution, by the arguments alone."""
    lots = Rng(_lot(seed, worker) ^ step)
    return _NORMAL.inv_cdf((lots.below(1 << 52) + 0.5) / (1 << 52))


@lru_cache(maxsize=1 << 17)
def _lot(seed: int, worker: int) -> int:
    """Draw what all steps of the worker begin with."""
    return Rng(Rng(seed).below(1 << 64) ^ worker).below(1 << 64)
