"""Runs on machines that `--on` names: what their scripts wait for, and what is looked for in their processes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from support.events import await_file
from support.launch import Launch
from support.runs import Run

SAMPLES = 2 * 64
WAITS = """
from pathlib import Path
there = Path(__file__).parent
(there / f"at-{me}").touch()
while not (there / "go-on").exists(): time.sleep(0.05)
"""
"""Notes that the worker is in a step, where all wait until they are to go on. For `support.scripts.training`."""


def await_workers(launch: Launch, *workers: int) -> None:
    """Wait until these workers have noted so."""
    for worker in workers:
        await_file(launch.tmp_path / f"at-{worker}")


def refused(run: Run, *words: str) -> None:
    """It was refused in one line, which has these words, and left no folder."""
    assert run.code == 2, run.err
    (line,) = [line for line in run.err.splitlines() if " has come" not in line]
    assert all(word in line for word in words), line
    assert not run.folder.exists()


def assert_no_token(processes: Iterable[int]) -> None:
    """Nobody who lists these processes sees a token."""
    for one in processes:
        for what in "cmdline", "environ":
            with suppress(OSError):  # it has ended
                assert not re.search(rb"paceline_[0-9a-f]{64}", Path(f"/proc/{one}/{what}").read_bytes())
