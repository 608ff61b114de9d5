"""What synchronisation adds to steps on one GPU, beside no synchronisation and DDP over Gloo.

    python benchmarks/gpu.py --json gpu.json --markdown
    python benchmarks/gpu.py --models gpt --workers 1 --variants plain bsp --steps 10

For each model and number of workers the variants take turns, each in processes of its own, all on the same GPU:

    plain       as many processes at once, which know nothing of each other
    ddp         DistributedDataParallel over Gloo
    bsp, asp, all-reduce, ps-plus
                `paceline run -p ...`
    bsp-clip    bsp, in a script that clips its gradients, so that none leaves the device before the step

A step is the time between two moments when the device had done all of a step: the median over a worker's steps and the
workers. What Paceline's steps are made of comes from its ledger: medians, in ms. `from` and `to` are copies from the
device and to it, as its events measured them: most run beside the backward, and beside the store's step. `wait` is the
wait for the others and for the store's step on the processor. `exposed` is what else a step takes beside computing a
gradient, which without synchronisation is timed as well: the push and the pull, as far as they run beside nothing, and
what the GPU does besides: it clips, or steps the optimizer where workers do that. Several workers on one GPU compute in
each other's waits, so there it says nothing. `push` is the ledger's. `store` is the time from a version's order until
it is made.
First of all, copies of 256 MB between the device and memory that torch has page-locked are timed: what the bus can do.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from step import Failed, print_table, run

WORKLOAD = Path(__file__).parent / "workloads" / "gpu_step.py"
VARIANTS = ("plain", "ddp", "bsp", "bsp-clip", "asp", "all-reduce", "ps-plus")
PLAN = {1: ("plain", "bsp", "bsp-clip", "all-reduce", "ps-plus"), 2: VARIANTS, 4: ("plain", "ddp", "bsp", "asp")}
BATCH = {"gpt": 16, "25M": 4096}
"""Of each worker."""
BYTES = {"gpt": 4 * 124_475_904, "25M": 4 * 25_175_040}
PARTS = ("compute", "push", "wait", "pull", "to_device", "from_device")
WARMUP = 6


@dataclass(frozen=True, slots=True)
class Measurement:
    """One variant, once. Times in seconds."""

    model: str
    workers: int
    variant: str
    round: int
    step: float
    computing: float
    """Of a step, until the gradient is on the device."""
    parts: dict[str, float] | None
    """By the ledger; None unless it is Paceline's."""


