"""Ripples beside All-Reduce, a parameter server and AD-PSGD, from real runs: none slow, one twice, one five times.

    python benchmarks/papers/ripples.py --markdown       # three rounds, about 14 minutes
    python benchmarks/papers/ripples.py --quick          # one round, four protocols

Each run is `paceline run` of `teacher_small.py`, which lies beside this file: 8 workers on 2 emulated nodes, the last
of them slow if one is. Steps are padded to 40 ms, with a jitter of 5 %; a step by itself takes 1 to 2 ms, so eight
workers on two cores overlap as on eight machines. Averages go through shared memory and cost next to nothing. Every run
does the same number of steps, with the same learning rate; whoever is free takes the next batch. A round is every
protocol in every scenario once, with a seed of its own: of the data, the initial parameters, the jitter and the groups.

    steps/s      of all workers together: median, least and most over the rounds
    × all-reduce that, over All-Reduce's of the same round: the median
    waiting      the share of all workers' time
    conflicts    for each request: groups that had to be queued, as a member was in an unfinished one, over the steps
                 after which a worker asked (ripples), exchanges that had to wait for a turn, over exchanges (ad-psgd)
    across       the share of groups that have members on both nodes
    s to loss    until the mean of all replicas, recorded 48 times in a run, is at the target or below
    steps to it  of all workers together
    distance     of the replicas from their mean, root mean square, when the target was reached

A second table has Ripples' ratios beside those of its abstract.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from claims import print_table

from paceline.records.ledger import connect

ROOT = Path(__file__).parent.parent.parent
SCRIPT = Path(__file__).with_name("teacher_small.py")
SCENARIO = '[cluster]\nworkers = 8\nnodes = 2\ncompute = "40ms"\njitter = 0.05\n'
SLOW = {"none": "", "2×": "[[worker]]\nindex = 7\nspeed = 0.5\n", "5×": "[[worker]]\nindex = 7\nspeed = 0.2\n"}
TARGET = "loss<=0.65"
STEPS, BATCH, RECORDED = 640, 16, 48

OURS = "ripples"
PROTOCOLS = {
    "all-reduce": "all-reduce",
    "bsp": "bsp (parameter server)",
    "ad-psgd": "ad-psgd, ring",
    "ad-psgd:topology=bipartite-complete": "ad-psgd, complete",
    "ripples:schedule=static": "ripples, static",
    "ripples:schedule=random": "ripples, random",
    "ripples:threshold=none": "ripples, smart, no filter",
    OURS: "ripples, smart",
    "ripples:threshold=1": "ripples, smart, threshold 1",
}
"""As it is written for `-p`, and as the table calls it."""
QUICK = ("all-reduce", "bsp", "ad-psgd", OURS)
CLAIMS = (
    ("none", "all-reduce", 1.1),
    ("none", "bsp", 5.1),
    ("none", "ad-psgd", 4.3),
    ("2×", "all-reduce", 2.0),
    ("5×", "all-reduce", 2.0),
    ("2×", "bsp", 3.0),
    ("5×", "bsp", 3.0),
)
"""Of the abstract of arXiv 1909.08029v1, which does not say how slow the slow worker is: in both scenarios."""

GROUPS = """
    SELECT count(*), sum(json_extract(why, '$[0]') IN ('drawn-queued', 'in-turn')),
        sum(json_extract(body, '$.members[0]') < 4 AND json_extract(body, '$.members[#-1]') >= 4)
    FROM orders WHERE kind = 'Reduce'
"""
"""All of them, those that were queued for a conflict, those with workers of both nodes: 0 to 3, 4 to 7."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to."""

    slow: str
    protocol: str
    seed: int
    steps_per_second: float
    waiting: float
    """Share of all workers' time."""
    conflicts: float | None
    """For each request; None where nobody asks for groups."""
    across: float | None
    """Share of groups with members on both nodes; None where there are no groups."""
    seconds: float | None
    """Until the target; None if it was not reached."""
    steps: float | None
    """Until the target, of all workers together."""
    distance: float | None
    """Of the replicas from their mean at the target."""


