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
time with the tuning seed. The scores are of other seeds: no run that chose anything is scored. In DSSP's clusters all
protocols have one rate: of 0.1, 0.2 and 0.4 the one at which they were first at the target with the tuning seed, their
times added up. The target is met at a recorded version if the mean of its accuracy and of those of the two before is
there: a single one is noisy.

    none slow   8 workers, a step takes 1 s ± 6 %; all pushes, and all pulls, together take 1 s on the server's link,
                each way; the server takes 10 ms to make a version. That is where `ps_plus.py` finds most (r = 2), and
                n·tx / C = 1 in `hsp.py`. With momentum 0.9, as in the demo of PS+'s authors; also without: plain SGD
    one 3×      the same, one worker three times as slow, with momentum
    own links   none slow, with momentum, but every worker has a link of its own, on which a push takes 1 s, and a pull,
                whatever the others do: where PS+ saves most over ASP in `ps_plus.py`
    fast link   none slow, with momentum, transfers take a twentieth of that: there is hardly anything to hide
    incast      none slow, transfers take twice as long, and more than one push at once has 0.6 of the link's goodput:
                where `hsp.py` finds most. At the rates of *none slow*, with momentum and without
    bursts      2 workers, 1 s ± 2 %, transfers cost nothing; each is three times slower for 6 of every 40 steps, half a
                period after the other one. Plain SGD
    1:2         2 workers, 1 s ± 2 %, one half as fast. Plain SGD
    4 equal     4 workers, 1 s ± 5 %, transfers cost nothing. Plain SGD

HSP's options are swept on *none slow* and *incast*, in three steps:

1. Every combination that differs in meaning, 28 of them, without gradients: how long an iteration takes, and how stale
   its gradients are. `stale` means nothing with `idle=none`.
2. Every combination of `idle`, `stale` and `broadcast`, with gradients, plain SGD and the tuning seed, at the rates of
   a grid. The workers are alike: `order` says whose gradient comes first, and changes the clock as step 1 shows.
3. The few that are then the fastest over BSP, in the mean of the clusters, those with `idle=guarded` and some others
   are tried with momentum, too. Each of them, and BSP, is scored on each cluster with momentum or without, as the
   tuning seed was first at the target. The best has the greatest median speed over BSP, of all clusters and scored
   seeds; a tie is the present default's. The default is the best of those with `idle=guarded`, as the abstract's
   system lets idle workers compute.
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
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median

import numpy as np
from claims import Claim, modelled, print_claims, print_table, simulated

from paceline.protocols.hsp import Config as HspConfig
from paceline.scenario.scenario_file import from_plain
from paceline.sim.world import Limit

ROOT = Path(__file__).parent.parent.parent
BESIDE = ROOT.parent / "shared" / "data" / "mnist.npz"
BATCH = 16
STEPS = 640
"""Of all workers together."""
RECORDED = {8: 40, 4: 80, 2: 80}
"""By the number of workers: so many versions, evenly spread."""
MOMENTUM = 0.9
RATES = (0.0125, 0.025, 0.05)
"""With momentum."""
PLAIN_RATES = (0.1, 0.2)
PAIR_RATES = (0.2,)
"""In DSSP's clusters all protocols have one, and differ in who waits. The tuning seed chose it of 0.1, 0.2 and 0.4."""
EXTENDED = 2
"""So often a grid grows by a rate, if its best is at an edge."""
TUNING = (100,)
"""The seeds with which rates and options are chosen. Scored are those from 0 on."""
CODES = (0, 4)  # done, diverged: both are results

PS_PLUS, AFTER_PUSH, PLAIN = "ps-plus", "ps-plus:pull=after-push", "ps-plus:modulation=off"


def hsp(idle: str, stale: str = "next", broadcast: str = "all", order: str = "ready") -> str:
    """With options, all of which are named, as the default is one of them."""
    return f"hsp:order={order},idle={idle},stale={stale},broadcast={broadcast}"


