"""Where the optimizer steps in the worker (PS+, replicas): which values it steps, and with which hyperparameters."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from paceline.store.store import scalars_of, with_scalars
from paceline.training.holders.stepping import Stepping


class Replacing(torch.optim.SGD):
    """Of the user's own: it puts other tensors in its parameters' places."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = p.data - group["lr"] * p.grad


@pytest.mark.parametrize("kind", [torch.optim.SGD, Replacing])
def test_an_optimizer_steps_the_values_that_it_is_given_and_the_script_s_parameters_stay(kind: Any) -> None:
    model = nn.Linear(3, 2)
    model.unused = nn.Parameter(torch.ones(3))
    optimizer, parameters = kind(model.parameters(), lr=0.5), list(model.parameters())
    shown, values = [p.detach().clone() for p in parameters], [torch.randn_like(p) for p in parameters]
    model(torch.ones(4, 3)).sum().backward()
    expected = [v.clone() if p.grad is None else v - 0.5 * p.grad for v, p in zip(values, parameters, strict=True)]
    Stepping(Mock(optimizer=optimizer, parameters=parameters, clip=None, link=Mock(rate_scale=1.0))).step(values)
    assert all(map(torch.equal, values, expected))
    assert all(map(torch.equal, parameters, shown))


# --- steps with hyperparameters of another worker's


class Counting(torch.optim.SGD):
    """Counts its steps in its groups, as some optimizers do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


def test_a_step_uses_another_worker_s_hyperparameters_and_the_script_keeps_its_own() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=0.5, betas=(0.9, 0.99))
    groups = optimizer.param_groups
    before = scalars_of(optimizer)
    theirs = [dict(before[0], lr=0.25, betas=[0.5, 0.99])]
    with with_scalars(optimizer, theirs):
        assert (groups[0]["lr"], groups[0]["betas"]) == (0.25, (0.5, 0.99))
    assert scalars_of(optimizer) == before
    assert groups[0]["betas"] == (0.9, 0.99)


def test_a_rate_in_a_tensor_stays_that_tensor() -> None:
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
    with with_scalars(optimizer, [{"lr": 0.25}]):
        assert rate.item() == 0.25
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.5


@pytest.mark.parametrize("theirs", [0.1, float("nan")])
def test_a_rate_that_a_tensor_rounds_or_that_is_no_number_does_not_stay_either(theirs: float) -> None:
    rate = torch.tensor(0.01)
    before = rate.item()
    with with_scalars(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate), [{"lr": theirs}]):
        assert rate.item() != before
    assert rate.item() == before


def test_what_the_step_itself_changes_stays() -> None:
    optimizer = Counting([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    optimizer.param_groups[0]["steps"] = 3
    with with_scalars(optimizer, [{"lr": 0.25, "steps": 5}]):
        optimizer.step()
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["steps"]) == (0.5, 6)
