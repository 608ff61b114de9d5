"""Which protocol wins where: seconds to a target over links by their speed and workers by their inequality, beside DDP.

    python benchmarks/map.py --data mnist.npz --runs map.jsonl --out map.svg       # root; 3 seeds, 6 hours
    python benchmarks/map.py --data mnist.npz --runs map.jsonl --seeds 0 --links 100mbit memory
    python benchmarks/map.py --data mnist.npz --runs map.jsonl --seeds --markdown  # run nothing: what there is

Four workers learn a part of MNIST to an accuracy of .85, in steps of 100 ms. Each is a machine of its own, and a
network namespace, with the links between them shaped; with *memory* all are on one. Unequal workers are one of half the
speed or a fifth, bursts (each 3 s another worker is five times slower for a second), or mixed (1, 1.25, 2 and 4 times
as long a step).

First every protocol runs in virtual time, with real gradients on the virtual versions. Then DDP, `bsp`, `asp` and the
five that were first there are run for real, and the map has their measured times. Where the best real one is not sure,
as its interval reaches over the second's, the map says so. `--runs` keeps each run as it ends, and what it has is not
run again. The learning rate of each protocol is tuned by simulated runs with other seeds, of mixed workers on one
machine, and is the one with the fewest iterations to the target.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from xml.sax.saxutils import escape

from step import Failed, machine, print_table

sys.path.append(str(Path(__file__).parent / "claims"))

from bed import AT_ONCE, SEEDS, Case, Cluster, NotHere, Run, Task, keep, measure, part_of, read_runs, simulated, tuned

from paceline.records.comparison import MeanOfRuns, mean

LINKS = ("10mbit", "100mbit", "1gbit", "memory")
UNEQUAL: dict[str, dict[str, object]] = {
    "equal": {},
    "one 2 ×": {"slow": {3: 2}},
    "one 5 ×": {"slow": {3: 5}},
    "bursts": {"bursts": (3.0, 1.0, 5.0)},
    "mixed": {"slow": {1: 1.25, 2: 2, 3: 4}},
}
"""By name: what differs from a cluster of equal workers."""
TARGET, WIDTHS, LONGEST = 0.85, (32, 32), 60.0
FRESH, STALE = (0.05, 0.1, 0.2), (0.00625, 0.0125, 0.025)
"""Learning rates to choose from: of a mean gradient, and of each worker's own, with momentum."""
PROTOCOLS: dict[str, tuple[float, ...]] = {
    "bsp": FRESH,
    "asp": STALE,
    "ssp:bound=3": STALE,
    "dssp": STALE,
    "ringmaster:max_delay=8": STALE,
    "quorum:m=3": FRESH,
    "rennala:batch=4": FRESH,
    "balanced:unit=sample,max_batch=64,every=4": FRESH,
    "hsp": FRESH,
    "ps-plus": FRESH,
    "local-sgd:every=8": FRESH,
    "diloco:every=8": FRESH,
    "async-diloco:every=8": FRESH,
    "sync-switch": STALE,
    "all-reduce": FRESH,
    "ad-psgd": FRESH,
    "ripples": FRESH,
}
ALWAYS = ("ddp", "bsp", "asp")
TUNED_ON = "tuning"


@dataclass(frozen=True, slots=True)
class Cell:
    """A place of the map."""

    link: str
    unequal: str

    @property
    def case(self) -> Case:
        """What is run there."""
        where = {"hosts": 1, "each": 4, "rate": None} if self.link == "memory" else {"hosts": 4, "rate": self.link}
        cluster = Cluster(**where, compute=0.1, **UNEQUAL[self.unequal])
        task = Task(WIDTHS, record=20, seconds=LONGEST, samples=5120, epochs=7)  # equal workers' in that time
        return Case(f"{self.link}, {self.unequal}", cluster, task, PROTOCOLS, TARGET)


CELLS = [Cell(link, unequal) for link in LINKS for unequal in UNEQUAL]


