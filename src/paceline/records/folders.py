"""Runs as they lie on disk: which folders are runs, what each came to, and how much space it takes.

A listing may be of thousands of runs, so that it reads `config.toml` and `summary.json` alone, and opens no ledger.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.files import opened_record, read_json, read_record
from paceline.records.reading import HEAD, LEDGER, MALFORMED, SUMMARY, is_written
from paceline.records.summary import Target, metrics_of, values_of

UNREADABLE = OSError, *MALFORMED
CONFIG, VERSIONS = "config.toml", "versions"
STATUSES = ("running", "completed", "interrupted", "failed", "diverged", "crashed", "damaged")
"""`crashed`: no process writes the run any more, and it has no summary. `damaged`: a file of it can't be read."""


def edit_file(run: Path, number: int) -> Path:
    """Return the file with that change of the model's structure, from 1, and the values of its new tensors."""
    return run / "structures" / f"{number}.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A run, as a listing shows it. What its files do not say is None."""

    folder: Path
    status: str
    error: str | None = None
    """Of a damaged run, what can't be read; of any other one, what ended it."""
    began: float | None = None
    """Seconds since 1970: when `config.toml` was last written, as training began."""
    protocol: str | None = None
    config: Mapping[str, Any] | None = None
    """The protocol's parameters."""
    workers: int | None = None
    script: str | None = None
    simulated: bool = False
    steps: int | None = None
    seconds: float | None = None
    metrics: Mapping[str, float | None] | None = None
    """Of the last evaluated version."""
    targets: Mapping[str, float | None] | None = None
    """By target, after how many seconds it was met."""
    best: Mapping[str, float | None] | None = None
    """By target, the best value of its metric in any recorded version."""

    def to_plain(self) -> dict[str, Any]:
        """As `--json` prints it, but for the time, which the command writes as a date."""
        protocol = None if self.protocol is None else {"name": self.protocol, "config": self.config}
        return {
            "folder": str(self.folder),
            "status": self.status,
            "error": self.error,
            "began": self.began,
            "protocol": protocol,
            "workers": self.workers,
            "script": self.script,
            "simulated": self.simulated,
            "steps": self.steps,
            "seconds": self.seconds,
            "metrics": self.metrics,
            "targets": self.targets,
            "best": self.best,
        }


def runs_below(folder: Path) -> Iterator[Path]:
    """The runs in that folder, and in the folders in it, as a comparison's; or the folder itself, if it is a run.

    Links are not followed. Folders that can't be read are left out.
    """
    if is_run(folder):
        yield folder
        return
    for path in _folders(folder):
        if is_run(path):
            yield path
        else:
            yield from (inner for inner in _folders(path) if is_run(inner))


def is_run(folder: Path) -> bool:
    """Whether a run of ours has written into that folder: it has a ledger and a configuration."""
    return (folder / LEDGER).is_file() and (folder / CONFIG).is_file()


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]


def listed(folder: Path) -> Listed:
    """The run in that folder. What can't be read of it makes it a damaged one."""
    try:
        return _listed(folder)
    except UNREADABLE as error:
        what = " ".join(str(error).split())[:80] or type(error).__name__
        return Listed(folder=folder, status="damaged", error=what, began=_written(folder / CONFIG))


def _listed(folder: Path) -> Listed:
    try:
        config = tomllib.loads(read_record(folder / CONFIG).decode())
        protocol, parameters = str(config["protocol"]["name"]), dict(config["protocol"].get("config", {}))
        workers, script = int(config["workers"]), config.get("script")
    except UNREADABLE as error:
        raise ValueError(f"{CONFIG} can't be read: {error}") from error
    with opened_record(folder / LEDGER) as file:
        if file.read(len(HEAD)) != HEAD:
            raise ValueError(f"{LEDGER} is no ledger: it was truncated or overwritten")
    known: dict[str, Any] = {
        "folder": folder,
        "began": _written(folder / CONFIG),
        "protocol": protocol,
        "config": parameters,
        "workers": workers,
        "script": None if script is None else str(script),
        "simulated": bool(config.get("simulated")),
    }
    if not (folder / SUMMARY).exists():
        return Listed(**known, status="running" if is_written(folder) else "crashed")
    try:
        return Listed(**known, **_came_to(read_json(folder / SUMMARY)))
    except UNREADABLE as error:
        raise ValueError(f"{SUMMARY} can't be read: {error}") from error


def _came_to(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What its summary says of a run."""
    outcome = str(summary["outcome"])
    if outcome not in STATUSES:
        raise ValueError(f'its outcome is "{outcome}"')
    evaluations = list(summary["evaluations"])
    targets: dict[str, float | None] = {}
    best: dict[str, float | None] = {}
    for text, met in summary["targets"].items():
        target = Target.parse(text)
        targets[text] = None if met is None else float(met["at_seconds"])
        values = values_of(target.metric, dict(summary))
        best[text] = None if not values else max(values) if target.sign[0] == ">" else min(values)
    last = evaluations[-1] if evaluations else {}
    return {
        "status": outcome,
        "error": None if summary["error"] is None else str(summary["error"]),
        "steps": int(summary["steps"]),
        "seconds": float(summary["wall_seconds"]),
        "metrics": {name: None if last[name] is None else float(last[name]) for name in metrics_of([last])},
        "targets": targets,
        "best": best,
    }


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a run's files. One that has two names, as the last version has, counts once."""

    versions: int
    ledger: int
    rest: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.versions + self.ledger + self.rest


def size_of(folder: Path) -> Size:
    """What the run in that folder takes. A file that goes while this looks is not counted."""
    sizes, seen = {"versions": 0, "ledger": 0, "rest": 0}, set()
    for path, _, files in os.walk(folder):
        inside = Path(path).relative_to(folder).parts
        for name in files:
            try:
                about = os.lstat(os.path.join(path, name))
            except OSError:
                continue
            if (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
            kind = "versions" if inside[:1] == (VERSIONS,) else "rest"
            if not inside and name.startswith(LEDGER):  # with what SQLite keeps beside it
                kind = "ledger"
            sizes[kind] += about.st_size if stat.S_ISREG(about.st_mode) else 0
    return Size(**sizes)
