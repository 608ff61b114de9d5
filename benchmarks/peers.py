"""The same training under DDP, Join, torchft, hivemind, a Ray parameter server and Paceline, between four machines.

    python -m venv peers
    peers/bin/pip install -e '.[ray]' ray==2.60.0
    peers/bin/pip install torchft-nightly==2026.10.26 hivemind==1.1.12
    python benchmarks/peers.py --data mnist.npz --runs peers.jsonl --python peers/bin/python --markdown

Each machine is a network namespace with a link of 100 Mbit/s each way and one worker. All variants train the model of
`benchmarks/claims/train.py` on the same part of MNIST, in batches of 16, by SGD with momentum, and their steps take the
same time. The scripts in `benchmarks/peers/` follow each library's own examples. Cases:

    equal   four equal workers
    slow    the last worker's steps take twice as long
    killed  four equal workers, and worker 2 gets SIGKILL half-way

Each run trains for `--seconds`. *Seconds to the target* end with the first of two copies in turn that reach it. The
copies of worker 0's parameters are evaluated after the run. *Steps* are batches of 16 that went into the model, of all
workers. Each variant has the learning rate of `--rates` that reaches the target first in case `slow`, with a seed that
no table uses; the grid goes on where the best rate is at its end. Case `killed` has the same rates.

Starting a run takes 10 to 40 s. A seed of all variants and cases takes about 35 minutes, and choosing the rates as long
once.

After the kill a run goes on, fails (all workers end) or hangs (no step for 60 s). *Seconds lost* are the time from the
kill to the end of the run, less the time that the other workers' steps since then would have taken at their pace from
before.

A variant that can't be imported or fails is named below the tables, with the last line of its error. `--runs` keeps
each run as it ends, and what the file has is not run again. It needs root, `ip` and `tc`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hosts import PORT, start, use_congestion
from rates import tried
from step import Failed, machine, print_table
from torch.nn.utils import vector_to_parameters

from paceline.net.token import Token, write
from paceline.records.comparison import MeanOfRuns, mean
from support.namespaces import Network, NotHere

sys.path.append(str(Path(__file__).parent / "claims"))

from train import Pace, Paced, mnist  # type: ignore[import-not-found]

LIBC = ctypes.CDLL(None, use_errno=True)
NAMES = 0x04000000  # CLONE_NEWUTS
SHARED_MEMORY = Path("/dev/shm")
SCRIPTS = Path(__file__).parent / "peers"
HOSTS = 4
RATE = "100mbit"
TARGET = 0.85
WIDTHS = (64, 64)
SAMPLES = 5120
KILLED = 2
"""The worker that is killed."""
START = 120.0
"""Seconds within which all workers must have begun."""
PATIENCE = 60.0
"""Seconds without a step after which a run hangs."""
FRESH = 3.0
"""Seconds within which a worker that goes on has made steps."""
TUNING = 100
"""The seed that learning rates are chosen with."""
CASES = {"equal": 1.0, "slow": 2.0, "killed": 1.0}
"""By name: how many times as long the last worker's steps take."""

Command = list[object]
Commands = list[tuple[int, Command, Mapping[str, str]]]
"""Each host, its command, and the command's own variables."""


@dataclass(frozen=True, slots=True)
class Options:
    """What all runs of an invocation have in common."""

    python: Path
    data: Path
    seconds: float
    compute: float


@dataclass(frozen=True, slots=True)
class Variant:
    """One of those that are compared."""

    title: str
    commands: Callable[[Path, Path, Sequence[object]], Commands]
    """From the interpreter, the run's folder and the flags of every script."""
    imports: str
    """The module that its interpreter must have."""


def address(host: int) -> str:
    """Return the address of a machine."""
    return str(Network.address(host))


def script(python: Path, name: str, host: int, flags: Sequence[object], *more: object) -> Command:
    """Return the command of one worker's script."""
    where = ["--rank", host, "--workers", HOSTS, "--head", address(0), "--address", address(host)]
    return [python, SCRIPTS / name, *flags, *where, *more]


