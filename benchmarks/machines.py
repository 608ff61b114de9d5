"""What a decision costs: every registered protocol's machine at 10 to 10,000 workers.

    python benchmarks/machines.py --json machines.json --markdown
    python benchmarks/machines.py --quick

Machines: a world of workers, one in ten of them four times slower, is played once for each protocol and number of
workers, and what happened is kept. Then only the machine is timed: a fresh one is handed all these facts, in turn for
each number of workers. The start is part of it, so costs are amortized; every history is as long, whatever the number
of workers. Times are CPU time: a machine waits for nothing. Targets: 100,000 events/s; an event at 10,000 workers costs
at most twice what it does at 100.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from itertools import count, islice
from pathlib import Path
from statistics import median

from step import Failed, machine, print_table

from paceline.core.choice import Choice, choose
from paceline.core.facts import Fact, GradientReady, ParametersTaken, ReduceFinished, TrainingBegan, UpdateArrived
from paceline.core.orders import (
    AdjustTraining,
    ApplyUpdate,
    DropUpdate,
    Hold,
    LeaveOut,
    Order,
    Reduce,
    Release,
    StartPull,
    StartPush,
    StepReplica,
    SwitchProtocol,
)
from paceline.protocols import registry

FACTS, QUICK_FACTS = 300_000, 60_000  # in a history
COMPUTE, PULL, PUSH, AVERAGE = 0.020, 0.001, 0.001, 0.001  # seconds of the world, the first more or less by a quarter
NODE = 4  # workers on one
SLOW_SHARE, SLOW_FACTOR = 0.1, 4.0
SAMPLES = 32  # in a step


@dataclass(frozen=True, slots=True)
class Handling:
    """One replay of a history into a fresh machine. Times in seconds of CPU time."""

    protocol: str
    workers: int
    repeat: int
    facts: int
    seconds: float

    @property
    def each(self) -> float:
        """Seconds for one fact."""
        return self.seconds / self.facts


def play(choice: Choice, workers: int) -> Iterator[tuple[Fact, tuple[Order, ...]]]:
    """What happens to a fresh machine in a world of so many workers, without end: each fact, with the orders it caused.

    Raises Failed where nothing can happen any more, or an order is none that this world knows.
    """
    handle = choice.machine().handle
    chance = random.Random(workers)
    slowness = [SLOW_FACTOR if chance.random() < SLOW_SHARE else 1.0 for _ in range(workers)]
    numbers = count()
    coming: list[tuple[float, int, Fact]] = []

    def after(order: Order, now: float) -> tuple[Fact, ...]:
        match order:
            case Release(worker=worker, step=step, version=version, parameters=parameters):
                taken = now + PULL if parameters == "pull" else now
                ready = taken + COMPUTE * slowness[worker] * chance.uniform(0.75, 1.25)
                gradient = GradientReady(worker=worker, step=step, version=version, samples=SAMPLES, at=ready)
                if parameters != "pull":
                    return (gradient,)
                return (ParametersTaken(worker=worker, version=version, at=taken), gradient)
            case StartPull(worker=worker, version=version):
                return (ParametersTaken(worker=worker, version=version, at=now + PULL),)
            case StartPush(worker=worker, step=step):
                return (UpdateArrived(worker=worker, step=step, at=now + PUSH),)
            case Reduce(group=group):
                return (ReduceFinished(group=group, at=now + AVERAGE),)
            case (
                Hold() | ApplyUpdate() | DropUpdate() | LeaveOut() | AdjustTraining() | SwitchProtocol() | StepReplica()
            ):
                return ()
        raise Failed(f"this benchmark does not know what follows from {type(order).__name__}")

    members = tuple((worker, f"node-{worker // NODE}", 0) for worker in range(workers))
    work = workers * SAMPLES * 200  # a protocol that switches does so after a few steps of each
    heappush(coming, (0.0, next(numbers), TrainingBegan(members=members, version=0, at=0.0, work=work)))
    while coming:
        now, _, fact = heappop(coming)
        orders = handle(fact)
        yield fact, orders
        for order in orders:
            for following in after(order, now):
                heappush(coming, (following.at, next(numbers), following))
    raise Failed("all workers wait, and nothing can happen")


def replay(choice: Choice, facts: Sequence[Fact]) -> float:
    """Seconds of CPU time that a fresh machine takes for these facts."""
    handle = choice.machine().handle
    gc.collect()
    gc.freeze()  # a run keeps no facts: the collector is not to go through them again and again
    began = time.thread_time()
    for fact in facts:
        handle(fact)
    seconds = time.thread_time() - began
    gc.unfreeze()
    return seconds


def handlings(choice: Choice, companies: Sequence[int], facts: int, repeats: int) -> Iterator[Handling]:
    """Each number of workers once in every round."""
    histories = {workers: [fact for fact, _ in islice(play(choice, workers), facts)] for workers in companies}
    for repeat in range(repeats):
        for workers, history in histories.items():
            yield Handling(str(choice), workers, repeat, len(history), replay(choice, history))


def handling_table(measured: Sequence[Handling], companies: Sequence[int]) -> list[list[str]]:
    """Events per second, and what an event costs against the same protocol's at 100 workers in the same round."""
    rows = [["protocol", "workers", "facts", "events/s", "min–max", "µs/event", "cost × 100's", "min–max"]]
    for protocol in dict.fromkeys(one.protocol for one in measured):
        each = {(one.workers, one.repeat): one.each for one in measured if one.protocol == protocol}
        facts = next(one.facts for one in measured if one.protocol == protocol)
        for workers in companies:
            repeats = [repeat for company, repeat in each if company == workers]
            costs = [each[workers, repeat] for repeat in repeats]
            against = [each[workers, repeat] / each[100, repeat] for repeat in repeats if (100, repeat) in each]
            rows.append(
                [
                    protocol,
                    str(workers),
                    str(facts),
                    f"{1 / median(costs):,.0f}",
                    f"{1 / max(costs):,.0f}–{1 / min(costs):,.0f}",
                    f"{median(costs) * 1e6:.2f}",
                    *cells(against, 1.0, "{:.2f}"),
                ]
            )
    return rows


