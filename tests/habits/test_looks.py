"""A look at the loader before training takes nothing from it: the epoch that it began begins anew."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from paceline.cli.check import WRONG
from paceline.cli.main import main
from paceline.protocols import registry
from paceline.records.check import rules
from support.launch import Launch
from support.runs import Run

SCRIPT = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

looks, loaders = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(256, 4), torch.randn(256, 2))
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=loaders)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
if looks == 1:
    x, y = next(iter(loader))
elif looks:
    for number, (x, y) in enumerate(loader):
        if number == looks - 1:
            break
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
"""


def look(launch: Launch, looks: int, *flags: str, loaders: int = 0) -> Run:
    args = (str(looks), str(loaders))
    return launch.run(SCRIPT, "--threads", "1", "--seed", "4", *flags, args=args).completed()


@pytest.mark.parametrize("protocol", sorted(registry()))
def test_two_workers_that_look_first_train_every_sample_once(protocol: str, launch: Launch) -> None:
    ended = look(launch, 1, "-n", "2", "-p", protocol)
    assert (ended.summary["samples"], ended.summary["samples_missed"]) == (512, 0)
    assert ended.rows("SELECT DISTINCT epoch FROM epochs ORDER BY epoch") == [(0,), (1,)]
    assert ended.rows("SELECT count(*) FROM batches") == [(64,)], "none is skipped"
    assert main(["check", str(ended.folder)]) == 0


@pytest.mark.parametrize(("looks", "loaders"), [(1, 0), (3, 2)])
def test_a_run_is_the_same_to_the_bit_with_a_look_and_without(looks: int, loaders: int, launch: Launch) -> None:
    plain, looked = (look(launch, number, "-n", "1", "-p", "bsp", loaders=loaders) for number in (0, looks))
    assert looked.summary["final_parameters_sha256"] == plain.summary["final_parameters_sha256"]
    assert looked.rows("SELECT epoch, batch FROM batches") == plain.rows("SELECT epoch, batch FROM batches")
    assert len(looked.rows("SELECT * FROM looks")) == looks + 2 * loaders, "and those that were fetched ahead"
    assert plain.rows("SELECT * FROM looks") == []
    assert main(["check", str(looked.folder)]) == 0
    assert main(["replay", str(looked.folder), "--out", str(looked.folder / "again")]) == 0


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("INSERT INTO looks VALUES (0, 1, 5)", rules.LEASED),
        ("INSERT INTO looks SELECT * FROM looks", rules.LEASED),
        ("INSERT INTO looks VALUES (0, 7, 5)", rules.LOOKED_AT),
    ],
)
def test_a_look_that_was_none_is_found(
    change: str, rule: str, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder: Path = look(launch, 1, "-n", "1", "-p", "bsp").folder
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        database.execute(change)
    assert main(["check", str(folder)]) == WRONG
    assert rule in capsys.readouterr().out
