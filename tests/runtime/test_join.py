"""Machines that join a run: `paceline run --listen` and `paceline join`, over loopback."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from paceline.cli.hosts import named
from paceline.cli.main import parser
from paceline.core.choice import choose
from paceline.errors import ConfigError
from paceline.host import messages as host_messages
from paceline.host.events import AwaitsPlace, WorkerEnded
from paceline.host.machine import machine
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.net.control import ANOTHER_RUN, Hello, HostEnd
from paceline.net.handshake import Keys, dial
from paceline.net.link import HostLink
from paceline.net.numbered import written
from paceline.net.tcp import Stream
from paceline.net.token import Token, read, write
from paceline.protocols import registry
from paceline.scenario.scenario import HostTable, Scenario
from paceline.transfer import data_connection
from support.events import await_stop, said
from support.launch import Launch
from support.recorded import checked
from support.runs import Launcher, Run, ended, replayed
from support.shards import script as sharded
from support.suites import each

STORED = sorted(name for name, spec in registry().items() if spec.versions == "stored")
LONG = ("bsp", "dssp", "hsp", "ps-plus", "ssp")  # others of their kind are tried by default
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
"""
AT_STEP = """
        if not hasattr(model, "steps"): model.steps = 0
        model.steps += 1
        if model.steps == 4: (THERE / f"at-{paceline.worker()}").touch()
        if model.steps >= 4 and not (THERE / "go-on").exists(): time.sleep(0.3)
"""
"""Notes that the worker is in its fourth step, from which on all go slowly until they are to go on."""


def script(before: str = "", each_step: str = "pass") -> str:
    return SCRIPT.replace("BEFORE", before).replace("EACH_STEP", each_step.strip())


@pytest.fixture(autouse=True)
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all hosts of these tests have."""
    write(Token.drawn(), tmp_path / "token")
    monkeypatch.setenv("PACELINE_TOKEN_FILE", str(tmp_path / "token"))


@dataclass
class Head:
    """A head that waits for others."""

    process: Launcher
    address: str
    told: str
    """What it has said by then."""

    def ended(self) -> Run:
        return ended(self.process)


def begun(
    launch: Launch,
    text: str,
    *flags: str,
    hosts: int = 2,
    workers: int = 1,
    first: str = "",
    address: str = "127.0.0.1:0",
) -> Head:
    listens = "--listen", address, "--hosts", str(hosts), "--name", "head", "-n", str(workers), "--threads", "1"
    process = launch.start(text, *listens, *flags, first=first)
    line = said(process, "paceline join .*\n")
    found = re.search(r"paceline join (\S+) -n", line)
    assert found is not None
    return Head(process, found[1], line)


def listens_at(process: Launcher) -> str:
    """Where a head says that others are to join."""
    found = re.search(r"paceline join (\S+) -n", said(process, "paceline join .*\n"))
    assert found is not None
    return found[1]


def joined(launch: Launch, head: Head, name: str, workers: int = 1) -> Launcher:
    return launch.start_joining(head.address, "--name", name, "-n", str(workers))


def nobodys() -> str:
    """An address of this process alone, where nobody listens. A port that was free may be another test's by now."""
    high, low = divmod(os.getpid() % (1 << 16), 1 << 8)
    return f"127.117.{high}.{low}:7117"


def await_file(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.01)


