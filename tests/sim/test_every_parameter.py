"""Every value of every parameter of every protocol: real gradients in virtual time, and their replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.choice import choose, typed
from paceline.protocols import registry
from support import nursery
from support.runs import Run, ended
from support.settings import covering, every
from support.suites import each

pytestmark = pytest.mark.real_run

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

torch.manual_seed(3)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = TensorDataset(torch.randn(144, 6), torch.randint(0, 3, (144,)))
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True), epochs=1)
for x, y in loader:
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

CLUSTER = """
[cluster]
workers = {workers}
nodes = {nodes}
compute = "100ms"
jitter = 0.2
[network]
bandwidth = "10KB/s"
latency = "1ms"
[[worker]]
index = 2
speed = 0.3
[[event]]
worker = 1
at = "900ms"
kill = true
"""
"""A transfer takes about a tenth of a step, one worker is slow, and one dies with a third of the work done."""

FEW = [
    choose(typed(spec.name, setting), registry()).name for spec in registry().values() for setting in covering(spec, 1)
]
ALL = [
    choose(typed(spec.name, setting), registry()).name
    for spec in registry().values()
    for setting in (covering(spec, 2) if spec.parts else every(spec))
]
"""Of a protocol that is made of others there are thousands of settings: every pair of values is enough."""
AHEAD = (
    "hsp:idle=always,stale=accumulate",
    "sync-switch:first=hsp:idle=always,stale=accumulate,switch_at=1.0",
)
"""A worker computes while two updates of it wait for the same version."""


def comes_to_its_end_and_is_made_again(
    protocol: str, folder: Path, workers: int, nodes: int, script: str = SCRIPT
) -> None:
    """Training in virtual time, and its replay. What hangs fails here, too."""
    (folder / "cluster.toml").write_text(CLUSTER.format(workers=workers, nodes=nodes))
    if "unit=sample" in protocol:  # batches are cut into eight
        script = script.replace("batch_size=4", "batch_size=16")
    (folder / "train.py").write_text(script)

    def made(name: str, command: str, of: str, *flags: str) -> Run:
        process = nursery.Process([command, str(folder / of), "--out", str(folder / name), *flags])
        process.folder = folder / name  # type: ignore[attr-defined]
        return ended(process, timeout=60)

    flags = ("-p", protocol, "--seed", "7", "--record", "16", "--gradients", str(folder / "train.py"))
    trained = made("trained", "simulate", "cluster.toml", *flags).completed()
    assert trained.summary["samples"] + trained.summary["samples_missed"] == 144
    again = made("again", "replay", "trained")
    assert again.code == 0, again.out + again.err
    assert "the same bits" in again.out
    assert again.summary["final_parameters_sha256"] == trained.summary["final_parameters_sha256"]


@pytest.mark.parametrize("protocol", each([*FEW, *AHEAD], default=[*FEW[1::2], *AHEAD]))
def test_every_value_of_every_parameter_trains_in_virtual_time_and_replays(protocol: str, tmp_path: Path) -> None:
    comes_to_its_end_and_is_made_again(protocol, tmp_path, workers=3, nodes=1)


def test_a_script_that_does_not_say_for_how_many_epochs_it_trains_replays(tmp_path: Path) -> None:
    """Where a worker declines its last step in virtual time, its script may already be through."""
    unsaid = SCRIPT.replace(", epochs=1", "")
    assert unsaid != SCRIPT
    comes_to_its_end_and_is_made_again("asp", tmp_path, workers=3, nodes=1, script=unsaid)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ALL)
def test_every_value_does_beside_every_other(protocol: str, tmp_path: Path) -> None:
    comes_to_its_end_and_is_made_again(protocol, tmp_path, workers=4, nodes=2)
