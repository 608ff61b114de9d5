"""Checks what a replay relies on: checksums, and steps that were not made."""

from __future__ import annotations

from paceline.core.phrases import count
from paceline.records.bitsets import Bitset
from paceline.records.check.checking import Checking
from paceline.records.violations import CHECKSUMS, READABLE, UNDONE, Violation


def for_replay(checking: Checking) -> None:
    """Check `checksums` and `undone` against facts and orders."""
    _checksums(checking)
    _undone(checking)


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
    if checking.completed and checking.trained and not checking.run.choice.has_replicas:
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
