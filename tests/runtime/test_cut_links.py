"""Links between the hosts of a run that break, stall and come back: nothing is lost, and nothing is doubled."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cut_links import KINDS, LONG, WAYS, Kind, Link, Links, Way
from support.events import said
from support.floods import KINDS as KINDS_OF_FLOODS
from support.floods import flood
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, ended, replayed
from support.suites import each

SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

THERE = Path(__file__).parent
def wait(name):
    while not (THERE / name).exists():
        time.sleep(0.002)

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(192, 6), torch.randint(0, 3, (192,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
batches = 0
for epoch in range(2):
    for x, y in loader:
        batches += 1
        EACH_STEP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
SAMPLES = 2 * 192
HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1", "--shards", "static")
MEETS = """
        if batches == 3 and paceline.worker() == 2:
            (THERE / "third").touch()
            wait("mended")
"""


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    links = Links(tmp_path / "links", "node-1")
    yield links
    links.close()


@pytest.fixture
def link(links: Links) -> Link:
    return links.by_host["node-1"]


def script(each_step: str = "pass") -> str:
    return SCRIPT.replace("EACH_STEP", each_step.strip())


def await_file(path: Path) -> None:
    deadline = time.monotonic() + LONG
    while not path.exists():
        assert time.monotonic() < deadline, f"there is no {path} in {LONG} s"
        time.sleep(0.002)


def went_on(run: Run) -> None:
    """No host was lost, each sample was used once, and a replay comes to the same bits."""
    run.completed()
    assert "is lost" not in run.err
    assert (run.summary["samples"], run.summary["samples_missed"]) == (SAMPLES, 0)
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out


@pytest.mark.parametrize("protocol", each(["sync-switch", "bsp", "ps-plus"], default=("sync-switch",)))
def test_connections_that_are_cut_amid_any_message_lose_and_double_nothing(
    protocol: str, links: Links, link: Link, launch: Launch
) -> None:
    chance = random.Random(protocol)

    def limit(kind: Kind) -> tuple[Way, int] | None:
        return (chance.choice(WAYS), chance.randint(500, 5_000)) if link.made[kind] <= 4 else None

    link.limit, link.delay = limit, 0.001
    went_on(launch.run(script(), *HOSTS, "-p", protocol, first=links.first))
    assert link.cuts >= 6


def test_a_link_that_comes_back_in_time_goes_on_where_it_was(links: Links, link: Link, launch: Launch) -> None:
    process = launch.start(script(MEETS), *HOSTS, "-p", "asp", first=links.first)
    await_file(launch.tmp_path / "third")
    link.block()
    link.await_made("control", 2)
    link.mend()
    (launch.tmp_path / "mended").touch()
    went_on(ended(process))


def memory(process: int) -> float:
    """MiB that the process has in memory."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.long  # tests/host/test_floods.py has what a door does, without a run
@pytest.mark.parametrize("kind", sorted(KINDS_OF_FLOODS))
def test_a_run_goes_on_beside_a_flood_and_a_host_that_is_cut_off_comes_back(
    kind: str, links: Links, link: Link, launch: Launch, tmp_path: Path
) -> None:
    """The flood comes from the host's own address, and the host is 25 ms away."""
    link.delay = 0.025
    process = launch.start(script(MEETS), *HOSTS, "-p", "asp", first=links.first)
    await_file(launch.tmp_path / "third")
    before = memory(process.pid)
    with flood(tuple(json.loads((tmp_path / "links" / "node-1").read_text())), kind, 200):
        time.sleep(3.0)
        for _ in range(2):
            made = dict(link.made)
            link.cut()
            for each_kind in KINDS:
                link.await_made(each_kind, 1 + made[each_kind] - link.made[each_kind])
            time.sleep(1.0)
        assert memory(process.pid) < before + 20
        (launch.tmp_path / "mended").touch()
        run = ended(process)
    went_on(run)


@pytest.mark.long  # that a host dials again after three beats is stated without a clock in tests/fabric/test_control.py
@pytest.mark.parametrize("way", WAYS)
def test_a_connection_that_passes_nothing_on_one_way_is_replaced_in_time(
    way: Way, links: Links, link: Link, launch: Launch
) -> None:
    """The kernels of both sides find nothing wrong with it: only beats are missing."""
    process = launch.start(script(MEETS), *HOSTS, "-p", "asp", "--host-timeout", "8", first=links.first)
    await_file(launch.tmp_path / "third")
    link.stall(["control"], [way])
    (launch.tmp_path / "mended").touch()
    link.await_made("control", 1)
    link.mend()
    went_on(ended(process))


@pytest.mark.parametrize("kinds", [KINDS, *(pytest.param((kind,), marks=pytest.mark.long) for kind in KINDS)])
def test_a_host_whose_link_does_not_come_back_in_time_is_lost_and_the_others_go_on(
    kinds: tuple[Kind, ...], links: Links, link: Link, launch: Launch
) -> None:
    process = launch.start(script(MEETS), *HOSTS, "-p", "asp", "--host-timeout", "2", first=links.first)
    await_file(launch.tmp_path / "third")
    link.block(kinds)
    if "control" not in kinds:
        (launch.tmp_path / "mended").touch()
    run = ended(process).completed()
    why = "its connection was lost, and it has not come back"
    why = why if "control" in kinds else "it and host node-0 can't reach each other"
    assert f"host node-1 is lost: {why}" in run.err
    left = run.rows("SELECT json_extract(body, '$.worker') FROM facts WHERE kind = 'WorkerLeft' AND body LIKE '%died%'")
    assert left == [(2,), (3,)]
    assert (found := checked(run.folder)).ok, found.wrong
    launch.assert_nothing_left()


BACK = """
        if paceline.resumed():
            (THERE / "back").touch()
        if batches >= 3 and not (THERE / "back").exists():
            time.sleep(0.05)
        if batches == 3 and paceline.worker() < 2 and not paceline.resumed():
            (THERE / f"third-{paceline.worker()}").touch()
            wait("mended")
"""


@pytest.mark.long
def test_a_host_whose_link_was_cut_for_too_long_comes_back_as_a_new_incarnation(
    links: Links, link: Link, launch: Launch
) -> None:
    """It has ended its workers by then, as the head has given them up."""
    flags = (*HOSTS[:-2], "-p", "asp", "--host-timeout", "2", "--restart", "1")
    process = launch.start(script(BACK), *flags, first=links.first)
    for worker in (0, 1):
        await_file(launch.tmp_path / f"third-{worker}")
    link.block()
    said(process, "host node-1 is lost: its connection was lost, and it has not come back")
    link.mend()
    said(process, "host node-1 is back")
    (launch.tmp_path / "mended").touch()
    run = ended(process)
    joined = run.rows("SELECT count(*) FROM facts WHERE kind = 'WorkerJoined'")
    assert joined[0][0] >= 1
    went_on(run)
