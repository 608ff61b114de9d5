"""The benchmarks in this tree and in another one, in turn: `make gates GATES="speed --against PATH"`.

It needs a quiet machine. `--quick` makes one short round, to see that it works.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
MOST = 1.03
"""A median ratio above it is a difference."""
ROUNDS = 7

STEP = ("benchmarks/step.py", "--repeats", "1", "--workers", "2", "--variants", "asp", "bsp", "all-reduce", "ddp")
STARTUP = ("benchmarks/startup.py", "--repeats", "1", "--workers", "4")
SCALE = ("benchmarks/scale.py", "--repeats", "1", "--hosts", "8", "--limit", "--seconds", "5")
BULK = ("-m", "paceline", "run", "-p", "asp", "--emulate-hosts", "2", "-n", "1", "--threads", "1", "--checkpoint", "0")
WIDE = ("benchmarks/workloads/mlp_step.py", "--variant", "paceline", "--workers", "2")
WIDE += ("--widths", "1024", "4096", "4096", "1024")
"""A model of 100 MB, whose updates and versions move between two hosts."""


def check(record: bool, against: Path | None = None, quick: bool = False) -> list[str]:
    """What is slower here than there. There is nothing to record."""
    if against is None:
        return ["name the tree to compare with: --against PATH"]
    against = against.resolve()
    ratios: dict[str, list[float]] = {}
    for number in range(1 if quick else ROUNDS):
        here, there = (ROOT, against) if number % 2 else (against, ROOT)
        one, other = dict(_measured(here, quick)), dict(_measured(there, quick))
        ours, theirs = (one, other) if here == ROOT else (other, one)
        for name in ours.keys() | theirs.keys():
            ratios.setdefault(name, []).append(ours.get(name, float("inf")) / theirs.get(name, float("inf")))
    for name, found in sorted(ratios.items()):
        print(f"{name}: {median(found):.3f} ({min(found):.3f} to {max(found):.3f})", flush=True)
    slower = {name: median(found) for name, found in ratios.items() if not median(found) <= MOST}
    return [f"{name} takes {ratio:.3f} times as long" for name, ratio in slower.items()]


def _measured(tree: Path, quick: bool) -> Iterator[tuple[str, float]]:
    """By what was measured: seconds, or CPU seconds of the head for a fact."""
    short = ("--quick",) if quick else ()
    for one in _json(tree, *STEP, *short)["measurements"]:
        yield f"step {one['model']} {one['variant']}", one["step"]
    for one in _json(tree, *STARTUP, *short)["measurements"]:
        yield f"startup {one['variant']}", one["whole"]
    for one in _json(tree, *SCALE, *short)["runs"]:
        yield f"scale {one['setup']['protocol']}", one["head"] / one["facts"]
    with tempfile.TemporaryDirectory() as folder:
        steps = "10" if quick else "60"
        words = [*BULK, "--max-steps", steps, "--json", "--out", f"{folder}/run"]
        words += [*WIDE, "--steps", steps, "--times", folder]
        yield "bulk", 1 / json.loads(_output(tree, *words))["steps_per_second"]


def _json(tree: Path, *words: str) -> dict[str, Any]:
    """What a benchmark of that tree writes with `--json`."""
    with tempfile.TemporaryDirectory() as folder:
        _output(tree, *words, "--json", f"{folder}/found.json")
        found: dict[str, Any] = json.loads(Path(folder, "found.json").read_text())
    return found


def _output(tree: Path, *words: str) -> str:
    """What Python prints there, with that tree's Paceline."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=tree, env=environment, text=True, stdout=subprocess.PIPE, check=True).stdout