@pytest.mark.parametrize("protocol", each(STORED, long=LONG))
def test_a_run_with_a_host_that_joins_is_checked_and_replayed_to_the_same_bits(protocol: str, launch: Launch) -> None:
    head = begun(launch, script(), "-p", protocol)
    joiner = ended(joined(launch, head, "b", 2))
    run = head.ended().completed()
    assert joiner.code == 0, joiner.err
    assert "joined as host b: workers 1, 2 of 3" in joiner.err
    assert "the run has ended: completed" in joiner.err
    assert run.summary["samples"] == 2 * 96
    ((facts,),) = run.rows("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    assert [host for _, host, _ in json.loads(facts)["members"]] == ["head", "b", "b"]
    assert all(one["moving_cpu_seconds"] >= 0.0 for one in run.summary["per_host"])
    config = tomllib.loads((run.folder / "config.toml").read_text())
    assert {name: host["threads"] for name, host in config["environment"]["hosts"].items()} == {"head": 1, "b": 1}
    assert (found := checked(run.folder)).ok, found.wrong
    assert "the same bits" in replayed(run.folder).out


def test_hosts_are_numbered_by_name_whenever_they_come_and_end_where_one_does(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "bsp", hosts=3)
    others = [joined(launch, head, "z", 1)]
    assert "1 more host to come" in said(head.process, "host z has come.*\n")
    others.append(joined(launch, head, "c", 2))
    several = head.ended().completed()
    assert [ended(other).code for other in others] == [0, 0]
    ((facts,),) = several.rows("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    assert [host for _, host, _ in json.loads(facts)["members"]] == ["head", "c", "c", "z"]
    one = launch.run(script(), "-n", "4", "--threads", "1", "-p", "bsp").completed()
    # host c adds up its workers' updates, so sums are rounded in another order
    assert all(torch.allclose(several.final()[name], one.final()[name], rtol=1e-4, atol=1e-6) for name in one.final())


def test_what_workers_print_comes_to_the_head(launch: Launch) -> None:
    head = begun(launch, script(before="print('I am', paceline.worker())"), "-p", "asp")
    joiner = ended(joined(launch, head, "b"))
    run = head.ended().completed()
    assert "I am 1" in run.log(1)
    assert "I am" not in joiner.out


def test_no_script_finds_the_token_in_its_environment(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_TOKEN_FILE")
    monkeypatch.setenv("PACELINE_TOKEN", Token.drawn().text)
    head = begun(launch, script(before="print('token:', os.environ.get('PACELINE_TOKEN'))"), "-p", "asp")
    assert ended(joined(launch, head, "b")).code == 0
    run = head.ended().completed()
    assert [run.log(worker) for worker in (0, 1)] == ["token: None\n"] * 2


ROOM = "import paceline.worker_process.forking as forking; forking.available_bytes = lambda: 2 * 35_000_000"
"""Leaves memory to begin two workers."""


def test_each_machine_needs_memory_for_its_own_workers_alone(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp", first=ROOM)
    refused = ended(launch.start_joining(head.address, "--name", "b", "-n", "3", first=ROOM))
    assert refused.code == 2
    assert "3 workers take at least 105,000,000 bytes of memory" in refused.err
    assert refused.err.count("\n") == 1
    joiner = launch.start_joining(head.address, "--name", "b", "-n", "2", first=ROOM)
    head.ended().completed()
    assert ended(joiner).code == 0


@pytest.mark.parametrize(("boot", "here"), [("another", 1), ("", 3)])
def test_the_heads_memory_is_for_the_workers_of_hosts_on_its_machine(boot: str, here: int, launch: Launch) -> None:
    lacks = "lambda *_, here, keeps: f'room for {here}'"
    head = begun(
        launch,
        script(),
        "-p",
        "asp",
        first=f"from paceline.coordinator import lifecycle as l; l.lack_of_memory = {lacks}",
    )
    elsewhere = (
        f"import paceline.host.machine as m; from pathlib import Path; m.BOOT = Path({str(launch.tmp_path / 'boot')!r})"
    )
    (launch.tmp_path / "boot").write_text(boot)
    joiner = launch.start_joining(head.address, "--name", "b", "-n", "2", first=elsewhere if boot else "")
    run = head.ended()
    ended(joiner)
    assert run.code == 2
    assert run.err.splitlines()[-1] == f"paceline: room for {here}"


def test_a_joiner_that_is_killed_is_lost_and_the_others_go_on(launch: Launch) -> None:
    head = begun(launch, script(each_step=AT_STEP), "-p", "asp", "--on-loss", "continue", "--host-timeout", "3")
    other = joined(launch, head, "b", 2)
    await_file(launch.tmp_path / "at-2")
    os.kill(other.pid, signal.SIGKILL)
    ended(other)
    said(head.process, "host b is lost: .*\n")
    (launch.tmp_path / "go-on").touch()
    run = head.ended().completed()
    assert run.summary["samples"] + run.summary["samples_missed"] == 2 * 96
    assert (found := checked(run.folder)).ok, found.wrong


def test_ctrl_c_at_a_joiner_has_its_host_leave_and_the_run_goes_on(launch: Launch) -> None:
    head = begun(launch, script(each_step=AT_STEP), "-p", "ssp", "--on-loss", "continue")
    other = joined(launch, head, "b")
    await_file(launch.tmp_path / "at-1")
    os.kill(other.pid, signal.SIGINT)
    assert ended(other).code == 130
    said(head.process, "host b is lost: it was interrupted")
    (launch.tmp_path / "go-on").touch()
    head.ended().completed()


def test_ctrl_c_at_the_head_ends_all_and_the_joiner_says_so(launch: Launch) -> None:
    head = begun(launch, script(each_step=AT_STEP), "-p", "asp")
    other = joined(launch, head, "b")
    await_file(launch.tmp_path / "at-1")
    os.kill(head.process.pid, signal.SIGINT)
    assert head.ended().code == 130
    joiner = ended(other)
    assert joiner.code == 130
    assert "interrupted; this host has left the run" in joiner.err


def test_a_joiner_whose_head_is_killed_ends_and_says_so(launch: Launch) -> None:
    head = begun(launch, script(each_step=AT_STEP), "-p", "asp", "--host-timeout", "2", "--restart", "1")
    other = joined(launch, head, "b")
    await_file(launch.tmp_path / "at-1")
    os.kill(head.process.pid, signal.SIGKILL)
    ended(head.process)
    joiner = ended(other)
    assert joiner.code == 3
    assert "this host is lost, and comes again: no beat of this host was acknowledged in time" in joiner.err
    assert "this host is out of the run: the head does not answer (tried for 2 s)" in joiner.err


def test_a_joiner_ends_with_the_runs_own_exit_code_and_why(launch: Launch) -> None:
    head = begun(launch, script(before="if paceline.worker() == 0: raise ValueError('no')"), "-p", "asp")
    joiner = ended(joined(launch, head, "b"))
    assert head.ended().code == 3
    assert joiner.code == 3
    assert "the run has ended: failed: worker 0 died" in joiner.err


def test_a_joiner_ends_with_2_as_the_run_does_whose_scripts_own_parser_refuses(launch: Launch) -> None:
    head = begun(launch, "import argparse; argparse.ArgumentParser().error('no')", "-p", "asp")
    joiner = ended(joined(launch, head, "b"))
    assert head.ended().code == 2
    assert joiner.code == 2
    assert "the script's own argument parser has ended it" in joiner.err


def test_a_parser_that_refuses_on_another_host_alone_is_heard_at_the_head(launch: Launch) -> None:
    refuses = "if paceline.worker() == 1: import argparse; argparse.ArgumentParser().error('there is no such folder')"
    head = begun(launch, refuses.join(("import paceline\n", "\n")) + script(), "-p", "asp")
    joiner = ended(joined(launch, head, "b"))
    run = head.ended()
    assert (run.code, joiner.code) == (2, 2)
    assert "paceline: the script's own argument parser has ended worker 1 of host b:\nusage: " in run.err
    assert run.err.endswith(": error: there is no such folder\n")


@pytest.mark.long
def test_a_host_that_is_stopped_for_too_long_comes_back(launch: Launch) -> None:
    head = begun(launch, script(each_step=AT_STEP), "-p", "asp", "--restart", "2", "--host-timeout", "2")
    other = joined(launch, head, "b")
    await_file(launch.tmp_path / "at-1")
    os.kill(other.pid, signal.SIGSTOP)
    await_stop(other.pid)
    said(head.process, "host b is lost")
    os.kill(other.pid, signal.SIGCONT)
    said(head.process, "worker 1 is back")
    (launch.tmp_path / "go-on").touch()
    run = head.ended().completed()
    assert ended(other).code == 0
    assert (found := checked(run.folder)).ok, found.wrong


def test_a_run_that_loses_a_host_with_a_shard_goes_on_by_itself_once_that_host_is_back(launch: Launch) -> None:
    """The other hosts stay, and come again."""
    waits = (
        "if epoch == 2 and not (THERE / 'go-on').exists(): (THERE / f'at-{paceline.worker()}').touch(); time.sleep(0.3)"
    )
    flags = ("-p", "bsp", "--shards-on", "all", "--restart", "1", "--host-timeout", "2")
    head = begun(launch, sharded(each_step=waits, epochs=3), *flags, hosts=3)
    stays, lost = joined(launch, head, "b"), joined(launch, head, "c")
    for worker in range(3):
        await_file(launch.tmp_path / f"at-{worker}")
    os.kill(lost.pid, signal.SIGKILL)
    ended(lost)
    said(head.process, "host c made a part of every version, and it is lost .*; going on after [0-9]+ steps")
    said(stays, "the run goes on from its newest snapshot, and this host comes again")
    (launch.tmp_path / "go-on").touch()
    back = joined(launch, head, "c")
    run = head.ended().completed()
    assert [ended(one).code for one in (stays, back)] == [0, 0]
    assert run.summary["samples"] == 3 * 64
    assert run.rows("SELECT COUNT(*) FROM segments") == [(2,)]
    assert (found := checked(run.folder)).ok, found.wrong


def test_a_host_that_waits_joins_once_the_head_listens(launch: Launch) -> None:
    address = nobodys()
    other = launch.start_joining(address, "--name", "b", "-n", "1", "--wait")
    process = launch.start(script(), "--listen", address, "--hosts", "2", "--name", "head", "-n", "1", "-p", "asp")
    assert ended(process).code == 0
    assert ended(other).code == 0


def test_ctrl_c_ends_a_head_that_waits_and_the_hosts_that_have_come(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp", "--report-waits", "0.2", hosts=3)
    other = joined(launch, head, "b")
    said(head.process, "1 more host to come")
    os.kill(head.process.pid, signal.SIGINT)
    run = head.ended()
    assert run.code == 130
    assert not run.folder.exists()
    assert ended(other).code == 130


@pytest.mark.parametrize("where", ["joiner", "head"])
def test_a_host_ends_with_the_process_that_moves_its_data(where: str, launch: Launch) -> None:
    head = begun(launch, script(each_step=AT_STEP), "-p", "asp", "--on-loss", "continue", "--trusted-network")
    other = launch.start_joining(head.address, "--name", "b", "-n", "1", "--trusted-network")
    for worker in range(2):
        await_file(launch.tmp_path / f"at-{worker}")
    os.kill(mover_of(other.pid if where == "joiner" else head.process.pid), signal.SIGKILL)
    (launch.tmp_path / "go-on").touch()
    joiner, run = ended(other), head.ended()
    why = "the process that moves data between hosts died"
    if where == "joiner":
        assert f"this host is out of the run: {why}" in joiner.err
        assert f"host b is lost: {why}" in run.err
        run.completed()
    else:
        assert run.code == joiner.code == 3
        assert f"the run has ended: failed: {why}" in joiner.err
        assert run.summary["error"] == why


def mover_of(host: int) -> int:
    """The process that moves data for that host."""
    children = Path(f"/proc/{host}/task/{host}/children").read_text().split()
    (mover,) = [child for child in children if Path(f"/proc/{child}/comm").read_text() == "paceline-data\n"]
    return int(mover)


@pytest.mark.long
def test_a_run_with_joiners_goes_on_with_others(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp", "--max-steps", "20")
    assert ended(joined(launch, head, "b", 2)).code == 0
    first = head.ended().completed()
    listens = "--listen", "127.0.0.1:0", "--hosts", "2", "--name", "head", "-n", "2"
    process = launch.start_resumed(first.folder, "--max-steps", "40", *listens)
    address = listens_at(process)
    other = launch.start_joining(address, "--name", "c", "-n", "2")
    run = ended(process).completed()
    assert ended(other).code == 0
    assert run.summary["workers"] == 4
    assert (found_wrong := checked(run.folder)).ok, found_wrong.wrong


def test_a_head_without_a_token_draws_one_and_says_how_to_bring_it(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACELINE_TOKEN_FILE")
    process = launch.start(script(), "--listen", "127.0.0.1:0", "--hosts", "2", "--name", "head", "-n", "1")
    told = said(process, "bring .*\n")
    found = re.search(r"PACELINE_TOKEN_FILE=token paceline join (\S+) -n 1", told)
    file = re.search(r"bring (\S+) there", told)
    assert found is not None
    assert file is not None
    assert Path(file[1]).stat().st_mode & 0o777 == 0o600
    token = Path(file[1]).read_text().strip()
    assert token not in told
    nobody = ended(launch.start_joining(found[1], "--name", "b"))
    assert nobody.code == 2
    assert "there is no token, which all machines share" in nobody.err
    monkeypatch.setenv("PACELINE_TOKEN_FILE", file[1])
    joiner = launch.start_joining(found[1], "--name", "b", "-n", "1")
    run = ended(process).completed()
    assert ended(joiner).code == 0
    written = [path for path in run.folder.rglob("*") if path.is_file() and path != Path(file[1])]
    assert "config.toml" in {path.name for path in written}
    assert not [path for path in written if token.removeprefix("paceline_").encode() in path.read_bytes()]


def test_the_line_to_paste_names_the_file_with_the_token(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    file = launch.tmp_path / "a token"
    file.write_bytes((launch.tmp_path / "token").read_bytes())
    file.chmod(0o600)
    monkeypatch.setenv("PACELINE_TOKEN_FILE", str(file))
    process = launch.start(script(), "--listen", "127.0.0.1:0", "--hosts", "2", "--name", "head", "-n", "1")
    told = said(process, "paceline join .*\n")
    os.kill(process.pid, signal.SIGINT)
    assert ended(process).code == 130
    assert f"PACELINE_TOKEN_FILE='{file}' paceline join " in told


@pytest.mark.parametrize("trusted", [True, False])
def test_a_network_is_trusted_on_both_sides_or_on_none(trusted: bool, launch: Launch) -> None:
    flags = ["--trusted-network"] if trusted else []
    head = begun(launch, script(), "-p", "asp", *flags)
    refused = ended(launch.start_joining(head.address, "--name", "b", *([] if trusted else ["--trusted-network"])))
    assert refused.code == 2
    assert "given on one side only" in refused.err
    joiner = launch.start_joining(head.address, "--name", "b", "-n", "1", *flags)
    head.ended().completed()
    other = ended(joiner)
    assert other.code == 0
    for told in (head.told, other.err):
        assert ("traffic between hosts is not encrypted" in told) == trusted


def test_a_host_with_another_token_is_refused_and_the_head_waits_on(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = begun(launch, script(), "-p", "asp")
    with monkeypatch.context() as other:
        write(Token.drawn(), launch.tmp_path / "another")
        other.setenv("PACELINE_TOKEN_FILE", str(launch.tmp_path / "another"))
        refused = ended(joined(launch, head, "b"))
    assert refused.code == 2
    assert "token" in refused.err
    assert refused.err.count("\n") == 1
    joiner = joined(launch, head, "b")
    head.ended().completed()
    assert ended(joiner).code == 0


def test_a_host_with_another_torch_is_refused_and_the_head_waits_on(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp")
    old = "import torch; torch.__version__ = '1.0'"
    refused = ended(launch.start_joining(head.address, "--name", "b", first=old))
    assert refused.code == 2
    assert "torch is 1.0, and the head's is" in refused.err
    joiner = joined(launch, head, "b")
    head.ended().completed()
    assert ended(joiner).code == 0


@pytest.mark.long
def test_a_machine_that_is_lost_may_come_back_as_another_process(launch: Launch) -> None:
    flags = "-p", "asp", "--restart", "1", "--host-timeout", "3"
    head = begun(launch, script(each_step=AT_STEP), *flags)
    other = joined(launch, head, "b")
    await_file(launch.tmp_path / "at-1")
    os.kill(other.pid, signal.SIGKILL)
    ended(other)
    said(head.process, "host b is lost")
    refused = ended(joined(launch, head, "b", 2))
    assert refused.code == 2
    assert "this run has 1 worker there, and 2 would come; join with -n 1" in refused.err
    again = joined(launch, head, "b")
    said(head.process, "worker 1 is back")
    (launch.tmp_path / "go-on").touch()
    run = head.ended().completed()
    assert ended(again).code == 0
    assert (found := checked(run.folder)).ok, found.wrong


USES_THE_FOLDER = """
import parts
assert open("data.bin", "rb").read() == parts.CONTENT
if paceline.worker() == 1: open("mine.txt", "w").write(os.getcwd())
"""


def folders(tmp_path: Path, text: str) -> tuple[Path, Path]:
    """The head's working directory, with what the script needs in several parts, and one with nothing in it."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "train.py").write_text(text)
    (here / "parts.py").write_text("CONTENT = bytes(range(256)) * 2000\n")
    (here / "data.bin").write_bytes(bytes(range(256)) * 2000)
    return here, there


SEND = "--listen", "127.0.0.1:0", "--hosts", "2", "--name", "head", "-n", "1", "-p", "asp", "--threads", "1", "--send"


def test_a_host_with_an_empty_folder_is_sent_what_the_script_needs(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, there = folders(tmp_path, script(before=USES_THE_FOLDER.strip()))
    monkeypatch.chdir(here)
    process = launch.start(Path("train.py"), *SEND, ".")
    address = listens_at(process)
    monkeypatch.chdir(there)
    joiner = ended(launch.start_joining(address, "--name", "b", "-n", "1"))
    run = ended(process).completed()
    assert joiner.code == 0, joiner.err
    assert "receiving the script's folder, of " in joiner.err
    assert "worker 1 of 2, asp, train.py" in joiner.err
    (left,) = there.iterdir()
    assert f"what workers of host b saved is in {left}" in joiner.err
    (shown,) = left.glob("sent-*/mine.txt")
    mine = Path(f"{left}/worker-1/saved{shown}")
    assert {path for path in left.rglob("*") if not path.is_dir()} == {mine, shown}  # nothing of what was sent
    assert mine.samefile(shown)
    assert mine.read_text() == str(shown.parent)
    assert sorted(path.name for path in here.iterdir() if path.suffix) == ["data.bin", "parts.py", "train.py"]
    monkeypatch.chdir(here)
    assert (found_wrong := checked(run.folder)).ok, found_wrong.wrong
    assert "the same bits" in replayed(run.folder).out


def test_a_host_that_comes_back_as_another_process_is_sent_the_folder_again(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waits = AT_STEP.replace("THERE", f"Path({str(tmp_path)!r})")
    here, there = folders(tmp_path, script(each_step=waits))
    monkeypatch.chdir(here)
    process = launch.start(Path("train.py"), *SEND, ".", "--restart", "1", "--host-timeout", "3")
    address = listens_at(process)
    monkeypatch.chdir(there)
    other = launch.start_joining(address, "--name", "b", "-n", "1")
    await_file(tmp_path / "at-1")
    os.kill(other.pid, signal.SIGKILL)
    ended(other)
    said(process, "host b is lost")
    again = launch.start_joining(address, "--name", "b", "-n", "1")
    said(process, "worker 1 is back")
    (tmp_path / "go-on").touch()
    ended(process).completed()
    joiner = ended(again)
    assert joiner.code == 0
    assert "receiving the script's folder" in joiner.err


def test_a_host_with_another_torch_is_refused_before_it_is_sent_the_folder(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, there = folders(tmp_path, script())
    monkeypatch.chdir(here)
    process = launch.start(Path("train.py"), *SEND, ".")
    address = listens_at(process)
    monkeypatch.chdir(there)
    refused = ended(launch.start_joining(address, "--name", "b", first="import torch; torch.__version__ = '1.0'"))
    os.kill(process.pid, signal.SIGINT)
    ended(process)
    assert refused.code == 2
    assert "receiving the script's folder" not in refused.err
    assert "paceline: torch is 1.0, and the head's is" in refused.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("first", "line"),
    [
        (
            "from paceline.job import received_folder as received; received.MOST_PACKED = 1000",
            "which Paceline does not send",
        ),
        (
            "from paceline.job import received_folder as r; from paceline.host import messages as b; "
            "take = r.ReceivedFolder.take; "
            "r.ReceivedFolder.take = lambda self, part: take(self, b.FolderPart(part.at, part.data[::-1]))",
            "the folder that the head sent is not the one that it announced",
        ),
    ],
)
def test_a_host_refuses_a_folder_that_it_can_t_take_and_the_head_waits_on(
    first: str, line: str, launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, there = folders(tmp_path, script())
    monkeypatch.chdir(here)
    process = launch.start(Path("train.py"), *SEND, ".")
    address = listens_at(process)
    monkeypatch.chdir(there)
    refused = ended(launch.start_joining(address, "--name", "b", "-n", "1", first=first))
    assert refused.code == 2
    assert line in refused.err.splitlines()[-1]
    assert line in said(process, "host b takes no part: .*\n")
    assert not list(there.iterdir())
    joiner = launch.start_joining(address, "--name", "b", "-n", "1")
    assert ended(process).code == 0
    assert ended(joiner).code == 0


@pytest.mark.parametrize(
    ("send", "line"),
    [
        ("parts", "--send parts: train.py is not in it"),
        ("train.py", "--send train.py: it is no folder"),
        (".", "--send .: out links to /etc, which is not sent"),
    ],
)
def test_a_folder_that_can_t_be_sent_is_refused_before_the_run(
    send: str, line: str, launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, _ = folders(tmp_path, script())
    (here / "parts").mkdir()
    (here / "out").symlink_to("/etc")
    monkeypatch.chdir(here)
    run = launch.run(Path("train.py"), *SEND, send)
    assert run.code == 2
    assert line in run.err
    assert run.err.count("\n") == 1
    assert not run.folder.exists()


# --- what is refused, in one line ---------------------------------------------------------------


TWO = ["--listen", "127.0.0.1:0", "--hosts", "2"]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--hosts", "2"], "such as --listen 10.0.0.1:7117, or give --emulate-hosts"),
        (["--name", "a"], "--name is a, and no machine can join"),
        (["--send", "."], "such as --listen 10.0.0.1:7117, or name machines with --on"),
        (["--listen", "127.0.0.1:0"], "--listen waits for other hosts: say how many there are"),
        (["--listen", "127.0.0.1", "--hosts", "2"], '--listen is "127.0.0.1"; write an address and a port'),
        (["--listen", "127.0.0.1:0", "--hosts", "2", "-p", "ddp"], "--listen: ddp runs on one host only"),
        (["--listen", "127.0.0.1:0", "--hosts", "2", "--emulate-hosts", "2"], "give one of the two"),
        ([*TWO[:3], "1:2", "--shards-on", "all"], "--shards-on is all, and --hosts lets hosts come later"),
        (["--listen", "192.0.2.1:7117", "--hosts", "2"], "--listen 192.0.2.1:7117: Cannot assign requested address"),
    ],
)
def test_flags_that_make_no_run_are_refused_before_it(flags: list[str], line: str, launch: Launch) -> None:
    run = launch.run(script(), *flags)
    assert run.code == 2
    assert line in run.err
    assert run.err.count("\n") == 1
    assert not run.folder.exists()


@pytest.mark.parametrize(("said", "works"), [("head", True), ("b", True), ("c,b", False)])
def test_a_host_that_is_to_have_a_shard_is_known_once_all_have_come(said: str, works: bool) -> None:
    company = named(parser("run").parse_args(["run", *TWO, "--name", "a", "--shards-on", said, "train.py"]))
    choice = choose("asp", registry())
    scenario, workers, _ = company.settled(choice, Scenario())
    listening = company.listening(choice, scenario, workers)
    assert listening is not None
    tables = HostTable(name="a", workers=range(2)), HostTable(name="b", workers=range(2, 4))
    if works:
        assert listening.scenario(tables, None).nodes == 2
    else:
        with pytest.raises(ConfigError, match='--shards-on names "c", and the hosts are a, b'):
            listening.scenario(tables, None)


@pytest.mark.parametrize("flags", [["--listen", "127.0.0.1:0", "--hosts", "2"], ["--emulate-hosts", "2"]])
def test_a_script_that_is_too_long_to_be_told_is_refused_before_anybody_is_waited_for(
    flags: list[str], launch: Launch
) -> None:
    run = launch.run(script() + "#" * (17 << 20), *flags)
    assert run.code == 2
    assert re.fullmatch(r"paceline: \S+\.py has 17,82\d,\d+ bytes, and .* may have 12,582,912; keep .*\n", run.err)
    assert not run.folder.exists()


def test_a_port_in_use_is_refused(launch: Launch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        run = launch.run(script(), "--listen", address, "--hosts", "2")
    assert run.code == 2
    assert f"--listen {address}: Address already in use" in run.err


def test_a_head_that_is_not_there_is_said_with_how_long_it_was_tried(launch: Launch) -> None:
    address = nobodys()
    run = ended(launch.start_joining(address, "--wait", "0.1"))
    assert run.code == 2
    assert f"no run listens at {address} (tried for " in run.err
    assert "--wait" in run.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["7117"], 'HEAD:PORT is "7117"; write an address and a port'),
        (["--wait", "127.0.0.1:7117"], "--wait takes 127.0.0.1:7117 for its seconds; write --wait after HEAD:PORT"),
        (["127.0.0.1:7117", "--name", ""], "--name is ''; write 1 to 64 printable characters, no /"),
        (["127.0.0.1:7117", "--name", "a/b"], "--name is 'a/b'; write 1 to 64 printable characters, no /"),
        (["127.0.0.1:7117", "-n", "-1"], '-n is "-1"; it must be a whole number, 0 or more'),
    ],
)
def test_what_join_can_not_do_is_refused_in_one_line(words: list[str], line: str, launch: Launch) -> None:
    run = ended(launch.start_joining(words[0], *words[1:]))
    assert run.code == 2
    assert line in run.err
    assert run.err.count("\n") == 1


def test_a_host_of_a_name_that_is_taken_and_one_too_many_are_refused(launch: Launch) -> None:
    head = begun(launch, script(each_step=AT_STEP), "-p", "asp", hosts=3)
    others = [joined(launch, head, "b")]
    said(head.process, "host b has come")
    for name, why in (("b", "a host named b takes part already"), ("head", "the head is named head")):
        refused = ended(joined(launch, head, name))
        assert refused.code == 2
        assert why in refused.err
        assert refused.err.count("\n") == 1
    others.append(joined(launch, head, "c"))
    await_file(launch.tmp_path / "at-0")
    refused = ended(joined(launch, head, "d"))
    assert refused.code == 2
    assert "this run has all of its 3 hosts" in refused.err
    (launch.tmp_path / "go-on").touch()
    head.ended().completed()
    assert [ended(other).code for other in others] == [0, 0]


ALIKE = "import socket; socket.gethostname = lambda: 'localhost'"
"""Every machine of a test is called localhost, as containers are."""


def test_hosts_of_one_name_get_names_of_their_own(launch: Launch) -> None:
    listens = "--listen", "127.0.0.1:0", "--hosts", "3", "-n", "1", "--threads", "1", "-p", "bsp"
    head = launch.start(script(), *listens, first=ALIKE)
    address = listens_at(head)
    others = []
    for number in (2, 3):
        others.append(launch.start_joining(address, "-n", "1", first=ALIKE))
        said(others[-1], f"let in as host localhost-{number};")
    run = ended(head).completed()
    assert [ended(other).code for other in others] == [0, 0]
    assert "refused" not in run.err
    ((facts,),) = run.rows("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    assert [host for _, host, _ in json.loads(facts)["members"]] == ["localhost", "localhost-2", "localhost-3"]
    assert (found := checked(run.folder)).ok, found.wrong


def test_a_host_that_comes_again_by_its_machines_name_finds_its_own_place(launch: Launch) -> None:
    """Both hosts are called localhost, as the head is. One is killed and comes again, and the other stays."""
    listens = "--listen", "127.0.0.1:0", "--hosts", "3", "-n", "1", "--threads", "1", "-p", "asp", "--restart", "1"
    head = launch.start(script(each_step=AT_STEP), *listens, "--on-loss", "continue", first=ALIKE)
    address = listens_at(head)
    others = {}
    for number in (2, 3):
        others[number] = launch.start_joining(address, "-n", "1", first=ALIKE)
        said(others[number], f"let in as host localhost-{number};")
    for worker in range(3):
        await_file(launch.tmp_path / f"at-{worker}")
    others[2].kill()
    ended(others.pop(2))
    said(head, "host localhost-2 is lost")
    others[2] = launch.start_joining(address, "-n", "1", first=ALIKE)
    said(others[2], "let in as host localhost-2;")
    said(head, "host localhost-2 is back")
    (launch.tmp_path / "go-on").touch()
    run = ended(head).completed()
    assert [ended(other).code for other in others.values()] == [0, 0]
    assert (found := checked(run.folder)).ok, found.wrong


def test_a_host_without_the_heads_script_is_refused_and_the_head_waits_on(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("train.py").write_text(script())
    flags = "--listen", "127.0.0.1:0", "--hosts", "2", "--name", "head", "-n", "1", "-p", "asp", "--threads", "1"
    process = launch.start(Path("train.py"), *flags)
    address = listens_at(process)
    monkeypatch.chdir(tmp_path / "there")
    lacks = ended(launch.start_joining(address, "--name", "b"))
    assert lacks.code == 2
    assert "train.py: No such file or directory; the script has to be on every host" in lacks.err
    Path("train.py").write_text(script() + "# another one\n")
    other = ended(launch.start_joining(address, "--name", "b"))
    assert other.code == 2
    assert "train.py is not the head's" in other.err
    Path("train.py").write_text(script())
    joiner = launch.start_joining(address, "--name", "b", "-n", "1")
    assert ended(process).code == 0
    assert ended(joiner).code == 0


def test_a_host_that_computes_with_other_instructions_than_were_asked_for_is_refused(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp")
    other = "import paceline.host.machine as machine; machine.isa = lambda: 'common'"
    refused = ended(launch.start_joining(head.address, "--name", "b", "-n", "1", first=other))
    line = "--isa is common, and the head's is native; give the same on all hosts"
    assert refused.code == 2
    assert refused.err.splitlines()[-1] == f"paceline: {line}"
    assert said(head.process, "host b takes no part: .*\n").endswith(f"paceline: host b takes no part: {line}\n")
    assert ended(joined(launch, head, "b")).code == 0
    head.ended().completed()


def test_each_host_deals_out_its_own_devices_and_one_that_lacks_what_is_asked_for_is_refused(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,8")
    text = 'import os; print("device", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)' + script()
    head = begun(launch, text, "-p", "asp", "--devices", "0,1", "--tee", "all")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    lacks = ended(joined(launch, head, "b"))
    line = "--devices names device 1, and CUDA_VISIBLE_DEVICES has 1 device, number 0; name that, or cpu"
    assert lacks.code == 2
    assert lacks.err.splitlines()[-1] == f"paceline: {line}"
    assert said(head.process, "host b takes no part: .*\n").endswith(f"paceline: host b takes no part: {line}\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2")
    assert ended(joined(launch, head, "b")).code == 0
    run = head.ended().completed()
    assert [run.log(worker).splitlines()[0] for worker in range(2)] == ["device 7", "device GPU-2"]


def test_what_each_machine_has_is_recorded_and_a_replay_names_those_that_were_other_ones(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp")
    other = "import paceline.host.machine as machine; machine.vendor_and_model = lambda found: ('Cyrix', '6x86')"
    joiner = launch.start_joining(head.address, "--name", "b", "-n", "2", first=other)
    run = head.ended().completed()
    assert ended(joiner).code == 0
    ((noted,),) = run.rows("SELECT value FROM run WHERE key = 'environment'")
    hosts = json.loads(noted)["hosts"]
    assert [(name, there["threads"]) for name, there in hosts.items()] == [("head", 1), ("b", 1)]
    assert hosts["b"]["vendor"] == "Cyrix" != hosts["head"]["vendor"]
    assert checked(run.folder).ok
    told = replayed(run.folder).out.splitlines()[0]
    assert told.startswith("paceline: workers 1, 2 ran with vendor Cyrix (here ")


class Hostile:
    """A host that has the token. To each kind of message it says that, and nothing else."""

    def __init__(self, head: Head, says: Mapping[type[object], Sequence[messages.Message]], name: str = "evil") -> None:
        host, _, port = head.address.rpartition(":")
        self.loop, self.says, self.over, self.prepared = Loop(), says, "", False
        self.end = HostEnd(name, secrets.token_bytes(16), host_messages.FromHead)
        self.address, self.keys = (host, int(port)), Keys.encrypted(read(Path(os.environ["PACELINE_TOKEN_FILE"])))
        self.link = HostLink(self.end, self.address, self.keys, self.loop, self)

    def connected(self, incarnation: int) -> None: ...
    def acknowledged(self, sent: float) -> None: ...
    def disconnected(self, why: str) -> None: ...
    def show(self, line: str) -> None: ...

    def delivered(self, message: object) -> None:
        if isinstance(message, host_messages.Prepare):
            self.prepared = True
            dial(self.address, self.keys, data_connection.PURPOSE, self.loop, opened=self._for_data, failed=Mock())
        if isinstance(message, host_messages.Introduce):
            self.link.goes_by(message.host_timeout)
        for one in self.says.get(type(message), ()):
            self.link.send(one)

    def ended(self, why: str) -> None:
        self.over = why

    def _for_data(self, end: Any) -> None:
        stream = Stream(end, self.loop, timeout=60, most=1 << 20, heard=lambda: stream.receive(1 << 16), lost=Mock())
        stream.write(written(Hello("evil", self.end.run, self.end.incarnation, 0)))

    def why_over(self) -> str:
        """Return why nothing more can be exchanged, once that is so."""
        deadline = time.monotonic() + 60
        while not self.over:
            assert time.monotonic() < deadline
            self.loop.wait(0.1)
        self.link.close()
        self.loop.close()
        return self.over


def test_a_host_that_says_what_can_not_be_takes_no_part_and_the_head_waits_on(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp")
    for one, why in (
        (host_messages.Begun(), "a Begun, before the run has begun for it"),
        (WorkerEnded(0, 0), "a WorkerEnded, before the run has begun for it"),
        (host_messages.Printed(0, b"evil"), "a Printed, before the run has begun for it"),
    ):
        assert Hostile(head, {host_messages.Introduce: [one]}).why_over().endswith(f"it has said what can't be: {why}")
        assert f"evil takes no part: it has said what can't be: {why}" in said(head.process, "host evil .*\n")
    assert ended(joined(launch, head, "b")).code == 0
    head.ended().completed()


@pytest.mark.parametrize("lie", [WorkerEnded(0, 0), host_messages.Printed(0, b"evil"), AwaitsPlace(99)])
def test_a_host_that_speaks_for_the_workers_of_others_is_lost_and_they_go_on(
    lie: WorkerEnded | host_messages.Printed | AwaitsPlace, launch: Launch
) -> None:
    head = begun(launch, script(), "-p", "asp", "--on-loss", "continue")
    why = f"it has said what can't be: worker {lie.worker} is none of its own"
    says = {host_messages.Introduce: [host_messages.HostOffer(1, machine())], host_messages.Prepare: [lie]}
    assert Hostile(head, says).why_over().endswith(why)
    run = head.ended().completed()
    assert f"host evil is lost: {why}" in run.err
    assert "evil" not in run.log(0)


def test_a_host_whose_head_has_died_takes_no_part_in_the_run_that_listens_there_next(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp", hosts=3)
    left = joined(launch, head, "b")
    said(head.process, "host b has come")
    head.process.kill()
    head.ended()
    head = begun(launch, script(), "-p", "asp", address=head.address)
    over = ended(left)
    assert over.code != 0
    assert ANOTHER_RUN in over.err
    assert ended(joined(launch, head, "b")).code == 0
    head.ended().completed()


def test_a_head_that_is_told_to_end_waits_for_a_silent_host_as_long_as_for_a_lost_one_and_not_after_a_second_signal(
    launch: Launch,
) -> None:
    for timeout, signals in (("1", 1), ("600", 2)):
        head = begun(launch, script(), "-p", "asp", "--host-timeout", timeout)
        evil = Hostile(head, {host_messages.Introduce: [host_messages.HostOffer(1, machine())]})
        while not evil.prepared:
            evil.loop.wait(0.1)
        os.kill(head.process.pid, signal.SIGTERM)
        if signals == 2:
            said(head.process, "interrupted: .*\n")
            os.kill(head.process.pid, signal.SIGTERM)
        assert evil.why_over()
        run = head.ended()
        lost = "host evil is lost: it has not ended worker 1 for 1 s" in run.err
        assert (run.code, lost) == (130, signals == 1), run.err


def test_a_host_that_only_beats_keeps_no_place_from_others(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp", "--host-timeout", "1")
    assert Hostile(head, {}).why_over().endswith("it has not said what it has for the run")
    assert ended(joined(launch, head, "b")).code == 0
    head.ended().completed()


def test_what_a_host_says_of_itself_is_one_line_that_a_terminal_can_show(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp")
    name = "\x1b[2J" + 100 * "x"
    assert Hostile(head, {}, name).why_over().startswith("its name is '\\x1b[2Jxxx")
    says = [host_messages.HostRemarked("red\x1b[31m\nline"), host_messages.Leaves("so\n\x1b[2J")]
    assert Hostile(head, {host_messages.Introduce: says}).why_over()
    said(head.process, r"paceline: red\\x1b\[31m\\nline\npaceline: host evil takes no part: so\\n\\x1b\[2J\n")
    os.kill(head.process.pid, signal.SIGINT)
    head.ended()
