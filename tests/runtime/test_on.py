"""`paceline run --on ssh:a,b`: a real sshd on loopback, real runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.events import said
from support.launch import Launch
from support.recorded import checked
from support.runs import Run, ended
from support.sshd import Sshd

SCRIPT = """
import time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

THERE = Path(__file__).parent
torch.manual_seed(3)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,))), batch_size=4, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=2)
print("I am", paceline.worker())
for epoch in range(2):
    for step, (x, y) in enumerate(loader):
        EACH_STEP
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
WAITS = """
        if step == 2:
            (THERE / f"at-{paceline.worker()}").touch()
            while not (THERE / "go-on").exists(): time.sleep(0.05)
"""
"""Notes that the worker is in its third step, where all wait until they are to go on."""


def script(each_step: str = "pass") -> str:
    return SCRIPT.replace("EACH_STEP", each_step.strip())


def on(server: Sshd, hosts: str, before: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Flags of a run with one worker here, and with these hosts. `before` is what executes ssh."""
    flags = "--name", "head", "-n", "1", "--threads", "1", "-p", "asp"
    return "--on", hosts, "--ssh", shlex.join([*before, *server.ssh]), *flags


def await_workers(launch: Launch, *workers: int) -> None:
    deadline = time.monotonic() + 60
    while not all((launch.tmp_path / f"at-{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def refused(run: Run, *words: str) -> None:
    """It was refused in one line, which has these words, and left no folder."""
    assert run.code == 2, run.err
    (line,) = [line for line in run.err.splitlines() if " has come" not in line]
    assert all(word in line for word in words), line
    assert not run.folder.exists()


def test_machines_take_part_with_workers_of_their_own(launch: Launch, server: Sshd) -> None:
    run = launch.run(script(), *on(server, "ssh:b=2,a"), "--tee", "all").completed()
    ((facts,),) = run.rows("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    assert [host for _, host, _ in json.loads(facts)["members"]] == ["head", "a", "b", "b"]
    assert run.summary["samples"] == 2 * 96
    assert (found := checked(run.folder)).ok, found.wrong
    assert all(f"[worker {worker}] I am {worker}\n" in run.out for worker in range(4))
    came = [line for line in run.err.splitlines() if " has come, with " in line]
    assert len(came) == 2
    assert run.err.splitlines() == came  # how the run has ended is said once, and by the head


def test_a_network_that_is_trusted_is_so_on_both_sides(launch: Launch, server: Sshd) -> None:
    run = launch.run(script(), *on(server, "ssh:a"), "--trusted-network", "--max-steps", "4").completed()
    assert run.err.count("traffic between hosts is not encrypted") == 1


def test_a_run_of_one_machine_goes_on_with_others(launch: Launch, server: Sshd) -> None:
    run = launch.run(script(), "-n", "1", "--threads", "1", "-p", "asp", "--max-steps", "10").completed()
    flags = on(server, "ssh:a=2")
    run = launch.resume(run.folder, *flags[: flags.index("-p")]).completed()
    assert run.summary["workers"] == 3
    assert run.summary["samples"] == 2 * 96
    assert (found := checked(run.folder)).ok, found.wrong


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ("ssh:a,denies", ("host denies: ssh can't log in: ", "Permission denied", " -o BatchMode=yes denies true")),
        ("ssh:closed", ("host closed: ssh can't log in: ", "Connection refused")),
        ("ssh:nowhere", ("lead to nowhere", "--listen")),
        ("ssh:head", ("--on names head, which is this host",)),
        ("a", ('--on is "a"', "ssh:HOST")),
    ],
)
def test_a_machine_that_can_t_come_ends_the_start_with_one_line(
    hosts: str, words: tuple[str, ...], launch: Launch, server: Sshd
) -> None:
    refused(launch.run(script(), *on(server, hosts)), *words)


ELSEWHERE = """
import os, sys
old, new, *words = sys.argv[1:]
words[-1] = words[-1].replace(old, new)
os.execvp(words[0], words)
"""
"""Stands for a machine that lacks something: what is executed there is another path. ssh's own words stay."""


def test_what_a_machine_lacks_is_named_by_the_head(launch: Launch, server: Sshd) -> None:
    here = os.getcwd()
    elsewhere = launch.tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text("# another script")
    bare = launch.tmp_path / "bare"
    bare.write_text("#!/bin/sh\necho $0: No module named paceline >&2\nexit 1\n")
    bare.chmod(0o700)
    for old, new, words in (
        (f"cd {here}", "cd /not/there", (f"host a has no folder {here}",)),
        (sys.executable, "/not/python", (f"host a can't execute {sys.executable}",)),
        (sys.executable, str(bare), (f"host a: {sys.executable} has no Paceline there",)),
    ):
        wrapper = sys.executable, "-c", ELSEWHERE, old, new
        refused(launch.run(script(), *on(server, "ssh:a", wrapper)), *words)


def test_a_machine_without_the_folder_is_sent_it(launch: Launch, server: Sshd) -> None:
    here, home = launch.tmp_path / "here", launch.tmp_path / "home"
    here.mkdir()
    home.mkdir()
    (here / "train.py").write_text(script())
    wrapper = sys.executable, "-c", ELSEWHERE, "exec ", f"cd {home} && exec "
    first = f"import os; os.chdir({str(here)!r}); os.environ['PWD'] = {str(here)!r}"
    run = launch.run(Path("train.py"), *on(server, "ssh:a", wrapper), "--send", ".", first=first).completed()
    assert run.summary["samples"] == 2 * 96
    assert not list(home.iterdir())


@pytest.mark.parametrize("present", [False, True])
def test_a_machine_whose_script_is_another_or_none_is_named(present: bool, launch: Launch, server: Sshd) -> None:
    here, there = launch.tmp_path / "here", launch.tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "train.py").write_text(script())
    if present:
        (there / "train.py").write_text("# another script")
    wrapper = sys.executable, "-c", ELSEWHERE, str(here), str(there)
    first = f"import os; os.chdir({str(here)!r}); os.environ['PWD'] = {str(here)!r}"
    refused(launch.run(Path("train.py"), *on(server, "ssh:a", wrapper), first=first), "host a: train.py", "the script")