def ddp(*more: object) -> Callable[[Path, Path, Sequence[object]], Commands]:
    """One process a machine, with the variables that torchrun sets."""

    def commands(python: Path, folder: Path, flags: Sequence[object]) -> Commands:
        shared = {"WORLD_SIZE": str(HOSTS), "MASTER_ADDR": address(0), "MASTER_PORT": "29500"}
        return [
            (host, script(python, "torch_ddp.py", host, flags, *more), {**shared, "RANK": str(host)})
            for host in range(HOSTS)
        ]

    return commands


def torchft(method: str) -> Callable[[Path, Path, Sequence[object]], Commands]:
    """A lighthouse on the first machine, and one replica group a machine."""

    def commands(python: Path, folder: Path, flags: Sequence[object]) -> Commands:
        lighthouse: Command = [python.with_name("torchft_lighthouse"), "--min_replicas", 1]
        lighthouse += ["--quorum_tick_ms", 100, "--join_timeout_ms", 10000]
        workers = [script(python, "torch_ft.py", host, flags, "--method", method) for host in range(HOSTS)]
        return [(0, lighthouse, {}), *((host, words, {}) for host, words in enumerate(workers))]

    return commands


def hivemind(*more: object) -> Callable[[Path, Path, Sequence[object]], Commands]:
    """One peer a machine."""

    def commands(python: Path, folder: Path, flags: Sequence[object]) -> Commands:
        return [(host, script(python, "hive.py", host, flags, *more), {}) for host in range(HOSTS)]

    return commands


def ray(mode: str) -> Callable[[Path, Path, Sequence[object]], Commands]:
    """A Ray node on each machine, and the driver on the first one."""

    def commands(python: Path, folder: Path, flags: Sequence[object]) -> Commands:
        head = f"{address(0)}:6379"
        nodes: Commands = []
        for host in range(HOSTS):
            role = [f"--address={head}"] if host else ["--head", "--port=6379", "--include-dashboard=false"]
            about = [f"--node-ip-address={address(host)}", "--num-cpus=2", "--object-store-memory=100000000", "--block"]
            about += [f"--temp-dir={folder / f'ray-{host}'}", "--disable-usage-stats"]
            resources = f"--resources={json.dumps({f'machine-{host}': 1})}"
            nodes.append((host, [python, "-m", "ray.scripts.scripts", "start", *role, *about, resources], {}))
        return [*nodes, (0, script(python, "ray_server.py", 0, flags, "--mode", mode, "--ray", head), {})]

    return commands


def paceline(protocol: str) -> Callable[[Path, Path, Sequence[object]], Commands]:
    """`paceline run` on the first machine, and `paceline join` on the others."""

    def commands(python: Path, folder: Path, flags: Sequence[object]) -> Commands:
        head, ours = f"{address(0)}:{PORT}", [python, "-m", "paceline"]
        run: Command = [*ours, "run", "-p", protocol, "-n", 1, "--threads", 1, "--checkpoint", 0, "--tee", "none"]
        run += ["--quiet", "--out", folder / "run", "--listen", head, "--hosts", HOSTS, "--name", "host-0"]
        run += ["--trusted-network", SCRIPTS / "ours.py", *flags, "--workers", HOSTS]
        join: Command = [*ours, "join", head, "--wait", "--trusted-network", "-n", 1]
        return [(0, run, {}), *((host, [*join, "--name", f"host-{host}"], {}) for host in range(1, HOSTS))]

    return commands


