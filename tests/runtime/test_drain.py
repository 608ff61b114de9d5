"""Hosts that leave in good order: `paceline join` gets SIGTERM."""

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
data = TensorDataset(torch.randn(SAMPLES, 6), torch.randint(0, 3, (SAMPLES,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
steps = 0
for epoch in paceline.epochs(2):
    for x, y in loader:
        steps += 1
        if steps == 3: (THERE / f"at-{paceline.worker()}").touch()
        while steps > 3 and epoch == 1 and not (THERE / "go-on").exists(): time.sleep(0.02)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
"""A model of four pieces, three of which are a whole one. The second epoch waits until all may go on."""
SGD = "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)"
ADAMW = "torch.optim.AdamW(model.parameters(), lr=0.001)"


def script(optimizer: str = SGD, samples: int = 96) -> str:
    return SCRIPT.replace("OPTIMIZER", optimizer).replace("SAMPLES", str(samples))
