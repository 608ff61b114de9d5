"""Averages of groups with members on several hosts: what moved for each, and which link brought the last part."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from paceline.core.facts import Fact, GradientReady, ReduceFailed, ReduceFinished, TrainingBegan
from paceline.core.orders import Order, Reduce
from paceline.records.times import Busy


@dataclass(slots=True)
class MovedBytes:
    """Bytes that moved one way between two hosts."""

    bytes: int = 0
    busy: Busy = field(default_factory=Busy)
    """The time in which any of them moved."""

    def add(self, size: int, began: float, ended: float) -> None:
        """Count a fetch. Fetches are added in the order of their ends."""
        self.bytes += size
        self.busy.add(began, ended)


@dataclass(slots=True)
class Average:
    """An average of a group with members on several hosts."""

    group: int
    what: str
    """`parameters` or `gradients`."""
    members: tuple[int, ...]
    hosts: tuple[str, ...]
    """In the order of their sums."""
    after: dict[int, int]
    """By member: the last step that it had computed when the average was ordered, or -1."""
    began: float
    ended: float = inf
    outcome: str | None = None
    """`finished` or `failed`."""
    moved: dict[tuple[str, str], dict[str, MovedBytes]] = field(default_factory=dict)
    """By source and host, and by kind."""
    last: tuple[str, str] | None = None
    """The link that brought the last part; None if nothing has moved."""
    waited: dict[int, float] = field(default_factory=dict)
    """By member: seconds between its ready gradient and its next step, during the average."""


class AverageTracker:
    """Finds all averages between hosts of a run, in the order of their ends. Keeps only those that go on."""

    def __init__(self, ledger: sqlite3.Connection, hosts: Mapping[int, str]) -> None:
        """`hosts`: by worker. It is read when a group begins."""
        self._hosts = hosts
        self._rows = ledger.execute(
            "SELECT fact, kind, source, host, number, bytes, began, ended FROM fetches "
            "WHERE kind IN ('partial', 'mean') ORDER BY rowid"
        )
        self._next = next(self._rows, None)
        self._number = 0
        self._finished: dict[int, int] = {}
        self._at_work: dict[int, Average] = {}

    def record(self, fact: Fact, orders: Iterable[Order]) -> Average | None:
        """Take the next fact with its orders. Return the average that it ends, if any."""
        self._number += 1
        ended = None
        match fact:
            case TrainingBegan():
                self._at_work.clear()
            case GradientReady(worker=worker, step=step):
                self._finished[worker] = step
            case ReduceFinished(group=group) | ReduceFailed(group=group) if group in self._at_work:
                self._read()
                ended = self._at_work.pop(group)
                ended.ended, ended.outcome = fact.at, "finished" if isinstance(fact, ReduceFinished) else "failed"
        for order in orders:
            if isinstance(order, Reduce):
                hosts = tuple(dict.fromkeys(self._hosts[worker] for worker in order.members))
                after = {worker: self._finished.get(worker, -1) for worker in order.members}
                if len(hosts) > 1:
                    began = Average(order.group, order.what, order.members, hosts, after, fact.at)
                    self._at_work[order.group] = began
        return ended

    def horizon(self) -> float:
        """Return when the oldest average that goes on began. Earlier steps need not be kept."""
        return min((one.began for one in self._at_work.values()), default=inf)

    def _read(self) -> None:
        """Read the fetches before the last fact."""
        while self._next is not None and self._next[0] < self._number:
            _, kind, source, host, group, size, began, ended = self._next
            if (average := self._at_work.get(group)) is not None:
                average.moved.setdefault((source, host), {}).setdefault(kind, MovedBytes()).add(size, began, ended)
                average.last = source, host
            self._next = next(self._rows, None)