GUARDED, PIPELINED, AHEAD = hsp("guarded"), hsp("none", broadcast="order"), hsp("always", broadcast="order")
DSSP, LITERAL = "dssp", "dssp:counting=literal,cap=false"
TITLES = {
    "bsp": "BSP",
    "asp": "ASP",
    "ssp:bound=3": "SSP 3",
    "ssp:bound=15": "SSP 15",
    PS_PLUS: "PS+",
    AFTER_PUSH: "PS+, pull after push",
    PLAIN: "PS+, no modulation",
    DSSP: "DSSP 3..15",
    LITERAL: "DSSP 3..15, literal, no cap",
}
"""As it is written for `-p`, and as the tables call it; HSP is named by its options."""
WHOLE = ("asp", "ssp", "dssp")
"""Protocols whose updates count in full."""
SCHEMES = ("bsp", "asp", "ssp:bound=3")
"""With what PS+ is compared."""
PULLS = (PS_PLUS, AFTER_PUSH)
OWNED = (*SCHEMES, *PULLS)
STALE = ("bsp", "asp", "ssp:bound=3", "ssp:bound=15", DSSP, LITERAL)
"""What two workers run."""

LINK = """
[network]
message = "1MB"
bandwidth = "8MB/s"
commit = "10ms"
"""
EIGHT = '[cluster]\nworkers = 8\ncompute = "1s"\njitter = 0.06\n' + LINK
FOUR = '[cluster]\nworkers = 4\ncompute = "1s"\njitter = 0.05\n'
LOSSY = EIGHT.replace("8MB/s", "4MB/s") + "incast = 0.6\n"
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


EQUAL, SLOW, PLAIN_EQUAL = "none slow", "one 3×", "none slow, plain SGD"
OWN, FAST = "own links", "fast link"
INCAST, PLAIN_INCAST = "incast", "incast, plain SGD"
BURSTY, PAIR, ALIKE = "bursts, plain SGD", "1:2, plain SGD", "4 equal, plain SGD"
SLOWER = "\n[[worker]]\nindex = {}\nspeed = {}\n"
CASES = {
    EQUAL: Case(8, EIGHT, (*SCHEMES, *PULLS, PLAIN, AHEAD, PIPELINED), RATES, MOMENTUM),
    SLOW: Case(8, EIGHT + SLOWER.format(7, 1 / 3), (*SCHEMES, *PULLS, PLAIN), RATES, MOMENTUM),
    OWN: Case(8, EIGHT.replace("bandwidth =", "worker_bandwidth =").replace("8MB/s", "1MB/s"), OWNED, RATES, MOMENTUM),
    FAST: Case(8, EIGHT.replace("8MB/s", "160MB/s"), PULLS, RATES, MOMENTUM),
    PLAIN_EQUAL: Case(8, EIGHT, ("bsp", "asp", *PULLS), PLAIN_RATES),
    INCAST: Case(8, LOSSY, ("bsp",), RATES, MOMENTUM, like=EQUAL),
    PLAIN_INCAST: Case(8, LOSSY, ("bsp",), PLAIN_RATES, like=PLAIN_EQUAL),
    BURSTY: Case(2, TWO + BURSTS, STALE, PAIR_RATES),
    PAIR: Case(2, TWO + SLOWER.format(1, 0.5), STALE, PAIR_RATES),
    ALIKE: Case(4, FOUR, (*SCHEMES, DSSP), PAIR_RATES),
}


