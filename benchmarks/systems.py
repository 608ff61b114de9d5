"""What the published systems give on a contended link, under bursts and at a switch: real runs, padded steps.

    python benchmarks/systems.py --markdown
    python benchmarks/systems.py --quick --tables link

Tables, each of runs of `paceline run` that take turns in every round:

    link     eight equal workers, steps of 200 ms; a push or a pull takes 20 ms alone on the link
    overlap  one worker, steps of 100 ms, and a push and a pull: whose time is the sum, whose the maximum
    bursts   eight workers, three times slower for half of the time, four of them now and four then: SSP and DSSP
    switch   eight workers, steps of 20 ms: how long workers pause when bsp becomes asp, and when asp becomes bsp
    state    four workers, steps padded to 50 ms, Adam for 1 M and 4 M parameters: the same where state moves, or
             replicas begin or end; and how long a step of the slowest worker takes, with all that it waits for

*late* is the 95th percentile of how much later than the link's model the run acted on the end of a transfer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from step import Failed, machine, print_table

from paceline.records.ledger import connect
from paceline.records.optimum import PARTS

WORKLOAD = Path(__file__).parent / "workloads" / "small.py"
BATCH = 16
LONGEST = 120.0  # seconds for a run

LINK = """
[cluster]
compute = "200ms"
[network]
bandwidth = "100MB/s"
message = "2MB"
"""
OVERLAP = """
[cluster]
compute = "100ms"
[network]
bandwidth = "100MB/s"
message = "{message}KB"
"""
BURSTS = """
[cluster]
compute = "20ms"
jitter = 0.02
""" + "".join(
    f"""
[[event]]
worker = {worker}
at = "{worker % 2 * 0.6}s"
for = "600ms"
every = "1.2s"
slow = 3.0
"""
    for worker in range(8)
)
SWITCH = """
[cluster]
compute = "20ms"
"""
STATE = """
[cluster]
compute = "50ms"
"""
WIDTHS = {"1 M": 1000, "4 M": 2000}
"""By number of parameters: of the layers of the workload's model."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row of a table."""

    protocol: str
    scenario: str
    workers: int
    steps: int
    """Of all workers together."""
    note: str = ""
    script: tuple[str, ...] = ()
    """More flags of the workload."""


IDLE = ("none", "guarded", "always")
"""Whom HSP lets compute ahead."""

TABLES: dict[str, list[Case]] = {
    "link": [
        Case(protocol, LINK, 8, 160)
        for protocol in (
            "bsp",
            *(f"hsp:idle={idle},stale=next,broadcast=all" for idle in IDLE),
            "asp",
            "ps-plus",
            "ps-plus:pull=after-push",
        )
    ],
    "overlap": [
        Case(protocol, OVERLAP.format(message=message), 1, 40, f"{message * 2 // 100} ms")
        for message in (2500, 5000, 10000)
        for protocol in ("asp", "ps-plus")
    ],
    "bursts": [Case(protocol, BURSTS, 8, 1600) for protocol in ("ssp:bound=3", "dssp", "ssp:bound=15", "asp")],
    "switch": [
        Case(f"sync-switch:first={first},then={then},switch_at=0.5", SWITCH, 8, 320)
        for first, then in (("bsp", "asp"), ("asp", "bsp"))
    ],
    "state": [
        Case(
            f"sync-switch:first={first},then={then},switch_at=0.5",
            STATE,
            4,
            80,
            size,
            script=("--widths", "16", str(width), str(width), "4", "--adam"),
        )
        for size, width in WIDTHS.items()
        for first, then in (
            ("bsp", "asp"),
            ("bsp", "local-sgd"),
            ("local-sgd", "bsp"),
            ("bsp", "all-reduce"),
            ("all-reduce", "bsp"),
            ("bsp", "ad-psgd"),
            ("all-reduce", "ad-psgd"),
            ("ad-psgd", "all-reduce"),
        )
    ],
}
HEADS = {
    "link": ["protocol", "workers", "", "steps/s", "min–max", "× bsp", "waiting", "transfer", "staleness", "late, ms"],
    "overlap": [
        "protocol",
        "workers",
        "push + pull",
        "s/step",
        "min–max",
        "step or transfer",
        "step + transfer",
        "late, ms",
    ],
    "bursts": ["protocol", "workers", "", "steps/s", "min–max", "× ssp:bound=3", "waiting", "max lead", "staleness"],
    "switch": ["protocol", "workers", "", "pause, ms", "min–max"],
    "state": ["protocol", "workers", "parameters", "pause, ms", "min–max", "a step, ms"],
}


