"""Runs on several hosts of one machine: each has an agent, and its workers compute on what was fetched there."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch

from paceline.net.listener import MOST_STRANGERS
from paceline.protocols import registry
from paceline.worker_process.forking import DESCRIPTORS, DESCRIPTORS_EACH
from support.events import said
from support.launch import Launch
from support.recorded import checked
from support.runs import ended, replayed
from support.suites import each

STORED = sorted(name for name, spec in registry().items() if spec.versions == "stored")
SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

THERE = Path(__file__).parent
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
BEFORE
for epoch in range(2):
    for x, y in loader:
        EACH_STEP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
AFTER
"""
HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1")
AGENTS = """
def of_each_worker():
    (THERE / f"agent-{paceline.worker()}").write_text(str(os.getppid()))
of_each_worker()
"""
"""Notes the process that has each worker's as its child: its host's agent, or the launcher."""


def indented(text: str) -> str:
    """The text as a part of the script's loop."""
    return text.strip().replace("\n", "\n        ")


def script(before: str = "", each_step: str = "pass", after: str = "") -> str:
    return SCRIPT.replace("BEFORE", before).replace("EACH_STEP", each_step).replace("AFTER", after)


@pytest.mark.parametrize("protocol", each(STORED, long=("dssp", "hsp", "ssp")))
def test_a_run_on_two_hosts_is_checked_and_replayed_on_one_to_the_same_bits(protocol: str, launch: Launch) -> None:
    run = launch.run(script(AGENTS), *HOSTS, "-p", protocol).completed()
    assert run.summary["workers"] == 4
    assert run.summary["samples"] == 2 * 96
    agents = [(launch.tmp_path / f"agent-{worker}").read_text() for worker in range(4)]
    assert agents[0] == agents[1] != agents[2] == agents[3]
    ((facts,),) = run.rows("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    assert [host for _, host, _ in json.loads(facts)["members"]] == ["node-0", "node-0", "node-1", "node-1"]
    pushed = run.rows("SELECT worker, step FROM facts WHERE kind = 'UpdateArrived' AND worker >= 2 ORDER BY id")
    fetched = "SELECT worker, number FROM fetches WHERE host = 'node-0' AND kind = 'update' ORDER BY rowid"
    summed = registry()[protocol].sums == "hosts"
    assert run.rows(fetched) == ([] if summed else pushed)
    assert (found := checked(run.folder)).ok, found.wrong
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err
    assert "the same bits" in again.out


@pytest.mark.parametrize(("hosts", "each"), [pytest.param(4, 1, marks=pytest.mark.long), (2, 2)])
def test_rounds_on_several_hosts_end_where_rounds_on_one_do(hosts: int, each: int, launch: Launch) -> None:
    """On the same bits, where no host adds up its own workers' updates first."""
    where = ("--emulate-hosts", str(hosts), "-n", str(each), "--threads", "1")
    several = launch.run(script(), *where, "-p", "bsp").completed().final()
    one = launch.run(script(), "-n", "4", "--threads", "1", "-p", "bsp").completed().final()
    assert several.keys() == one.keys()
    if each == 1:
        assert all(torch.equal(several[name], one[name]) for name in one)
    else:
        assert all(torch.allclose(several[name], one[name], rtol=1e-3, atol=1e-5) for name in one)


def test_a_run_on_several_hosts_is_made_again_on_as_many(launch: Launch) -> None:
    run = launch.run(script(), *HOSTS, "-p", "bsp", "--host-timeout", "9").completed()
    again = launch.run(script(AGENTS), "--config", str(run.folder / "config.toml")).completed()
    assert "host_timeout = 9.0" in (again.folder / "config.toml").read_text()
    agents = {(launch.tmp_path / f"agent-{worker}").read_text() for worker in range(4)}
    assert len(agents) == 2
    assert again.summary["workers"] == 4


def test_a_host_that_is_lost_before_training_begins_does_not_keep_the_others_from_it(launch: Launch) -> None:
    dies = "if paceline.worker() == 2: os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)\nmodel ="
    run = launch.run(script().replace("model =", dies, 1), *HOSTS, "-p", "asp", "--on-loss", "continue").completed()
    assert "host node-1 is lost" in run.err
    assert run.summary["samples"] == 2 * 96
    ((noted,),) = run.rows("SELECT value FROM run WHERE key = 'environment'")
    assert list(json.loads(noted)["hosts"]) == ["node-0", "node-1"]
    assert (found := checked(run.folder)).ok, found.wrong


def test_no_worker_listens_where_hosts_do(launch: Launch) -> None:
    """What a script starts may live on, and would hold the port."""
    listening = """
import socket

def listens(descriptor):
    try:
        with socket.socket(fileno=os.dup(int(descriptor))) as end:
            return bool(end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False

(THERE / f"listens-{paceline.worker()}").write_text(str(sum(map(listens, os.listdir("/proc/self/fd")))))
"""
    launch.run(script(listening), *HOSTS, "-p", "asp", "--max-steps", "4").completed()
    assert [(launch.tmp_path / f"listens-{worker}").read_text() for worker in range(4)] == ["0"] * 4


def test_agents_end_with_a_launcher_that_is_killed_and_leave_nothing(launch: Launch) -> None:
    waits = "(THERE / f'there-{paceline.worker()}').touch(); time.sleep(60)"
    process = launch.start(script(each_step=waits), *HOSTS, "-p", "asp")
    while not all((launch.tmp_path / f"there-{worker}").exists() for worker in range(4)):
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    launch.assert_nothing_left()


def test_each_worker_sees_the_newest_version_and_the_optimizers_state(launch: Launch) -> None:
    """Of all workers, wherever they are: what `state_dict` gives them after training is the same."""
    saves = "torch.save((model.state_dict(), optimizer.state_dict()), THERE / f'state-{paceline.worker()}.pt')"
    launch.run(script(after=saves), *HOSTS, "-p", "bsp", "--saves", "all").completed()
    states = [torch.load(launch.tmp_path / f"state-{worker}.pt") for worker in range(4)]
    for model, optimizer in states[1:]:
        parameters = [name for name in model if "running" not in name and "num_batches" not in name]
        assert all(torch.equal(model[name], states[0][0][name]) for name in parameters)
        assert optimizer["state"].keys() == states[0][1]["state"].keys()
        for index, state in optimizer["state"].items():
            assert torch.equal(state["momentum_buffer"], states[0][1]["state"][index]["momentum_buffer"])


@pytest.mark.parametrize("json", [False, True])
def test_what_workers_of_all_hosts_print_is_shown_in_one_place(json: bool, launch: Launch) -> None:
    prints = "print('it is over')"
    run = launch.run(script(after=prints), *HOSTS, "-p", "bsp", "--tee", "all", *["--json"] * json).completed()
    shown = run.err if json else run.out
    assert all(f"[worker {worker}] it is over\n" in shown for worker in range(4))


PRINTS_MUCH = """
if paceline.worker() == 3 and epoch == 1:
    for line in range(100_000):
        print("line", line)
    print("without an end", end="", flush=True)
    raise ValueError("the last word")
"""


@pytest.mark.parametrize("tee", ["none", pytest.param("all", marks=pytest.mark.long)])
def test_all_that_a_worker_of_another_host_had_printed_is_in_its_log_before_its_death_is_told(
    tee: str, launch: Launch
) -> None:
    """A megabyte of it, while its host's beats are to be heard in time."""
    flags = ("-p", "asp", "--on-loss", "continue", "--host-timeout", "5", "--tee", tee)
    run = launch.run(script(each_step=indented(PRINTS_MUCH)), *HOSTS, *flags).completed()
    printed = run.log(3)
    assert printed.startswith("".join(f"line {line}\n" for line in range(100_000)) + "without an end")
    assert printed.endswith("ValueError: the last word\n")
    said = run.err.splitlines()
    assert said[0].startswith("paceline: worker 3 died (exit code 1)")
    if tee == "none":
        assert said[1] == f"paceline:   its last lines, of {run.folder}/worker-3.log:"
        assert said[-1] == "  | ValueError: the last word"
        assert "line" not in run.out
    else:
        assert said[1] == f"paceline:   what it printed is above, and in {run.folder}/worker-3.log"
        assert "[worker 3] line 99999\n" in run.out
        assert "[worker 3] ValueError: the last word\n" in run.out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("-p", "all-reduce", "--shards-on", "all"), "all-reduce has no store"),
        (("-p", "ddp"), "ddp runs on one host only so far"),
    ],
)
def test_what_several_hosts_can_not_do_yet_is_one_line(flags: tuple[str, ...], said: str, launch: Launch) -> None:
    run = launch.run(script(), *HOSTS, *flags)
    assert run.code == 2
    assert said in run.err
    assert len(run.err.splitlines()) == 1


