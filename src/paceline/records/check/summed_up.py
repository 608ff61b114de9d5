"""Checks the summary against the ledger."""

from __future__ import annotations

import math
from typing import Any

from paceline.records.check.checking import Checking
from paceline.records.reading import SUMMARY, measure
from paceline.records.summary import Summary
from paceline.records.violations import SUMMED_UP, Violation

TOLERANCE = 1e-6
"""Relative tolerance of measured seconds, of which a summary has nine digits."""
SINCE = frozenset(("over_optimum", "computed", "gradient_seconds", "scalars"))
"""Keys that summaries of earlier versions lack, besides parameters of protocols that came later."""


def summary(checking: Checking, summary: Summary) -> None:
    """Compute the summary anew from the ledger, and compare."""

    def at(table: str) -> None:
        checking.table, checking.row = table, None

    measure(checking.run.ledger, checking.tally, at, metrics=checking.run.metrics)
    at(SUMMARY)
    end = checking.end
    assert end is not None  # `ending` has made sure of that
    again = checking.tally.summary(
        protocol=checking.run.choice,
        workers=checking.run.workers,
        threads=checking.run.config.get("threads"),
        seed=checking.run.seed,
        outcome=end["outcome"],
        compress=checking.run.config.get("compress"),
        error=end["error"],
        stopped=end.get("stopped"),
        ended=end["at"],
        samples_missed=summary.get("samples_missed") or 0,
        final_parameters_sha256=_final(checking),
        targets=checking.run.targets,
    )
    again["paceline"] = checking.run.config.get("paceline")
    since = SINCE | (again["protocol"]["config"].keys() - checking.run.config["protocol"]["config"].keys())
    for key, value in _as_old(again, summary, since).items():
        if difference := _difference(key, value, summary.get(key), since):
            raise Violation(SUMMED_UP, difference[1], difference[2], SUMMARY, difference[0])
    for key in summary:
        if key not in again:
            raise Violation(SUMMED_UP, f"nothing called {key}", summary[key], SUMMARY, key)
    checking.proved.append("the summary is what the ledger comes to, staleness and each worker's share included")


def _final(checking: Checking) -> str | None:
    """Return the hash of the last version, if it was recorded."""
    if checking.resumed_in_vain:  # a run takes up its earlier recordings only when it trains on
        return None
    rows: dict[int, str] = dict(checking.run.ledger.execute("SELECT version, sha256 FROM versions"))
    summary = checking.run.summary or {}
    cut_off = checking.run.choice.has_replicas and not checking.completed
    if cut_off and summary.get("final_parameters_sha256") is None:
        return None  # the last mean may not have been written completely
    query = "SELECT max(version) FROM checksums" if not checking.run.choice.has_replicas else "SELECT NULL"
    (made,) = checking.run.ledger.execute(query).fetchone()
    return rows.get(max(rows, default=-1) if made is None else made)


def _as_old(expected: dict[str, Any], found: dict[str, Any], since: frozenset[str]) -> dict[str, Any]:
    """Return it without what an earlier version didn't write: keys that have come since."""
    return {key: value for key, value in expected.items() if key in found or key not in since}


def _difference(path: str, expected: Any, found: Any, since: frozenset[str]) -> tuple[str, Any, Any] | None:
    """Return the path of the first difference of two JSON values, and both values there."""
    if isinstance(expected, dict) and isinstance(found, dict):
        expected = _as_old(expected, found, since)
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        parts = [(f"{path}.{key}", expected[key], found[key]) for key in expected]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        parts = [(f"{path}[{at}]", one, other) for at, (one, other) in enumerate(zip(expected, found, strict=True))]
    elif isinstance(expected, float) and isinstance(found, float | int):
        same = math.isclose(expected, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        return None if same else (path, expected, found)
    else:
        return None if expected == found else (path, expected, found)
    return next(filter(None, (_difference(*part, since) for part in parts)), None)