def measure(model: str, workers: int, variant: str, number: int, args: argparse.Namespace) -> Measurement:
    """Run one variant once. Raises Failed; leaves no process behind."""
    with tempfile.TemporaryDirectory(prefix="paceline-gpu-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        protocol = variant.removesuffix("-clip")
        ours = protocol not in ("plain", "ddp")
        flags = ["--model", model, "--workers", workers, "--steps", WARMUP + args.steps, "--times", folder]
        flags += ["--batch-size", args.batch_size or BATCH[model], "--threads", 1]
        flags += ["--clip", 0.01] if variant.endswith("-clip") else []
        command: list[Any] = [sys.executable]
        if ours:
            command += [
                "-m",
                "paceline",
                "run",
                "-n",
                workers,
                "-p",
                protocol,
                "--threads",
                1,
                "--record",
                0,
                "--checkpoint",
                0,
            ]
            command += ["--tee", "none", "--out", folder / "run", WORKLOAD, "--variant", "paceline", *flags]
        else:
            command += [WORKLOAD, "--variant", protocol, *flags]
        run([str(part) for part in command], folder / "output", args.timeout, {})
        times = [json.loads((folder / f"{worker}.json").read_text()) for worker in range(workers)]
        done, computed = ([one[key][WARMUP:] for one in times] for key in ("done", "computed"))
        steps = [[after - before for before, after in pairwise(one)] for one in done]
        computing = [
            [there - before for before, there in zip(ends, gradients[1:], strict=False)]
            for ends, gradients in zip(done, computed, strict=True)
        ]
        parts = _parts(folder / "run" / "ledger.sqlite") if ours else None
    step, before = (median(median(one) for one in every) for every in (steps, computing))
    return Measurement(model, workers, variant, number, step, before, parts)


def _parts(ledger: Path) -> dict[str, float]:
    with closing(sqlite3.connect(ledger)) as database:
        rows = database.execute(f"SELECT {', '.join(PARTS)} FROM step_times WHERE step > ?", (WARMUP,)).fetchall()
        made = database.execute(
            "SELECT commits.at - facts.at FROM commits JOIN orders USING (version) "
            "JOIN facts ON facts.id = orders.fact WHERE orders.kind = 'ApplyUpdate' AND orders.version > ?",
            (WARMUP,),
        ).fetchall()
    parts = {
        part: median(one or 0.0 for one in column) for part, column in zip(PARTS, zip(*rows, strict=True), strict=True)
    }
    return {**parts, "store": median(seconds for (seconds,) in made) if made else 0.0}


def bandwidths() -> dict[str, float]:
    """Bytes a second that torch's own page-locked memory is copied with, to the device and from it; medians of nine."""
    there = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    here = torch.empty(256 << 20, dtype=torch.uint8).pin_memory()
    found = {}
    for name, target, source in (("to", there, here), ("from", here, there)):
        seconds = []
        for _ in range(9):
            began, ended = torch.Event(there.device, enable_timing=True), torch.Event(there.device, enable_timing=True)
            began.record()
            target.copy_(source, non_blocking=True)
            ended.record()
            ended.synchronize()
            seconds.append(began.elapsed_time(ended) / 1e3)
        found[name] = here.nbytes / median(seconds)
    return found


def table(measurements: Sequence[Measurement], bus: dict[str, float]) -> list[list[str]]:
    """For each model, number of workers and variant: medians over the rounds."""
    head = ["model", "workers", "variant", "step", "adds", "× DDP", "exposed", "of step", "push", "wait", "store"]
    rows = [[*head, "from", "of bus", "to", "of bus"]]
    cells: dict[tuple[str, int, str], list[Measurement]] = {}
    for one in measurements:
        cells.setdefault((one.model, one.workers, one.variant), []).append(one)
    for (model, workers, variant), every in cells.items():
        step = median(one.step for one in every)
        plain, ddp = (
            median(one.step for one in cells[model, workers, other]) if (model, workers, other) in cells else None
            for other in ("plain", "ddp")
        )
        row = [model, str(workers), variant, _ms(step)]
        row += ["" if plain is None or variant == "plain" else _ms(step - plain)]
        row += ["" if ddp is None or variant in ("plain", "ddp") else f"{step / ddp:.2f}"]
        if told := [one.parts for one in every if one.parts]:
            part = {name: median(one[name] for one in told) for name in (*PARTS, "store")}
            beside = [one.computing for one in cells.get((model, workers, "plain"), ())]
            exposed = step - median(beside) - part["wait"] if beside and workers == 1 else None
            row += ["", ""] if exposed is None or plain is None else [_ms(exposed), f"{exposed / plain:.0%}"]
            row += [_ms(part["push"]), _ms(part["wait"]), _ms(part["store"]) if part["store"] else ""]
            for way in ("from", "to"):
                seconds = part[f"{way}_device"]
                row += [_ms(seconds), f"{BYTES[model] / seconds / bus[way]:.0%}" if seconds else ""]
        rows.append([*row, *[""] * (len(rows[0]) - len(row))])
    return rows


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=tuple(BATCH), default=tuple(BATCH))
    parser.add_argument("--workers", nargs="+", type=int, default=tuple(PLAN))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, help="these, rather than the plan's")
    parser.add_argument("--batch-size", type=int, help="of each worker (default: gpt 16 sequences, 25M 4096)")
    parser.add_argument("--steps", type=int, default=30, help="after the first ones (default: 30)")
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="of one measurement (default: 120)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    bus = bandwidths()
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cores": len(os.sched_getaffinity(0))}
    measurements: list[Measurement] = []
    failed = False
    for number in range(args.rounds):
        for model in args.models:
            for workers in args.workers:
                for variant in args.variants or PLAN.get(workers, VARIANTS):
                    try:
                        one = measure(model, workers, variant, number, args)
                    except Failed as failure:
                        failed = True
                        print(f"{model}, {workers} workers, {variant}: {failure}", file=sys.stderr, flush=True)
                        continue
                    measurements.append(one)
                    print(f"{model}, {workers} workers, {variant}: {_ms(one.step)} ms", file=sys.stderr, flush=True)
                    if args.json:
                        content = {"machine": about, "bus": bus, "measurements": [asdict(one) for one in measurements]}
                        args.json.write_text(json.dumps(content, indent=1) + "\n")
    print(
        f"{about['gpu']}, {about['cores']} cores, torch {about['torch']}; the bus: {bus['to'] / 1e9:.1f} GB/s to the "
        f"device, {bus['from'] / 1e9:.1f} from it; ms, medians of {args.rounds} rounds of {args.steps} steps\n"
    )
    print_table(table(measurements, bus), args.markdown)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