class Kept:
    """All runs so far, and the rates: in a file, from which a map goes on."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rates: dict[str, float] = {}
        self.real: list[Run] = []
        self.virtual: list[Run] = []
        rates, runs = read_runs(file)
        self.rates = rates.get(TUNED_ON, {})
        for run in runs:
            virtual = run.case.startswith("virtual: ")
            (self.virtual if virtual else self.real).append(run)

    def tune(self, data: Path) -> None:
        """Choose the rates, where that has not been done."""
        if self.rates:
            return
        self.rates = tuned(Cell("memory", "mixed").case, data)
        self.rates["ddp"] = self.rates["all-reduce"]
        keep(self.file, {"case": TUNED_ON, "rates": self.rates})

    def add(self, run: Run, *, virtual: bool) -> None:
        """Keep it."""
        (self.virtual if virtual else self.real).append(run)
        keep(self.file, asdict(run))

    def of(self, cell: Cell, protocol: str, *, virtual: bool) -> list[Run]:
        """Those of a protocol there, by seed."""
        name = f"virtual: {cell.case.name}" if virtual else cell.case.name
        runs = self.virtual if virtual else self.real
        return sorted((one for one in runs if (one.case, one.protocol) == (name, protocol)), key=lambda one: one.seed)

    def seconds(self, cell: Cell, protocol: str, *, virtual: bool) -> MeanOfRuns | None:
        """Until the target; None unless all seeds' runs met it."""
        runs = self.of(cell, protocol, virtual=virtual)
        met = [run.met(TARGET) for run in runs]
        return None if None in met else mean(one[1] for one in met if one)

    def best(self, cell: Cell, among: Iterable[str], *, virtual: bool) -> list[str]:
        """Those which met the target, the soonest first."""
        found = {one: self.seconds(cell, one, virtual=virtual) for one in among}
        met = {one: value.mean for one, value in found.items() if value is not None}
        return sorted(met, key=met.__getitem__)


def simulate_all(kept: Kept, cells: Sequence[Cell], seeds: Sequence[int], data: Path) -> None:
    """Every protocol in every cell."""
    wanted = [
        (cell, protocol, seed)
        for seed in seeds
        for cell in cells
        for protocol in PROTOCOLS
        if all(run.seed != seed for run in kept.of(cell, protocol, virtual=True))
    ]

    def one(what: tuple[Cell, str, int]) -> Run:
        cell, protocol, seed = what
        case = cell.case
        virtual = Case(f"virtual: {case.name}", case.cluster, case.task, case.protocols, case.target)
        return simulated(virtual, protocol, kept.rates[protocol], seed, data, message=case.task.message)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number, run in enumerate(pool.map(one, wanted), 1):
            kept.add(run, virtual=True)
            print(f"{number} of {len(wanted)}: {run.case}, {run.protocol}, seed {run.seed}", file=sys.stderr)


def run_all(
    kept: Kept, cells: Sequence[Cell], seeds: Sequence[int], best: int, data: Path, congestion: str
) -> list[str]:
    """DDP, bsp, asp and the simulator's best in every cell; return what failed. Raises NotHere."""
    failed = []
    for seed in seeds:
        for cell in cells:
            for protocol in dict.fromkeys([*ALWAYS, *kept.best(cell, PROTOCOLS, virtual=True)[:best]]):
                if any(run.seed == seed for run in kept.of(cell, protocol, virtual=False)):
                    continue
                began = time.monotonic()
                try:
                    run = _until_target(kept, cell, protocol, seed, data, congestion)
                except Failed as failure:
                    failed.append(f"{cell.case.name}, {protocol}, seed {seed}: {failure}")
                    print(failed[-1], file=sys.stderr)
                    continue
                kept.add(run, virtual=False)
                met, took = run.met(TARGET), time.monotonic() - began
                when = f"{met[1]:.1f} s" if met else "never"
                print(f"{cell.case.name}, {protocol}, seed {seed}: {when}; {took:.0f} s", file=sys.stderr)
    return failed


def _until_target(kept: Kept, cell: Cell, protocol: str, seed: int, data: Path, congestion: str) -> Run:
    """Make a run that trains twice as long as predicted. If it has not met the target, make one that trains longest."""
    said = kept.seconds(cell, "all-reduce" if protocol == "ddp" else protocol, virtual=True)
    soon = LONGEST if said is None else min(LONGEST, 2 * said.mean + 5)
    case, given = cell.case, (protocol, kept.rates[protocol], seed, data, congestion)
    run = measure(replace(case, task=replace(case.task, seconds=soon)), *given)
    return run if run.met(TARGET) or soon == LONGEST else measure(case, *given)


