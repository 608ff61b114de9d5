"""Runs as an HTML page, as pictures for a paper, and as a trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.choice import nearest
from paceline.errors import ConfigError
from paceline.files import read_json, write_whole
from paceline.protocols import registry
from paceline.records.comparison import COMPARISON, runs_of
from paceline.records.reading import LEDGER, SUMMARY, RecordedRun, open_run, reading
from paceline.records.report.compared import ComparisonFolder, labels
from paceline.records.report.contents import contents, page
from paceline.records.report.trace import trace
from paceline.records.summary import Target, read
from paceline.records.timeline import read_timeline
from paceline.runs import baseline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def report(
    folders: Sequence[Path],
    out: Path,
    say: Callable[[str], None],
    pictures: Path | None = None,
    traced: Path | None = None,
) -> list[Path]:
    """Write the page of the runs in these folders to `out`, and return the files written.

    A comparison's folder stands for all of its runs. If it is the only one, its target and its rules hold.

    If given, each chart goes to the folder `pictures`, and a trace of every step to the file `traced`. `say` gets a
    line for each run that crashed. Raises ConfigError, in one line.
    """
    if pictures is not None:
        _need_matplotlib("--png")
    shown_folders = shown_of(folders)
    asked = _asked(folders[0]) if len(folders) == 1 and (folders[0] / COMPARISON).exists() else None
    with ExitStack() as stack:
        runs = [_opened(folder, stack, say) for folder in shown_folders]
        with reading(Path(", ".join(map(str, folders)))):
            told = contents(runs, asked=asked)
            steps = None if traced is None else _trace(runs)
            shown = page(told)
    files = [_written(out, shown)]
    if traced is not None and steps is not None:
        files.append(_written(traced, steps))
    if pictures is not None:
        files.append(_pictures(told, pictures))
    return files


def plot(folders: Sequence[Path], metric: str | None = None) -> Figure:
    """Return a figure of this metric over the time of these runs, one curve each.

    By default it is the first metric; without any, the steps that were finished. Raises ConfigError, in one line.
    """
    _need_matplotlib("plot()")
    from paceline.records.report.figures import curves

    with ExitStack() as stack:
        runs = [_opened(folder, stack, lambda line: None) for folder in folders]
        with reading(Path(", ".join(map(str, folders)))):
            told = contents(runs)
    known = list(dict.fromkeys(name for run in told["runs"] for name in run["metrics"]))
    if metric is not None and metric not in known:
        has = f"there are {', '.join(known)}" if known else "none was evaluated or logged"
        raise ConfigError(f'metric is "{metric}", and {has}{nearest(metric, known)}')
    return curves(told, metric or next(iter(known), None))


def shown_of(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of the runs that a report of these folders shows. Raises ConfigError if there are none."""
    found = []
    for folder in folders:
        if not (folder / COMPARISON).exists():
            found.append(folder)
            continue
        ours = [run for run in runs_of(folder) if not _is_baseline(run)]
        if not ours:
            raise ConfigError(
                f"{folder}: none of its runs has a ledger to report; name a comparison with other protocols"
            )
        found += ours
    return found


def _asked(folder: Path) -> ComparisonFolder:
    """Return what this comparison's folder says of its runs."""
    settings = read_json(folder / COMPARISON)["settings"]
    beside = [(baseline.NAME, read(run / SUMMARY)) for run in runs_of(folder) if _is_baseline(run)]
    return ComparisonFolder(
        target=Target.parse(settings["target"]) if settings["target"] else None,
        stops="stop_at_target" in settings,
        names=list(settings["protocols"]),
        beside=[(name, summary["seed"], summary) for name, summary in beside],
    )


def _is_baseline(run: Path) -> bool:
    """Whether this is a run under the baseline, which has a summary and no ledger."""
    return not (run / LEDGER).exists() and (run / SUMMARY).exists()


def _opened(folder: Path, stack: ExitStack, say: Callable[[str], None]) -> RecordedRun:
    """Open the run in this folder until the stack ends. If it crashed, say so."""
    run = open_run(folder, registry())
    stack.enter_context(closing(run.ledger))
    if run.unended:
        say(run.unended)
    return run


def _trace(runs: Sequence[RecordedRun]) -> str:
    parts = (
        (label, read_timeline(run.ledger, run.history()), run.sentence)
        for run, label in zip(runs, labels(runs), strict=True)
    )
    return json.dumps(trace(parts), separators=(",", ":"))


def _need_matplotlib(what: str) -> None:
    try:
        import paceline.records.report.figures  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{what} draws with matplotlib, which is not installed ({error}): pip install 'paceline[report]'"
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
    """Write the text, whole or not at all."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a file that can be written") from None
    return path
