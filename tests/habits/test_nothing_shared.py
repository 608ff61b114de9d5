"""Scripts whose workers share no data out, so that all do the same work: they are told so."""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.coordinator.remarks import Remarks, epochs_over, unused
from paceline.core.leases import Batch
from paceline.training import prepare
from paceline.training.data.batches import Stands
from paceline.training.data.loop import Loops
from paceline.training.misuse import unjoined
from paceline.training.optim.gradients import Gradients
from paceline.training.session import Session
from paceline.training.training_context import TrainingContext
from support.launch import Launch
from support.scripts import script, training

SCRIPT = script("""
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
""")
NO_LOADER = (
    "paceline: no loader was given to prepare(): nothing is shared out, and each of the 2 workers makes all of the "
    "script's steps (a loop of 50 makes 100)\n"
)
ALIKE = (
    "paceline: the first gradients of workers 0 and 1 are equal bit for bit: both train on the same samples; iterate "
    "over the loader that prepare() returns, or have the script take the share of paceline.worker()\n"
)


NEVER_ITERATED = (
    "paceline: worker 0 makes its first step and has not iterated over the loader that prepare() returned: every "
    "worker trains on all of the data; write model, optimizer, loader = paceline.prepare(…) and iterate over that "
    "loader\n"
)


@pytest.mark.parametrize(
    ("way", "protocol", "said"),
    [
        ("none", "bsp", NO_LOADER + ALIKE),
        ("none", "ps-plus", NO_LOADER + ALIKE),
        ("none", "ad-psgd", NO_LOADER + ALIKE),
        ("share", "asp", NO_LOADER),
        ("other", "asp", NEVER_ITERATED + ALIKE),
    ],
)
def test_workers_that_train_on_the_same_samples_are_told_of(way: str, protocol: str, said: str, launch: Launch) -> None:
    """Without a loader; with a share that the script takes itself; past the loader that prepare() returned."""
    run = launch.run(SCRIPT, "-n", "2", "-p", protocol, "--quiet", "--threads", "1", args=(way,)).completed()
    assert run.err == said


def test_only_the_first_two_workers_that_are_alike_are_told_of() -> None:
    said: list[str] = []
    run_state: Any = SimpleNamespace(output=SimpleNamespace(say=said.append))
    remarks = Remarks(run_state)
    for worker, checksum in ((2, "aa"), (1, "bb"), (2, "aa")):  # the last is its own, once more
        remarks.first_gradient(worker, checksum)
    assert not said
    remarks.first_gradient(0, "aa")
    remarks.first_gradient(3, "bb")
    (line,) = said
    assert "workers 0 and 2 are" in line


def first_gradient(scale: float, *, workers: int = 2, leased: bool = False) -> str | None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    session: Any = object.__new__(Session)
    session.link, session.gradients = SimpleNamespace(workers=workers), Gradients([*model.parameters()])
    stands = Stands(batches=(Batch(0, 0),) if leased else (), skipped=(), again=(), weight=None, samples=0)
    (model(torch.ones(4, 3)).square().mean() * scale).backward()
    found: str | None = session._first_gradient(stands)
    return found


def test_gradients_are_compared_where_they_tell_something() -> None:
    assert first_gradient(1.0) == first_gradient(1.0) is not None
    assert first_gradient(1.0) != first_gradient(1.0001)
    assert first_gradient(0.0) is None, "a gradient of zero tells nothing"
    assert first_gradient(1.0, leased=True) is None, "data that was leased is no other worker's"
    assert first_gradient(1.0, workers=1) is None


# --- what the script did not use


