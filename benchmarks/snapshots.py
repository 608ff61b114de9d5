"""What snapshots cost: runs with `--checkpoint 4` and with `--checkpoint 0`, side by side.

    python benchmarks/snapshots.py --markdown
    python benchmarks/snapshots.py --quick

In every round each workload runs once without snapshots and once with four in each epoch; the order of the two changes
from round to round:

    demo     `examples/digits.py` as `make demo` has it: four workers, worker 3 computes four times slower
    unpaced  the same without the scenario: steps take milliseconds, and several snapshots a second are due
    25M      an MLP of 25 million parameters with momentum, whose snapshots have 200 MB

*Step* is the median time from a worker's gradient to its next one. *Training* is the run's `wall_seconds`. *Whole* is
the command, with the last snapshot. Ratios are within a round. *A snapshot costs* what training took longer, for
each snapshot that was taken meanwhile. Target: at most 2 % of the demo's training.
"""

from __future__ import annotations

import argparse
import json
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from startup import PROGRAMS, run
from step import MODELS, Failed, machine, print_table

from paceline.ipc.processes import adopt_orphans

ROOT = Path(__file__).parent.parent
DIGITS, SLOW = ROOT / "examples" / "digits.py", ROOT / "examples" / "scenarios" / "one_slow.toml"
MLP = ROOT / "benchmarks" / "workloads" / "mlp_epochs.py"
OFTEN = 4
"""Snapshots in each epoch."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained: flags of the run, and the script with its arguments."""

    flags: tuple[Any, ...]
    script: tuple[Any, ...]
    epochs: int
    quick_epochs: int


