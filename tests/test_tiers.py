"""A test that isn't marked starts no real run: by no door, and not in the setup of a fixture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import paceline
from paceline.cli.main import main
from support import nursery, runs, tiers
from support.scripts import training

COMMANDS = {
    "the command": [sys.executable, "-m", "paceline", "run", "--quiet", "train.py"],
    "the installed command": ["/venv/bin/paceline", "join", "127.0.0.1:7117"],
    "a shell": ["sh", "-c", "paceline compare -p bsp train.py"],
    "a shell's text": "paceline replay runs/x",
    "torchrun": ["torchrun", "--no-python", "paceline", "run", "train.py"],
    "a program": [sys.executable, "-c", "import paceline\npaceline.run('train.py')"],
    "the self-test": [sys.executable, "-m", "paceline", "doctor"],
    "code that is the command": [sys.executable, "-c", "from paceline.cli.main import main; main()", "run", "train.py"],
}
OTHERS = {
    "another word": [sys.executable, "-m", "paceline", "--version"],
    "a simulation": [sys.executable, "-m", "paceline", "simulate", "-p", "bsp"],
    "code": [sys.executable, "-c", "import paceline.runs.run"],
    "another program": ["git", "clone", "https://github.com/paceline/paceline"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_process_that_is_about_to_start_a_run_is_known_by_its_words(command: Any) -> None:
    assert tiers.started_by(command)


@pytest.mark.parametrize("command", OTHERS.values(), ids=OTHERS)
def test_other_processes_are_none_of_that(command: list[str]) -> None:
    assert tiers.started_by(command) == ""


DOORS = {
    "support.runs": lambda folder: runs.run(training(), tmp_path=folder),
    "support.runs, fresh": lambda folder: runs.run(training(), tmp_path=folder, fresh=True),
    "the nursery": lambda folder: nursery.Process(["check", str(folder)]),
    "a process": lambda folder: subprocess.run(COMMANDS["the command"], cwd=folder),
    "paceline.run": lambda folder: paceline.run(folder / "train.py", out=folder / "run"),
    "paceline.compare": lambda folder: paceline.compare(folder / "train.py", protocol=["bsp"], out=folder / "both"),
    "the command, called": lambda folder: main(["run", "--out", str(folder / "run"), str(folder / "train.py")]),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_run_that_is_started_here_fails_the_test_in_one_line_that_says_how_to_mark_it(
    door: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "train.py").write_text(training())
    with pytest.raises(pytest.fail.Exception, match="starts a real run") as failed:
        door(tmp_path)
    (line,) = str(failed.value).splitlines()
    assert line.startswith(request.node.nodeid)
    assert "@pytest.mark.real_run" in line


def test_so_does_a_thread_of_the_test(tmp_path: Path) -> None:
    with (
        pytest.raises(pytest.fail.Exception, match="starts a real run"),
        runs.side_by_side({"one": lambda: runs.run(training(), tmp_path=tmp_path)}) as futures,
    ):
        futures["one"].result()


def test_a_marked_test_may() -> None:
    """Shown without a run."""
    before = list(tiers._unmarked)
    marked: Any = SimpleNamespace(nodeid="marked", get_closest_marker=lambda name: name == "real_run" or None)
    tiers._unmarked.clear()
    with tiers.under_way(marked):
        tiers.starts("by the test")
    tiers._unmarked[:] = before
