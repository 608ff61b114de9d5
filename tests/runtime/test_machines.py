"""What `--on` names, and what the shell of another machine is to execute."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.launch import machines as on
from paceline.launch.machines import Machine, machines


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
