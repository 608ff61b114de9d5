"""Hosts that leave in good order: `paceline join` gets SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from paceline.net.token import Token, write
from support.events import await_stop, said
from support.launch import Launch
from support.recorded import checked
from support.runs import Launcher, Run, ended, replayed
from support.suites import each

SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

THERE = Path(__file__).parent
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 1024), nn.Tanh(), nn.Linear(1024, 1536), nn.BatchNorm1d(1536), nn.Linear(1536, 3))
optimizer = OPTIMIZER
data = TensorDataset(torch.randn(SAMPLES, 6), torch.randint(0, 3, (SAMPLES,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
for epoch in paceline.epochs(2):
    for x, y in loader:
        if epoch == 1:
            (THERE / f"process-{paceline.worker()}").write_text(f"{os.getppid()} {os.getpid()}")
            (THERE / f"at-{paceline.worker()}").touch()
            while not (THERE / "go-on").exists(): time.sleep(0.02)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
"""A model of four pieces, three of which are a whole one. The second epoch waits until all may go on."""
SGD = "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)"
ADAMW = "torch.optim.AdamW(model.parameters(), lr=0.001)"


def script(optimizer: str = SGD, samples: int = 96) -> str:
    return SCRIPT.replace("OPTIMIZER", optimizer).replace("SAMPLES", str(samples))


@pytest.fixture(autouse=True)
def token(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all hosts of these tests have."""
    write(Token.drawn(), launch.tmp_path / "token")
    monkeypatch.setenv("PACELINE_TOKEN_FILE", str(launch.tmp_path / "token"))


def await_file(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.01)


def processes_of(worker: int, launch: Launch) -> tuple[int, int]:
    """The process of that worker's host, and the worker's own. The worker is in the second epoch."""
    agent, own = map(int, (launch.tmp_path / f"process-{worker}").read_text().split())
    return agent, own


def moves(run: Run) -> list[tuple[int, dict[str, list[int]]]]:
    """What the run has noted of ranges that moved."""
    return [
        (version, shards)
        for (noted,) in run.rows("SELECT value FROM run WHERE key = 'moves'")
        for version, shards in json.loads(noted)
    ]


class Company:
    """A head, and hosts b and c that have joined, with one worker each, all in the second epoch."""

    def __init__(self, launch: Launch, text: str, *flags: str) -> None:
        self.launch = launch
        listens = "--listen", "127.0.0.1:0", "--hosts", "3", "--name", "head", "-n", "1", "--threads", "1"
        self.head = launch.start(text, *listens, *flags)
        self.told = said(self.head, "paceline join .*\n")
        found = re.search(r"paceline join (\S+) -n", self.told)
        assert found is not None
        self.joiners: dict[str, Launcher] = {}
        for name in ("b", "c"):
            self.joiners[name] = launch.start_joining(found[1], "--name", name, "-n", "1")
            self.says(f"host {name} has come")

    def says(self, pattern: str) -> None:
        """Wait until the head has said that."""
        if not re.search(pattern, self.told):
            self.told += said(self.head, pattern)

    def train(self) -> None:
        """Wait until all workers are in the second epoch."""
        for worker in range(3):
            await_file(self.launch.tmp_path / f"at-{worker}")

    def ask(self, *names: str) -> None:
        """Ask these hosts to leave in good order."""
        for name in names:
            os.kill(self.joiners[name].pid, signal.SIGTERM)
            self.says(f"host {name} was asked to leave: its workers finish their steps")

    def go_on(self) -> None:
        """Let the second epoch go on."""
        (self.launch.tmp_path / "go-on").touch()

    def left(self, *names: str) -> None:
        """These hosts have left in good order, and say so."""
        for name in names:
            self.says(f"host {name} has left in good order\n")
            joiner = ended(self.joiners.pop(name))
            assert joiner.code == 0
            assert "this host has left the run in good order, and the run goes on" in joiner.err

    def ended(self) -> Run:
        """The run is over, and all hosts that were left have ended with it."""
        run = ended(self.head)
        for joiner in self.joiners.values():
            ended(joiner)
        return run


def agrees(run: Run, gone: set[int]) -> None:
    """The run is complete, with the bits of a replay on one machine. Only these workers have left before its end."""
    assert run.summary["samples"] == 2 * 96
    assert {row["worker"] for row in run.summary["per_worker"] if row["left"]["reason"] == "drained"} == gone
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out


@pytest.mark.parametrize(
    ("protocol", "optimizer", "name", "by"),
    [
        pytest.param("bsp", SGD, "b", "head", marks=pytest.mark.long),
        pytest.param("asp", ADAMW, "c", "b", marks=pytest.mark.long),  # tests/journeys has it, too
        pytest.param("ps-plus", SGD, "b", "head", marks=pytest.mark.long),
    ],
)
def test_a_host_that_gets_sigterm_leaves_its_range_to_the_one_beside_it_and_nothing_is_undone(
    protocol: str, optimizer: str, name: str, by: str, launch: Launch
) -> None:
    company = Company(launch, script(optimizer), "-p", protocol)
    company.train()
    company.ask(name)
    company.go_on()
    company.says(f"host {name} leaves in good order: its range of each version moves to host {by}")
    company.left(name)
    run = company.ended().completed()
    agrees(run, {1 if name == "b" else 2})
    ((version, shards),) = moves(run)
    assert 0 < version < run.summary["versions"]
    assert shards.keys() == {"head", "b", "c"} - {name}


@pytest.mark.long
def test_two_hosts_that_leave_at_once_leave_all_to_the_head(launch: Launch) -> None:
    company = Company(launch, script(ADAMW), "-p", "bsp")
    company.train()
    company.ask("b", "c")
    company.go_on()
    company.left("b", "c")
    run = company.ended().completed()
    agrees(run, {1, 2})
    assert [list(shards) for _, shards in moves(run)][-1] == ["head"]


