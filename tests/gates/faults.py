"""Faults that are put into a copy of the code, one at a time: the tests named in `faults.toml` find each of them.

`python -m gates.faults WORD …` tries the faults whose names have these words, and prints every test that fails.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gates.cli import two_at_a_time

ROOT = Path(__file__).parents[2]
LEAST = 38
"""So many of the faults are found by the default suite."""

Fault = dict[str, Any]


def check(record: bool) -> list[str]:
    """Faults that no test finds, or that fit into the code no more. There is nothing to record."""
    faults = listed()
    differences = [
        f"{one['name']}: {one['file']} has its text {_times(one)} times" for one in faults if _times(one) != 1
    ]
    if sum(not one.get("long", False) for one in faults) < LEAST:
        differences.append(f"fewer than {LEAST} faults are for the default suite")
    with ExitStack() as stack:
        copies: queue.Queue[Path] = queue.Queue()
        for _ in range(2):
            copies.put(stack.enter_context(copy()))

        def tried(fault: Fault | None) -> str:
            folder = copies.get()
            try:
                return _without(faults, folder) if fault is None else _found(fault, folder)
            finally:
                copies.put(folder)

        found = two_at_a_time(tried, [None, *(one for one in faults if _times(one) == 1)])
    return differences + [line for line in found if line]


def listed() -> list[Fault]:
    """The faults of `faults.toml`."""
    faults: list[Fault] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["fault"]
    return faults


def _times(fault: Fault) -> int:
    """How often its text stands in its file."""
    file = ROOT / fault["file"]
    return file.read_text().count(fault["old"]) if file.exists() else 0


def _without(faults: list[Fault], folder: Path) -> str:
    """What is wrong with the tests where there is no fault. They import the copy, also in what they start."""
    where = "import paceline, subprocess, sys; print(paceline.__file__); subprocess.run([sys.executable, '-c', "
    printed = _python(folder, "-c", where + "'import paceline; print(paceline.__file__)'])").stdout.splitlines()
    if {*printed} != {str(folder / "src/paceline/__init__.py")}:
        return f"the tests would import {printed}"
    ended = tests(sorted({node for one in faults for node in one["found_by"]}), folder, long=True)
    return "" if ended.returncode == 0 else f"tests fail without a fault: {', '.join(failed(ended))}{ended.stderr}"


def _found(fault: Fault, folder: Path) -> str:
    """What is wrong with that fault: empty if its tests find it."""
    with planted(fault, folder):
        ended = tests(fault["found_by"], folder, "-x", long=fault.get("long", False))
    wrong = {0: "is not found", 1: ""}.get(
        ended.returncode, f"its tests can't be run: {(ended.stdout + ended.stderr)[-300:].strip()}"
    )
    return wrong and f"{fault['name']}: {wrong}"


@contextmanager
def copy() -> Iterator[Path]:
    """A copy of the tree, as git knows it."""
    with tempfile.TemporaryDirectory() as temporary:
        listing = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        for name in subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
            if name and (ROOT / name).is_file() and not name.startswith("tests/gates/"):
                (place := Path(temporary, name)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, place)
        yield Path(temporary)


@contextmanager
def planted(fault: Fault, folder: Path) -> Iterator[None]:
    """The copy with that fault in it."""
    file = folder / fault["file"]
    before = file.read_text()
    try:
        file.write_text(before.replace(fault["old"], fault["new"]))
        _forget(file)
        yield
    finally:
        file.write_text(before)
        _forget(file)


def _forget(file: Path) -> None:
    """Remove what Python has compiled of it: two texts of one length may have been written in one second."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def tests(nodes: list[str], folder: Path, *flags: str, long: bool) -> subprocess.CompletedProcess[str]:
    """Run these tests in the copy."""
    chosen = ["-m", "long or not long"] if long else []
    return _python(folder, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=no", "-rfE", *chosen, *flags, *nodes)


def failed(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """The tests that failed."""
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [line.partition(" ")[2].partition(" - ")[0] for line in lines]


def _python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def main() -> None:
    """Print the tests that find each of the faults that are named."""
    words = sys.argv[1:]
    with copy() as folder:
        for fault in listed():
            if not words or any(word in fault["name"] for word in words):
                with planted(fault, folder):
                    ended = tests(fault["found_by"], folder, "--maxfail=8", long=fault.get("long", False))
                last = (ended.stdout.splitlines() or [ended.stderr])[-1]
                print(fault["name"], last, *failed(ended), sep="\n    ", flush=True)


if __name__ == "__main__":
    main()
