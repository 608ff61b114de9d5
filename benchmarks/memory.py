"""How much memory a run takes: Paceline and DDP over Gloo, in copies of the model.

    python benchmarks/memory.py --json memory.json --markdown
    python benchmarks/memory.py --quick

For each variant and number of workers an MLP of 25 million parameters is trained, and right after it a model of 64
parameters, the base. All processes of a run are looked at every 100 ms (/proc/<process>/smaps_rollup). What counts is
the highest sum while every worker was training, from the last one's first step to the first one's last.

    unique     bytes that no other process has mapped (Private_Clean and Private_Dirty), summed over a kind of process;
               a page of shared memory counts as unique as long as one process alone has touched it
    anonymous  memory that is neither a file nor shared, each byte once (Pss_Anon): unique, but for such pages
    shared     shared memory that the processes have mapped, each byte once (Pss_Shmem)
    all        everything, each byte once (Pss)

`bsp-forward` is `bsp` without backward and step: what a worker needs to read every parameter, and no more.

*Copies* are bytes above the base's in the same round, over 4 bytes for each of the 25 million parameters.

Workers are the launcher's first children, as many as there are to be, and the store is whatever it has beyond them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from startup import descendants, run
from step import Failed, machine, print_table

from paceline.core.choice import choose
from paceline.errors import ConfigError
from paceline.ipc.processes import adopt_orphans
from paceline.protocols import registry

WORKLOAD = Path(__file__).parent / "workloads" / "mlp_step.py"
LARGE, BASE = (1024, 4096, 4096, 1024), (63, 1)  # widths
STEPS, BASE_STEPS = 24, 2000  # over the number of workers
FEWEST_STEPS = 8
INTERVAL = 0.1  # seconds between two looks
DDP = "ddp"

KINDS = ("workers", "store", "launcher")
SUMS = (*KINDS, "workers' anonymous", "store's anonymous", "shared", "all")
OTHERS = ("workers' anonymous", "store", "store's anonymous", "launcher", "shared")  # columns
FIELDS = ("Private_Clean", "Private_Dirty", "Pss", "Pss_Anon", "Pss_Shmem")


def parameters(widths: Sequence[int]) -> int:
    """Of the MLP."""
    return sum(inputs * outputs + outputs for inputs, outputs in pairwise(widths))


MODEL_BYTES = 4 * parameters(LARGE)


@dataclass(frozen=True, slots=True)
class Look:
    """All processes of a run, at about one moment. Bytes."""

    began: float
    ended: float
    sums: dict[str, int]
    """By SUMS."""
    most: int
    """The unique bytes of the worker that has most."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run. Bytes; each the highest while all workers were training."""

    variant: str
    workers: int
    parameters: int
    repeat: int
    peaks: dict[str, int]
    """By SUMS."""
    worker: int
    """The unique bytes of one worker."""
    all_ever: int
    """Everything at any moment of the run, its start included."""
    looks: int
    """How many lie in the time that counts."""
    look_seconds: float
    """How long one took."""


