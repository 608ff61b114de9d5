"""What hosts have fetched from each other: whether it was there, came once, and was there before it was needed."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from operator import itemgetter
from typing import Any

from paceline.core.facts import TrainingBegan
from paceline.core.phrases import listed
from paceline.records.bitsets import Bitset
from paceline.records.check.checking import Checking
from paceline.records.check.fetched_groups import FetchesInOrder, fetched_before, fetches_of_groups
from paceline.records.check.times import TICK
from paceline.records.ledger import FACTS
from paceline.records.segments import MOVES, PLACEMENT
from paceline.records.times import FetchTimes
from paceline.records.violations import FETCHED_ONCE, FETCHES, READABLE, Violation, count

KINDS = "version", "update", "sum", "partial", "mean", "replica", "other"
DRIFT = 1e-3
"""Relative: by how much another host's clock may be too fast or too slow while it measures how long a fetch takes."""

_EVENTS = """
    SELECT id AS fact, 0 AS part, kind, worker, step, version, at,
        iif(kind = 'TrainingBegan', body, json_extract(body, iif(kind = 'UpdateArrived', '$.sum', '$.host')))
    FROM facts WHERE kind <> 'ReduceFinished' AND kind <> 'ReduceFailed'
    UNION ALL SELECT orders.fact, 1, orders.kind, orders.worker, orders.step, NULL, facts.at, NULL
    FROM orders JOIN facts ON facts.id = orders.fact WHERE orders.kind IN ('Release', 'StartPull')
    ORDER BY fact, part
"""
"""What is told of workers and to them, in order."""
_ROWS = """
    SELECT fact, 2, rowid, host, source, kind, worker, number, bytes, began, ended FROM fetches ORDER BY rowid
"""
_SUMMED = "SELECT id FROM facts WHERE kind = 'UpdateArrived' AND json_extract(body, '$.sum') IS NOT NULL LIMIT 1"
_BEFORE_ORDERED = """
    WITH ordered AS (
        SELECT orders.version, facts.at FROM orders JOIN facts ON facts.id = orders.fact
        WHERE orders.kind = 'ApplyUpdate'
    )
    SELECT fetches.rowid, number, began, coalesce(ordered.at, commits.at) AS since FROM fetches
    LEFT JOIN ordered ON ordered.version = fetches.number LEFT JOIN commits ON commits.version = fetches.number
    WHERE fetches.kind = 'version' AND number NOT IN (SELECT version FROM segments WHERE at IS NOT NULL)
        AND (since IS NULL OR began < since - ? - ? * (ended - began))
    ORDER BY fetches.rowid LIMIT 1
"""
"""The first version that was fetched before it was ordered. It may be fetched while it is made, a piece at a time.

The head's moments are late, if at all. What a segment begins with is there before it begins. That each version which
is made was ordered is another rule.
"""


def fetches(checking: Checking) -> None:
    """Compare each fetch with the facts: what is elsewhere is fetched before a fact says that it is there."""
    ledger = checking.run.ledger
    if checking.replays or all(segment.hosts == 1 for segment in checking.run.segments):
        first = ledger.execute("SELECT min(rowid) FROM fetches").fetchone()[0]
        if first is not None:
            raise Violation(FETCHES, "none: there is one host", "one", "fetches", first)
        if not checking.replays and (summed := ledger.execute(_SUMMED).fetchone()) is not None:
            raise Violation(FETCHES, "no update in a sum: there is one host", "one", "facts", summed[0])
        return
    if checking.run.simulated and ledger.execute("SELECT 1 FROM fetches LIMIT 1").fetchone() is None:
        checking.unproved.append("what hosts fetched was not looked at: the simulation noted none")
        return
    if checking.run.choice.spec.in_groups:
        number = fetches_of_groups(checking, _rows(checking))
        checking.proved.append(f"{count(number, 'fetch', 'fetches')} between hosts, each of what is there and needed")
        return
    there = _There(checking)
    number = 0
    for fact, part, *event in merge(ledger.execute(_EVENTS), _rows(checking), key=itemgetter(0, 1)):
        if part == 2:
            there.fetch(*event)
            number += 1
        else:
            checking.table, checking.row = "facts", fact
            there.event(*event)
    there.end()
    checking.table, checking.row = "fetches", None
    _ordered_before(ledger)
    checking.proved.append(f"{count(number, 'fetch', 'fetches')} between hosts, each of what is there and needed")


