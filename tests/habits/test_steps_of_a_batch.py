"""A script may make several gradients and steps of a batch, or leave batches out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.cli.main import main
from support.launch import Launch
from support.replays import broken_replay
from support.runs import Run
from support.suites import each

MODEL = """
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.two = nn.Linear(3, 1)
    def forward(self, x):
        return self.two(torch.tanh(self.one(x)))

def made():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Pair()
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
"""

RUN = """
import sys
from torch.utils.data import DataLoader, TensorDataset
import paceline
torch.manual_seed(1)
data = torch.randn(int(sys.argv[1]), 3)
model, optimizer = made()
model, optimizer, loader = paceline.prepare(
    model, optimizer, DataLoader(TensorDataset(data), batch_size=4), epochs=2, shards="static"
)
for epoch in range(2):
    for (x,) in loader:
        train(model, optimizer, x)
paceline.finish()
"""

HABITS = {
    "adversarial": """
def train(model, optimizer, x):
    x = x.clone().requires_grad_()
    model(x).square().mean().backward()
    moved = (x + 0.5 * x.grad.sign()).detach()
    optimizer.zero_grad()
    model(moved).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "adversarial, by the model's zero_grad": """
def train(model, optimizer, x):
    x = x.clone().requires_grad_()
    model(x).square().mean().backward()
    moved = (x + 0.5 * x.grad.sign()).detach()
    model.zero_grad()
    model(moved).square().mean().backward()
    optimizer.step()
    model.zero_grad()
""",
    "two steps of a batch": """
def train(model, optimizer, x):
    optimizer.zero_grad()
    model.two.requires_grad_(False)
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    model.two.requires_grad_(True)
    model(x).mean().backward()
    optimizer.step()
""",
    "gradients by hand": """
def train(model, optimizer, x):
    gradients = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.grad = gradient
    optimizer.step()
""",
    "gradients of several tasks put together": """
def train(model, optimizer, x):
    found = []
    for task in range(2):
        optimizer.zero_grad()
        (model(x) - task).square().mean().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    optimizer.zero_grad()
    for parameter, *gradients in zip(model.parameters(), *found):
        parameter.grad = gradients[0] - 0.5 * gradients[1]
    optimizer.step()
""",
    "two losses of one graph": """
def train(model, optimizer, x):
    out = model(x)
    out.square().mean().backward(retain_graph=True)
    (0.3 * out).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a penalty on gradients": """
def train(model, optimizer, x):
    x = x.clone().requires_grad_()
    optimizer.zero_grad()
    of_input, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (model(x).square().mean() + of_input.square().sum(1).mean()).backward(create_graph=True)
    for parameter in model.parameters():
        parameter.grad = parameter.grad.detach()
    optimizer.step()
""",
    "an update by a closure": """
def train(model, optimizer, x):
    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss
    optimizer.step(closure)
""",
}

ROUNDS = ("bsp", "all-reduce", "hsp:idle=none")
BY_DEFAULT = {
    ("adversarial", "bsp", 2),
    ("adversarial, by the model's zero_grad", "all-reduce", 2),
    ("two steps of a batch", "hsp:idle=none", 2),
    ("gradients by hand", "all-reduce", 2),
    ("gradients of several tasks put together", "bsp", 4),
    ("a penalty on gradients", "bsp", 2),
}
CASES = [(habit, protocol, workers) for habit in HABITS for protocol in ROUNDS for workers in (2, 4)]


def alone(habit: str, samples: int) -> dict[str, Tensor]:
    """The parameters after each of two whole batches, in one process."""
    names: dict[str, Any] = {}
    exec(MODEL + HABITS[habit], names)
    torch.manual_seed(1)
    data = torch.randn(samples, 3)
    model, optimizer = names["made"]()
    for _ in range(2):
        names["train"](model, optimizer, data)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def train(launch: Launch, habit: str, protocol: str, workers: int, samples: int) -> Run:
    script = MODEL + HABITS[habit] + RUN
    flags = ("-n", str(workers), "-p", protocol, "--threads", "1")
    return launch.run(script, *flags, args=(str(samples),)).completed()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize(("habit", "protocol", "workers"), each(CASES, default=BY_DEFAULT))
def test_workers_make_the_step_of_the_whole_batch(habit: str, protocol: str, workers: int, launch: Launch) -> None:
    """Each worker has one batch of an epoch, and the last one has half as many samples."""
    samples = 4 * workers - 2
    run = train(launch, habit, protocol, workers, samples)
    torch.testing.assert_close(run.final(), alone(habit, samples), rtol=0.0, atol=1e-6)
    assert run.summary["samples"] == 2 * samples
    assert run.summary["samples_missed"] == 0
    assert main(["check", str(run.folder)]) == 0


@pytest.mark.parametrize(
    ("habit", "protocol"),
    each(
        [(habit, protocol) for habit in HABITS for protocol in ("bsp", "asp", "all-reduce", "ad-psgd", "ps-plus")],
        default={("two steps of a batch", "all-reduce"), ("adversarial", "ps-plus")},
    ),
)
def test_each_batch_is_counted_once_and_a_replay_has_the_same_bits(habit: str, protocol: str, launch: Launch) -> None:
    run = train(launch, habit, protocol, 2, 6)
    assert run.summary["samples"] + run.summary["samples_missed"] == 12
    assert main(["check", str(run.folder)]) == 0
    assert broken_replay(run) == []
