"""Scripts that move the prepared model's parameters beside the prepared optimizer: one line ends the run at once."""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.suites import each

SCRIPT = """
import copy
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"])


torch.manual_seed(0)
what = sys.argv[1]
x = torch.randn(64, 4)
data = TensorDataset(x, x.sum(1, keepdim=True))
model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=8), epochs=3)
teacher = copy.deepcopy(model)
of_teacher = Plain(teacher.parameters())
other = None


def loss_of(model, inputs, wanted):
    return (model(inputs) - wanted).square().mean()


for epoch in range(3):
    if epoch == 1 and what == "new":
        optimizer = Plain(model.parameters())
    if epoch == 1 and what == "part":
        other = Plain([model.bias])
    for inputs, wanted in loader:
        if what == "copies":
            loss_of(teacher, inputs, wanted).backward()
            of_teacher.step()
            of_teacher.zero_grad()
            clone = copy.deepcopy(model)
            inner = Plain(clone.parameters())
            loss_of(clone, inputs, wanted).backward()
            inner.step()
        if what == "by hand" and epoch:
            gradients = torch.autograd.grad(loss_of(model, inputs, wanted), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients):
                parameter.data.sub_(0.1 * gradient)
            continue
        loss_of(model, inputs, wanted).backward()
        optimizer.step()
        if other is not None:
            other.step()
        optimizer.zero_grad()
if what == "copies":
    tuned = Plain(model.parameters())
    loss_of(model, x, x.sum(1, keepdim=True)).backward()
    tuned.step()
    print("trains on alone")
paceline.finish()
print("has ended")
"""
LINES = {
    "new": 'steps another optimizer, Plain, over the parameter "weight"',
    "part": 'steps another optimizer, Plain, over the parameter "bias"',
    "by hand": "makes no step of the gradient",
}


@pytest.mark.parametrize(
    ("protocol", "what"),
    each(
        [(protocol, what) for protocol in ("bsp", "asp", "all-reduce", "ad-psgd", "ps-plus") for what in LINES],
        default=[("asp", "new"), ("all-reduce", "by hand")],
    ),
)
def test_training_beside_the_prepared_optimizer_ends_the_run_in_one_line(
    protocol: str, what: str, launch: Launch
) -> None:
    ended = launch.run(SCRIPT, "-n", "2", "-p", protocol, args=(what,))
    assert ended.code == 2
    said = [line for line in ended.err.splitlines() if line.startswith("paceline: the script")]
    assert len(said) == 1
    assert LINES[what] in said[0]
    assert "Traceback" not in ended.out + ended.err
    assert "has ended" not in ended.out


@pytest.mark.parametrize("protocol", each(["bsp", "asp", "all-reduce", "ad-psgd", "ps-plus"], default=["bsp"]))
def test_optimizers_of_copies_step_and_the_model_is_the_script_s_own_after_its_last_step(
    protocol: str, launch: Launch
) -> None:
    ended = launch.run(SCRIPT, "-n", "2", "-p", protocol, "--tee", "all", args=("copies",)).completed()
    assert "trains on alone" in ended.out
    assert "has ended" in ended.out
