"""What a training step costs, and what synchronisation adds to it: DDP over Gloo and Paceline, side by side.

    python benchmarks/step.py --json step.json --markdown
    python benchmarks/step.py --quick

For each model and number of workers the variants take turns (A B C D A B C D ...), each in processes of its own:

    plain           as many processes at once, which know nothing of each other: the step without synchronisation
    ddp             DistributedDataParallel over Gloo, as it comes
    plain, tuned    the same two with the allocator's settings that Paceline gives its workers
    ddp, tuned
    bsp, all-reduce, asp, ssp
                    `paceline run -p ...`

A step is the time between two returns of `optimizer.step()`: the median over a worker's steps, then over the
workers. The mean is the workers' mean step; it differs where there are more processes than cores and steps are
shorter than a process's turn: most then run undisturbed, and a few wait for everybody else's turns. Only steps
count that lie between the moment when the last worker was warm and the one when the first had done. Everyone
has the same model, batch, optimizer and number of threads.

What synchronisation adds is the step less the one without it, with the same allocator settings. Before each
round a plain copy of a model's bytes is timed with as many threads as there are cores: an update reads a gradient
and a version and writes a version, so this is how many a second the memory lets through.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch

WORKLOAD = Path(__file__).parent / "workloads" / "mlp_step.py"
TITLES = {
    "plain": "no synchronisation",
    "ddp": "DDP, Gloo",
    "plain-tuned": "no synchronisation, tuned",
    "ddp-tuned": "DDP, Gloo, tuned",
    "bsp": "Paceline bsp",
    "all-reduce": "Paceline all-reduce",
    "asp": "Paceline asp",
    "ssp": "Paceline ssp",
}
VARIANTS = tuple(TITLES)
PEERS = ("plain", "ddp", "plain-tuned", "ddp-tuned")
OURS = ("bsp", "asp", "ssp")
TUNED = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=2147483647"
"""As `paceline.ipc.memory.keep_freed_memory` sets it."""
PARTS = ("compute", "push", "wait", "pull", "other")
BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Model:
    """An MLP, and how many steps a measurement of it takes."""

    widths: tuple[int, ...]
    warmup: int
    steps: int
    quick_warmup: int
    quick_steps: int

    @property
    def parameters(self) -> int:
        return sum(inputs * outputs + outputs for inputs, outputs in pairwise(self.widths))


MODELS = {
    "25M": Model((1024, 4096, 4096, 1024), warmup=4, steps=12, quick_warmup=1, quick_steps=4),
    "64k": Model((128, 256, 128), warmup=50, steps=400, quick_warmup=20, quick_steps=150),
}
PLAN: dict[str, dict[int, Sequence[str]]] = {
    "25M": {1: OURS, 2: OURS, 4: VARIANTS, 8: OURS},
    "64k": {2: ("plain", "ddp", "bsp", "asp"), 4: ("plain", "ddp", "bsp", "asp")},
}
"""What is measured, unless the flags say otherwise."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One variant, once. Times in seconds."""

    model: str
    workers: int
    variant: str
    repeat: int
    step: float
    """The median over each worker's steps, and over the workers."""
    per_worker: list[float]
    """Each worker's median."""
    steps_per_second: float
    """Of all workers together: with asp, updates per second."""
    mean: float
    """The workers' mean step."""
    parts: dict[str, float] | None
    """Where a step of Paceline went, by its ledger: the median of each part."""


class Failed(Exception):
    """A measurement came to nothing."""


