"""Weights & Biases. Its own variables hold: `WANDB_MODE`, `WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_DIR` and others."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.ipc.messages.tracker import End, Open, RunOpened, Values


def needs(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the packages that this takes."""
    return ("wandb",)


class Wandb:
    """See `contract.Tracker`."""

    def open(self, order: Open) -> RunOpened:
        """Without WANDB_PROJECT, or a project in wandb's own settings, the project is the script's name."""
        import wandb

        os.environ.setdefault("WANDB_PROGRAM", order.script)
        try:
            self._run = wandb.init(
                project=wandb.setup().settings.project or _project(order.project),
                id=order.before,
                resume=None if order.before is None else "allow",
                name=order.name if "WANDB_NAME" not in os.environ else None,
                group=order.group,
                settings=wandb.Settings(console="off"),
            )
        except wandb.errors.UsageError as error:  # such as a key that is missing
            offline = "WANDB_MODE=offline logs to files, which `wandb sync` uploads"
            raise wandb.errors.UsageError(f"{str(error).rstrip('.')}; {offline}") from None
        self._run.config.update(order.parameters, allow_val_change=True)
        self._axes: set[str] = set()
        """Names whose axis wandb knows."""
        if self._run.disabled:
            where = "nowhere, as its mode is disabled"
        elif self._run.offline:
            where = f"{(folder := Path(self._run.dir).parent)}; to upload it: wandb sync {folder}"
        else:
            where = str(self._run.url)
        return RunOpened(self._run.id, where)

    def log(self, rows: Sequence[Values]) -> None:
        """wandb's own step must never go back, and workers are not in step. So each row has its axis as a value."""
        for row in rows:
            values = {_named(name): value for name, value in row.values.items()}
            for name in values.keys() - self._axes:
                self._run.define_metric(name, step_metric=row.axis)
                self._axes.add(name)
            self._run.log({**values, row.axis: row.step})

    def end(self, order: End) -> None:
        """wandb shows a run with an exit code other than 0 as failed."""
        import wandb

        self._run.summary.update({"outcome": order.outcome, **order.results})
        self._run.finish(exit_code=0 if order.outcome == "completed" else 1)
        wandb.teardown()


def _named(name: str) -> str:
    """Return the name without a `*`, which wandb takes for a pattern. One name that it refuses loses all its row."""
    return name.replace("*", "_") or "_"


def _project(name: str) -> str:
    """Return the name as wandb takes it for a project. A script's file may be called anything."""
    return re.sub(r"[/\\#?%:]", "-", name)[:128]
