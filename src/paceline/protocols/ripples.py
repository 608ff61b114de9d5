"""Ripples: replicas average in small groups that change all the time, so that a slow worker holds up few others.

Each worker steps its own optimizer on its own replica. After every section of steps it asks the group generator for
a group, and waits until all members of that group have come to such a point. The mean of their replicas then becomes
the replica of each (a Partial All-Reduce). Groups without a member in common average at the same time.

Source: Luo, He, Zhuo, Qian, Ripples, arXiv 1909.08029 (2019); as Prague at ASPLOS 2020. The abstract has Partial
All-Reduce, static scheduling, Group Buffer and Group Division. The static table is that of the authors' public code
(github.com/laekov/preduce). All else of the group generator (the lock vector, what a division makes, head workers,
the slowdown filter) follows the paper as it is known at second hand, and none of its numbers is claimed.

- random: a worker that asks and is in no unfinished group gets a group with members drawn from all. If a member is
  in an unfinished group, that is a conflict: the new group waits in the queue of each of its members.
- static: the k-th group of a worker depends on k and on its place alone. With four workers on each node, it is the
  table in `TABLE`. Otherwise it is blocks of lowbit(k + 1) neighbours (1, 2, 1, 4, 1, 2, 1, 8, ...), a fallback that an
  early revision of that code had. A slow worker holds up all others.
- smart: when a worker with an empty buffer asks, all workers with empty buffers are divided into groups at once,
  two for each. The first is inter: one head worker of each node meets those of the other nodes, and the others meet in
  groups of their own node. The second is intra, a group of the whole node. Nothing conflicts. The filter leaves out
  workers that are behind the asker by `threshold` requests or more, until they ask themselves. It looks only that way:
  a slow asker is still given faster workers, and with `slow_asker=whole` they wait for its next step.

Counter convention: a worker's requests count its own askings, from 0 in the static schedule. The filter compares
the asker's, its present one included, with the other's.

Deviations: membership may change. A worker that leaves, or has no data left, leaves every group that has not begun,
and the others go on without it. In the static schedule its place stays empty. A group that lost a member while it
averaged averages once more without it.

A joiner, also one that comes back, takes part as soon as it has a copy of another replica. Its requests count from
the greatest count of the workers that are here, so the filter takes it for one of the fastest. In the static schedule
they count from the greatest count that there ever was, as groups that were looked up before are made without it. It
takes its old place, or if that is taken the first empty one. If none is empty, it lays out the places of one more node.

A worker that has resumed takes part again as such a joiner does, from its own replica.

Ours: with `slow_asker=once` an asker that is `threshold` requests behind any of these workers gets the first group
alone. It has come to that one, so nobody waits for it. Each member serves conflicting groups in the order in which they
were drawn. So none overtakes an earlier group that shares a member with it, even if its members are free. "conflict"
counts the groups that are queued so. All heads make one group, whatever `group_size` is. Where only one node is
divided, a head would have no other to meet, and none is picked. Groups on a node are as equal in size as they can be. A
group of one needs no averaging, but takes its turn: its worker goes on at once, and its next request is for the next
group.

A resumed run goes on with its draws, so that segments don't repeat each other's. Requests count anew: in the static
schedule all workers have to begin with the same one. The filter finds a slow worker again within `threshold` requests.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from paceline.core.choice import check_parameters, parameter
from paceline.core.facts import (
    Fact,
    GradientReady,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    StepDeclined,
    TrainingBegan,
    WorkerJoined,
    WorkerLeft,
    WorkerResumed,
)
from paceline.core.machine import Spec
from paceline.core.orders import Hold, Order
from paceline.core.reasons import NAMED_AT_MOST, Why
from paceline.core.replicas import REASONS, ReplicaProgress, Replicas
from paceline.core.rng import Rng

DEFAULT_SIZE = 3

NUMBERS = 1 << 32  # more than there will ever be places: static groups of one request have numbers below the next one's

TABLE = (
    ("peers", "node", "pair", "node"),
    ("alone", "node", "peers", "node"),
    ("mates", "node", "alone", "node"),
    ("mates", "node", "pair", "node"),
)
"""The static schedule for four workers on each node: by place on the node, then by request modulo 4.

