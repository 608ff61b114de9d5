"""What hosts have fetched from each other where each worker owns a replica: slices of averages, and whole replicas."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from operator import itemgetter
from typing import Any

from paceline.core.facts import TrainingBegan
from paceline.core.phrases import listed
from paceline.records.check.checking import Checking
from paceline.records.ledger import FACTS
from paceline.records.times import FetchTimes
from paceline.records.violations import FETCHED, FETCHED_ONCE, FETCHES, Violation

_EVENTS = """
    SELECT id AS fact, 0 AS part, kind, at, body FROM facts
    WHERE kind IN ('TrainingBegan', 'WorkerJoined', 'WorkerLeft', 'ReduceFinished', 'ReplicaCopied')
    UNION ALL SELECT orders.fact, 1, orders.kind, facts.at, orders.body
    FROM orders JOIN facts ON facts.id = orders.fact WHERE orders.kind IN ('Reduce', 'StepReplica', 'CopyReplica')
    ORDER BY fact, part
"""
"""What is told of groups and of workers, and what groups, replicas and joiners are ordered, in order."""
_MEANS = "SELECT rowid, version, at, replicas FROM consensus WHERE at IS NOT NULL ORDER BY version"
"""Recorded means, in order. One begins after the one before is written."""


def fetches_of_groups(checking: Checking, rows: Iterator[tuple[Any, ...]]) -> int:
    """Compare each fetch with the groups at work. Return how many there were. For `rows` see `fetches`."""
    there, number = _There(checking, means=checking.run.ledger.execute(_MEANS)), 0
    for fact, part, *event in merge(checking.run.ledger.execute(_EVENTS), rows, key=itemgetter(0, 1)):
        if part == 2:
            there.fetch(*event)
            number += 1
        else:
            checking.table, checking.row = "facts", fact
            there.event(*event)
    there.means_until(math.inf)
    there.end_mean()
    checking.table, checking.row = "fetches", None
    return number


@dataclass(slots=True)
class _Group:
    """A group with members on several hosts."""

    hosts: list[str]
    """In the order in which they sum."""
    ordered: float
    """When it was ordered."""
    partials: dict[tuple[str, str], float] = field(default_factory=dict)
    """By host and source: when what the source's members gave was fetched."""
    means: dict[tuple[str, str], float] = field(default_factory=dict)
    """By host and source: when the slice of the mean was fetched that the source made."""


@dataclass(slots=True)
class FetchesInOrder:
    """Checks the order and the hosts of fetches, segment by segment."""

    checking: Checking
    number: int = -1
    """The segment."""
    ended: float = -math.inf
    """When the last fetch had ended."""

    def take(self, row: int, fetch: FetchTimes) -> None:
        """Check the next fetch: there are several hosts, and it ends after it began and after the one before."""
        self.checking.table, self.checking.row = "fetches", row
        if self.checking.run.segments[max(0, self.number)].hosts == 1:
            raise Violation(FETCHES, "none: there is one host", "one")
        after = max(self.ended, fetch.began)
        if not after <= fetch.ended:
            raise Violation(FETCHES, f"it ends at {after!r} or later", fetch.ended)
        self.ended = fetch.ended


def fetched_before(ended: float, at: float, what: str, host: str) -> None:
    """Check that this host fetched `what` before `at`. `ended`: when it did; infinity: never."""
    if ended > at:
        found = "it never was" if ended == math.inf else f"at {ended!r}"
        raise Violation(FETCHED, f"{what} is fetched by {host} before {at!r}", found)


