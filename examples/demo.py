"""The demonstration that `make demo` runs: the same training under three protocols, one worker in four slow.

Each run is `paceline run -n 4 -p PROTOCOL --scenario examples/scenarios/one_slow.toml examples/digits.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

EXAMPLES = Path(__file__).parent
PROTOCOLS = ("bsp", "asp", "ssp:bound=3")
SCRIPT = ("digits.py", "--epochs", "20", "--lr", "0.2", "--momentum", "0")
PARTS = ("compute_seconds", "wait_seconds", "transfer_seconds", "other_seconds")


def train(protocol: str, folder: Path) -> dict[str, Any]:
    """The summary of one run. What it says meanwhile goes to standard error."""
    command = [sys.executable, "-m", "paceline", "run", "--workers", "4", "--protocol", protocol, "--tee", "none"]
    command += ["--scenario", str(EXAMPLES / "scenarios" / "one_slow.toml"), "--json", "--out", str(folder)]
    command += [str(EXAMPLES / SCRIPT[0]), *SCRIPT[1:]]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if finished.returncode != 0:
        sys.exit(finished.returncode)
    summary: dict[str, Any] = json.loads(finished.stdout)
    return summary


def add_row(table: Table, protocol: str, summary: dict[str, Any]) -> None:
    workers = summary["per_worker"]
    waiting = [row["wait_seconds"] / sum(row[part] for part in PARTS) for row in workers]
    table.add_row(
        protocol,
        f"{summary['wall_seconds']:.1f} s",
        f"{summary['samples_per_second']:.0f}",
        " ".join(f"{row['steps']:3d}" for row in workers),
        " ".join(f"{share:3.0%}" for share in waiting),
        f"{summary['staleness']['mean']:.2f}",
        str(summary["staleness"]["max"]),
        f"{summary['evaluations'][-1]['accuracy']:.1%}",
    )


def main() -> None:
    console = Console(highlight=False)
    console.print("Handwritten digits, 4 workers, of which worker 3 computes four times slower.\n")
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("protocol", no_wrap=True)
    for name in ("wall\ntime", "samples\n/s", "steps of\nworker 0-3", "waiting of\nworker 0-3"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("stale\nmean", "stale\nmax", "test\naccuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    summaries = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, protocol in enumerate(PROTOCOLS):
            with console.status(f"training under {protocol} ..."):
                summaries[protocol] = train(protocol, Path(folder) / str(number))
            add_row(table, protocol, summaries[protocol])
    console.print(table)
    seconds = {protocol: summary["wall_seconds"] for protocol, summary in summaries.items()}
    console.print(
        f"\nThe same passes over the data took {seconds['bsp']:.1f} s when everybody waited for everybody (bsp), and "
        f"{seconds['asp']:.1f} s when nobody did (asp: {seconds['bsp'] / seconds['asp']:.1f} times as fast), at the "
        f"price of gradients {summaries['asp']['staleness']['mean']:.1f} versions old on average. With a bound (ssp) "
        "nobody gets far ahead: a worker that is always slow holds the others back in the end, one that is slow now "
        "and then does not."
    )


if __name__ == "__main__":
    main()
