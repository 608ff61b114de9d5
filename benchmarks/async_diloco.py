"""Seconds to a loss on four unequal workers: synchronous DiLoCo, and asynchronous DiLoCo in three forms.

    python benchmarks/async_diloco.py --markdown                # in virtual time, about 5 minutes
    python benchmarks/async_diloco.py --real --markdown         # real runs with padded steps, about 10 minutes

The task and the times are those of DeepMind's public notebook on asynchronous local SGD, in its small form: see
`workloads/blobs.py`. A worker's step takes 0.58, 0.75, 1.51 or 3.33 seconds, and the fastest one's round has 20. Steps
of real runs are `--faster` times shorter, and the seconds printed are the measured ones times that. Each seed has
another model and other batches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from step import print_table

WORKLOAD = Path(__file__).parent / "workloads" / "blobs.py"
SECONDS = (0.58, 0.75, 1.51, 3.33)
"""A step of each worker."""
VARIANTS = {
    "DiLoCo": "diloco:every=20,outer_lr=1",
    "naive": "async-diloco:every=20,outer_lr=0.5,local=equal,delay=1",
    "Delayed Nesterov": "async-diloco:every=20,outer_lr=1,local=equal",
    "Delayed Nesterov, DyLU": "async-diloco:every=20,outer_lr=1,local=speed",
}
"""By name: the protocol. A naive push gets √n/n of the rate, as in the notebook."""


def scenario(faster: float) -> str:
    """The cluster, whose times are so much shorter."""
    slower = "".join(
        f"[[worker]]\nindex = {worker}\nspeed = {SECONDS[0] / seconds}\n" for worker, seconds in enumerate(SECONDS)
    )
    return f'[cluster]\nworkers = {len(SECONDS)}\ncompute = "{1000 * SECONDS[0] / faster}ms"\n{slower}'


def measured(protocol: str, seed: int, target: str, faster: float | None) -> float | None:
    """Return the seconds until that loss; None if it was not reached. `faster`: of a real run."""
    with tempfile.TemporaryDirectory() as folder:
        cluster, out = Path(folder) / "cluster.toml", Path(folder) / "run"
        cluster.write_text(scenario(faster or 1.0))
        shared = ["-p", protocol, "--seed", str(seed), "--record", "8", "--target", target, "--out", str(out)]
        script = [str(WORKLOAD), "--model", str(seed)]
        if faster is None:
            command = ["simulate", str(cluster), *shared, "--gradients", *script]
        else:
            own = ["--scenario", str(cluster), "--threads", "1", "--checkpoint", "0", "--stop-at-target", "--quiet"]
            command = ["run", *own, *shared, *script]
        done = subprocess.run([sys.executable, "-m", "paceline", *command], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        summary = json.loads((out / "summary.json").read_text())
    reached = summary["targets"][target]
    return None if reached is None else reached["at_seconds"] * (faster or 1.0)


def rows(args: argparse.Namespace) -> Iterable[list[str]]:
    """A row for each variant, with the mean over seeds."""
    first: float | None = None
    for name, protocol in VARIANTS.items():
        found = [measured(protocol, seed, args.target, args.faster if args.real else None) for seed in args.seeds]
        times = [seconds for seconds in found if seconds is not None]
        row = [name, f"`{protocol}`", ", ".join("-" if seconds is None else f"{seconds:.0f}" for seconds in found)]
        if len(times) == len(found):
            first = first or fmean(times)
            row += [f"{fmean(times):.0f}", f"{fmean(times) / first:.2f}"]
        else:
            row += ["-", "-"]
        print(*row, file=sys.stderr, flush=True)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="measure real runs, which end at the loss")
    parser.add_argument("--faster", type=float, default=20.0, help="how much shorter steps of real runs are")
    parser.add_argument("--target", default="loss<=0.2")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    head = ["variant", "protocol", f"s to {args.target}, by seed", "mean", "× DiLoCo"]
    print_table([head, *rows(args)], args.markdown)


if __name__ == "__main__":
    main()
