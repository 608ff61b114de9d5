"""`paceline compare --dry-run`: which runs it names, and how long it says they take. It makes none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main

TWO = ("-p", "bsp", "-p", "asp", "-n", "2")
STEADY = '[cluster]\ncompute = "100ms"\n[[worker]]\nindex = 1\nspeed = 0.5\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("pass\n")
    Path("steady.toml").write_text(STEADY)
    Path("free.toml").write_text("[[worker]]\nindex = 1\nspeed = 0.5\n")


def plan(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["compare", *TWO, "--dry-run", "--json", *flags, "train.py"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def test_what_would_run_is_named_in_order_with_what_it_would_take(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--seeds", "2", "--out", "both", "--scenario", "steady.toml", "--steps", "12")
    assert main(["compare", *TWO, "--dry-run", *flags, "train.py", "-n", "3"]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "protocol", "seed", "folder", "seconds"]
    assert [" ".join(row.split()) for row in rows] == [  # of 12 steps under asp the fast worker makes 8
        "1 bsp 0 bsp-seed0 1.2",
        "2 asp 0 asp-seed0 0.8",
        "3 bsp 1 bsp-seed1 1.2",
        "4 asp 1 asp-seed1 0.8",
    ]
    assert last == "4 runs to make, about 4 s of training; starting and evaluating take longer"
    assert not Path("both").exists()


def test_a_folder_with_something_else_is_refused_and_an_empty_one_stays_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("empty").mkdir()
    assert plan(capsys, "--out", "empty")["seconds"] is None
    assert list(Path("empty").iterdir()) == []
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    assert main(["compare", *TWO, "--dry-run", "--out", "mine", "train.py"]) == 2
    assert "--out mine is neither an empty folder nor one with a comparison" in capsys.readouterr().err


def test_no_run_takes_longer_than_max_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    told = plan(capsys, "--scenario", "steady.toml", "--steps", "12", "--max-seconds", "1")
    assert [run["seconds"] for run in told["runs"]] == [pytest.approx(1.0), pytest.approx(0.8)]
    assert told["seconds"] == pytest.approx(1.8)


@pytest.fixture
def costs() -> str:
    """A run of two workers that made 20 steps of 50 and 100 ms."""
    Path("fast.toml").write_text(STEADY.replace("100ms", "50ms"))
    assert main(["simulate", "fast.toml", "-n", "2", "-p", "bsp", "--steps", "20", "--out", "costs"]) == 0
    return "costs"


def test_from_a_run_it_takes_the_run_s_steps_and_what_they_took(costs: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    told = plan(capsys, "--from", costs, "--scenario", "fast.toml")
    assert [run["seconds"] for run in told["runs"]] == [pytest.approx(1.0), pytest.approx(0.7)]
    assert told["lacking"] is None


def test_from_a_run_it_takes_the_run_s_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "steady.toml", "-n", "3", "-p", "bsp", "--steps", "21", "--out", "costs"]) == 0
    flags = ("--dry-run", "--from", "costs", "--scenario", "steady.toml", "train.py")
    assert main(["compare", "-p", "bsp", *flags]) == 0
    assert main(["compare", "-p", "bsp", "-n", "2", *flags]) == 2
    assert "--from costs has 3 workers, and -n is 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "lacking"),
    [
        ((), "nothing says how long a step takes; give --from RUN"),
        (("--scenario", "free.toml", "--steps", "9"), "nothing says how long a step takes; give --from RUN"),
        (("--scenario", "steady.toml"), "nothing says how many steps there are; give --steps N"),
    ],
)
def test_it_says_what_is_lacking(flags: tuple[str, ...], lacking: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = plan(capsys, *flags)
    assert told["lacking"].startswith(lacking)
    assert [run["seconds"] for run in told["runs"]] == [None, None]
    assert told["seconds"] is None
    assert main(["compare", *TWO, "--dry-run", *flags, "train.py"]) == 0
    assert f"2 runs to make; how long they take can't be predicted: {lacking}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--steps", "9"), "--steps is given, and nothing is predicted: add --dry-run"),
        (("--from", "costs"), "--from is given, and nothing is predicted: add --dry-run"),
        (("--dry-run", "--from", "costs", "--steps", "9"), "--from is given, whose run says how many steps"),
        (("--dry-run", "--from", "none"), "none: there is no such folder; name a run's folder"),
        (("--dry-run", "--from", "costs"), "--from costs was made on another scenario than --scenario has"),
        (("--dry-run", "--from", "costs", "-n", "3"), "--from costs has 2 workers, and -n is 3; name another run"),
    ],
)
def test_flags_that_can_t_be_followed_are_one_line(
    costs: str, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["compare", *TWO, *flags, "train.py"]) == 2
    assert capsys.readouterr().err.startswith(f"paceline: {message}")