def measure(name: str, workers: int, variant: str, repeat: int, threads: int, args: argparse.Namespace) -> Measurement:
    """Run one variant once. Raises Failed, also when it takes too long; leaves no process behind."""
    model = MODELS[name]
    warmup, steps = (model.quick_warmup, model.quick_steps) if args.quick else (model.warmup, model.steps)
    with tempfile.TemporaryDirectory(prefix="paceline-step-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        flags = ["--workers", workers, "--threads", threads, "--batch-size", BATCH_SIZE]
        flags += ["--steps", warmup + steps, "--times", folder, "--widths", *model.widths]
        command: list[Any] = [sys.executable]
        kind, _, tuned = variant.partition("-")
        if variant in PEERS:
            command += [WORKLOAD, "--variant", kind, *flags]
        else:
            command += ["-m", "paceline", "run", "-n", workers, "-p", variant, "--threads", threads]
            command += ["--record", 0, "--tee", "none", "--out", folder / "run"]
            command += [WORKLOAD, "--variant", "paceline", *flags]
        settings = {"GLIBC_TUNABLES": TUNED} if tuned else {}
        run([str(part) for part in command], folder / "output", args.timeout, settings)
        returned = [json.loads((folder / f"{worker}.json").read_text()) for worker in range(workers)]
        ledger = folder / "run" / "ledger.sqlite"
        parts = _parts(ledger, warmup) if ledger.exists() else None
    per_worker, rate = _in_common([times[warmup - 1 :] for times in returned])
    return Measurement(
        model=name,
        workers=workers,
        variant=variant,
        repeat=repeat,
        step=median(per_worker),
        per_worker=per_worker,
        steps_per_second=rate,
        mean=workers / rate,
        parts=parts,
    )


def run(command: list[str], output: Path, timeout: float, settings: dict[str, str]) -> None:
    """Run it to its end, with what it prints in that file. Raises Failed; leaves no process behind."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **settings}
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Failed(f"it had not ended after {timeout:g} s") from None
        finally:
            with suppress(ProcessLookupError):  # whatever is left of it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code:
        last = output.read_text(errors="replace").strip().splitlines()[-8:]
        raise Failed("\n    ".join([f"exit code {code}", *last]))


def _in_common(returned: list[list[float]]) -> tuple[list[float], float]:
    """Each worker's median step, and the steps per second of all, while all of them were at it."""
    start, end = max(times[0] for times in returned), min(times[-1] for times in returned)
    steps = [
        [after - before for before, after in pairwise(times) if start <= before and after <= end] for times in returned
    ]
    if not all(steps):
        raise Failed("the workers did not train at the same time; more steps would help")
    return [median(times) for times in steps], sum(len(times) / sum(times) for times in steps)


def _parts(ledger: Path, warmup: int) -> dict[str, float]:
    with closing(sqlite3.connect(ledger)) as database:
        rows = database.execute(f"SELECT {', '.join(PARTS)} FROM step_times WHERE step >= ?", (warmup,)).fetchall()
    return {part: median(column) for part, column in zip(PARTS, zip(*rows, strict=True), strict=True)}


def copy_bandwidth(threads: int) -> float:
    """Bytes read and written per second by a plain copy of 100 MB, by so many threads; the median of nine."""
    torch.set_num_threads(threads)
    source, target = torch.ones(25_000_000), torch.zeros(25_000_000)
    seconds = []
    for _ in range(9):
        began = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - began)
    return 2 * source.nbytes / median(seconds)


def step_table(measurements: Sequence[Measurement]) -> list[list[str]]:
    """For each model, number of workers and variant: the step, what synchronisation adds, against DDP's."""
    head = ["model", "workers", "variant", "step, ms", "min–max", "sync adds", "min–max", "mean step", "mean adds"]
    rows = [[*head, "× DDP", "min–max", "× DDP, tuned", "min–max", "steps/s, all"]]
    for (name, workers, variant), repeats in _cells(measurements).items():
        tuned = variant not in ("plain", "ddp") and _of(measurements, name, workers, "plain-tuned")
        plain = tuned or _of(measurements, name, workers, "plain")
        ddp, ddp_tuned = (_of(measurements, name, workers, other) for other in ("ddp", "ddp-tuned"))
        synchronised = not variant.startswith("plain")
        beside_plain = [(one, plain[one.repeat]) for one in repeats if synchronised and one.repeat in plain]
        beside_ddp = [(one, ddp[one.repeat]) for one in repeats if synchronised and one.repeat in ddp]
        beside_tuned = [(one, ddp_tuned[one.repeat]) for one in repeats if synchronised and one.repeat in ddp_tuned]
        rows.append(
            [
                name,
                str(workers),
                TITLES[variant],
                *_middle_and_spread([one.step * 1e3 for one in repeats]),
                *_middle_and_spread([(one.step - other.step) * 1e3 for one, other in beside_plain]),
                _middle([one.mean * 1e3 for one in repeats]),
                _middle([(one.mean - other.mean) * 1e3 for one, other in beside_plain]),
                *_middle_and_spread([one.step / other.step for one, other in beside_ddp]),
                *_middle_and_spread([one.step / other.step for one, other in beside_tuned]),
                _middle([one.steps_per_second for one in repeats]),
            ]
        )
    return rows


def parts_table(measurements: Sequence[Measurement]) -> list[list[str]]:
    """Where Paceline's steps go, in ms: medians of each part, which need not sum to the step's."""
    rows = [["model", "workers", "variant", *PARTS]]
    for (name, workers, variant), repeats in _cells(measurements).items():
        told = [one.parts for one in repeats if one.parts]
        if told:
            parts = (_short(median(parts[part] for parts in told) * 1e3) for part in PARTS)
            rows.append([name, str(workers), TITLES[variant], *parts])
    return rows


