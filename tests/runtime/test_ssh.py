"""Agents that ssh starts: a real sshd on loopback, and what becomes of processes there."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.ipc.loop import Loop
from paceline.launch import machines as on
from paceline.launch.machines import machines
from paceline.launch.remote import Remote, over_ssh
from paceline.launch.ssh import leading_to, looked_up, working_directory
from support import sshd
from support.leftovers import Traces

pytestmark = pytest.mark.usefixtures("server")

AGENT = """
import signal, sys, time
from paceline.launch import tied
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
line = tied.first_line()
tied.end_with_input()
print("paceline: got", line, flush=True)
time.sleep(60)
"""
"""Stands for `paceline join --stdin`."""


WHY = partial(on.why_not, ssh=["ssh"], directory="/here", python="/python")


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    """What a test has started must be gone at its end, on the machine that ssh leads to as well."""
    traces = Traces(tmp_path / "temporary")
    for name, value in traces.environment.items():
        monkeypatch.setenv(name, value)
    yield traces
    traces.assert_nothing_left()


def command(server: sshd.Sshd, host: str, *words: str) -> tuple[on.Machine, list[str]]:
    """What starts Python with these words there."""
    (machine,) = machines(f"ssh:{host}", 2)
    return machine, [*on.ssh_words(server.ssh, machine), on.join([sys.executable, *words])]


class Watched:
    """Agents in a loop."""

    def __init__(self, remotes: list[Remote]) -> None:
        self.loop = Loop()
        self.lines: list[str] = []
        self.ended: list[str] = []
        for remote in remotes:
            remote.watch(self.loop, lambda remote=remote: self.ended.append(remote.machine.name))

    def until(self, so: Callable[[], object]) -> None:
        deadline = time.monotonic() + 30.0
        while not so():
            assert time.monotonic() < deadline, (self.lines, self.ended)
            self.loop.wait(1.0)


def test_what_a_host_prints_is_held_until_it_has_come_and_then_shown_with_its_name(
    server: sshd.Sshd, traces: Traces
) -> None:
    prints = "import sys; print('one', flush=True); print('two\\t\\x1b[31m', file=sys.stderr); print(input())"
    with over_ssh([command(server, "b", "-c", prints)], "three", WHY, lambda line: None) as (remote,):
        watched = Watched([remote])
        watched.until(lambda: watched.ended)
        assert watched.lines == []
        remote.came(watched.lines.append)
        assert sorted(watched.lines) == ["b: one", "b: three", "b: two\\t\\x1b[31m"]
        watched.loop.close()


def test_an_agent_that_does_not_end_is_named_and_its_connection_is_cut(
    server: sshd.Sshd, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.launch.remote.ENDS_WITHIN", 0.5)
    said: list[str] = []
    with over_ssh([command(server, "a", "-c", AGENT, "deaf")], "secret", WHY, said.append) as (remote,):
        watched = Watched([remote])
        remote.came(watched.lines.append)
        watched.until(lambda: watched.lines)
        watched.loop.close()
    assert said == ["host a has not ended within 1 s: its connection is cut"]
    (left,) = (process for process, what in traces.processes().items() if "deaf" in what)
    os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("denies", "Permission denied"),
        ("nowhere", "Could not resolve hostname nowhere.invalid"),
        ("changed", "Host key verification failed."),
    ],
)
def test_a_machine_that_ssh_can_t_log_in_to_is_named_with_what_ssh_said(
    server: sshd.Sshd, traces: Traces, host: str, why: str
) -> None:
    with over_ssh([command(server, host, "-c", "pass")], "secret", WHY, lambda line: None) as (remote,):
        watched = Watched([remote])
        watched.until(lambda: watched.ended)
        line = str(remote.failure(watched.lines.append))
        assert line.startswith(f"host {host}: ssh can't log in: ")
        assert why in line
        watched.loop.close()


def test_ssh_says_where_a_machine_is_and_what_is_to_join_there(server: sshd.Sshd) -> None:
    found = looked_up("ssh:me@b:2222=3", shlex.join(server.ssh), 2)
    assert found.address() == "127.0.0.1"
    for listens, head in (("10.0.0.1", "10.0.0.1:7"), ("0.0.0.0", "127.0.0.1:7"), ("fe80::1", "'[fe80::1]:7'")):
        ((machine, words),) = found.commands((listens, 7), ["--trusted-network"], "/there")
        assert machine.name == "b:2222"
        assert words[:-1] == [*server.ssh, "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-p", "2222", "me@b"]
        assert words[-1].endswith(
            f" -m paceline join {head} --name b:2222 -n 3 --wait 15 --stdin --trusted-network || exit 95"
        )


@pytest.mark.parametrize(
    ("on", "ssh", "why"),
    [
        ("ssh:a", "/not/ssh", "--on needs ssh, and /not/ssh can't be executed: No such file"),
        ("ssh:a", "'", '--ssh is "\'": No closing quotation'),
        ("ssh:a", " ", "--ssh names no command"),
        ("ssh:a", "ssh -F /not/there", "--on: ssh can't tell where a is: Can't open user config file /not/there"),
    ],
)
def test_an_ssh_that_says_nothing_is_refused_in_one_line(on: str, ssh: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        looked_up(on, ssh, 2)
    assert str(refused.value).startswith(why)


def test_an_ssh_that_never_says_where_a_machine_is_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.launch.ssh.TELLS_WITHIN", 0.1)
    with pytest.raises(ConfigError) as refused:
        looked_up("ssh:a", "sh -c 'exec sleep 60'", 2)
    assert str(refused.value) == (
        "--on: ssh has not told within 0 s where a is; see what holds up sh -c 'exec sleep 60' -o BatchMode=yes -G a"
    )


def test_a_machine_that_no_address_leads_to_is_named_with_the_way_out(server: sshd.Sshd) -> None:
    found = looked_up("ssh:nowhere", shlex.join(server.ssh), 2)
    with pytest.raises(ConfigError, match=r"known to lead to nowhere \(.*\); name one .* with --listen"):
        found.address()


def test_an_address_is_loopback_s_only_where_all_hosts_are_this_machine() -> None:
    assert leading_to(["127.0.0.1", "localhost"]) in ("127.0.0.1", "::1")
    with pytest.raises(socket.gaierror):
        leading_to(["nowhere.invalid"])


def test_the_working_directory_keeps_its_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "link")
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    assert working_directory() == str(tmp_path / "link")
    monkeypatch.setenv("PWD", str(tmp_path))
    assert working_directory() == str(tmp_path / "real")
