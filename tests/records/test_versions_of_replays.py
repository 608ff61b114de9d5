"""When the versions of a replay were made, as its check sees it."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.records import violations
from paceline.records.check.versions import _of_means, _of_store
from paceline.records.check.versions_made import PossibleVersion, VersionsMade
from paceline.records.violations import Violation


@pytest.mark.parametrize("reason", ["stopped", "finished"])
def test_a_version_that_is_made_while_workers_are_being_stopped_may_be_noted_later(reason: str) -> None:
    """A replay does not wait for processes that it stops, so what they still make has the moment of a later fact."""
    ledger = sqlite3.connect(":memory:")
    ledger.executescript("CREATE TABLE epochs (samples)")
    run = SimpleNamespace(ledger=ledger, config={"replay_of": "runs/once"}, simulated=True)
    made = VersionsMade(versions={1: PossibleVersion(2.0, 8)})
    checking: Any = SimpleNamespace(
        run=run, made=made, trained=True, completed=False, rules=SimpleNamespace(reasons={reason}), proved=[], row=None
    )
    recorded: dict[int, tuple[float, int | None]] = {1: (2.5, None)}
    if reason == "stopped":
        _of_store(checking, recorded, {1: 1})
    else:
        with pytest.raises(Violation) as raised:
            _of_store(checking, recorded, {1: 1})
        assert raised.value.rule == violations.RECORDED_WHEN


@pytest.mark.parametrize("replays", [True, False])
def test_the_mean_of_a_replay_without_any_step_has_the_moment_of_the_beginning(replays: bool) -> None:
    """No order moves the replay's clock on. In a run, the clock is at the last worker's end by then."""
    ledger = sqlite3.connect(":memory:")
    ledger.executescript("CREATE TABLE epochs (samples)")
    run = SimpleNamespace(ledger=ledger, config={}, simulated=False, segments=[None])
    made = VersionsMade(at=2.5, replicas=2)
    checking: Any = SimpleNamespace(
        run=run, made=made, trained=True, completed=True, replays=replays, proved=[], row=None
    )
    recorded: dict[int, tuple[float, int | None]] = {1: (0.1, 0)}
    if replays:
        _of_means(checking, recorded, {1: 1})
    else:
        with pytest.raises(Violation) as raised:
            _of_means(checking, recorded, {1: 1})
        assert raised.value.rule == violations.RECORDED_WHEN