`peers` are the workers of the same place on every node, `node` is the whole node, `pair` its places 0 and 3, `mates`
its places 2 and 3.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How groups are made, how large they are, and how often a worker asks for one."""

    schedule: Literal["smart", "static", "random"] = parameter(
        "smart",
        "where groups come from: smart divides all free workers at once, node by node; "
        "static is a fixed table; random draws each group",
    )
    group_size: int = parameter(
        DEFAULT_SIZE,
        "workers in a drawn group (random), or at most in a group on one node (smart); all if there are fewer",
        unit="workers",
        least=2,
    )
    threshold: int | None = parameter(
        4,
        "smart leaves out workers that asked for so many groups fewer than the asker, or more; none leaves out none",
        unit="requests",
        least=1,
    )
    slow_asker: Literal["whole", "once"] = parameter(
        "whole",
        "what smart gives an asker that is `threshold` requests behind others: both groups, or the first one alone, "
        "after which no worker waits for its next step",
    )
    section_length: int = parameter(1, "steps of a worker from one group to the next", unit="steps", least=1)

    def __post_init__(self) -> None:
        check_parameters("ripples", self)


def static_group(request: int, place: int, workers: int, node: int) -> range:
    """The places in the group that this place's k-th request gets in the static schedule; k from 0.

    Places count the `workers` node by node, `node` on each. Groups of the same request are disjoint and make up all.
    """
    if node != len(TABLE) or workers % node:
        size = (request + 1) & -(request + 1)
        first = place - place % size
        return range(first, min(first + size, workers))
    on_node = place % node
    first = place - on_node
    match TABLE[on_node][request % 4]:
        case "peers":
            return range(on_node, workers, node)
        case "node":
            return range(first, first + 4)
        case "pair":
            return range(first, first + 4, 3)
        case "mates":
            return range(first + 2, first + 4)
        case _:
            return range(place, place + 1)


def misfit(config: Config, hosts: Sequence[str]) -> str:
    """Why this config can't train on these hosts; empty if it can."""
    sizes = Counter(hosts)
    if config.schedule == "static" and len(set(sizes.values())) > 1:
        listed = ", ".join(f"{host} {count}" for host, count in sizes.items())
        return f"ripples: schedule is static; every node must have as many workers as the others, and has: {listed}"
    if config.group_size > len(hosts) and config.group_size != DEFAULT_SIZE:
        return (
            f"ripples: group_size is {config.group_size}, and there are {len(hosts)} workers; "
            "it must be from 2 to the number of workers"
        )
    return ""


def remark(config: Config, hosts: Sequence[str]) -> str:
    """A note for the user at start-up on these hosts; empty if there is none."""
    if len(hosts) > 1 and config.schedule == "static" and set(Counter(hosts).values()) != {len(TABLE)}:
        return (
            "ripples: the static schedule's table is for four workers on each node; here groups are blocks of 1, 2, 1, "
            "4, 1, 2, 1, 8, ... neighbours, by the ruler"
        )
    return ""


@dataclass(slots=True)
class GroupMember:
    """A worker that groups are made for."""

    node: int
    place: int
    """Among all, counted node by node."""
    requests: int = 0
    buffer: list[int] = field(default_factory=list)
    """The Group Buffer: the worker's unfinished groups by number, ascending. It performs them in that order."""


@dataclass(slots=True)
class PlannedGroup:
    """A group that is not finished."""

    members: dict[int, None]
    """Ascending; without workers that left."""
    why: Why
    here: int = 0
    """How many members have asked for it, and wait."""
    running: bool = False


