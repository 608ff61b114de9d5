"""How long training takes over slow links, and how many bytes, until a held-out loss: Paceline's methods, and DDP.

    python benchmarks/to_loss.py --markdown                          # root; 100 Mbit/s, one seed, about 40 minutes
    python benchmarks/to_loss.py --rate 1gbit --seeds 0 1 2
    python benchmarks/to_loss.py --quick

Each machine is a network namespace with one worker, on a link shaped to `--rate` both ways, and all of them share this
machine's cores. They train a character-level GPT of 10 M parameters, each variant with the same data. A loss is that of
64 windows which are not trained on. Seconds are of training alone: versions are evaluated after it, and DDP's clock
stops while its loss is computed. Bytes are those over the second machine's link, in and out.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from step import Failed, machine, print_table

from network import PORT, _run
from paceline.net.token import Token, write

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
        _run(network, commands, folder, args.timeout)
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


def table(curves: Sequence[Curve], loss: float) -> list[list[str]]:
    """What each variant takes until that loss, beside DDP."""
    rows = [["variant", "seed", "s to the loss", "× DDP", "MB to it", "s in all", "loss at the end", "MB a step"]]
    for one in curves:
        there = one.reaches(loss)
        ddp = next((other.reaches(loss) for other in curves if (other.variant, other.seed) == ("ddp", one.seed)), None)
        seconds = "–" if there is None else f"{there[0]:.0f}"
        against = "–" if there is None or ddp is None else f"{there[0] / ddp[0]:.2f}"
        megabytes = "–" if there is None else f"{there[1] * one.moved * one.steps / 1e6:.0f}"
        end, last = one.losses[-1]
        rows.append(
            [
                one.variant,
                str(one.seed),
                seconds,
                against,
                megabytes,
                f"{end:.0f}",
                f"{last:.3f}",
                f"{one.moved / 1e6:.1f}",
            ]
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=tuple(VARIANTS), default=tuple(VARIANTS))
    parser.add_argument("--rate", default="100mbit", help="of each link, each way, as tc writes it (default: 100mbit)")
    parser.add_argument("--hosts", type=int, default=4, help="(default: 4)")
    parser.add_argument("--steps", type=int, default=100, help="of each worker (default: 100)")
    parser.add_argument("--width", type=int, default=384, help="of the model; 384 is 10 M parameters (default: 384)")
    parser.add_argument("--looks", type=int, default=10, help="losses of a run (default: 10)")
    parser.add_argument("--loss", type=float, help="(default: the largest of the variants' least ones)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--timeout", type=float, default=1800, metavar="S", help="of one run (default: 1800)")
    parser.add_argument("--quick", action="store_true", help="a small model and few steps: to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every curve there, as they come")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    args = parser.parse_args()
    if args.quick:
        args.width, args.steps = 48, 100

    about, began = machine(), time.monotonic()
    curves: list[Curve] = []
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
    loss = args.loss or max(min(found for _, found in one.losses) for one in curves)
    print(
        f"{about['cores']} cores, {about['memory_gib']} GiB, torch {about['torch']} ({about['cpu_capability']}); "
        f"{args.hosts} machines, links of {args.rate}, {args.steps} steps each, in {time.monotonic() - began:.0f} s; "
        f"until a loss of {loss:.3f}"
    )
    print_table(table(curves, loss), markdown=args.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