def train(slow: str, protocol: str, seed: int) -> Run:
    """One run. Ends the program, in the run's own words, if it does not complete."""
    with tempfile.TemporaryDirectory(prefix="paceline-ripples-") as temporary:
        scenario, folder = Path(temporary) / "scenario.toml", Path(temporary) / "run"
        scenario.write_text(SCENARIO + SLOW[slow])
        command = [sys.executable, "-m", "paceline", "run", "-p", protocol, "--scenario", scenario, "--seed", seed]
        command += ["--threads", 1, "--record", RECORDED, "--target", TARGET, "--tee", "none", "--json"]
        command += ["--out", folder, SCRIPT, "--steps", STEPS, "--seed", seed]
        finished = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
        if finished.returncode:
            sys.exit(f"{' '.join(map(str, command))}\n{finished.stderr}")
        summary = json.loads((folder / "summary.json").read_text())
        with connect(folder / "ledger.sqlite") as ledger:
            (began,) = ledger.execute("SELECT at FROM facts WHERE kind = 'TrainingBegan'").fetchone()
            groups, queued, across = ledger.execute(GROUPS).fetchone()
    parts = {
        name: sum(row[f"{name}_seconds"] for row in summary["per_worker"])
        for name in ("compute", "wait", "transfer", "other")
    }
    reached = summary["targets"][TARGET]
    at = reached and reached["at_seconds"]
    asked = {"ad-psgd": groups, "ripples": summary["steps"]}.get(protocol.partition(":")[0])
    return Run(
        slow=slow,
        protocol=protocol,
        seed=seed,
        steps_per_second=summary["steps_per_second"],
        waiting=parts["wait"] / sum(parts.values()),
        conflicts=queued / asked if asked else None,
        across=across / groups if groups else None,
        seconds=at - began if reached else None,
        steps=reached["samples"] / BATCH if reached else None,
        distance=next((one["distance"] for one in summary["consensus"] if one["at_seconds"] == at), None),
    )


def table(runs: Sequence[Run]) -> list[list[str]]:
    """A row for each scenario and protocol of which there are runs."""
    head = ["slow", "protocol", "steps/s", "min–max", "× all-reduce", "waiting", "conflicts", "across"]
    rows = [[*head, "s to loss", "min–max", "steps to it", "distance"]]
    for slow in SLOW:
        for protocol, title in PROTOCOLS.items():
            those = [run for run in runs if (run.slow, run.protocol) == (slow, protocol)]
            if those:
                cells = [
                    *_spread([run.steps_per_second for run in those], ".0f"),
                    _middle(ratios(runs, slow, protocol, "all-reduce", speed), ".2f"),
                    f"{median(run.waiting for run in those):.0%}",
                    _middle([run.conflicts for run in those], ".2f"),
                    _middle([run.across for run in those], ".2f"),
                    *_spread([run.seconds for run in those], ".2f"),
                    _middle([run.steps for run in those], ".0f"),
                    _middle([run.distance for run in those], ".2f"),
                ]
                rows.append([slow, title, *cells])
    return rows


def yardsticks(runs: Sequence[Run]) -> list[list[str]]:
    """What the abstract claims, and Ripples' ratios, for each claim whose protocols have run."""
    rows = [["slow", "Ripples over", "abstract", "steps/s", "min–max", "1 / s to loss", "min–max"]]
    for slow, other, claimed in CLAIMS:
        speeds = ratios(runs, slow, OURS, other, speed)
        times = ratios(runs, slow, OURS, other, lambda run: 1 / run.seconds if run.seconds else None)
        if speeds:
            cells = [*_spread(speeds, ".2f"), *_spread(times, ".2f")]
            rows.append([slow, PROTOCOLS[other], f"{claimed:.1f}", *cells])
    return rows


def speed(run: Run) -> float | None:
    return run.steps_per_second


def ratios(
    runs: Sequence[Run], slow: str, protocol: str, other: str, value: Callable[[Run], float | None]
) -> list[float]:
    """The value of the one over the value of the other, for each round that has both."""
    ours, theirs = (
        {run.seed: value(run) for run in runs if (run.slow, run.protocol) == (slow, which)}
        for which in (protocol, other)
    )
    pairs = [(one, theirs.get(seed)) for seed, one in ours.items()]
    return [one / another for one, another in pairs if one is not None and another]


def _spread(values: Sequence[float | None], how: str) -> tuple[str, str]:
    here = [value for value in values if value is not None]
    return _middle(here, how), f"{min(here):{how}}–{max(here):{how}}" if here else ""


def _middle(values: Sequence[float | None], how: str) -> str:
    here = [value for value in values if value is not None]
    return f"{median(here):{how}}" if here else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, metavar="N", help="default: 3; with --quick 1")
    parser.add_argument("--slow", nargs="+", choices=SLOW, default=list(SLOW), metavar="S", help=f"of {' '.join(SLOW)}")
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, metavar="P", help=f"of {' '.join(PROTOCOLS)}")
    parser.add_argument("--quick", action="store_true", help="four protocols, one round: to see that it works")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep every run there as it comes, as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()
    rounds = args.rounds or (1 if args.quick else 3)
    protocols = args.protocols or (QUICK if args.quick else tuple(PROTOCOLS))

    runs: list[Run] = []
    began = time.monotonic()
    for seed in range(rounds):
        for slow in args.slow:
            for protocol in protocols:
                run = train(slow, protocol, seed)
                runs.append(run)
                print(f"round {seed}, slow {slow}, {protocol}: {run.steps_per_second:.0f} steps/s", file=sys.stderr)
                if args.results:
                    args.results.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    for rows in (table(runs), yardsticks(runs)):
        print_table(rows, args.markdown)
        print()


if __name__ == "__main__":
    main()
