"""`paceline runs`: the runs in a folder, what they take on disk, and how they go."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from paceline.cli.columns import as_csv, as_markdown, as_text, check_exports, export
from paceline.cli.main import Parser
from paceline.cli.values import shortened
from paceline.core.choice import Choice, choose
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.folders import STATUSES, Listed, Size, listed, runs_below, size_of
from paceline.records.summary import metric_text
from paceline.runs import folders

LIST, REMOVE, SIZES = "list", "rm", "du"
HERE = Path("runs")
"""Where a run goes without `--out`."""
NUMBERS = ("workers", "steps", "seconds", "versions", "ledger", "rest", "total")
"""Columns that are flush right."""
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
SHORTEST = 60
"""Characters of a result in the table; `--json` has all of them."""


DESCRIPTION = (
    "List the runs in a folder. `paceline runs DIR` is short for `paceline runs list DIR`, and takes its flags."
)


def add_flags(command: Parser) -> None:
    command.usual = LIST
    parts = command.add_subparsers(title="parts", metavar="PART", required=True, parser_class=Parser)
    _add_list(parts)
    _add_remove(parts)
    _add_sizes(parts)


def _add_list(parts: Any) -> None:
    about = "List the runs in DIR, and in the comparisons there, the newest first."
    part: argparse.ArgumentParser = parts.add_parser(LIST, help="list runs", description=about)
    add = part.add_argument
    _add_folder(part)
    protocol = "only runs under this protocol, if it has parameters with the same ones (repeatable)"
    add("--protocol", action="append", metavar="NAME[:KEY=VALUE,…]", help=protocol)
    ends = f"only runs that came to this: {', '.join(STATUSES[:-1])} or {STATUSES[-1]} (repeatable)"
    add("--status", action="append", choices=STATUSES, metavar="STATUS", help=ends)
    add("--since", metavar="WHEN", help="only runs that began since then: 2026-11-20, or 90m, 12h, 3d, 2w ago")
    add("--script", metavar="NAME", help="only runs of the script with this name or path")
    add("--json", action="store_true", help="print them as a JSON array")
    add("--export-markdown", type=Path, metavar="FILE", help="also write the table there, as Markdown")
    add("--export-csv", type=Path, metavar="FILE", help="also write the table there, as CSV")
    part.set_defaults(call=show)


def _add_remove(parts: Any) -> None:
    about = "Remove the folders of these runs. All are looked at first: if one can't be removed, none is."
    part: argparse.ArgumentParser = parts.add_parser(REMOVE, help="remove runs", description=about)
    part.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run's folder")
    part.set_defaults(call=remove)


def _add_sizes(parts: Any) -> None:
    about = "Show what the runs in DIR take on disk, the largest first."
    part: argparse.ArgumentParser = parts.add_parser(SIZES, help="show what runs take on disk", description=about)
    _add_folder(part)
    part.add_argument("--json", action="store_true", help="print them as a JSON array, in bytes")
    part.set_defaults(call=sizes)


def _add_folder(part: argparse.ArgumentParser) -> None:
    part.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=HERE, help="where (default: runs)")


def show(options: argparse.Namespace) -> int:
    check_exports({"--export-markdown": options.export_markdown, "--export-csv": options.export_csv})
    since = None if options.since is None else _moment(options.since, time.time())
    choices = None if options.protocol is None else [choose(text, registry()) for text in options.protocol]
    found = [run for run in map(listed, _found(options.folder)) if _wanted(run, options, choices, since)]
    found.sort(key=lambda run: -(run.began or 0.0))
    heads = ("run", "began", "protocol", "workers", "status", "steps", "seconds", "result")
    rows = [_row(run) for run in found]
    if options.export_markdown is not None:
        export("--export-markdown", options.export_markdown, as_markdown(heads, rows, NUMBERS))
    if options.export_csv is not None:
        export("--export-csv", options.export_csv, as_csv(heads, rows))
    if options.json:
        print(json.dumps([{**run.to_plain(), "began": _date(run.began)} for run in found], indent=2))
    elif rows:
        print(as_text(heads, rows, NUMBERS))
    else:
        filters = (options.protocol, options.status, options.since, options.script)
        print(f"{options.folder}: no runs" + ("" if filters == (None,) * 4 else " of these"))
    return 0


def remove(options: argparse.Namespace) -> int:
    named = list(dict.fromkeys(options.runs))
    for folder in named:
        if why := folders.why_not(folder):
            raise ConfigError(f"{folder}: {why}")
    freed = 0
    for folder in named:
        size = folders.remove(folder)
        freed += size
        print(f"{folder}: removed, {_bytes(size)} freed")
    if len(named) > 1:
        print(f"{len(named)} runs removed, {_bytes(freed)} freed")
    return 0


def sizes(options: argparse.Namespace) -> int:
    found = sorted(((run, size_of(run)) for run in _found(options.folder)), key=lambda one: -one[1].total)
    if options.json:
        print(json.dumps([{"folder": str(run), **_plain(size)} for run, size in found], indent=2))
    elif found:
        everything = Size(*(sum(getattr(size, part) for _, size in found) for part in ("versions", "ledger", "rest")))
        rows = [[str(run), *map(_bytes, _plain(size).values())] for run, size in found]
        if len(found) > 1:
            rows.append([f"{len(found)} runs", *map(_bytes, _plain(everything).values())])
        print(as_text(("run", "versions", "ledger", "rest", "total"), rows, NUMBERS))
    else:
        print(f"{options.folder}: no runs")
    return 0


def _found(folder: Path) -> Sequence[Path]:
    if not folder.is_dir():
        what = "it is a file" if folder.exists() else "there is no such folder"
        raise ConfigError(f"{folder}: {what}; name a folder with runs in it")
    return list(runs_below(folder))


def _wanted(run: Listed, options: argparse.Namespace, choices: Sequence[Choice] | None, since: float | None) -> bool:
    if choices is not None and not any(_under(run, *pair) for pair in zip(options.protocol, choices, strict=True)):
        return False
    if options.status is not None and run.status not in options.status:
        return False
    if since is not None and (run.began is None or run.began < since):
        return False
    if options.script is None:
        return True
    return run.script is not None and options.script in (run.script, Path(run.script).name)


def _under(run: Listed, text: str, choice: Choice) -> bool:
    """Whether the run is under this protocol. If `text` gives parameters, all of the run's must be the same."""
    return run.protocol == choice.spec.name and (":" not in text or run.config == choice.to_plain()["config"])


