"""What is claimed of accuracy and iterations, with real gradients in virtual time: PS+, HSP and DSSP.

    python benchmarks/papers/learning.py --data mnist.npz --markdown
    python benchmarks/papers/learning.py --rates 0.05 --seeds 1           # a quick look

Every number comes from `paceline simulate --gradients`: real gradients of a small MLP, on exactly the version that the
virtual run prescribes; only the clock is virtual, so the same command prints the same numbers. The data is a part of
MNIST, for `mnist_small.py` beside this file, if there is such a file (`--data`, else the environment's MNIST, else
`../shared/data/mnist.npz` beside the repository), and else scikit-learn's digits, for `examples/digits.py`. The tables
say which.

Batches of 16 for each worker, SGD. An *iteration* is an update of every worker: as many samples as one round of BSP
takes. A learning rate is what an iteration steps with in all: a protocol whose updates count in full (ASP, SSP, DSSP)
has it divided by the number of workers in its script; one that takes means or shares (BSP, HSP, PS+) not. Each protocol
has the rate, of a grid that grows while the best is at its edge, at most twice, that is first at the target in virtual
time with seed 0; all seeds, 0 too, are then run at it. DSSP's pairs all have one rate. The target is met at a recorded
version if the mean of its accuracy and of those of the two before is there: a single one is noisy.

    none slow   8 workers, a step takes 1 s ± 6 %; all pushes, and all pulls, together take 1 s on the server's link,
                each way; the server takes 10 ms to make a version. That is where `ps_plus.py` finds most (r = 2), and
                n·tx / C = 1 in `hsp.py`. With momentum 0.9, as in the demo of PS+'s authors; also without: plain SGD
    one 3×      the same, one worker three times as slow, with momentum
    own links   none slow, with momentum, but every worker has a link of its own, on which a push takes 1 s, and a pull,
                whatever the others do: where PS+ saves most over ASP in `ps_plus.py`
    fast link   none slow, with momentum, transfers take a twentieth of that: there is hardly anything to hide
    incast      none slow, transfers take twice as long, and more than one push at once has 0.6 of the link's goodput:
                where `hsp.py` finds most. At the rates of *none slow*, plain SGD
    bursts      2 workers, 1 s ± 2 %, transfers cost nothing; each is three times slower for 6 of every 40 steps, half a
                period after the other one. Plain SGD
    1:2         2 workers, 1 s ± 2 %, one half as fast. Plain SGD
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import numpy as np
from claims import Claim, print_claims, print_table

ROOT = Path(__file__).parent.parent.parent
BESIDE = ROOT.parent / "shared" / "data" / "mnist.npz"
BATCH = 16
STEPS = 640
"""Of all workers together."""
RECORDED = {8: 40, 2: 80}
"""By the number of workers: so many versions, evenly spread."""
MOMENTUM = 0.9
RATES = (0.0125, 0.025, 0.05)
"""With momentum."""
PLAIN_RATES = (0.1, 0.2, 0.4)
PAIR_RATES = (0.1,)
EXTENDED = 2
"""So often a grid grows by a rate, if its best is at an edge."""
CODES = (0, 4)  # done, diverged: both are results

PS_PLUS, AFTER_PUSH, PLAIN = "ps-plus", "ps-plus:pull=after-push", "ps-plus:modulation=off"
GUARDED, ALWAYS = "hsp", "hsp:idle=always"
DSSP, LITERAL = "dssp", "dssp:counting=literal,cap=false"
TITLES = {
    "bsp": "BSP",
    "asp": "ASP",
    "ssp:bound=3": "SSP 3",
    "ssp:bound=15": "SSP 15",
    PS_PLUS: "PS+",
    AFTER_PUSH: "PS+, pull after push",
    PLAIN: "PS+, no modulation",
    GUARDED: "HSP guarded",
    ALWAYS: "HSP always",
    DSSP: "DSSP 3..15",
    LITERAL: "DSSP 3..15, literal, no cap",
}
"""As it is written for `-p`, and as the tables call it."""
WHOLE = ("asp", "ssp", "dssp")
"""Protocols whose updates count in full."""
SCHEMES = ("bsp", "asp", "ssp:bound=3")
"""With what PS+ is compared."""
PULLS = (PS_PLUS, AFTER_PUSH)
OWNED = (*SCHEMES, *PULLS)
STALE = ("asp", "ssp:bound=3", "ssp:bound=15", DSSP, LITERAL)
"""What two workers run."""

LINK = """
[network]
message = "1MB"
bandwidth = "8MB/s"
commit = "10ms"
"""
EIGHT = '[cluster]\nworkers = 8\ncompute = "1s"\njitter = 0.06\n' + LINK
TWO = '[cluster]\nworkers = 2\ncompute = "1s"\njitter = 0.02\n'
PERIOD, LENGTH = 40, 6
BURSTS = "".join(
    f"\n[[event]]\nworker = {worker}\nat_step = {step}\nfor_steps = {LENGTH}\nslow = 3.0\n"
    for worker in range(2)
    for step in range(PERIOD // 2 * (1 - worker), STEPS, PERIOD)
)


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, and who is tried there."""

    workers: int
    cluster: str
    """As a scenario file."""
    protocols: tuple[str, ...]
    rates: tuple[float, ...]
    """Of an iteration: where the grid begins."""
    momentum: float = 0.0
    like: str | None = None
    """The case whose best rates it takes instead."""


