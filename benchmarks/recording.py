"""What recording costs: steps of four workers told to a journal with a ledger on disk, against a step of 20 ms.

    python benchmarks/recording.py --markdown
    python benchmarks/recording.py --quick

Steps of four workers, one every 20 ms, are told to a journal as the coordinator tells them. For each worker that is a
step's three facts with their orders, the lease of its batch, the batch, its push, its times, the version's checksum,
and one logged value. *Caller* is the time that the coordinator's thread is held up; *all CPU* is the whole process's,
the thread that writes the ledger included, less what the same loop costs when it records nothing. Target: at most 2 %
of the step.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from machines import COMPUTE, PULL, PUSH, SAMPLES, cells, play
from step import machine, print_table

from paceline.core.choice import Choice, choose
from paceline.core.facts import GradientReady, ParametersTaken, TrainingBegan
from paceline.core.orders import ApplyUpdate
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import Ledger
from paceline.records.times import StepTimes

STEP = 0.020  # seconds that a recorded step takes
RECORDED_WORKERS = 4
STEPS, QUICK_STEPS = 150, 50
SETTLED = 0.5  # seconds after the last step until everything is written; transactions wait a tenth for company

Call = tuple[Callable[..., None], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Recording:
    """Some steps, recorded. Times in seconds, for one step of all workers."""

    protocol: str
    workers: int
    repeat: int
    events: float
    """Calls of the journal and its ledger."""
    caller: float
    """How long the caller was held up: the mean over the steps."""
    caller_longest: float
    """Of all steps."""
    caller_cpu: float
    cpu: float
    """Of all threads."""
    ledger_bytes: float


def record(choice: Choice, repeat: int, steps: int) -> Recording:
    """Record that many steps into a ledger in a folder of its own, at the pace of training."""
    with tempfile.TemporaryDirectory(prefix="paceline-machines-") as folder:
        path = Path(folder) / "ledger.sqlite"
        ledger = Ledger(path)
        try:
            told = _steps_to_tell(choice, Journal(ledger), steps)
            _, _, idle = _paced([[] for _ in told])
            held_up, caller_cpu, cpu = _paced(told)
        finally:
            ledger.close()
        size = path.stat().st_size
    return Recording(
        protocol=str(choice),
        workers=RECORDED_WORKERS,
        repeat=repeat,
        events=sum(map(len, told)) / steps,
        caller=sum(held_up) / steps,
        caller_longest=max(held_up),
        caller_cpu=caller_cpu / steps,
        cpu=(cpu - idle) / steps,
        ledger_bytes=size / steps,
    )


def _steps_to_tell(choice: Choice, journal: Journal, steps: int) -> list[list[Call]]:
    """For each step what the coordinator would call, when every worker has made one. Records the start."""
    told: list[list[Call]] = []
    calls: list[Call] = []
    finished: dict[int, int] = {}
    batches = count()
    made = 0
    for fact, orders in play(choice, RECORDED_WORKERS):
        match fact:
            case TrainingBegan():
                journal.record(fact, orders)
                continue
            case GradientReady(worker=worker, step=step, at=at):
                made += 1
                if worker in finished:  # of a replica nothing is pulled
                    parts = (COMPUTE, PUSH, 0.0, PULL, 0.0)
                    calls.append((journal.step_times, (worker, finished.pop(worker), StepTimes(at, *parts))))
                calls.append((journal.ledger.logged, (worker, step, at, "loss", 0.5)))
                batch = next(batches)
                calls.append((journal.ledger.leased, (worker, 0, (0, batch))))
                calls.append((journal.ledger.batch_used, (worker, step, 0, batch, "step")))
                calls.append((journal.ledger.pushed, (worker, step, [1e-3], SAMPLES)))
                finished[worker] = step
            case ParametersTaken(worker=worker, at=at) if worker in finished:
                parts = (COMPUTE, PUSH, 0.0, PULL, 0.0)
                calls.append((journal.step_times, (worker, finished.pop(worker), StepTimes(at, *parts))))
        calls.append((journal.record, (fact, orders)))
        for order in orders:
            if isinstance(order, ApplyUpdate):
                calls.append((journal.ledger.checked, (order.version, 0x0123456789ABCDEF)))
        if made == RECORDED_WORKERS:
            told.append(calls)
            calls, made = [], 0
            if len(told) == steps:
                return told
    raise AssertionError("play has no end")


def _paced(steps: Sequence[Sequence[Call]]) -> tuple[list[float], float, float]:
    """Seconds that each step's calls took, the CPU time of all these, and the process's, until all is written."""
    held_up, caller_cpu = [], 0.0
    cpu = time.process_time()
    start = time.monotonic()
    for number, calls in enumerate(steps):
        time.sleep(max(0.0, start + number * STEP - time.monotonic()))
        thread_before, before = time.thread_time(), time.perf_counter()
        for function, arguments in calls:
            function(*arguments)
        held_up.append(time.perf_counter() - before)
        caller_cpu += time.thread_time() - thread_before
    time.sleep(SETTLED)
    return held_up, caller_cpu, time.process_time() - cpu


def recording_table(measured: Sequence[Recording]) -> list[list[str]]:
    """Microseconds for an event and for a step, and a step's share of 20 ms."""
    head = ["protocol", "workers", "events/step", "caller, µs/event", "caller, µs/step", "min–max", "longest", "share"]
    rows = [[*head, "caller's CPU", "all CPU, µs/step", "min–max", "share", "ledger, bytes/step"]]
    for protocol in dict.fromkeys(one.protocol for one in measured):
        repeats = [one for one in measured if one.protocol == protocol]
        rows.append(
            [
                protocol,
                str(repeats[0].workers),
                f"{repeats[0].events:.1f}",
                f"{median(one.caller / one.events for one in repeats) * 1e6:.1f}",
                *cells([one.caller for one in repeats], 1e6, "{:.0f}"),
                f"{max(one.caller_longest for one in repeats) * 1e6:.0f}",
                f"{median(one.caller for one in repeats) / STEP:.2%}",
                f"{median(one.caller_cpu for one in repeats) * 1e6:.0f}",
                *cells([one.cpu for one in repeats], 1e6, "{:.0f}"),
                f"{median(one.cpu for one in repeats) / STEP:.2%}",
                f"{median(one.ledger_bytes for one in repeats):.0f}",
            ]
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="rounds (default: 7; with --quick, 2)")
    parser.add_argument("--protocols", nargs="+", metavar="P", default=tuple(registry()), help="default: all")
    parser.add_argument("--quick", action="store_true", help="fewer steps, two rounds: to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    args = parser.parse_args()
    repeats, steps = args.repeats or (2 if args.quick else 7), QUICK_STEPS if args.quick else STEPS
    about = machine()
    recorded: list[Recording] = []
    for text in args.protocols:
        choice = choose(text, registry())
        print(choice, file=sys.stderr)
        recorded += [record(choice, repeat, steps) for repeat in range(repeats)]
    if args.json:
        content = {"machine": about, "step_seconds": STEP, "recording": [asdict(one) for one in recorded]}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{about['cores']} cores, Python {about['python']}; {repeats} rounds; medians over the rounds\n")
    print(f"Target: at most 2 % of a step of {STEP * 1e3:.0f} ms.\n")
    print_table(recording_table(recorded), args.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
