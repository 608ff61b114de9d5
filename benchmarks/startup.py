"""How long training takes to start: `paceline run` and `torchrun`, side by side, eight workers by default.

    python benchmarks/startup.py --json startup.json --markdown
    python benchmarks/startup.py --quick

In every round each command runs once, whole:

    paceline    `paceline run --threads 1 --record 0 --tee none` of a script that trains one step of a tiny model
    together    the same with `--start together`: no worker goes ahead
    ddp         `torchrun --standalone` of a script that makes a Gloo group and trains that step with DDP
    all_reduce  the same with one all_reduce instead of a model: the least that can be asked of torchrun
    plain       `python` of the script without Paceline: one process makes that step
    import      `python -c "import torch"`: what no training can do without

*First step* is from the command's start until the last worker's first step had returned (`time.monotonic()` on both
sides: one clock for the whole machine); *whole* until the command had ended. Ratios are within a round. Target: at
most 1/3 of torchrun's.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from step import Failed, machine, print_table

from paceline.ipc.processes import adopt_orphans

PROGRAMS = Path(sys.executable).parent
WORKLOAD = Path(__file__).parent / "workloads" / "one_step.py"
TITLES = {
    "paceline": "paceline run, one step",
    "together": "--start together, one step",
    "ddp": "torchrun, one DDP step",
    "all_reduce": "torchrun, one all_reduce",
    "plain": "plain python, one step",
    "import": "import torch",
}
VARIANTS = tuple(TITLES)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One command, once. Seconds since its start."""

    variant: str
    workers: int
    repeat: int
    first_step: float | None
    """Until the last worker's first step had returned; None where there is no worker."""
    whole: float


