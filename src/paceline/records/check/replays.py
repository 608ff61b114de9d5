"""Checks what a replay relies on: checksums, steps that were not made, and transfers."""

from __future__ import annotations

from paceline.records.bitsets import Bitset
from paceline.records.check.checking import Checking
from paceline.records.violations import CHECKSUMS, READABLE, TRANSFERS, UNDONE, First, Violation, count
from paceline.scenario.network import SharedLink


def for_replay(checking: Checking) -> None:
    """Check `checksums`, `undone` and `transfers` against facts and orders."""
    _checksums(checking)
    _undone(checking)
    _transfers(checking)


def _checksums(checking: Checking) -> None:
    checking.table = "checksums"
    first, last = checking.rules.first or 0, checking.rules.version or 0
    seen = Bitset()
    rows = checking.run.ledger.execute("SELECT rowid, version, checksum FROM checksums ORDER BY rowid")
    for checking.row, version, checksum in rows:
        if not first < version <= last or (0, version) in seen:
            what = "once more" if (0, version) in seen else "which no order made"
            raise Violation(CHECKSUMS, "a version that was made, and not noted yet", f"version {version}, {what}")
        if not isinstance(checksum, str) or len(checksum) != 16:
            raise Violation(READABLE, "16 hexadecimal digits", checksum)
        seen.add(0, version)
    checking.row = None
    if checking.completed and checking.trained and checking.run.choice.spec.family == "parameter-server":
        gone = next((version for version in range(first + 1, last + 1) if (0, version) not in seen), None)
        if gone is not None:
            raise Violation(CHECKSUMS, f"one of version {gone}", "none")
    if seen:
        checking.proved.append(f"{count(len(seen), 'checksum')}, one of each version")


def _undone(checking: Checking) -> None:
    checking.table = "undone"
    may_be = checking.rules.may_be_undone | {
        (worker, step) for worker, steps in checking.rules.stepping.items() for step in steps if not checking.completed
    }
    rows = checking.run.ledger.execute("SELECT rowid, worker, step FROM undone ORDER BY rowid")
    for checking.row, worker, step in rows:
        if (worker, step) not in may_be:
            raise Violation(UNDONE, "such a step, once", f"step {step} of worker {worker}")
        may_be.discard((worker, step))
    checking.row = None


def _transfers(checking: Checking) -> None:
    checking.table = "transfers"
    first, before, noted = First(), None, 0
    columns = "worker, direction, number, began, ended"
    for *transfer, row in checking.run.ledger.execute(f"SELECT {columns}, rowid FROM transfers ORDER BY {columns}, 6"):
        if transfer == before:
            broken = Violation(TRANSFERS, "another one", f"{_transfer(*transfer[:3])} once more", "transfers", row)
            first.note(broken, row)
        before, noted = transfer, noted + 1
    first.settle()
    run = checking.run
    paced = all(SharedLink.of(run.scenario_of(segment).network) is not None for segment in run.segments)
    if not paced or checking.run.choice.spec.family != "parameter-server":
        return
    if not noted and checking.trained and checking.run.simulated:
        return  # in a replay the times are the recorded ones, and nothing was transferred at them
    gone = checking.run.ledger.execute(_NOT_TRANSFERRED).fetchone()
    if gone is not None:
        *key, came, found = gone
        raise Violation(TRANSFERS, f"{_transfer(*key)}, {count(came, 'time')}", found)


_NOT_TRANSFERRED = """
    SELECT worker, direction, number, sum(came), sum(noted) FROM (
        SELECT worker, 'push' AS direction, step AS number, 1 AS came, 0 AS noted, id
        FROM facts WHERE kind = 'UpdateArrived'
        UNION ALL SELECT worker, 'pull', version, 1, 0, id FROM facts WHERE kind = 'ParametersTaken'
        UNION ALL SELECT worker, direction, number, 0, 1, NULL FROM transfers
    ) GROUP BY worker, direction, number HAVING sum(noted) < sum(came) ORDER BY min(id) LIMIT 1
"""
"""The first update or version that came more often than it was transferred."""


def _transfer(worker: int, direction: str, number: int) -> str:
    of = {"push": "step", "pull": "version", "average": "group"}
    return f"the {direction} of {of[direction]} {number} by worker {worker}"
