"""What synchronisation takes over a network: Paceline, plain and encrypted, and DDP over Gloo, in turn.

    python benchmarks/network.py --json network.json --markdown     # root; 5 rounds, about 40 minutes
    python benchmarks/network.py --quick

Each machine is a network namespace with one worker, and a link shaped to `--rate` both ways. All of them share this
machine's cores, memory and kernel. A step's gradients cost next to nothing, so a step is what synchronisation takes:

    none            as many processes at once, which know nothing of each other
    ddp             DistributedDataParallel over Gloo, in plain
    bsp, bsp-tls    `paceline run --listen -p bsp`, over a trusted network and encrypted
    asp, asp-tls    the same with asp: each worker for itself, for some seconds
    small, small-tls
                    asp with a model of 64 k parameters
    control, control-tls
                    how long the second machine's worker waits for its next batch while nobody else is at work: a
                    question from worker to agent to head, and the answer all the way back
    control-one     the same where all workers are on the head

A *bound* is what the links alone allow for. With the store on the head, the head's link carries H - 1 models in, and
then H - 1 out. A ring, or a store that is spread over the hosts, moves 2 (H - 1) / H models over each link.

CPU is what all processes of the second machine take for a step, less what they take without synchronisation, for each
GB that goes over its link.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from step import Failed, machine, print_table

from paceline.fabric.token import Token, write

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.namespaces import Network, NotHere

WORKLOAD = Path(__file__).parent / "workloads" / "exchange.py"
TITLES = {
    "none": "no synchronisation",
    "ddp": "DDP, Gloo",
    "bsp": "Paceline bsp",
    "bsp-tls": "Paceline bsp, encrypted",
    "asp": "Paceline asp",
    "asp-tls": "Paceline asp, encrypted",
    "small": "Paceline asp, 64 k",
    "small-tls": "Paceline asp, 64 k, encrypted",
    "control-one": "all on the head",
    "control": "plain",
    "control-tls": "encrypted",
}
VARIANTS = tuple(TITLES)
STEPPED = ("none", "ddp", "bsp", "bsp-tls")
PARAMETERS, SMALL, LEAST = 25_000_000, 64_000, 25
PORT = 7117
PAYLOAD = 1448 / 1514
"""Of the bytes of a frame of Ethernet, those that TCP carries for the user, as tbf counts them."""
WARMUP = 2


@dataclass(frozen=True, slots=True)
class Measurement:
    """One variant, once. Times in seconds."""

    hosts: int
    variant: str
    repeat: int
    step: float
    """The median over each worker's steps, and over the workers."""
    head: float
    """Steps per second of the head's worker."""
    others: float
    """Steps per second of all other workers."""
    cpu: float
    """What the processor of the second machine does for a step."""
    wait: tuple[float, float]
    """How long that machine's worker waited for a batch: the median, and the 99th percentile."""


def measure(hosts: int, variant: str, repeat: int, args: argparse.Namespace) -> Measurement:
    """Run one variant once. Raises Failed, also when it takes too long; leaves no process behind."""
    kind, _, how = variant.partition("-")
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="paceline-network-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(temporary))
        network = stack.enter_context(Network(hosts, args.rate))
        write(Token.drawn(), folder / "token")
        script: list[Any] = [WORKLOAD, "--times", folder, *_amount(kind, args.quick)]
        run: list[Any] = ["run", "-p", "bsp" if kind == "bsp" else "asp", "--threads", 1, "--record", 0]
        run += ["--tee", "none", "--out", folder / "run", *_joining(hosts, how, network)]
        join = ["join", f"{network.address(0)}:{PORT}", "--wait", "-n", 1, *_trusted(how)]
        ours = [sys.executable, "-m", "paceline"]
        if kind in ("none", "ddp"):
            about = ["--variant", kind, "--hosts", hosts, "--head", network.address(0)]
            commands = [[sys.executable, *script, *about, "--worker", worker] for worker in range(hosts)]
        else:
            commands = [[*ours, *run, *script, "--variant", "paceline"]]
            if how != "one":
                commands += [[*ours, *join, "--name", f"host-{host}"] for host in range(1, hosts)]
        _run(network, commands, folder, args.timeout)
        told = [json.loads((folder / f"{worker}.json").read_text()) for worker in range(hosts)]
    steps = [[after - before for before, after in pairwise(one["returned"])] for one in told]
    waits = quantiles(told[1]["waited"], n=100)
    return Measurement(
        hosts=hosts,
        variant=variant,
        repeat=repeat,
        step=median(median(times) for times in steps if times),
        head=_rate(steps[0]),
        others=sum(map(_rate, steps[1:])),
        cpu=told[1]["cpu"] / len(steps[1]),
        wait=(waits[49], waits[98]),
    )