IDLE, STALE_FATES, BROADCASTS, ORDERS = (
    ("none", "guarded", "always"),
    ("next", "accumulate", "discard"),
    ("all", "order"),
    ("ready", "rank"),
)
SWEPT = (PLAIN_EQUAL, PLAIN_INCAST)
"""Where HSP's options are swept; the second takes the first one's rates."""
CLUSTERS = {"none slow": (PLAIN_EQUAL, EQUAL), "incast": (PLAIN_INCAST, INCAST)}
"""Where they are scored: by cluster, without momentum and with it."""
FINALISTS = 4
"""So many of them are scored, beside those that the page always shows."""
FAITHFUL = tuple(hsp("guarded", stale, broadcast) for stale in STALE_FATES for broadcast in BROADCASTS)
"""With all that the abstract says: the default is one of them."""
SHOWN = (PIPELINED, GUARDED, AHEAD)


def default() -> str:
    """HSP's, with its options named."""
    one = HspConfig()
    return hsp(one.idle, "next" if one.idle == "none" else one.stale, one.broadcast, one.order)


def combinations(orders: Sequence[str] = ORDERS) -> list[str]:
    """HSP's options, in every combination that differs in meaning: without idle work no gradient is stale."""
    return [
        hsp(idle, stale, broadcast, order)
        for idle, stale, broadcast, order in product(IDLE, STALE_FATES, BROADCASTS, orders)
        if idle != "none" or stale == "next"
    ]


def options(protocol: str) -> dict[str, str]:
    """By name."""
    return dict(part.split("=") for part in protocol.split(":")[1].split(","))


def title(protocol: str) -> str:
    """As the tables call it: HSP by who computes ahead, and what else is not as in its plainest form."""
    if protocol in TITLES:
        return TITLES[protocol]
    named = options(protocol)
    plain = {"stale": "next", "broadcast": "all", "order": "ready"}
    others = [f"{name}={named[name]}" for name, value in plain.items() if named[name] != value]
    return ", ".join([f"HSP {named['idle']}", *others])


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
    return Task("MNIST", tuple(words), epochs=1, seeded=True, targets={8: 0.80, 4: 0.85, 2: 0.85})


def digits() -> Task:
    """Of scikit-learn's."""
    epochs = 7  # of 1437 samples: about as many steps
    words = ("examples/digits.py", "--epochs", str(epochs), "--batch-size", str(BATCH))
    return Task("digits", words, epochs, seeded=False, targets={8: 0.80, 4: 0.85, 2: 0.90})


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
        for case, protocol, rate, seed in dict.fromkeys(wanted):
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

    def of(self, case: str, protocol: str, rate: float, seeds: Collection[int]) -> list[Run]:
        """Those, by seed."""
        those = [one for one in self._runs if (one.case, one.protocol, one.rate) == (case, protocol, rate)]
        return sorted((one for one in those if one.seed in seeds), key=lambda one: one.seed)


@dataclass(frozen=True, slots=True)
class Tuned:
    """The rate of a protocol in a case."""

    rate: float
    tried: dict[float, float]
    """Seconds to the target with the tuning seeds, by rate; empty if there was but one."""


@dataclass(frozen=True, slots=True)
class Row:
    """A protocol in a case, at its rate."""

    rate: float
    runs: list[Run]
    target: float
    tried: dict[float, float]
    """As `Tuned` has it."""

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

    @property
    def last(self) -> float:
        """The accuracy in the end: the mean over the seeds."""
        return mean(run.last for run in self.runs)


Key = tuple[str, str]
"""A case and a protocol."""


def tune(results: Results, targets: Mapping[int, float], wanted: Mapping[Key, Sequence[float]]) -> dict[Key, Tuned]:
    """Choose each one's rate, beginning with those given, by the tuning seeds alone."""
    grids = {key: list(rates) for key, rates in wanted.items()}

    def runs(key: Key, rate: float) -> list[Run]:
        return results.of(*key, rate, TUNING)

    def seconds(key: Key, rate: float) -> float:
        return mean(run.met(targets[CASES[key[0]].workers])[1] for run in runs(key, rate))

    def best(key: Key) -> float:
        return min(grids[key], key=lambda rate: (seconds(key, rate), -mean(run.last for run in runs(key, rate))))

    for extended in range(EXTENDED + 1):
        several = {key: rates for key, rates in grids.items() if len(rates) > 1}
        results.make((*key, rate, seed) for key, rates in several.items() for rate in rates for seed in TUNING)
        for key, rates in several.items():
            rate = best(key)
            if extended < EXTENDED and math.isfinite(seconds(key, rate)) and rate in (min(rates), max(rates)):
                rates.append(rate / 2 if rate == min(rates) else rate * 2)
    return {
        key: Tuned(best(key), {rate: seconds(key, rate) for rate in sorted(rates)})
        if len(rates) > 1
        else Tuned(rates[0], {})
        for key, rates in grids.items()
    }


