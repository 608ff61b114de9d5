"""`--tensorboard`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.display.tensorboard import TensorBoard
from support.launch import Launch
from support.scripts import training


class Writer:
    """Stands in for torch's."""

    made: Mapping[str, Writer] = {}

    def __init__(self, folder: str) -> None:
        self.scalars: list[tuple[Any, ...]] = []
        self.closed = False
        Writer.made = {**Writer.made, folder: self}

    def add_scalar(self, name: str, value: float, step: int, walltime: float | None = None) -> None:
        self.scalars.append((name, value, step, walltime))

    def close(self) -> None:
        self.closed = True


def test_each_worker_has_a_folder_and_versions_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in: Any = ModuleType("torch.utils.tensorboard")
    stand_in.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    board, before = TensorBoard(Path("run")), time.time()
    board.logged(1, 4, {"loss": 0.5, "norm": 2.0})
    board.logged(0, 4, {"loss": 0.25})
    board.logged(1, 5, {"loss": 0.125})
    board.evaluated(8, 100.0, {"accuracy": 0.75})
    board.close()
    made = Writer.made
    assert made["run/tensorboard/worker-1"].scalars == [
        ("loss", 0.5, 4, None),
        ("norm", 2.0, 4, None),
        ("loss", 0.125, 5, None),
    ]
    assert made["run/tensorboard/worker-0"].scalars == [("loss", 0.25, 4, None)]
    ((*what, walltime),) = made["run/tensorboard/versions"].scalars
    assert what == ["accuracy", 0.75, 8]
    assert walltime is not None
    assert before - 100 <= walltime <= time.time() - 100, "when it was made, not when it was evaluated"
    assert all(writer.closed for writer in made.values())


def test_without_the_package_it_is_one_line_and_2_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.cli.run.find_spec", lambda name: None)
    (tmp_path / "train.py").write_text("pass\n")
    assert main(["run", "--tensorboard", "--out", str(tmp_path / "run"), str(tmp_path / "train.py")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("paceline: --tensorboard needs the package tensorboard, which is not installed")
    assert not (tmp_path / "run").exists()


def test_tensorboard_reads_what_was_logged_and_evaluated(launch: Launch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    script = training("paceline.log(loss=step)", before="def evaluate(model): return {'half': 0.5}")
    run = launch.run(script, "-p", "bsp", "--tensorboard").completed()
    read = {}
    for folder in sorted((run.folder / "tensorboard").iterdir()):
        found = EventAccumulator(str(folder))
        found.Reload()
        read[folder.name] = {tag: [one.value for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    logged = {
        f"worker-{worker}": {"loss": [value for (value,) in run.rows(query, worker)]}
        for worker in range(2)
        if (query := "SELECT value FROM scalars WHERE worker = ? ORDER BY step")
    }
    assert read == {**logged, "versions": {"half": [0.5] * len(run.summary["evaluations"])}}
