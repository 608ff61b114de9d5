"""ReduceLROnPlateau with several workers: one line says whose decision counts."""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.suites import each

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

model = nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
other = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD([torch.zeros(1)], lr=1.0))
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.0)
loader = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=3)
for epoch in range(3):
    for (x,) in loader:
        (-model(x)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    other.step(1.0)
    STEPS
paceline.finish()
"""
OWN_RATES = "Each worker's own optimizer steps with its own rate"
SAID = {
    "bsp": "so worker 0's metric decides",
    "asp": "Each update takes its own worker's rate",
    "all-reduce": OWN_RATES,
    "ad-psgd": OWN_RATES,
    "ps-plus": OWN_RATES,
}


def said(launch: Launch, steps: str, *flags: str) -> str:
    ended = launch.run(SCRIPT.replace("STEPS", steps), "--threads", "1", *flags).completed()
    return " ".join(ended.err.split())


@pytest.mark.parametrize("protocol", each(SAID, default=("bsp",)))
def test_one_line_says_whose_decision_counts(protocol: str, launch: Launch) -> None:
    err = said(launch, "scheduler.step(1.0)", "-n", "2", "-p", protocol)
    assert err.count("ReduceLROnPlateau") == err.count("a metric that is the same in all workers") == 1
    assert SAID[protocol] in err


@pytest.mark.parametrize(("steps", "workers"), [("pass", "2"), ("scheduler.step(1.0)", "1")])
def test_nothing_is_said_of_another_optimizers_scheduler_or_of_one_worker(
    steps: str, workers: str, launch: Launch
) -> None:
    assert "ReduceLROnPlateau" not in said(launch, steps, "-n", workers, "-p", "bsp")
