"""The command to type next, from how a run ended. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from paceline.records.summary import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended, as far as it decides what to do next."""

    outcome: Outcome
    folder: Path
    has_ledger: bool = True
    """False: it was the baseline, of which nothing is explained."""
    steps: int = 0
    can_go_on: bool = False
    """Whether a snapshot was written."""
    failed_log: Path | None = None
    """What the worker has printed whose script failed, if it has printed anything."""


def after_run(end: RunEnd) -> str:
    """Return the line to print; empty if there is nothing to do with the run's folder."""
    resume = f"paceline run --resume {_quoted(end.folder)}"
    if end.outcome in ("completed", "diverged"):
        return f"next: paceline explain {_quoted(end.folder)}" if end.has_ledger and end.steps else ""
    if end.failed_log is not None:
        goes_on = f"; if it needs no change: {resume}" if end.can_go_on else ""
        return f"next: read {_quoted(end.failed_log)}, and mend the script{goes_on}"
    return f"next: {resume}" if end.can_go_on else ""


def after_comparison(page: Path) -> str:
    """Return the line to print once all runs of a comparison have ended, and this page shows them."""
    return f"next: open {_quoted(page)}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
