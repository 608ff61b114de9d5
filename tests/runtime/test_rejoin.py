"""Workers that died come back in real runs: what they begin with, and what of theirs counts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.core.facts import Fact, ReplicaCopied, WorkerJoined, WorkerLeft
from paceline.protocols import registry
from paceline.records.reading import open_run
from support import nursery
from support.launch import Launch
from support.recorded import checked
from support.runs import Run

SCRIPT = """
import os, signal
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

torch.manual_seed(0)
x = torch.randn(192, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), 4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=3, keep={"scheduler": scheduler})
BEFORE = None
for epoch in EPOCHS:
    batches = 0
    for a, b in loader:
        batches += 1
        EACH_STEP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
    scheduler.step()
    print("epoch", epoch, "batches", batches)
paceline.finish()
"""


def script(before: str = "", each_step: str = "pass", epochs: str = "paceline.epochs(3)") -> str:
    """`before`: what it does before its loops; `each_step`: before each step."""
    return SCRIPT.replace("BEFORE = None", before).replace("EACH_STEP", each_step).replace("EPOCHS", epochs)


def scenario(launch: Launch, *events: Mapping[str, Any], workers: int = 3, compute: str = "5ms") -> tuple[str, ...]:
    """Flags of a run in which these workers are killed."""
    lines = ["[cluster]", f"workers = {workers}", f'compute = "{compute}"']
    for event in events:
        lines += ["[[event]]", "kill = true", *(f"{key} = {json.dumps(value)}" for key, value in event.items())]
    file = launch.tmp_path / "scenario.toml"
    file.write_text("\n".join(lines))
    return ("--scenario", str(file), "--threads", "1")


def killed(worker: int, step: int, rejoin_after: str | None = "10ms") -> dict[str, Any]:
    back = {} if rejoin_after is None else {"rejoin_after": rejoin_after}
    return {"worker": worker, "at_step": step, **back}


def facts(run: Run, *kinds: type[Fact]) -> list[str]:
    """Kinds and bodies of the facts of these kinds, in order."""
    return [kind for kind, in run.rows("SELECT kind FROM facts ORDER BY id") if kind in {one.__name__ for one in kinds}]


def replayed(run: Run) -> Run:
    folder = run.folder.parent / "again"
    process = nursery.Process(["replay", str(run.folder), "--out", str(folder)])
    out, err = process.communicate(timeout=120)
    return Run(code=process.returncode, out=out, err=err, folder=folder)


TWICE = (killed(1, 4), killed(2, 6), killed(1, 9), killed(2, 12))


@pytest.mark.parametrize("protocol", sorted(registry()))
def test_workers_that_die_twice_come_back_twice_and_the_run_is_whole(protocol: str, launch: Launch) -> None:
    run = launch.run(script(), "-p", protocol, *scenario(launch, *TWICE)).completed()
    assert facts(run, WorkerJoined) == ["WorkerJoined"] * 4
    times = run.rows("SELECT count(*) FROM applied_samples GROUP BY epoch, sample")
    assert set(times) == {(1,)}
    assert len(times) + run.summary["samples_missed"] == 3 * 192
    assert run.summary["samples"] == len(times)
    found = checked(run.folder)
    assert found.ok, found.wrong
    again = replayed(run)
    assert again.code == 0, again.out + again.err
    assert again.summary["final_parameters_sha256"] == run.summary["final_parameters_sha256"]
    query = "SELECT version, checksum FROM checksums ORDER BY version"
    assert again.rows(query) == run.rows(query)
