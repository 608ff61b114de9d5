"""What synchronisation costs a training step: PyTorch's DDP over Gloo and Paceline, side by side.

    python benchmarks/step.py [--repeats 7] [--json FILE]      # about forty minutes on two cores
    python benchmarks/step.py --quick                          # two or three minutes; rough

For each model and number of workers, every variant in turn, then all of them again: the machine's moods
fall on all alike. `plain` is the same step by as many processes at once, without any synchronisation; what a
variant adds is its step less that. A step's time is the median over a worker's steps, then over the
workers; what is shown is the median over the repeats, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from step_worker import MODELS

WORKER = Path(__file__).with_name("step_worker.py")
VARIANTS = ("plain", "ddp", "bsp", "asp")
STEPS = {"25M": (3, 8), "64k": (50, 300)}
"""Steps of each worker: before the clock counts, and counted."""
LONGEST = 300  # seconds for one run; the slowest seen took 40


def measure(variant: str, model: str, workers: int, batch: int, divisor: int) -> float:
    """Seconds of one step: the median over workers of the median over their steps."""
    warmup, steps = (max(2, count // divisor) for count in STEPS[model])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        protocol = variant if variant not in ("plain", "ddp") else None
        command = [str(WORKER), "--variant", "paceline" if protocol else variant, "--model", model, "--out", folder]
        command += ["--batch", str(batch), "--warmup", str(warmup), "--steps", str(steps)]
        if protocol:
            run = [sys.executable, "-m", "paceline", "run", "-n", str(workers), "-p", protocol, "--tee", "none"]
            run += ["--threads", str(threads(workers)), "--out", str(out / "run"), "--json"]
            subprocess.run([*run, *command], check=True, timeout=LONGEST, stdout=subprocess.DEVNULL)
            shutil.rmtree(out / "run")
        else:
            _run_all([sys.executable, *command], workers)
        times = [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]
    assert len(times) == workers
    return statistics.median(statistics.median(one) for one in times)


def threads(workers: int) -> int:
    """Of each worker, the same for all variants."""
    return max(1, len(os.sched_getaffinity(0)) // workers)


def _run_all(command: list[str], workers: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(workers)}
    common |= {"THREADS": str(threads(workers)), "GLOO_SOCKET_IFNAME": "lo"}
    processes = [subprocess.Popen(command, env={**os.environ, **common, "RANK": str(rank)}) for rank in range(workers)]
    try:
        for process in processes:
            if process.wait(timeout=LONGEST):
                sys.exit(f"{' '.join(command)} failed with exit code {process.returncode}")
    finally:
        for process in processes:
            process.kill()


def markdown(rows: list[dict[str, Any]]) -> str:
    """The results as a table: milliseconds, median (least–greatest)."""
    lines = [
        "| model | workers | variant | step, ms | adds, ms | step ÷ DDP's | added ÷ DDP's |",
        "|---|---|---|---|---|---|---|",
    ]
    by_key = {(row["model"], row["workers"], row["variant"]): row for row in rows}
    for row in rows:
        plain, ddp = (by_key[row["model"], row["workers"], variant] for variant in ("plain", "ddp"))
        adds = row["median"] - plain["median"]
        ddp_adds = ddp["median"] - plain["median"]
        shown = [f"{1000 * row[name]:.2f}" for name in ("median", "least", "greatest")]
        added = ["–", "–"] if row is plain else [f"{1000 * adds:.2f}", f"{adds / ddp_adds:.2f}"]
        lines.append(
            f"| {row['model']} | {row['workers']} | {row['variant']} | {shown[0]} ({shown[1]}–{shown[2]}) "
            f"| {added[0]} | {row['median'] / ddp['median']:.2f} | {added[1]} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batch", type=int, default=32, help="samples of each worker's step")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--quick", action="store_true", help="1 repeat, 2 workers, a third of the steps")
    args = parser.parse_args()
    if args.quick:
        args.repeats, args.workers = 1, [2]

    rows = []
    for model in args.models:
        for workers in args.workers:
            taken: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
            for repeat in range(args.repeats):
                for variant in VARIANTS:
                    print(f"{model}, {workers} workers, {variant}: {repeat + 1} of {args.repeats}", file=sys.stderr)
                    taken[variant].append(measure(variant, model, workers, args.batch, 3 if args.quick else 1))
            for variant, seconds in taken.items():
                row = {"model": model, "workers": workers, "variant": variant, "median": statistics.median(seconds)}
                rows.append({**row, "least": min(seconds), "greatest": max(seconds), "seconds": seconds})
    about = {
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "repeats": args.repeats,
        "batch": args.batch,
    }
    print(", ".join(f"{key} {value}" for key, value in about.items()) + "\n")
    print(markdown(rows))
    if args.json:
        args.json.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
