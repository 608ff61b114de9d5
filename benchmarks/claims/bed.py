"""For the scripts beside this file: real runs between machines on this one, and what each of them came to.

Each machine is a network namespace with a shaped link. A `Case` says which machines there are, what they learn, and by
which protocols; a script has one or more, and turns their rows into claims. Runs take turns within a seed, and each is
kept in a file as it ends, so a script that was stopped goes on where it was.

The learning rate of each protocol is the one of its grid that reaches the target in the fewest *steps* with the seeds
of `TUNING`, which no table uses. Those runs are simulated, with real gradients: staleness is as the steps' times have
it, and links take no time, unless the protocol does other work while they do: see `Case.on_links`.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[1] / "papers"))

import numpy as np
from claims import Claim, print_claims, print_table
from hosts import PORT, run_all, use_congestion
from rates import tried
from step import Failed, machine

from paceline.net.token import Token, write
from paceline.records.comparison import MeanOfRuns, mean
from support.namespaces import QUEUE, Network, NotHere

TRAIN = Path(__file__).parent / "train.py"
TUNING = (100, 101)
SEEDS = tuple(range(5))
TESTS = 2000
DIVERGED = 4
"""The exit code of a run whose parameters are no numbers any more. It met no target, and counts."""
AT_ONCE = 2
"""Runs in virtual time that are made at the same time."""
PATIENCE = 150.0
"""Seconds that a run may take beside its training."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines, their links, and how long their workers' steps take."""

    hosts: int
    each: int = 1
    """Workers of a host."""
    server: bool = False
    """Whether there is one host more, which has the store and no worker. Without it the store is on the first."""
    rate: str | None = "1gbit"
    """Of each link, each way, as tc writes it. None: of the only host, which has none."""
    server_rate: str | None = None
    """Of the store's host, if it is another one."""
    outward: str = QUEUE
    """What queues before a link at its host."""
    inward: str = QUEUE
    """What queues before it at the switch. It is short where several senders at once lose what they send."""
    compute: float = 0.05
    """Seconds of a step."""
    jitter: float = 0.05
    slow: Mapping[int, float] = field(default_factory=dict)
    """By worker: how many times as long its steps take."""
    bursts: tuple[float, float, float] | None = None
    """Each so many seconds another worker's steps, for so many seconds, take so many times as long."""

    @property
    def workers(self) -> int:
        """How many there are."""
        return self.hosts * self.each

    def words(self) -> list[str]:
        """The script's arguments that say how long steps take."""
        words = ["--compute", self.compute, "--jitter", self.jitter]
        words += ["--slow", *(f"{worker}:{factor:g}" for worker, factor in self.slow.items())]
        return [str(word) for word in [*words, *(["--bursts", *self.bursts] if self.bursts else [])]]

    def scenario(self, message: int | None, *, stores: bool = True) -> str:
        """The same for the simulator. `message`: the bytes of a version or an update; None: transfers take no time.

        `stores`: whether they go to a store, or else workers average among themselves.
        """
        lines = ["[cluster]", f'compute = "{1000 * self.compute:g}ms"', f"jitter = {self.jitter:g}"]
        if message is None or self.rate is None:
            lines.append(f"workers = {self.workers}")
        else:
            rate = f'"{self.rate.replace("bit", "bit/s").replace("m", "M").replace("g", "G")}"'
            network = ["[network]", f'message = "{message}B"']
            if stores:
                lines += [*network, *["[[host]]", f"workers = {self.each}", f"bandwidth = {rate}"] * self.hosts]
            else:
                lines += [f"workers = {self.workers}", f"nodes = {self.hosts}", *network, f"between_nodes = {rate}"]
        for worker, factor in self.slow.items():
            lines += ["[[worker]]", f"index = {worker}", f"speed = {1 / factor}"]
        if self.bursts:
            every, long, factor = self.bursts
            for worker in range(self.workers):
                lines += ["[[event]]", f"worker = {worker}", f'at = "{worker * every}s"', f'for = "{long}s"']
                lines += [f'every = "{self.workers * every}s"', f"slow = {factor:g}"]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Task:
    """What is learnt, and for how long."""

    widths: tuple[int, ...] = (64, 64)
    samples: int = 10240
    epochs: int = 50
    drops: tuple[int, ...] = ()
    momentum: float = 0.9
    record: int = 40
    """Versions kept in each epoch."""
    seconds: float | None = None
    """Of training; None: all epochs."""
    batch: int = 16

    @property
    def message(self) -> int:
        """The bytes of a version or an update."""
        return 4 * sum(inputs * outputs + outputs for inputs, outputs in pairwise((28 * 28, *self.widths, 10)))

    def words(self, rate: float, seed: int) -> list[str]:
        """The script's arguments, but for the file."""
        words = ["--samples", self.samples, "--batch-size", self.batch, "--epochs", self.epochs]
        words += ["--widths", *self.widths, "--lr", f"{rate:g}", "--momentum", f"{self.momentum:g}", "--seed", seed]
        return [str(word) for word in [*words, *(["--drops", *self.drops] if self.drops else [])]]


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared."""

    name: str
    cluster: Cluster
    task: Task
    protocols: Mapping[str, tuple[float, ...]]
    """By protocol, or `ddp`: the learning rates to choose from."""
    target: float
    """An accuracy."""
    like: str = ""
    """The case whose rates it has, if it chooses none of its own."""
    on_links: Collection[str] = ()
    """Protocols whose rate is chosen in simulations whose links take time: without that they are like another one."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one came to. An iteration is a step of every worker."""

    case: str
    protocol: str
    rate: float
    seed: int
    period: float
    """Seconds for an iteration, over the whole run."""
    seconds: float
    """Of training."""
    staleness: float
    steps: list[int]
    """Of each worker."""
    curve: list[tuple[float, float, float]]
    """Of each recorded version: iterations until then, seconds of training, accuracy."""

    def met(self, target: float) -> tuple[float, float] | None:
        """Iterations and seconds until the mean accuracy of three versions in turn is the target's."""
        for at in range(2, len(self.curve)):
            if fmean(accuracy for *_, accuracy in self.curve[at - 2 : at + 1]) >= target:
                return self.curve[at][0], self.curve[at][1]
        return None

    @property
    def last(self) -> float:
        """The accuracy of the last three versions."""
        return fmean(accuracy for *_, accuracy in self.curve[-3:]) if self.curve else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A protocol in a case, over its seeds."""

    rate: float
    runs: list[Run]
    target: float

    @property
    def period(self) -> MeanOfRuns | None:
        """Seconds for an iteration."""
        return mean(run.period for run in self.runs)

    @property
    def whole(self) -> MeanOfRuns | None:
        """Seconds of the whole training."""
        return mean(run.seconds for run in self.runs)

    @property
    def accuracy(self) -> MeanOfRuns | None:
        """In the end."""
        return mean(run.last for run in self.runs)

    def to_target(self, what: int) -> MeanOfRuns | None:
        """Iterations (0) or seconds (1) until the target; None unless every seed met it."""
        met = [run.met(self.target) for run in self.runs]
        return None if None in met else mean(one[what] for one in met if one)


Rows = Mapping[tuple[str, str], Row]
"""By case and protocol."""


def ratio(rows: Rows, case: str, one: str, other: str, what: Callable[[Run], float | None]) -> MeanOfRuns | None:
    """How many times `one`'s figure is `other`'s: the mean over the seeds that both have."""
    mine, others = ({run.seed: what(run) for run in rows[case, name].runs} for name in (one, other))
    pairs = [(mine[seed], others[seed]) for seed in mine if seed in others]
    if any(value is None for pair in pairs for value in pair):
        return None
    return mean(a / b for a, b in pairs if a is not None and b)


def told(value: MeanOfRuns | None, form: str = ".2f", lacking: str = "–") -> str:
    """As a cell has it: the mean, and half of the 95 % interval."""
    if value is None:
        return lacking
    return f"{value.mean:{form}}" + ("" if value.plus_minus is None else f" ± {value.plus_minus:{form}}")


def measure(case: Case, protocol: str, rate: float, seed: int, data: Path, congestion: str) -> Run:
    """Make one run. Raises Failed."""
    cluster, task = case.cluster, case.task
    hosts = cluster.hosts + cluster.server
    with (
        tempfile.TemporaryDirectory(prefix="paceline-claims-", ignore_cleanup_errors=True) as name,
        Network(hosts, cluster.rate) as network,
    ):
        folder = Path(name)
        use_congestion(network, hosts, congestion)
        for host in range(hosts if cluster.rate else 0):
            link = cluster.server_rate if host == cluster.hosts else None
            network.shape(host, link or cluster.rate or "", cluster.outward, cluster.inward)
        write(Token.drawn(), folder / "token")
        script: list[object] = [TRAIN, "--data", data, *task.words(rate, seed), *cluster.words()]
        if protocol == "ddp":
            limit = [] if task.seconds is None else ["--seconds", task.seconds]
            look = max(1, round(task.samples / task.batch / cluster.workers / task.record))  # as often as others record
            script += [*limit, "--look", look, "--curve", folder / "curve.json"]
            commands = [
                (rank // cluster.each, [sys.executable, *script, "--ddp", rank, cluster.workers, network.address(0)])
                for rank in range(cluster.workers)
            ]
        else:
            commands = _paceline(cluster, task, protocol, seed, network, folder / "run", script)
        run_all(network, commands, folder, (task.seconds or PATIENCE) + PATIENCE, allowed=(DIVERGED,))
        if protocol == "ddp":
            found = json.loads((folder / "curve.json").read_text())
            period, curve = found["seconds"] / found["steps"], [tuple(one) for one in found["curve"]]
            steps = [found["steps"]] * cluster.workers
            return Run(case.name, protocol, rate, seed, period, found["seconds"], 0.0, steps, curve)
        return _read(case, protocol, rate, seed, folder / "run")


def _paceline(
    cluster: Cluster, task: Task, protocol: str, seed: int, network: Network, folder: Path, script: Sequence[object]
) -> list[tuple[int, list[object]]]:
    """Each host and its command."""
    address, ours = f"{network.address(0)}:{PORT}", [sys.executable, "-m", "paceline"]
    head: list[object] = [*ours, "run", "-p", protocol, "-n", cluster.each, "--threads", 1, "--seed", seed]
    head += ["--record", task.record, "--checkpoint", 0, "--tee", "none", "--quiet", "--out", folder]
    head += [] if task.seconds is None else ["--max-seconds", task.seconds]
    if cluster.rate is None:
        return [(0, [*head, *script])]
    workers = [cluster.each] * cluster.hosts + [0] * cluster.server
    head += ["--listen", address, "--hosts", len(workers), "--name", "host-0", "--trusted-network"]
    if has_store(protocol):
        head += ["--shards-on", f"host-{len(workers) - 1}" if cluster.server else "head"]
    join = [*ours, "join", address, "--wait", "--trusted-network"]
    joined = [(host, [*join, "--name", f"host-{host}", "-n", workers[host]]) for host in range(1, len(workers))]
    return [(0, [*head, *script]), *joined]


def has_store(protocol: str) -> bool:
    """Whether a store makes versions, or workers average."""
    return protocol.split(":")[0] not in ("all-reduce", "ad-psgd", "ripples")


def _read(case: Case, protocol: str, rate: float, seed: int, folder: Path) -> Run:
    summary = json.loads((folder / "summary.json").read_text())
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        began = float(ledger.execute("SELECT min(at) FROM facts").fetchone()[0])
    workers, batches = case.cluster.workers, case.cluster.workers * case.task.batch
    seconds = summary["wall_seconds"] - began
    curve = [(one["samples"] / batches, one["at_seconds"] - began, one["accuracy"]) for one in summary["evaluations"]]
    steps = [row["steps"] for row in summary["per_worker"]]
    staleness = summary["staleness"]["mean"] or 0.0
    period = workers * seconds / max(1, summary["steps"])
    return Run(case.name, protocol, rate, seed, period, seconds, staleness, steps, curve)


def tuned(case: Case, data: Path, seeds: Collection[int] = TUNING) -> dict[str, float]:
    """Choose each protocol's rate, by runs in virtual time. DDP has All-Reduce's, or BSP's."""

    def best(protocol: str, rates: tuple[float, ...]) -> float:
        if len(rates) == 1:
            return rates[0]
        message = case.task.message if protocol in case.on_links else None
        steps = tried(rates, partial(_mean_steps, case, protocol, seeds, data, message))
        best = min(steps, key=steps.__getitem__)
        found = ", ".join(f"{rate:g}: {steps[rate]:.0f}" for rate in sorted(steps))
        print(f"{case.name}, {protocol}: {best:g} by iterations to the target: {found}", file=sys.stderr)
        return best

    wanted = {protocol: rates for protocol, rates in case.protocols.items() if protocol != "ddp"}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        chosen = dict(zip(wanted, pool.map(best, wanted, wanted.values()), strict=True))
    if "ddp" in case.protocols:
        chosen["ddp"] = chosen.get("all-reduce") or chosen["bsp"]
    return chosen


