"""What a replay relies on: checksums, steps that were not made, transfers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from paceline.records.check.checking import Checking
from paceline.records.check.rules import CHECKSUMS, READABLE, TRANSFERS, UNDONE, Broken, count


def for_replay(checking: Checking) -> None:
    """`checksums`, `undone` and `transfers` have each thing that the facts and orders have, once."""
    _checksums(checking)
    _undone(checking)
    _transfers(checking)


def _checksums(checking: Checking) -> None:
    checking.table = "checksums"
    first, last = checking.rules.first or 0, checking.rules.version or 0
    seen: set[int] = set()
    rows = checking.run.ledger.execute("SELECT rowid, version, checksum FROM checksums ORDER BY rowid")
    for checking.row, version, checksum in rows:
        if not first < version <= last or version in seen:
            what = "once more" if version in seen else "which no order made"
            raise Broken(CHECKSUMS, "a version that was made, and not noted yet", f"version {version}, {what}")
        if not isinstance(checksum, str) or len(checksum) != 16:
            raise Broken(READABLE, "16 hexadecimal digits", checksum)
        seen.add(version)
    checking.row = None
    if checking.completed and checking.trained and checking.run.choice.spec.family == "parameter-server":
        gone = next((version for version in range(first + 1, last + 1) if version not in seen), None)
        if gone is not None:
            raise Broken(CHECKSUMS, f"one of version {gone}", "none")
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
            raise Broken(UNDONE, "such a step, once", f"step {step} of worker {worker}")
        may_be.discard((worker, step))
    checking.row = None


def _transfers(checking: Checking) -> None:
    checking.table = "transfers"
    noted: Counter[tuple[int, str, int]] = Counter()
    seen: set[tuple[Any, ...]] = set()
    rows = checking.run.ledger.execute("SELECT rowid, worker, direction, number, began, ended FROM transfers")
    for checking.row, *transfer in rows:
        if (key := tuple(transfer)) in seen:
            raise Broken(TRANSFERS, "another one", f"{_transfer(*transfer[:3])} once more")
        seen.add(key)
        noted[transfer[0], transfer[1], transfer[2]] += 1
    checking.row = None
    network = checking.run.scenario.network
    if network is None or checking.run.choice.spec.family != "parameter-server":
        return
    if not noted and checking.trained and checking.run.simulated:
        return  # in a replay the times are the recorded ones, and nothing was transferred at them
    for key, times in checking.moments.came.items():
        if noted[key] < len(times):
            raise Broken(TRANSFERS, f"{_transfer(*key)}, {count(len(times), 'time')}", noted[key])


def _transfer(worker: int, direction: str, number: int) -> str:
    of = {"push": "step", "pull": "version", "average": "group"}
    return f"the {direction} of {of[direction]} {number} by worker {worker}"
