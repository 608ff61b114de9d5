"""Whether averages of groups took what the model of their links says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.cluster.group_links import GroupLinks, ring_bytes
from paceline.records.check.checking import Checking
from paceline.records.check.rules import AVERAGED, DELIVERED, LINK, TRANSFERS, Broken
from paceline.records.check.times import EXACT, TICK


def averages(checking: Checking) -> None:
    """Compare the transfers of a real run's averages with the facts, and ask the links' model again when they end."""
    if checking.replays or checking.run.simulated:
        return
    links = GroupLinks.of(checking.run.scenario, checking.run.workers)
    if links is None or checking.run.choice.spec.family != "decentralized":
        return
    checking.table = "transfers"
    parts: dict[int, list[tuple[Any, ...]]] = {}
    rows = checking.run.ledger.execute(
        "SELECT rowid, worker, number, bytes, began, ended, delivered FROM transfers WHERE direction = 'average' "
        "ORDER BY rowid"
    )
    for row in rows:
        parts.setdefault(row[2], []).append(row)
    sizes: dict[int, int] = {}
    unknown = math.inf  # when averages may have begun whose transfers are not noted
    for group, (members, at) in checking.moments.reduced.items():
        if group in parts:
            _one(checking, parts[group], members, at, sizes)
        elif group in checking.moments.averaged:
            raise Broken(TRANSFERS, f"a part of each member in the average of group {group}", "none")
        elif group not in checking.moments.failed:
            unknown = min(unknown, at)
    for group, its_parts in parts.items():
        if group not in checking.moments.reduced:
            raise Broken(TRANSFERS, "an average that was ordered", f"group {group}", "transfers", its_parts[0][0])
    again = _model(checking, links, parts, unknown)
    if parts:
        took = f"{again:,} of {len(parts):,} averages take what the model of their links gives"
        checking.proved.append(f"{took}, asked again")


def _one(
    checking: Checking, parts: Sequence[tuple[Any, ...]], members: tuple[int, ...], at: float, sizes: dict[int, int]
) -> None:
    """One average: each member has a part of it, at the same time, and its fact comes when the bytes have moved."""
    message = checking.run.scenario.network.message if checking.run.scenario.network else None
    checking.row, _, group, size, began, ended, delivered = first = parts[0]
    if [part[1] for part in parts] != list(members):
        raise Broken(TRANSFERS, f"a part of each member in the average of group {group}: {members}", _workers(parts))
    for checking.row, *part in parts:
        if part[1:] != list(first[2:]):
            raise Broken(LINK, f"all of group {group} move as much, at the same time: {first[3:]}", tuple(part[2:]))
    whole = sizes.setdefault(len(members), size) if message is None else ring_bytes(len(members), message)
    if size != whole:
        raise Broken(LINK, f"{whole} bytes, as all in groups of {len(members)}", size)
    if began < at - TICK:
        raise Broken(LINK, f"group {group} averages from {at!r} on, when that was ordered, or later", began)
    if delivered < ended - TICK:
        raise Broken(DELIVERED, f"the average of group {group} is acted on at {ended!r} or later", delivered)
    came = checking.moments.averaged.get(group, ended)
    if came != ended and came < max(ended, delivered):
        raise Broken(AVERAGED, f"group {group} has averaged at {ended!r}, or after {delivered!r}", came)
    checking.row = None


def _model(
    checking: Checking, links: GroupLinks, parts: Mapping[int, Sequence[tuple[Any, ...]]], unknown: float
) -> int:
    """Ask the model again, given when averages began. Return how many ended before anything unknown."""
    ends: dict[int, float] = {}

    def finish(until: float) -> None:
        while (moved := links.finish(until)) is not None:
            ends[moved.group] = moved.ended

    for group, (first, *_) in sorted(parts.items(), key=lambda item: (item[1][0][4], item[0])):
        finish(first[4])
        links.begin(group, checking.moments.reduced[group][0], first[3], first[4])
    finish(math.inf)
    again = 0
    for group, (first, *_) in parts.items():
        if first[5] > unknown:
            continue
        again += 1
        if not math.isclose(ends[group], first[5], rel_tol=EXACT, abs_tol=EXACT):
            raise Broken(LINK, f"the average of group {group} ends at {ends[group]!r}", first[5], "transfers", first[0])
    return again


def _workers(parts: Sequence[tuple[Any, ...]]) -> tuple[int, ...]:
    return tuple(part[1] for part in parts)
