"""Averages of groups with members on several hosts: what moved for each, and which link brought the last part."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from math import inf

from paceline.core.facts import ReduceFailed, ReduceFinished, TrainingBegan
from paceline.core.orders import Reduce
from paceline.records.run_model import Moment, RunModel
from paceline.records.spans import MovedBytes


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

    def __init__(self, ledger: sqlite3.Connection, model: RunModel) -> None:
        """`model`: the run as it is at each moment."""
        self._model = model
        self._rows = ledger.execute(
            "SELECT fact, kind, source, host, worker, number, bytes, began, ended FROM fetches "
            "WHERE kind IN ('partial', 'mean', 'update') ORDER BY rowid"
        )
        self._next = next(self._rows, None)
        self._at_work: dict[int, Average] = {}

    def record(self, moment: Moment) -> Average | None:
        """Take the next moment. Return the average that it ends, if any."""
        ended = None
        match moment.fact:
            case TrainingBegan():
                self._at_work.clear()
            case ReduceFinished(group=group) | ReduceFailed(group=group) if group in self._at_work:
                self._read()
                ended = self._at_work.pop(group)
                ended.ended = moment.fact.at
                ended.outcome = "finished" if isinstance(moment.fact, ReduceFinished) else "failed"
        for order in moment.orders:
            if isinstance(order, Reduce):
                hosts = tuple(dict.fromkeys(self._model.hosts[worker] for worker in order.members))
                if len(hosts) > 1:
                    after = {worker: self._model.finished.get(worker, -1) for worker in order.members}
                    began = Average(order.group, order.what, order.members, hosts, after, moment.fact.at)
                    self._at_work[order.group] = began
        return ended

    def horizon(self) -> float:
        """Return when the oldest average that goes on began. Earlier steps need not be kept."""
        return min((one.began for one in self._at_work.values()), default=inf)

    def _read(self) -> None:
        """Read the fetches before the last fact."""
        while self._next is not None and self._next[0] < self._model.facts:
            _, kind, source, host, worker, number, size, began, ended = self._next
            average = self._at_work.get(number)
            if kind == "update":  # an encoded gradient, and a worker is in one group at a time
                average = next((one for one in self._at_work.values() if worker in one.members), None)
            if average is not None:
                average.moved.setdefault((source, host), {}).setdefault(kind, MovedBytes()).add(size, began, ended)
                average.last = source, host
            self._next = next(self._rows, None)
