"""Sync-Switch's order of accuracies, from real runs: BSP, ASP, BSP then ASP, ASP then BSP.

    python benchmarks/papers/sync_switch.py --data mnist.npz --sweep          # which rates ASP stands
    python benchmarks/papers/sync_switch.py --data mnist.npz --markdown       # 50 runs, about 17 minutes
    python benchmarks/papers/sync_switch.py --data mnist.npz --quick          # one seed, four variants
    python benchmarks/papers/sync_switch.py --data mnist.npz --momentum       # momentum after the switch, three seeds

Each run is `paceline run -n 8` of `mnist_small.py`, which lies beside this file. BSP is `sync-switch:switch_at=1` and
ASP `sync-switch:switch_at=0`, so that BSP steps with 8 times the script's learning rate wherever it is used. The seed
is that of the initial parameters, of the shuffling and of the jitter. Seeds are the outer loop: whatever else the
machine does, it does to every variant. With `--results FILE` a run that is in the file is not made again.

Steps are padded to 20 ms, with a jitter of 10 %. A step by itself takes 1 to 2 ms: eight workers on two cores overlap
as they would on eight machines, and an update under ASP is about 7 versions old. The learning rate falls to a tenth
after two of the four epochs, and again after three; `--drops` says otherwise.

    accuracy     of the final parameters on the test images: mean and sample standard deviation over the seeds whose
                 runs did not diverge
    less BSP's   the accuracy less that of BSP with the same seed: the mean, and how many of the seeds are below BSP
    time / BSP   the wall time of training over BSP's with the same seed: the median, for the machine is shared
    staleness    the mean over all updates of a run, of BSP's parts too; the mean over the seeds
    diverged     runs that ended with a NaN or an infinity; a run that learnt nothing, but has numbers, counts as one
                 that did not diverge
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median, stdev

from claims import print_table

ROOT = Path(__file__).parent.parent.parent
SCRIPT = Path(__file__).with_name("mnist_small.py")
WORKERS = 8
SCENARIO = '[cluster]\ncompute = "20ms"\njitter = 0.1\n'
CODES = (0, 4)  # done, diverged: both are results

BSP, ASP = "sync-switch:switch_at=1", "sync-switch:switch_at=0"
REVERSED = "sync-switch:first=asp,then=bsp,switch_at="
VARIANTS = {
    BSP: ("BSP", ""),
    ASP: ("ASP", ""),
    **{
        f"sync-switch:switch_at={share}": ("BSP, then ASP", share)
        for share in ("0.0625", "0.125", "0.25", "0.5", "0.75")
    },
    **{f"{REVERSED}{share}": ("ASP, then BSP", share) for share in ("0.25", "0.5", "0.75")},
}
"""As it is written for `-p`: what the table says of it, and the share of the work that comes first."""
MOMENTA = {
    f"sync-switch:switch_at=0.5,momentum={policy}": (f"BSP, then ASP, momentum {policy}", "0.5")
    for policy in ("keep", "zero", "ramp")
}
"""The same for what `momentum` makes of the switch."""
TITLES = VARIANTS | MOMENTA
QUICK = (BSP, ASP, "sync-switch:switch_at=0.5", f"{REVERSED}0.5")
RATE = 0.0065
SWEEP = (0.001, 0.0025, 0.005, 0.0065, 0.008, 0.011)


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to."""

    protocol: str
    rate: float
    seed: int
    outcome: str
    accuracy: float | None
    """None if it diverged."""
    wall_seconds: float
    updates: int
    versions: int
    staleness: float | None
    pause_seconds: float
    """Of its switch."""
    drops: Sequence[int]
    """The epochs after which the learning rate falls, of four."""


def train(protocol: str, rate: float, seed: int, drops: Sequence[int], data: Path) -> Run:
    """One run. Ends the program, in the run's own words, if it neither completes nor diverges."""
    with tempfile.TemporaryDirectory(prefix="paceline-sync-switch-") as temporary:
        scenario, folder = Path(temporary) / "scenario.toml", Path(temporary) / "run"
        scenario.write_text(SCENARIO)
        command = [sys.executable, "-m", "paceline", "run", "-n", WORKERS, "-p", protocol, "--scenario", scenario]
        command += ["--seed", seed, "--threads", 1, "--record", 1, "--tee", "none", "--json", "--out", folder]
        command += [SCRIPT, "--data", data, "--lr", rate, "--seed", seed, "--drops", *drops]
        finished = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
        if finished.returncode not in CODES:
            sys.exit(f"{' '.join(map(str, command))}\n{finished.stderr}")
        summary = json.loads((folder / "summary.json").read_text())
    completed = summary["outcome"] == "completed"
    return Run(
        protocol=protocol,
        rate=rate,
        seed=seed,
        outcome=summary["outcome"],
        accuracy=summary["evaluations"][-1]["accuracy"] if completed else None,
        wall_seconds=summary["wall_seconds"],
        updates=summary["steps"],
        versions=summary["versions"],
        staleness=summary["staleness"]["mean"],
        pause_seconds=sum(switch["pause_seconds"] for switch in summary["switches"]),
        drops=drops,
    )


