"""Run the gates: `PYTHONPATH=tests python -m gates [GATE ...] [--record] [--some K] [--show N]`."""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module
from pathlib import Path

GATES = ("surface", "records", "runs", "world", "speed", "faults")
SLOW = ("speed", "faults")
"""Gates that run only where they are named: the one measures time, the other takes very long."""


def main() -> int:
    """Run the gates that are named, or all but the slow ones. Return 1 if something differs."""
    parser = argparse.ArgumentParser(prog="python -m gates", description="Compare the code with what is recorded.")
    parser.add_argument("gates", nargs="*", metavar="GATE", help=f"of {', '.join(GATES)}; all but {', '.join(SLOW)}")
    parser.add_argument("--record", action="store_true", help="record what is found, and compare nothing")
    parser.add_argument("--some", type=int, default=1, metavar="K", help="world: every K-th history only")
    parser.add_argument("--show", type=int, metavar="N", help="world: write the traces of history N into files")
    parser.add_argument("--against", type=Path, metavar="PATH", help="speed: the tree to compare with")
    parser.add_argument("--quick", action="store_true", help="speed: one short round, to see that it works")
    given = parser.parse_args()
    if unknown := [name for name in given.gates if name not in GATES]:
        parser.error(f"there is no gate {', '.join(unknown)}: {', '.join(GATES)}")
    if given.show is not None or given.some != 1:
        if given.gates not in ([], ["world"]):
            parser.error("--some and --show are for the gate `world`")
        world = import_module("gates.world")
        if given.show is not None:
            world.show(given.show)
            return 0
        if given.record:
            parser.error("--record records all histories: leave --some out")
        return _say("world", world.check(False, given.some))
    wrong = 0
    for name in given.gates or [name for name in GATES if name not in SLOW]:
        began = time.monotonic()
        more = (given.against, given.quick) if name == "speed" else ()
        wrong |= _say(name, import_module(f"gates.{name}").check(given.record, *more))
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return wrong


def _say(name: str, differences: list[str]) -> int:
    for line in differences:
        print(f"{name}: {line}")
    print(f"{name}: {f'{len(differences)} differences' if differences else 'identical'}", flush=True)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
