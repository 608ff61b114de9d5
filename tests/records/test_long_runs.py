"""Reading a run takes memory for its workers and for what is shown, however many steps it has."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from paceline.protocols import registry
from paceline.records.check import check
from paceline.records.explain.findings import findings
from paceline.records.explain.sentences import sentences
from paceline.records.reading import RecordedRun, open_run
from paceline.records.report.contents import contents
from paceline.scenario.scenario import Kill, Network, Scenario
from support.recorded import simulated

STEPS = 150
PLACES = Scenario(
    compute=0.05,
    jitter=0.2,
    speeds={3: 0.5},
    network=Network(bandwidth=1e8, message=10**5, between_nodes=1e8),
    events=(Kill(worker=1, at=2.0),),
)


def reported(run: RecordedRun) -> None:
    contents([run], slices=50)


def explained(run: RecordedRun) -> None:
    sentences(findings(run))


def checked(run: RecordedRun) -> None:
    assert check(run).ok


def peak(read: Callable[[RecordedRun], None], folder: Path) -> int:
    """The most bytes that Python has had for this."""
    with closing((run := open_run(folder, registry())).ledger):
        read(run)  # imports and caches
        gc.collect()
        tracemalloc.start()
        try:
            read(run)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["ripples", "ssp:bound=2"])
def test_a_longer_run_takes_no_more_memory(tmp_path: Path, protocol: str) -> None:
    """What is kept of every step would take 1,000 bytes of each. Some are kept before the first ones are forgotten."""
    short, long = (
        simulated(tmp_path / str(steps), protocol, steps=steps, scenario=PLACES) for steps in (STEPS, 10 * STEPS)
    )
    for read in (explained, checked, reported):
        assert peak(read, long) - peak(read, short) < 400 * 9 * STEPS, read.__name__


@pytest.mark.long
def test_a_run_without_waits_takes_no_more_memory_to_explain(tmp_path: Path) -> None:
    """No wait ends under `asp`, and a step that is kept takes 140 bytes. 1,000 are kept before any is forgotten."""
    short, long = (simulated(tmp_path / str(steps), "asp", steps=steps) for steps in (2000, 12000))
    assert peak(explained, long) - peak(explained, short) < 40 * 10000
