"""What people do in training scripts, all in one run; and what a refusal may take away."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.launch import Launch
from support.scripts import training

HABITS = """
import copy, os, subprocess
import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset
import paceline

assert "RANK" not in os.environ and "WORLD_SIZE" not in os.environ

class Counting(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + 1
        return super().forward(x)

torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 4), torch.randn(40, 2))
model = Counting()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(data, batch_size=4, sampler=SubsetRandomSampler(numpy.arange(40)))
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
mean = sum(x.mean() for x, _ in loader) / len(loader)  # a look at the data before training
first = copy.deepcopy(model)
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
assert torch.equal(first.state_dict()["weight"], first.weight)
assert not torch.equal(model.state_dict()["weight"], first.weight)
subprocess.Popen(["sleep", "600"])
"""


def test_a_look_at_the_data_a_copy_a_numpy_sampler_a_counter_and_a_child_process_do_no_harm(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    habits = launch.run(HABITS, "-n", "1", "-p", "asp").completed()
    assert habits.summary["steps"] == 20, "the look at the data is none of the two epochs"
    assert habits.summary["samples"] == 80
    assert habits.final()["seen"] == 20, "a buffer that the model puts in the place of the old one is recorded"


def test_a_refusal_after_training_has_begun_keeps_what_there_is(launch: Launch) -> None:
    script = training(after="paceline.prepare(model, optimizer)", epochs=1)
    run = launch.run(script, "-n", "1", "-p", "asp")
    assert run.code == 2
    assert "prepare() is called twice" in run.err
    assert run.summary["outcome"] == "failed"
    assert (run.folder / "versions").is_dir()


def test_a_refusal_takes_away_its_own_folder_and_no_other_runs(launch: Launch, tmp_path: Path) -> None:
    neighbour = tmp_path / "runs" / "neighbour"
    neighbour.mkdir(parents=True)
    out = tmp_path / "runs" / "deep" / "mine"
    script = training(before="optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1)")
    run = launch.run(script, "-n", "1", "--out", str(out))
    assert run.code == 2
    assert neighbour.is_dir()
    assert not out.parent.exists()
