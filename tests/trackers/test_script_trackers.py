"""Trackers that a script uses by itself, in each of several workers. Their libraries are stood in for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MLFLOW = """
import mlflow.tracking.fluent
start_run = tracking.fluent.start_run
"""
WANDB = """
class sdk:
    @staticmethod
    def init(project=None, mode=None):
        return [project, mode]

init = sdk.init
"""
FLUENT = """
def start_run(name=None):
    return name

def log_metric():
    return start_run("by itself")
"""
PROGRAM = """
import json, sys
from paceline.worker_process.script_trackers import one_run

worker, log_to = int(sys.argv[1]), sys.argv[2].split(",")
lines = []
one_run(worker, log_to, lines.append)
import mlflow, wandb
from wandb import init

made = [init("p"), wandb.init(project="p", mode="online"), init(mode="disabled")]
made += [mlflow.start_run("a"), mlflow.tracking.fluent.log_metric()]
print(json.dumps([made, lines, wandb.init.__name__]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wandb.py").write_text(WANDB)
    (tmp_path / "mlflow" / "tracking").mkdir(parents=True)
    (tmp_path / "mlflow" / "__init__.py").write_text(
        "import mlflow.tracking.fluent\nstart_run = tracking.fluent.start_run"
    )
    (tmp_path / "mlflow" / "tracking" / "__init__.py").touch()
    (tmp_path / "mlflow" / "tracking" / "fluent.py").write_text(FLUENT)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def said(folder: Path, worker: int, log_to: str = "") -> tuple[list[object], list[str]]:
    """What the script's calls return in that worker, and what the user is told."""
    command = [sys.executable, str(folder / "program.py"), str(worker), log_to]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    made, lines, name = json.loads(done.stdout)
    assert name == "init"
    return made, lines


BY_MLFLOW = ["a", "by itself"]


def test_wandb_has_a_run_of_worker_0_alone_whatever_mode_the_script_names(folder: Path) -> None:
    made, lines = said(folder, 0)
    assert made == [["p", None], ["p", "online"], [None, "disabled"], *BY_MLFLOW]
    assert lines == []
    for worker in (1, 2):
        made, _ = said(folder, worker)
        assert made == [["p", "disabled"], ["p", "disabled"], [None, "disabled"], *BY_MLFLOW]


def test_one_line_says_so_and_another_that_each_worker_makes_a_run_of_mlflow(folder: Path) -> None:
    _, lines = said(folder, 1)
    assert len(lines) == 2
    assert lines[0].startswith(
        "calls wandb.init(), which makes a run in worker 0 alone: in the others its mode is disabled"
    )
    assert lines[1].startswith("calls mlflow.start_run(), and so does every worker: MLflow gets a run of each.")
    assert said(folder, 2)[1] == []


def test_where_the_run_is_logged_too_one_line_says_which_run_of_the_tracker_is_which(folder: Path) -> None:
    _, lines = said(folder, 0, "mlflow")
    (line,) = lines
    assert line.startswith("begins a run of mlflow by itself: what the script logs to mlflow is there, and the run of")
    assert said(folder, 0, "tensorboard")[1] == []
