"""`paceline ui`: a page of recorded runs, and of runs that still go on."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.cli.values import MOST_PORTS, whole

HERE = Path("runs")
"""Where a run goes without `--out`."""


DESCRIPTION = (
    "Serve a page of the runs in these folders to browsers of this machine, until Ctrl-C. A run that still goes on is "
    "read from its ledger once a second while somebody looks at it."
)


def add_flags(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    about = "a run's folder, or one with runs in it (default: runs)"
    add("runs", metavar="RUN", nargs="*", type=Path, default=[HERE], help=about)
    port = "the port of the page (default: a free one)"
    add("--port", type=whole("--port", 1, MOST_PORTS), default=0, metavar="PORT", help=port)
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    from paceline.runs.ui import serve

    serve(options.runs, options.port, lambda address: print(address, flush=True))
    return 0
