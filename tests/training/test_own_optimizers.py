"""Optimizers as users write them, and parameters as users replace them, train as in plain PyTorch or are refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest
import torch

from paceline.training.seeding import seed_step
from support.runs import Run, run, side_by_side
from support.scripts import functions_of

SEED = 3

SCRIPT = """
import copy, pickle, sys

import numpy
import torch
from torch import nn

import paceline

STEPS = 6


class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "steps": 0})

    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] += 1  # beside what the script changes
            for p in group["params"]:
                if p.grad is not None:
                    self.one(p, group["lr"] / group["steps"])


class Replacing(Own):
    def one(self, p, lr):
        p.data = p.data - lr * p.grad


class Asking(Own):
    def one(self, p, lr):
        if p.requires_grad:
            p.data.sub_(lr * p.grad)


class Remembering(Own):
    def one(self, p, lr):
        before = self.state[p].get("before", torch.zeros_like(p))
        p.data.sub_(lr * (p.grad + 0.5 * before))
        self.state[p]["before"] = p.grad


def build(kind):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    own = {"replacing": Replacing, "remembering": Remembering, "scheduled": Asking}.get(kind)
    if own:
        return model, own(model.parameters())
    return model, torch.optim.SGD(model.parameters(), lr=numpy.float64(0.1), momentum=0.9)


def begin(kind, model):
    if kind == "vector":
        nn.utils.vector_to_parameters(torch.arange(15.0) / 10, model.parameters())


def work(kind, model, optimizer, step):
    if kind == "numbers":
        rates = [numpy.float32(0.05), numpy.float64(0.02), numpy.int64(1), 0.25]
        optimizer.param_groups[0]["lr"] = rates[step % 4]
    if kind == "scheduled":
        optimizer.param_groups[0]["lr"] *= 0.8
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    kind = sys.argv[1]
    model, optimizer = paceline.prepare(*build(kind))
    begin(kind, model)
    if kind == "vector":
        assert torch.equal(model.state_dict()["weight"], model.weight)
    for step in range(STEPS):
        work(kind, model, optimizer, step)
        if kind == "replaced":
            model.weight.data = model.weight.data.clamp(-0.1, 0.1)
    copies = copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))
    assert {type(one) for one in copies} == {type(build(kind)[1])}
"""

KINDS = ("replacing", "scheduled", "remembering", "numbers", "vector")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    folder = tmp_path_factory.mktemp("runs")
    flags = ("-n", "1", "-p", "asp", "--threads", "1", "--seed", str(SEED), "--record", "0", "--tee", "none")
    calls = {kind: partial(run, SCRIPT, *flags, args=[kind], tmp_path=folder) for kind in (*KINDS, "replaced")}
    with side_by_side(calls) as futures:
        yield futures


@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_as_in_plain_pytorch_bit_for_bit(kind: str, runs: dict[str, Future[Run]]) -> None:
    final = runs[kind].result().completed().final()
    script = functions_of(SCRIPT)
    model, optimizer = script.build(kind)
    begun = model.weight.detach().clone()
    script.begin(kind, model)
    for step in range(script.STEPS):
        seed_step(SEED, 0, step)
        script.work(kind, model, optimizer, step)
    assert not torch.equal(final["weight"], begun)
    assert all(torch.equal(final[name], value) for name, value in model.state_dict().items())


def test_a_parameter_whose_data_is_replaced_after_a_step_is_refused_by_name(runs: dict[str, Future[Run]]) -> None:
    """It would no longer follow the store's versions."""
    replaced = runs["replaced"].result()
    assert replaced.code == 2
    assert 'the script changed the parameter "weight" after the first step' in replaced.err
