"""Each worker has its device by CUDA_VISIBLE_DEVICES, before its script begins: also on hosts, under DDP, and again."""

from __future__ import annotations

import tomllib

import pytest

from paceline.host.devices import VARIABLE
from support.launch import Launch
from support.runs import Run, replayed
from support.scripts import training

SEEN = 'from pathlib import Path; print("device", repr(os.environ.get("CUDA_VISIBLE_DEVICES")), flush=True)\n'
"""Before all else, as CUDA may be used from then on."""
THREE = ("-n", "3", "-p", "asp", "--threads", "1", "--tee", "all")


def script() -> str:
    return "import os\n" + SEEN + training(epochs=1, samples=32)


def seen(run: Run, workers: int = 3) -> list[str | None]:
    """By worker: what it saw as its script began."""
    lines = [run.log(worker).splitlines()[0] for worker in range(workers)]
    assert all(line.startswith("device ") for line in lines), lines
    return [None if line == "device None" else line.removeprefix("device ").strip("'") for line in lines]


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler has given this process two devices. No test here needs that they are there."""
    monkeypatch.setenv(VARIABLE, "7,8")


def test_workers_of_several_hosts_are_numbered_through_and_each_host_deals_out_its_own(launch: Launch) -> None:
    flags = ("--emulate-hosts", "2", "-n", "3", "-p", "asp", "--threads", "1", "--tee", "all")
    run = launch.run(script(), *flags).completed()
    assert seen(run, 6) == ["7", "8", "7", "8", "7", "8"]
    hosts = tomllib.loads((run.folder / "config.toml").read_text())["environment"]["hosts"]
    assert [host["devices"] for host in hosts.values()] == [2, 2]


def test_a_run_made_again_by_its_configuration_and_a_resumed_one_ask_for_the_same_devices(launch: Launch) -> None:
    first = launch.run(script(), *THREE, "--devices", "1,cpu", "--max-steps", "4").completed()
    resumed = launch.resume(first.folder, "--tee", "all")
    assert tomllib.loads((resumed.folder / "config.toml").read_text())["devices"] == "1,cpu"
    assert [line for line in resumed.log(0).splitlines() if line.startswith("device ")] == ["device '8'"] * 2


@pytest.mark.parametrize(
    ("made_with", "flags", "made", "replayed_with", "expected", "said"),
    [
        ("7,8", ("--devices", "1,cpu"), ["8", "", "8"], "7,8", ["8", "", "8"], ""),
        ("7,8", (), ["7", "8", "7"], "7,8,9", ["7", "8", "7"], ""),
        ("7", (), ["7", "7", "7"], "7,8,9", ["7", "7", "7"], ""),
        ("7,8", (), ["7", "8", "7"], "7", ["7", "7", "7"], "had devices 0, 1, and not all of them are here"),
    ],
)
def test_each_worker_s_script_sees_its_own_device_and_a_replay_gives_it_the_same_or_says_that_it_is_not_here(
    made_with: str,
    flags: tuple[str, ...],
    made: list[str],
    replayed_with: str,
    expected: list[str],
    said: str,
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, made_with)
    run = launch.run(script(), *THREE, *flags).completed()
    assert seen(run) == made
    config = tomllib.loads((run.folder / "config.toml").read_text())
    assert config["devices"] == (flags[1] if flags else "")
    assert config["environment"]["devices"] == len(made_with.split(","))
    monkeypatch.setenv(VARIABLE, replayed_with)
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err
    assert seen(again) == expected
    told = [line for line in again.out.splitlines() if line.startswith("paceline: ")]
    assert len(told) == bool(said), told
    assert all(said in line for line in told)
