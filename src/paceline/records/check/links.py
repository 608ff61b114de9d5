"""Whether what hosts fetched took what the model of their links says, given when it began."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from paceline.cluster.host_links import HostLinks
from paceline.cluster.scenario import Scenario
from paceline.records.broken import LINK, Broken, First, count
from paceline.records.check.checking import Checking, other_machines
from paceline.records.check.times import EXACT

Span = tuple[float, float]

_ROWS = """
    SELECT rowid, source, host, kind, worker, number, bytes, began, ended FROM fetches
    WHERE kind = 'update' OR (kind = 'version' AND number > 0 AND NOT EXISTS (
        SELECT 1 FROM segments WHERE segments.version = fetches.number AND segments.fact <= fetches.fact))
    ORDER BY began, rowid
"""
"""What the model is asked about. What a segment begins with is not."""
_ON_THE_WAY = """
    SELECT id AS fact, 0 AS part, at, worker, kind, iif(kind = 'UpdateArrived', step, version) FROM facts
    WHERE kind IN ('TrainingBegan', 'WorkerLeft', 'UpdateArrived', 'ParametersTaken')
    UNION ALL SELECT facts.id, 1, facts.at, orders.worker, orders.kind,
        iif(orders.kind = 'StartPush', orders.step, orders.version)
    FROM orders JOIN facts ON facts.id = orders.fact WHERE orders.kind IN ('StartPush', 'StartPull')
        OR (orders.kind = 'Release' AND json_extract(orders.body, '$.parameters') = 'pull')
    ORDER BY fact, part
"""
"""What is ordered to move, what has come, and who leaves, in order."""


def links(checking: Checking) -> None:
    """Ask the model of the links again when each fetch ends. In a real run the bytes may come later than it says."""
    run = checking.run
    if not run.scenario.links_hosts or checking.replays or run.choice.spec.family != "parameter-server":
        return
    if other_machines(checking):
        return
    checking.table = "fetches"
    never_came = list(_never_came(checking))
    period, fetches, again = _Period(run.scenario, run.simulated), 0, 0
    for row in run.ledger.execute(_ROWS):
        if period.idle_by(row[7]):
            again += period.conclude(never_came)
            period = _Period(run.scenario, run.simulated)
        period.take(row)
        fetches += 1
    again += period.conclude(never_came)
    if fetches:
        of = count(fetches, "fetch", "fetches")
        checking.proved.append(f"{again:,} of {of} between hosts take what the links' model gives, asked again")


def _never_came(checking: Checking) -> Iterator[Span]:
    """Yield when something may have been on its way that was ordered, and has no row."""
    ordered: dict[tuple[int, str, int], float] = {}
    for _, _, at, worker, kind, number in checking.run.ledger.execute(_ON_THE_WAY):
        match kind:
            case "UpdateArrived":
                ordered.pop((worker, "push", number), None)
            case "ParametersTaken":
                ordered.pop((worker, "pull", number), None)
            case "TrainingBegan" | "WorkerLeft":
                for key in [key for key in ordered if kind == "TrainingBegan" or key[0] == worker]:
                    yield ordered.pop(key), at
            case _:
                ordered[worker, "push" if kind == "StartPush" else "pull", number] = at
    for at in ordered.values():
        yield at, math.inf


class _Period:
    """Fetches that used the links without a pause, and the model of those, which is asked again."""

    def __init__(self, scenario: Scenario, exact: bool) -> None:
        """`exact`: whether nothing comes later than the model says."""
        self._links = HostLinks.of(scenario)
        self._exact = exact
        self._under_way: dict[int, tuple[Any, ...]] = {}
        """By the links' number: rows."""
        self._began, self._last = math.inf, -math.inf
        self._wrong = First()
        self._fetches = 0

    def idle_by(self, at: float) -> bool:
        """Whether all that has begun has come by then."""
        self._finish(at)
        return not self._under_way

    def take(self, row: tuple[Any, ...]) -> None:
        """Let the next fetch begin."""
        self._under_way[self._links.begin(row[1], row[2], row[6], row[7])] = row
        self._began = min(self._began, row[7])
        self._fetches += 1

    def conclude(self, unknown: Iterable[Span]) -> int:
        """Return how many fetches the model confirms. Raises Broken if it does not confirm one.

        None are, if what never came has used part of the links, at times that are unknown.
        """
        self._finish(math.inf)
        if any(since < self._last and until > self._began for since, until in unknown):
            return 0
        self._wrong.settle()
        return self._fetches

    def _finish(self, until: float) -> None:
        while (one := self._links.finish(until)) is not None:
            number, source, host, kind, worker, item, _, _, ended = self._under_way.pop(one.number)
            self._last = max(self._last, one.ended)
            early = ended < one.ended - EXACT
            if early or (self._exact and ended > one.ended + EXACT):
                what = f"version {item}" if kind == "version" else f"the update of step {item} of worker {worker}"
                when = f"at {one.ended!r}" + ("" if self._exact else ", or later")
                broken = Broken(LINK, f"{what} comes from {source} to {host} {when}", ended, "fetches", number)
                self._wrong.note(broken, number)