def _moment(text: str, now: float) -> float:
    """Read a date, or how long ago, as seconds since 1970."""
    if found := re.fullmatch(r"(\d{1,9})([smhdw])", text):
        return now - float(found[1]) * UNITS[found[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f'--since is "{shortened(text)}"; write a date, such as 2026-11-20, or how long ago: 90m, 12h, 3d, 2w'
        ) from None


def _row(run: Listed) -> list[str]:
    seconds = "-" if run.seconds is None else f"{run.seconds:.1f}"
    return [
        str(run.folder),
        "-" if run.began is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began)),
        folders.protocol_of(run) or "-",
        "-" if run.workers is None else str(run.workers),
        run.status + (", simulated" if run.simulated else ""),
        "-" if run.steps is None else str(run.steps),
        seconds,
        _result(run),
    ]


def _result(run: Listed) -> str:
    """Say whether targets were met, or else what the last version measures. Of a run that went wrong, say why."""
    if run.targets:
        told = ", ".join(_met(run, text, seconds) for text, seconds in run.targets.items())
    elif run.metrics:
        told = ", ".join(f"{name} {metric_text(one)}" for name, one in run.metrics.items())
    else:
        told = ""
    if run.error is not None:
        told = " ".join(run.error.split())
    return told if len(told) <= SHORTEST else f"{told[: SHORTEST - 1]}…"


def _met(run: Listed, target: str, seconds: float | None) -> str:
    if seconds is not None:
        return f"{target} after {seconds:.1f} s"
    best = (run.best or {}).get(target)
    return f"{target} never" + ("" if best is None else f", at best {best:.4g}")


def _plain(size: Size) -> dict[str, int]:
    return {**asdict(size), "total": size.total}


def _bytes(size: int) -> str:
    """Format as `812 B`, `1.2 MB`: in powers of 1000, like scenario files."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def _date(began: float | None) -> str | None:
    return None if began is None else datetime.fromtimestamp(began).astimezone().isoformat(timespec="seconds")
