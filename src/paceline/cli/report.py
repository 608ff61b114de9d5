"""`paceline report`: runs as a page that anybody can open; as pictures for a paper; as a trace for Perfetto."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from paceline.runs.report import report, shown_of
from paceline.terminal import say

PAGE = "report.html"


DESCRIPTION = (
    "Write one HTML page that shows these runs, beside each other if there are several. The "
    "page works without a network or a server."
)


def add_flags(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("runs", metavar="RUN", nargs="+", type=Path, help="a run's folder, real or simulated, or a comparison's")
    add("--out", type=Path, metavar="FILE", help=f"the page (default: {PAGE}, in the folder of the only RUN, or here)")
    add("--png", type=Path, metavar="DIR", help="also write each chart there, as PNG (needs matplotlib)")
    add("--trace", type=Path, metavar="FILE", help="also write a trace of every step, for ui.perfetto.dev")
    add("--json", action="store_true", help="print what was written as one JSON object")
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    given: list[Path] = options.runs
    out = options.out or (given[0] / PAGE if len(given) == 1 else Path(PAGE))
    files = report(given, out, say, options.png, options.trace)
    if options.json:
        written = {"page": out, "pictures": options.png, "trace": options.trace}
        plain = {name: None if path is None else str(path) for name, path in written.items()}
        print(json.dumps({**plain, "runs": [str(folder) for folder in shown_of(given)]}, indent=2))
    else:
        for file in files:
            print(file)
    return 0