@pytest.mark.long
def test_a_host_without_a_range_leaves_once_its_workers_have(launch: Launch) -> None:
    company = Company(launch, script(), "-p", "ssp:bound=30", "--shards-on", "head")  # nobody waits for who waits
    company.train()
    company.ask("b")
    company.go_on()
    company.left("b")
    run = company.ended().completed()
    agrees(run, {1})
    assert not moves(run)


@pytest.mark.long
def test_a_host_whose_optimizer_looks_across_elements_leaves_the_whole_store_to_the_head(launch: Launch) -> None:
    own = "type('Own', (torch.optim.SGD,), {})(model.parameters(), lr=0.05, momentum=0.9)"
    company = Company(launch, script(own), "-p", "bsp", "--shards-on", "b")
    company.train()
    company.ask("b")
    company.go_on()
    company.left("b")
    agrees(company.ended().completed(), {1})


def test_a_host_that_gets_sigterm_twice_leaves_at_once(launch: Launch) -> None:
    company = Company(launch, script(), "-p", "asp", "--shards-on", "head", "--on-loss", "continue")
    company.train()
    company.ask("b")
    os.kill(company.joiners["b"].pid, signal.SIGTERM)
    assert ended(company.joiners.pop("b")).code == 130
    company.says("host b is lost: it was interrupted")
    company.go_on()
    company.ended().completed()


@pytest.mark.long
def test_a_host_that_is_killed_while_it_leaves_ends_the_run_as_any_that_makes_a_range(launch: Launch) -> None:
    company = Company(launch, script(), "-p", "bsp")
    company.train()
    company.ask("b")
    os.kill(company.joiners["b"].pid, signal.SIGKILL)
    run = company.ended()
    assert run.code == 3
    assert "failed: host b made a part of every version, and it is lost" in run.out


def test_a_run_goes_on_from_a_snapshot_that_was_taken_after_a_range_had_moved(launch: Launch) -> None:
    company = Company(launch, script(ADAMW), "-p", "bsp", "--checkpoint", "2", "--max-steps", "40")
    company.train()
    company.ask("b")
    company.go_on()
    company.left("b")
    run = company.ended().completed()
    again = launch.resume(run.folder).completed()
    assert again.summary["samples"] == 2 * 96
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out


class Emulated:
    """Hosts that one machine emulates, with one worker each, all in the second epoch."""

    def __init__(self, launch: Launch, text: str, *flags: str, hosts: int = 3) -> None:
        self.launch = launch
        shape = "--emulate-hosts", str(hosts), "-n", "1", "--threads", "1"
        self.process = launch.start(text, *shape, *flags)
        for worker in range(hosts):
            await_file(launch.tmp_path / f"at-{worker}")

    def ask(self, worker: int, number: int = signal.SIGTERM) -> str:
        """Send the process of that worker's host a signal. Return what is said until it has been heard."""
        agent, _ = processes_of(worker, self.launch)
        os.kill(agent, number)
        return said(self.process, f"host node-{worker} (was asked to leave|is lost).*\n")

    def ended(self) -> Run:
        """Let all go on, to the run's end."""
        (self.launch.tmp_path / "go-on").touch()
        return ended(self.process)


@pytest.mark.parametrize(("protocol", "shards_on"), each([("bsp", "all"), ("asp", "head")], long=[("asp", "head")]))
def test_an_emulated_host_whose_process_gets_sigterm_leaves_in_good_order(
    protocol: str, shards_on: str, launch: Launch
) -> None:
    hosts = Emulated(launch, script(), "-p", protocol, "--shards-on", shards_on)
    hosts.ask(1)
    run = hosts.ended().completed()
    assert "host node-1 has left in good order\n" in run.err
    agrees(run, {1})
    assert bool(moves(run)) == (shards_on == "all")


@pytest.mark.long
def test_an_emulated_host_whose_process_gets_sigterm_twice_is_lost_at_once(launch: Launch) -> None:
    hosts = Emulated(launch, script(), "-p", "asp", "--shards-on", "head", "--on-loss", "continue")
    assert "was asked to leave" in hosts.ask(1)
    assert "is lost: it was interrupted" in hosts.ask(1)
    hosts.ended().completed()


def test_an_emulated_host_says_which_process_a_signal_takes_out(launch: Launch) -> None:
    hosts = Emulated(launch, script(), "-p", "asp", "--progress", "60", hosts=2)
    agent, _ = processes_of(1, launch)
    run = hosts.ended().completed()
    assert f"paceline: host node-1 is process {agent}\n" in run.err


@pytest.mark.parametrize(
    "hangs", ["stopped", pytest.param("its script does not come to its step", marks=pytest.mark.long)]
)
def test_a_host_leaves_without_a_worker_that_hangs_and_the_run_goes_on(hangs: str, launch: Launch) -> None:
    hosts = Emulated(launch, script(), "-p", "bsp", "--shards-on", "all", "--drain", "1")
    if hangs == "stopped":
        _, worker = processes_of(1, launch)
        os.kill(worker, signal.SIGSTOP)
        await_stop(worker)
        (launch.tmp_path / "go-on").touch()  # otherwise the others hang as well
    hosts.ask(1)
    told = said(hosts.process, "host node-1 has left in good order")
    assert "host node-1 leaves without worker 1, which has not finished its step within 1 s (--drain)\n" in told
    run = hosts.ended().completed()
    assert run.summary["samples"] == 2 * 96
    assert [row["left"]["reason"] for row in run.summary["per_worker"]] == ["finished", "died", "finished"]
    assert [list(shards) for _, shards in moves(run)] == [["node-0", "node-2"]]
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).completed().out
