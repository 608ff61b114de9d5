"""Training scripts that runs are tested with: small, synthetic, with a place for what a test needs."""

from __future__ import annotations

from textwrap import dedent, indent
from types import SimpleNamespace
from typing import Any

from support.events import TELL

IMPORTS = """
import copy, io, itertools, json, os, pickle, sys, time, traceback
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import paceline
"""


def script(text: str) -> str:
    """A script with this text, after the imports that most of them have."""
    return IMPORTS + text


LOOP = """
import os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline
{tell}
torch.manual_seed(0)
data = TensorDataset(torch.randn({samples}, 4), torch.randn({samples}, 2))
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers={num_workers})
evaluate = None
me = paceline.worker()
{before}
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs={epochs}, evaluate=evaluate)
step = 0
for epoch in range({epochs}):
    for x, y in loader:
{inside}
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
{each_epoch}
{after}
"""


def training(
    inside: str = "",
    *,
    before: str = "",
    each_epoch: str = "",
    after: str = "paceline.finish()",
    epochs: int = 2,
    samples: int = 64,
    num_workers: int = 0,
) -> str:
    """A script that trains a linear model. `inside` comes before each step, which is number `step` of worker `me`.

    `each_epoch` comes at the end of an epoch.
    An epoch has `samples` / 4 batches. `tell` tells the test (`support.events`).
    """
    return LOOP.format(
        tell=TELL,
        before=dedent(before),
        inside=indent(dedent(inside), " " * 8),
        each_epoch=indent(dedent(each_epoch), " " * 4),
        after=dedent(after),
        epochs=epochs,
        samples=samples,
        num_workers=num_workers,
    )


DRAWS = """
import os, signal, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
data = TensorDataset(torch.randn(240, 6), torch.randint(0, 3, (240,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
def evaluate(model):
    model.eval()
    with torch.no_grad():
        accuracy = (model(data.tensors[0]).argmax(dim=1) == data.tensors[1]).double().mean().item()
    return {{"accuracy": accuracy, "drawn": torch.rand(()).item()}}
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2, evaluate=evaluate)
{before}
step = 0
for epoch in range(2):
    for x, y in loader:
{inside}
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        paceline.log({logged})
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    scheduler.step()
{after}
"""


def that_draws(inside: str = "", *, before: str = "", after: str = "", logged: str = "loss=loss.item()") -> str:
    """A script for replays, which draws wherever it can: values, orders, masks and what it evaluates.

    It has buffers, momentum and a scheduler, too. `before` comes after `prepare`, `inside` before each step, and
    `after` at the end. `logged` is what is logged.
    """
    parts = {"before": dedent(before), "inside": indent(dedent(inside), " " * 8), "after": dedent(after)}
    return DRAWS.format(**parts, logged=logged)


def that_resumes(inside: str = "", *, before: str = "", after: str = "", keep: str = "'scheduler': scheduler") -> str:
    """The same, as a run can go on with it: it keeps these objects, and loops over the epochs that are left."""
    text = that_draws(inside, before=before, after=after).replace("in range(2)", "in paceline.epochs(2)")
    return text.replace("epochs=2,", f"epochs=2, keep={{{keep}}},")


SIGNS = """
import os, time
from pathlib import Path
SIGNS = Path(__file__).parent

def made(name):
    (SIGNS / name).touch()

def wait_for(name):
    while not (SIGNS / name).exists():
        time.sleep(0.005)
"""
"""Signs that workers make beside their script, and wait for."""


ENDLESS: dict[str, int] = {"epochs": 300, "samples": 4000}
"""For `training`: more than any test waits for, in epochs so long that a stopped script is soon through them."""


def functions_of(script: str) -> SimpleNamespace:
    """A script's names, without its training: the plain twin of a run."""
    names: dict[str, Any] = {"__name__": "twin"}
    exec(compile(script, "twin", "exec"), names)
    return SimpleNamespace(**names)


MEETING = """
from pathlib import Path
THERE = Path(__file__).parent

def touch(name, text=""):
    new = THERE / f"new-{name}-{os.getpid()}"
    new.write_text(text)
    new.rename(THERE / name)

def there(name):
    return (THERE / name).exists()

def wait(name):
    while not there(name):
        time.sleep(0.005)
"""


def that_meets(inside: str, *, prepared: str = "", first: str = "") -> str:
    """`that_draws`, of which one may say `touch(name, text)`, `there(name)` and `wait(name)`: files beside the script.

    `prepared` comes once all is prepared, and `first` before all else. Its loop goes on where a worker comes back.
    """
    script = that_draws(inside).replace("epochs=2,", "epochs=2, keep={'scheduler': scheduler},")
    script = script.replace("in range(2)", "in paceline.epochs(2)")
    script = script.replace("step = 0\n", f"me, step = paceline.worker(), 0\n{dedent(prepared)}\n", 1)
    return script.replace("torch.manual_seed(3)", f"{MEETING}\n{first}\ntorch.manual_seed(3)", 1)
