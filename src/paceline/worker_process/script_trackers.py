"""Trackers that a script uses by itself. Every worker runs the script, and a user expects one run in the tracker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from paceline.training.replaced import Patch, after_import, replace

DISABLED = (
    "calls wandb.init(), which makes a run in worker 0 alone: in the others its mode is disabled (--saves all has "
    "every worker make one)"
)
SEVERAL = (
    "calls mlflow.start_run(), and so does every worker: MLflow gets a run of each. Put `if paceline.is_main():` "
    "before it, or have --log-to mlflow log the run"
)
BESIDE = (
    "begins a run of {name} by itself: what the script logs to {name} is there, and the run of --log-to {name} has the "
    "training as a whole"
)


def one_run(worker: int, log_to: Collection[str], remark: Callable[[str], None]) -> None:
    """Have worker 0 alone make runs of wandb, and tell of each worker's run of MLflow, once the script imports these.

    `log_to`: the trackers that the run as a whole is logged to. `remark(line)` tells the user what this worker does.
    """

    def told(name: str, line: str) -> Callable[[], None]:
        """Return what tells the user of a run of that tracker, once. Of several workers that do the same, one tells."""
        lines = [BESIDE.format(name=name)] if worker == 0 and name in log_to else [line] if worker == 1 else []
        return lambda: remark(lines.pop()) if lines else None

    after_import("wandb", lambda: _replace_init(worker, told("wandb", DISABLED)))
    after_import("mlflow", lambda: _replace_start_run(told("mlflow", SEVERAL)))


def _replace_init(worker: int, tell: Callable[[], None]) -> None:
    import wandb

    def makes(init: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*given: Any, **named: Any) -> Any:
            if named.get("mode") != "disabled":
                tell()
            return init(*given, **(named if worker == 0 else named | {"mode": "disabled"}))

        return begin

    replace([Patch((wandb, wandb.sdk), ("init",), makes, "worker 0 alone makes a run")])


def _replace_start_run(tell: Callable[[], None]) -> None:
    import mlflow
    import mlflow.tracking.fluent

    def makes(start_run: Callable[..., Any]) -> Callable[..., Any]:
        def start(*given: Any, **named: Any) -> Any:
            tell()
            return start_run(*given, **named)

        return start

    owners = (mlflow, mlflow.tracking.fluent)
    replace([Patch(owners, ("start_run",), makes, "the user is told that each worker makes a run")])
