"""A script in the usual style is as accurate as in one process, with three lines added."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest

from support.launch import Launch

SCRIPT = """
import sys
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

seed, folder, EPOCHS, PATIENCE = int(sys.argv[1]), sys.argv[2], 30, 8
torch.manual_seed(seed)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
train, held_out, test = order[:1000], order[1000:1300], order[1300:]
model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(images[train], labels[train]), batch_size=8, shuffle=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=EPOCHS * len(loader))
# prepare

def accuracy_on(which):
    model.eval()
    with torch.no_grad():
        return (model(images[which]).argmax(1) == labels[which]).double().mean().item()

best, since = 0.0, 0
for epoch in range(EPOCHS):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
    accuracy = accuracy_on(held_out)
    # agree
    since += 1
    if accuracy > best:
        best, since = accuracy, 0
        torch.save(model.state_dict(), folder + "/best.pt")
    if since == PATIENCE:
        break
model.load_state_dict(torch.load(folder + "/best.pt"))
print("tested", accuracy_on(test))
"""
PREPARED = (
    SCRIPT.replace("import torch\n", "import torch\nimport paceline\n", 1)
    .replace("# prepare", "model, optimizer, loader, scheduler = paceline.prepare(model, optimizer, loader, scheduler)")
    .replace("# agree", 'accuracy = paceline.agree(accuracy, how="mean")')
)
SEEDS = ("1", "2", "3")
NOISE = 0.012  # of the mean of three: its spread over seeds in one process is .004 to .008 a run


def accuracy(out: str) -> float:
    return float(re.findall(r"tested ([\d.]+)", out)[0])


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["bsp", "all-reduce", "sync-switch"])
def test_the_usual_script_is_as_accurate_as_in_one_process(protocol: str, launch: Launch, tmp_path: Path) -> None:
    alone, run = [], []
    (tmp_path / "alone.py").write_text(SCRIPT)
    for seed in SEEDS:
        made = subprocess.run([sys.executable, tmp_path / "alone.py", seed, tmp_path], capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        alone.append(accuracy(made.stdout))
        args = (seed, str(tmp_path))
        made_here = launch.run(PREPARED, "-n", "2", "-p", protocol, "--seed", seed, "--epochs", "30", args=args)
        run.append(accuracy(made_here.completed().out))
    assert mean(run) > mean(alone) - NOISE, (alone, run)
