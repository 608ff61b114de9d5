"""`paceline doctor`: what it looks at, what it says, and its exit code."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.runs import doctor
from paceline.version import OLDEST_TORCH, TORCH

ROOT = Path(__file__).parents[1]


def test_the_tested_torch_is_the_one_that_is_installed_for_tests_and_the_oldest_the_one_that_pip_allows() -> None:
    assert f"\ntorch=={TORCH}\n" in (ROOT / "constraints.txt").read_text()
    assert f'"torch>={OLDEST_TORCH}"' in (ROOT / "pyproject.toml").read_text()


def test_two_workers_come_to_plain_trainings_bits_here_and_json_has_every_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["doctor", "--json"])
    printed = json.loads(capsys.readouterr().out)
    checks = {check["name"]: check for check in printed["checks"]}
    assert list(checks) == list(doctor.CHECKS)
    assert checks["self-test"]["ok"], checks["self-test"]
    assert printed["ok"] == all(check["ok"] for check in checks.values()) == (code == 0)
    assert all(check["ok"] == (check["advice"] == "") for check in checks.values())


def test_each_line_says_ok_or_what_to_do_and_then_the_code_is_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> doctor.Finding:
        raise OSError("no such thing")

    well, ill = doctor.Finding("2 of 2"), doctor.Finding("none", "buy some")
    monkeypatch.setattr(doctor, "CHECKS", {"cores": lambda: well})
    assert main(["doctor"]) == 0
    monkeypatch.setattr(doctor, "CHECKS", {"cores": lambda: well, "memory": lambda: ill, "clock": broken})
    assert main(["doctor"]) == 3
    assert capsys.readouterr().out.splitlines() == [
        "ok  cores  2 of 2",
        "ok  cores   2 of 2",
        "NO  memory  none: buy some",
        "NO  clock   OSError: no such thing: this could not be examined; mend that first",
    ]


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


def ended(code: int, out: str = "", err: str = "") -> Callable[..., Any]:
    return lambda *_, **__: subprocess.CompletedProcess([], code, out, err)


OTHER_BITS = json.dumps({"versions": 4, "final_parameters_sha256": "0" * 64, "wall_seconds": 0.1})


@pytest.mark.parametrize(
    ("check", "where", "what", "stand_in", "said"),
    [
        ("python", sys, "version_info", (3, 10, 2), "install Python 3.11 or newer"),
        ("torch", metadata, "version", lambda _: "2.5.1+cpu", "2.5.1+cpu: older than 2.6"),
        ("torch", metadata, "version", raising(metadata.PackageNotFoundError()), "not installed: pip install torch=="),
        ("cores", doctor, "_quota", lambda: 0.5, "say --threads"),
        ("memory", doctor, "LEAST_MEMORY", 1 << 60, "GiB free: free some"),
        ("shared memory", shutil, "disk_usage", lambda _: SimpleNamespace(free=0, total=1 << 26), "--shm-size=1g"),
        ("file limit", resource, "getrlimit", lambda _: (64, 128), "64 open files, at most 128: raise it: ulimit -n"),
        ("kernel", os, "pidfd_open", raising(PermissionError("no")), "without pidfd_open (no): Linux 5.3 or newer"),
        ("clock", doctor, "WORST_CLOCK", 0.0, "too coarse"),
        ("loopback", doctor, "_message_speed", lambda: 10.0, "10 messages and answers/s: that is slow"),
        ("self-test", subprocess, "run", ended(3, err="a\nworker 0 died\n"), "exit code 3: worker 0 died: mend"),
        ("self-test", subprocess, "run", ended(0, OTHER_BITS), "results can't be trusted here"),
        ("self-test", subprocess, "run", raising(subprocess.TimeoutExpired("paceline", 9)), "timed out after 9"),
    ],
)
def test_what_is_wrong_is_found_and_what_to_do_is_said(
    check: str, where: Any, what: str, stand_in: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, what, stand_in)
    finding = doctor.looked(doctor.CHECKS[check])
    monkeypatch.undo()
    assert not finding.ok
    assert re.search(re.escape(said), f"{finding.found}: {finding.advice}"), finding


def test_another_torch_than_the_tested_one_is_well_but_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "2.9.0")
    finding = doctor.torch_version()
    assert finding.ok
    assert finding.found == f"2.9.0, where {TORCH} is the tested one"
