"""What a simulation costs: CPU time for a step, and memory, at 10 to 10,000 workers.

    python benchmarks/simulator.py --json simulator.json --markdown     # the goal: 1,000 workers x 1,000 steps
    python benchmarks/simulator.py --quick

Each simulation is a process of its own, on one core, without a ledger: workers whose steps take 400 ms, 5 % more or
less, one in ten of them four times slower, once without a network and once on a shared link that eight servers' worth
of transfers would fill. CPU time is that of the simulation alone; memory is the process's peak, and what it had before.
Goals: a million steps of 1,000 workers under `ssp` in 60 s; 10,000 workers run; memory in proportion to the workers.
CPU time is not wall time, but what else runs on the machine still shows in it, by a factor of two on shared cores.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.core.choice import choose
from paceline.protocols import registry
from paceline.scenario.scenario import Network, Scenario
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit

SIZES = ((10, 2000), (100, 200), (1000, 1000), (10_000, 20))
QUICK_SIZES = ((10, 200), (100, 20), (1000, 5), (10_000, 2))
"""(workers, steps of each, on average)"""

MESSAGE = 2_500_000  # bytes of a push or a pull
SHARE = 125e6 / 8  # bytes a second of the server's link, for each worker


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one simulation."""

    protocol: str
    workers: int
    steps: int
    network: bool
    repeat: int
    cpu_seconds: float
    virtual_seconds: float
    mib_before: float
    mib: float
    """The process's peak."""


def measure(protocol: str, workers: int, steps: int, network: bool, repeat: int) -> Cost:
    """In this process, which must be a fresh one for the memory to mean anything."""
    scenario = Scenario(
        compute=0.4,
        jitter=0.05,
        network=Network(bandwidth=SHARE * workers, latency=50e-6, message=MESSAGE, incast=0.8) if network else None,
        speeds={worker: 0.25 for worker in range(workers) if worker % 10 == 3},
    )
    choice = choose(protocol, registry())
    one = Simulation(choice=choice, scenario=scenario, workers=workers, limit=Limit(steps=workers * steps))
    before = peak()
    began = time.process_time()
    summary = simulate(one)
    seconds = time.process_time() - began
    return Cost(
        str(choice), workers, summary["steps"], network, repeat, seconds, summary["wall_seconds"], before, peak()
    )


def peak() -> float:
    """The most memory that this process ever had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def apart(*arguments: object) -> Cost:
    """Measured in a process of its own."""
    given = [sys.executable, __file__, "--one", json.dumps(arguments)]
    return Cost(**json.loads(subprocess.run(given, stdout=subprocess.PIPE, check=True).stdout))


def rows_of(costs: list[Cost]) -> list[list[str]]:
    """The least CPU time of the repeats: whatever else ran can only add to it."""
    rows = [
        ["protocol", "network", "workers", "steps", "virtual s", "CPU s", "µs a step", "peak MiB", "of it kB a worker"]
    ]
    for key in dict.fromkeys((one.protocol, one.network, one.workers) for one in costs):
        same = [one for one in costs if (one.protocol, one.network, one.workers) == key]
        best = min(same, key=lambda one: one.cpu_seconds)
        grown = (best.mib - best.mib_before) * 1024 / best.workers
        rows.append(
            [
                best.protocol,
                "shared link" if best.network else "none",
                f"{best.workers:,}",
                f"{best.steps:,}",
                f"{best.virtual_seconds:.4g}",
                f"{best.cpu_seconds:.3g}",
                f"{best.cpu_seconds / best.steps * 1e6:.3g}",
                f"{best.mib:.3g}",
                f"{grown:.2g}",
            ]
        )
    return rows


def main() -> None:
    """Every simulation in turn, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocols", nargs="+", metavar="P", default=("ssp",), help="default: ssp")
    parser.add_argument("--repeats", type=int, default=1, help="the least CPU time of so many is shown (default: 1)")
    parser.add_argument("--quick", action="store_true", help="few steps: to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(asdict(measure(*json.loads(args.one)))))
        return
    costs = []
    for protocol in args.protocols:
        for network in (False, True):
            for workers, steps in QUICK_SIZES if args.quick else SIZES:
                print(f"{protocol}: {workers} workers, {'a' if network else 'no'} network", file=sys.stderr)
                costs += [apart(protocol, workers, steps, network, repeat) for repeat in range(args.repeats)]
    from step import machine, print_table  # with torch: a process counts the memory that its parent had as its own

    about = machine()
    if args.json:
        content = {"machine": about, "costs": [asdict(one) for one in costs]}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}; least of {args.repeats}\n")
    print_table(rows_of(costs), args.markdown)


if __name__ == "__main__":
    main()
