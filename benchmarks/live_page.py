"""What the live page costs a run whose steps take 20 ms: without it, with it, and while it is read.

    python benchmarks/live_page.py
    python benchmarks/live_page.py --quick

In every round the same run of four workers goes once in each way, in turn. *Step* is the median time from a worker's
gradient to its next one. *Head* is the CPU time of the head's process for each step of all four workers, the ledger's
thread included. The process that serves the page is another one. Shares are of a step of 20 ms. Target: at most 1 %.
"""

from __future__ import annotations

import argparse
import os
import re
import sqlite3
import sys
import tempfile
import threading
from collections import defaultdict
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median

from startup import PROGRAMS, run
from step import machine

from paceline.ipc.processes import adopt_orphans

STEP = 0.020
WORKERS = 4
SCRIPT = Path(__file__).parent / "workloads" / "small.py"
WAYS = ("without", "not read", "read")


class Reader:
    """Watches a run: notes the CPU time of its head, and reads its page as a browser does."""

    def __init__(self, output: Path, ledger: Path, reads: bool) -> None:
        self.cpu: list[float] = []
        """Seconds, since the head had imported torch and made its ledger."""
        self.views = 0
        self._ledger = ledger
        self._output = output
        self._waits = reads

    def look(self, process: int) -> None:
        """Look at the run with this head."""
        with suppress(OSError):
            if not self._ledger.exists():
                return
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            self.cpu.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
        found = re.search(r"http://127.0.0.1:(\d+)(/\S+/)", self._output.read_text()) if self._waits else None
        if found is not None:
            self._waits = False
            threading.Thread(target=self._read, args=(int(found[1]), found[2]), daemon=True).start()

    def _read(self, port: int, path: str) -> None:
        with closing(HTTPConnection("127.0.0.1", port)) as connection, suppress(OSError, HTTPException):
            connection.request("GET", f"{path}events")
            for line in connection.getresponse():
                self.views += line.startswith(b"data: ")


def measure(way: str, steps: int, timeout: float) -> tuple[float, float, int]:
    """Make a run of so many steps of each worker. Return a step, the head's CPU time for a step, and the views read."""
    with tempfile.TemporaryDirectory(prefix="paceline-page-", ignore_cleanup_errors=True) as temporary:
        folder, output, scenario = (Path(temporary) / name for name in ("run", "output", "padded.toml"))
        scenario.write_text(f'[cluster]\nworkers = {WORKERS}\ncompute = "{STEP * 1e3:.0f}ms"\n')
        command = [PROGRAMS / "paceline", "run", "--threads", 1, "--tee", "none", "--quiet", "--scenario", scenario]
        command += ["-p", "asp", "--out", folder, *(() if way == "without" else ("--ui",))]
        reader = Reader(output, folder / "ledger.sqlite", way == "read")
        run([*command, SCRIPT, "--log", "--samples", 16 * WORKERS * steps], output, timeout, reader.look)
        with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
            gaps = "at - lag(at) OVER (PARTITION BY worker ORDER BY id) AS gap"
            ready = f"SELECT gap FROM (SELECT {gaps} FROM facts WHERE kind = 'GradientReady') WHERE gap IS NOT NULL"
            return (
                median(gap for (gap,) in ledger.execute(ready)),
                (reader.cpu[-1] - reader.cpu[0]) / steps,
                reader.views,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="rounds (default: 5; with --quick, 1)")
    parser.add_argument("--quick", action="store_true", help="fewer steps, one round: to see that it works")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for a run")
    args = parser.parse_args()
    adopt_orphans()
    rounds, steps = args.repeats or (1 if args.quick else 5), 100 if args.quick else 500
    measured = defaultdict(list)
    for number in range(rounds):
        for way in WAYS[number % 3 :] + WAYS[: number % 3]:
            measured[way].append(measure(way, steps, args.timeout))
            print(f"round {number}, {way}: {measured[way][-1]}", file=sys.stderr)
    print(f"{machine()['cores']} cores; {rounds} rounds of {steps} steps; medians over the rounds\n")
    bare = [median(column) for column in zip(*measured["without"], strict=True)]
    for way in WAYS:
        step, cpu, views = (median(column) for column in zip(*measured[way], strict=True))
        more = [(one - other) / STEP for one, other in zip((step, cpu), bare, strict=False)]
        told = f"step {step * 1e3:.2f} ms ({more[0]:+.2%}), head {cpu * 1e6:.0f} µs a step ({more[1]:+.2%} of 20 ms)"
        print(f"{way:9} {told}, {views:.0f} views")
    return 0


if __name__ == "__main__":
    sys.exit(main())
