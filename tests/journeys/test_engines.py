"""A script that torchrun starts several times, as scripts for DDP are started: it trains one model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engines import Torchruns, await_snapshot, summary
from support.leftovers import Traces
from support.runs import Run
from support.scripts import that_resumes
from support.sound import right

SLOW = """
if "slow" in sys.argv and not paceline.resumed():
    time.sleep(0.1)
"""
RUN = Path("runs/bsp-digits")


@pytest.fixture
def torchruns(tmp_path: Path) -> Iterator[Torchruns]:
    (tmp_path / "train.py").write_text(that_resumes(SLOW, before="import sys"))
    traces = Traces(tmp_path / "temporary")
    torchruns = Torchruns(tmp_path, traces)
    yield torchruns
    torchruns.close()
    traces.assert_nothing_left()


def test_a_script_under_torchrun_trains_one_model_and_goes_on_when_torchrun_starts_it_again(
    torchruns: Torchruns,
) -> None:
    flags = "--rdzv-id", "digits", "--max-restarts", "1"
    torchruns.start_script(1, flags, "train.py", "slow", run="--threads 1 --quiet --checkpoint 4")
    run = torchruns.folder / RUN
    await_snapshot(run, torchruns.processes)
    os.kill(torchruns.launcher(0), signal.SIGKILL)
    (ended,) = torchruns.ended()
    assert ended.code == 0, ended.out + ended.err
    assert "which train one model: this host goes on as `paceline run -n 2 --threads 1" in ended.err
    found = summary(run)
    assert (found["outcome"], found["segments"], len(found["per_worker"])) == ("completed", 2, 2)  # type: ignore[arg-type]
    right(Run(0, "", "", run))