def test_flags_that_contradict_it_are_refused_in_one_line(launch: Launch, server: Sshd) -> None:
    for flags, words in (
        (("--hosts", "3"), ("--hosts is 3", "leave --hosts out")),
        (("--emulate-hosts", "2"), ("--emulate-hosts is 2, and --on has machines join",)),
        (("-p", "ddp"), ("--on: ddp runs on one host only",)),
        (("--listen", "192.0.2.1:0"), ("--listen 192.0.2.1:0: ",)),
    ):
        refused(launch.run(script(), *[*on(server, "ssh:a")[:-2], *flags]), *words)
    refused(launch.run(script(), "--ssh", "ssh"), "--ssh is ssh", "--on")


@pytest.mark.parametrize("end", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_to_the_head_ends_the_agents(end: signal.Signals, launch: Launch, server: Sshd) -> None:
    process = launch.start(script(WAITS), *on(server, "ssh:a,b"))
    await_workers(launch, 0, 1, 2)
    os.kill(process.pid, end)
    (launch.tmp_path / "go-on").touch()
    assert ended(process).code == 130
    launch.assert_nothing_left()


def test_agents_end_with_a_head_that_is_killed_and_have_the_token_to_themselves(launch: Launch, server: Sshd) -> None:
    process = launch.start(script(WAITS), *on(server, "ssh:a"))
    await_workers(launch, 0, 1)
    for one in launch.traces[-1].processes():
        for what in "cmdline", "environ":
            assert not re.search(rb"paceline_[0-9a-f]{64}", Path(f"/proc/{one}/{what}").read_bytes())
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    launch.assert_nothing_left()


def test_an_interrupted_start_waits_for_no_machine(launch: Launch, server: Sshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = launch.start(script(), *on(server, f"ssh:silent:{silent.getsockname()[1]}"))
        silent.settimeout(60.0)
        with silent.accept()[0]:  # ssh waits for what a server says first
            os.kill(process.pid, signal.SIGINT)
            run = ended(process)
    assert run.code == 130
    assert not run.folder.exists()
    launch.assert_nothing_left()


def _client(there: dict[int, str]) -> list[int]:
    return [process for process, what in there.items() if ": ssh -F " in what]


def _session(there: dict[int, str]) -> list[int]:
    """The sshd above the agent. Unlike all that it has started, it has no mark."""
    agents = [process for process, what in there.items() if " -m paceline join " in what and ": ssh -F " not in what]
    parents = {int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1]) for agent in agents}
    (session,) = parents - set(there)
    assert "sshd" in Path(f"/proc/{session}/comm").read_text()
    return [session]


@pytest.mark.parametrize("cut", [pytest.param(_client, marks=pytest.mark.long), _session])
def test_a_host_is_lost_with_its_connection_and_the_others_go_on(
    cut: Callable[[dict[int, str]], list[int]], launch: Launch, server: Sshd
) -> None:
    process = launch.start(script(WAITS), *on(server, "ssh:a=2"), "--on-loss", "continue")
    await_workers(launch, 0, 1, 2)
    for one in cut(launch.traces[-1].processes()):
        os.kill(one, signal.SIGKILL)
    said(process, "host a is lost: .*\n")
    (launch.tmp_path / "go-on").touch()
    run = ended(process).completed()
    assert run.summary["samples"] + run.summary["samples_missed"] == 2 * 96
    assert (found := checked(run.folder)).ok, found.wrong