def _mean_steps(
    case: Case, protocol: str, seeds: Collection[int], data: Path, message: int | None, rate: float
) -> float:
    return fmean(_steps(case, simulated(case, protocol, rate, seed, data, message)) for seed in seeds)


def _steps(case: Case, run: Run) -> float:
    """Iterations to the target; where it is not met, more than any, the fewer the better the accuracy."""
    met = run.met(case.target)
    return met[0] if met else 1e6 * (2 - (run.last if math.isfinite(run.last) else 0.0))


def simulated(case: Case, protocol: str, rate: float, seed: int, data: Path, message: int | None = None) -> Run:
    """Make the run in virtual time, with real gradients. See `Cluster.scenario` for `message`."""
    with tempfile.TemporaryDirectory(prefix="paceline-claims-") as name:
        cluster, out = Path(name) / "cluster.toml", Path(name) / "run"
        cluster.write_text(case.cluster.scenario(message, stores=has_store(protocol)))
        command = [sys.executable, "-m", "paceline", "simulate", cluster, "-p", protocol]
        command += ["--seed", seed, "--record", case.task.record, "--out", out]
        command += [] if case.task.seconds is None else ["--seconds", case.task.seconds]
        command += ["--gradients", TRAIN, "--data", data, *case.task.words(rate, seed)]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode not in (0, DIVERGED):
            sys.exit(done.stderr)
        return _read(case, protocol, rate, seed, out)