def score(
    results: Results, targets: Mapping[int, float], chosen: Mapping[Key, Tuned], seeds: Collection[int]
) -> dict[Key, Row]:
    """All seeds, each at the rate that was chosen."""
    assert not set(seeds) & set(TUNING)
    results.make((*key, tuned.rate, seed) for key, tuned in chosen.items() for seed in seeds)
    return {
        key: Row(tuned.rate, results.of(*key, tuned.rate, seeds), targets[CASES[key[0]].workers], tuned.tried)
        for key, tuned in chosen.items()
    }


def learn(results: Results, targets: Mapping[int, float], quick: bool, seeds: Collection[int]) -> dict[Key, Row]:
    """Make all runs of `CASES`; by case and protocol. Quick: at one rate."""
    every = [(case, protocol) for case, one in CASES.items() for protocol in one.protocols]
    grids = {key: CASES[key[0]].rates[: 1 if quick else None] for key in every if CASES[key[0]].like is None}
    tuned = tune(results, targets, grids)
    return score(results, targets, {key: _like(tuned, *key) for key in every}, seeds)


def _like(tuned: Mapping[Key, Tuned], case: str, protocol: str) -> Tuned:
    """Its own, or the other case's, of which it was not tried here."""
    like = CASES[case].like
    return tuned[case, protocol] if like is None else Tuned(tuned[like, protocol].rate, {})


@dataclass(frozen=True, slots=True)
class Pace:
    """An iteration of some options in a case, with the tuning seeds."""

    seconds: float
    staleness: float


def paces(case: str, protocols: Iterable[str]) -> dict[str, Pace]:
    """Without gradients: what the clock alone says."""
    scenario, workers = from_plain(tomllib.loads(CASES[case].cluster)), CASES[case].workers
    found = {}
    for protocol in protocols:
        runs = [simulated(protocol, scenario, workers, Limit(steps=STEPS), seed=seed) for seed in TUNING]
        seconds = mean(workers * run["wall_seconds"] / run["steps"] for run in runs)
        found[protocol] = Pace(seconds, mean(run["staleness"]["mean"] or 0.0 for run in runs))
    return found


@dataclass(frozen=True, slots=True)
class Candidate:
    """Options of HSP, or BSP, with the tuning seeds."""

    protocol: str
    tuned: Tuned
    """In the first of the swept clusters. The other one takes its rate."""
    seconds: dict[str, float]
    """To the target, by cluster."""

    def speed(self, bsp: Candidate) -> float:
        """To the target, over BSP's: the mean over the clusters."""
        return mean(bsp.seconds[case] / self.seconds[case] for case in SWEPT)


def sweep(results: Results, targets: Mapping[int, float], quick: bool) -> list[Candidate]:
    """BSP, and HSP's options with the first order. Quick: only the default ones, at one rate."""
    rates = CASES[SWEPT[0]].rates[: 1 if quick else None]
    protocols = ["bsp", *([default()] if quick else combinations(ORDERS[:1]))]
    tuned = tune(results, targets, {(SWEPT[0], protocol): rates for protocol in protocols})
    every = [(case, protocol, tuned[SWEPT[0], protocol].rate) for protocol in protocols for case in SWEPT]
    results.make((*one, seed) for one in every for seed in TUNING)

    seconds = {(case, name): _seconds(results, targets, case, name, rate) for case, name, rate in every}
    return [
        Candidate(protocol, tuned[SWEPT[0], protocol], {case: seconds[case, protocol] for case in SWEPT})
        for protocol in protocols
    ]


