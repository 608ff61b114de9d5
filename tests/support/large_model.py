"""A script whose model is so large that gradients leave their host while autograd makes others."""

LARGE_MODEL = """
import os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline
does = sys.argv[1]
torch.manual_seed(0)
layers = [nn.Linear(800, 800), nn.Tanh(), nn.BatchNorm1d(800), nn.Linear(800, 800), nn.Tanh(), nn.Linear(800, 2)]
model, never = nn.Sequential(*layers), nn.Linear(3, 3)
model.add_module("never", never)
kind, keys = (torch.optim.AdamW, {}) if does == "adamw" else (torch.optim.SGD, {"momentum": 0.9})
optimizer = kind(model.parameters(), lr=1e-3, **keys)
inputs = torch.randn(72, 800)
loader = DataLoader(TensorDataset(inputs, inputs[:, :2]), batch_size=4, shuffle=True)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99) if does == "schedules" else None
limits = {"clip_grad_value": 1e-3} if does == "limits" else {}
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2, **limits)
layers[0].weight.register_hook(lambda gradient: time.sleep(0.03))  # others' gradients leave meanwhile
me, step = paceline.worker(), 0
for epoch in range(2):
    for x, y in loader:
        step += 1
        first = 3 if does == "lacks" and step % 3 == 0 else 0
        for layer in layers[first:]:
            x = layer(x)
        if does == "dies" and me == 1 and step == 6:
            layers[0].weight.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))
        (x - y).square().mean().backward()
        if does == "accumulates" and step % 2:
            continue
        if does == "clips" or (does == "clips sometimes" and step % 5 == 0):
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if does == "scales":
            for parameter in layers[0].parameters():
                parameter.grad = parameter.grad * 2
        if does == "rates":
            optimizer.param_groups[0]["lr"] = 1e-3 if step < 4 else 5e-4
        if does == "leaves" and me == 1 and step == 5:
            sys.exit()
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
paceline.finish()
"""
"""Its argument is what it does. It has parameters that never have a gradient."""
DOES = ("adamw", "limits", "clips", "clips sometimes", "scales", "accumulates", "lacks", "rates", "schedules")
"""What scripts do besides training plainly."""
