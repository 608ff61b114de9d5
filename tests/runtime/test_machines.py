"""What `--on` names, what the shell of another machine is to execute, and what becomes of processes there."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.ipc.loop import Loop
from paceline.launch import machines as on
from paceline.launch.machines import Machine, machines
from paceline.launch.remote import Remote, over_ssh
from paceline.launch.ssh import leading_to, looked_up, working_directory
from support import sshd
from support.leftovers import Traces


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ssh:a,b", [Machine("a", "a", None, 4), Machine("b", "b", None, 4)]),
        ("ssh:a=2,b", [Machine("a", "a", None, 2), Machine("b", "b", None, 4)]),
        ("ssh:user@c.lab:2222=8", [Machine("c.lab:2222", "user@c.lab", 2222, 8)]),
        ("ssh:10.0.0.7", [Machine("10.0.0.7", "10.0.0.7", None, 4)]),
        ("ssh:me@[fe80::1%eth0]:22", [Machine("[fe80::1%eth0]:22", "me@fe80::1%eth0", 22, 4)]),
        ("ssh:box:22,box:23", [Machine("box:22", "box", 22, 4), Machine("box:23", "box", 23, 4)]),
    ],
)
def test_machines_are_named_as_ssh_names_them_with_workers_of_their_own(text: str, found: list[Machine]) -> None:
    assert list(machines(text, 4)) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", '--on is ""; it must be ssh:HOST'),
        ("rays", '--on is "rays"; it must be ssh:HOST,…, such as ssh:a,b or ssh:a=4,user@b:2222=2, or ray'),
        ("ssh:a,,b", '--on names ""'),
        ("ssh:-oProxyCommand=reboot", '--on names "-oProxyCommand=reboot"'),
        ("ssh:-me@a", '--on names "-me@a"'),
        ("ssh:a b", '--on names "a b"'),
        ("ssh:a\nb", '--on names "a\\nb"'),
        ("ssh:a:0", '--on names "a:0"'),
        ("ssh:a:65536", '--on names "a:65536"'),
        ("ssh:a=100001", "--on gives a 100001 workers; it must be 0 to "),
        ("ssh:a=x", '--on names "a=x"'),
        ("ssh:a,b,me@a=2", "--on names a twice"),
    ],
)
def test_what_names_no_machine_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        machines(text, 4)
    assert str(refused.value).startswith(why)
    assert "\n" not in str(refused.value)


def test_ssh_never_asks_and_logs_in_as_named() -> None:
    (machine,) = machines("ssh:user@c:2222", 4)
    words = ["ssh", "-F", "file", "-o", "BatchMode=yes", "-p", "2222", "user@c"]
    assert on.ssh_words(["ssh", "-F", "file"], machine) == words


def test_ssh_gives_up_on_a_machine_unless_its_configuration_says_when() -> None:
    assert on.patience(on.configuration("hostname a\nconnecttimeout none\n")) == ["-o", "ConnectTimeout=15"]
    assert on.patience(on.configuration("hostname a\nconnecttimeout 60\n")) == []


ODD = [
    *("plain", "with spaces", "a'b", 'a"b', "$HOME", "`reboot`", "$(reboot)", "a;b", "a&b|c>d<e", "*", "~", "-n"),
    *("!!", "back\\slash", "two\nlines", "tab\there", "naïve ☃", "#comment", ""),
]
SHELLS = [shell for shell in ("sh", "bash", "dash", "zsh", "fish") if shutil.which(shell)]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_hands_on_odd_folders_pythons_and_arguments_as_they_are(shell: str, tmp_path: Path) -> None:
    for text in filter(None, ODD):
        folder = tmp_path / text
        folder.mkdir()
        python = folder / text
        python.write_text(f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([os.getcwd(), sys.argv[1:]]))\n")
        python.chmod(0o700)
        command = on.shell_words(str(folder), str(python), ODD)
        said = subprocess.run([shell, "-c", command], capture_output=True, text=True, check=True).stdout
        assert json.loads(said) == [str(folder), ["-m", "paceline", *ODD]]


@pytest.mark.real_run
@pytest.mark.parametrize("shell", SHELLS)
def test_what_a_machine_lacks_is_named_with_its_path(shell: str, tmp_path: Path) -> None:
    (machine,) = machines("ssh:b", 4)

    def said(directory: str, python: str) -> str:
        command = on.shell_words(directory, python, ["join"])
        environment = {"PATH": os.environ["PATH"]}
        ended = subprocess.run([shell, "-c", command], capture_output=True, text=True, env=environment)
        last = ended.stderr.strip().rpartition("\n")[2]
        return on.why_not(machine, ended.returncode << 8, last, ssh=["ssh"], directory=directory, python=python)

    assert said("/not/there", sys.executable) == (
        "host b has no folder /not/there; a host needs the script at the same path as here"
    )
    assert said(str(tmp_path), "/not/python") == (
        "host b can't execute /not/python; a host needs Python at the same path as here"
    )
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\necho $0: No module named paceline >&2\nexit 1\n")
    bare.chmod(0o700)
    assert said(str(tmp_path), str(bare)) == f"host b: {bare} has no Paceline there; install the same version as here"


@pytest.mark.parametrize(
    ("code", "last", "why"),
    [
        (255, "b: Permission denied.", "host b: ssh can't log in: b: Permission denied.; this must work: ssh -o"),
        (2, "the head has another script", "host b: the head has another script"),
        (1, "", "host b: paceline join ended with exit code 1"),
    ],
)
def test_a_host_that_does_not_come_is_named_with_the_last_line_it_had(code: int, last: str, why: str) -> None:
    (machine,) = machines("ssh:b", 4)
    assert on.why_not(machine, code << 8, last, ssh=["ssh"], directory="/here", python="/python").startswith(why)


# --- agents that ssh starts: a real sshd on loopback, and what becomes of processes there


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
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True)"
    deaf = command(server, "a", "-c", f"{ignores}; time.sleep(60)", "deaf")
    said: list[str] = []
    with over_ssh([deaf], "secret", WHY, said.append) as (remote,):
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


@pytest.mark.usefixtures("server")
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