NEVER_COMES = """
import time
from paceline.coordinator import emulated
emulated.agent = lambda *_, **keys: time.sleep(300)
"""
ENDS_BEFORE = """
from paceline.coordinator import emulated
emulated.agent = lambda *_, **keys: 1
"""


def test_a_host_that_ends_before_it_has_come_fails_the_run_at_once(launch: Launch) -> None:
    run = launch.run(script(), *HOSTS, "-p", "bsp", first=ENDS_BEFORE)
    assert run.code == 3
    assert run.err == "paceline: host node-1 ended before training could begin\n"
    assert not run.folder.exists()


def test_a_host_that_does_not_come_is_named_while_it_is_awaited_and_then_fails_the_run(launch: Launch) -> None:
    soon = NEVER_COMES + "from paceline.coordinator import emulated; emulated.GATHERING = 1.5"
    run = launch.run(script(), *HOSTS, "-p", "bsp", "--report-waits", "1", first=soon)
    assert run.code == 3
    assert "the start has waited for 1 s for host node-1 to come" in run.err
    assert "host node-1 did not come within 2 s" in run.err
    assert not run.folder.exists()


def test_ctrl_c_ends_a_run_that_waits_for_a_host(launch: Launch) -> None:
    process = launch.start(script(), *HOSTS, "-p", "bsp", "--report-waits", "0.1", first=NEVER_COMES)
    said(process, "to come")
    os.kill(process.pid, signal.SIGINT)
    run = ended(process)
    assert run.code == 130
    assert "interrupted before all hosts had come" in run.err
    assert not run.folder.exists()


