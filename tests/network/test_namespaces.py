"""Machines that join over real links of 1 Gbit/s: each host is a network namespace of its own."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paceline.net.token import Token, write
from paceline.protocols import registry
from support.events import LONG, said
from support.launch import Launch
from support.namespaces import Network
from support.recorded import checked
from support.runs import Launcher, Run, ended, replayed

pytestmark = pytest.mark.needs_root

STORED = sorted(name for name, spec in registry().items() if spec.versions == "stored")
SCRIPT = """
import time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

THERE = Path(__file__).parent
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
LINGERS = """
        if batches == 3:
            (THERE / f"third-{paceline.worker()}").touch()
        if batches >= 3 and not (THERE / "go-on").exists():
            time.sleep(0.1)
"""
"""Notes that the worker is in its third step, from which on all go slowly until they are to go on."""


@pytest.fixture(autouse=True)
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all hosts of these tests have."""
    write(Token.drawn(), tmp_path / "token")
    monkeypatch.setenv("PACELINE_TOKEN_FILE", str(tmp_path / "token"))


def script(each_step: str = "pass", layers: str = "") -> str:
    """`layers` are the first ones, if they are others."""
    return SCRIPT.replace("EACH_STEP", each_step.strip()).replace("nn.Linear(6, 16)", layers or "nn.Linear(6, 16)")


def begun(
    launch: Launch, network: Network, workers: tuple[int, ...], *flags: str, each_step: str = "pass", layers: str = ""
) -> tuple[Launcher, list[Launcher]]:
    """A run on that network: the head's process, and those of the hosts that join, which have so many workers."""
    listens = "--listen", f"{network.address(0)}:0", "--hosts", str(len(workers)), "--name", "host-0"
    flags = (*listens, "-n", str(workers[0]), "--threads", "1", *flags)
    head = launch.start(script(each_step, layers), *flags, first=network.first(0))
    found = re.search(r"paceline join (\S+) -n", said(head, "paceline join .*\n"))
    assert found is not None
    return head, [
        launch.start_joining(found[1], "--name", f"host-{host}", "-n", str(n), first=network.first(host))
        for host, n in enumerate(workers)
        if host
    ]


def await_file(path: Path) -> None:
    deadline = time.monotonic() + LONG
    while not path.exists():
        assert time.monotonic() < deadline, f"there is no {path} in {LONG} s"
        time.sleep(0.01)


def is_whole(run: Run) -> None:
    """Each sample was used once, and a replay on one machine comes to the same bits."""
    run.completed()
    assert (run.summary["samples"], run.summary["samples_missed"]) == (SAMPLES, 0)
    went_on(run)


def went_on(run: Run) -> None:
    """What was recorded is right, and a replay on one machine comes to the same bits."""
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out


# --- the network itself -------------------------------------------------------------------------

SENDS = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    listener.accept()[0].sendall(bytes(5_000_000))
"""
READS = """
import socket, sys, time
began, came = time.monotonic(), 0
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as end:
    while data := end.recv(1 << 16):
        came += len(data)
