"""Outputs for tests that are about what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from paceline.host.worker_output import WorkerOutput


def output_to(
    shown_on: TextIO, folder: Path = Path(), *, shows: bool = True, prefix: bool = False, **given: Any
) -> WorkerOutput:
    """An output with logs in that folder. `shows`: whether it shows what workers print."""
    return WorkerOutput(
        log=lambda worker: folder / f"worker-{worker}.log",
        shows=lambda worker: shows,
        shown_on=shown_on,
        prefix=prefix,
        **given,
    )