IS_THERE_LATE = """
from paceline.host.attachments import Attachments
from paceline.host.other_hosts import OtherHosts
from paceline.transfer.item_names import FIXED
look, made, newest = Attachments.look, OtherHosts.made, [0]
def late(self, item, *asked):
    return "coming" if item == FIXED and newest[0] < 3 else look(self, item, *asked)
def in_the_end(self, version):
    made(self, version)
    newest[0] = version
    self._carrier.made(FIXED)
Attachments.look, OtherHosts.made = late, in_the_end
"""


@pytest.mark.parametrize("protocol", ["asp", pytest.param("ps-plus", marks=pytest.mark.long)])
def test_versions_may_be_made_before_a_host_has_what_training_begins_with(protocol: str, launch: Launch) -> None:
    run = launch.run(script(), *HOSTS, "-p", protocol, first=IS_THERE_LATE).completed()
    assert run.err == ""
    assert "the same bits" in replayed(run.folder).out


DIES_AT_THE_BEGINNING = """
import os, signal
from paceline.host.training_start import TrainingStart
TrainingStart.train = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("protocol", ["asp", pytest.param("bsp", marks=pytest.mark.long)])
def test_a_host_that_dies_as_training_begins_is_named_and_the_others_go_on(protocol: str, launch: Launch) -> None:
    run = launch.run(script(), *HOSTS, "-p", protocol, first=DIES_AT_THE_BEGINNING).completed()
    assert "host node-1 is lost" in run.err
    assert run.summary["samples"] == 2 * 96
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).out


LONG_MESSAGES = """
from paceline.coordinator import agent
agent.LONG = 1
"""


def test_what_workers_say_may_be_too_long_for_a_message_between_hosts(launch: Launch) -> None:
    """An order of some million samples is."""
    looks = "model.state_dict(); optimizer.state_dict(); paceline.log(epoch=float(epoch))"
    run = launch.run(script(each_step=looks), *HOSTS, "-p", "asp", first=LONG_MESSAGES).completed()
    assert run.err == ""
    assert run.summary["samples"] == 2 * 96
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).out


HAS_NO_MEMORY = """
from paceline.host import host_memory
from paceline.host.training_start import TrainingStart
class Region:
    @staticmethod
    def create(size):
        raise OSError(12, "Cannot allocate memory")
def begin(self, order, begin=TrainingStart.train):
    host_memory.Region = Region
    begin(self, order)
TrainingStart.train = begin
"""


def test_a_host_that_can_not_go_on_says_why_in_one_line_and_the_others_go_on(launch: Launch) -> None:
    run = launch.run(script(), *HOSTS, "-p", "asp", "--on-loss", "continue", first=HAS_NO_MEMORY)
    assert "Traceback" not in run.err
    assert "paceline: host node-1: an error in Paceline that should not be: OSError: [Errno 12]" in run.err
    assert f", traceback in {run.folder}/internal-error-host-node-1.txt; please report it" in run.err
    assert "host.py" in (run.folder / "internal-error-host-node-1.txt").read_text()
    assert "host node-1 is lost: its agent has ended" in run.err
    assert run.summary["samples"] == 2 * 96


FEW_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({allowed}, {allowed}))
"""


def test_strangers_never_take_the_files_that_a_run_has_to_open(launch: Launch) -> None:
    """Its door keeps so many connections that have said nothing."""
    allowed = DESCRIPTORS + 4 * DESCRIPTORS_EACH + MOST_STRANGERS
    run = launch.run(script(), *HOSTS, "-p", "asp", first=FEW_FILES.format(allowed=allowed))
    assert run.code == 2
    assert run.err.startswith("paceline: 4 workers take ")
    assert f"open files, and {allowed} are allowed" in run.err
