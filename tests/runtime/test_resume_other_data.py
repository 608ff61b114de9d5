"""A run goes on with more data, or another batch size: where an epoch begins, and not within one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paceline.cli.main import main
from support.launch import Launch
from support.replays import broken_replay
from support.runs import Run
from support.suites import each

SCRIPT = """
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

samples, size, signs = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]


def made(name):
    os.makedirs(os.path.join(signs[0], name), exist_ok=True)


def wait_for(name):
    while not os.path.exists(os.path.join(signs[0], name)):
        time.sleep(0.01)


model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
loader = DataLoader(TensorDataset(torch.arange(float(samples)).reshape(-1, 1)), batch_size=size, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader)
for epoch in paceline.epochs(2):
    for number, (x,) in enumerate(loader):
        if signs and paceline.worker() == 1 and epoch == 0:
            wait_for("seven")
            made("took")
        elif signs and paceline.worker() == 1:
            made("next")
            wait_for("stopped")
        elif signs and number == 6:  # worker 1 gets the eighth batch, steps, and begins the next epoch
            made("seven")
            wait_for("took")
            wait_for("next")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if signs and paceline.worker() == 0:
        made("stopped")
"""


def goes_on(
    launch: Launch, tmp_path: Path, protocol: str, ends: tuple[str, str], samples: int, size: int, *signs: str
) -> Run:
    """A run over 64 samples in batches of 8 that ended as this flag says, and goes on with 2 epochs otherwise."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    flags = ("-n", "2", "-p", protocol, "--checkpoint", "2")
    stopped = launch.run(script, *flags, *ends, args=("64", "8", *signs)).completed()
    return launch.resume(stopped.folder, "--epochs", "2", str(script), str(samples), str(size))


@pytest.mark.parametrize(("samples", "size"), each([(96, 8), (64, 16), (48, 12)], default=((48, 12),)))
@pytest.mark.parametrize("protocol", each(["asp", "bsp", "all-reduce", "ad-psgd", "ps-plus"], default=("asp",)))
def test_a_run_goes_on_with_other_data_where_an_epoch_begins(
    samples: int, size: int, protocol: str, launch: Launch, tmp_path: Path
) -> None:
    run = goes_on(launch, tmp_path, protocol, ("--epochs", "1"), samples, size).completed()
    counted = run.rows("SELECT epoch, count(*) FROM applied_samples GROUP BY epoch, sample")
    assert counted == [(0, 1)] * 64 + [(1, 1)] * samples
    assert main(["check", str(run.folder)]) == 0


@pytest.mark.parametrize("samples", each([24, 96, 64], default=(24,)))
def test_an_epoch_that_a_worker_has_begun_and_not_used_begins_anew(
    samples: int, launch: Launch, tmp_path: Path
) -> None:
    run = goes_on(launch, tmp_path, "asp", ("--max-steps", "8"), samples, 8, str(tmp_path)).completed()
    assert run.rows("SELECT count(*) FROM leases WHERE epoch = 1")[0][0] == samples // 8 + 1, "one was in vain"
    counted = run.rows("SELECT epoch, count(*) FROM applied_samples GROUP BY epoch, sample")
    assert counted == [(0, 1)] * 64 + [(1, 1)] * samples
    assert main(["check", str(run.folder)]) == 0
    assert broken_replay(run) == []


@pytest.mark.parametrize(("samples", "size"), each([(96, 8), (64, 16)], default=((96, 8),)))
def test_within_an_epoch_the_line_names_what_has_changed(
    samples: int, size: int, launch: Launch, tmp_path: Path
) -> None:
    run = goes_on(launch, tmp_path, "asp", ("--max-steps", "12"), samples, size)
    assert run.code == 2
    assert re.search("the run goes on within epoch [01], which began with 64 samples in batches of 8", run.err)
    assert "the data, the batch size or the sampler has changed" in run.err
    assert (
        launch.resume(run.folder, "--epochs", "2", str(tmp_path / "train.py"), "64", "8").completed().summary["samples"]
        == 128
    )
