"""The folders of runs: which folders are runs, how each run ended, and how much space it takes.

A listing may have thousands of runs. So it reads only `config.toml` and `summary.json`, and opens no ledger.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.core.phrases import error_line
from paceline.files import opened_record, read_json, read_record
from paceline.records.reading import HEAD, LEDGER, MALFORMED, SUMMARY, is_written
from paceline.records.summary import Target, last_logged, metrics_of, values_of

UNREADABLE = OSError, *MALFORMED
CONFIG, VERSIONS = "config.toml", "versions"
STATUSES = ("running", "completed", "interrupted", "failed", "diverged", "crashed", "damaged")
"""`crashed`: the run has no summary, and no process writes it. `damaged`: one of its files can't be read."""


def edit_file(run: Path, number: int) -> Path:
    """Return the file of this change of the model's structure, from 1, with the values of new tensors."""
    return run / "structures" / f"{number}.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A run in a listing. What its files do not say is None."""

    folder: Path
    status: str
    error: str | None = None
    """What can't be read of a damaged run, or what ended any other run."""
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
    """Of the last evaluated version; of other metrics, the last logged value."""
    targets: Mapping[str, float | None] | None = None
    """By target: the seconds after which it was met."""
    best: Mapping[str, float | None] | None = None
    """By target: the best value of its metric."""

    def to_plain(self) -> dict[str, Any]:
        """Return what `--json` prints. The command writes `began` as a date."""
        plain = asdict(self)
        config = plain.pop("config")
        protocol = None if self.protocol is None else {"name": self.protocol, "config": config}
        return plain | {"folder": str(self.folder), "protocol": protocol}


def runs_below(folder: Path) -> Iterator[Path]:
    """Yield the folder itself if it is a run, or else the runs in it and in its folders, such as a comparison's.

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
    """Whether the folder is a run's: it has a ledger and a configuration."""
    return (folder / LEDGER).is_file() and (folder / CONFIG).is_file()


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names)]


def listed(folder: Path) -> Listed:
    """Return the run in this folder. One that can't be read is `damaged`."""
    try:
        return _listed(folder)
    except UNREADABLE as error:
        return Listed(folder=folder, status="damaged", error=error_line(error, 80), began=_written(folder / CONFIG))


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
    """Return the fields that follow from the run's summary."""
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
    metrics = {name: last[name] for name in metrics_of([last])}
    metrics = {name: row["value"] for name, row in last_logged(summary).items()} | metrics
    return {
        "status": outcome,
        "error": None if summary["error"] is None else str(summary["error"]),
        "steps": int(summary["steps"]),
        "seconds": float(summary["wall_seconds"]),
        "metrics": {name: None if value is None else float(value) for name, value in metrics.items()},
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
    """Bytes of a run's files. A file with two names, such as the last version's, counts once."""

    versions: int
    ledger: int
    rest: int

    @property
    def total(self) -> int:
        return self.versions + self.ledger + self.rest


def size_of(folder: Path) -> Size:
    """Measure the run in this folder. A file that is removed meanwhile is not counted."""
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