def _seconds(results: Results, targets: Mapping[int, float], case: str, protocol: str, rate: float) -> float:
    """To the target, with the tuning seeds."""
    return mean(run.met(targets[CASES[case].workers])[1] for run in results.of(case, protocol, rate, TUNING))


@dataclass(frozen=True, slots=True)
class Final:
    """BSP or options of HSP on a cluster, as they are scored there."""

    case: str
    """Which of the cluster's: with momentum, or without."""
    tuned: Tuned


Finals = Mapping[Key, Final]
"""By cluster and protocol."""


def finals(results: Results, targets: Mapping[int, float], candidates: Sequence[Candidate], quick: bool) -> Finals:
    """Who is scored, and how: see step 3 at the top."""
    bsp, *others = candidates
    ahead = sorted(others, key=lambda one: one.speed(bsp), reverse=True)[:FINALISTS]
    scored = [bsp, *(one for one in others if one in ahead or one.protocol in (*SHOWN, *FAITHFUL))]
    rates = CASES[EQUAL].rates[: 1 if quick else None]
    tuned = tune(results, targets, {(EQUAL, one.protocol): rates for one in scored})
    results.make((INCAST, one.protocol, tuned[EQUAL, one.protocol].rate, seed) for one in scored for seed in TUNING)
    chosen = {}
    for cluster, (plain, heavy) in CLUSTERS.items():
        for one in scored:
            with_momentum = tuned[EQUAL, one.protocol]
            seconds = _seconds(results, targets, heavy, one.protocol, with_momentum.rate)
            case, best = (heavy, with_momentum) if seconds < one.seconds[plain] else (plain, one.tuned)
            own = CASES[case].like is None
            chosen[cluster, one.protocol] = Final(case, best if own else Tuned(best.rate, {}))
    return chosen


def ratio(one: float, other: float) -> float:
    """Of two times; NaN unless the target was met in both."""
    return one / other if math.isfinite(one) and math.isfinite(other) else math.nan


def told(gain: float, form: str) -> str:
    """As a cell has it."""
    return format(gain, form) if math.isfinite(gain) else "never met"


def ps_plus_claims(rows: Mapping[Key, Row]) -> list[Claim]:
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


def gains(rows: Mapping[Key, Row], scored: Finals, protocol: str) -> list[float]:
    """Its speeds to the target over BSP's, on each cluster with each seed; 0 where it never was there."""
    speeds = []
    for cluster in CLUSTERS:
        row, bsp = (rows[scored[cluster, name].case, name] for name in (protocol, "bsp"))
        pairs = zip(row.runs, bsp.runs, strict=True)
        speeds += [base.met(bsp.target)[1] / run.met(row.target)[1] for run, base in pairs]
    return speeds


def ranking(rows: Mapping[Key, Row], scored: Finals) -> list[str]:
    """HSP's options that were scored, the best first: see step 3 at the top."""
    names = dict.fromkeys(protocol for _, protocol in scored if protocol != "bsp")
    return sorted(names, key=lambda one: (-round(median(gains(rows, scored, one)), 2), one != default()))


