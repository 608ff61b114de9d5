"""`paceline explain`: why a run took as long as it did."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path

from paceline.cli.values import whole
from paceline.protocols import registry
from paceline.records.explain.findings import findings
from paceline.records.explain.numbers import numbers
from paceline.records.explain.sentences import sentences
from paceline.records.reading import open_run, reading

DESCRIPTION = (
    "Say in sentences where a run's time went, which workers made others wait, and what would help. "
    "With --worker or --step, say why that worker or step waited, for which worker, and how long."
)


def add_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", type=Path, help="a run's folder, real or simulated")
    command.add_argument("--worker", type=whole("--worker", 0), metavar="W", help="explain the waits of worker W")
    command.add_argument("--step", type=whole("--step", 0), metavar="N", help="explain step N, of all workers or W")
    command.add_argument("--json", action="store_true", help="print the same as one JSON object, with all numbers")
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    run = open_run(options.run, registry())
    with closing(run.ledger), reading(options.run):
        found = findings(run, options.worker, options.step)
        lines = sentences(found)
        told = numbers(found) if options.json else {}
    if options.json:
        plain = {"run": str(options.run), "ended": run.ended, "protocol": run.choice.name, "lines": lines}
        print(json.dumps({**plain, **told}, indent=2))
        return 0
    if run.unended:
        print(run.unended)
    print("\n".join(lines))
    return 0