VARIANTS = {
    "ddp": Variant("DDP, Gloo", ddp(), "torch"),
    "ddp-join": Variant("DDP, Join", ddp("--join"), "torch"),
    "torchft-ddp": Variant("torchft, DDP", torchft("ddp"), "torchft"),
    "torchft-local-sgd": Variant("torchft, LocalSGD", torchft("local-sgd"), "torchft"),
    "torchft-diloco": Variant("torchft, DiLoCo", torchft("diloco"), "torchft"),
    "hivemind": Variant("hivemind", hivemind(), "hivemind"),
    "hivemind-local": Variant("hivemind, local updates", hivemind("--local"), "hivemind"),
    "ray-sync": Variant("Ray parameter server, sync", ray("sync"), "ray"),
    "ray-async": Variant("Ray parameter server, async", ray("async"), "ray"),
    **{
        name: Variant(f"Paceline {name}", paceline(name), "paceline")
        for name in ("bsp", "asp", "balanced", "ssp", "ps-plus")
    },
}


@dataclass(frozen=True, slots=True)
class Kill:
    """What happened after a worker was killed."""

    outcome: str
    """`goes on`, `fails` or `hangs`."""
    seconds: float
    """From the kill until the outcome was seen."""
    lost: float | None = None
    """Seconds, if it went on."""
    left: int = 0
    """Workers that made steps in the end."""
    error: str = ""
    """The last line of what failed."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run came to."""

    variant: str
    case: str
    rate: float
    seed: int
    steps: float = 0.0
    """Of all workers, a second."""
    curve: Sequence[tuple[float, float]] = ()
    """Seconds of training and accuracy, of each copy of the parameters."""
    kill: Kill | None = None
    error: str = ""
    """Why there is no figure."""

    @property
    def to_target(self) -> float | None:
        """Seconds until the target."""
        for (seconds, accuracy), (_, following) in pairwise(self.curve):
            if min(accuracy, following) >= TARGET:
                return seconds
        return None

    @property
    def last(self) -> float | None:
        """The accuracy of the last copy."""
        return self.curve[-1][1] if self.curve else None

    @property
    def key(self) -> tuple[str, str, float, int]:
        """What tells it from other runs."""
        return self.variant, self.case, self.rate, self.seed


Processes = list[subprocess.Popen[bytes]]


def entering(network: Network, host: int) -> Callable[[], None]:
    """Return what takes a process to that machine, whose name is its address."""
    enter = network.enter(host)

    def prepare() -> None:
        enter()
        if LIBC.unshare(NAMES):
            raise OSError(ctypes.get_errno(), "no namespace for the machine's name")
        socket.sethostname(address(host))

    return prepare


def is_running(process: int) -> bool:
    """Return whether that process is there and no zombie."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextmanager
def started(network: Network, commands: Commands, folder: Path) -> Iterator[Processes]:
    """Run the commands, each on its host. In the end nothing of them is left."""
    before = set(SHARED_MEMORY.glob("torch_*"))
    shared = {"PYTHONUNBUFFERED": "1", "PACELINE_TOKEN_FILE": str(folder / "token")}
    processes: Processes = []
    try:
        for number, (host, command, own) in enumerate(commands):
            output, enter = folder / f"output-{number}", entering(network, host)
            processes.append(start(command, output, enter, {**shared, **own}, folder))
        yield processes
    finally:
        deadline = time.monotonic() + 10
        while (left := [host for host in range(HOSTS) if network.processes(host)]) and time.monotonic() < deadline:
            for host in left:
                network.kill(host)
            for process in processes:
                process.poll()
            time.sleep(0.05)
        for process in processes:
            process.wait()
        # Killed processes leave the tensors that torch let them share.
        for left_behind in set(SHARED_MEMORY.glob("torch_*")) - before:
            if not is_running(int(left_behind.name.split("_")[1])):
                left_behind.unlink(missing_ok=True)


def last_line(folder: Path, processes: Processes) -> str:
    """Return the last line of a process that failed, or of the last one: of an error, if there is such a line."""
    failed = [number for number, process in enumerate(processes) if process.poll() not in (None, 0, -signal.SIGKILL)]
    written = (folder / f"output-{(failed or [len(processes) - 1])[0]}").read_text(errors="replace")
    lines = [line.strip() for line in reversed(written.splitlines()) if line.strip()]
    return next((line for line in lines if "Error: " in line), lines[0] if lines else "it wrote nothing")[:300]


Notes = list[tuple[float, int]]
"""When, and how many steps were done."""


def notes_of(folder: Path, rank: int) -> Notes:
    """Return the whole lines that this worker has written."""
    file = folder / f"notes-{rank}"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [(float(at), int(steps)) for at, steps in map(str.split, lines)]


def beginning(folder: Path, processes: Processes) -> float:
    """Return when the last worker began. Raises Failed."""
    deadline = time.monotonic() + START
    while True:
        first = [notes[0][0] for rank in range(HOSTS) if (notes := notes_of(folder, rank))]
        if len(first) == HOSTS:
            return max(first)
        if any(process.poll() for process in processes):
            raise Failed(last_line(folder, processes))
        if time.monotonic() > deadline:
            raise Failed(f"training had not begun after {START:g} s; last line: {last_line(folder, processes)}")
        time.sleep(0.1)


def alive(folder: Path, rank: int) -> bool:
    """Return whether that worker's process runs."""
    return is_running(int((folder / f"pid-{rank}").read_text()))