EQUAL, SLOW, PLAIN_EQUAL, INCAST = "none slow", "one 3×", "none slow, plain SGD", "incast, plain SGD"
OWN, FAST = "own links", "fast link"
BURSTY, PAIR = "bursts, plain SGD", "1:2, plain SGD"
HSP = ("bsp", GUARDED, ALWAYS)
SLOWER = "\n[[worker]]\nindex = {}\nspeed = {}\n"
CASES = {
    EQUAL: Case(8, EIGHT, (*SCHEMES, *PULLS, PLAIN, GUARDED, ALWAYS), RATES, MOMENTUM),
    SLOW: Case(8, EIGHT + SLOWER.format(7, 1 / 3), (*SCHEMES, *PULLS, PLAIN), RATES, MOMENTUM),
    OWN: Case(8, EIGHT.replace("bandwidth =", "worker_bandwidth =").replace("8MB/s", "1MB/s"), OWNED, RATES, MOMENTUM),
    FAST: Case(8, EIGHT.replace("8MB/s", "160MB/s"), PULLS, RATES, MOMENTUM),
    PLAIN_EQUAL: Case(8, EIGHT, (*HSP, "asp", *PULLS), PLAIN_RATES),
    INCAST: Case(8, EIGHT.replace("8MB/s", "4MB/s") + "incast = 0.6\n", HSP, PLAIN_RATES, like=PLAIN_EQUAL),
    BURSTY: Case(2, TWO + BURSTS, STALE, PAIR_RATES),
    PAIR: Case(2, TWO + SLOWER.format(1, 0.5), STALE, PAIR_RATES),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What one came to."""

    case: str
    protocol: str
    rate: float
    """Of an iteration."""
    seed: int
    period: float
    """Virtual seconds for an iteration, over the whole run."""
    staleness: float | None
    curve: list[tuple[float, float, float]]
    """Of each recorded version: iterations until then, virtual seconds, accuracy."""

    def met(self, target: float) -> tuple[float, float]:
        """Iterations and seconds to the target; infinite if it was not met."""
        for at in range(2, len(self.curve)):
            if mean(accuracy for _, _, accuracy in self.curve[at - 2 : at + 1]) >= target:
                return self.curve[at][0], self.curve[at][1]
        return math.inf, math.inf

    @property
    def last(self) -> float:
        """The accuracy in the end, as it is compared with the target."""
        return mean(accuracy for _, _, accuracy in self.curve[-3:]) if self.curve else 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """What is learnt."""

    data: str
    """As the tables call it."""
    script: tuple[str, ...]
    """With its arguments, but for the rate and the seed."""
    epochs: int
    seeded: bool
    """Whether the script takes a seed, of the initial parameters."""
    targets: dict[int, float]
    """Accuracies, by the number of workers: two make four times as many iterations."""

    def command(self, rate: float, momentum: float, seed: int) -> list[str]:
        """What follows `--gradients`."""
        words = [*self.script, "--lr", f"{rate:g}", "--momentum", f"{momentum:g}"]
        return [*words, "--seed", str(seed)] if self.seeded else words


def mnist(data: Path, folder: Path) -> Task:
    """Of a part of it, which is written to the folder: nine processes read it in each run."""
    with np.load(data) as whole:
        sizes = {"train_images": STEPS * BATCH, "train_labels": STEPS * BATCH, "test_images": 2000, "test_labels": 2000}
        np.savez(folder / "mnist.npz", **{name: whole[name][:size] for name, size in sizes.items()})
    words = ["benchmarks/papers/mnist_small.py", "--data", str(folder / "mnist.npz"), "--samples", str(STEPS * BATCH)]
    words += ["--batch-size", str(BATCH), "--epochs", "1", "--drops"]
    return Task("MNIST", tuple(words), epochs=1, seeded=True, targets={8: 0.80, 2: 0.85})


def digits() -> Task:
    """Of scikit-learn's."""
    epochs = 7  # of 1437 samples: about as many steps
    words = ("examples/digits.py", "--epochs", str(epochs), "--batch-size", str(BATCH))
    return Task("digits", words, epochs, seeded=False, targets={8: 0.80, 2: 0.90})


def simulate(task: Task, case: str, rate: float, seed: int, protocols: Sequence[str], folder: Path) -> list[Run]:
    """One run of each, at one rate. Ends the program, in the command's own words, if one fails."""
    workers = CASES[case].workers
    own = [[one for one in protocols if (one.split(":")[0] in WHOLE) == whole] for whole in (False, True)]
    runs = []
    for whole, those in enumerate(own):
        if not those:
            continue
        with tempfile.TemporaryDirectory(dir=folder) as out:
            cluster = Path(out) / "cluster.toml"
            cluster.write_text(CASES[case].cluster)
            command = [sys.executable, "-m", "paceline", "simulate", str(cluster), "--seed", str(seed), "--json"]
            command += [word for one in those for word in ("-p", one)]
            command += [
                "--record",
                str(RECORDED[workers] // task.epochs),
                "--out",
                str(Path(out) / "run"),
                "--gradients",
            ]
            command += task.command(rate / workers if whole else rate, CASES[case].momentum, seed)
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode not in CODES:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        summaries = json.loads(done.stdout)
        for protocol, summary in zip(those, summaries if len(those) > 1 else [summaries], strict=True):
            size = workers * BATCH
            curve = [(one["samples"] / size, one["at_seconds"], one["accuracy"]) for one in summary["evaluations"]]
            period = workers * summary["wall_seconds"] / max(1, summary["steps"])
            runs.append(Run(case, protocol, rate, seed, period, summary["staleness"]["mean"], curve))
    return runs


class Results:
    """All runs so far. With a file, they are kept there, and none is made again that is in it."""

    def __init__(self, task: Task, folder: Path, file: Path | None) -> None:
        self._task, self._folder, self._file = task, folder, file
        self._runs = [Run(**one) for one in json.loads(file.read_text())] if file and file.exists() else []

    def make(self, wanted: Iterable[tuple[str, str, float, int]]) -> None:
        """The runs of so many (case, protocol, rate, seed), two at a time."""
        made = {(one.case, one.protocol, one.rate, one.seed) for one in self._runs}
        together: dict[tuple[str, float, int], list[str]] = {}
        for case, protocol, rate, seed in wanted:
            if (case, protocol, rate, seed) not in made:
                together.setdefault((case, rate, seed), []).append(protocol)

        def one(key: tuple[str, float, int]) -> list[Run]:
            began = time.monotonic()
            runs = simulate(self._task, *key, together[key], self._folder)
            print(f"{time.monotonic() - began:4.0f} s  {key}: {', '.join(together[key])}", file=sys.stderr)
            return runs

        with ThreadPoolExecutor(2) as pool:
            for runs in pool.map(one, together):
                self._runs += runs
                if self._file:
                    self._file.write_text(json.dumps([asdict(run) for run in self._runs]) + "\n")

    def of(self, case: str, protocol: str, rate: float, seeds: int) -> list[Run]:
        """Those, by seed."""
        those = [one for one in self._runs if (one.case, one.protocol, one.rate) == (case, protocol, rate)]
        return sorted((one for one in those if one.seed < seeds), key=lambda one: one.seed)


@dataclass(frozen=True, slots=True)
class Row:
    """A protocol in a case, at its rate."""

    rate: float
    runs: list[Run]
    target: float
    tried: dict[float, float]
    """Seconds to the target with seed 0, by rate."""

    @property
    def iterations(self) -> float:
        """To the target: the mean over the seeds."""
        return mean(run.met(self.target)[0] for run in self.runs)

    @property
    def seconds(self) -> float:
        """To the target: the mean over the seeds."""
        return mean(run.met(self.target)[1] for run in self.runs)

    @property
    def period(self) -> float:
        """Seconds for an iteration."""
        return mean(run.period for run in self.runs)


def learn(results: Results, targets: dict[int, float], quick: bool, seeds: int) -> dict[tuple[str, str], Row]:
    """Make all runs; by case and protocol. Quick: at one rate."""
    every = [(case, protocol) for case, one in CASES.items() for protocol in one.protocols]
    tried = {
        (case, protocol): list(CASES[case].rates[:1] if quick else CASES[case].rates)
        for case, protocol in every
        if CASES[case].like is None
    }

    def best(case: str, protocol: str) -> tuple[float, bool]:
        """The best rate so far, and whether it is any good."""

        def key(rate: float) -> tuple[float, float]:
            [run] = results.of(case, protocol, rate, 1)
            return run.met(targets[CASES[case].workers])[1], -run.last

        rate = min(tried[case, protocol], key=key)
        return rate, math.isfinite(key(rate)[0])

    for _ in range(EXTENDED):
        results.make((case, protocol, rate, 0) for (case, protocol), rates in tried.items() for rate in rates)
        for (case, protocol), rates in tried.items():
            rate, good = best(case, protocol)
            if good and len(rates) > 1 and rate in (min(rates), max(rates)):
                rates.append(rate / 2 if rate == min(rates) else rate * 2)
    results.make((case, protocol, rate, 0) for (case, protocol), rates in tried.items() for rate in rates)
    chosen = {(case, protocol): best(CASES[case].like or case, protocol)[0] for case, protocol in every}
    results.make((case, protocol, rate, seed) for (case, protocol), rate in chosen.items() for seed in range(seeds))
    rows = {}
    for (case, protocol), rate in chosen.items():
        rates, target = sorted(tried.get((case, protocol), [])), targets[CASES[case].workers]
        first = {one: results.of(case, protocol, one, 1)[0].met(target)[1] for one in rates}
        rows[case, protocol] = Row(rate, results.of(case, protocol, rate, seeds), target, first)
    return rows


def ratio(one: float, other: float) -> float:
    """Of two times; NaN unless the target was met in both."""
    return one / other if math.isfinite(one) and math.isfinite(other) else math.nan


def told(gain: float, form: str) -> str:
    """As a cell has it."""
    return format(gain, form) if math.isfinite(gain) else "never met"


def ps_plus_claims(rows: dict[tuple[str, str], Row]) -> list[Claim]:
    """The abstract's three, over each of the schemes."""
    claims = []
    for case in (EQUAL, SLOW, OWN, PLAIN_EQUAL):
        ours = rows[case, PS_PLUS]
        others = {TITLES[name]: rows[case, name] for name in SCHEMES if (case, name) in rows}
        fewer = {name: 1 - ratio(ours.iterations, one.iterations) for name, one in others.items()}
        less = {name: 1 - ratio(ours.period, one.period) for name, one in others.items()}
        faster = {name: ratio(one.seconds, ours.seconds) for name, one in others.items()}
        claims += [
            _over("fewer iterations", case, fewer, 0.37, ".0%"),
            _over("less time for an iteration", case, less, 0.54, ".0%"),
            _over("times as fast to the target", case, faster, 2.86, ".2f"),
        ]
    return claims


def _over(what: str, case: str, gains: dict[str, float], claim: float, form: str) -> Claim:
    reached = [name for name, gain in gains.items() if gain >= claim]
    return Claim(
        f"{what}: {case}",
        published=f"up to {claim:{form}}",
        tag="from the abstract",
        ours=", ".join(f"{told(gain, form)} ({name})" for name, gain in gains.items()),
        reached=bool(reached),
        why=f"over {' and '.join(reached)}" if reached else "",
    )


def hsp_claims(rows: dict[tuple[str, str], Row]) -> list[Claim]:
    """Speed to the target over BSP's."""
    claims = []
    for case, link in ((PLAIN_EQUAL, "n·tx / C = 1, no incast"), (INCAST, "n·tx / C = 2, incast 0.6")):
        for protocol in (GUARDED, ALWAYS):
            ours, bsp = rows[case, protocol], rows[case, "bsp"]
            gain = ratio(bsp.seconds, ours.seconds)
            more = told(ratio(ours.iterations, bsp.iterations), ".2f")
            claims.append(
                Claim(
                    f"speed of convergence over BSP's: {TITLES[protocol]}, {link}",
                    published="up to 1.67",
                    tag="from the abstract",
                    ours=f"{told(gain, '.2f')}: {bsp.period / ours.period:.2f} the rounds per second, {more} as many",
                    reached=gain >= 1.67,
                    why="HSP reconstructed from the abstract",
                )
            )
    return claims


def dssp_claims(rows: dict[tuple[str, str], Row]) -> list[Claim]:
    """Table I's ratios, which are no test, and under bursts the order that our notes' page expects of steps."""
    claims = []
    published = {"ssp:bound=3": 5678.2, "ssp:bound=15": 5564.9, "asp": 2993.1}
    for protocol in (DSSP, LITERAL):
        ours = rows[PAIR, protocol]
        for other, seconds in published.items():
            claims.append(
                Claim(
                    f"1:2, time to the target: {TITLES[other]}'s over that of {TITLES[protocol]}",
                    published=f"{seconds / 3016.4:.2f}, of Table I",
                    tag="from the paper",
                    ours=told(ratio(rows[PAIR, other].seconds, ours.seconds), ".2f"),
                    reached=None,
                    why="Table I's times are where learning rates drop; here none does",
                )
            )
    for other, sooner in (("ssp:bound=3", True), ("ssp:bound=15", False)):
        gain = ratio(rows[BURSTY, other].seconds, rows[BURSTY, DSSP].seconds)
        claims.append(
            Claim(
                f"bursts: DSSP is {'sooner' if sooner else 'not sooner'} at the target than {TITLES[other]}",
                published="so it is in steps",
                tag="our own model",
                ours=f"{TITLES[other]}'s over DSSP's: {told(gain, '.2f')}",
                reached=gain > 1 if sooner else gain <= 1,
            )
        )
    return claims


def table(task: Task, rows: dict[tuple[str, str], Row]) -> list[list[str]]:
    """Everything."""
    head = ["data", "cluster", "target", "protocol", "rate", "met", "iterations", "min–max", "s / iteration"]
    lines = [[*head, "s to the target", "min–max", "accuracy", "staleness"]]
    for (case, protocol), row in rows.items():
        met = [run.met(row.target) for run in row.runs if math.isfinite(run.met(row.target)[0])]
        spans = []
        for at in (0, 1):
            values = [one[at] for one in met]
            digits = f"{mean(values):.1f}" if values else ""
            spans.append((digits, f"{min(values):.1f}–{max(values):.1f}" if values else ""))
        stale = [run.staleness for run in row.runs if run.staleness is not None]
        lines.append(
            [
                task.data,
                case,
                f"{row.target:g}",
                TITLES[protocol],
                f"{row.rate:g}",
                f"{len(met)} of {len(row.runs)}",
                *spans[0],
                f"{row.period:.2f}",
                *spans[1],
                f"{mean(run.last for run in row.runs):.3f}",
                f"{mean(stale):.1f}" if stale else "",
            ]
        )
    return lines


def grid_table(task: Task, rows: dict[tuple[str, str], Row]) -> list[list[str]]:
    """Seconds to the target with seed 0, by rate."""
    tuned = {key: row.tried for key, row in rows.items() if len(row.tried) > 1}
    rates = sorted({rate for tried in tuned.values() for rate in tried})
    lines = [["data", "cluster", "protocol", *[f"{rate:g}" for rate in rates]]]
    for (case, protocol), tried in tuned.items():
        cells = [
            (f"{tried[rate]:.0f}" if math.isfinite(tried[rate]) else "never") if rate in tried else "" for rate in rates
        ]
        lines.append([task.data, case, TITLES[protocol], *cells])
    return lines


def found() -> Path | None:
    """MNIST's file, if there is one at hand."""
    named = os.environ.get("MNIST")
    return Path(named) if named else BESIDE if BESIDE.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=found(), metavar="FILE", help="an .npz file, see examples/mnist.py"
    )
    parser.add_argument("--digits", action="store_true", help="scikit-learn's digits, even if MNIST is at hand")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--quick", action="store_true", help="one rate, one seed: to see that it works")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keep every run there as it comes, as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="paceline-learning-") as temporary:
        folder = Path(temporary)
        task = digits() if args.digits or args.data is None else mnist(args.data, folder)
        results = Results(task, folder, args.results)
        rows = learn(results, task.targets, args.quick, 1 if args.quick else args.seeds)
    for claims in (ps_plus_claims(rows), hsp_claims(rows), dssp_claims(rows)):
        print_claims(claims, args.markdown)
        print()
    print_table(table(task, rows), args.markdown, left=(0, 1, 3))
    print()
    print_table(grid_table(task, rows), args.markdown, left=(0, 1, 2))


if __name__ == "__main__":
    main()