def measure(variant: str, workers: int, repeat: int, timeout: float) -> Measurement:
    """Run one command. Raises Failed, also when it takes too long; leaves no process behind."""
    with tempfile.TemporaryDirectory(prefix="paceline-startup-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        (times := folder / "times").mkdir()
        ours = variant in ("paceline", "together")
        script: list[Any] = [WORKLOAD, "--variant", "paceline" if ours else variant, "--times", times]
        run_it = [PROGRAMS / "paceline", "run", "-n", workers, "--threads", 1, "--record", 0, "--tee", "none"]
        commands: dict[str, list[Any]] = {
            "paceline": run_it,
            "together": [*run_it, "--start", "together"],
            "plain": [sys.executable],
            "import": [sys.executable, "-c", "import torch"],
        }
        command = commands.get(variant, [PROGRAMS / "torchrun", "--standalone", "--nproc-per-node", workers])
        if ours:
            command += ["--out", folder / "run"]
        if variant != "import":
            command += script
        began, ended = run(command, folder / "output", timeout)
        returned = [float(file.read_text()) for file in times.iterdir()]
    if variant != "import" and len(returned) != (expected := 1 if variant == "plain" else workers):
        raise Failed(f"{len(returned)} of {expected} workers made a step")
    return Measurement(variant, workers, repeat, max(returned) - began if returned else None, ended - began)


def run(
    command: Sequence[Any],
    output: Path,
    timeout: float,
    tick: Callable[[int], None] | None = None,
    interval: float = 0.1,
) -> tuple[float, float]:
    """Run a command to its end; returns the monotonic clock when it began and when it had ended.

    `tick` is called with its process id at that interval, in seconds. Raises Failed, also when it takes too
    long; leaves no process behind. To be called after `adopt_orphans`.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with output.open("wb") as file:
        began = time.monotonic()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )
        try:
            ended = _await_end(process.pid, began + timeout, tick, interval)
        finally:
            end_descendants()
            code = process.wait()
    if ended is None:
        raise Failed(f"it had not ended after {timeout:g} s")
    if code:
        last = output.read_text(errors="replace").strip().splitlines()[-8:]
        raise Failed("\n    ".join([f"exit code {code}", *last]))
    return began, ended


def _await_end(process: int, deadline: float, tick: Callable[[int], None] | None, interval: float) -> float | None:
    """When the process ended; None if it has not by the deadline. A descriptor tells at once, unlike Popen's wait."""
    watch = os.pidfd_open(process)
    try:
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        next_tick = time.monotonic()
        while (now := time.monotonic()) < deadline:
            if tick is not None and now >= next_tick:
                tick(process)
                next_tick = now + interval
            until = deadline if tick is None else min(deadline, next_tick)
            if poll.poll(max(0.0, until - time.monotonic()) * 1e3):
                return time.monotonic()
        return None
    finally:
        os.close(watch)


@dataclass(frozen=True, slots=True)
class Process:
    """A line of the process table."""

    number: int
    parent: int
    started: int
    """In clock ticks since the machine's start."""
    ended: bool
    """A zombie."""


def descendants(ancestor: int) -> list[Process]:
    """Its children, their children and so on, the eldest first."""
    table: dict[int, list[Process]] = {}
    for entry in os.listdir("/proc"):
        with suppress(OSError):  # it ends this very moment
            if entry.isdigit():
                columns = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                one = Process(int(entry), int(columns[1]), int(columns[19]), columns[0] == "Z")
                table.setdefault(one.parent, []).append(one)
    found: list[Process] = []
    parents = [ancestor]
    while parents:
        children = table.get(parents.pop(), [])
        found += children
        parents += [child.number for child in children]
    return sorted(found, key=lambda one: (one.started, one.number))


def end_descendants() -> None:
    """Kill what is left of all that this process has started; torchrun's workers are in sessions of their own."""
    while left := [one for one in descendants(os.getpid()) if not one.ended]:
        for one in left:
            with suppress(ProcessLookupError):
                os.kill(one.number, signal.SIGKILL)
        time.sleep(0.01)


def table(measurements: Sequence[Measurement]) -> list[list[str]]:
    """For each command the seconds until the first step and the end, and paceline's share of them."""
    head = ["command", "workers", "rounds", "first step, s", "min–max", "whole, s", "min–max"]
    rows = [[*head, "paceline's first step / its", "min–max", "paceline's whole / its", "min–max"]]
    ours = {(one.workers, one.repeat): one for one in measurements if one.variant == "paceline"}
    for variant, workers in dict.fromkeys((one.variant, one.workers) for one in measurements):
        repeats = [one for one in measurements if (one.variant, one.workers) == (variant, workers)]
        pairs = [(ours[workers, one.repeat], one) for one in repeats if (workers, one.repeat) in ours]
        if variant == "paceline":
            pairs = []
        rows.append(
            [
                TITLES[variant],
                str(workers) if variant != "import" else "",
                str(len(repeats)),
                *_cells([one.first_step for one in repeats if one.first_step is not None]),
                *_cells([one.whole for one in repeats]),
                *_cells([our.first_step / one.first_step for our, one in pairs if our.first_step and one.first_step]),
                *_cells([our.whole / one.whole for our, one in pairs]),
            ]
        )
    return rows


def _cells(values: Sequence[float]) -> tuple[str, str]:
    """The median, and the spread."""
    return (f"{median(values):.2f}", f"{min(values):.2f}–{max(values):.2f}") if values else ("", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="rounds (default: 7; with --quick, 1)")
    parser.add_argument("--workers", type=int, default=8, metavar="N")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--quick", action="store_true", help="one round: to see that it works")
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
        for variant in args.variants:
            what = f"round {repeat + 1} of {repeats}: {TITLES[variant]}"
            try:
                one = measure(variant, args.workers, repeat, args.timeout)
            except Failed as failure:
                failures.append(f"{what}: {failure}")
                print(failures[-1], file=sys.stderr)
                continue
            measurements.append(one)
            print(f"{what}: {one.whole:.2f} s", file=sys.stderr)
            if args.json:
                content = {
                    "machine": about,
                    "quick": args.quick,
                    "measurements": [asdict(one) for one in measurements],
                    "failures": failures,
                }
                args.json.write_text(json.dumps(content, indent=1) + "\n")

    print(
        f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}, torch {about['torch']}; "
        f"{repeats} rounds in {time.monotonic() - began:.0f} s; medians over the rounds (target: ratios at most 0.33)\n"
    )
    print_table(table(measurements), args.markdown)
    if failures:
        print(f"\n{len(failures)} measurements failed; they are in no table", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
