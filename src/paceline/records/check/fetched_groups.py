"""What hosts have fetched from each other where each worker owns a replica: slices of averages, and whole replicas."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from operator import itemgetter
from typing import Any

from paceline.core.facts import TrainingBegan
from paceline.core.listed import listed
from paceline.records.broken import FETCHED, FETCHED_ONCE, FETCHES, Broken
from paceline.records.check.checking import Checking
from paceline.records.ledger import FACTS
from paceline.records.times import Fetch

_EVENTS = """
    SELECT id AS fact, 0 AS part, kind, at, body FROM facts
    WHERE kind IN ('TrainingBegan', 'WorkerJoined', 'WorkerLeft', 'ReduceFinished', 'ReduceFailed', 'ReplicaCopied')
    UNION ALL SELECT orders.fact, 1, orders.kind, facts.at, orders.body
    FROM orders JOIN facts ON facts.id = orders.fact WHERE orders.kind IN ('Reduce', 'CopyReplica')
    ORDER BY fact, part
"""
"""What is told of groups and of workers, and what groups and joiners are ordered, in order."""


def fetches_of_groups(checking: Checking, rows: Iterator[tuple[Any, ...]]) -> int:
    """Compare each fetch with the groups at work. Return how many there were. For `rows` see `fetches`."""
    there, number = _There(checking), 0
    for fact, part, *event in merge(checking.run.ledger.execute(_EVENTS), rows, key=itemgetter(0, 1)):
        if part == 2:
            there.fetch(*event)
            number += 1
        else:
            checking.table, checking.row = "facts", fact
            there.event(*event)
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
class _There:
    """What is where, while a segment is told."""

    checking: Checking
    number: int = -1
    """The segment."""
    head: str = ""
    host: dict[int, str] = field(default_factory=dict)
    """By worker, those that have left included."""
    ended: float = -math.inf
    """When the last fetch had ended."""
    groups: dict[int, _Group] = field(default_factory=dict)
    """By number, those with members on several hosts, until the next fact after they have ended."""
    failed: set[int] = field(default_factory=set)
    """Groups that have failed: hosts may have fetched for them before they heard of that."""
    copies: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By joiner: whose replica it gets, and when that was ordered."""
    replicas: dict[tuple[int, str], float] = field(default_factory=dict)
    """By worker and host: when that host last fetched the worker's replica."""
    sizes: dict[tuple[str, tuple[str, ...], str], int] = field(default_factory=dict)
    """By kind, the group's hosts, and the host that makes the slice: its bytes."""
    size: int | None = None
    """Bytes of a replica."""

    def event(self, kind: str, at: float, body: str) -> None:
        """A fact, or an order."""
        told = json.loads(body)
        match kind:
            case "TrainingBegan":
                began = FACTS[kind].decode(body)
                assert isinstance(began, TrainingBegan)
                self._begin(began)
            case "WorkerJoined":
                self.host[told["worker"]] = told["host"]
            case "Reduce":
                hosts = list(dict.fromkeys(self.host[worker] for worker in told["members"]))
                if len(hosts) > 1:
                    self.groups[told["group"]] = _Group(hosts, at)
            case "ReduceFinished" if told["group"] in self.groups:
                self._finished(told["group"], at)
            case "ReduceFailed" if told["group"] in self.groups:
                self.failed.add(told["group"])
            case "CopyReplica":
                self.copies[told["worker"]] = told["source"], at
            case "ReplicaCopied":
                self._copied(told["source"], told["worker"], at)

    def fetch(self, row: int, fetch: Fetch) -> None:
        """An item has been fetched."""
        self.checking.table, self.checking.row = "fetches", row
        if self.checking.run.segments[max(0, self.number)].hosts == 1:
            raise Broken(FETCHES, "none: there is one host", "one")
        after = max(self.ended, fetch.began)
        if not after <= fetch.ended:
            raise Broken(FETCHES, f"it ends at {after!r} or later", fetch.ended)
        self.ended = fetch.ended
        match fetch.kind:
            case "other":
                return
            case "partial" | "mean":
                self._of_group(fetch)
            case "replica":
                self._replica(fetch)
            case "version" if fetch.number == 0 and fetch.source == self.head != fetch.host:
                return  # what training begins with
            case _:
                raise Broken(FETCHES, "a part of an average, or a replica", f"{fetch.kind} {fetch.number}")

    def _begin(self, fact: TrainingBegan) -> None:
        self.number += 1
        self.host = {worker: host for worker, host, _ in fact.members}
        self.head, self.ended = fact.members[0][1], -math.inf
        for outstanding in (self.groups, self.failed, self.copies, self.replicas, self.sizes):
            outstanding.clear()

    def _of_group(self, fetch: Fetch) -> None:
        assert fetch.number is not None
        what = f"a slice of the mean of group {fetch.number}"
        if fetch.kind == "partial":
            what = f"what {fetch.source} gives to group {fetch.number}"
        group = self.groups.get(fetch.number)
        if group is None:
            raise Broken(FETCHES, f"{what}, of a group at work with members on several hosts", f"group {fetch.number}")
        both = fetch.host, fetch.source
        if fetch.host == fetch.source or not {*both} <= {*group.hosts}:
            raise Broken(FETCHES, f"{what}, between two of {listed(group.hosts)}", f"by {both[0]} from {both[1]}")
        if fetch.began < group.ordered:
            raise Broken(FETCHES, f"{what} is fetched at {group.ordered!r}, when it is ordered, or later", fetch.began)
        fetched = group.partials if fetch.kind == "partial" else group.means
        if both in fetched:
            raise Broken(FETCHED_ONCE, f"{what} once to {fetch.host}", "once more")
        fetched[both] = fetch.ended
        makes = fetch.host if fetch.kind == "partial" else fetch.source
        if (size := self.sizes.setdefault((fetch.kind, tuple(group.hosts), makes), fetch.bytes)) != fetch.bytes:
            raise Broken(FETCHES, f"{size} bytes, as each slice that {makes} makes with these hosts", fetch.bytes)

    def _finished(self, number: int, at: float) -> None:
        group = self.groups.pop(number)
        makers = [host for host in group.hosts if any(host == by for by, _ in group.partials)]
        if not makers or makers != group.hosts[: len(makers)]:
            expected = f"the first of {listed(group.hosts)} to make slices of what group {number} averages to"
            raise Broken(FETCHED, expected, listed(makers) if makers else "none")
        for host in group.hosts:
            for source in group.hosts:
                if host in makers and source != host:
                    self._before(group.partials, (host, source), at, f"what {source} gives to group {number}")
                if source in makers and source != host:
                    self._before(group.means, (host, source), at, f"the slice of {source} of group {number}'s mean")

    def _replica(self, fetch: Fetch) -> None:
        assert fetch.worker is not None
        own, hosts = self.host.get(fetch.worker), {*self.host.values()}
        lies_at = own
        if fetch.host == own and fetch.worker in self.copies:  # it is a copy, which a joiner there is given
            lies_at = self.host[self.copies[fetch.worker][0]]
        if lies_at is None or fetch.source not in (lies_at, self.head) or fetch.host not in hosts - {fetch.source}:
            expected = f"the replica of worker {fetch.worker}, by another host from {lies_at}"
            raise Broken(FETCHES, expected, f"by {fetch.host} from {fetch.source}")
        if self.size is None:
            self.size = fetch.bytes
        if fetch.bytes != self.size:
            raise Broken(FETCHES, f"{self.size} bytes, as each replica", fetch.bytes)
        self.replicas[fetch.worker, fetch.host] = fetch.ended

    def _copied(self, source: int, worker: int, at: float) -> None:
        ordered = self.copies.pop(worker, None)
        if ordered is None or ordered[0] != source or self.host[source] == self.host[worker]:
            return
        ended = self.replicas.get((worker, self.host[worker]))
        if ended is None or not ordered[1] <= ended <= at:
            what = f"the replica of worker {source} is fetched by {self.host[worker]} for worker {worker}"
            found = "it never was" if ended is None else f"at {ended!r}"
            raise Broken(FETCHED, f"{what}, between {ordered[1]!r} and {at!r}", found)

    def _before(self, fetched: dict[tuple[str, str], float], key: tuple[str, str], at: float, what: str) -> None:
        ended = fetched.get(key)
        if ended is None or ended > at:
            found = "it never was" if ended is None else f"at {ended!r}"
            raise Broken(FETCHED, f"{what} is fetched by {key[0]} before {at!r}", found)