def cells(values: Sequence[float], scale: float, form: str) -> tuple[str, str]:
    """The median, and the spread."""
    if not values:
        return "", ""
    low, middle, high = (form.format(value * scale) for value in (min(values), median(values), max(values)))
    return middle, f"{low}–{high}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="rounds (default: 7; with --quick, 2)")
    parser.add_argument("--protocols", nargs="+", metavar="P", default=tuple(registry()), help="default: all")
    parser.add_argument("--workers", nargs="+", type=int, metavar="N", default=(10, 100, 1000, 10_000))
    parser.add_argument("--quick", action="store_true", help="short histories, two rounds: to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()
    repeats = args.repeats or (2 if args.quick else 7)
    facts = QUICK_FACTS if args.quick else FACTS

    about = machine()
    handled: list[Handling] = []
    failures: list[str] = []
    began = time.monotonic()
    for text in args.protocols:
        choice = choose(text, registry())
        try:
            print(choice, file=sys.stderr)
            handled += handlings(choice, args.workers, facts, repeats)
        except Failed as failure:
            failures.append(f"{choice}: {failure}")
            print(failures[-1], file=sys.stderr)
    if args.json:
        content = {
            "machine": about,
            "quick": args.quick,
            "handling": [asdict(one) for one in handled],
            "failures": failures,
        }
        args.json.write_text(json.dumps(content, indent=1) + "\n")

    print(
        f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}; "
        f"{repeats} rounds in {time.monotonic() - began:.0f} s; medians over the rounds\n"
    )
    print("Machines (targets: 100,000 events/s; cost at 10,000 workers at most 2 × that at 100):\n")
    print_table(handling_table(handled, args.workers), args.markdown)
    if failures:
        print(f"\n{len(failures)} protocols failed", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
