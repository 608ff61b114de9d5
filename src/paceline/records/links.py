"""Links between hosts: how much moved over each, how fast, and how long workers waited for that."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.records.reading import read_fetches
from paceline.records.times import Busy

LEAST = 1000
"""How many spans are kept before those that no longer matter are forgotten."""


@dataclass(slots=True)
class Link:
    """One way between two hosts."""

    source: str
    host: str
    bytes: int = 0
    busy: Busy = field(default_factory=Busy)
    """The time in which anything moved over it."""
    versions: dict[int, float] = field(default_factory=dict)
    """By worker: seconds that it waited for versions over this link."""
    updates: dict[int, float] = field(default_factory=dict)
    """By worker: seconds that it waited for its updates to go over this link."""

    def __str__(self) -> str:
        return f"{self.source} → {self.host}"

    @property
    def rate(self) -> float:
        """Bytes a second, while anything moved."""
        return self.bytes / self.busy.seconds if self.busy.seconds else 0.0


def links(ledger: sqlite3.Connection, hosts: Mapping[int, str]) -> list[Link]:
    """All links of a run that anything moved over, in the order of their names. `hosts`: by worker."""
    found: dict[tuple[str, str], Link] = {}
    of: dict[tuple[str, str], Link] = {}
    """By kind of item, and the host that is not the head."""
    for fetch in read_fetches(ledger):
        link = found.setdefault((fetch.source, fetch.host), Link(fetch.source, fetch.host))
        link.bytes += fetch.bytes
        link.busy.add(fetch.began, fetch.ended)
        of[fetch.kind, fetch.source if fetch.kind == "update" else fetch.host] = link
    rows = ledger.execute("SELECT worker, sum(push), sum(pull) FROM step_times GROUP BY worker ORDER BY worker")
    for worker, push, pull in rows if found else ():
        host = hosts.get(worker, "")
        if ("version", host) in of:
            of["version", host].versions[worker] = pull
        if ("update", host) in of:
            of["update", host].updates[worker] = push
    return [found[ends] for ends in sorted(found)]


class Moving:
    """When anything of a worker's was under way between hosts. Read in the order of time, as far as is needed."""

    def __init__(self, ledger: sqlite3.Connection, hosts: Mapping[int, str]) -> None:
        """`hosts`: by worker, as it is known when a worker is asked for."""
        self._hosts = hosts
        self._rows = ledger.execute(
            "SELECT kind, worker, host, began, ended FROM fetches WHERE kind <> 'other' ORDER BY began"
        )
        self._next = next(self._rows, None)
        self._spans: dict[int | str, list[tuple[float, float]]] = {}
        """By worker, its updates; by host, its versions. In order, and none touch."""
        self._kept = 0
        self._most = LEAST

    def read(self, until: float) -> None:
        """Read what began before then."""
        while self._next is not None and self._next[3] < until:
            kind, worker, host, began, ended = self._next
            spans = self._spans.setdefault(worker if kind == "update" else host, [])
            if spans and spans[-1][1] >= began:
                spans[-1] = spans[-1][0], max(spans[-1][1], ended)
            else:
                spans.append((began, ended))
                self._kept += 1
            self._next = next(self._rows, None)

    def seconds(self, worker: int, began: float, ended: float) -> float:
        """How long in this time the worker's update, or a version for its host, was under way."""
        busy = Busy()
        spans = [*self._within(worker, began, ended), *self._within(self._hosts.get(worker, ""), began, ended)]
        for since, until in sorted(spans, key=lambda span: span[1]):
            busy.add(since, until)
        return busy.seconds

    def forget(self, before: float) -> None:
        """Forget what ended before then, now and then."""
        if self._kept <= self._most:
            return
        for spans in self._spans.values():
            del spans[: max(0, bisect_right(spans, (before, before)) - 1)]
        self._kept = sum(map(len, self._spans.values()))
        self._most = max(LEAST, 2 * self._kept)

    def _within(self, key: int | str, began: float, ended: float) -> list[tuple[float, float]]:
        spans = self._spans.get(key, [])
        at, found = max(0, bisect_right(spans, (began, began)) - 1), []
        while at < len(spans) and spans[at][0] < ended:
            since, until = max(began, spans[at][0]), min(ended, spans[at][1])
            if until > since:
                found.append((since, until))
            at += 1
        return found