def table(kept: Kept) -> list[list[str]]:
    """A row for each real protocol of each cell, the soonest first."""
    rows = [["links", "workers", "protocol", "seeds", "seconds", "× DDP", "predicted, s", "off"]]
    for cell in CELLS:
        ran = [one for one in dict.fromkeys(["ddp", *PROTOCOLS]) if kept.of(cell, one, virtual=False)]
        ddp = kept.seconds(cell, "ddp", virtual=False)
        for protocol in [*(best := kept.best(cell, ran, virtual=False)), *(one for one in ran if one not in best)]:
            found, said = (kept.seconds(cell, protocol, virtual=virtual) for virtual in (False, True))
            off = f"{said.mean / found.mean - 1:+.0%}" if found and said else ""
            spread = "" if found is None or found.plus_minus is None else f" ± {found.plus_minus:.1f}"
            rows.append(
                [
                    cell.link,
                    cell.unequal,
                    protocol,
                    str(len(kept.of(cell, protocol, virtual=False))),
                    f"{found.mean:.1f}{spread}" if found else "–",
                    f"{ddp.mean / found.mean:.2f}" if found and ddp else "",
                    f"{said.mean:.1f}" if said else "" if protocol == "ddp" else "–",
                    off,
                ]
            )
    return rows


def fidelity(kept: Kept) -> str:
    """How well the simulator has predicted what was measured."""
    off, right, cells = [], 0, 0
    for cell in CELLS:
        ran = [one for one in PROTOCOLS if kept.of(cell, one, virtual=False)]
        for protocol in ran:
            found, said = (kept.seconds(cell, protocol, virtual=virtual) for virtual in (False, True))
            if found and said:
                off.append(abs(said.mean / found.mean - 1))
        real, virtual = (kept.best(cell, ran, virtual=virtual) for virtual in (False, True))
        if real and virtual:
            cells, right = cells + 1, right + (real[0] == virtual[0])
    if not off:
        return "nothing was both simulated and run"
    return f"{len(off)} times predicted, {median(off):.0%} off (median); winners right in {right} of {cells} cells"


WIDE, HIGH, LEFT, TOP, FOOT = 168, 92, 92, 74, 40
COLOURS = {
    "ddp": "#d0d7de",
    "all-reduce": "#c9d3f0",
    "bsp": "#bcd9f5",
    "balanced": "#b7e3c0",
    "quorum": "#d7ebb0",
    "rennala": "#e6efa6",
    "asp": "#ffd8a8",
    "ssp": "#ffe3b3",
    "dssp": "#ffe8c7",
    "ringmaster": "#ffcf99",
    "ad-psgd": "#e3c9f2",
    "ripples": "#d9b8ef",
    "ps-plus": "#f7c6c7",
    "hsp": "#f3d5e4",
    "sync-switch": "#f9dcc4",
    "local-sgd": "#a9dfe0",
    "diloco": "#9bd3d6",
    "async-diloco": "#8cc9cf",
}


def picture(kept: Kept) -> str:
    """The map as SVG: who was first in each cell, by how much over DDP, and who came next."""
    width, height = LEFT + WIDE * len(UNEQUAL) + 16, TOP + HIGH * len(LINKS) + FOOT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" role="img">',
        "<title>Which protocol is first at the target, by links and workers</title>",
        '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path d="M0 0V7" stroke="#57606a" stroke-opacity="0.35"/></pattern></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        _text(16, 28, "First at the target, and how many times as fast as DDP", 16, bold=True),
    ]
    for column, unequal in enumerate(UNEQUAL):
        lines.append(_text(LEFT + WIDE * (column + 0.5), TOP - 12, unequal, 13, at="middle"))
    for row, link in enumerate(LINKS):
        name = link.replace("mbit", " Mbit/s").replace("gbit", " Gbit/s")
        lines.append(_text(LEFT - 10, TOP + HIGH * (row + 0.5) + 4, name, 13, at="end"))
        for column, unequal in enumerate(UNEQUAL):
            lines += _cell(kept, Cell(link, unequal), LEFT + WIDE * column, TOP + HIGH * row)
    seeds = {run.seed for run in kept.real}
    note = (
        "Hatched: simulated only. “or”: within the seeds’ spread."
        if len(seeds) > 1
        else "One seed. Hatched: simulated only."
    )
    return "\n".join([*lines, _text(16, height - 14, note, 12), "</svg>", ""])


