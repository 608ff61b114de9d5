"""Stands in for the runs of `paceline compare` and `paceline tune`: each takes no time, and leaves a summary."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

ROW = {"compute_seconds": 3.0, "wait_seconds": 1.0, "transfer_seconds": 0.0, "other_seconds": 0.0}


LOGGED = {"value": 3.0, "version": 1, "worker": 0, "step": 1}
"""What the script has logged first and last."""


@dataclass
class Job:
    """In the place of `series.make_run`. A run is named by what `name` makes of `-p`, and by its seed."""

    seconds: Callable[[Any, int], float]
    metrics: Callable[[Any, int], dict[str, float | None]]
    """Of the last version of the run of that name."""
    name: Callable[[str], Any] = str
    ends: dict[Any, Callable[[Path], int | None]] = field(default_factory=dict)
    """What happens at the end of these runs, once, instead of `completed`."""
    config: str = "[limits]\nepochs = 2\n"
    begun: list[Any] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)

    def __call__(self, arguments: Sequence[str], interrupts: Sequence[int]) -> int:
        words = list(arguments)
        self.commands.append(words)
        flags = self.given[-1]
        folder, name = Path(flags["--out"]), (self.name(flags["-p"]), int(flags["--seed"]))
        self.begun.append(name)
        folder.mkdir()
        code = self.ends.pop(name)(folder) if name in self.ends else 0
        if code not in (None, 0, 4):
            return int(code)
        seconds = self.seconds(*name)
        evaluations = [
            {"version": 1, "at_seconds": seconds / 2, "samples": 8, "accuracy": 0.9},
            {"version": 2, "at_seconds": seconds, "samples": 16, **self.metrics(*name)},
        ]
        summary = {
            "outcome": "diverged" if code else "completed",
            "workers": 2,
            "error": "NaN" if code else None,
            "wall_seconds": seconds,
            "samples_per_second": 100.0,
            "per_worker": [ROW],
            "staleness": {"mean": 0.5, "max": 3},
            "evaluations": [] if code else evaluations,
            "scalars": {"loss": {one: {**LOGGED, "at_seconds": seconds} for one in ("first", "last")}},
        }
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "config.toml").write_text(self.config)
        return code or 0

    @property
    def given(self) -> list[dict[str, str]]:
        """The flags of each run."""
        return [dict(pairwise(words[: words.index("train.py")])) for words in self.commands]


def interrupted(_: Path) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    return 130


def diverges(_: Path) -> int:
    return 4


def fails(folder: Path) -> int:
    (folder / "summary.json").write_text(json.dumps({"outcome": "failed", "error": "all workers died"}))
    return 3
