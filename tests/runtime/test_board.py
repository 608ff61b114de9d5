"""`--tensorboard`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from paceline.display.tensorboard import TensorBoard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from paceline.cli.main import main
from support.launch import Launch
from support.scripts import training

Read = dict[str, dict[str, list[tuple[float, int, float]]]]


def read(folder: Path) -> Read:
    """By writer and name: what TensorBoard shows."""
    found: Read = {}
    for one in (folder / "tensorboard").iterdir():
        events = EventAccumulator(str(one))
        events.Reload()
        found[one.name] = {
            tag: [(shown.wall_time, shown.step, shown.value) for shown in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }
    return found


def test_values_are_shown_by_worker_and_step_or_by_version_at_the_moment_at_which_it_was_made(tmp_path: Path) -> None:
    board, before = TensorBoard(tmp_path), time.time()
    board.logged(1, 4, {"loss": 0.5, "norm": 2.0})
    board.logged(0, 4, {"loss": 0.25})
    board.evaluated(8, 100.0, {"accuracy": 0.75})
    board.close()
    shown = read(tmp_path)
    ((at, step, value),) = shown["versions"].pop("accuracy")
    assert (step, value) == (8, 0.75)
    assert before - 100 <= at <= time.time() - 100
    values = {(name, tag): [one[1:] for one in rows] for name, tags in shown.items() for tag, rows in tags.items()}
    assert values == {
        ("worker-0", "loss"): [(4, 0.25)],
        ("worker-1", "loss"): [(4, 0.5)],
        ("worker-1", "norm"): [(4, 2.0)],
    }


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
    script = training("paceline.log(loss=step)", before="def evaluate(model): return {'half': 0.5}")
    run = launch.run(script, "-p", "bsp", "--tensorboard").completed()
    shown = read(run.folder)
    assert [value for _, _, value in shown["versions"]["half"]] == [0.5] * len(run.summary["evaluations"])
    for worker in range(2):
        rows = run.rows("SELECT step, value FROM scalars WHERE worker = ? ORDER BY step", worker)
        assert [(step, value) for _, step, value in shown[f"worker-{worker}"]["loss"]] == rows