@pytest.mark.parametrize(
    ("steps", "fetched", "resumed", "line"),
    [
        (True, 64, False, None),  # samples were missed, and counted as such
        (False, 0, False, "no step was made after paceline.prepare(); put that line before the training"),
        (False, 1536, False, "1,536 samples were fetched, and optimizer.step() was never called on the prepared"),
        (False, 0, True, "no step was made: the run had used all batches of its epochs; ask for more"),
    ],
)
def test_a_run_without_a_step_says_so_at_its_end(steps: bool, fetched: int, resumed: bool, line: str | None) -> None:
    offer: Any = SimpleNamespace(loads=True, optimizer="SGD")
    told = unused(offer, steps=steps, fetched=fetched, resumed=resumed)
    assert told is None if line is None else str(told).startswith(line)


# --- how many loops there are


def counting(planned: int | None, loops: list[int], worker: int = 0) -> list[str]:
    """What is said of a script with `prepare(epochs=planned)`, and loops over `paceline.epochs()` one by one."""
    said: list[str] = []
    context: Any = SimpleNamespace(link=SimpleNamespace(worker=worker, remark=said.append))
    counted = Loops(planned, 1, None, list, partial(TrainingContext.remark, context))
    for number in loops:
        counted.goes_on(number, steps=0)
    return said


@pytest.mark.parametrize(
    ("planned", "loops", "line"),
    [
        (3, [3], None),
        (None, [3], None),
        (None, [3, 3], None),
        (2, [3, 3], "loops over paceline.epochs(3) after prepare(epochs=2): training ends after 2 of them; say the"),
        (5, [3], "loops over paceline.epochs(3) after prepare(epochs=5): training is planned for 5 of them; say the"),
        (None, [2, 3], "loops over paceline.epochs(3) after paceline.epochs(2): training ends after 2 of them; say"),
    ],
)
def test_another_number_of_epochs_than_was_said_before_is_told_of_once_as_its_loop_begins(
    planned: int | None, loops: list[int], line: str | None
) -> None:
    said = counting(planned, loops)
    assert (said == []) if line is None else (len(said) == 1 and said[0].startswith(line))
    assert counting(planned, loops, worker=1) == [], "worker 0 speaks for all"


# --- loops after the last epoch


OVER = "these epochs are over and this loop gets no batches"


@pytest.mark.parametrize(
    ("said", "flag", "line"),
    [
        (None, None, f"paceline.epochs(): {OVER}; give it or --epochs more"),
        (2, None, f"prepare(epochs=2): {OVER}; give prepare or --epochs more"),
        (2, 3, f"--epochs 3: {OVER}; give --epochs more"),
    ],
)
def test_who_said_the_last_epoch_is_named(said: int | None, flag: int | None, line: str) -> None:
    offer: Any = SimpleNamespace(epochs=said)
    settings: Any = SimpleNamespace(epochs=flag)
    assert epochs_over(offer, settings) == line


def test_a_run_that_loops_on_after_its_last_epoch_says_so_once(launch: Launch) -> None:
    loops_on = "for epoch in range(2):\n    for x, y in loader:\n        raise SystemExit('a batch')"
    run = launch.run(training(epochs=1, samples=16, after=loops_on), "-n", "2", "--quiet").completed()
    assert run.err == (
        "paceline: prepare(epochs=1): these epochs are over and this loop gets no batches; "
        "give prepare or --epochs more\n"
    )


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
        ({"WORLD_SIZE": "4", "PACELINE_ALONE": "1"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, False),
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, True),
    ],
)
def test_processes_that_another_launcher_started_are_told_once_of_paceline_run(
    environment: dict[str, str], told: bool
) -> None:
    line = unjoined(environment)
    assert (line is not None) == told
    if line is not None:
        assert line.startswith("paceline: each of these 4 processes trains a model of its own")
        assert line.endswith("start the script with `paceline run -n 4 SCRIPT` instead")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_prepare_says_it_and_leaves_the_script_as_it_is(
    rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare.ScriptProcess, "prepared", False)
    monkeypatch.setattr(prepare.ScriptProcess, "link", None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(4, 2)))
    assert prepare.prepare(model, optimizer, loader) == (model, optimizer, loader)
    line = unjoined(os.environ)
    assert capsys.readouterr().err == ("" if line is None else line + "\n")