@dataclass(slots=True)
class Idle:
    """Workers with empty buffers, by their number of requests."""

    workers: dict[int, dict[int, None]] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)
    """The keys of `workers`, ascending."""

    def add(self, worker: int, requests: int) -> None:
        """The worker has nothing in its buffer now."""
        if requests not in self.workers:
            self.workers[requests] = {}
            insort(self.levels, requests)
        self.workers[requests][worker] = None

    def remove(self, worker: int, requests: int) -> None:
        """The worker is not to be divided any more."""
        level = self.workers[requests]
        del level[worker]
        if not level:
            del self.workers[requests]
            del self.levels[bisect_left(self.levels, requests)]

    def take(self, above: int | None) -> list[int]:
        """Remove and return all workers with more requests than `above`; None: all. O(those taken + log n)."""
        first = 0 if above is None else bisect_right(self.levels, above)
        taken = [worker for level in self.levels[first:] for worker in self.workers.pop(level)]
        del self.levels[first:]
        return taken


@dataclass(slots=True)
class Machine:
    """The group generator. A group averages as soon as it heads the buffers of all its members and all have come.

    Groups have numbers that ascend in every buffer. So the lowest unfinished one heads the buffers of all its
    members, and gets its turn as long as every worker asks again or leaves.
    """

    config: Config
    replicas: Replicas = field(default_factory=Replicas)
    lots: Rng = field(default_factory=Rng)
    members: dict[int, GroupMember] = field(default_factory=dict)
    """By worker: those that have neither left nor declined."""
    groups: dict[int, PlannedGroup] = field(default_factory=dict)
    """By number. In the static schedule that is request * NUMBERS + its first place, else a count."""
    running: dict[int, int] = field(default_factory=dict)
    """By the number of a `Reduce`: its group's number."""
    planned: int = 0
    """Groups that were drawn or divided so far."""
    drawn_from: list[int] = field(default_factory=list)
    """The workers in `members`, in any order; for random draws."""
    drawn_at: dict[int, int] = field(default_factory=dict)
    """Where in `drawn_from` a worker is."""
    idle: Idle = field(default_factory=Idle)
    """Of the smart schedule."""
    places: list[int | None] = field(default_factory=list)
    """The worker at each place; None: the place is empty."""
    place_of: dict[int, int] = field(default_factory=dict)
    """The last place of each worker that left."""
    nodes: dict[str, int] = field(default_factory=dict)
    """The number of the node that a host is."""
    node_size: int = 0
    """Workers on each node as training began; 0 if nodes differed."""
    furthest: int = 0
    """The most requests that any worker has ever made."""
    requests: int = 0
    """Of all workers so far."""
    conflicts: int = 0
    """Drawn groups that had to be queued so far."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        """See the contract, `core.machine.Machine`."""
        seat = self.replicas.observe(fact)
        # Copies come first: what follows may put their sources into the next group.
        return (*self.replicas.copy(), *self._follow(fact, seat))

    def _follow(self, fact: Fact, seat: ReplicaProgress | None) -> tuple[Order, ...]:
        match fact:
            case TrainingBegan(members=members, seed=seed, memory=memory):
                self.lots.state = seed if memory is None else memory["draws"]
                self._begin([(worker, host) for worker, host, _ in members])
                return tuple(self.replicas.release(worker, ("began",)) for worker, _, _ in members)
            case WorkerJoined(worker=worker):
                return (*self._begin_alone(), *self.replicas.hold(worker))
            case ReplicaCopied(worker=worker, source=source):
                return (self._enter(worker, ("copied", source)),)
            case WorkerResumed(worker=worker):
                return (self._enter(worker, ("goes-on", worker)),)
            case GradientReady(worker=worker, step=step):
                stepped = self.replicas.apply(worker, ("own-gradient", step))
                left = -(step + 1) % self.config.section_length
                if left:
                    return (stepped, self.replicas.release(worker, ("section", left)))
                return (stepped, *self._request(worker))
            case StepDeclined(worker=worker):
                return self._leave(worker, waiting=False)
            case WorkerLeft(worker=worker):
                assert seat is not None
                lost = Replicas.lost_with(fact, seat)
                if worker not in self.members:  # the worker had declined, or had no replica yet
                    return (*lost, *self._begin_alone())
                return (*lost, *self._leave(worker, waiting=seat.phase == "applied"), *self._begin_alone())
            case ReduceFinished(group=order):
                number = self.running.pop(order)
                return self._close(number, ("averaged", order))
            case ReduceFailed(group=order):
                number = self.running.pop(order)
                group = self.groups[number]
                group.running, group.why = False, ("again", order)
                return self._proceed(number)
            case _:  # the replicas' roster has refused it
                raise AssertionError(fact)

    def _begin(self, workers: list[tuple[int, str]]) -> None:
        sizes = Counter(host for _, host in workers)
        self.node_size = next(iter(sizes.values()), 0) if len(set(sizes.values())) == 1 else 0
        self.nodes = {host: node for node, host in enumerate(sizes)}
        by_node: list[list[int]] = [[] for _ in sizes]
        for worker, host in workers:
            by_node[self.nodes[host]].append(worker)
        for node, here in enumerate(by_node):
            for worker in here:
                self.places.append(worker)
                self._seat(worker, GroupMember(node=node, place=len(self.places) - 1))

    def _seat(self, worker: int, member: GroupMember) -> None:
        """From here on groups are made for this worker."""
        self.members[worker] = member
        self.drawn_at[worker] = len(self.drawn_from)
        self.drawn_from.append(worker)
        if self.config.schedule == "smart":
            self.idle.add(worker, member.requests)

    def _begin_alone(self) -> tuple[Order, ...]:
        alone = self.replicas.begin_alone()
        return () if alone is None else (self._enter(alone, ("nobody-here", alone)),)

    def _enter(self, worker: int, why: Why) -> Order:
        """The joiner has its replica, and begins where the furthest are. O(n), once for each joiner."""
        place = self.place_of.pop(worker, None)
        if place is None or self.places[place] is not None:
            if None not in self.places:
                self.places += [None] * (self.node_size or 1)
            place = self.places.index(None)
        self.places[place] = worker
        requests = self.furthest
        if self.config.schedule != "static":
            requests = max((member.requests for member in self.members.values()), default=0)
        node = self.nodes.setdefault(self.replicas.hosts[worker], len(self.nodes))
        self._seat(worker, GroupMember(node=node, place=place, requests=requests))
        return self.replicas.release(worker, why)

    def _request(self, worker: int) -> tuple[Order, ...]:
        """The worker is at its sync point. It goes on alone, or its group averages, or it waits for its group."""
        member = self.members[worker]
        fresh = False
        match self.config.schedule:
            case "static":
                self._look_up(member)
            case "random" if not member.buffer:
                fresh = self._draw(worker)
            case "smart" if not member.buffer:
                self._divide(worker, member)
        member.requests += 1
        self.furthest = max(self.furthest, member.requests)
        self.requests += 1
        number = member.buffer[0]
        self.groups[number].here += 1
        return self._proceed(number) or (Hold(worker=worker, why=self._missing(number, conflict=fresh)),)

    # The three schedules.

    def _look_up(self, member: GroupMember) -> None:
        places = static_group(member.requests, member.place, len(self.places), self.node_size)
        number = member.requests * NUMBERS + places.start
        if number not in self.groups:
            here = [
                worker
                for worker in self.places[places.start : places.stop : places.step]
                if worker is not None and self.members[worker].requests <= member.requests  # joiners come to later ones
            ]
            code = "table" if self.node_size == len(TABLE) else "ruler"
            self._plan(here, (code, member.requests, len(places)), number)

    def _draw(self, worker: int) -> bool:
        """Draw a group of this worker and others, each set as likely as any other. Return whether it conflicts."""
        size = self.config.group_size
        drawn = self.lots.sample(self.drawn_from, min(size, len(self.drawn_from)))
        together = [worker, *[other for other in drawn if other != worker][: size - 1]]
        conflict = any(self.members[other].buffer for other in together)
        self.conflicts += conflict
        self._plan(together, ("drawn-queued" if conflict else "drawn", worker))
        return conflict

    def _divide(self, asker: int, member: GroupMember) -> None:
        """Group Division of all workers with empty buffers, except those that the filter leaves out."""
        self.idle.remove(asker, member.requests)
        threshold = self.config.threshold
        taken = self.idle.take(None if threshold is None else member.requests + 1 - threshold)
        free = [asker, *taken]
        if not taken:
            self._plan(free, ("alone",))
            return
        self.lots.shuffle(free)
        nodes: dict[int, list[int]] = {}
        for worker in free:
            nodes.setdefault(self.members[worker].node, []).append(worker)
        if len(nodes) > 1:
            self._plan([here[0] for here in nodes.values()], ("heads", asker))
        for node, here in nodes.items():
            others = here[1:] if len(nodes) > 1 else here
            parts = -(-len(others) // self.config.group_size)
            for part in range(parts):
                self._plan(others[part::parts], ("local", asker, node))
        once = self.config.slow_asker == "once" and self._is_behind(member, taken)
        for node, here in nodes.items():
            staying = [worker for worker in here if worker != asker] if once else here
            if staying:
                self._plan(staying, ("whole-node", asker, node))

    def _is_behind(self, asker: GroupMember, others: Iterable[int]) -> bool:
        """Whether the filter would leave the asker out, if one of these workers asked next."""
        most, threshold = max(self.members[worker].requests for worker in others), self.config.threshold
        return threshold is not None and most - asker.requests >= threshold

    def _plan(self, workers: list[int], why: Why, number: int | None = None) -> None:
        """Make a group, which is at once in the buffers of all its members."""
        if number is None:
            number, self.planned = self.planned, self.planned + 1
        workers.sort()
        self.groups[number] = PlannedGroup(members=dict.fromkeys(workers), why=why)
        for worker in workers:
            insort(self.members[worker].buffer, number)

    # A group's life.

    def _proceed(self, number: int) -> tuple[Order, ...]:
        """Let the group average if all its members have come. If it has only one member, that one goes on."""
        group = self.groups[number]
        if group.running or group.here < len(group.members):
            return ()
        if len(group.members) < 2:
            return self._close(number, ("alone",))
        order = self.replicas.reduce(tuple(group.members), group.why)
        group.running = True
        self.running[order.group] = number
        return (order,)

    def _close(self, number: int, why: Why) -> tuple[Order, ...]:
        """The group is over, and its members go on."""
        orders = []
        for worker in self.groups.pop(number).members:
            member = self.members[worker]
            member.buffer.pop(0)
            if not member.buffer and self.config.schedule == "smart":
                self.idle.add(worker, member.requests)
            orders.append(self.replicas.release(worker, why))
        return tuple(orders)

    def _leave(self, worker: int, waiting: bool) -> tuple[Order, ...]:
        """Take the worker out of all its groups."""
        member = self.members.pop(worker)
        self.places[member.place] = None
        self.place_of[worker] = member.place
        last = self.drawn_from.pop()
        spot = self.drawn_at.pop(worker)
        if last != worker:
            self.drawn_from[spot], self.drawn_at[last] = last, spot
        if not member.buffer and self.config.schedule == "smart":
            self.idle.remove(worker, member.requests)
        orders: list[Order] = []
        for number in member.buffer:
            group = self.groups[number]
            del group.members[worker]
            group.here -= waiting and number == member.buffer[0]
            orders += self._proceed(number)
        return tuple(orders)

    def _missing(self, number: int, conflict: bool) -> Why:
        """Which members the group waits for."""
        group = self.groups[number]
        code = "conflict" if conflict else "awaits"
        if len(group.members) > NAMED_AT_MOST:
            return (f"{code}-many", len(group.members) - group.here, len(group.members))
        seats = self.replicas.seats
        missing = (
            worker
            for worker in group.members
            if seats[worker].phase != "applied" or self.members[worker].buffer[0] != number
        )
        return (code, tuple(missing))


def _no_worker_twice(machine: Machine) -> bool:
    at_work = [worker for group in machine.groups.values() if group.running for worker in group.members]
    return len(at_work) == len(set(at_work))


def _buffers_hold_the_groups(machine: Machine) -> bool:
    listed: dict[int, list[int]] = {worker: [] for worker in machine.members}
    for number in sorted(machine.groups):
        for worker in machine.groups[number].members:
            listed[worker].append(number)
    return all(member.buffer == listed[worker] for worker, member in machine.members.items())


def _here(machine: Machine, number: int) -> int:
    return sum(
        machine.replicas.seats[worker].phase == "applied" and machine.members[worker].buffer[0] == number
        for worker in machine.groups[number].members
    )


SPEC = Spec(
    name="ripples",
    title="Ripples: Partial All-Reduce",
    does="replicas are averaged in small groups that change all the time",
    paper="Luo, He, Zhuo, Qian, Heterogeneity-Aware Asynchronous Decentralized Training, arXiv 1909.08029, 2019; "
    "as Prague at ASPLOS 2020",
    config=Config,
    machine=Machine,
    rounds=False,
    state="replicas",
    local_steps=True,
    pushes="nothing",
    optimizer="worker",
    groups=True,
    memory=lambda machine: {**machine.replicas.memory(), "draws": machine.lots.state},
    misfit=misfit,
    remark=remark,
    invariants={
        "no two groups that average at the same time share a worker": _no_worker_twice,
        "a buffer has its worker's unfinished groups, in the order of their numbers": _buffers_hold_the_groups,
        "a group averages if and only if two or more members have all come to it": lambda machine: all(
            group.here == _here(machine, number)
            and (group.running or (group.here < len(group.members)))
            and (group.running or number not in machine.running.values())
            for number, group in machine.groups.items()
        ),
        "a worker that waits is in a group that is not finished": lambda machine: all(
            machine.members[worker].buffer for worker, seat in machine.replicas.seats.items() if seat.phase == "applied"
        ),
        "under smart exactly the workers with empty buffers are idle, each with its number of requests": (
            lambda machine: (
                machine.idle.levels == sorted(machine.idle.workers)
                and sorted((worker, level) for level, workers in machine.idle.workers.items() for worker in workers)
                == sorted(
                    (worker, member.requests)
                    for worker, member in machine.members.items()
                    if machine.config.schedule == "smart" and not member.buffer
                )
            )
        ),
        "only drawn groups conflict": lambda machine: machine.config.schedule == "random" or machine.conflicts == 0,
    },
    reasons={
        **REASONS,
        "section": "{0} more steps of its section come first",
        "alone": "its group has no other member",
        "averaged": "group {0} has averaged",
        "again": "group {0} lost a member, and the others average without it",
        "drawn": "all members of the group that worker {0} drew have come",
        "drawn-queued": "all members of the group that worker {0} drew have come; it was queued for a conflict",
        "table": "all {1} members of its group for request {0}, by the table, have come",
        "ruler": "all {1} workers of its block for request {0} have come; the table is for four workers on each node",
        "heads": "the head workers of the nodes that worker {0}'s request divided have come",
        "local": "a group on node {1} that worker {0}'s request made has come",
        "whole-node": "all workers of node {1} that worker {0}'s request divided have come",
        "awaits": "its group waits for {0:workers}",
        "awaits-many": "its group waits for {0} of its {1} workers",
        "conflict": "its group has members in an earlier group, and waits for {0:workers}",
        "conflict-many": "its group has members in an earlier group, and waits for {0} of its {1} workers",
    },
)
