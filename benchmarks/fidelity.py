"""How well the simulator predicts real runs: from their own ledger, from another protocol's, from the scenario alone.

    python benchmarks/fidelity.py --markdown
    python benchmarks/fidelity.py --quick --protocols bsp asp

Cases, each of runs of `paceline run` that take turns in every round, a different one first in each:

    padded    eight workers, steps of 60 ms with a jitter of 10 %, one worker twice as slow
    link      the same, and a push or a pull takes 5 ms alone on the store's link
    hosts     eight workers on three emulated hosts, steps of 120 ms, one host half as fast, links of 25 to 100 MB/s
    unpadded  two workers, steps of about a millisecond: what is measured is mostly messages

Each run is then made again in virtual time, with what its own ledger says (*own run*), with what the runs of bsp and of
asp in that round say (*bsp's run*, *asp's run*), and with the scenario alone, where nothing but steps and transfers
takes any time (*scenario*; unpadded, it does not say how long a step takes). Runs on several hosts are predicted from
the scenario alone. All make as many steps. *off* is the
predicted steps/s over those measured, less 1, the median over the rounds; a run's start counts in both. *spread* is by
how much the rounds' measured steps/s differ, the greatest over the least: no prediction of a single run is better than
that. Waiting is the share of all workers' time. Below the table stands how many protocols are within the case's bound.

    --keep FOLDER    keep the runs there, or predict those that are there already
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from step import Failed, machine, print_table

from paceline.core.choice import choose
from paceline.protocols import registry
from paceline.scenario.scenario_file import load
from paceline.sim.calibration import CalibratedRun, read
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit

WORKLOAD = Path(__file__).parent / "workloads" / "small.py"
BATCH = 16
LONGEST = 120.0  # seconds for a run

PADDED = """
[cluster]
compute = "60ms"
jitter = 0.1
[[worker]]
index = 7
speed = 0.5
"""
LINK = """
[network]
bandwidth = "200MB/s"
message = "1MB"
"""
HOSTS = """
[cluster]
compute = "120ms"
jitter = 0.1
[network]
message = "1MB"
[[host]]
workers = 2
bandwidth = "100MB/s"
latency = "1ms"
[[host]]
workers = 3
bandwidth = "50MB/s"
[[host]]
workers = 3
speed = 0.5
bandwidth = "25MB/s"
latency = "1ms"
"""
PROTOCOLS = (
    *("bsp", "asp", "ssp:bound=3", "dssp", "hsp:idle=none", "ps-plus", "sync-switch:switch_at=0.5"),
    *("all-reduce", "ad-psgd", "ripples"),
)
STANDARDS = ("bsp", "asp")
"""Whose runs the others are predicted from."""
PREDICTIONS = ("own run", *(f"{standard}'s run" for standard in STANDARDS), "scenario")


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, and how much is done on it."""

    scenario: str
    workers: int
    steps: int
    """Of all workers together."""
    bound: float
    """How far off a prediction from another protocol's run may be."""
    protocols: tuple[str, ...] = PROTOCOLS


CASES = {
    "padded": Case(PADDED, 8, 400, 0.05),
    "link": Case(PADDED + LINK, 8, 400, 0.05, PROTOCOLS[:7]),
    "hosts": Case(HOSTS, 8, 400, 0.05, PROTOCOLS[:7]),
    "unpadded": Case("", 2, 6000, 0.1),
}


@dataclass(frozen=True, slots=True)
class Speed:
    """What a run came to, real or not."""

    steps_per_second: float
    waiting: float
    """Share of all workers' time."""

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> Speed:
        """As the summary has it."""
        rows, parts = summary["per_worker"], ("compute", "wait", "transfer", "other")
        total = sum(row[f"{part}_seconds"] for row in rows for part in parts)
        return cls(summary["steps_per_second"], sum(row["wait_seconds"] for row in rows) / total)


@dataclass(frozen=True, slots=True)
class Compared:
    """A run, and what was predicted of it."""

    measured: Speed
    predicted: tuple[Speed | None, ...]
    """In the order of `PREDICTIONS`; None where the scenario doesn't say how long steps take, for a run's own, and from
    a run whose hosts have links."""


def measure(case: Case, protocol: str, seed: int, folder: Path) -> tuple[Speed, CalibratedRun | None]:
    """A real run, and what its ledger says; None if its hosts have links. One that is there is not made again."""
    kept = folder / protocol
    if not (kept / "summary.json").exists():
        print(f"seed {seed}: {protocol}, {case.workers} workers", file=sys.stderr)
        make(case, protocol, seed, folder)
    linked = load(folder / "scenario.toml").links_hosts
    return Speed.of(json.loads((kept / "summary.json").read_text())), None if linked else read(kept, registry())