@dataclass(frozen=True, slots=True)
class Ended:
    """A run's summary, and how late it was."""

    summary: dict[str, Any]
    late: float
    """Seconds."""

    def share(self, part: str) -> float:
        """Of all workers' time."""
        rows = self.summary["per_worker"]
        of_all = sum(row[f"{name}_seconds"] for row in rows for name in PARTS)
        return float(sum(row[f"{part}_seconds"] for row in rows) / of_all)


def run(case: Case, seed: int) -> Ended:
    """Once, to its end."""
    with tempfile.TemporaryDirectory(prefix="paceline-systems-") as folder:
        scenario = Path(folder) / "scenario.toml"
        scenario.write_text(case.scenario)
        flags = ["-n", str(case.workers), "-p", case.protocol, "--scenario", str(scenario), "--seed", str(seed)]
        flags += ["--threads", "1", "--record", "0", "--tee", "none", "--json", "--out", str(Path(folder) / "run")]
        command = [sys.executable, "-m", "paceline", "run", *flags, str(WORKLOAD), "--samples", str(case.steps * BATCH)]
        command += case.script
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
        if done.returncode:
            raise Failed(f"{case.protocol}: exit code {done.returncode}\n{done.stderr}")
        with connect(Path(folder) / "run" / "ledger.sqlite") as ledger:
            late = sorted(row[0] for row in ledger.execute("SELECT delivered - ended FROM transfers"))
        return Ended(json.loads(done.stdout), late[int(0.95 * len(late))] if late else 0.0)


def rows(table: str, measured: dict[Case, list[Ended]]) -> Iterator[list[str]]:
    """The table's rows, a case each."""
    rates = {case: [one.summary["steps_per_second"] for one in ended] for case, ended in measured.items()}
    first = median(next(iter(rates.values())))
    for case, ended in measured.items():
        speed = [f"{median(rates[case]):.1f}", f"{min(rates[case]):.1f}–{max(rates[case]):.1f}"]
        late = f"{median(one.late for one in ended) * 1e3:.1f}"
        stale = f"{median(one.summary['staleness']['mean'] for one in ended):.2f}"
        waiting, transfer = (f"{median(one.share(part) for one in ended):.0%}" for part in ("wait", "transfer"))
        name, company = case.protocol.removesuffix(",switch_at=0.5"), str(case.workers)
        match table:
            case "link":
                ratio = f"{median(rates[case]) / first:.2f}"
                yield [name, company, case.note, *speed, ratio, waiting, transfer, stale, late]
            case "overlap":
                each = [one.summary["wall_seconds"] / one.summary["steps"] for one in ended]
                transfer_time = float(case.note.split()[0]) / 1e3
                spread = f"{min(each):.3f}–{max(each):.3f}"
                expected = f"{max(0.1, transfer_time):.3f}", f"{0.1 + transfer_time:.3f}"
                yield [name, company, case.note, f"{median(each):.3f}", spread, *expected, late]
            case "bursts":
                lead = max(row["max_lead"] for one in ended for row in one.summary["per_worker"])
                yield [
                    name,
                    company,
                    case.note,
                    *speed,
                    f"{median(rates[case]) / first:.2f}",
                    waiting,
                    str(lead),
                    stale,
                ]
            case "switch" | "state":
                pauses = [switch["pause_seconds"] * 1e3 for one in ended for switch in one.summary["switches"]]
                row = [name, company, case.note, f"{median(pauses):.1f}", f"{min(pauses):.1f}–{max(pauses):.1f}"]
                steps = [max(map(_step, one.summary["per_worker"])) * 1e3 for one in ended]
                yield row if table == "switch" else [*row, f"{median(steps):.0f}"]


def _step(row: dict[str, Any]) -> float:
    """The seconds of a worker's step, with what it waits for."""
    return float(sum(row[f"{part}_seconds"] for part in PARTS) / row["steps"])


def measure(cases: Sequence[Case], repeats: int) -> dict[Case, list[Ended]]:
    """Each case once in every round."""
    measured: dict[Case, list[Ended]] = {case: [] for case in cases}
    for repeat in range(repeats):
        for case in cases:
            print(f"round {repeat}: {case.protocol} {case.note}", file=sys.stderr)
            measured[case].append(run(case, repeat))
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--repeats", type=int, help="rounds (default: 5; with --quick, 1)")
    parser.add_argument("--quick", action="store_true", help="one round: to see that it works")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()
    about, began = machine(), time.monotonic()
    repeats = args.repeats or (1 if args.quick else 5)
    tables = {name: [HEADS[name], *rows(name, measure(TABLES[name], repeats))] for name in args.tables}
    print(
        f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}; "
        f"{repeats} rounds in {time.monotonic() - began:.0f} s; medians over the rounds"
    )
    for name, table in tables.items():
        print(f"\n{name}:\n")
        print_table(table, args.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
