"""An optimizer that steps before `prepare`: one line says at once that each worker trains alone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

from paceline.training.misuse import Unprepared
from support.launch import Launch
from support.scripts import training

SAID = (
    "steps an optimizer (SGD) before paceline.prepare(): until that call each worker trains alone. Pretraining may do "
    "so; otherwise put model, optimizer, loader = paceline.prepare(model, optimizer, loader) before this loop"
)
ALONE = """
for x, y in loader:
    (model(x) - y).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []
    before = len(_global_optimizer_post_hooks)
    watching = Unprepared(lines.append)
    yield lines
    watching.end()
    assert len(_global_optimizer_post_hooks) == before, "the prepared optimizer's steps would look for the hook"


def optimizer() -> torch.optim.Optimizer:
    model = nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_first_step_of_any_optimizer_is_told_of_once(said: list[str]) -> None:
    for one in (optimizer(), optimizer()):
        one.step()
        one.step()
    assert said == [SAID]


def test_a_step_without_gradients_trains_nothing(said: list[str]) -> None:
    one = optimizer()
    one.zero_grad()
    one.step()
    assert said == []


def test_a_process_that_the_script_forks_is_not_the_worker(said: list[str]) -> None:
    child = os.fork()
    if not child:
        optimizer().step()
        os._exit(len(said))
    assert os.waitpid(child, 0)[1] == 0


def test_a_run_says_of_pretraining_once_that_each_worker_trains_alone_and_goes_on(launch: Launch) -> None:
    run = launch.run(training(before=ALONE, samples=16), "-n", "2", "--quiet", "--threads", "1").completed()
    assert run.err == f"paceline: worker 0 {SAID}\n"
