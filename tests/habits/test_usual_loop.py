"""The loop of docs/habits.md, as it stands there: validation, schedule, checkpoints, early stopping."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.cli.main import main
from support.launch import Launch
from support.suites import each

PAGE = Path(__file__).parents[2] / "docs" / "habits.md"
BEFORE = """
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

os.chdir(os.path.dirname(__file__))
EPOCHS, PATIENCE = 8, int(sys.argv[1])
torch.manual_seed(0)
points = torch.randn(320, 4)
classes = (points @ torch.randn(4, 3)).argmax(1)
held_out, labels = points[256:], classes[256:]
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(points[:256], classes[:256]), batch_size=8, shuffle=True)
"""


def usual_loop() -> str:
    text = PAGE.read_text().partition("<!-- run by tests/habits/test_usual_loop.py -->\n```python\n")[2]
    return BEFORE + text.partition("```")[0]


@pytest.mark.parametrize("protocol", each(["bsp", "asp", "all-reduce", "ad-psgd"], long=["asp", "all-reduce"]))
def test_the_usual_loop_runs_as_the_page_shows_it(protocol: str, launch: Launch) -> None:
    run = launch.run(usual_loop(), "-n", "2", "-p", protocol, args=("100",)).completed()
    script_s = run.folder.parent
    assert torch.load(script_s / "best.pt")["epoch"] in range(8)
    assert torch.load(script_s / "last.pt").keys() == {"weight", "bias"}
    assert run.summary["samples"] == 8 * 256
    (logged,) = run.rows("SELECT count(*) FROM scalars WHERE name = 'val_acc'")
    assert logged == (8,)
    assert main(["check", str(run.folder)]) == 0


def test_its_early_stop_ends_the_run_for_both_workers(launch: Launch) -> None:
    run = launch.run(usual_loop().replace("accuracy > best", "accuracy > 1"), "-n", "2", "-p", "asp", args=("2",))
    assert run.completed().summary["stopped"].startswith("val_acc has not risen above 0.000 for 2 epochs")
    assert run.summary["samples"] < 8 * 256
