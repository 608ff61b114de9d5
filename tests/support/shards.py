"""A script whose model is cut into ranges, and flags of runs on three hosts that each make one."""

from __future__ import annotations

SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

THERE = Path(__file__).parent
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 1024), nn.Tanh(), nn.Linear(1024, 1536), nn.BatchNorm1d(1536), nn.Linear(1536, 3))
optimizer = OPTIMIZER
data = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
BEFORE
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=EPOCHS)
AFTER
for epoch in paceline.epochs(EPOCHS):
    for x, y in loader:
        EACH_STEP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
END
"""
"""A model of four pieces, three of which are a whole one."""
SGD = "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)"
ADAMW = "torch.optim.AdamW(model.parameters(), lr=0.001)"
HOSTS = ("--emulate-hosts", "3", "-n", "1", "--threads", "1", "--shards-on", "all")
TWO_EACH = ("--emulate-hosts", "3", "-n", "2", "--threads", "1", "--shards-on", "all")


def script(
    optimizer: str = SGD, *, before: str = "", after: str = "", each_step: str = "pass", end: str = "", epochs: int = 2
) -> str:
    text = SCRIPT.replace("OPTIMIZER", optimizer).replace("BEFORE", before).replace("AFTER", after)
    return text.replace("EACH_STEP", each_step).replace("END", end).replace("EPOCHS", str(epochs))