def hsp_claims(rows: Mapping[Key, Row], scored: Finals) -> list[Claim]:
    """Speed to the target over BSP's: of the best options, the default, and those that the page always shows."""
    claims = []
    ranked = ranking(rows, scored)
    for cluster, link in zip(CLUSTERS, ("n·tx / C = 1, no incast", "n·tx / C = 2, incast 0.6"), strict=True):
        for protocol in dict.fromkeys(one for one in (ranked[0], default(), *SHOWN) if one in ranked):
            ours, bsp = (rows[scored[cluster, name].case, name] for name in (protocol, "bsp"))
            gain, pace = ratio(bsp.seconds, ours.seconds), bsp.period / ours.period
            more = ratio(ours.iterations, bsp.iterations)
            needed = f", {more:.2f} as many" if math.isfinite(more) else ""
            claims.append(
                Claim(
                    f"speed of convergence over BSP's: {title(protocol)}, {link}",
                    published="up to 1.67",
                    tag="from the abstract",
                    ours=f"{told(gain, '.2f')}: {pace:.2f} the iterations per second{needed}",
                    reached=gain >= 1.67,
                    why="HSP reconstructed from the abstract",
                )
            )
    return claims


def options_table(candidates: Sequence[Candidate]) -> list[list[str]]:
    """HSP's options, with the tuning seeds: by the clock alone, and to the target."""
    lines = [["cluster", "HSP", "s / iteration", "all orders", "staleness", "rate", "s to the target", "× BSP"]]
    bsp = candidates[0]
    for case in SWEPT:
        found = paces(case, ["bsp", *combinations()])
        for one in candidates:
            pace, seconds = found[one.protocol], one.seconds[case]
            cells = [case.split(",")[0], title(one.protocol).removeprefix("HSP "), f"{pace.seconds:.2f}"]
            if one is bsp:
                cells.append("")
            else:
                alike = options(one.protocol) | {"order": ""}
                others = [
                    found[name].seconds for name in found if name != "bsp" and options(name) | {"order": ""} == alike
                ]
                cells.append(f"{min(others):.2f}–{max(others):.2f}")
            cells += [f"{pace.staleness:.2f}", f"{one.tuned.rate:g}"]
            met = math.isfinite(seconds)
            lines.append(
                [*cells, *((f"{seconds:.0f}", f"{bsp.seconds[case] / seconds:.2f}") if met else ("never", ""))]
            )
    return lines


def finals_table(rows: Mapping[Key, Row], scored: Finals) -> list[list[str]]:
    """HSP's options that are scored, the best first, and BSP."""
    head = ["HSP", "median × BSP", "min–max"]
    for cluster in CLUSTERS:
        head += [f"{cluster}: momentum", "met", "s to the target", "× BSP"]
    lines = [[*head, "default"]]
    for protocol in (*ranking(rows, scored), "bsp"):
        speeds = gains(rows, scored, protocol)
        cells = [title(protocol).removeprefix("HSP "), f"{median(speeds):.2f}", f"{min(speeds):.2f}–{max(speeds):.2f}"]
        for cluster in CLUSTERS:
            case = scored[cluster, protocol].case
            row, bsp = rows[case, protocol], rows[scored[cluster, "bsp"].case, "bsp"]
            met = [run for run in row.runs if math.isfinite(run.met(row.target)[0])]
            cells += [f"{CASES[case].momentum:g}", f"{len(met)} of {len(row.runs)}"]
            whole = len(met) == len(row.runs)
            cells += [f"{row.seconds:.0f}", f"{ratio(bsp.seconds, row.seconds):.2f}"] if whole else ["", ""]
        lines.append([*cells, "yes" if protocol == default() else ""])
    return lines


