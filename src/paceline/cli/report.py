"""`paceline report`: runs as a page that anybody can open; as pictures for a paper; as a trace for Perfetto."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.comparison import COMPARISON, runs_of
from paceline.records.reading import RecordedRun, open_run, reading
from paceline.records.report.contents import contents, in_detail, labels
from paceline.records.report.page import page
from paceline.records.report.trace import trace
from paceline.records.whole import write_whole

PAGE = "report.html"


def add_to(commands: Any) -> None:
    """Add the command and its flags."""
    command: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="show runs: curves, timelines, who waited for whom",
        description="Write one HTML page that shows these runs, beside each other if there are several. The "
        "page works without a network or a server.",
        allow_abbrev=False,
    )
    add = command.add_argument
    add("runs", metavar="RUN", nargs="+", type=Path, help="a run's folder, real or simulated, or a comparison's")
    add("--out", type=Path, metavar="FILE", help=f"the page (default: {PAGE}, in the folder of the only RUN, or here)")
    add("--png", type=Path, metavar="DIR", help="also write each chart there, as PNG (needs matplotlib)")
    add("--trace", type=Path, metavar="FILE", help="also write a trace of every step, for ui.perfetto.dev")
    add("--json", action="store_true", help="print what was written as one JSON object")
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    """Do what the flags say; returns the exit code."""
    given: list[Path] = options.runs
    folders = [run for folder in given for run in (runs_of(folder) if (folder / COMPARISON).exists() else [folder])]
    out = options.out or (given[0] / PAGE if len(given) == 1 else Path(PAGE))
    files = report(folders, out, options.png, options.trace)
    if options.json:
        written = {"page": out, "pictures": options.png, "trace": options.trace}
        plain = {name: None if path is None else str(path) for name, path in written.items()}
        print(json.dumps({**plain, "runs": [str(folder) for folder in folders]}, indent=2))
    else:
        for file in files:
            print(file)
    return 0


def report(folders: Sequence[Path], out: Path, pictures: Path | None = None, traced: Path | None = None) -> list[Path]:
    """Write the page of the runs in these folders to `out`; each chart to the folder `pictures`, and every step to
    `traced`, if they are given. Returns what was written. Raises ConfigError, in one line, for what can't be done."""
    if pictures is not None:
        _need_matplotlib()
    with ExitStack() as stack:
        runs = [_opened(folder, stack) for folder in folders]
        with reading(Path(", ".join(map(str, folders)))):
            told = contents(runs)
            steps = None if traced is None else _trace(runs)
            shown = page(told)
    files = [_written(out, shown)]
    if traced is not None and steps is not None:
        files.append(_written(traced, steps))
    if pictures is not None:
        files.append(_pictures(told, pictures))
    return files


def _opened(folder: Path, stack: ExitStack) -> RecordedRun:
    """The run in that folder, closed with the stack; if it crashed, that is said on standard error."""
    run = open_run(folder, registry())
    stack.enter_context(closing(run.ledger))
    if run.unended:
        print(f"paceline: {run.unended}", file=sys.stderr)
    return run


def _trace(runs: Sequence[RecordedRun]) -> str:
    parts = []
    for run, label in zip(runs, labels(runs), strict=True):
        notes, waited = in_detail(run)
        parts.append((label, notes.timeline(run.ledger), waited.waits or {}, run.choice.sentence))
    return json.dumps(trace(parts), separators=(",", ":"))


def _need_matplotlib() -> None:
    try:
        import paceline.records.report.figures  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"--png draws with matplotlib, which is not installed ({error}): pip install 'paceline[report]'"
        ) from None


def _pictures(told: dict[str, Any], folder: Path) -> Path:
    from paceline.records.report.figures import draw

    try:
        folder.mkdir(parents=True, exist_ok=True)
        draw(told, folder)
    except OSError as error:
        raise ConfigError(f"--png {folder}: {error.strerror}; name a folder that can be written") from None
    return folder


def _written(path: Path, text: str) -> Path:
    """Write it whole or not at all."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a file that can be written") from None
    return path
