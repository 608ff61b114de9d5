"""Pictures of the protocols: for each, one real run, and who did what when in a part of it.

    python docs/tools/timelines.py                               # all of them, into docs/protocols
    python docs/tools/timelines.py dssp hsp --out pictures       # these, into that folder
    python docs/tools/timelines.py --keep runs/timelines         # the runs' folders stay there

Each run is `paceline run -p PROTOCOL --scenario SCENARIO examples/digits.py --epochs 2`, with `contended.toml` where
there is a store and `two_nodes.toml` where workers own replicas. The picture is of the first seconds; where the
protocol switches, of those around the first switch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from picture import draw, timeline_of

from paceline.core.choice import choose
from paceline.protocols import registry
from paceline.records.timeline import Timeline

ROOT = Path(__file__).parents[2]
SCENARIOS = {"store": ("contended.toml", 2.4), "replicas": ("two_nodes.toml", 1.2)}
"""By a protocol's `Spec.state`: the scenario of its run, and the seconds of it that the picture shows."""
SCRIPT = ("examples/digits.py", "--epochs", "2")
PROTOCOLS = {
    "ad-psgd": "ad-psgd",
    "all-reduce": "all-reduce",
    "asp": "asp",
    "async-diloco": "async-diloco:every=4",
    "balanced": "balanced:every=4",
    "bsp": "bsp",
    "diloco": "diloco:every=4",
    "dssp": "dssp:lower=1,upper=4",
    "hsp": "hsp:idle=guarded,stale=next,broadcast=all",
    "local-sgd": "local-sgd:every=4",
    "ps-plus": "ps-plus",
    "quorum": "quorum:m=3",
    "rennala": "rennala:batch=6",
    "ringmaster": "ringmaster:max_delay=4",
    "ripples": "ripples",
    "ssp": "ssp:bound=1",
    "sync-switch": "sync-switch:switch_at=0.3",
}
"""A picture's name: the protocol as it is written for `-p`."""


def train(protocol: str, scenario: str, folder: Path) -> Timeline:
    """The timeline of one run, which leaves its folder there."""
    path = Path("examples") / "scenarios" / scenario
    command = [sys.executable, "-m", "paceline", "run", "-p", protocol, "--scenario", str(path), "--tee", "none"]
    command += ["--record", "0", "--out", str(folder.absolute()), *SCRIPT]
    finished = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    if finished.returncode != 0:
        sys.exit(finished.returncode)
    return timeline_of(folder / "ledger.sqlite")


def window(timeline: Timeline, seconds: float) -> tuple[float, float]:
    """So many seconds of it, or all if it was shorter."""
    middle = timeline.switches[0].at if timeline.switches else 0.0
    began = max(0.0, min(middle - seconds / 2, timeline.ended - seconds))
    return began, min(began + seconds, timeline.ended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROTOCOLS)} (default: all)")
    parser.add_argument("--seconds", type=float, help="how much of the run a picture shows")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "protocols", help="where the pictures go")
    parser.add_argument("--keep", type=Path, help="where the runs' folders go, each by its picture's name")
    args = parser.parse_args()
    for name in args.names:
        if name not in PROTOCOLS:
            parser.error(f"there is no picture {name}; there are {', '.join(PROTOCOLS)}")

    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="paceline-timelines-") as temporary:
        for name in args.names or PROTOCOLS:
            scenario, seconds = SCENARIOS[choose(PROTOCOLS[name], registry()).spec.state]
            timeline = train(PROTOCOLS[name], scenario, (args.keep or Path(temporary)) / name)
            began, ended = window(timeline, args.seconds or seconds)
            (args.out / f"{name}.svg").write_text(draw(timeline, PROTOCOLS[name], began, ended))
            print(f"{args.out / name}.svg: {began:.2f} s to {ended:.2f} s of {timeline.ended:.2f} s")


if __name__ == "__main__":
    main()
