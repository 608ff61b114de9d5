"""Checks that groups' averages took as long as the model of their links says."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from paceline.records.check.checking import Checking
from paceline.records.check.times import TICK
from paceline.records.violations import AVERAGED, LINK, TRANSFERS, First, Violation
from paceline.scenario.group_links import GroupLinks, ring_bytes

EXACT = 1e-9
"""Tolerance, relative and in seconds. The model computes with the same moments, so it is small."""

_GROUPS = """
    SELECT json_extract(orders.body, '$.group') AS number, 'ordered' AS what, facts.at,
        json_extract(orders.body, '$.members'), facts.id, NULL, NULL, NULL
    FROM orders JOIN facts ON facts.id = orders.fact WHERE orders.kind = 'Reduce'
    UNION ALL SELECT json_extract(body, '$.group'), kind, at, NULL, NULL, NULL, NULL, NULL
    FROM facts WHERE kind IN ('ReduceFinished', 'ReduceFailed')
    UNION ALL SELECT number, 'part', rowid, worker, bytes, began, ended, delivered FROM transfers
    WHERE direction = 'average'
    ORDER BY 1, 2, 3
"""
"""All rows of each group: the order of its average, its end, and each member's part."""

_MOVED = """
    SELECT transfers.number, min(transfers.rowid), transfers.bytes, transfers.began, transfers.ended,
        json_extract(orders.body, '$.members')
    FROM transfers JOIN orders ON orders.kind = 'Reduce' AND json_extract(orders.body, '$.group') = transfers.number
    WHERE transfers.direction = 'average' GROUP BY transfers.number ORDER BY transfers.began, transfers.number
"""


def averages(checking: Checking) -> None:
    """Compare the transfers of a real run's averages with the facts and with the links' model."""
    if checking.replays or checking.run.simulated:
        return
    links = GroupLinks.of(checking.run.scenario, checking.run.workers)
    if links is None or checking.run.choice.spec.family != "decentralized":
        return
    run = checking.run
    if any(run.scenario_of(segment) != run.scenario for segment in run.segments):
        checking.unproved.append("the links' model was not asked again: the run went on with another scenario")
        return
    checking.table = "transfers"
    unknown: list[tuple[float, float]] = []  # when averages without noted transfers may have gone on
    sizes: dict[int, int] = {}
    moved = 0
    for group, rows in groupby(checking.run.ledger.execute(_GROUPS), key=itemgetter(0)):
        its: dict[str, list[tuple[Any, ...]]] = {"ordered": [], "part": [], "ReduceFinished": [], "ReduceFailed": []}
        for _, what, *row in rows:
            its[what].append(tuple(row))
        parts = its["part"]
        if not its["ordered"]:
            if parts:
                raise Violation(TRANSFERS, "an average that was ordered", f"group {group}", "transfers", parts[0][0])
            continue
        at, members, fact, *_ = its["ordered"][0]
        if parts:
            moved += 1
            ended = its["ReduceFinished"][0][0] if its["ReduceFinished"] else None
            _one(checking, group, parts, json.loads(members), at, ended, sizes)
        elif its["ReduceFinished"]:
            raise Violation(TRANSFERS, f"a part of each member in the average of group {group}", "none")
        elif not its["ReduceFailed"]:
            unknown.append((at, min((end.at for end in checking.run.segments if end.fact > fact), default=math.inf)))
    again = _model(checking, links, unknown)
    if moved:
        took = f"{again:,} of {moved:,} averages take what the model of their links gives"
        checking.proved.append(f"{took}, asked again")


def _one(
    checking: Checking,
    group: int,
    parts: Sequence[tuple[Any, ...]],
    members: list[int],
    at: float,
    averaged: float | None,
    sizes: dict[int, int],
) -> None:
    """Check one average: each member has a part at the same time, and the fact comes after the bytes have moved."""
    network = checking.run.scenario.network
    message = None if network is None else network.message
    checking.row, _, size, began, ended, delivered = first = parts[0]
    if [part[1] for part in parts] != members:
        found = tuple(part[1] for part in parts)
        raise Violation(TRANSFERS, f"a part of each member in the average of group {group}: {tuple(members)}", found)
    for checking.row, _, *part in parts:
        if tuple(part) != first[2:]:
            raise Violation(LINK, f"all of group {group} move as much, at the same time: {first[2:]}", tuple(part))
    whole = sizes.setdefault(len(members), size) if message is None else ring_bytes(len(members), message)
    if size != whole:
        raise Violation(LINK, f"{whole} bytes, as all in groups of {len(members)}", size)
    if began < at - TICK:
        raise Violation(LINK, f"group {group} averages from {at!r} on, when that was ordered, or later", began)
    if delivered < ended - TICK:
        raise Violation(AVERAGED, f"the average of group {group} is acted on at {ended!r} or later", delivered)
    came = ended if averaged is None else averaged
    if came != ended and came < max(ended, delivered):
        raise Violation(AVERAGED, f"group {group} has averaged at {ended!r}, or after {delivered!r}", came)
    checking.row = None


def _model(checking: Checking, links: GroupLinks, unknown: Sequence[tuple[float, float]]) -> int:
    """Compute the averages' ends with the model. Return how many are confirmed; unknown averages may disturb others."""
    under_way: dict[int, tuple[int, float, float]] = {}
    """By group: the row of its first part, and when it began and ended."""
    wrong, again = First(), 0

    def finish(until: float) -> int:
        confirmed = 0
        while (moved := links.finish(until)) is not None:
            row, began, ended = under_way.pop(moved.group)
            if any(ended > since and began < before for since, before in unknown):
                continue
            confirmed += 1
            if not math.isclose(moved.ended, ended, rel_tol=EXACT, abs_tol=EXACT):
                expected = f"the average of group {moved.group} ends at {moved.ended!r}"
                wrong.note(Violation(LINK, expected, ended, "transfers", row), row)
        return confirmed

    for group, row, size, began, ended, members in checking.run.ledger.execute(_MOVED):
        again += finish(began)
        under_way[group] = row, began, ended
        links.begin(group, tuple(json.loads(members)), size, began)
    again += finish(math.inf)
    wrong.settle()
    return again
