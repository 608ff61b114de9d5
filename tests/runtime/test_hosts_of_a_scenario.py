"""`[[host]]` tables in runs: how many workers each host has, and what the links between hosts take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.runs.run import settled
from paceline.scenario.scenario import HostTable, Scenario
from support import nursery
from support.launch import Launch
from support.recorded import checked
from support.runs import Run
from support.suites import each

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
ONE_EPOCH = SCRIPT.replace("epochs=2", "epochs=1").replace("range(2)", "range(1)")
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


def test_workers_that_hosts_can_t_share_evenly_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError) as caught:
        settled(Scenario(workers=4), None, hosts=3)
    assert str(caught.value) == (
        "scenario: its 4 workers can't be shared out evenly to 3 hosts; give -n, the workers of each host"
    )


def test_hosts_of_unequal_size_train_and_the_run_is_made_again_by_its_configuration(launch: Launch) -> None:
    file = written(launch.tmp_path, UNEQUAL)
    run = launch.run(SCRIPT, "--scenario", str(file), "--threads", "1", "-p", "ssp").completed()
    assert hosts_in(run) == ["small", "big", "big"]
    assert run.summary["samples"] == 2 * 96
    assert (found := checked(run.folder)).ok, found.wrong
    again = launch.run(SCRIPT, "--config", str(run.folder / "config.toml")).completed()
    assert hosts_in(again) == ["small", "big", "big"]


LINKED = """
[cluster]
compute = "20ms"
[network]
message = "1MB"
[[host]]
workers = 1
bandwidth = "25MB/s"
latency = "10ms"
[[host]]
name = "far"
workers = 2
bandwidth = "50MB/s"
"""
MODEL = 21 * 4
"""Bytes of the script's model."""
RATE = 25e6 * MODEL / 1e6
"""Bytes a second: a model counts as 1 MB."""


@pytest.mark.parametrize("protocol", each(sorted(registry()), default=("hsp", "ad-psgd")))
def test_what_moves_between_hosts_takes_what_their_links_say_or_longer(protocol: str, launch: Launch) -> None:
    file = written(launch.tmp_path, LINKED)
    run = launch.run(ONE_EPOCH, "--scenario", str(file), "--threads", "1", "-p", protocol).completed()
    assert (found := checked(run.folder)).ok, found.wrong
    rows = run.rows("SELECT kind, bytes, ended - began FROM fetches WHERE kind <> 'other'")
    assert rows
    began_early = {"update"} if registry()[protocol].brings_early else set()  # as its first part came
    for kind, size, seconds in rows:
        assert seconds >= 0.01 + size / RATE - 1e-6 or kind in began_early
    again = nursery.Process(["replay", str(run.folder), "--out", str(launch.tmp_path / "again")])
    out, err = again.communicate(timeout=120)
    assert "the same bits" in out, err


def test_a_script_that_looks_at_the_model_while_it_trains_gets_it_over_the_link(launch: Launch) -> None:
    looks = ONE_EPOCH.replace("        optimizer.step()\n", "        optimizer.step()\n        model.state_dict()\n")
    run = launch.run(
        looks, "--scenario", str(written(launch.tmp_path, LINKED)), "--threads", "1", "-p", "asp"
    ).completed()
    assert (found := checked(run.folder)).ok, found.wrong


def test_a_worker_that_is_killed_as_its_update_crosses_leaves_the_link_to_the_others(launch: Launch) -> None:
    text = LINKED + "[[event]]\nworker = 1\nat_step = 3\nkill = true\n"
    flags = ("--scenario", str(written(launch.tmp_path, text)), "--threads", "1", "-p", "ssp", "--on-loss", "continue")
    run = launch.run(ONE_EPOCH, *flags).completed()
    assert run.summary["samples"] + run.summary["samples_missed"] == 96
    assert (found := checked(run.folder)).ok, found.wrong


PACED = """
[network]
bandwidth = "1Gbit/s"
"""
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
        (UNEQUAL, ("-p", "ddp"), "hosts.toml: -p ddp runs on one host"),
        (PACED, ("-p", "bsp", "--emulate-hosts", "2"), "hosts.toml has a [network], which is modelled on one host"),
        (TWICE, ("-p", "bsp"), "hosts.toml: event 2: worker 1 is killed, which event 1 has done by then"),
    ],
)
def test_what_a_run_can_not_do_is_one_line(text: str, flags: tuple[str, ...], told: str, launch: Launch) -> None:
    run = launch.run(SCRIPT, "--scenario", str(written(launch.tmp_path, text)), *flags)
    assert run.code == 2
    assert told in run.err
    assert len(run.err.splitlines()) == 1