def _joining(hosts: int, how: str, network: Network) -> list[Any]:
    """The head's flags that say where its workers are."""
    if how == "one":
        return ["-n", hosts]
    return ["-n", 1, "--listen", f"{network.address(0)}:{PORT}", "--hosts", hosts, "--name", "head", *_trusted(how)]


def _trusted(how: str) -> list[str]:
    return [] if how == "tls" else ["--trusted-network"]


def _rate(steps: Sequence[float]) -> float:
    return len(steps) / sum(steps) if steps else 0.0


def _amount(kind: str, quick: bool) -> list[Any]:
    """How much the workload does for a measurement of that kind."""
    match kind:
        case "asp":
            return ["--parameters", PARAMETERS, "--warmup", WARMUP, "--seconds", 8 if quick else 15]
        case "small":
            return ["--parameters", SMALL, "--warmup", 50, "--seconds", 1 if quick else 5]
        case "control":
            return ["--parameters", LEAST, "--warmup", 50, "--steps", 200 if quick else 1000, "--loader"]
        case _:
            return ["--parameters", PARAMETERS, "--warmup", WARMUP, "--steps", 2 if quick else 5]


def _run(network: Network, commands: Sequence[Sequence[Any]], folder: Path, timeout: float) -> None:
    """Run these to their ends, one on each host, the head's first."""
    variables = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "e0"}
    environment = {**os.environ, **variables, "PACELINE_TOKEN_FILE": str(folder / "token")}
    deadline, processes = time.monotonic() + timeout, []
    try:
        for host, command in enumerate(commands):
            with (folder / f"output-{host}").open("wb") as file:
                process = subprocess.Popen(
                    [str(part) for part in command],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
                    preexec_fn=network.enter(host),
                )
            processes.append(process)
        try:
            codes = [process.wait(max(0.0, deadline - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            raise Failed(f"it had not ended after {timeout:g} s") from None
    finally:
        for host, process in enumerate(processes):
            network.kill(host)
            process.wait()
    for host, code in enumerate(codes):
        if code:
            last = (folder / f"output-{host}").read_text(errors="replace").strip().splitlines()[-8:]
            raise Failed("\n    ".join([f"host {host}: exit code {code}", *last]))


def _bytes_per_second(rate: str) -> float:
    found = re.fullmatch(r"(\d+)(mbit|gbit)", rate)
    if found is None:
        raise SystemExit(f"--rate is {rate}; write such as 1gbit or 250mbit")
    return int(found[1]) * {"mbit": 1e6, "gbit": 1e9}[found[2]] / 8 * PAYLOAD


def step_table(measurements: Sequence[Measurement], rate: str) -> list[list[str]]:
    """For each number of hosts and variant: a step, against the bounds and DDP's."""
    rows = [["hosts", "links", "variant", "step, s", "min–max", "× bound, store on the head", "× bound, ring"]]
    rows[0] += ["× DDP", "CPU, s/GB", "min–max"]
    one_way = 4 * PARAMETERS / _bytes_per_second(rate)
    for (hosts, variant), repeats in _cells(measurements, STEPPED).items():
        ddp, none = (_of(measurements, hosts, other) for other in ("ddp", "none"))
        steps = [one.step for one in repeats]
        moved = 8e-9 * PARAMETERS * (2 * (hosts - 1) / hosts if variant == "ddp" else 1)
        synchronised = variant != "none"
        rows.append(
            [
                str(hosts),
                rate,
                TITLES[variant],
                *_middle_and_spread(steps),
                f"{median(steps) / (2 * (hosts - 1) * one_way):.2f}" if variant.startswith("bsp") else "",
                f"{median(steps) / (2 * (hosts - 1) / hosts * one_way):.2f}" if synchronised else "",
                _middle([one.step / ddp[one.repeat].step for one in repeats if synchronised and one.repeat in ddp]),
                *_middle_and_spread(
                    [(one.cpu - none[one.repeat].cpu) / moved for one in repeats if synchronised and one.repeat in none]
                ),
            ]
        )
    return rows


def updates_table(measurements: Sequence[Measurement], rate: str) -> list[list[str]]:
    """Updates per second of workers that don't wait for each other."""
    rows = [
        ["hosts", "links", "variant", "updates/s, all", "of the head's worker", "of the others", "min–max", "× bound"]
    ]
    for (hosts, variant), repeats in _cells(measurements, ("asp", "asp-tls", "small", "small-tls")).items():
        size = 4 * (SMALL if variant.startswith("small") else PARAMETERS)
        bound = _bytes_per_second(rate) / size
        others = [one.others for one in repeats]
        rows.append(
            [
                str(hosts),
                rate,
                TITLES[variant],
                _middle([one.head + one.others for one in repeats]),
                _middle([one.head for one in repeats]),
                *_middle_and_spread(others),
                f"{median(others) / bound:.2f}",
            ]
        )
    return rows


def control_table(measurements: Sequence[Measurement], rate: str) -> list[list[str]]:
    """How long a worker of the second machine waits for the head's answer."""
    rows = [["hosts", "links", "connection", "median, µs", "min–max", "99th percentile, µs", "min–max"]]
    for (hosts, variant), repeats in _cells(measurements, ("control-one", "control", "control-tls")).items():
        both = ([one.wait[place] * 1e6 for one in repeats] for place in (0, 1))
        cells = [cell for values in both for cell in _middle_and_spread(values)]
        rows.append([str(hosts), rate, TITLES[variant], *cells])
    return rows


def print_tables(measurements: Sequence[Measurement], rate: str, markdown: bool) -> None:
    """Print what there is."""
    for table in (step_table, updates_table, control_table):
        rows = table(measurements, rate)
        if len(rows) > 1:
            print()
            print_table(rows, markdown)


def _cells(measurements: Sequence[Measurement], variants: Sequence[str]) -> dict[tuple[int, str], list[Measurement]]:
    cells: dict[tuple[int, str], list[Measurement]] = {}
    for one in sorted(measurements, key=lambda one: (one.hosts, VARIANTS.index(one.variant))):
        if one.variant in variants:
            cells.setdefault((one.hosts, one.variant), []).append(one)
    return cells


def _of(measurements: Sequence[Measurement], hosts: int, variant: str) -> dict[int, Measurement]:
    """By repeat: what is compared was measured in the same round."""
    return {one.repeat: one for one in measurements if (one.hosts, one.variant) == (hosts, variant)}


def _middle_and_spread(values: Sequence[float]) -> tuple[str, str]:
    return _middle(values), f"{_short(min(values))}–{_short(max(values))}" if values else ""


def _middle(values: Sequence[float]) -> str:
    return _short(median(values)) if values else ""


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="rounds (default: 5; with --quick, 1)")
    parser.add_argument("--hosts", nargs="+", type=int, default=(2, 4), metavar="H", help="(default: 2 and 4)")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--rate", default="1gbit", help="of each link, each way, as tc writes it (default: 1gbit)")
    parser.add_argument("--quick", action="store_true", help="few steps, one round: to see that it works")
    parser.add_argument("--timeout", type=float, default=180, metavar="S", help="of one measurement (default: 180)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there, as they come")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()
    repeats = args.repeats or (1 if args.quick else 5)
    _bytes_per_second(args.rate)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no measurement is left running
    about, began = machine(), time.monotonic()
    measurements: list[Measurement] = []
    failures: list[str] = []
    for repeat in range(repeats):
        for hosts in args.hosts:
            for variant in args.variants:
                what = f"round {repeat + 1} of {repeats}: {hosts} hosts, {variant}"
                started = time.monotonic()
                try:
                    one = measure(hosts, variant, repeat, args)
                except NotHere as error:
                    print(f"{error}", file=sys.stderr)
                    return 2
                except Failed as failure:
                    failures.append(f"{what}: {failure}")
                    print(failures[-1], file=sys.stderr)
                    continue
                measurements.append(one)
                print(f"{what}: {one.step:.4f} s, in {time.monotonic() - started:.0f} s", file=sys.stderr)
                if args.json:
                    _write(args, about, measurements, failures)

    print(
        f"{about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}, torch {about['torch']} "
        f"({about['cpu_capability']}); links of {args.rate}; {repeats} rounds in {time.monotonic() - began:.0f} s; "
        "medians over the rounds"
    )
    print_tables(measurements, args.rate, args.markdown)
    if failures:
        print(f"\n{len(failures)} measurements failed; they are in no table", file=sys.stderr)
    return 1 if failures else 0


def _write(
    args: argparse.Namespace, about: dict[str, Any], measurements: list[Measurement], failures: list[str]
) -> None:
    content = {
        "machine": about,
        "quick": args.quick,
        "rate": args.rate,
        "measurements": [asdict(one) for one in measurements],
        "failures": failures,
    }
    args.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
