"""A real run in all trackers at once, and what comes of it when it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import tracker_readers
from support.events import LONG
from support.launch import Launch
from support.runs import Run, ended
from support.scripts import training
from support.tracker_readers import READERS, Tracked

ALL = "tensorboard,wandb,mlflow"
PATIENT = f"from paceline.display.trackers import feed; feed.PATIENCE = {LONG}"
"""On a loaded machine MLflow takes more than a minute for its first tables."""
SCRIPT = training(
    "paceline.log(loss=step / 4); own.log({'of': me})",
    before="""
    import wandb
    own = wandb.init(project="own", mode="offline")
    def evaluate(model): return {"half": 0.5}
    """,
    after="own.finish()",
    epochs=3,
)


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }.items():
        monkeypatch.setenv(name, value)


def found(name: str, run: Run) -> tuple[str, Tracked]:
    """Which of the tracker's runs it is, and what is there, read in another process."""
    where = json.loads((run.folder / "trackers" / f"{name}.json").read_text())["run"]
    read = [sys.executable, tracker_readers.__file__, name, str(Path.cwd()), where]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(read, env=environment, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stderr
    return where, Tracked(*json.loads(done.stdout.splitlines()[-1]))


def logged(run: Run, worker: int) -> set[tuple[int, float]]:
    return set(run.rows("SELECT step, value FROM scalars WHERE worker = ?", worker))


def test_a_run_is_one_run_of_each_tracker_also_when_it_goes_on_and_the_script_has_its_own(launch: Launch) -> None:
    first = launch.run(SCRIPT, "-p", "ssp:bound=5", "--log-to", ALL, "--max-steps", "16", first=PATIENT).completed()
    lines = [line for line in first.err.splitlines() if "worker" in line]
    assert len([line for line in lines if "worker 0 begins a run of wandb by itself" in line]) == 1
    assert len([line for line in lines if "worker 1 calls wandb.init(), which makes a run in worker 0" in line]) == 1
    where = {name: json.loads((first.folder / "trackers" / f"{name}.json").read_text())["run"] for name in READERS}
    before = {worker: logged(first, worker) for worker in range(2)}

    again = ended(launch.start_resumed(first.folder, first=PATIENT)).completed()
    summary = again.summary
    for name in READERS:
        run, tracked = found(name, again)
        assert run == where[name]
        assert str(tracked.parameters["protocol/bound"]) == "5"
        assert str(tracked.parameters["optimizer/lr"]) == "0.05"
        for worker in range(2):
            values = {(step, value) for step, value in tracked.series[f"loss/worker-{worker}"]}
            assert values == before[worker] | logged(again, worker)
        assert {(step, value) for step, value in tracked.series["half"]} >= {
            (one["version"], 0.5) for one in summary["evaluations"]
        }
        results = tracked.results
        assert results["outcome"] == "completed"
        assert results["final/steps"] == summary["steps"] == 48
        assert results["final/staleness/mean"] == pytest.approx(summary["staleness"]["mean"])
        assert results["final/samples_per_second"] == pytest.approx(summary["samples_per_second"])
        waited = summary["per_worker"][1]["wait_seconds"]
        assert results["final/wait_seconds/worker-1"] == pytest.approx(waited)
    assert len(list(Path.cwd().rglob("run-*.wandb"))) == 4  # each time the run's, and the script's by worker 0
