"""Sync-Switch's `momentum` in the store's optimizer: in real runs, in replays, and with gradients in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from support import nursery
from support.launch import Launch
from support.runs import Run, run, side_by_side
from support.runs import ended as ended_run
from support.scripts import training

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader

import paceline

model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(range(40)), epochs=1)
for _ in loader:
    model.weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""Every gradient is 1, so that the weight says with which momentum each version was made, whatever the order."""

PROTOCOL = "sync-switch:switch_at=0.5,rescale=none,momentum="
CLUSTER = '[cluster]\nworkers = 2\ncompute = "10ms"\njitter = 0.2\n'
MOMENTA = {
    "keep": [0.5] * 30,
    "zero": [0.5] * 10 + [0.0] * 20,
    "ramp": [0.5] * 10 + [0.25] * 5 + [0.5] * 15,
}
"""Ten versions of two gradients, then twenty of one. A stage of two workers is an eighth of the 40 samples."""

Runs = dict[str, Future[Run]]


def expected(momenta: list[float]) -> float:
    """What plain SGD makes of as many gradients of 1 with these values."""
    weight = torch.zeros(1, dtype=torch.float64)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=momenta[0])
    for momentum in momenta:
        optimizer.param_groups[0]["momentum"] = momentum
        weight.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
    return weight.item()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("momentum")
    (folder / "cluster.toml").write_text(CLUSTER)
    (folder / "train.py").write_text(SCRIPT)

    def real(policy: str) -> Run:
        flags = ("-n", "2", "-p", f"{PROTOCOL}{policy}", "--threads", "1", "--tee", "none")
        return run(SCRIPT, *flags, tmp_path=folder).completed()

    def again(policy: str) -> Run:
        replayed = ["replay", str(real(policy).folder), "--out", str(folder / f"{policy} again")]
        return ended_run(started(replayed, folder / f"{policy} again"), timeout=60)

    def virtual(policy: str) -> Run:
        out = folder / f"{policy} virtual"
        simulated = ["simulate", str(folder / "cluster.toml"), "-p", f"{PROTOCOL}{policy}", "--out", str(out)]
        return ended_run(started([*simulated, "--gradients", str(folder / "train.py")], out), timeout=60)

    def started(arguments: list[str], out: Path) -> nursery.Process:
        process = nursery.Process(arguments, {})
        process.folder = out  # type: ignore[attr-defined]
        return process

    calls = {
        "keep": lambda: real("keep"),
        "zero": lambda: real("zero"),
        "ramp, replayed": lambda: again("ramp"),
        "zero, virtual": lambda: virtual("zero"),
        "ramp, virtual": lambda: virtual("ramp"),
    }
    with side_by_side(calls) as futures:
        yield futures


@pytest.mark.parametrize("name", ["keep", "zero", "ramp, replayed", "zero, virtual", "ramp, virtual"])
def test_each_version_after_the_switch_is_stepped_with_the_momentum_of_the_policy(name: str, runs: Runs) -> None:
    ended = runs[name].result().completed()
    assert [switch["to"] for switch in ended.summary["switches"]] == ["asp"]
    assert ended.final()["weight"].item() == expected(MOMENTA[name.partition(",")[0]])


def test_the_policies_are_told_apart_by_what_they_come_to() -> None:
    """What the test above rests on."""
    assert len({expected(momenta) for momenta in MOMENTA.values()}) == 3


def test_an_optimizer_without_momentum_is_refused_in_one_line(launch: Launch) -> None:
    script = training(before="optimizer = torch.optim.AdamW(model.parameters())")
    ended = launch.run(script, "-n", "2", "-p", f"{PROTOCOL}zero")
    assert ended.code == 2
    assert "sync-switch: momentum is zero, and the script's optimizer has none that could change" in ended.err
    assert "Traceback" not in ended.err
