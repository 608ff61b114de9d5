"""`paceline run --on ssh:a,b`: a real sshd on loopback, real runs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import sys
from pathlib import Path

import pytest

from support.events import said
from support.launch import Launch
from support.machines import SAMPLES, WAITS, assert_no_token, await_workers, refused
from support.runs import ended
from support.scripts import that_resumes, training
from support.sound import right
from support.sshd import Sshd


def on(server: Sshd, hosts: str, before: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Flags of a run with one worker here, and with these hosts. `before` is what executes ssh."""
    flags = "--name", "head", "-n", "1", "--threads", "1", "-p", "asp"
    return "--on", hosts, "--ssh", shlex.join([*before, *server.ssh]), *flags


def test_machines_take_part_with_workers_of_their_own(launch: Launch, server: Sshd) -> None:
    run = launch.run(training(before="print('I am', me)"), *on(server, "ssh:b=2,a"), "--tee", "all").completed()
    ((facts,),) = run.rows("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    assert [host for _, host, _ in json.loads(facts)["members"]] == ["head", "a", "b", "b"]
    assert run.summary["samples"] == SAMPLES
    right(run)
    assert all(f"[worker {worker}] I am {worker}\n" in run.out for worker in range(4))
    came = [line for line in run.err.splitlines() if " has come, with " in line]
    assert len(came) == 2
    assert run.err.splitlines() == came  # how the run has ended is said once, and by the head


def test_a_network_that_is_trusted_is_so_on_both_sides(launch: Launch, server: Sshd) -> None:
    run = launch.run(training(), *on(server, "ssh:a"), "--trusted-network", "--max-steps", "4").completed()
    assert run.err.count("traffic between hosts is not encrypted") == 1


def test_a_run_of_one_machine_goes_on_with_others(launch: Launch, server: Sshd) -> None:
    run = launch.run(that_resumes(), "-n", "1", "--threads", "1", "-p", "asp", "--max-steps", "10").completed()
    flags = on(server, "ssh:a=2")
    run = launch.resume(run.folder, *flags[: flags.index("-p")]).completed()
    assert (run.summary["workers"], run.summary["samples"]) == (3, 2 * 240)
    right(run)


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ("ssh:a,denies", ("host denies: ssh can't log in: ", "Permission denied", " -o BatchMode=yes denies true")),
        ("ssh:nowhere", ("lead to nowhere", "--listen")),
        ("ssh:head", ("--on names head, which is this host",)),
    ],
)
def test_a_machine_that_can_t_come_ends_the_start_with_one_line(
    hosts: str, words: tuple[str, ...], launch: Launch, server: Sshd
) -> None:
    refused(launch.run(training(), *on(server, hosts)), *words)


ELSEWHERE = """
import os, sys
old, new, *words = sys.argv[1:]
words[-1] = words[-1].replace(old, new)
os.execvp(words[0], words)
"""
"""Stands for a machine that lacks something: what is executed there is another path. ssh's own words stay."""


@pytest.mark.parametrize("sends", [False, True])
def test_a_machine_with_another_script_is_refused_and_one_without_the_folder_is_sent_it(
    sends: bool, launch: Launch, server: Sshd
) -> None:
    here, there = launch.tmp_path / "here", launch.tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "train.py").write_text(training())
    first = f"import os; os.chdir({str(here)!r}); os.environ['PWD'] = {str(here)!r}"
    if sends:
        wrapper = sys.executable, "-c", ELSEWHERE, "exec ", f"cd {there} && exec "
        run = launch.run(Path("train.py"), *on(server, "ssh:a", wrapper), "--send", ".", first=first).completed()
        assert run.summary["samples"] == SAMPLES
        assert not list(there.iterdir())
    else:
        (there / "train.py").write_text("# another script")
        wrapper = sys.executable, "-c", ELSEWHERE, str(here), str(there)
        run = launch.run(Path("train.py"), *on(server, "ssh:a", wrapper), first=first)
        refused(run, "host a: train.py", "the script")


def test_flags_that_contradict_it_are_refused_in_one_line(launch: Launch, server: Sshd) -> None:
    for flags, words in (
        (("--hosts", "3"), ("--hosts is 3", "leave --hosts out")),
        (("--emulate-hosts", "2"), ("--emulate-hosts is 2, and --on has machines join",)),
        (("-p", "ddp"), ("--on: ddp runs on one host only",)),
        (("--listen", "192.0.2.1:0"), ("--listen 192.0.2.1:0: ",)),
    ):
        refused(launch.run(training(), *[*on(server, "ssh:a")[:-2], *flags]), *words)
    refused(launch.run(training(), "--ssh", "ssh"), "--ssh is ssh", "--on")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_agents_end_with_the_head_and_have_the_token_to_themselves(
    end: signal.Signals, launch: Launch, server: Sshd
) -> None:
    process = launch.start(training(WAITS), *on(server, "ssh:a,b"))
    await_workers(launch, 0, 1, 2)
    assert_no_token(launch.traces[-1].processes())
    os.kill(process.pid, end)
    (launch.tmp_path / "go-on").touch()
    assert ended(process).code == (130 if end == signal.SIGINT else -signal.SIGKILL)
    launch.assert_nothing_left()


def test_an_interrupted_start_waits_for_no_machine(launch: Launch, server: Sshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = launch.start(training(), *on(server, f"ssh:silent:{silent.getsockname()[1]}"))
        silent.settimeout(60.0)
        with silent.accept()[0]:  # ssh waits for what a server says first
            os.kill(process.pid, signal.SIGINT)
            run = ended(process)
    assert run.code == 130
    assert not run.folder.exists()
    launch.assert_nothing_left()


def session(there: dict[int, str]) -> int:
    """The sshd above the agent. Unlike all that it has started, it has no mark."""
    agents = [process for process, what in there.items() if " -m paceline join " in what and ": ssh -F " not in what]
    parents = {int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1]) for agent in agents}
    (found,) = parents - set(there)
    assert "sshd" in Path(f"/proc/{found}/comm").read_text()
    return found


def test_a_host_is_lost_with_its_connection_and_the_others_go_on(launch: Launch, server: Sshd) -> None:
    process = launch.start(training(WAITS), *on(server, "ssh:a=2"), "--on-loss", "continue")
    await_workers(launch, 0, 1, 2)
    os.kill(session(launch.traces[-1].processes()), signal.SIGKILL)
    said(process, "host a is lost: .*\n")
    (launch.tmp_path / "go-on").touch()
    run = ended(process).completed()
    assert run.summary["samples"] + run.summary["samples_missed"] == SAMPLES
    right(run)