def table(runs: Sequence[Run], rates: Sequence[float], variants: Sequence[str]) -> list[list[str]]:
    """A row for each rate and variant of which there are runs."""
    head = ["learning rate", "variant", "switch at", "seeds", "accuracy", "± sd", "less BSP's", "seeds below"]
    rows = [[*head, "time / BSP", "staleness", "diverged"]]
    for rate in rates:
        for protocol in variants:
            those = [run for run in runs if (run.protocol, run.rate) == (protocol, rate)]
            if those:
                bsp = {run.seed: run for run in runs if (run.protocol, run.rate) == (BSP, rate)}
                rows.append([f"{rate:g}", *TITLES[protocol], str(len(those)), *_cells(those, bsp)])
    return rows


def _cells(runs: Sequence[Run], bsp: dict[int, Run]) -> list[str]:
    """All columns from the accuracy on; `bsp` by seed."""
    accuracies = [run.accuracy for run in runs if run.accuracy is not None]
    pairs = [(run, bsp[run.seed]) for run in runs if run.seed in bsp]
    gaps = [run.accuracy - other.accuracy for run, other in pairs if run.accuracy is not None and other.accuracy]
    times = [run.wall_seconds / other.wall_seconds for run, other in pairs if run.accuracy is not None]
    stale = [run.staleness for run in runs if run.staleness is not None]
    return [
        f"{mean(accuracies):.4f}" if accuracies else "",
        f"{stdev(accuracies):.4f}" if len(accuracies) > 1 else "",
        f"{round(mean(gaps), 4) + 0.0:+.4f}" if gaps and runs[0].protocol != BSP else "",
        f"{sum(gap < 0 for gap in gaps)} of {len(gaps)}" if gaps and runs[0].protocol != BSP else "",
        f"{median(times):.2f}" if times else "",
        f"{mean(stale):.2f}" if stale else "",
        f"{sum(run.outcome == 'diverged' for run in runs)}",
    ]


def read(path: Path | None) -> list[Run]:
    """The runs in that file; none if there is no such file."""
    return [Run(**one) for one in json.loads(path.read_text())] if path and path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="an .npz file, see examples/mnist.py")
    parser.add_argument("--seeds", type=int, metavar="N", help="default: 5; with --momentum 3, --sweep 2, --quick 1")
    parser.add_argument("--rates", type=float, nargs="+", metavar="R", help=f"learning rates of ASP (default: {RATE})")
    parser.add_argument("--drops", type=int, nargs="*", default=[2, 3], metavar="E", help="default: 2 3, of 4 epochs")
    parser.add_argument("--variants", nargs="+", choices=TITLES, metavar="P", help=f"of {' '.join(TITLES)}")
    parser.add_argument("--sweep", action="store_true", help="BSP and ASP at several rates")
    parser.add_argument("--momentum", action="store_true", help="BSP, and each value of `momentum` after a switch")
    parser.add_argument("--quick", action="store_true", help="a few variants, one seed: to see that it works")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep every run there as it comes, as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    args = parser.parse_args()
    seeds = args.seeds or (3 if args.momentum else 2 if args.sweep else 1 if args.quick else 5)
    rates = args.rates or (SWEEP if args.sweep else (RATE,))
    chosen = (BSP, *MOMENTA) if args.momentum else (BSP, ASP) if args.sweep else QUICK if args.quick else VARIANTS
    variants = args.variants or tuple(chosen)

    runs = read(args.results)
    made = {(run.protocol, run.rate, run.seed) for run in runs if run.drops == args.drops}
    began = time.monotonic()
    for seed in range(seeds):
        for rate in rates:
            for protocol in variants:
                if (protocol, rate, seed) in made:
                    continue
                run = train(protocol, rate, seed, args.drops, args.data.absolute())
                runs.append(run)
                what = run.outcome if run.accuracy is None else f"{run.accuracy:.4f}"
                print(f"seed {seed}, {rate:g}, {protocol}: {what} in {run.wall_seconds:.1f} s", file=sys.stderr)
                if args.results:
                    args.results.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    shown = [run for run in runs if run.seed < seeds and run.drops == args.drops]
    print_table(table(shown, rates, variants), args.markdown)


if __name__ == "__main__":
    main()
