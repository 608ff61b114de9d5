"""Folders of runs: where a new one may go, and which may be removed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.comparison import COMPARISON
from paceline.records.folders import Listed, is_run, size_of
from paceline.records.kept import is_free
from paceline.records.reading import LEDGER, is_written
from paceline.records.segments import name_of


def new_folder(name: str) -> Path:
    """Return a new folder below runs/, named after `name` and the time."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
    return next(path for name in names if not (path := Path("runs") / name).exists())


def checked_folder(out: Path | None, protocol: str) -> Path:
    """Return the run's folder. Raises ConfigError if no run can be made there."""
    if out is None:
        return new_folder(protocol)
    if (out / LEDGER).exists():
        raise ConfigError(f"--out {out} holds a run already; name another folder, or remove this one")
    if not is_free(out):
        raise ConfigError(f"--out {out} is not an empty folder; name another one")
    return out


def check_free(folder: Path, noun: str) -> None:
    """Raise ConfigError if no series can begin in this folder."""
    if not is_free(folder):
        raise ConfigError(f"--out {folder} is neither an empty folder nor one with a {noun}; name another one")


def why_not(folder: Path) -> str:
    """Return why this folder can't be removed, and what to do; empty for a run that has ended."""
    if folder.is_symlink():
        return "it is a link; name the run's folder itself"
    if not folder.is_dir():
        return "there is no such folder; name a run's folder"
    if not is_run(folder):
        what = "it is a comparison's folder" if (folder / COMPARISON).is_file() else "it is not a run's folder"
        return f"{what}; only runs are removed, name those in it"
    if is_written(folder):
        return "this run is still going on; end it first (Ctrl-C), then remove it"
    if next(_others(folder), None) is not None:
        return "other runs lie in this run's folder; move or remove them first"
    return ""


def remove(folder: Path) -> int:
    """Remove a run's folder, and return the bytes freed. Raises ConfigError if a part of it stays."""
    freed = size_of(folder).total
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}; {folder} is removed in part") from None
    return freed


def _others(folder: Path) -> Iterator[Path]:
    """Return the folders of runs inside this run's folder, however deep."""
    return (path.parent for path in folder.rglob(LEDGER) if path.parent != folder)


def protocol_of(run: Listed) -> str:
    """Return a listed run's protocol under its one name; empty if it has none."""
    return "" if run.protocol is None else name_of({"name": run.protocol, "config": run.config or {}}, registry())
