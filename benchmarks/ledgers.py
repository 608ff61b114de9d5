"""What reading a long run's ledger costs: seconds and peak memory of `check`, `explain` and `report`.

    python benchmarks/ledgers.py                                   # 409,600 steps of 16 workers under ssp
    python benchmarks/ledgers.py -p ripples --steps 100000 --markdown
    python benchmarks/ledgers.py --run runs/long                   # of a run that is there

The run is simulated: one worker is half as fast as the others, and steps vary by a tenth. Each command is a process of
its own. Memory is the most that the process had resident. Goal: 200 MB or less, however long the run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

SCENARIO = """
[cluster]
workers = {workers}
nodes = 4
compute = "100ms"
jitter = 0.1

[[worker]]
index = 3
speed = 0.5
"""
COMMANDS = ("check", "explain", "report")


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one command."""

    command: str
    seconds: float
    megabytes: float
    """The most that was resident."""


def simulated(folder: Path, protocol: str, workers: int, steps: int) -> Path:
    """Make the run, and return its folder."""
    scenario = folder / "cluster.toml"
    scenario.write_text(SCENARIO.format(workers=workers))
    command = [sys.executable, "-m", "paceline", "simulate", str(scenario), "-p", protocol]
    subprocess.run([*command, "--steps", str(steps), "--out", str(folder / "runs")], check=True, capture_output=True)
    (run,) = (path.parent for path in (folder / "runs").rglob("ledger.sqlite"))
    return run


def measured(command: str, run: Path, page: Path) -> Cost:
    """The cost of that command on that run."""
    more = ["--out", str(page)] if command == "report" else []
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "paceline", command, str(run), *more], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{command} {run}: exit code {process.returncode}")
    return Cost(command, time.perf_counter() - began, usage.ru_maxrss * 1024 / 1e6)


def main() -> None:
    """Measure what the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-p", "--protocol", default="ssp")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--steps", type=int, default=409_600)
    parser.add_argument("--run", type=Path, help="the folder of a run that is there; the flags above count for nothing")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = options.run or simulated(folder, options.protocol, options.workers, options.steps)
        size = (run / "ledger.sqlite").stat().st_size / 1e6
        costs = [measured(command, run, folder / "page.html") for command in options.commands]
    print(f"a ledger of {size:.0f} MB")
    if options.markdown:
        print("\n| command | seconds | peak MB |\n|---|---:|---:|")
    for cost in costs:
        row = f"| {cost.command} | {cost.seconds:.1f} | {cost.megabytes:.0f} |"
        print(row if options.markdown else row.strip("| ").replace(" | ", "\t"))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n")


if __name__ == "__main__":
    main()
