"""A run that is resumed is refused if it is already where a limit would end it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigError
from paceline.records.snapshots import FORMAT, SnapshotState
from paceline.runs.resume import check_limits

STATE = SnapshotState(
    format=FORMAT, fact=90, version=40, at=41.25, steps=40, samples=640, memory=None, leases={}, epoch=2,
    next_steps={}, scalars={}, files={},
)  # fmt: skip


def refusal(limits: dict[str, Any], before: int | None = 4) -> str:
    try:
        check_limits(Path("runs/first"), {"limits": {"epochs": before}}, limits, STATE)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_seconds": 10.0}, "--max-seconds is 10, and the run has trained for 41.2 s already; give more"),
        ({"max_seconds": 41.25}, "--max-seconds is 41.25, and the run has trained for 41.2 s already; give more"),
        ({"max_steps": 40}, "--max-steps is 40, and the run has trained for 40 steps already; give more"),
        ({"epochs": 2}, "--epochs is 2, and the run has trained for 2 epochs already; give more"),
    ],
)
def test_a_limit_that_is_reached_already_is_refused(limits: dict[str, Any], said: str) -> None:
    assert refusal(limits) == f"--resume runs/first: {said}"


@pytest.mark.parametrize(
    "limits", [{}, {"max_seconds": 41.5}, {"max_steps": 41}, {"epochs": 3}, {"epochs": None, "max_steps": None}]
)
def test_one_that_leaves_something_to_do_is_not(limits: dict[str, Any]) -> None:
    assert refusal(limits) == ""


def test_the_epochs_with_which_it_began_are_not_refused_as_scripts_may_have_to_see_their_end() -> None:
    assert refusal({"epochs": 2}, before=2) == ""
