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
from paceline.records.broken import FETCHED, FETCHED_ONCE, FETCHES, READABLE, Broken, count
from paceline.records.check.checking import Checking
from paceline.records.check.times import TICK
from paceline.records.ledger import FACTS, WITH_HOSTS
from paceline.records.marks import Marks
from paceline.records.times import Fetch

DRIFT = 1e-3
"""Relative: by how much another host's clock may be too fast or too slow while it measures how long a fetch takes."""

_EVENTS = """
    SELECT id AS fact, 0 AS part, kind, worker, step, version, at,
        iif(kind = 'TrainingBegan', body, json_extract(body, '$.host'))
    FROM facts WHERE kind <> 'ReduceFinished' AND kind <> 'ReduceFailed'
    UNION ALL SELECT orders.fact, 1, orders.kind, orders.worker, NULL, NULL, facts.at, NULL
    FROM orders JOIN facts ON facts.id = orders.fact WHERE orders.kind IN ('Release', 'StartPull')
    ORDER BY fact, part
"""
"""What is told of workers and to them, in order."""
_ROWS = """
    SELECT fact, 2, rowid, host, source, kind, worker, number, bytes, began, ended FROM fetches ORDER BY rowid
"""
_BEFORE_MADE = """
    SELECT fetches.rowid, number, began, commits.at FROM fetches LEFT JOIN commits ON commits.version = fetches.number
    WHERE fetches.kind = 'version' AND number NOT IN (SELECT version FROM segments WHERE at IS NOT NULL)
        AND (commits.at IS NULL OR began < commits.at - ? - ? * (ended - began))
    ORDER BY fetches.rowid LIMIT 1
"""
"""The first version that was fetched before it was made. The head's moments are late, if at all.

What a segment begins with is there before it begins.
"""


def fetches(checking: Checking) -> None:
    """Compare each fetch with the facts: what is elsewhere is fetched before a fact says that it is there."""
    ledger = checking.run.ledger
    (schema,) = ledger.execute("PRAGMA user_version").fetchone()
    if checking.replays or all(segment.hosts == 1 for segment in checking.run.segments):
        first = ledger.execute("SELECT min(rowid) FROM fetches").fetchone()[0]
        if first is not None:
            raise Broken(FETCHES, "none: there is one host", "one", "fetches", first)
        return
    none = ledger.execute("SELECT 1 FROM fetches LIMIT 1").fetchone() is None
    if schema < WITH_HOSTS or (checking.run.simulated and none):
        checking.unproved.append("what hosts fetched was not looked at: the version that wrote the ledger noted none")
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
    checking.table, checking.row = "fetches", None
    _made_before(ledger)
    checking.proved.append(f"{count(number, 'fetch', 'fetches')} between hosts, each of what is there and needed")


def _rows(checking: Checking) -> Iterator[tuple[Any, ...]]:
    """Yield (fact, 2, row, fetch) of each row that can be read. The facts ascend."""
    before = 0
    for fact, part, row, *columns in checking.run.ledger.execute(_ROWS):
        host, source, kind, worker, number, size, began, ended = columns
        whole = [number] * (kind != "other") + [worker] * (kind == "update")
        none = [number] * (kind == "other") + [worker] * (kind != "update")
        if not (
            all(isinstance(one, int) and one >= 0 for one in (fact, size, *whole))
            and all(one is None for one in none)
            and all(isinstance(one, float) and math.isfinite(one) for one in (began, ended))
            and isinstance(host, str)
            and isinstance(source, str)
            and kind in ("version", "update", "other")
        ):
            raise Broken(READABLE, "a fetch", columns, "fetches", row)
        if not before <= fact <= checking.counts["facts"]:
            expected = f"after fact {before} or later, of {checking.counts['facts']}"
            raise Broken(FETCHES, expected, f"after fact {fact}", "fetches", row)
        before = fact
        fetch = Fetch(
            host=host, source=source, kind=kind, worker=worker, number=number, bytes=size, began=began, ended=ended
        )
        yield fact, part, row, fetch


def _made_before(ledger: sqlite3.Connection) -> None:
    early = ledger.execute(_BEFORE_MADE, (TICK, DRIFT)).fetchone()
    if early is not None:
        row, version, began, made = early
        when = "once it is made, which it never is" if made is None else f"at {made!r}, when it is made, or later"
        raise Broken(FETCHES, f"version {version} is fetched {when}", began, "fetches", row)


@dataclass(slots=True)
class _Has:
    """A version that a worker has had since, and the first later fetch of it to the worker's host, if any."""

    version: int
    again: tuple[int, float] | None = None
    """Its row and its end."""