print(came, time.monotonic() - began)
"""


def test_a_link_passes_no_more_than_its_rate(networks: Callable[..., Network]) -> None:
    network = networks(2, "100mbit")
    sends = [sys.executable, "-c", SENDS, network.address(0)]
    with subprocess.Popen(sends, stdout=subprocess.PIPE, text=True, preexec_fn=network.enter(0)) as sender:
        assert sender.stdout is not None
        reads = [sys.executable, "-c", READS, network.address(0), sender.stdout.readline().strip()]
        read = subprocess.run(reads, capture_output=True, text=True, preexec_fn=network.enter(1), check=True)
    came, seconds = map(float, read.stdout.split())
    assert came == 5_000_000
    assert seconds > 0.9 * (came - 128 * 1024) * 8 / 100e6


def test_what_runs_in_a_namespace_is_found_and_killed_and_nobody_else(networks: Callable[..., Network]) -> None:
    network = networks(2, None)
    with subprocess.Popen(["sleep", "60"], preexec_fn=network.enter(1)) as process:
        assert (network.processes(0), network.processes(1)) == ([], [process.pid])
        network.kill(0)
        assert process.poll() is None
        network.kill(1)
        assert process.wait(LONG) < 0


def test_networks_know_nothing_of_each_other_and_this_machine_has_no_part_in_them(
    networks: Callable[..., Network],
) -> None:
    before = socket.if_nameindex()
    first, second = networks(2), networks(2)
    assert first.address(0) == second.address(0)
    assert socket.if_nameindex() == before


# --- runs ---------------------------------------------------------------------------------------


def test_a_run_on_two_machines_is_checked_and_replayed_to_the_same_bits(
    launch: Launch, networks: Callable[..., Network]
) -> None:
    head, others = begun(launch, networks(2), (1, 2), "-p", "ssp")
    is_whole(ended(head))
    assert [ended(other).code for other in others] == [0]


@pytest.mark.long
@pytest.mark.parametrize("protocol", STORED)
def test_a_run_on_three_unequal_machines_is_checked_and_replayed_to_the_same_bits(
    protocol: str, launch: Launch, networks: Callable[..., Network]
) -> None:
    head, others = begun(launch, networks(3), (1, 3, 2), "-p", protocol)
    run = ended(head)
    is_whole(run)
    assert [ended(other).code for other in others] == [0, 0]
    if protocol == "bsp":
        one = launch.run(script(), "-n", "6", "--threads", "1", "-p", "bsp").completed()
        assert all(torch.equal(run.final()[name], one.final()[name]) for name in one.final())


@pytest.mark.long
def test_a_run_over_a_trusted_network_is_checked_and_replayed_to_the_same_bits(
    launch: Launch, networks: Callable[..., Network]
) -> None:
    """In plain."""
    network = networks(2)
    listens = "--listen", f"{network.address(0)}:7117", "--hosts", "2", "--name", "host-0", "-n", "1"
    head = launch.start(script(), *listens, "--threads", "1", "--trusted-network", first=network.first(0))
    joins = f"{network.address(0)}:7117", "--wait", "--name", "host-1", "-n", "2", "--trusted-network"
    other = launch.start_joining(*joins, first=network.first(1))
    is_whole(ended(head))
    assert ended(other).code == 0


@pytest.mark.long
@pytest.mark.parametrize("host", [0, 1])
def test_a_cable_that_is_pulled_and_plugged_in_again_in_time_loses_nothing(
    host: int, launch: Launch, networks: Callable[..., Network]
) -> None:
    network = networks(2)
    head, (other,) = begun(launch, network, (1, 2), "-p", "asp", "--host-timeout", "20", each_step=LINGERS)
    for worker in range(3):
        await_file(launch.tmp_path / f"third-{worker}")
    network.cut(host)
    (launch.tmp_path / "go-on").touch()
    time.sleep(2)
    network.mend(host)
    run = ended(head)
    is_whole(run)
    assert "is lost" not in run.err
    assert ended(other).code == 0


@pytest.mark.long
def test_a_machine_whose_cable_is_pulled_for_too_long_is_lost_and_the_others_go_on(
    launch: Launch, networks: Callable[..., Network]
) -> None:
    network = networks(3)
    flags = "-p", "asp", "--on-loss", "continue", "--host-timeout", "3"
    head, (stays, other) = begun(launch, network, (1, 1, 2), *flags, each_step=LINGERS)
    for worker in range(4):
        await_file(launch.tmp_path / f"third-{worker}")
    network.cut(2)
    said(head, "host host-2 is lost: .*\n")
    (launch.tmp_path / "go-on").touch()
    run = ended(head).completed()
    assert run.summary["samples"] + run.summary["samples_missed"] == SAMPLES
    went_on(run)
    assert ended(stays).code == 0
    assert ended(other).code != 0


@pytest.mark.long
def test_a_machine_whose_cable_was_pulled_for_too_long_comes_back(
    launch: Launch, networks: Callable[..., Network]
) -> None:
    network = networks(2)
    flags = "-p", "asp", "--restart", "1", "--host-timeout", "3"
    head, (other,) = begun(launch, network, (1, 2), *flags, each_step=LINGERS)
    for worker in range(3):
        await_file(launch.tmp_path / f"third-{worker}")
    network.cut(1)
    said(head, "host host-1 is lost: .*\n")
    network.mend(1)
    said(head, r"worker 1 is back(.|\n)*worker 2 is back|worker 2 is back(.|\n)*worker 1 is back")
    (launch.tmp_path / "go-on").touch()
    is_whole(ended(head))
    assert ended(other).code == 0


WIDE = "nn.Linear(6, 1024), nn.Tanh(), nn.Linear(1024, 1536), nn.Linear(1536, 16)"
"""Makes the model one of several pieces, of which each host makes some."""


@pytest.mark.long
def test_joiners_that_cannot_reach_each_other_end_a_run_in_which_they_make_ranges(
    launch: Launch, networks: Callable[..., Network]
) -> None:
    network = networks(3)
    network.separate(1, 2)
    flags = "-p", "asp", "--host-timeout", "3"
    head, others = begun(launch, network, (1, 1, 1), *flags, each_step=LINGERS, layers=WIDE)
    run = ended(head)
    assert run.code == 3
    assert "host host-2 is lost: it and host host-1 can't reach each other" in run.err
    assert "failed: host host-2 made a part of every version, and it is lost" in run.out
    assert [ended(other).code for other in others] == [3, 3]


@pytest.mark.long
def test_joiners_that_lose_each_other_end_a_run_in_which_they_make_ranges(
    launch: Launch, networks: Callable[..., Network]
) -> None:
    """Nothing is said to either: what one sends is not acknowledged any more."""
    network = networks(3)
    flags = "-p", "asp", "--host-timeout", "3"
    head, others = begun(launch, network, (1, 1, 1), *flags, each_step=LINGERS, layers=WIDE)
    for worker in range(3):
        await_file(launch.tmp_path / f"third-{worker}")
    network.separate(1, 2)
    (launch.tmp_path / "go-on").touch()
    run = ended(head)
    assert run.code == 3, run.err
    assert "host host-2 is lost: it and host host-1 can't reach each other" in run.err
    assert [ended(other).code for other in others] == [3, 3]


@pytest.mark.long
def test_joiners_that_cannot_reach_each_other_go_on_where_nothing_moves_between_them(
    launch: Launch, networks: Callable[..., Network]
) -> None:
    """The model has one piece, which is made at the head."""
    network = networks(3)
    network.separate(1, 2)
    flags = "-p", "asp", "--host-timeout", "3"
    head, others = begun(launch, network, (1, 1, 1), *flags, each_step=LINGERS)
    for worker in range(3):
        await_file(launch.tmp_path / f"third-{worker}")
    time.sleep(5)
    (launch.tmp_path / "go-on").touch()
    is_whole(ended(head))
    assert [ended(other).code for other in others] == [0, 0]


@pytest.mark.long
@pytest.mark.parametrize("power", ["of its processes", "of the machine"])
def test_a_machine_that_loses_power_is_lost_and_the_others_go_on(
    power: str, launch: Launch, networks: Callable[..., Network]
) -> None:
    """Nobody says good-bye for a machine: the head hears no more of it. For its processes, its kernel does."""
    network = networks(3)
    flags = "-p", "ssp", "--on-loss", "continue", "--host-timeout", "3"
    head, (stays, other) = begun(launch, network, (1, 1, 2), *flags, each_step=LINGERS)
    for worker in range(4):
        await_file(launch.tmp_path / f"third-{worker}")
    if power == "of the machine":
        network.cut(2)
    network.kill(2)
    said(head, "host host-2 is lost: .*\n")
    (launch.tmp_path / "go-on").touch()
    run = ended(head).completed()
    assert run.summary["samples"] + run.summary["samples_missed"] == SAMPLES
    went_on(run)
    assert ended(stays).code == 0
    ended(other)


@pytest.mark.long
def test_machines_end_within_the_timeout_if_the_head_loses_power(
    launch: Launch, networks: Callable[..., Network]
) -> None:
    network = networks(2)
    head, (other,) = begun(launch, network, (1, 2), "-p", "bsp", "--host-timeout", "3", each_step=LINGERS)
    for worker in range(3):
        await_file(launch.tmp_path / f"third-{worker}")
    network.cut(0)
    network.kill(0)
    ended(head)
    joiner = ended(other, timeout=20)
    assert joiner.code == 3
    assert "this host is out of the run: " in joiner.err
    assert "Traceback" not in joiner.err