def kill(folder: Path, rank: int) -> float:
    """Kill that worker and the processes that it started, and return when."""
    processes = [int((folder / f"pid-{rank}").read_text())]
    for process in processes:  # it grows
        with suppress(OSError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                processes += [int(child) for child in (thread / "children").read_text().split()]
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return time.monotonic()


def after_kill(folder: Path, processes: Processes, killed: float, watch: float) -> tuple[str, float]:
    """Return the outcome and when it was seen, at least `watch` seconds later."""
    others = [rank for rank in range(HOSTS) if rank != KILLED]
    while True:
        time.sleep(0.2)
        for process in processes:
            process.poll()
        now = time.monotonic()
        last = max(notes[-1][0] for rank in others if (notes := notes_of(folder, rank)))
        if not any(alive(folder, rank) for rank in others):
            return "fails", now
        if now - max(last, killed) > PATIENCE:
            return "hangs", now
        if now - killed > watch and now - last < FRESH:
            return "goes on", now


def pace(notes: Notes, start: float, end: float) -> tuple[float, float]:
    """Return the steps between the last note until `start` and the last until `end`, and the seconds between these."""
    first = max((at for at, _ in notes if at <= start), default=start)
    last = max((at for at, _ in notes if at <= end), default=end)
    return float(sum(steps for at, steps in notes if first < at <= last)), last - first


def loss_of(folder: Path, began: float, killed: float, end: float) -> float:
    """Return the seconds that the workers that are left lost after the kill."""
    lost = []
    for rank in range(HOSTS):
        if rank != KILLED:
            notes = notes_of(folder, rank)
            before, needed = pace(notes, began + (killed - began) / 2, killed)
            after, _ = pace(notes, killed, end)
            lost.append(end - killed - after * needed / max(1.0, before))
    return sum(lost) / len(lost)


def train(case: str, folder: Path, processes: Processes, began: float, seconds: float) -> tuple[float, Kill | None]:
    """Watch the training. Return when it ended, and what came of a kill. Raises Failed."""
    half = began + seconds / 2
    end = half if case == "killed" else began + seconds
    while time.monotonic() < end:
        if any(process.poll() is not None for process in processes):
            raise Failed(last_line(folder, processes))
        time.sleep(max(0.0, min(0.5, end - time.monotonic())))
    if case != "killed":
        return end, None
    killed = kill(folder, KILLED)
    outcome, seen = after_kill(folder, processes, killed, seconds / 2)
    left = sum(notes_of(folder, rank)[-1][0] > seen - FRESH for rank in range(HOSTS) if rank != KILLED)
    if outcome == "goes on":
        return seen, Kill(outcome, seen - killed, loss_of(folder, began, killed, seen), left)
    return seen, Kill(outcome, seen - killed, error=last_line(folder, processes) if outcome == "fails" else "")


def evaluated(folder: Path, began: float, data: Path) -> list[tuple[float, float]]:
    """Return the seconds and the accuracy of each copy of the parameters."""
    model = Paced([28 * 28, *WIDTHS, 10], Pace()).eval()
    _, images, targets = mnist(str(data), SAMPLES)
    found = []
    for file in folder.glob("look-*.npy"):
        vector_to_parameters(torch.from_numpy(np.load(file)), model.parameters())
        with torch.no_grad():
            right = model(images).argmax(dim=1) == targets
        found.append((float(file.stem.removeprefix("look-")) - began, right.float().mean().item()))
    return sorted(found)


def measure(name: str, case: str, rate: float, seed: int, options: Options) -> Run:
    """Make one run. A run that fails says why."""
    flags: list[object] = ["--data", options.data, "--lr", rate, "--seed", seed, "--slow", CASES[case]]
    flags += ["--compute", options.compute, "--samples", SAMPLES, "--widths", *WIDTHS]
    with (
        tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as temporary,
        Network(HOSTS, RATE) as network,
    ):
        folder = Path(temporary)
        use_congestion(network, HOSTS, "cubic")
        write(Token.drawn(), folder / "token")
        commands = VARIANTS[name].commands(options.python, folder, [*flags, "--folder", folder])
        try:
            with started(network, commands, folder) as processes:
                began = beginning(folder, processes)
                end, killed = train(case, folder, processes, began, options.seconds)
        except Failed as failure:
            return Run(name, case, rate, seed, error=str(failure))
        steps = sum(sum(done for at, done in notes_of(folder, rank) if at <= end) for rank in range(HOSTS))
        curve = evaluated(folder, began, options.data)
        return Run(name, case, rate, seed, steps / (end - began), curve, killed)


class Runs:
    """The runs that were made, in a file."""

    def __init__(self, file: Path, options: Options) -> None:
        self._file, self._options = file, options
        lines = file.read_text().splitlines() if file.exists() else []
        self.made = {run.key: run for run in map(_read, map(json.loads, lines))}

    def get(self, name: str, case: str, rate: float, seed: int) -> Run:
        """Return that run. Make it if the file has none, or one that failed."""
        run = self.made.get((name, case, rate, seed))
        if run is not None and not run.error:
            return run
        began = time.monotonic()
        run = self.made[name, case, rate, seed] = measure(name, case, rate, seed, self._options)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(run)) + "\n")
        what = run.error or (run.kill.outcome if run.kill else f"{run.steps:.1f} steps/s, accuracy {run.last or 0:.3f}")
        print(f"{name}, {case}, rate {rate:g}, seed {seed}: {what} ({time.monotonic() - began:.0f} s)", file=sys.stderr)
        return run

    def of(self, name: str, case: str) -> list[Run]:
        """Return that variant's runs of a case that a table shows."""
        runs = [run for run in self.made.values() if (run.variant, run.case) == (name, case) and run.seed != TUNING]
        return sorted(runs, key=lambda run: run.seed)


