"""The command to type once a run has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.cli.what_next import RunEnd, after_comparison, after_run

RUN = Path("runs/first run")
RESUME = "paceline run --resume 'runs/first run'"


@pytest.mark.parametrize(
    ("end", "line"),
    [
        ({"outcome": "completed", "steps": 8}, "next: paceline explain 'runs/first run'"),
        ({"outcome": "completed", "steps": 8, "can_go_on": True}, "next: paceline explain 'runs/first run'"),
        ({"outcome": "diverged", "steps": 8}, "next: paceline explain 'runs/first run'"),
        ({"outcome": "completed", "steps": 0}, ""),
        ({"outcome": "completed", "steps": 8, "has_ledger": False}, ""),
        ({"outcome": "interrupted", "steps": 8, "can_go_on": True}, f"next: {RESUME}"),
        ({"outcome": "interrupted", "steps": 0}, ""),
        ({"outcome": "failed", "steps": 8}, ""),
        ({"outcome": "failed", "steps": 8, "can_go_on": True}, f"next: {RESUME}"),
        (
            {"outcome": "failed", "failed_log": RUN / "worker-1.log"},
            "next: read 'runs/first run/worker-1.log', and mend the script",
        ),
        (
            {"outcome": "failed", "failed_log": RUN / "worker-1.log", "can_go_on": True},
            f"next: read 'runs/first run/worker-1.log', and mend the script; if it needs no change: {RESUME}",
        ),
    ],
)
def test_what_comes_next_follows_from_how_a_run_ended(end: dict[str, Any], line: str) -> None:
    assert after_run(RunEnd(folder=RUN, **end)) == line


def test_after_a_comparison_its_page_is_opened() -> None:
    assert after_comparison(Path("runs/both/report.html")) == "next: open runs/both/report.html"
