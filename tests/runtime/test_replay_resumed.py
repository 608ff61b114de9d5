"""Runs that were stopped and resumed are made again, segment by segment, to the same bits."""

from __future__ import annotations

import pytest

from paceline.protocols import registry
from support import nursery
from support.launch import Launch
from support.recorded import checked
from support.runs import Run

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=3, keep={"scheduler": scheduler})
for epoch in paceline.epochs(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        paceline.log(loss=loss.item())
    scheduler.step()
paceline.finish()
"""


def replayed(recorded: Run, *flags: str, name: str = "again") -> Run:
    folder = recorded.folder.parent / name
    process = nursery.Process(["replay", str(recorded.folder), "--out", str(folder), *flags])
    out, err = process.communicate(timeout=120)
    return Run(code=process.returncode, out=out, err=err, folder=folder)


def same(recorded: Run, again: Run, query: str) -> bool:
    return recorded.rows(query) == again.rows(query)


@pytest.mark.parametrize("protocol", sorted(registry()))
def test_a_run_of_three_segments_ends_on_the_same_bits_again(protocol: str, launch: Launch) -> None:
    flags = ("-n", "2", "-p", protocol, "--checkpoint", "2", "--threads", "1")
    stopped = launch.run(SCRIPT, *flags, "--max-steps", "31").completed()
    launch.resume(stopped.folder, "--max-steps", "50").completed()
    recorded = launch.resume(stopped.folder).completed()
    again = replayed(recorded)
    assert again.code == 0, again.out + again.err
    assert again.summary["segments"] == 3
    assert again.summary["samples"] == 288
    assert again.summary["final_parameters_sha256"] == recorded.summary["final_parameters_sha256"]
    for query in (
        "SELECT kind, body FROM facts ORDER BY id",
        "SELECT version, checksum FROM checksums ORDER BY version",
        "SELECT version, sha256, samples FROM versions ORDER BY version",
        "SELECT version, worker, step, epoch, sample FROM applied_samples ORDER BY version, worker, step, sample",
    ):
        assert same(recorded, again, query), query
    assert checked(again.folder).ok
