"""Any optimizer makes through the store what it makes alone: real runs against a loop in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest
import torch
from torch import nn

from paceline.training.tensor_bits import parameters_sha256
from support.runs import Run, run, side_by_side
from support.scripts import functions_of

FLAGS = ("-n", "1", "-p", "asp", "--threads", "1", "--record", "0", "--tee", "none")

SCRIPT = """
import sys

import torch
from torch import nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop

import paceline

STEPS = 100


class SignMomentum(torch.optim.Optimizer):
    '''One of the script's own, with state, an attribute that it reads and one that it counts in.'''

    def __init__(self, params, lr=0.001, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.slow_until, self.taken = 20, 0

    @torch.no_grad()
    def step(self, closure=None):
        self.taken += 1
        for group in self.param_groups:
            rate = group["lr"] * min(1.0, self.taken / self.slow_until)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["steps"], state["average"] = 0, torch.zeros_like(parameter)
                state["steps"] += 1
                state["average"].mul_(group["momentum"]).add_(parameter.grad)
                parameter.add_(state["average"].sign(), alpha=-rate / state["steps"] ** 0.5)


OPTIMIZERS = {
    "SGD": SGD,
    "Adam": Adam,
    "AdamW": AdamW,
    "RMSprop": RMSprop,
    "Adagrad": Adagrad,
    "NAdam": NAdam,
    "RAdam": RAdam,
    "Adamax": Adamax,
    "Adadelta": Adadelta,
    "Adam foreach": lambda groups: Adam(groups, foreach=True),
    "AdamW fused": lambda groups: AdamW(groups, fused=True),
    "the script's own": SignMomentum,
    "LBFGS": lambda groups: torch.optim.LBFGS(groups[0]["params"] + groups[1]["params"]),
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.sometimes, self.last = nn.Conv1d(3, 5, 2), nn.Linear(35, 13), nn.Linear(13, 1)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x, all_of_it):
        hidden = self.sometimes(torch.tanh(self.first(x)).flatten(1))
        return self.last((hidden if all_of_it else hidden.detach()) * self.scale)


def build(name):
    torch.manual_seed(1)
    model = Model()
    groups = [
        {"params": [*model.last.parameters(), model.scale]},
        {"params": [*model.first.parameters(), *model.sometimes.parameters()], "lr": 0.01},
    ]
    optimizer = OPTIMIZERS[name](groups)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)


def train(model, optimizer, scheduler):
    for step in range(STEPS):
        x = torch.randn(6, 3, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(x, all_of_it=step % 3 > 0) - x.mean(dim=(1, 2)).unsqueeze(1)).square().mean().backward()
        optimizer.step()
        scheduler.step()


if __name__ == "__main__":
    model, optimizer, scheduler = build(sys.argv[1])
    model, optimizer = paceline.prepare(model, optimizer)
    train(model, optimizer, scheduler)
"""


TWIN = functions_of(SCRIPT)
NAMES = [name for name in TWIN.OPTIMIZERS if name != "LBFGS"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    folder = tmp_path_factory.mktemp("runs")
    calls = {name: partial(run, SCRIPT, *FLAGS, args=[name], tmp_path=folder) for name in TWIN.OPTIMIZERS}
    with side_by_side(calls) as futures:
        yield futures


@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_steps_of_any_optimizer_with_one_worker_are_plain_pytorch_s_bit_for_bit(
    name: str, runs: dict[str, Future[Run]]
) -> None:
    ended = runs[name].result().completed()
    begun, _, _ = TWIN.build(name)
    model, optimizer, scheduler = TWIN.build(name)
    TWIN.train(model, optimizer, scheduler)

    final = ended.final()
    assert final.keys() == model.state_dict().keys()
    for parameter, value in model.state_dict().items():
        assert torch.equal(final[parameter], value), parameter
        assert not torch.equal(begun.state_dict()[parameter], value), parameter
    assert ended.summary["final_parameters_sha256"] == parameters_sha256(model.parameters())
    assert _rates(ended) == _rates_by_hand(name)


def _rates(ended: Run) -> list[list[float]]:
    return [json.loads(text) for (text,) in ended.rows("SELECT learning_rates FROM pushes ORDER BY step")]


def _rates_by_hand(name: str) -> list[list[float]]:
    model = nn.Linear(1, 1)
    first, _ = (group["lr"] for group in TWIN.build(name)[1].param_groups)
    optimizer = torch.optim.SGD([{"params": [model.weight], "lr": first}, {"params": [model.bias], "lr": 0.01}])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    rates = []
    for _ in range(TWIN.STEPS):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return rates


def test_lbfgs_is_refused_in_one_line(runs: dict[str, Future[Run]]) -> None:
    ended = runs["LBFGS"].result()
    assert ended.code == 2, ended.err
    (line,) = ended.err.splitlines()
    assert line.startswith("paceline: LBFGS ")
    assert "use an optimizer" in line
    assert not ended.folder.exists()
