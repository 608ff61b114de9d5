"""Links between hosts: the bytes that each carried, how fast, and how long workers waited for them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from paceline.records.reading import read_fetches
from paceline.records.spans import Busy, MovedBytes, RecentSpans

_CAME_LAST = """
    SELECT kind, source, host, count(*) FROM (
        SELECT kind, source, host, max(rowid) FROM fetches WHERE kind IN ('version', 'update', 'sum')
        GROUP BY kind, iif(kind = 'version', host, NULL), worker, number
    ) GROUP BY kind, source, host ORDER BY kind, source, host
"""
"""How often each link brought the last part of a version to its host, or of an update or a sum to all its hosts."""


@dataclass(slots=True, eq=False)
class LinkTraffic:
    """What one direction between two hosts carried, and the waits for it."""

    source: str
    host: str
    bytes: int = 0
    busy: Busy = field(default_factory=Busy)
    """The time in which anything moved."""
    versions: dict[int, float] = field(default_factory=dict)
    """By worker: seconds of waiting for versions over this link.

    A wait for several links is divided among them by how often each brought its part last."""
    updates: dict[int, float] = field(default_factory=dict)
    """By worker: seconds of waiting for its updates over this link, divided in the same way."""
    averages: dict[int, float] = field(default_factory=dict)
    """By worker: seconds of waiting for averages whose last part came over this link."""
    kinds: dict[str, MovedBytes] = field(default_factory=dict)
    """By `FetchTimes.kind`."""

    def __str__(self) -> str:
        return f"{self.source} → {self.host}"

    @property
    def waited(self) -> dict[str, dict[int, float]]:
        """By what was waited for: seconds by worker."""
        return {"versions": self.versions, "updates": self.updates, "averages": self.averages}

    @property
    def rate(self) -> float:
        """Bytes a second while anything moved."""
        return self.bytes / self.busy.seconds if self.busy.seconds else 0.0


def links(
    ledger: sqlite3.Connection,
    hosts: Mapping[int, str],
    averaged: Mapping[tuple[str, str], Mapping[int, float]] | None = None,
) -> list[LinkTraffic]:
    """Return the links of a run that carried anything, in the order of their names. `hosts`: by worker.

    `averaged` is given if each worker owns a replica, where no worker waits for versions and updates. It has, by link
    and worker, the seconds of waiting for averages whose last part came over the link.
    """
    found: dict[tuple[str, str], LinkTraffic] = {}
    for fetch in read_fetches(ledger):
        link = found.setdefault((fetch.source, fetch.host), LinkTraffic(fetch.source, fetch.host))
        link.bytes += fetch.bytes
        link.busy.add(fetch.began, fetch.ended)
        link.kinds.setdefault(fetch.kind, MovedBytes()).add(fetch.bytes, fetch.began, fetch.ended)
    if averaged is not None:
        for ends, waited in averaged.items():
            found[ends].averages.update(sorted(waited.items()))
        return [found[ends] for ends in sorted(found)]
    last: dict[tuple[str, str], dict[LinkTraffic, int]] = {}
    """By kind of item and the worker's host: how often each link brought its part last."""
    for kind, source, host, times in ledger.execute(_CAME_LAST):
        key = ("version", host) if kind == "version" else ("update", source)
        brought, link = last.setdefault(key, {}), found[source, host]
        brought[link] = brought.get(link, 0) + times
    rows = ledger.execute("SELECT worker, sum(push), sum(pull) FROM step_times GROUP BY worker ORDER BY worker")
    for worker, push, pull in rows if found else ():
        host = hosts.get(worker, "")
        for link, share in _shares(last.get(("version", host), {})):
            link.versions[worker] = pull * share
        for link, share in _shares(last.get(("update", host), {})):
            link.updates[worker] = push * share
    return [found[ends] for ends in sorted(found)]


def _shares(times: Mapping[LinkTraffic, int]) -> Iterator[tuple[LinkTraffic, float]]:
    """Yield each link with its share of the sum of `times`."""
    for link, number in times.items():
        yield link, number / sum(times.values())


class InTransit:
    """When a worker's updates and versions were moving between hosts. The ledger is read as far as needed."""

    def __init__(self, ledger: sqlite3.Connection, hosts: Mapping[int, str]) -> None:
        """`hosts`: by worker. It is read by `seconds`."""
        self._hosts = hosts
        self._rows = ledger.execute(
            "SELECT kind, worker, iif(kind = 'sum', source, host), began, ended FROM fetches WHERE kind <> 'other' "
            "ORDER BY began"
        )
        self._next = next(self._rows, None)
        self.spans = RecentSpans()
        """By worker: its updates. By kind and host: versions for the host, and its sums."""

    def read(self, until: float) -> None:
        """Read the fetches that began before `until`."""
        while self._next is not None and self._next[3] < until:
            kind, worker, host, began, ended = self._next
            self.spans.join(worker if kind == "update" else (kind, host), began, ended)
            self._next = next(self._rows, None)

    def seconds(self, worker: int, began: float, ended: float) -> float:
        """Return how long the worker's update, its host's sum, or a version for its host moved in this time."""
        busy, host = Busy(), self._hosts.get(worker, "")
        moved = []
        for key in (worker, ("version", host), ("sum", host)):
            for since, until in self.spans.within(key, began, ended):
                moved.append((max(began, since), min(ended, until)))
        for since, until in sorted(moved, key=itemgetter(1)):
            if until > since:
                busy.add(since, until)
        return busy.seconds
