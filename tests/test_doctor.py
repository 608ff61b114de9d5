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
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.cli.main import main
from paceline.host import devices
from paceline.runs import devices as measures
from paceline.runs import doctor
from paceline.version import OLDEST_TORCH, TORCH

ROOT = Path(__file__).parents[1]


def test_the_tested_torch_is_the_one_that_is_installed_for_tests_and_the_oldest_the_one_that_pip_allows() -> None:
    assert f"\ntorch=={TORCH}\n" in (ROOT / "constraints.txt").read_text()
    assert f'"torch>={OLDEST_TORCH}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.real_run
def test_the_self_test_passes_here_and_json_has_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    printed = json.loads(capsys.readouterr().out)
    checks = {check["name"]: check for check in printed["checks"]}
    assert list(checks) == list(doctor.CHECKS)
    assert checks["self-test"]["ok"], checks["self-test"]
    assert printed["ok"] == all(check["ok"] for check in checks.values()) == (code == 0)
    assert all(check["ok"] == (check["advice"] == "") for check in checks.values())


def test_each_line_says_ok_or_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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


H100 = {"name": "NVIDIA H100 80GB HBM3", "memory": 85_017_493_504, "to": 55.24e9, "from": 52.61e9}
TOLD: dict[str, Any] = {"torch": "2.13.0+cu126", "cuda": "12.6", "unusable": "", "unlocked": "", "devices": [H100]}
WITHOUT_CUDA = TOLD | {"torch": "2.13.0+cpu", "cuda": None, "devices": []}
OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040)."
UNUSABLE = TOLD | {"devices": [], "unusable": OLD_DRIVER}
OTHER_BITS = json.dumps({"versions": 4, "final_parameters_sha256": "0" * 64, "wall_seconds": 0.1})


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with the driver's file for one GPU."""
    monkeypatch.setattr(devices, "there", lambda: 1)
    monkeypatch.delenv(devices.VARIABLE, raising=False)


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
        ("GPUs", subprocess, "run", ended(0, json.dumps(WITHOUT_CUDA)), f"--force-reinstall torch=={TORCH}, "),
        ("GPUs", subprocess, "run", ended(0, json.dumps(UNUSABLE)), f"can use none: {OLD_DRIVER}: see whether"),
        (
            "GPUs",
            subprocess,
            "run",
            ended(1, err="Traceback\nRuntimeError: 999\n"),
            "exit code 1: RuntimeError: 999: me",
        ),
        ("GPUs", subprocess, "run", ended(-11), "exit code -11: it said nothing: mend what it says, and look again"),
        ("GPUs", subprocess, "run", raising(subprocess.TimeoutExpired("python", 90)), "timed out after 90"),
        ("GPUs", subprocess, "run", ended(0, "no JSON\n"), "JSONDecodeError"),
    ],
)
def test_what_is_wrong_is_found_and_what_to_do_is_said(
    check: str, where: Any, what: str, stand_in: Any, said: str, one_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, what, stand_in)
    finding = doctor.looked(doctor.CHECKS[check])
    monkeypatch.undo()
    assert not finding.ok
    assert re.search(re.escape(said), f"{finding.found}: {finding.advice}"), finding


def test_a_look_at_gpus_that_hangs_is_given_up(one_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DEVICES_SECONDS", 0.2)
    monkeypatch.setattr(measures, "PROGRAM", "import time; time.sleep(60)")
    assert "timed out after 0.2" in doctor.looked(doctor.gpus).found


def test_each_gpu_is_named_with_its_memory_and_its_copies(one_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", ended(0, f"a warning\n{json.dumps(TOLD)}\n"))
    finding = doctor.gpus()
    monkeypatch.undo()
    one = "NVIDIA H100 80GB HBM3, 79.2 GiB, 55.2 GB/s to it and 52.6 GB/s from it"
    assert finding == doctor.Finding(f"0: {one}")
    assert doctor.of_gpus(TOLD | {"devices": [H100, H100]}, 2) == doctor.Finding(f"0: {one}; 1: {one}")


def test_without_a_visible_gpu_nothing_is_started_and_all_is_well(
    one_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", raising(AssertionError("a process was started")))
    monkeypatch.setenv(devices.VARIABLE, "")
    hidden = "CUDA_VISIBLE_DEVICES leaves none of 1 visible, and workers train on the CPU"
    assert doctor.gpus() == doctor.Finding(hidden)
    monkeypatch.setattr(devices, "there", lambda: 0)
    assert doctor.gpus() == doctor.Finding("none, and workers train on the CPU")


def test_gpus_are_looked_at_in_a_process_of_its_own_which_tells_what_this_torch_is_built_with(
    one_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(doctor, "of_gpus", lambda *given: told.append(given) or doctor.Finding("seen"))
    assert doctor.gpus() == doctor.Finding("seen")
    ((found, there),) = told
    assert (found["torch"], found["cuda"]) == (torch.__version__, torch.version.cuda)
    assert there == 1
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def test_another_torch_than_the_tested_one_is_well_but_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "2.9.0")
    finding = doctor.torch_version()
    assert finding.ok
    assert finding.found == f"2.9.0, where {TORCH} is the tested one"


def test_copies_between_each_device_and_page_locked_memory_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA with two devices that copy 1 MB in 1 ms there, and in 2 ms back. Memory need not be page-locked for it."""
    locked = []
    copied = iter(([1.0] * 6 + [2.0] * 6) * 4)
    codes = iter((0, 800))

    def register(*given: int) -> int:
        locked.append(given[1:])
        return next(codes)

    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda _: next(copied))
    empty = torch.empty
    monkeypatch.setattr(measures, "COPIED", 1_000_000)
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: empty(size, dtype=dtype))
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    for name, stand_in in {
        "init": lambda: None,
        "cudart": lambda: SimpleNamespace(cudaHostRegister=register),
        "CudaError": lambda code: RuntimeError(f"operation not permitted ({code})"),
        "device_count": lambda: 2,
        "get_device_properties": lambda _: SimpleNamespace(name="Fake", total_memory=1 << 30),
        "device": lambda _: nullcontext(),
        "Event": lambda **_: event,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    for unlocked in ("", "operation not permitted (800)"):
        told = measures.measured()
        assert told["devices"] == [{"name": "Fake", "memory": 1 << 30, "to": 1e9, "from": 0.5e9}] * 2
        assert (told["cuda"], told["unusable"], told["unlocked"]) == ("12.6", "", unlocked)
        finding = doctor.of_gpus(told, 2)
        assert finding.ok
        assert finding.found.endswith(f"page-locked ({unlocked})") == bool(unlocked)
    assert locked == [(1_000_000, measures.PORTABLE)] * 2
    monkeypatch.setattr(torch.cuda, "init", raising(RuntimeError(f"{OLD_DRIVER}\nPlease update it")))
    told = measures.measured()
    assert (told["unusable"], told["devices"]) == (OLD_DRIVER, [])