def _rows(checking: Checking) -> Iterator[tuple[Any, ...]]:
    """Yield (fact, 2, row, fetch) of each row that can be read. The facts ascend."""
    before = 0
    for fact, part, row, *columns in checking.run.ledger.execute(_ROWS):
        host, source, kind, worker, number, size, began, ended = columns
        of_worker = kind in ("update", "replica")
        whole = [number] * (kind != "other") + [worker] * of_worker
        none = [number] * (kind == "other") + [worker] * (not of_worker)
        if not (
            all(isinstance(one, int) and one >= 0 for one in (fact, size, *whole))
            and all(one is None for one in none)
            and all(isinstance(one, float) and math.isfinite(one) for one in (began, ended))
            and isinstance(host, str)
            and isinstance(source, str)
            and kind in KINDS
        ):
            raise Violation(READABLE, "a fetch", columns, "fetches", row)
        if not before <= fact <= checking.counts["facts"]:
            expected = f"after fact {before} or later, of {checking.counts['facts']}"
            raise Violation(FETCHES, expected, f"after fact {fact}", "fetches", row)
        before = fact
        fetch = FetchTimes(
            host=host, source=source, kind=kind, worker=worker, number=number, bytes=size, began=began, ended=ended
        )
        yield fact, part, row, fetch


def _ordered_before(ledger: sqlite3.Connection) -> None:
    early = ledger.execute(_BEFORE_ORDERED, (TICK, DRIFT)).fetchone()
    if early is not None:
        row, version, began, at = early
        when = "once it is ordered, which it never is" if at is None else f"at {at!r}, when it is ordered, or later"
        raise Violation(FETCHES, f"version {version} is fetched {when}", began, "fetches", row)


@dataclass(slots=True)
class _Has:
    """A version that a worker has had since, and the first later fetch of it to the worker's host, if any."""

    version: int
    again: tuple[int, float] | None = None
    """Its row and its end."""


@dataclass(slots=True)
class _Sum:
    """Updates that have arrived as one sum."""

    number: int
    at: float
    fact: int | str | None
    """The row of the last of them."""
    workers: list[int]