def _cell(kept: Kept, cell: Cell, x: float, y: float) -> Iterator[str]:
    ran = [one for one in ("ddp", *PROTOCOLS) if kept.of(cell, one, virtual=False)]
    virtual = not ran
    order = kept.best(cell, PROTOCOLS if virtual else ran, virtual=virtual)
    if not order:
        yield f'<rect x="{x + 2}" y="{y + 2}" width="{WIDE - 4}" height="{HIGH - 4}" rx="5" fill="#f6f8fa"/>'
        return
    first, *others = order
    fill = COLOURS[first.split(":")[0]]
    for paint in [fill, *(["url(#hatch)"] if virtual else [])]:
        yield f'<rect x="{x + 2}" y="{y + 2}" width="{WIDE - 4}" height="{HIGH - 4}" rx="5" fill="{paint}"/>'
    best = kept.seconds(cell, first, virtual=virtual)
    assert best is not None
    yield _text(x + WIDE / 2, y + 28, first.split(":")[0], 15, bold=True, at="middle")
    ddp = kept.seconds(cell, "ddp", virtual=False)
    than = "" if ddp is None else f"{ddp.mean / best.mean:.1f} × DDP, " if first != "ddp" else ""
    if ddp is None and kept.of(cell, "ddp", virtual=False):
        than = "DDP never, "
    yield _text(x + WIDE / 2, y + 50, f"{than}{best.mean:.1f} s", 13, at="middle")
    if others:
        second = kept.seconds(cell, others[0], virtual=virtual)
        assert second is not None
        spread = (best.plus_minus or 0.0) + (second.plus_minus or 0.0)
        joint = "or" if second.mean - best.mean < spread else "then"
        yield _text(x + WIDE / 2, y + 72, f"{joint} {others[0].split(':')[0]}, {second.mean:.1f} s", 12, at="middle")


def _text(x: float, y: float, text: str, size: int, *, bold: bool = False, at: str = "start") -> str:
    weight = ' font-weight="bold"' if bold else ""
    place = f'x="{x:g}" y="{y:g}" text-anchor="{at}"'
    return f'<text {place} font-size="{size}" fill="#24292f"{weight}>{escape(text)}</text>'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="MNIST, as for examples/mnist.py")
    parser.add_argument("--runs", type=Path, required=True, help="a file with a line for each run; what it has is kept")
    parser.add_argument("--out", type=Path, help="write the map there, as SVG")
    parser.add_argument("--links", nargs="+", choices=LINKS, default=LINKS)
    parser.add_argument("--unequal", nargs="+", choices=UNEQUAL, default=tuple(UNEQUAL))
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS[:3], metavar="S", help="of real runs (0 to 2)")
    parser.add_argument("--simulated", nargs="*", type=int, default=SEEDS[:3], metavar="S", help="of others (0 to 2)")
    best = "how many of the simulator's first are run for real (default: 5)"
    parser.add_argument("--best", type=int, default=5, metavar="N", help=best)
    parser.add_argument("--congestion", default="cubic", help="TCP's (default: cubic)")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process is left running

    kept, cells, failed = Kept(args.runs), [Cell(link, one) for link in args.links for one in args.unequal], []
    with tempfile.TemporaryDirectory(prefix="paceline-map-") as name:
        data = Path(name) / "mnist.npz"
        part_of(args.data, data, CELLS[0].case.task.samples)
        if args.seeds or args.simulated:
            kept.tune(data)
        simulate_all(kept, cells, args.simulated, data)
        try:
            failed = run_all(kept, cells, args.seeds, args.best, data, args.congestion)
        except NotHere as error:
            print(error, file=sys.stderr)
            return 2
    about = machine()
    print(f"{about['cores']} cores, {about['memory_gib']} GiB, torch {about['torch']} ({about['cpu_capability']})\n")
    print_table(table(kept), args.markdown)
    print(f"\n{fidelity(kept)}")
    if args.out:
        args.out.write_text(picture(kept))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