@dataclass(slots=True)
class _There:
    """What is where, while a segment is told."""

    checking: Checking
    number: int = -1
    """The segment."""
    head: str = ""
    first: int = 0
    """The version that the segment began with."""
    host: dict[int, str] = field(default_factory=dict)
    """By worker."""
    links: bool = False
    """Whether a model of links says how long fetches take."""
    ended: float = -math.inf
    """When the last fetch had ended."""
    sizes: dict[str, int] = field(default_factory=dict)
    """By kind."""
    names: dict[str, int] = field(default_factory=dict)
    """By host: a number for it."""
    versions: Marks = field(default_factory=Marks)
    """(host's number, version) of all that were fetched."""
    coming: dict[tuple[str, int], float] = field(default_factory=dict)
    """By host and version: when it was fetched, if no worker there has it yet."""
    ready: dict[tuple[int, int], float] = field(default_factory=dict)
    """By worker and step: when the update was ready that the head is to fetch."""
    updates: dict[tuple[int, int], float] = field(default_factory=dict)
    """By worker and step: when the update was fetched that has not arrived yet."""
    has: dict[int, _Has] = field(default_factory=dict)
    """By worker on another host than the head."""

    def event(self, kind: str, worker: int, step: int, version: int, at: float, more: str | None) -> None:
        """A fact, or an order to a worker."""
        if kind == "TrainingBegan":
            assert more is not None
            self._begin(FACTS[kind].decode(more))
            return
        if kind == "WorkerJoined":
            self.host[worker] = str(more)
        if self.head in ("", self.host.get(worker)):
            return
        if (had := self.has.pop(worker, None)) is not None and had.again is not None and had.again[1] < at:
            row, ended = had.again
            found = f"at {ended!r} once more, as worker {worker} has it"
            raise Broken(FETCHED_ONCE, f"version {had.version} once to host {self.host[worker]}", found, "fetches", row)
        match kind:
            case "GradientReady":
                self.ready[worker, step] = at
            case "UpdateArrived":
                ended = self.updates.pop((worker, step), math.inf)
                self._before(ended, at, f"the update of step {step} of worker {worker}", self.head)
            case "ParametersTaken":
                self._taken(worker, version, at)
            case "WorkerLeft":
                for steps in (self.ready, self.updates):
                    for key in [key for key in steps if key[0] == worker]:
                        del steps[key]

    def fetch(self, row: int, fetch: Fetch) -> None:
        """An item has been fetched."""
        self.checking.table, self.checking.row = "fetches", row
        if self.checking.run.segments[max(0, self.number)].hosts == 1:
            raise Broken(FETCHES, "none: there is one host", "one")
        links = self.links
        after = fetch.began if links else max(self.ended, fetch.began)  # one as a model says, one as it is told
        if not after <= fetch.ended:
            raise Broken(FETCHES, f"it ends at {after!r} or later", fetch.ended)
        self.ended = fetch.ended
        if fetch.kind == "other":
            return
        beginning = fetch.kind == "version" and fetch.number == self.first and links  # which the model says nothing of
        if not beginning and self.sizes.setdefault(fetch.kind, fetch.bytes) != fetch.bytes:
            raise Broken(FETCHES, f"{self.sizes[fetch.kind]} bytes, as each {fetch.kind}", fetch.bytes)
        if fetch.kind == "version":
            self._version(row, fetch)
        else:
            self._update(fetch)

    def _begin(self, fact: TrainingBegan) -> None:
        self.number += 1
        self.host = {worker: host for worker, host, _ in fact.members}
        self.head, self.first, self.ended = fact.members[0][1], fact.version, -math.inf
        self.versions = Marks()
        for outstanding in (self.coming, self.ready, self.updates, self.has):
            outstanding.clear()
        run = self.checking.run
        self.links = run.scenario_of(run.segments[self.number]).links_hosts
        if run.segments[self.number].hosts == 1:
            self.head = ""

    def _version(self, row: int, fetch: Fetch) -> None:
        what = f"version {fetch.number}, by {fetch.host} from {fetch.source}"
        assert fetch.number is not None
        if fetch.source != self.head or fetch.host == self.head:
            raise Broken(FETCHES, f"a version, from {self.head}", what)
        if fetch.number < self.first:
            raise Broken(FETCHES, f"version {self.first} or a later one", what)
        for worker, had in self.has.items():
            if had.version == fetch.number and self.host[worker] == fetch.host and had.again is None:
                had.again = row, fetch.ended
        self.versions.add(self._number_of(fetch.host), fetch.number)
        self.coming[fetch.host, fetch.number] = fetch.ended

    def _update(self, fetch: Fetch) -> None:
        assert fetch.worker is not None
        assert fetch.number is not None
        key, what = (fetch.worker, fetch.number), f"step {fetch.number} of worker {fetch.worker}"
        if fetch.host != self.head or fetch.source != self.host.get(fetch.worker):
            expected = f"by {self.head} from {self.host.get(fetch.worker)}"
            raise Broken(FETCHES, f"the update of {what}, {expected}", f"by {fetch.host} from {fetch.source}")
        if key in self.updates:
            raise Broken(FETCHED_ONCE, "an update that was not fetched yet", f"{what} once more")
        if key not in self.ready:
            raise Broken(FETCHES, "an update that is ready, and has not arrived", what)
        if fetch.began < (ready := self.ready.pop(key)) - TICK:
            raise Broken(FETCHES, f"{what} is fetched at {ready!r}, when it is ready, or later", fetch.began)
        self.updates[key] = fetch.ended

    def _taken(self, worker: int, version: int, at: float) -> None:
        host = self.host[worker]
        ended = self.coming.pop((host, version), None)
        if version == self.first and self.checking.run.simulated:
            ended = -math.inf  # what training begins with is on all hosts
        elif ended is None:
            ended = -math.inf if (self._number_of(host), version) in self.versions else math.inf
        self._before(ended, at, f"version {version} for worker {worker}", host)
        if version > self.first:  # a script may still change the first one, which is fetched again then
            self.has[worker] = _Has(version)

    def _before(self, ended: float, at: float, what: str, host: str) -> None:
        if ended > at:
            found = "it never was" if ended == math.inf else f"at {ended!r}"
            raise Broken(FETCHED, f"{what} is fetched by {host} before {at!r}", found)

    def _number_of(self, host: str) -> int:
        return self.names.setdefault(host, len(self.names))
