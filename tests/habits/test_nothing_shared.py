"""Scripts whose workers share no data out, so that all do the same work: they are told so."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.core.leases import Batch
from paceline.runtime.alike import Alike
from paceline.training import prepare
from paceline.training.alone import unjoined
from paceline.training.session import Session
from support.launch import Launch

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
mine = paceline.worker() if sys.argv[1] == "share" else 0
data = torch.randn(64, 4)[mine::2]
plain = DataLoader(TensorDataset(data), batch_size=4)
if sys.argv[1] == "other":
    model, optimizer, loader = paceline.prepare(model, optimizer, plain)
else:
    model, optimizer = paceline.prepare(model, optimizer)
for (x,) in plain:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NO_LOADER = (
    "paceline: no loader was given to prepare(): nothing is shared out, and each of the 2 workers makes all of the "
    "script's steps (a loop of 50 makes 100)\n"
)
ALIKE = (
    "paceline: the first gradients of workers 0 and 1 are equal bit for bit: both train on the same samples; iterate "
    "over the loader that prepare() returns, or have the script take the share of paceline.worker()\n"
)


@pytest.mark.parametrize(
    ("way", "protocol", "said"),
    [
        ("none", "bsp", NO_LOADER + ALIKE),
        ("none", "ps-plus", NO_LOADER + ALIKE),
        ("none", "ad-psgd", NO_LOADER + ALIKE),
        ("share", "asp", NO_LOADER),
        ("other", "asp", ALIKE),
    ],
)
def test_workers_that_train_on_the_same_samples_are_told_of(way: str, protocol: str, said: str, launch: Launch) -> None:
    """Without a loader; with a share that the script takes itself; past the loader that prepare() returned."""
    run = launch.run(SCRIPT, "-n", "2", "-p", protocol, "--quiet", "--threads", "1", args=(way,)).completed()
    assert run.err == said


def test_only_the_first_two_workers_that_are_alike_are_told_of() -> None:
    alike = Alike()
    assert alike.warning(2, "aa") is None
    assert alike.warning(1, "bb") is None
    assert alike.warning(2, "aa") is None, "its own, once more"
    assert "workers 0 and 2 are" in str(alike.warning(0, "aa"))
    assert alike.warning(3, "bb") is None


class Ends:
    """As much of a link as a session's first gradient asks for."""

    replicas = steps_here = False
    pushes = True
    worker, workers = 0, 2


def first_gradient(scale: float, *, workers: int = 2, leased: bool = False) -> str | None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    session: Any = object.__new__(Session)
    session.link, session.parameters = Ends(), list(model.parameters())
    session.link.workers = workers
    session.fetched = [Batch(0, 0)] if leased else []
    (model(torch.ones(4, 3)).square().mean() * scale).backward()
    found: str | None = session._first_gradient()
    return found


def test_gradients_are_compared_where_they_tell_something() -> None:
    assert first_gradient(1.0) == first_gradient(1.0) is not None
    assert first_gradient(1.0) != first_gradient(1.0001)
    assert first_gradient(0.0) is None, "a gradient of zero tells nothing"
    assert first_gradient(1.0, leased=True) is None, "data that was leased is no other worker's"
    assert first_gradient(1.0, workers=1) is None


# --- started by another launcher


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, False),
        ({"WORLD_SIZE": "1", "RANK": "0"}, False),
        ({"WORLD_SIZE": "", "RANK": "0"}, False),
        ({"WORLD_SIZE": "many"}, False),
        ({"WORLD_SIZE": "4", "RANK": "1"}, False),
        ({"WORLD_SIZE": "4", "RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"WORLD_SIZE": "4"}, True),
    ],
)
def test_processes_that_another_launcher_started_are_told_once_of_paceline_run(
    environment: dict[str, str], told: bool
) -> None:
    line = unjoined(environment)
    assert (line is not None) == told
    if line is not None:
        assert line.startswith("paceline: prepare() joins nothing in these 4 processes, as paceline run did not start")
        assert line.endswith("start it with: paceline run -n 4 SCRIPT")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_prepare_says_it_and_leaves_the_script_as_it_is(
    rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare._Process, "prepared", False)
    monkeypatch.setattr(prepare._Process, "link", None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(4, 2)))
    assert prepare.prepare(model, optimizer, loader) == (model, optimizer, loader)
    line = unjoined(os.environ)
    assert capsys.readouterr().err == ("" if line is None else line + "\n")