WORKLOADS = {
    "demo": Workload(("-n", 4, "--scenario", SLOW), (DIGITS,), 12, 2),
    "unpaced": Workload(("-n", 4), (DIGITS,), 40, 10),
    "25M": Workload(("-n", 2, "--record", 0), (MLP, "--samples", 2560, "--widths", *MODELS["25M"].widths), 1, 1),
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run. Times in seconds."""

    workload: str
    protocol: str
    checkpoint: int
    repeat: int
    step: float
    """The median, from a worker's gradient to its next one."""
    training: float
    whole: float
    snapshots: int
    """That were begun."""
    kept_bytes: int
    """In the newest."""


def measure(name: str, protocol: str, checkpoint: int, repeat: int, args: argparse.Namespace) -> Measurement:
    """Run a workload once. Raises Failed, also when it takes too long; leaves no process behind."""
    workload = WORKLOADS[name]
    epochs = workload.quick_epochs if args.quick else workload.epochs
    with tempfile.TemporaryDirectory(prefix="paceline-snapshots-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) / "run"
        command = [PROGRAMS / "paceline", "run", "-p", protocol, "--checkpoint", checkpoint, "--threads", 1]
        command += ["--tee", "none", "--out", folder, *workload.flags, *workload.script, "--epochs", epochs]
        began, ended = run(command, Path(temporary) / "output", args.timeout)
        summary = json.loads((folder / "summary.json").read_text())
        with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
            (snapshots,) = ledger.execute("SELECT count(*) FROM marks").fetchone()
            gaps = "at - lag(at) OVER (PARTITION BY json_extract(body, '$.worker') ORDER BY id) AS gap"
            ready = f"SELECT gap FROM (SELECT {gaps} FROM facts WHERE kind = 'GradientReady') WHERE gap IS NOT NULL"
            steps = [gap for (gap,) in ledger.execute(ready)]
        newest = max((folder / "snapshots").glob("[0-9]*"), default=None, key=lambda path: int(path.name))
        kept = 0 if newest is None else sum(file.stat().st_size for file in newest.iterdir())
    return Measurement(
        workload=name,
        protocol=protocol,
        checkpoint=checkpoint,
        repeat=repeat,
        step=median(steps),
        training=summary["wall_seconds"],
        whole=ended - began,
        snapshots=snapshots,
        kept_bytes=kept,
    )


def table(measurements: Sequence[Measurement]) -> list[list[str]]:
    """For each workload and protocol the times without snapshots, and what they become with them."""
    head = ["workload", "protocol", "rounds", "snapshots", "MB each", "step, ms", "×", "min–max", "training, s", "×"]
    rows = [[*head, "min–max", "whole, s", "×", "min–max", "a snapshot costs, ms"]]
    found = {(one.workload, one.protocol, one.repeat, one.checkpoint): one for one in measurements}
    for name, protocol in dict.fromkeys((one.workload, one.protocol) for one in measurements):
        pairs = [
            (one, found[name, protocol, one.repeat, OFTEN])
            for one in measurements
            if (one.workload, one.protocol, one.checkpoint) == (name, protocol, 0)
            and (name, protocol, one.repeat, OFTEN) in found
        ]
        if not pairs:
            continue
        costs = [(kept.training - none.training) / max(1, kept.snapshots) for none, kept in pairs]
        rows.append(
            [
                name,
                protocol,
                str(len(pairs)),
                f"{median(kept.snapshots for _, kept in pairs):g}",
                f"{pairs[0][1].kept_bytes / 1e6:.2f}",
                f"{median(none.step for none, _ in pairs) * 1e3:.2f}",
                *_cells([kept.step / none.step for none, kept in pairs]),
                f"{median(none.training for none, _ in pairs):.2f}",
                *_cells([kept.training / none.training for none, kept in pairs]),
                f"{median(none.whole for none, _ in pairs):.2f}",
                *_cells([kept.whole / none.whole for none, kept in pairs]),
                f"{median(costs) * 1e3:.1f}",
            ]
        )
    return rows


def _cells(ratios: Sequence[float]) -> tuple[str, str]:
    """The median, and the spread."""
    return f"{median(ratios):.3f}", f"{min(ratios):.3f}–{max(ratios):.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="rounds (default: 7; with --quick, 1)")
    parser.add_argument("--workloads", nargs="+", choices=tuple(WORKLOADS), default=tuple(WORKLOADS))
    parser.add_argument("--protocols", nargs="+", metavar="P", default=["bsp"], help="default: bsp")
    parser.add_argument("--quick", action="store_true", help="few epochs, one round: to see that it works")
    parser.add_argument("--timeout", type=float, default=180, metavar="S", help="of one command (default: 180)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there, as they come")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    args = parser.parse_args()
    repeats = args.repeats or (1 if args.quick else 7)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no command is left running
    adopt_orphans()
    about = machine()
    measurements: list[Measurement] = []
    failures: list[str] = []
    began = time.monotonic()
    for repeat in range(repeats):
        turns = (0, OFTEN) if repeat % 2 == 0 else (OFTEN, 0)
        for name in args.workloads:
            for protocol in args.protocols:
                for checkpoint in turns:
                    what = f"round {repeat + 1} of {repeats}: {name}, {protocol}, --checkpoint {checkpoint}"
                    try:
                        one = measure(name, protocol, checkpoint, repeat, args)
                    except Failed as failure:
                        failures.append(f"{what}: {failure}")
                        print(failures[-1], file=sys.stderr)
                        continue
                    measurements.append(one)
                    print(f"{what}: {one.training:.2f} s of {one.whole:.2f} s", file=sys.stderr)
                    if args.json:
                        ones = [asdict(each) for each in measurements]
                        content = {"machine": about, "quick": args.quick, "measurements": ones, "failures": failures}
                        args.json.write_text(json.dumps(content, indent=1) + "\n")

    print(
        f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}, torch {about['torch']}; "
        f"{repeats} rounds in {time.monotonic() - began:.0f} s; medians over the rounds (target: the demo's training "
        "at most × 1.02)\n"
    )
    print_table(table(measurements), args.markdown)
    if failures:
        print(f"\n{len(failures)} measurements failed; they are in no table", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