def _read(line: Mapping[str, Any]) -> Run:
    killed = Kill(**line["kill"]) if line["kill"] else None
    return Run(**{**line, "curve": [tuple(point) for point in line["curve"]], "kill": killed})


def tuned(name: str, rates: Sequence[float], runs: Runs) -> float:
    """Return the rate that reaches the target first, or else has the best accuracy."""
    if len(rates) == 1:
        return rates[0]

    def cost(rate: float) -> tuple[float, float]:
        run = runs.get(name, "slow", rate, TUNING)
        return run.to_target or 1e9, -(run.last or 0.0)

    costs = tried(rates, cost)
    return min(costs, key=costs.__getitem__)


def missing(name: str, python: Path) -> str | None:
    """Return why this interpreter can't import what a variant needs, or None."""
    done = subprocess.run([python, "-c", f"import {VARIANTS[name].imports}"], capture_output=True, text=True)
    return (done.stderr.strip().splitlines() or ["no message"])[-1] if done.returncode else None


def told(value: MeanOfRuns | None, form: str = ".1f") -> str:
    """As a cell has it: the mean, and half of the 95 % interval."""
    if value is None:
        return "–"
    return f"{value.mean:{form}}" + ("" if value.plus_minus is None else f" ± {value.plus_minus:{form}}")


