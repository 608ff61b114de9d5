"""What synchronisation takes over a network: Paceline, plain and encrypted, and DDP over Gloo, in turn.

    python benchmarks/network.py --json network.json --markdown     # root; 5 rounds, about 40 minutes
    python benchmarks/network.py --quick
    python benchmarks/network.py --shards head all --variants none ddp bsp bsp-tls asp asp-tls
    python benchmarks/network.py --shards all --hosts 2 --compute 1 --variants none ddp bsp-tls late-tls
    python benchmarks/network.py --hosts 4 --compute 0.5 --slow 2 --variants ddp allreduce adpsgd ripples
    python benchmarks/network.py --shards all --rate 250mbit --hosts 4 --workers 2 --optimizer adamw --timeout 400

Each machine is a network namespace with `--workers` workers, and a link shaped to `--rate` both ways. All of them share
this machine's cores, memory and kernel. Without `--compute` gradients cost next to nothing, so a step is what
synchronisation takes:

    none            as many processes at once, which know nothing of each other
    ddp             DistributedDataParallel over Gloo, in plain
    bsp, bsp-tls    `paceline run --listen -p bsp`, over a trusted network and encrypted
    late, late-tls  the same, where no gradient leaves its host before the step is computed
    allreduce, allreduce-tls
                    `-p all-reduce`: no store, each host makes a slice of every mean gradient
    adpsgd, ripples `-p ad-psgd` and `-p ripples`: replicas are averaged in pairs, and in groups, for some seconds
    asp, asp-tls    `-p asp`: each worker for itself, for some seconds
    small, small-tls
                    asp with a model of 64 k parameters
    control, control-tls
                    how long the second machine's worker waits for its next batch while nobody else is at work: a
                    question from worker to agent to head, and the answer all the way back
    control-one     the same where all workers are on the head

The store is where `--shards` says. A small model is in one piece, on the head. `control` has one worker on a machine.

A *bound* is what the links alone allow for, if each host adds up what its workers made. With the store on the head, the
head's link carries H - 1 models in, and then H - 1 out. A ring, or a store that is spread over the hosts, moves
2 (H - 1) / H models over each link. Under asp each worker's update goes out and a version comes back for it. So all
workers of other hosts make one update in the time of a model, if the store is on the head. If it is spread over the
hosts, all workers make H^2 / (2 (H - 1)).

All connections go by --congestion, whatever this machine is set to: BBR, which some have, looks for the shortest round
trip every 10 s, for 0.2 s in which next to nothing moves, and a step waits for the last of a dozen connections.

CPU is what all processes of the second machine take for a step, less what they take without synchronisation, for each
GB that goes over its link, in or out.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from hosts import PORT, run_all, use_congestion
from step import Failed, machine, print_table

from paceline.net.token import Token, write

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.namespaces import Network, NotHere

WORKLOAD = Path(__file__).parent / "workloads" / "exchange.py"
TITLES = {
    "none": "no synchronisation",
    "ddp": "DDP, Gloo",
    "bsp": "Paceline bsp",
    "bsp-tls": "Paceline bsp, encrypted",
    "late": "Paceline bsp, without overlap",
    "late-tls": "Paceline bsp, encrypted, without overlap",
    "allreduce": "Paceline all-reduce",
    "allreduce-tls": "Paceline all-reduce, encrypted",
    "adpsgd": "Paceline ad-psgd",
    "ripples": "Paceline ripples",
    "asp": "Paceline asp",
    "asp-tls": "Paceline asp, encrypted",
    "small": "Paceline asp, 64 k",
    "small-tls": "Paceline asp, 64 k, encrypted",
    "control-one": "all on the head",
    "control": "plain",
    "control-tls": "encrypted",
}
VARIANTS = tuple(TITLES)
PLACES = {"": "", "head": ", store on the head", "all": ", store on all"}
STEPPED = ("none", "ddp", "bsp", "bsp-tls", "late", "late-tls", "allreduce", "allreduce-tls")
SLOWED = ("none", "ddp", "bsp", "allreduce", "adpsgd", "ripples")
PROTOCOLS = {"bsp": "bsp", "late": "bsp", "allreduce": "all-reduce", "adpsgd": "ad-psgd", "ripples": "ripples"}
"""By kind of variant. All others are asp."""
PARAMETERS, SMALL, LEAST = 25_000_000, 64_000, 25
PAYLOAD = 1448 / 1514
"""Of the bytes of a frame of Ethernet, those that TCP carries for the user, as tbf counts them."""
WARMUP = 2


@dataclass(frozen=True, slots=True)
class Measurement:
    """One variant, once. Times in seconds."""

    hosts: int
    variant: str
    shards: str
    """Where the store is; empty where that doesn't matter."""
    repeat: int
    step: float
    """The median over each worker's steps, and over the workers."""
    head: float
    """Steps per second of the head's workers."""
    others: float
    """Steps per second of all other workers."""
    cpu: float
    """What the processor of the second machine does for a step."""
    moved: float
    """Bytes that go over that machine's link for a step, in and out."""
    wait: tuple[float, float]
    """How long that machine's worker waited for a batch: the median, and the 99th percentile."""