def dssp_claims(rows: Mapping[Key, Row]) -> list[Claim]:
    """Table I's ratios, which are no test; Figure 3's accuracies; and under bursts the order that our notes expect."""
    claims = []
    published = {"bsp": 6159.2, "ssp:bound=3": 5678.2, "ssp:bound=15": 5564.9, "asp": 2993.1}
    for protocol in (DSSP, LITERAL):
        ours = rows[PAIR, protocol]
        for other, seconds in published.items():
            claims.append(
                Claim(
                    f"1:2, time to the target: {TITLES[other]}'s over that of {title(protocol)}",
                    published=f"{seconds / 3016.4:.2f}, of Table I",
                    tag="from the paper",
                    ours=told(ratio(rows[PAIR, other].seconds, ours.seconds), ".2f"),
                    reached=None,
                    why="Table I's times are where learning rates drop; here none does",
                )
            )
    above = rows[ALIKE, DSSP].last - rows[ALIKE, "ssp:bound=3"].last
    claims.append(
        Claim(
            "4 equal: DSSP's final accuracy is above SSP's",
            published="+.003 with AlexNet and ResNet-50, of Figure 3",
            tag="from the paper",
            ours=f"{above:+.3f}",
            reached=above >= 0.003,
            why="" if above else "among equal workers DSSP does what SSP does",
        )
    )
    claims.append(
        Claim(
            "4 equal: DSSP's final accuracy, less BSP's",
            published="-.032 with AlexNet to +.010 with ResNet-110, of Figure 3",
            tag="from the paper",
            ours=f"{rows[ALIKE, DSSP].last - rows[ALIKE, 'bsp'].last:+.3f}",
            reached=None,
            why="there rates drop four times sooner under DSSP than under BSP; here none does",
        )
    )
    asp = rows[ALIKE, "asp"]
    same = [run.curve for run in asp.runs] == [run.curve for run in rows[ALIKE, DSSP].runs]
    what = "4 equal: DSSP learns what ASP learns"
    claims.append(modelled(what, "it does", "every accuracy is the same" if same else "accuracies differ", same))
    for other, sooner in (("ssp:bound=3", True), ("ssp:bound=15", False)):
        gain = ratio(rows[BURSTY, other].seconds, rows[BURSTY, DSSP].seconds)
        claims.append(
            modelled(
                f"bursts: DSSP is {'sooner' if sooner else 'not sooner'} at the target than {TITLES[other]}",
                model="so it is in steps",
                ours=f"{TITLES[other]}'s over DSSP's: {told(gain, '.2f')}",
                reached=gain > 1 if sooner else gain <= 1,
            )
        )
    return claims


def table(task: Task, rows: Mapping[Key, Row]) -> list[list[str]]:
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
                title(protocol),
                f"{row.rate:g}",
                f"{len(met)} of {len(row.runs)}",
                *spans[0],
                f"{row.period:.2f}",
                *spans[1],
                f"{row.last:.3f}",
                f"{mean(stale):.1f}" if stale else "",
            ]
        )
    return lines


def grid_table(task: Task, rows: Mapping[Key, Row]) -> list[list[str]]:
    """Seconds to the target with the tuning seeds, by rate."""
    tuned = {key: row.tried for key, row in rows.items() if len(row.tried) > 1}
    rates = sorted({rate for tried in tuned.values() for rate in tried})
    lines = [["data", "cluster", "protocol", *[f"{rate:g}" for rate in rates]]]
    for (case, protocol), tried in tuned.items():
        cells = [
            (f"{tried[rate]:.0f}" if math.isfinite(tried[rate]) else "never") if rate in tried else "" for rate in rates
        ]
        lines.append([task.data, case, title(protocol), *cells])
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
        seeds = range(1 if args.quick else args.seeds)
        rows = learn(results, task.targets, args.quick, seeds)
        candidates = sweep(results, task.targets, args.quick)
        scored = finals(results, task.targets, candidates, args.quick)
        chosen = {(one.case, protocol): one.tuned for (_, protocol), one in scored.items()}
        rows |= score(results, task.targets, chosen, seeds)
    for claims in (ps_plus_claims(rows), hsp_claims(rows, scored), dssp_claims(rows)):
        print_claims(claims, args.markdown)
        print()
    rows = {key: row for case in CASES for key, row in rows.items() if key[0] == case}
    print_table(table(task, rows), args.markdown, left=(0, 1, 3))
    print()
    print_table(grid_table(task, rows), args.markdown, left=(0, 1, 2))
    print()
    print_table(options_table(candidates), args.markdown, left=(0, 1))
    print()
    print_table(finals_table(rows, scored), args.markdown, left=(0,))


if __name__ == "__main__":
    main()
