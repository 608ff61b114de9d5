"""How long training takes over slow links, and how many bytes, until a held-out loss: Paceline's methods, and DDP.

    python benchmarks/to_loss.py --markdown                          # root; 100 Mbit/s, one seed, about 40 minutes
    python benchmarks/to_loss.py --rate 1gbit --seeds 0 1 2 --json fast.json
    python benchmarks/to_loss.py --steps 20 --looks 2 --seeds 0 1 2 --variants ddp bsp --json few.json
    python benchmarks/to_loss.py --seeds 0 1 2 --variants diloco:every=20 --json slow.json
    python benchmarks/to_loss.py --curves slow.json --paced few.json fast.json
    python benchmarks/to_loss.py --quick

Each machine is a network namespace with one worker, on a link shaped to `--rate` both ways, and all of them share this
machine's cores. They train a character-level GPT of 10 M parameters, each variant with the same data. A loss is that of
64 windows which are not trained on. Seconds are of training alone: versions are evaluated after it, and DDP's clock
stops while its loss is computed. Bytes are those over the second machine's link, in and out.

`--curves` prints a table of what `--json` has written. Under a synchronous method a step's loss is the same over any
link. So only a few steps have to be made over slow links: `--paced few.json fast.json` takes seconds a step and bytes
from the first file, for the variants in it, and losses by step from the others. With three seeds or more, ± is half of
the 95 % interval of the mean, by Student's t.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hosts import PORT, run_all
from step import Failed, machine, print_table

from paceline.net.token import Token, write
from paceline.records.comparison import mean

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.namespaces import Network, NotHere

WORKLOAD = Path(__file__).parent / "workloads" / "char_lm.py"
VARIANTS = {
    "ddp": [],
    "ddp, powersgd:rank=2": [],
    "all-reduce": ["-p", "all-reduce"],
    "all-reduce, int8": ["-p", "all-reduce", "--compress", "int8"],
    "all-reduce, powersgd:rank=2": ["-p", "all-reduce", "--compress", "powersgd:rank=2"],
    "bsp": ["-p", "bsp"],
    "bsp, int8": ["-p", "bsp", "--compress", "int8"],
    "diloco:every=20": ["-p", "diloco:every=20"],
    "diloco:every=20, int8": ["-p", "diloco:every=20", "--compress", "int8"],
    "diloco:every=50": ["-p", "diloco:every=50"],
    "diloco:every=20,fragments=2,overlap=5": ["-p", "diloco:every=20,fragments=2,overlap=5"],
    "diloco:every=20,fragments=2,overlap=5,mix=0.5": ["-p", "diloco:every=20,fragments=2,overlap=5,mix=0.5"],
}
"""By name: the flags of `paceline run`."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One variant, once."""

    variant: str
    seed: int
    steps: int
    """Of each worker."""
    moved: float
    """Bytes over the second machine's link for a step of each worker."""
    losses: list[tuple[float, float]]
    """(seconds of training, the held-out loss then)"""

    def reaches(self, loss: float) -> tuple[float, float] | None:
        """Seconds until the loss is that or less, and the share of the run; None if it never is."""
        for place, (seconds, found) in enumerate(self.losses, 1):
            if found <= loss:
                return seconds, place / len(self.losses)
        return None


