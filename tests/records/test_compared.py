"""Which runs of a report are compared with each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.protocols import registry
from paceline.records.reading import RecordedRun, open_run
from paceline.records.report.compared import ComparedRuns, compare
from support.recorded import simulated

Runs = tuple[RecordedRun, RecordedRun]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """One under bsp and one under asp, which differ in nothing else."""
    folder = tmp_path_factory.mktemp("runs")
    bsp, asp = (open_run(simulated(folder / name, protocol=name, workers=4), registry()) for name in ("bsp", "asp"))
    with closing(bsp.ledger), closing(asp.ledger):
        yield bsp, asp


def compared(bsp: RecordedRun, asp: RecordedRun) -> ComparedRuns:
    return compare([bsp, asp], [bsp.summary or {}, asp.summary or {}], None)


def resumed(run: RecordedRun, **before: Any) -> RecordedRun:
    """The run as one that was resumed, and was as `before` says until then."""
    (now,) = run.segments
    notes = dict(run.config) | before.pop("notes", {})
    return replace(run, segments=(replace(now, notes=notes, **before), replace(now, number=1, snapshot=9)))


def test_runs_that_differ_in_their_protocol_alone_have_a_verdict(runs: Runs) -> None:
    bsp, asp = runs
    for one in (asp, resumed(asp), resumed(asp, notes={"limits": {"max_steps": 3}})):
        assert compared(bsp, one).is_verdict


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ({"choice": "ssp"}, "asp began as ssp"),
        ({"notes": {"learning_rate_scale": 0.5}}, "asp was resumed with other learning_rate_scale"),
        ({"workers": 2, "notes": {"threads": 7}}, "asp was resumed with other workers, threads"),
    ],
)
def test_a_run_that_was_another_one_before_it_was_resumed_has_none(
    runs: Runs, before: dict[str, Any], told: str
) -> None:
    bsp, asp = runs
    choice = {"choice": choose(before["choice"], registry())} if "choice" in before else {}
    found = compared(bsp, resumed(asp, **before | choice))
    assert (found.is_verdict, found.lines) == (False, [f"These runs are not compared: {told}."])


def test_last_values_of_runs_that_stop_at_their_target_are_not_compared(runs: Runs) -> None:
    def final(*those: RecordedRun) -> str:
        last = {"value": 0.5, "at_seconds": 1.0, "version": 1, "worker": 0, "step": 1}
        summaries = [(one.summary or {}) | {"scalars": {"acc": {"first": last, "last": last}}} for one in those]
        return " ".join(compare(those, summaries, None).lines)

    bsp, asp = (replace(one, config=dict(one.config) | {"targets": ["acc>=0.5"]}) for one in runs)
    assert "final acc" in final(bsp, asp)
    assert "final acc" not in final(
        *(replace(one, config=dict(one.config) | {"stop_at_target": True}) for one in (bsp, asp))
    )
