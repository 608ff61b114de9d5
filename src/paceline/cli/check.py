"""`paceline check`: verifies a run's ledger, and reports the first inconsistency."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from paceline.errors import FAILED
from paceline.runs.check import checked_run

DESCRIPTION = (
    "Tell the facts in a run's ledger to a fresh machine, and compare its orders with the recorded "
    "ones. Test the protocol's invariants after every fact, and the rules of all protocols. Exit with 0, or with "
    "3 and the first wrong row."
)


def add_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", type=Path, help="a run's folder, real or simulated")
    command.add_argument("--json", action="store_true", help="print the result as one JSON object")
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    run, checked = checked_run(options.run)
    head, unended = str(options.run), ""
    if run is not None:
        head = f"{options.run}: {run.choice.name}, {run.workers} workers{', simulated' if run.simulated else ''}"
        unended = run.unended
    if options.json:
        plain = {"run": str(options.run), "ok": checked.ok, "ended": not unended, **asdict(checked)}
        print(json.dumps(plain, indent=2))
    else:
        print(head)
        if unended:
            print(f"  {unended.removeprefix(f'{options.run}: ')}")
        for line in checked.proved:
            print(f"  ok     {line}")
        if checked.wrong is not None:
            print("  wrong  " + str(checked.wrong).replace("\n", "\n         "))
    return 0 if checked.ok else FAILED