def measure(variant: str, seed: int, args: argparse.Namespace) -> Curve:
    """Run one variant once. Raises Failed."""
    hosts = args.hosts
    with tempfile.TemporaryDirectory(prefix="paceline-to-loss-") as name, Network(hosts, args.rate) as network:
        folder = Path(name)
        write(Token.drawn(), folder / "token")
        script: list[Any] = [WORKLOAD, "--folder", folder, "--steps", args.steps, "--workers", hosts, "--seed", seed]
        script += ["--width", args.width, "--every", max(1, args.steps // args.looks)]
        if variant.startswith("ddp"):
            script += ["--rank", 2] if "powersgd" in variant else []
            one = [sys.executable, *script, "--variant", "ddp", "--processes", hosts, "--head", network.address(0)]
            commands = [(rank, [*one, "--worker", rank]) for rank in range(hosts)]
        else:
            listen = [
                "--listen",
                f"{network.address(0)}:{PORT}",
                "--hosts",
                hosts,
                "--name",
                "head",
                "--trusted-network",
            ]
            run = ["run", *VARIANTS[variant], *listen, "-n", 1, "--threads", 1, "--record", args.looks, "--quiet"]
            run += ["--checkpoint", 0, "--tee", "none", "--out", folder / "run", *script, "--variant", "paceline"]
            join = ["join", f"{network.address(0)}:{PORT}", "--wait", "-n", 1, "--trusted-network"]
            ours = [sys.executable, "-m", "paceline"]
            commands = [
                (0, [*ours, *run]),
                *((host, [*ours, *join, "--name", f"host-{host}"]) for host in range(1, hosts)),
            ]
        run_all(network, commands, folder, args.timeout)
        told = [json.loads((folder / f"{worker}.json").read_text()) for worker in range(hosts)]
        losses = [tuple(point) for point in told[0]["curve"]]
        if not variant.startswith("ddp"):
            summary = json.loads((folder / "run" / "summary.json").read_text())
            began = _began(folder / "run")
            losses = [(one["at_seconds"] - began, one["loss"]) for one in summary["evaluations"]]
    steps = told[1]["steps"]
    return Curve(variant, seed, steps, told[1]["moved"] / steps, losses)


def _began(run: Path) -> float:
    """When training began, in seconds of the run."""
    with sqlite3.connect(run / "ledger.sqlite") as ledger:
        return float(ledger.execute("SELECT min(at) FROM facts").fetchone()[0])


def paced(curve: Curve, slow: Curve) -> Curve:
    """The curve as over the links of `slow`, which made fewer steps there."""
    a_step = slow.losses[-1][0] / slow.steps
    shares = [place / len(curve.losses) for place in range(1, len(curve.losses) + 1)]
    losses = [(share * curve.steps * a_step, loss) for share, (_, loss) in zip(shares, curve.losses, strict=True)]
    return replace(curve, moved=slow.moved, losses=losses)


def read(files: Iterable[Path]) -> list[Curve]:
    """The curves that `--json` has written to these files."""
    curves = [Curve(**one) for file in files for one in json.loads(file.read_text())["curves"]]
    return [replace(one, losses=[(seconds, loss) for seconds, loss in one.losses]) for one in curves]


def reached_by_all(curves: Sequence[Curve]) -> dict[int, float]:
    """By seed: the loss that all variants reach."""
    least = [(one.seed, min(loss for _, loss in one.losses)) for one in curves]
    return {seed: max(loss for other, loss in least if other == seed) for seed, _ in least}


def table(curves: Sequence[Curve], losses: dict[int, float]) -> list[list[str]]:
    """What each variant takes until its seed's loss, beside DDP with that seed: means over the seeds."""
    ddp = {one.seed: one.reaches(losses[one.seed]) for one in curves if one.variant == "ddp"}
    rows = [["variant", "seeds", "s to the loss", "× DDP", "MB to it", "s in all", "loss at the end", "MB a step"]]
    for variant in dict.fromkeys(one.variant for one in curves):
        own = [one for one in curves if one.variant == variant]
        there = [(one, one.reaches(losses[one.seed])) for one in own]
        seconds = [None if met is None else met[0] for _, met in there]
        firsts = [ddp.get(one.seed) for one in own]
        ratios = [met[0] / first[0] if met and first else None for (_, met), first in zip(there, firsts, strict=True)]
        moved = [None if met is None else met[1] * one.moved * one.steps / 1e6 for one, met in there]
        rows.append(
            [
                variant,
                str(len(own)),
                _told(seconds, ".0f"),
                _told(ratios, ".2f"),
                _told(moved, ".0f", spread=False),
                _told([one.losses[-1][0] for one in own], ".0f", spread=False),
                _told([one.losses[-1][1] for one in own], ".3f", spread=False),
                _told([one.moved / 1e6 for one in own], ".1f", spread=False),
            ]
        )
    return rows


def _told(values: Sequence[float | None], form: str, *, spread: bool = True) -> str:
    found = mean(values)
    if found is None or None in values:
        return "–"
    interval = "" if found.plus_minus is None or not spread else f" ± {found.plus_minus:{form}}"
    return f"{found.mean:{form}}{interval}"


def show(curves: Sequence[Curve], args: argparse.Namespace) -> None:
    """Print the losses to reach, and the table."""
    losses = dict.fromkeys({one.seed for one in curves}, args.loss) if args.loss else reached_by_all(curves)
    print(f"until a loss of {', '.join(f'{loss:.3f} (seed {seed})' for seed, loss in losses.items())}")
    print_table(table(curves, losses), markdown=args.markdown)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=tuple(VARIANTS), default=tuple(VARIANTS))
    parser.add_argument("--rate", default="100mbit", help="of each link, each way, as tc writes it (default: 100mbit)")
    parser.add_argument("--hosts", type=int, default=4, help="(default: 4)")
    parser.add_argument("--steps", type=int, default=100, help="of each worker (default: 100)")
    parser.add_argument("--width", type=int, default=384, help="of the model; 384 is 10 M parameters (default: 384)")
    parser.add_argument("--looks", type=int, default=10, help="losses of a run (default: 10)")
    parser.add_argument("--loss", type=float, help="(default: by seed, the largest of the variants' least ones)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--timeout", type=float, default=1800, metavar="S", help="of one run (default: 1800)")
    parser.add_argument("--quick", action="store_true", help="a small model and few steps: to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every curve there, as they come")
    parser.add_argument("--curves", nargs="+", type=Path, metavar="FILE", help="run nothing: a table of these curves")
    parser.add_argument("--paced", nargs="+", type=Path, metavar="FILE", help="a few steps, then their losses")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    args = parser.parse_args()
    if args.quick:
        args.width, args.steps = 48, 100

    if args.curves:
        curves = read(args.curves)
        if args.paced:
            known = {(one.variant, one.seed): one for one in read(args.paced[1:])}
            curves = [paced(known[one.variant, one.seed], one) for one in read(args.paced[:1])] + curves
        show(curves, args)
        return 0

    about, began = machine(), time.monotonic()
    curves = []
    for seed in args.seeds:
        for variant in args.variants:
            started = time.monotonic()
            try:
                curves.append(measure(variant, seed, args))
            except NotHere as error:
                print(error, file=sys.stderr)
                return 2
            except Failed as failure:
                print(f"{variant}, seed {seed}: {failure}", file=sys.stderr)
                return 1
            print(f"{variant}, seed {seed}: {time.monotonic() - started:.0f} s", file=sys.stderr)
            if args.json:
                args.json.write_text(
                    json.dumps({"machine": about, "curves": [asdict(one) for one in curves]}, indent=1)
                )
    print(
        f"{about['cores']} cores, {about['memory_gib']} GiB, torch {about['torch']} ({about['cpu_capability']}); "
        f"{args.hosts} machines, links of {args.rate}, {args.steps} steps each, in {time.monotonic() - began:.0f} s"
    )
    show(curves, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