@dataclass(slots=True)
class _There(FetchesInOrder):
    """What each host has, while a segment is told."""

    head: str = ""
    """Empty: there is one host."""
    cuts: list[tuple[int, dict[str, list[int]]]] = field(default_factory=list)
    """Versions, and who makes those after each, until the next one: by host its first byte, and the byte after its last
    one. There are several if ranges have moved."""
    makers: list[str] = field(default_factory=list)
    """Hosts that make ranges of some versions."""
    fetchers: list[str] = field(default_factory=list)
    """Hosts that fetch updates: the head, which has all workers' buffers, and those that make ranges."""
    stay: list[str] = field(default_factory=list)
    """Of these, which fetch all updates: their ranges have not moved."""
    first: int = 0
    """The version that the segment began with."""
    host: dict[int, str] = field(default_factory=dict)
    """By worker."""
    sizes: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """By kind, and the host that makes that range of a version. One that takes over another range has several."""
    links: dict[tuple[str, str], int] = field(default_factory=dict)
    """By source and host: a number for both."""
    versions: Bitset = field(default_factory=Bitset)
    """(link's number, version) of all that were fetched."""
    coming: dict[tuple[str, str, int], float] = field(default_factory=dict)
    """By source, host and version: when it was fetched, if no worker there has it yet."""
    released: dict[tuple[int, int], float] = field(default_factory=dict)
    """By worker and step: when that began, if the update may be fetched while it is computed."""
    ready: dict[tuple[int, int], float] = field(default_factory=dict)
    """By worker and step: when the update was ready that has not arrived yet."""
    late: set[tuple[int, int]] = field(default_factory=set)
    """(worker, step) of updates that were ready as their worker left. The head did not want them any more."""
    updates: dict[tuple[int, int, str], float] = field(default_factory=dict)
    """By worker, step and host: when the update was fetched that has not arrived yet."""
    has: dict[int, _Has] = field(default_factory=dict)
    """By worker."""
    sums: dict[int, dict[str, FetchTimes]] = field(default_factory=dict)
    """By number, and by host that has fetched it: sums that have not arrived yet."""
    arriving: dict[str, _Sum] = field(default_factory=dict)
    """By host: its last sum that has arrived."""

    def event(self, kind: str, worker: int, step: int, version: int, at: float, more: Any) -> None:
        """A fact, or an order to a worker."""
        if kind == "TrainingBegan":
            self._begin(FACTS[kind].decode(more))
            return
        if kind == "WorkerJoined":
            self.host[worker] = str(more)
        if kind == "UpdateArrived" and more is not None:
            self._summed(int(more), worker, at)
        if not self.head or self.fetchers == [self.host.get(worker)]:
            return
        if (had := self.has.pop(worker, None)) is not None and had.again is not None and had.again[1] < at:
            row, ended = had.again
            found = f"at {ended!r} once more, as worker {worker} has it"
            raise Violation(
                FETCHED_ONCE, f"version {had.version} once to host {self.host[worker]}", found, "fetches", row
            )
        match kind:
            case "Release" if self.checking.run.choice.spec.brings_early:
                self.released[worker, step] = at
            case "GradientReady":
                self.ready[worker, step] = at
            case "UpdateArrived" if more is not None:
                self._arrived_in(int(more), worker, step, at)
            case "UpdateArrived":
                self._arrived(worker, step, at)
            case "ParametersTaken":
                self._taken(worker, version, at)
            case "WorkerLeft":
                self.late |= {key for key in self.ready if key[0] == worker}
                self.ready = {key: at for key, at in self.ready.items() if key[0] != worker}
                self.updates = {key: at for key, at in self.updates.items() if key[0] != worker}

    def fetch(self, row: int, fetch: FetchTimes) -> None:
        """Check a fetch."""
        self.take(row, fetch)
        if fetch.kind == "other":
            return
        self._size(fetch)
        match fetch.kind:
            case "version":
                self._version(row, fetch)
            case "sum":
                self._sum(fetch)
            case "update":
                self._update(fetch)
            case _:
                raise Violation(FETCHES, "a version, or what versions are made of", f"{fetch.kind} {fetch.number}")

    def end(self) -> None:
        """No more is told of the segment."""
        for one in self.arriving.values():
            if len(one.workers) < 2:
                self.checking.table, self.checking.row = "facts", one.fact
                raise Violation(FETCHES, f"sum {one.number} of several updates, which arrive together", "of one")

    def _begin(self, fact: TrainingBegan) -> None:
        self.end()
        self.number += 1
        self.host = {worker: host for worker, host, _ in fact.members}
        self.head, self.first, self.ended = fact.members[0][1], fact.version, -math.inf
        self.versions = Bitset()
        by_step = self.coming, self.released, self.ready, self.late, self.updates
        for outstanding in (*by_step, self.has, self.sums, self.arriving):
            outstanding.clear()
        run = self.checking.run
        segment = run.segments[self.number]
        began = self.first - 1, dict(segment.notes.get(PLACEMENT, {self.head: []}))
        cuts = [began, *((version, shards) for version, shards in segment.notes.get(MOVES, ()))]
        if [shards for _, shards in cuts] != [shards for _, shards in self.cuts]:
            self.sizes.clear()
        self.cuts = cuts
        self.makers = list(dict.fromkeys(host for _, shards in cuts for host in shards))
        self.fetchers = list(dict.fromkeys([self.head, *self.makers]))
        self.stay = [host for host in self.fetchers if host == self.head or all(host in shards for _, shards in cuts)]
        if segment.hosts == 1:
            self.head = ""

    def _size(self, fetch: FetchTimes) -> None:
        """Compare the bytes with those of other fetches of the same range."""
        key = fetch.kind, fetch.source if fetch.kind == "version" else fetch.host
        if fetch.kind == "version" and fetch.number == self.first and len(self.makers) > 1:
            return  # the head has all of it
        known = self.sizes.setdefault(key, [])
        if fetch.bytes in known:
            return
        ranges = {tuple(shards.get(key[1], ())) for _, shards in self.cuts}  # the head fetches buffers without a range
        if len(known) >= max(1, len(ranges if key[1] == self.head else ranges - {()})):
            whose = f" {'from' if fetch.kind == 'version' else 'by'} {key[1]}" if len(self.makers) > 1 else ""
            raise Violation(FETCHES, f"{' or '.join(map(str, known))} bytes, as each {key[0]}{whose}", fetch.bytes)
        known.append(fetch.bytes)

    def _sources(self, version: int, host: str) -> list[list[str]]:
        """The hosts from which that one has to fetch the version, if its ranges lay where they were made, or later.

        What a segment begins with is all at the head.
        """
        if version == self.first:
            return [[one for one in [self.head] if one != host]]
        made = max(place for place, (after, _) in enumerate(self.cuts) if after < version)
        return [[one for one in shards if one != host] for _, shards in self.cuts[made:]]

    def _version(self, row: int, fetch: FetchTimes) -> None:
        what = f"version {fetch.number}, by {fetch.host} from {fetch.source}"
        assert fetch.number is not None
        sources = [] if fetch.number < self.first else self._sources(fetch.number, fetch.host)[0]
        if fetch.source == fetch.host or fetch.source not in (*sources, *self.makers):
            raise Violation(FETCHES, f"a version, from {listed(sources or [self.head])}", what)
        if fetch.number < self.first:
            raise Violation(FETCHES, f"version {self.first} or a later one", what)
        for worker, had in self.has.items():
            if had.version == fetch.number and self.host[worker] == fetch.host and had.again is None:
                had.again = row, fetch.ended
        self.versions.add(self._number_of(fetch.source, fetch.host), fetch.number)
        self.coming[fetch.source, fetch.host, fetch.number] = fetch.ended

    def _update(self, fetch: FetchTimes) -> None:
        assert fetch.worker is not None
        assert fetch.number is not None
        key, what = (fetch.worker, fetch.number), f"step {fetch.number} of worker {fetch.worker}"
        source = self.host.get(fetch.worker)
        if fetch.source != source or fetch.host == source or fetch.host not in self.fetchers:
            expected = f"by {listed([one for one in self.fetchers if one != source])} from {source}"
            raise Violation(FETCHES, f"the update of {what}, {expected}", f"by {fetch.host} from {fetch.source}")
        if (*key, fetch.host) in self.updates:
            raise Violation(FETCHED_ONCE, "an update that was not fetched yet", f"{what} once more")
        if key in self.late and fetch.host != self.head:  # which had not heard that the worker has left
            self.updates[*key, fetch.host] = fetch.ended
            return
        if key not in self.ready:
            raise Violation(FETCHES, "an update that is ready, and has not arrived", what)
        ready = self.ready[key]
        if fetch.ended < ready - TICK:
            raise Violation(FETCHES, f"{what} is all there at {ready!r}, when it is ready, or later", fetch.ended)
        if fetch.began < (since := self.released.get(key, ready)) - TICK:
            when = "begun" if key in self.released else "ready"
            raise Violation(FETCHES, f"{what} is fetched at {since!r}, when it is {when}, or later", fetch.began)
        self.updates[*key, fetch.host] = fetch.ended

    def _sum(self, fetch: FetchTimes) -> None:
        assert fetch.number is not None
        what = f"sum {fetch.number}"
        if fetch.source == fetch.host or fetch.host not in self.fetchers:
            raise Violation(FETCHES, f"{what}, by another one of {listed(self.fetchers)}", f"by {fetch.host}")
        fetched = self.sums.setdefault(fetch.number, {})
        if fetch.host in fetched:
            raise Violation(FETCHED_ONCE, "a sum that was not fetched yet", f"{what} once more")
        fetched[fetch.host] = fetch

    def _summed(self, number: int, worker: int, at: float) -> None:
        """The worker's update has arrived in that sum: with others of its host, and with no one else's."""
        host = self.host[worker]
        before = self.arriving.get(host)
        if before is not None and before.number == number:
            if before.at != at or worker in before.workers:
                raise Violation(FETCHES, f"sum {number} at {before.at!r}, with each worker's update once", at)
            before.workers.append(worker)
            before.fact = self.checking.row
            return
        self.end()
        if any(one.number == number for one in self.arriving.values()):
            raise Violation(FETCHES, f"a sum of {host} alone", f"sum {number}")
        if before is not None:
            self.sums.pop(before.number, None)
        self.arriving[host] = _Sum(number, at, self.checking.row, [worker])

    def _arrived_in(self, number: int, worker: int, step: int, at: float) -> None:
        ready, own = self.ready.pop((worker, step), -math.inf), self.host[worker]
        fetched = self.sums.get(number, {})
        for host in self.stay:
            if host == own:
                continue
            fetch = fetched.get(host)
            fetched_before(math.inf if fetch is None else fetch.ended, at, f"sum {number} of {own}", host)
            if fetch is not None and (fetch.source != own or fetch.began < ready - TICK):
                expected = f"sum {number} is fetched from {own} at {ready!r}, when its updates are ready, or later"
                raise Violation(FETCHES, expected, f"at {fetch.began!r} from {fetch.source}")

    def _arrived(self, worker: int, step: int, at: float) -> None:
        self.ready.pop((worker, step), None)
        self.released.pop((worker, step), None)
        for host in self.fetchers:
            if host != self.host[worker] and host in self.stay:
                ended = self.updates.pop((worker, step, host), math.inf)
                fetched_before(ended, at, f"the update of step {step} of worker {worker}", host)

    def _taken(self, worker: int, version: int, at: float) -> None:
        host = self.host[worker]
        ended: dict[str, float] = {}
        for source in dict.fromkeys(source for sources in self._sources(version, host) for source in sources):
            then = self.coming.pop((source, host, version), None)
            if version == self.first and self.checking.run.simulated:
                then = -math.inf  # what training begins with is on all hosts
            elif then is None:
                then = -math.inf if (self._number_of(source, host), version) in self.versions else math.inf
            ended[source] = then
        for source in min(self._sources(version, host), key=lambda some: max((ended[one] for one in some), default=at)):
            what = f"version {version}" if len(self.makers) == 1 else f"what {source} has of version {version},"
            fetched_before(ended[source], at, f"{what} for worker {worker}", host)
        if version > self.first:  # a script may still change the first one, which is fetched again then
            self.has[worker] = _Has(version)

    def _number_of(self, source: str, host: str) -> int:
        return self.links.setdefault((source, host), len(self.links))
