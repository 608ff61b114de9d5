"""`[[host]]` tables in runs: how many workers each host has, and what the links between hosts take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.cluster.scenario import HostTable, Scenario
from paceline.errors import ConfigError
from paceline.runs.run import settled
from support.launch import Launch
from support.recorded import checked
from support.runs import Run

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

torch.manual_seed(3)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
UNEQUAL = """
[[host]]
name = "small"
workers = 1
[[host]]
name = "big"
workers = 2
"""
TABLES = Scenario(
    nodes=2,
    workers=3,
    host_tables=(HostTable(name="small", workers=range(1)), HostTable(name="big", workers=range(1, 3))),
)


def written(folder: Path, text: str) -> Path:
    file = folder / "hosts.toml"
    file.write_text(text)
    return file


def hosts_in(run: Run) -> list[str]:
    ((facts,),) = run.rows("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    return [host for _, host, _ in json.loads(facts)["members"]]


def test_tables_say_how_many_hosts_and_workers_there_are() -> None:
    assert settled(TABLES, None) == (TABLES, 3, 2)
    assert settled(TABLES, None, hosts=2)[1:] == (3, 2)


@pytest.mark.parametrize(
    ("workers", "hosts", "told"),
    [
        (None, 3, "--emulate-hosts is 3, and scenario has 2 [[host]] tables: leave it out"),
        (None, 1, "--emulate-hosts is 1, and scenario has 2 [[host]] tables: leave it out"),
        (1, None, "-n is 1, and the [[host]] tables of scenario have 1, 2 workers: leave -n out"),
    ],
)
def test_flags_that_contradict_the_tables_are_refused(workers: int | None, hosts: int | None, told: str) -> None:
    with pytest.raises(ConfigError, match="leave") as caught:
        settled(TABLES, workers, hosts)
    assert str(caught.value) == told


def test_hosts_of_unequal_size_train_and_the_run_is_made_again_by_its_configuration(launch: Launch) -> None:
    file = written(launch.tmp_path, UNEQUAL)
    run = launch.run(SCRIPT, "--scenario", str(file), "--threads", "1", "-p", "ssp").completed()
    assert hosts_in(run) == ["small", "big", "big"]
    assert run.summary["samples"] == 2 * 96
    assert (found := checked(run.folder)).ok, found.wrong
    again = launch.run(SCRIPT, "--config", str(run.folder / "config.toml")).completed()
    assert hosts_in(again) == ["small", "big", "big"]


TWICE = """
[[event]]
worker = 1
at_step = 3
kill = true
[[event]]
worker = 1
at_step = 5
kill = true
"""


@pytest.mark.parametrize(
    ("text", "flags", "told"),
    [
        (UNEQUAL, ("-p", "all-reduce"), "hosts.toml: [[host]]: all-reduce runs on one host only so far"),
        (UNEQUAL, ("-p", "ddp"), "hosts.toml: -p ddp runs on one host"),
        (TWICE, ("-p", "bsp"), "hosts.toml: event 2: worker 1 is killed, which event 1 has done by then"),
    ],
)
def test_what_a_run_can_not_do_is_one_line(text: str, flags: tuple[str, ...], told: str, launch: Launch) -> None:
    run = launch.run(SCRIPT, "--scenario", str(written(launch.tmp_path, text)), *flags)
    assert run.code == 2
    assert told in run.err
    assert len(run.err.splitlines()) == 1