def speeds(case: str, names: Iterable[str], runs: Runs) -> list[list[str]]:
    """Return the rows of a case without a kill."""
    rows = [["variant", "rate", "seeds", f"s to {TARGET:g}", "steps/s", "accuracy"]]
    for name in names:
        if own := [run for run in runs.of(name, case) if not run.error]:
            reached = [run.to_target for run in own if run.to_target is not None]
            to_target = told(mean(reached)) if len(reached) == len(own) else f"{len(reached)} of {len(own)}"
            rate = ", ".join(f"{one:g}" for one in sorted({run.rate for run in own}))
            figures = [told(mean(run.steps for run in own)), told(mean(run.last for run in own), ".3f")]
            rows.append([VARIANTS[name].title, rate, str(len(own)), to_target, *figures])
    return rows


def outcomes(names: Iterable[str], runs: Runs) -> list[list[str]]:
    """Return the rows of the case with a kill."""
    rows = [["variant", "outcome", "last line of its error", "seeds", "after, s", "s lost", "workers left"]]
    for name in names:
        if own := [run.kill for run in runs.of(name, "killed") if run.kill]:
            counts = Counter(one.outcome for one in own)
            outcome = own[0].outcome if len(counts) == 1 else ", ".join(f"{n} × {what}" for what, n in counts.items())
            stopped = mean(one.seconds for one in own if one.outcome != "goes on")
            error = next((one.error for one in own if one.error), "")
            left = told(mean(float(one.left) for one in own if one.outcome == "goes on"), ".0f").split(" ")[0]
            figures = [told(stopped), told(mean(one.lost for one in own)), left]
            rows.append([VARIANTS[name].title, outcome, error[:90].replace("|", "/"), str(len(own)), *figures])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="MNIST, as for examples/mnist.py")
    parser.add_argument("--runs", type=Path, required=True, help="a file with a line for each run; what it has is kept")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="an interpreter that has the peers")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="V")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2], metavar="S", help="(default: 0 1 2)")
    parser.add_argument("--rates", nargs="+", type=float, default=[0.01, 0.03, 0.1], metavar="R", help="to choose from")
    parser.add_argument("--seconds", type=float, default=30.0, help="training time of a run (default: 30)")
    parser.add_argument("--compute", type=float, default=0.05, help="seconds of a step (default: .05)")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process is left running
    torch.set_num_threads(1)

    python = args.python.absolute()  # not resolved: a virtual environment's is a link
    options = Options(python, args.data.absolute(), args.seconds, args.compute)
    runs, why = Runs(args.runs, options), {}
    if args.seeds:
        why = {name: reason for name in args.variants if (reason := missing(name, python))}
    names = [name for name in args.variants if name not in why]
    try:
        rates = {name: tuned(name, args.rates, runs) for name in names} if args.seeds else {}
        for seed in args.seeds:
            for case in args.cases:
                for name in names:
                    runs.get(name, case, rates[name], seed)
    except NotHere as error:
        print(error, file=sys.stderr)
        return 2

    about = machine()
    print(f"{about['cores']} cores, {about['memory_gib']} GiB, torch {about['torch']} ({about['cpu_capability']})")
    for case in args.cases:
        rows = outcomes(names, runs) if case == "killed" else speeds(case, names, runs)
        if len(rows) > 1:
            print(f"\n{case}:\n")
            print_table(rows, args.markdown)
    failed = [run for name in names for case in args.cases for run in runs.of(name, case) if run.error]
    for name, reason in why.items():
        print(f"\nnot measured: {VARIANTS[name].title}: {reason}")
    for run in failed:
        print(f"\nnot measured: {VARIANTS[run.variant].title}, {run.case}, seed {run.seed}: {run.error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
