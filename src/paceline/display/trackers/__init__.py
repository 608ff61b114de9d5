"""Trackers that a run can log to: a file for each, and what they have in common.

| file | what is in it |
|---|---|
| `tensorboard.py`, `wandb.py`, `mlflow.py` | one tracker each: its class, and `needs()` |
| `contract.py` | what each of them must do |
| `figures.py` | what of a run is logged |
| `feed.py` | the launcher's side: it tells each tracker's process what there is |
| `process.py` | the process that calls one tracker's library |

No tracker's library is imported in the launcher (decision 0070).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from paceline.core.choice import nearest
from paceline.errors import ConfigError
from paceline.files import read_json

TRACKERS = {"tensorboard": "TensorBoard", "wandb": "Wandb", "mlflow": "MLflow"}
"""By name: the tracker's class, in the module of that name."""
NONE = "none"
FOLDER = "trackers"
"""The folder in the run's folder with a file for each tracker that says which of the tracker's runs it is."""


def parsed(text: str) -> list[str]:
    """Return the trackers that the flag lists. Raises ConfigError, in one line, for an unknown one.

    >>> parsed("wandb,mlflow")
    ['wandb', 'mlflow']
    >>> parsed("none")
    []
    """
    names = [name.strip() for name in text.split(",")]
    if names == [NONE]:
        return []
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(
                f'--log-to has "{name}"{nearest(name, list(TRACKERS))}; it takes {", ".join(TRACKERS)}, with commas '
                f"between them, or {NONE}"
            )
    return names


def chosen(names: Iterable[str] | None, resumed: Path | None) -> tuple[str, ...]:
    """Return the trackers to log to, each once. None: those that the run to go on with had, if there is one."""
    if names is None:
        names = [] if resumed is None else [name for name in TRACKERS if run_before(resumed, name) is not None]
    return tuple(dict.fromkeys(names))


def check_installed(names: Iterable[str], environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError, in one line, if a package is missing that logging to one of these trackers needs."""
    for name in names:
        needed: Sequence[str] = import_module(f"paceline.display.trackers.{name}").needs(environ)
        if missing := [package for package in needed if not _is_installed(package)]:
            are = "which is" if len(missing) == 1 else "which are"
            raise ConfigError(
                f"--log-to {name} needs {' and '.join(missing)}, {are} not installed: "
                f"pip install {' '.join(INSTALLED_AS.get(package, package) for package in missing)}"
            )


INSTALLED_AS = {"mlflow": "mlflow-skinny"}
"""What `pip install` calls a package that is imported under another name."""


def run_before(folder: Path, name: str) -> str | None:
    """Return the tracker's run that the run in this folder was logged to; None if there is none."""
    try:
        return str(read_json(record_of(folder, name))["run"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def record_of(folder: Path, name: str) -> Path:
    """Return the file that says which of the tracker's runs the run in this folder is logged to."""
    return folder / FOLDER / f"{name}.json"


def _is_installed(package: str) -> bool:
    """Whether the package can be imported. A folder of that name, as wandb makes one, is no package."""
    try:
        found = find_spec(package)
    except (ImportError, ValueError):
        return False
    return found is not None and found.origin is not None
