"""A loop for Accelerate in a run, however the run is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.engines import summary
from support.launch import Launch

pytest.importorskip("accelerate")

EXAMPLE = Path(__file__).parents[2] / "examples" / "accelerate_loop.py"
SAMPLES = 2 * (1797 - 360)


def test_the_example_trains_one_model_to_the_end_of_its_schedule(launch: Launch) -> None:
    run = launch.run(EXAMPLE, "-n", "2", "-p", "asp", "--threads", "1", args=("--epochs", "2")).completed()
    assert run.rows("SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)]
    assert run.summary["samples"] == SAMPLES
    assert "at a rate of 0.010" in run.log(0)


@pytest.mark.real_run
def test_accelerate_launch_trains_one_model(tmp_path: Path) -> None:
    """With its launcher for GPUs, of which there needn't be one."""
    flags = "--multi_gpu --gpu_ids 0,1 --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", *flags.split()]
    ended = subprocess.run(
        [*command, str(EXAMPLE), "--epochs", "2"],
        cwd=tmp_path,
        env={**os.environ, "PACELINE_RUN_ARGS": "--threads 1 --quiet --out run"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "torchrun has started this script in several processes, which train one model" in ended.stderr
    found = summary(tmp_path / "run")
    assert (found["samples"], len(found["per_worker"])) == (SAMPLES, 2)  # type: ignore[arg-type]