def measure(variant: str, workers: int, widths: tuple[int, ...], repeat: int, timeout: float) -> Measurement:
    """Run one variant. Raises Failed, also when it takes too long; leaves no process behind."""
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    steps = max(FEWEST_STEPS, (BASE_STEPS if widths == BASE else STEPS) // workers)
    with tempfile.TemporaryDirectory(prefix="paceline-memory-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        flags = ["--workers", workers, "--threads", threads, "--steps", steps, "--times", folder, "--widths", *widths]
        command: list[Any] = [sys.executable]
        if variant == DDP:
            command += [WORKLOAD, "--variant", "ddp", *flags]
        else:
            protocol, _, forward_only = variant.partition("-")
            flags += ["--forward-only"] if forward_only else []
            command += ["-m", "paceline", "run", "-n", workers, "-p", protocol, "--threads", threads]
            command += ["--record", 0, "--tee", "none", "--out", folder / "run"]
            command += [WORKLOAD, "--variant", "paceline", *flags]
        looks: list[Look] = []

        def tick(launcher: int) -> None:
            looks.append(look(launcher, workers))

        run(command, folder / "output", timeout, tick, INTERVAL)
        returned = [json.loads((folder / f"{worker}.json").read_text()) for worker in range(workers)]
    first, last = max(times[0] for times in returned), min(times[-1] for times in returned)
    counted = [one for one in looks if first <= one.began and one.ended <= last]
    if not counted:
        raise Failed("nobody looked while all workers were training; more steps would help")
    return Measurement(
        variant=variant,
        workers=workers,
        parameters=parameters(widths),
        repeat=repeat,
        peaks={name: max(one.sums[name] for one in counted) for name in SUMS},
        worker=max(one.most for one in counted),
        all_ever=max(one.sums["all"] for one in looks),
        looks=len(counted),
        look_seconds=median(one.ended - one.began for one in counted),
    )


def look(launcher: int, workers: int) -> Look:
    """What the launcher and all that it has started have mapped now."""
    began = time.monotonic()
    family = [one for one in descendants(launcher) if not one.ended]
    staff = {one.number for one in [child for child in family if child.parent == launcher][:workers]}
    sums = dict.fromkeys(SUMS, 0)
    most = 0
    for number in (launcher, *(one.number for one in family)):
        with suppress(OSError):  # it ends this very moment
            sizes = _mapped(number)
            kind = "launcher" if number == launcher else "workers" if number in staff else "store"
            unique = sizes["Private_Clean"] + sizes["Private_Dirty"]
            sums[kind] += unique
            if kind == "workers":
                most = max(most, unique)
                sums["workers' anonymous"] += sizes["Pss_Anon"]
            elif kind == "store":
                sums["store's anonymous"] += sizes["Pss_Anon"]
            sums["shared"] += sizes["Pss_Shmem"]
            sums["all"] += sizes["Pss"]
    return Look(began, time.monotonic(), sums, most)


def _mapped(process: int) -> dict[str, int]:
    """Some of what smaps_rollup says, in bytes; nothing of a process that has none any more."""
    lines = (line.split() for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:])
    return dict.fromkeys(FIELDS, 0) | {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}


def copies_table(measurements: Sequence[Measurement]) -> list[list[str]]:
    """What is due to the model, in copies of it: the large model's peaks less the base's of the same round."""
    head = ["variant", "workers", "model", "model copies, unique", "min–max", "of one worker", "anonymous"]
    rows = [[*head, "store's, unique", "anonymous", "launcher's", "shared", "all", "min–max", "all, ever"]]
    for (variant, workers), (large, base) in _cells(measurements).items():
        rounds = [(one, base[one.repeat]) for one in large.values() if one.repeat in base]
        if not rounds:
            continue
        copies = {kind: [(one.peaks[kind] - less.peaks[kind]) / MODEL_BYTES for one, less in rounds] for kind in SUMS}
        rows.append(
            [
                variant,
                str(workers),
                f"{MODEL_BYTES / 4e6:.1f}M",
                *_middle_and_spread(copies["workers"]),
                f"{median((one.worker - less.worker) / MODEL_BYTES for one, less in rounds):.2f}",
                *(f"{median(copies[kind]):.2f}" for kind in OTHERS),
                *_middle_and_spread(copies["all"]),
                f"{median((one.all_ever - less.all_ever) / MODEL_BYTES for one, less in rounds):.2f}",
            ]
        )
    return rows


def bytes_table(measurements: Sequence[Measurement]) -> list[list[str]]:
    """The peaks themselves, in MiB."""
    head = ["variant", "workers", "model", "workers', unique", "min–max", "of one worker", "anonymous"]
    rows = [[*head, "store's, unique", "anonymous", "launcher's", "shared", "all", "min–max", "all, ever", "looks"]]
    for (variant, workers), models in _cells(measurements).items():
        for rounds in models:
            if not rounds:
                continue
            runs = list(rounds.values())
            peaks = {kind: [one.peaks[kind] / 2**20 for one in runs] for kind in SUMS}
            rows.append(
                [
                    variant,
                    str(workers),
                    "base" if runs[0].parameters == parameters(BASE) else f"{runs[0].parameters / 1e6:.1f}M",
                    *_middle_and_spread(peaks["workers"], 0),
                    f"{median(one.worker for one in runs) / 2**20:.0f}",
                    *(f"{median(peaks[kind]):.0f}" for kind in OTHERS),
                    *_middle_and_spread(peaks["all"], 0),
                    f"{median(one.all_ever for one in runs) / 2**20:.0f}",
                    f"{median(one.looks for one in runs):.0f}",
                ]
            )
    return rows


def _cells(
    measurements: Sequence[Measurement],
) -> dict[tuple[str, int], tuple[dict[int, Measurement], dict[int, Measurement]]]:
    """By variant and workers: the large model's runs and the base's, by round."""
    cells: dict[tuple[str, int], tuple[dict[int, Measurement], dict[int, Measurement]]] = {}
    for variant in dict.fromkeys(one.variant for one in measurements):
        for workers in sorted({one.workers for one in measurements}):
            cells[variant, workers] = ({}, {})
    for one in measurements:
        cells[one.variant, one.workers][one.parameters == parameters(BASE)][one.repeat] = one
    return cells


def _middle_and_spread(values: Sequence[float], digits: int = 2) -> tuple[str, str]:
    return f"{median(values):.{digits}f}", f"{min(values):.{digits}f}–{max(values):.{digits}f}"


def _variant(text: str) -> str:
    if text != DDP:
        try:
            choose(text.removesuffix("-forward"), registry())
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="rounds (default: 7; with --quick, 1)")
    parser.add_argument("--workers", nargs="+", type=int, metavar="N", help="default: 1 2 4 8; with --quick, 1 2")
    parser.add_argument(
        "--variants",
        nargs="+",
        type=_variant,
        default=("bsp-forward", "bsp", "asp", DDP),
        metavar="V",
        help=f"protocols, or {DDP} (default: bsp-forward bsp asp {DDP})",
    )
    parser.add_argument("--quick", action="store_true", help="one round of 1 and 2 workers: to see that it works")
    parser.add_argument("--timeout", type=float, default=180, metavar="S", help="of one run (default: 180)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there, as they come")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()
    repeats = args.repeats or (1 if args.quick else 7)
    args.workers = args.workers or ((1, 2) if args.quick else (1, 2, 4, 8))

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no run is left
    adopt_orphans()
    about = machine()
    measurements: list[Measurement] = []
    failures: list[str] = []
    began = time.monotonic()
    for repeat in range(repeats):
        for workers in args.workers:
            for variant in args.variants:
                for widths in (LARGE, BASE):
                    what = f"round {repeat + 1} of {repeats}: {workers} workers, {variant}, {parameters(widths)}"
                    try:
                        one = measure(variant, workers, widths, repeat, args.timeout)
                    except Failed as failure:
                        failures.append(f"{what}: {failure}")
                        print(failures[-1], file=sys.stderr)
                        continue
                    measurements.append(one)
                    print(f"{what}: {one.peaks['all'] / 2**20:.0f} MiB, {one.looks} looks", file=sys.stderr)
                    if args.json:
                        _write(args, about, measurements, failures)

    print(
        f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}, torch {about['torch']}; "
        f"{repeats} rounds in {time.monotonic() - began:.0f} s; medians over the rounds\n"
    )
    print(f"Due to the model, in copies of it ({MODEL_BYTES / 2**20:.0f} MiB each):\n")
    print_table(copies_table(measurements), args.markdown)
    print("\nPeaks in MiB:\n")
    print_table(bytes_table(measurements), args.markdown)
    if failures:
        print(f"\n{len(failures)} measurements failed; they are in no table", file=sys.stderr)
    return 1 if failures else 0


def _write(
    args: argparse.Namespace, about: dict[str, Any], measurements: list[Measurement], failures: list[str]
) -> None:
    content = {
        "machine": about,
        "quick": args.quick,
        "model_bytes": MODEL_BYTES,
        "measurements": [asdict(one) for one in measurements],
        "failures": failures,
    }
    args.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