def table(case: Case, rows: Rows) -> list[list[str]]:
    """A row for each protocol."""
    head = ["protocol", "rate", "seeds", "s for an iteration", f"iterations to {case.target:g}", "seconds to it"]
    body = []
    for protocol in case.protocols:
        if (row := rows.get((case.name, protocol))) and row.runs:
            cells = [f"{row.rate:g}", str(len(row.runs)), told(row.period, ".3f"), told(row.to_target(0), ".0f")]
            stale = told(mean(run.staleness for run in row.runs), ".1f").split(" ")[0]
            body.append(
                [
                    protocol,
                    *cells,
                    told(row.to_target(1), ".1f"),
                    told(row.whole, ".1f"),
                    told(row.accuracy, ".3f"),
                    stale,
                ]
            )
    return [[*head, "seconds in all", "accuracy", "staleness"], *body]


def main(doc: str | None, cases: Sequence[Case], claims: Callable[[Rows], list[Claim]]) -> int:
    """Make all runs that the file does not have, and print tables and claims."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in cases]
    parser.add_argument("--data", type=Path, required=True, help="MNIST, as for examples/mnist.py")
    kept = "a file with a line for each run; what it has is kept, so begin another one if anything has changed"
    parser.add_argument("--runs", type=Path, required=True, help=kept)
    parser.add_argument(
        "--cases", nargs="+", choices=names, default=names, metavar="CASE", help=f"of {', '.join(names)}"
    )
    parser.add_argument("--protocols", nargs="+", metavar="P", help="only these")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS, metavar="S", help="(default: 0 to 4)")
    parser.add_argument("--congestion", default="cubic", help="TCP's (default: cubic)")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process is left running

    rates, runs = read_runs(args.runs)
    about, began, failed = machine(), time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="paceline-claims-") as name:
        data = Path(name) / "mnist.npz"
        part_of(args.data, data, max(case.task.samples for case in cases))
        wanted = [case for case in cases if case.name in args.cases]
        by_name = {case.name: case for case in cases}
        for case in wanted if args.seeds else ():
            own = by_name[case.like or case.name]
            if own.name not in rates:
                rates[own.name] = tuned(own, data)
                keep(args.runs, {"case": own.name, "rates": rates[own.name]})
            rates[case.name] = rates[own.name]
        for seed in args.seeds:
            for case in wanted:
                for protocol in [one for one in case.protocols if args.protocols is None or one in args.protocols]:
                    rate = rates[case.name][protocol]
                    if any((one.case, one.protocol, one.seed) == (case.name, protocol, seed) for one in runs):
                        continue
                    started = time.monotonic()
                    try:
                        run = measure(case, protocol, rate, seed, data, args.congestion)
                    except NotHere as error:
                        print(error, file=sys.stderr)
                        return 2
                    except Failed as failure:
                        failed.append(f"{case.name}, {protocol}, seed {seed}: {failure}")
                        print(failed[-1], file=sys.stderr)
                        continue
                    runs.append(run)
                    keep(args.runs, asdict(run))
                    took = time.monotonic() - started
                    about_it = f"{run.period:.3f} s an iteration, accuracy {run.last:.3f}, {took:.0f} s"
                    print(f"{case.name}, {protocol}, seed {seed}: {about_it}", file=sys.stderr)
    rows = {}
    for case in cases:
        for protocol in case.protocols:
            own = [one for one in runs if (one.case, one.protocol) == (case.name, protocol)]
            if own:
                rows[case.name, protocol] = Row(own[0].rate, own, case.target)
    print(
        f"{about['cores']} cores, {about['memory_gib']} GiB, torch {about['torch']} ({about['cpu_capability']}); "
        f"{len(runs)} runs" + (f", the last of them in {time.monotonic() - began:.0f} s" if args.seeds else "")
    )
    for case in cases:
        if len(rows_of := table(case, rows)) > 1:
            print(f"\n{case.name}:\n")
            print_table(rows_of, args.markdown, left=(0,))
    print()
    print_claims(claims(rows), args.markdown)
    return 1 if failed else 0


def read_runs(file: Path) -> tuple[dict[str, dict[str, float]], list[Run]]:
    """The rates that were chosen, and the runs that were made."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    rates = {one["case"]: one["rates"] for one in lines if "rates" in one}
    return rates, [Run(**{**one, "curve": [tuple(point) for point in one["curve"]]}) for one in lines if "curve" in one]


def keep(file: Path, line: Mapping[str, object]) -> None:
    with file.open("a") as kept:
        kept.write(json.dumps(line) + "\n")


def part_of(data: Path, file: Path, samples: int) -> None:
    """Write what the runs read of MNIST: each of their workers reads it."""
    sizes = {"train_images": samples, "train_labels": samples, "test_images": TESTS, "test_labels": TESTS}
    with np.load(data) as whole:
        np.savez(file, **{name: whole[name][:size] for name, size in sizes.items()})