def make(case: Case, protocol: str, seed: int, folder: Path) -> None:
    """The real run, in the folder's folder of that name."""
    scenario = folder / "scenario.toml"
    scenario.write_text(case.scenario)
    flags = ["-p", protocol, "--scenario", str(scenario), "--seed", str(seed)]
    flags += [] if load(scenario).host_tables else ["-n", str(case.workers)]
    flags += ["--shards-on", "head"] if load(scenario).links_hosts else []  # as the simulator has it
    flags += ["--threads", "1", "--record", "0", "--tee", "none", "--out", str(folder / protocol)]
    command = [sys.executable, "-m", "paceline", "run", *flags, str(WORKLOAD), "--samples", str(case.steps * BATCH)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    if done.returncode:
        raise Failed(f"{protocol}: exit code {done.returncode}\n{done.stderr}")


def predicted(run: CalibratedRun | None, protocol: str) -> Speed | None:
    """Of that protocol in the run's place."""
    return None if run is None else Speed.of(simulate(run.simulation(choose(protocol, registry()))))


def from_scenario(case: Case, protocol: str, seed: int, folder: Path) -> Speed | None:
    """Of that protocol, with nothing measured."""
    scenario = load(folder / "scenario.toml")
    if scenario.compute is None:
        return None
    simulation = Simulation(
        choice=choose(protocol, registry()),
        scenario=scenario,
        workers=case.workers,
        limit=Limit(),
        seed=seed,
        batch=BATCH,
        data=case.steps,
    )
    return Speed.of(simulate(simulation))


def compare(case: Case, protocols: Sequence[str], seed: int, folder: Path) -> dict[str, Compared]:
    """A round of a case, by protocol; its runs are kept in that folder."""
    every = list(dict.fromkeys((*STANDARDS, *protocols)))
    first = seed % len(every)
    ended = {protocol: measure(case, protocol, seed, folder) for protocol in (*every[first:], *every[:first])}
    compared = {}
    for protocol in protocols:
        measured, run = ended[protocol]
        others = [predicted(ended[one][1], protocol) if one != protocol else None for one in STANDARDS]
        scenario = from_scenario(case, protocol, seed, folder)
        compared[protocol] = Compared(measured, (predicted(run, protocol), *others, scenario))
    return compared


def table(compared: Mapping[tuple[str, str], Sequence[Compared]]) -> list[list[str]]:
    """A row for each case and protocol."""
    rows = [
        [
            *("case", "protocol", "", "steps/s", "spread"),
            *(f"{column}, off" for column in PREDICTIONS),
            *("waiting", *PREDICTIONS),
        ]
    ]
    for (name, protocol), rounds in compared.items():
        real = [one.measured for one in rounds]
        rates = [speed.steps_per_second for speed in real]
        found = list(zip(*(one.predicted for one in rounds), strict=True))
        rows.append(
            [
                *(name, protocol, "", f"{median(rates):.1f}", f"{max(rates) / min(rates) - 1:.0%}"),
                *(_percent(_off(real, speeds)) for speeds in found),
                f"{median(speed.waiting for speed in real):.1%}",
                *(_waiting(speeds) for speeds in found),
            ]
        )
    return rows


def within(compared: Mapping[tuple[str, str], Sequence[Compared]]) -> list[str]:
    """A sentence for each case: how many protocols are predicted within its bound, from whose run."""
    lines = []
    for name, case in CASES.items():
        parts = []
        for column, prediction in enumerate(PREDICTIONS):
            if prediction == "scenario" and name != "hosts":  # which leaves out what was measured in the others
                continue
            offs = [
                _off([one.measured for one in rounds], [one.predicted[column] for one in rounds])
                for (of, _), rounds in compared.items()
                if of == name
            ]
            there = [abs(off) for off in offs if off is not None]
            if there:
                reached = sum(off <= case.bound for off in there)
                parts.append(f"from {prediction} {reached} of {len(there)}, the worst {max(there):.1%} off")
        if parts:
            lines.append(f"{name}, within {case.bound:.0%}: {'; '.join(parts)}")
    return lines


def _off(real: Sequence[Speed], speeds: Sequence[Speed | None]) -> float | None:
    ratios = [
        speed.steps_per_second / measured.steps_per_second
        for measured, speed in zip(real, speeds, strict=True)
        if speed is not None
    ]
    return median(ratios) - 1 if ratios else None


def _percent(off: float | None) -> str:
    return "" if off is None else f"{off:+.1%}"


def _waiting(speeds: Sequence[Speed | None]) -> str:
    there = [speed.waiting for speed in speeds if speed is not None]
    return f"{median(there):.1%}" if there else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--protocols", nargs="+", default=list(PROTOCOLS), metavar="P", help="as -p takes them")
    parser.add_argument("--repeats", type=int, help="rounds (default: 5; with --quick, 1)")
    parser.add_argument("--quick", action="store_true", help="one round: to see that it works")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the runs there, or use those that are there")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    args = parser.parse_args()
    about, began = machine(), time.monotonic()
    repeats = args.repeats or (1 if args.quick else 5)
    compared: dict[tuple[str, str], list[Compared]] = {}
    with tempfile.TemporaryDirectory(prefix="paceline-fidelity-") as temporary:
        for seed in range(repeats):
            for name in args.cases:
                case, folder = CASES[name], (args.keep or Path(temporary)) / f"{name}-{seed}"
                folder.mkdir(parents=True, exist_ok=True)
                protocols = [one for one in args.protocols if one in case.protocols or one not in PROTOCOLS]
                for protocol, one in compare(case, protocols, seed, folder).items():
                    compared.setdefault((name, protocol), []).append(one)
    print(
        f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}; "
        f"{repeats} rounds in {time.monotonic() - began:.0f} s; medians over the rounds\n"
    )
    print_table(table(compared), args.markdown)
    print("", *within(compared), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