def measure(hosts: int, variant: str, shards: str, repeat: int, args: argparse.Namespace) -> Measurement:
    """Run one variant once. Raises Failed, also when it takes too long; leaves no process behind."""
    kind, _, how = variant.partition("-")
    each = 1 if kind == "control" else args.workers
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="paceline-network-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(temporary))
        network = stack.enter_context(Network(hosts, args.rate))
        use_congestion(network, hosts, args.congestion)
        write(Token.drawn(), folder / "token")
        script: list[Any] = [WORKLOAD, "--times", folder, "--optimizer", args.optimizer, *_amount(kind, args.quick)]
        script += ["--compute", args.compute, *(["--late"] if kind == "late" else [])]
        script += ["--slow", args.slow]
        run: list[Any] = ["run", "-p", PROTOCOLS.get(kind, "asp"), "--threads", 1, "--record", 0]
        run += ["--tee", "none", "--out", folder / "run", *_joining(hosts, each, how, shards, network)]
        join = ["join", f"{network.address(0)}:{PORT}", "--wait", "-n", each, *_trusted(how)]
        ours = [sys.executable, "-m", "paceline"]
        if kind in ("none", "ddp"):
            about = ["--variant", kind, "--processes", hosts * each, "--head", network.address(0)]
            one = [sys.executable, *script, *about]
            commands = [(rank // each, [*one, "--worker", rank]) for rank in range(hosts * each)]
        else:
            commands = [(0, [*ours, *run, *script, "--variant", "paceline"])]
            if how != "one":
                commands += [(host, [*ours, *join, "--name", f"host-{host}"]) for host in range(1, hosts)]
        run_all(network, commands, folder, args.timeout)
        told = [json.loads((folder / f"{worker}.json").read_text()) for worker in range(hosts * each)]
    steps = [[after - before for before, after in pairwise(one["returned"])] for one in told]
    second, done = told[each], len(steps[each])
    waits = quantiles(second["waited"], n=100)
    return Measurement(
        hosts=hosts,
        variant=variant,
        shards=shards,
        repeat=repeat,
        step=median(median(times) for times in steps if times),
        head=sum(map(_rate, steps[:each])),
        others=sum(map(_rate, steps[each:])),
        cpu=second["cpu"] / done,
        moved=second["moved"] / done,
        wait=(waits[49], waits[98]),
    )


def _joining(hosts: int, each: int, how: str, shards: str, network: Network) -> list[Any]:
    """The head's flags that say where workers and store are."""
    if how == "one":
        return ["-n", hosts]
    there = ["--listen", f"{network.address(0)}:{PORT}", "--hosts", hosts, "--name", "head", *_trusted(how)]
    return ["-n", each, *there, *(["--shards-on", shards] if shards else [])]


def _trusted(how: str) -> list[str]:
    return [] if how == "tls" else ["--trusted-network"]


def _rate(steps: Sequence[float]) -> float:
    return len(steps) / sum(steps) if steps else 0.0


def _amount(kind: str, quick: bool) -> list[Any]:
    """How much the workload does for a measurement of that kind."""
    match kind:
        case "asp" | "adpsgd" | "ripples":
            return ["--parameters", PARAMETERS, "--warmup", WARMUP, "--seconds", 8 if quick else 15]
        case "small":
            return ["--parameters", SMALL, "--warmup", 50, "--seconds", 1 if quick else 5]
        case "control":
            return ["--parameters", LEAST, "--warmup", 50, "--steps", 200 if quick else 1000, "--loader"]
        case _:
            return ["--parameters", PARAMETERS, "--warmup", WARMUP, "--steps", 2 if quick else 5]


def _bytes_per_second(rate: str) -> float:
    found = re.fullmatch(r"(\d+)(mbit|gbit)", rate)
    if found is None:
        raise SystemExit(f"--rate is {rate}; write such as 1gbit or 250mbit")
    return int(found[1]) * {"mbit": 1e6, "gbit": 1e9}[found[2]] / 8 * PAYLOAD


def step_table(measurements: Sequence[Measurement], rate: str) -> list[list[str]]:
    """For each number of hosts and variant: a step, against the bounds and DDP's."""
    rows = [["hosts", "links", "variant", "step, s", "min–max", "ring's bound, s", "× bound, ring"]]
    rows[0] += ["× bound, store on the head", "× DDP", "CPU, s/GB", "min–max", "models over the second link"]
    one_way = 4 * PARAMETERS / _bytes_per_second(rate)
    for (hosts, variant, shards), repeats in _cells(measurements, STEPPED).items():
        ddp, none = (_of(measurements, hosts, other) for other in ("ddp", "none"))
        steps = [one.step for one in repeats]
        ring, at_head = 2 * (hosts - 1) / hosts * one_way, 2 * (hosts - 1) * one_way
        synchronised = variant != "none"
        beside = [one for one in repeats if synchronised and one.repeat in none and one.moved]
        rows.append(
            [
                str(hosts),
                rate,
                TITLES[variant] + PLACES[shards],
                *_middle_and_spread(steps),
                _short(ring),
                f"{median(steps) / ring:.2f}" if synchronised else "",
                f"{median(steps) / at_head:.2f}" if shards == "head" else "",
                _middle([one.step / ddp[one.repeat].step for one in repeats if synchronised and one.repeat in ddp]),
                *_middle_and_spread([(one.cpu - none[one.repeat].cpu) / (1e-9 * one.moved) for one in beside]),
                _middle([one.moved * PAYLOAD / (4 * PARAMETERS) for one in repeats if synchronised]),
            ]
        )
    return rows


def updates_table(measurements: Sequence[Measurement], rate: str) -> list[list[str]]:
    """Updates per second of workers that don't wait for each other."""
    rows = [["hosts", "links", "variant", "updates/s, all", "min–max", "of the head's workers", "of the others"]]
    rows[0] += ["min–max", "bound", "× bound"]
    for (hosts, variant, shards), repeats in _cells(measurements, ("asp", "asp-tls", "small", "small-tls")).items():
        size = 4 * (SMALL if variant.startswith("small") else PARAMETERS)
        every, others = [one.head + one.others for one in repeats], [one.others for one in repeats]
        bound = _bytes_per_second(rate) / size
        if shards == "all":
            bound *= hosts**2 / (2 * (hosts - 1))
        rows.append(
            [
                str(hosts),
                rate,
                TITLES[variant] + PLACES[shards],
                *_middle_and_spread(every),
                _middle([one.head for one in repeats]),
                *_middle_and_spread(others),
                _short(bound),
                f"{median(every if shards == 'all' else others) / bound:.2f}",
            ]
        )
    return rows


def slow_table(measurements: Sequence[Measurement], rate: str, slow: float) -> list[list[str]]:
    """Steps per second of all workers, the last of which computes so many times slower."""
    rows = [["hosts", "links", "last worker", "variant", "steps/s, all", "min–max", "of the head's workers"]]
    rows[0] += ["of the others", "× DDP"]
    for (hosts, variant, shards), repeats in _cells(measurements, SLOWED).items():
        ddp = _of(measurements, hosts, "ddp")
        every = [one.head + one.others for one in repeats]
        beside = [one for one in repeats if one.repeat in ddp]
        rows.append(
            [
                str(hosts),
                rate,
                f"{slow:g} × slower",
                TITLES[variant] + PLACES[shards],
                *_middle_and_spread(every),
                _middle([one.head for one in repeats]),
                _middle([one.others for one in repeats]),
                _middle([(one.head + one.others) / (ddp[one.repeat].head + ddp[one.repeat].others) for one in beside]),
            ]
        )
    return rows


def control_table(measurements: Sequence[Measurement], rate: str) -> list[list[str]]:
    """How long a worker of the second machine waits for the head's answer."""
    rows = [["hosts", "links", "connection", "median, µs", "min–max", "99th percentile, µs", "min–max"]]
    for (hosts, variant, _), repeats in _cells(measurements, ("control-one", "control", "control-tls")).items():
        both = ([one.wait[place] * 1e6 for one in repeats] for place in (0, 1))
        cells = [cell for values in both for cell in _middle_and_spread(values)]
        rows.append([str(hosts), rate, TITLES[variant], *cells])
    return rows


def print_tables(measurements: Sequence[Measurement], args: argparse.Namespace) -> None:
    """Print what there is."""
    tables = [table(measurements, args.rate) for table in (step_table, updates_table, control_table)]
    if args.slow != 1.0 or {"adpsgd", "ripples"} & {one.variant for one in measurements}:
        tables.append(slow_table(measurements, args.rate, args.slow))
    for rows in tables:
        if len(rows) > 1:
            print()
            print_table(rows, args.markdown)


def _cells(
    measurements: Sequence[Measurement], variants: Sequence[str]
) -> dict[tuple[int, str, str], list[Measurement]]:
    cells: dict[tuple[int, str, str], list[Measurement]] = {}
    for one in sorted(measurements, key=lambda one: (one.hosts, VARIANTS.index(one.variant))):
        if one.variant in variants:
            cells.setdefault((one.hosts, one.variant, one.shards), []).append(one)
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
    both = "where Paceline's store is; both are measured in turn (default: all)"
    parser.add_argument("--shards", nargs="+", choices=("head", "all"), default=("all",), help=both)
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="of each machine (default: 1)")
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd", help="(default: sgd)")
    compute = "what a step takes besides: a third in the forward, the rest in the backward (default: 0)"
    parser.add_argument("--compute", type=float, default=0.0, metavar="S", help=compute)
    slow = "with --compute: how many times longer the last worker computes (default: 1)"
    parser.add_argument("--slow", type=float, default=1.0, metavar="F", help=slow)
    parser.add_argument("--rate", default="1gbit", help="of each link, each way, as tc writes it (default: 1gbit)")
    congestion = "TCP's congestion control (default: cubic, as Linux has it)"
    parser.add_argument("--congestion", default="cubic", metavar="NAME", help=congestion)
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
    cases = [(*each, shards) for each in product(args.hosts, args.variants) for shards in _places(each[1], args.shards)]
    for repeat, (hosts, variant, shards) in product(range(repeats), cases):
        what = f"round {repeat + 1} of {repeats}: {hosts} hosts, {variant}{PLACES[shards]}"
        started = time.monotonic()
        try:
            one = measure(hosts, variant, shards, repeat, args)
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
        f"({about['cpu_capability']}); links of {args.rate}, {args.congestion}; "
        f"workers on each machine: {args.workers}; {args.optimizer}; "
        f"{repeats} rounds in {time.monotonic() - began:.0f} s; medians over the rounds"
    )
    print_tables(measurements, args)
    if failures:
        print(f"\n{len(failures)} measurements failed; they are in no table", file=sys.stderr)
    return 1 if failures else 0


def _places(variant: str, shards: Sequence[str]) -> Sequence[str]:
    """Where the store is, in turn. A small model has one shard anyway."""
    return shards if variant.partition("-")[0] in ("bsp", "late", "asp") else ("",)


def _write(
    args: argparse.Namespace, about: dict[str, Any], measurements: list[Measurement], failures: list[str]
) -> None:
    content = {
        "machine": about,
        "quick": args.quick,
        "rate": args.rate,
        "congestion": args.congestion,
        "workers": args.workers,
        "optimizer": args.optimizer,
        "compute": args.compute,
        "slow": args.slow,
        "measurements": [asdict(one) for one in measurements],
        "failures": failures,
    }
    args.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