@dataclass(slots=True)
class _There(FetchesInOrder):
    """What each host has, while a segment is told."""

    means: Iterator[tuple[int, int, float, int]] = field(kw_only=True)
    """(row, version, when it began, of how many replicas) of recorded means that have not begun."""
    head: str = ""
    host: dict[int, str] = field(default_factory=dict)
    """By worker, those that have left included."""
    groups: dict[int, _Group] = field(default_factory=dict)
    """By number, those with members on several hosts, until they have finished. For one that failed, hosts may have
    fetched before they heard of that."""
    copies: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By joiner: whose replica it gets, and when that was ordered."""
    replicas: dict[tuple[int, str], float] = field(default_factory=dict)
    """By worker and host: when that host last fetched the worker's replica."""
    sizes: dict[tuple[str, tuple[str, ...], str], int] = field(default_factory=dict)
    """By kind, the group's hosts, and the host that makes the slice: its bytes."""
    size: int | None = None
    """Bytes of a replica, and of all slices of a mean together."""
    flags: int | None = None
    """Bytes that say which parameters a host's members have. The first slice brings them with all else."""
    first: int = 0
    """The version that the segment began with."""
    known: set[str] = field(default_factory=set)
    """All hosts of the segment, those that came later included."""
    begin_with: set[str] = field(default_factory=set)
    """Hosts that have fetched what training begins with."""
    awaited: set[int] = field(default_factory=set)
    """Workers of other hosts than the head that were there as training began and have made no step yet."""
    changes: Counter[int] = field(default_factory=Counter)
    """By worker: how often its replica had changed, at the most."""
    left: set[int] = field(default_factory=set)
    """Workers that have left. If their host has left, too, their replicas lie at the head."""
    mean: tuple[int, int, float, int] | None = None
    """The recorded mean that is being made, or was made last."""
    then: tuple[int, int, float, int] | None = None
    """The one after that."""
    for_mean: set[int] = field(default_factory=set)
    """Workers whose replicas the head has fetched since that mean began."""

    def __post_init__(self) -> None:
        self.then = next(self.means, None)

    def event(self, kind: str, at: float, body: str) -> None:
        """A fact, or an order."""
        self.means_until(at)
        told = json.loads(body)
        match kind:
            case "TrainingBegan":
                began = FACTS[kind].decode(body)
                assert isinstance(began, TrainingBegan)
                self._begin(began)
            case "WorkerJoined":
                self.host[told["worker"]] = told["host"]
                self.known.add(told["host"])
                self.left.discard(told["worker"])
                self.changes[told["worker"]] += 1
            case "WorkerLeft":
                self.left.add(told["worker"])
                self.awaited.discard(told["worker"])
            case "StepReplica":
                self.changes[told["worker"]] += 1
                self._began(told["worker"])
            case "Reduce":
                hosts = list(dict.fromkeys(self.host[worker] for worker in told["members"]))
                if len(hosts) > 1:
                    self.groups[told["group"]] = _Group(hosts, at)
                self.changes.update(told["members"])
            case "ReduceFinished" if told["group"] in self.groups:
                self._finished(told["group"], at)
            case "CopyReplica":
                self.copies[told["worker"]] = told["source"], at
                self.changes[told["worker"]] += 1
            case "ReplicaCopied":
                self._copied(told["source"], told["worker"], at)

    def fetch(self, row: int, fetch: FetchTimes) -> None:
        """Check a fetch."""
        self.take(row, fetch)
        self.means_until(fetch.ended)
        if fetch.host == fetch.source or not {fetch.host, fetch.source} <= self.known:
            between = f"a fetch between two of {listed(sorted(self.known))}"
            raise Violation(FETCHES, between, f"by {fetch.host} from {fetch.source}")
        match fetch.kind:
            case "other":
                return
            case "partial" | "mean":
                self._of_group(fetch)
            case "replica":
                self._replica(fetch)
            case "version" if fetch.number == self.first and fetch.source == self.head:
                self._beginning(fetch)
            case _:
                raise Violation(FETCHES, "a part of an average, or a replica", f"{fetch.kind} {fetch.number}")

    def _begin(self, fact: TrainingBegan) -> None:
        self.number += 1
        self.host = {worker: host for worker, host, _ in fact.members}
        self.head, self.first, self.ended = fact.members[0][1], fact.version, -math.inf
        self.known = {*self.checking.run.segments[self.number].environment.get("hosts", ()), *self.host.values()}
        by_worker = self.copies, self.replicas, self.changes, self.left, self.for_mean
        for outstanding in (self.groups, *by_worker, self.sizes, self.begin_with):
            outstanding.clear()
        self.awaited = {worker for worker, host in self.host.items() if host != self.head}
        self.changes.update([*self.host])  # as scripts change what training begins with, before their first step
        self.mean = None  # what came for it after the snapshot is not in the ledger

    def _beginning(self, fetch: FetchTimes) -> None:
        self.size = fetch.bytes if self.size is None else self.size
        self._is(fetch.bytes, self.size, f"bytes of version {self.first}, as of each replica")
        self.begin_with.add(fetch.host)

    def _began(self, worker: int) -> None:
        """The worker has made a step."""
        if worker not in self.awaited:
            return
        self.awaited.discard(worker)
        host = self.host[worker]
        if host not in self.begin_with and (worker, host) not in self.replicas:
            raise Violation(FETCHED, f"what worker {worker} begins with is fetched by {host}", "it never was")

    def means_until(self, at: float) -> None:
        """Each recorded mean that began by then has come after the one before was made."""
        while self.then is not None and self.then[2] <= at:
            self.end_mean()
            self.mean, self.then = self.then, next(self.means, None)
            self.for_mean.clear()

    def end_mean(self) -> None:
        """The recorded mean is made, if any: of replicas that lie at the head, or were fetched."""
        if self.mean is None:
            return
        row, version, _, of = self.mean
        here = {worker for worker, host in self.host.items() if host == self.head}
        here |= {worker for worker in self.left if (worker, self.head) in self.replicas}  # as its host left, maybe
        if len(here | self.for_mean) < of:
            expected = f"{of - len(here)} replicas or more are fetched by {self.head} for version {version}"
            raise Violation(FETCHED, expected, len(self.for_mean - here), "consensus", row)

    def _of_group(self, fetch: FetchTimes) -> None:
        assert fetch.number is not None
        what = "a slice of the mean"
        if fetch.kind == "partial":
            what = f"what {fetch.source} gives to group {fetch.number}"
        group = self.groups.get(fetch.number)
        if group is None:
            raise Violation(
                FETCHES, f"{what}, of a group at work with members on several hosts", f"group {fetch.number}"
            )
        both = fetch.host, fetch.source
        if not {*both} <= {*group.hosts}:
            raise Violation(FETCHES, f"{what}, between two of {listed(group.hosts)}", f"by {both[0]} from {both[1]}")
        if fetch.began < group.ordered:
            raise Violation(
                FETCHES, f"{what} is fetched at {group.ordered!r}, when it is ordered, or later", fetch.began
            )
        fetched = group.partials if fetch.kind == "partial" else group.means
        if both in fetched:
            raise Violation(FETCHED_ONCE, f"{what} once to {fetch.host}", "once more")
        fetched[both] = fetch.ended
        makes = fetch.host if fetch.kind == "partial" else fetch.source
        if (size := self.sizes.setdefault((fetch.kind, tuple(group.hosts), makes), fetch.bytes)) != fetch.bytes:
            raise Violation(FETCHES, f"{size} bytes, as each slice that {makes} makes with these hosts", fetch.bytes)

    def _finished(self, number: int, at: float) -> None:
        group = self.groups.pop(number)
        makers = [host for host in group.hosts if any(host == by for by, _ in group.partials)]
        if not makers or makers != group.hosts[: len(makers)]:
            expected = f"the first of {listed(group.hosts)} to make slices of what group {number} averages to"
            raise Violation(FETCHED, expected, listed(makers) if makers else "none")
        if others := [source for _, source in group.means if source not in makers]:
            raise Violation(FETCHES, f"slices of group {number}'s mean from {listed(makers)}", f"one from {others[0]}")
        for host in group.hosts:
            for source in group.hosts:
                if host in makers and source != host:
                    fetched = group.partials.get((host, source), math.inf)
                    fetched_before(fetched, at, f"what {source} gives to group {number}", host)
                if source in makers and source != host:
                    fetched = group.means.get((host, source), math.inf)
                    fetched_before(fetched, at, f"the slice of {source} of group {number}'s mean", host)
        self._bytes_of(number, group.hosts, makers)

    def _bytes_of(self, number: int, hosts: list[str], makers: list[str]) -> None:
        """Compare slices with each other: of what a host gives they are those of the mean, and all are a replica."""
        size = 0
        for host in makers:
            slice_ = self.sizes["mean", (*hosts,), host]
            size += slice_
            flags = self.sizes["partial", (*hosts,), host] - slice_
            if host == makers[0]:
                self._is(flags, 0, f"bytes more in what {host} fetches for its slice of group {number}'s mean")
            else:
                self.flags = flags if self.flags is None else self.flags
                self._is(flags, self.flags, f"bytes more in what {host} fetches for its slice of group {number}'s mean")
        self.size = size if self.size is None else self.size
        self._is(size, self.size, f"bytes in all slices of group {number}'s mean")

    def _is(self, found: int, expected: int, what: str) -> None:
        if found != expected:
            raise Violation(FETCHES, f"{expected} {what}", found)

    def _replica(self, fetch: FetchTimes) -> None:
        assert fetch.worker is not None
        assert fetch.number is not None
        own = self.host.get(fetch.worker)
        if fetch.host != own:
            lie_at = self._lie_at(fetch.worker)
        else:  # its worker begins with it, or with a copy of another one as it joins
            lie_at = {self.head}
            if fetch.worker in self.copies:
                lie_at |= self._lie_at(self.copies[fetch.worker][0])
        if fetch.source not in lie_at:
            expected = f"the replica of worker {fetch.worker}, by another host from {listed(sorted(lie_at))}"
            raise Violation(FETCHES, expected, f"by {fetch.host} from {fetch.source}")
        if fetch.number > self.changes[fetch.worker]:
            most = f"the replica of worker {fetch.worker} after {self.changes[fetch.worker]} changes at the most"
            raise Violation(FETCHES, most, f"after {fetch.number}")
        self.size = fetch.bytes if self.size is None else self.size
        self._is(fetch.bytes, self.size, "bytes, as each replica")
        self.replicas[fetch.worker, fetch.host] = fetch.ended
        if fetch.host == self.head:
            self.for_mean.add(fetch.worker)

    def _lie_at(self, worker: int) -> set[str]:
        """Where that worker's replica may be. The head has it if its host has left after the worker."""
        own = self.host.get(worker)
        return {*([own] if own is not None else []), *([self.head] if worker in self.left else [])}

    def _copied(self, source: int, worker: int, at: float) -> None:
        ordered = self.copies.pop(worker, None)
        if ordered is None or ordered[0] != source or self.host[source] == self.host[worker]:
            return
        ended = self.replicas.get((worker, self.host[worker]))
        if ended is None or not ordered[1] <= ended <= at:
            what = f"the replica of worker {source} is fetched by {self.host[worker]} for worker {worker}"
            found = "it never was" if ended is None else f"at {ended!r}"
            raise Violation(FETCHED, f"{what}, between {ordered[1]!r} and {at!r}", found)