def _cells(measurements: Sequence[Measurement]) -> dict[tuple[str, int, str], list[Measurement]]:
    cells: dict[tuple[str, int, str], list[Measurement]] = {}
    for one in measurements:
        cells.setdefault((one.model, one.workers, one.variant), []).append(one)
    order = {name: place for place, name in enumerate((*MODELS, *VARIANTS))}
    return dict(sorted(cells.items(), key=lambda cell: (order[cell[0][0]], cell[0][1], order[cell[0][2]])))


def _of(measurements: Sequence[Measurement], name: str, workers: int, variant: str) -> dict[int, Measurement]:
    """By repeat: what is compared was measured in the same round."""
    wanted = (name, workers, variant)
    return {one.repeat: one for one in measurements if (one.model, one.workers, one.variant) == wanted}


def _middle_and_spread(values: Sequence[float]) -> tuple[str, str]:
    return _middle(values), f"{_short(min(values))}–{_short(max(values))}" if values else ""


def _middle(values: Sequence[float]) -> str:
    return _short(median(values)) if values else ""


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def print_table(rows: list[list[str]], markdown: bool) -> None:
    """The first row is the head; numbers, from the fourth column on, stand to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip())
        if markdown and number == 0:
            print(f"|{'|'.join('-' * (w + 2) if c < 3 else '-' * (w + 1) + ':' for c, w in enumerate(widths))}|")


def machine() -> dict[str, Any]:
    """What the numbers depend on; nothing that names the machine."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="rounds (default: 7; with --quick, 1)")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--workers", nargs="+", type=int, metavar="N", help="these numbers, rather than the plan's")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, help="these, rather than the plan's")
    parser.add_argument("--quick", action="store_true", help="few steps, one round: to see that it works")
    parser.add_argument("--timeout", type=float, default=180, metavar="S", help="of one measurement (default: 180)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there, as they come")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()
    repeats = args.repeats or (1 if args.quick else 7)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no measurement is left running
    about = machine()
    measurements: list[Measurement] = []
    failures: list[str] = []
    began = time.monotonic()
    bandwidths: list[float] = []
    for repeat in range(repeats):
        bandwidths.append(copy_bandwidth(about["cores"]))
        for name in args.models:
            for workers in args.workers or (n for n in PLAN[name] if n <= 4 or not args.quick):
                threads = max(1, about["cores"] // workers)
                for variant in args.variants or PLAN[name].get(workers, VARIANTS):
                    what = f"round {repeat + 1} of {repeats}: {name}, {workers} workers, {variant}"
                    started = time.monotonic()
                    try:
                        one = measure(name, workers, variant, repeat, threads, args)
                    except Failed as failure:
                        failures.append(f"{what}: {failure}")
                        print(failures[-1], file=sys.stderr)
                        continue
                    measurements.append(one)
                    print(
                        f"{what}: {_short(one.step * 1e3)} ms, in {time.monotonic() - started:.0f} s", file=sys.stderr
                    )
                    if args.json:
                        _write(args, about, measurements, failures)
    if args.json:
        _write(args, about, measurements, failures)

    print(
        f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}, torch {about['torch']} "
        f"({about['cpu_capability']}); {repeats} rounds in {time.monotonic() - began:.0f} s; medians over the rounds\n"
    )
    print_table(step_table(measurements), args.markdown)
    middle, spread = _middle_and_spread([bandwidth / 1e9 for bandwidth in bandwidths])
    print(f"\nA plain copy reads and writes {middle} GB/s in all ({spread}); an update moves a model three times:")
    for name in args.models:
        print(f"{name}: at most {_middle([b / (3 * 4 * MODELS[name].parameters) for b in bandwidths])} updates/s")
    if any(one.parts for one in measurements):
        print("\nWhere Paceline's steps go (ledger, medians in ms):\n")
        print_table(parts_table(measurements), args.markdown)
    if failures:
        print(f"\n{len(failures)} measurements failed; they are in no table", file=sys.stderr)
    return 1 if failures else 0


def _write(
    args: argparse.Namespace, about: dict[str, Any], measurements: list[Measurement], failures: list[str]
) -> None:
    content = {
        "machine": about,
        "quick": args.quick,
        "batch_size": BATCH_SIZE,
        "models": {name: {**asdict(MODELS[name]), "parameters": MODELS[name].parameters} for name in args.models},
        "measurements": [asdict(one) for one in measurements],
        "failures": failures,
    }
    args.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
