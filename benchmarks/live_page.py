"""What the live page costs a run whose steps take 20 ms: its steps while the page is read, and while it is not.

    python benchmarks/live_page.py
    python benchmarks/live_page.py --quick

Each round is one run of four workers with `--ui`. Its page is read for two seconds, then not for two seconds, and so
on. So whatever else the machine does meanwhile is in both. *Step* is the median time from a worker's gradient to its
next one, of the steps in those seconds. *Head* is the CPU time of the head's process in a second, with the ledger's
thread. The process that serves the page is another one. Target: at most 1 % of the step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median

from startup import PROGRAMS, run
from step import machine

from paceline.ipc.processes import adopt_orphans

STEP = 0.020
WORKERS = 4
SPELL = 2.0
"""Seconds for which the page is read, and then not."""
SCRIPT = Path(__file__).parent / "workloads" / "small.py"


class Reader:
    """Reads the page of a run every other while."""

    def __init__(self, output: Path) -> None:
        self.spells: list[tuple[float, float]] = []
        """Moments of the run between which its page was read."""
        self.cpu = {True: 0.0, False: 0.0}
        """CPU seconds of the head for each second, while the page was read, and while it was not: sums over spells."""
        self.views = 0
        self._output = output
        self._begun = False

    def look(self, process: int) -> None:
        """Begin to read, once the run with this head has said where."""
        if not self._begun and (found := re.search(r"http://127.0.0.1:(\d+)(/\S+/)", self._output.read_text())):
            self._begun = True
            threading.Thread(target=self._read, args=(process, int(found[1]), found[2]), daemon=True).start()

    def _read(self, process: int, port: int, path: str) -> None:
        with suppress(OSError, HTTPException):  # the run has ended
            while True:
                before, began = _cpu(process), time.monotonic()
                moments = list(self._views(port, path))
                self.views += len(moments)
                middle, between = _cpu(process), time.monotonic()
                time.sleep(SPELL)
                after, ended = _cpu(process), time.monotonic()
                if len(moments) > 1:
                    self.spells.append((moments[0], moments[-1]))
                    self.cpu[True] += (middle - before) / (between - began)
                    self.cpu[False] += (after - middle) / (ended - between)

    def _views(self, port: int, path: str) -> Iterator[float]:
        """Read views for a while, and yield the moment of training that each shows."""
        until = time.monotonic() + SPELL
        with closing(HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", f"{path}events")
            for line in connection.getresponse():
                if line.startswith(b"data: ") and (view := json.loads(line[6:])).get("training"):
                    yield view["seconds"]
                if time.monotonic() >= until:
                    return


def _cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(protocol: str, steps: int, timeout: float) -> tuple[float, float, float, float]:
    """Make a run. Return a step and the head's CPU seconds in a second, each while the page is read and while not."""
    with tempfile.TemporaryDirectory(prefix="paceline-page-", ignore_cleanup_errors=True) as temporary:
        folder, output, scenario = (Path(temporary) / name for name in ("run", "output", "padded.toml"))
        scenario.write_text(f'[cluster]\nworkers = {WORKERS}\ncompute = "{STEP * 1e3:.0f}ms"\n')
        command = [PROGRAMS / "paceline", "run", "--ui", "--threads", 1, "--tee", "none", "--quiet", "-p", protocol]
        command += ["--scenario", scenario, "--out", folder, SCRIPT, "--log", "--samples", 16 * WORKERS * steps]
        reader = Reader(output)
        run(command, output, timeout, reader.look)
        with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
            gaps = "at - lag(at) OVER (PARTITION BY worker ORDER BY id) AS gap"
            query = f"SELECT at, gap FROM (SELECT at, {gaps} FROM facts WHERE kind = 'GradientReady') WHERE gap > 0"
            found = ledger.execute(query).fetchall()
    step = {True: [0.0], False: [0.0]}
    for at, gap in found:
        if reader.spells[0][0] <= at <= reader.spells[-1][1]:
            step[any(began <= at <= ended for began, ended in reader.spells)].append(gap)
    cpu = {read: seconds / len(reader.spells) for read, seconds in reader.cpu.items()}
    print(f"{reader.views} views in {len(reader.spells)} spells", file=sys.stderr)
    return median(step[True][1:]), median(step[False][1:]), cpu[True], cpu[False]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="rounds (default: 5; with --quick, 1)")
    parser.add_argument(
        "--protocol", default="bsp", help="default: bsp, whose workers all wait for the head at each step"
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps, one round: to see that it works")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a run")
    args = parser.parse_args()
    adopt_orphans()
    rounds, steps = args.repeats or (1 if args.quick else 5), 600 if args.quick else 2000
    measured = [measure(args.protocol, steps, args.timeout) for _ in range(rounds)]
    steps_told = [f"{read * 1e3:.2f} / {bare * 1e3:.2f} ms ({read / bare - 1:+.2%})" for read, bare, _, _ in measured]
    print(f"{machine()['cores']} cores; {args.protocol}; {rounds} rounds of {steps} steps\n")
    print(f"step, read / not read: {', '.join(steps_told)}")
    more = [read / bare - 1 for read, bare, _, _ in measured]
    print(f"median {median(more):+.2%} ({min(more):+.2%} to {max(more):+.2%})")
    read, bare = (median(column) * 1e3 for column in zip(*(one[2:] for one in measured), strict=True))
    print(f"head: {read:.1f} ms of CPU in a second while the page is read, {bare:.1f} ms while it is not")
    return 0


if __name__ == "__main__":
    sys.exit(main())
