"""Everything that was settled before a run begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.core.choice import Choice
from paceline.core.scenario import Scenario
from paceline.records.summary import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run: what the command line says, with every default filled in."""

    script: Path
    arguments: tuple[str, ...]
    choice: Choice
    workers: int
    scenario: Scenario
    seed: int
    threads: int
    """Of each worker."""
    folder: Path
    shards: Literal["dynamic", "static"] | None
    """None: as the script says."""
    epochs: int | None
    record: int
    """Versions recorded in each epoch; the last is recorded in any case."""
    targets: tuple[Target, ...]
    on_loss: Literal["auto", "continue", "stop"]
    """What a worker's death does to the run. `auto`: ends it if its script failed, and not if a signal killed it."""
    on_divergence: Literal["stop", "continue"]
    tee: Literal["first", "all", "none"]
    max_steps: int | None
    max_seconds: float | None
    report_waits: float
    """Seconds after which a wait is reported."""
    json: bool
    quiet: bool = False
    """Whether nothing is to be said of how it goes."""
    progress: float = 10.0
    """Seconds from one line on how it goes to the next."""
    tensorboard: bool = False
    """Whether what is logged and evaluated is written for TensorBoard, too."""
    learning_rate_scale: float = 1.0
    """What the script's learning rates are multiplied by, wherever the optimizer runs."""
    start: Literal["staggered", "together"] = "staggered"
    """When scripts begin: the others when the lowest worker's has come to `prepare`, or all at once."""
    saves: Literal["first", "all"] = "first"
    """Whose `torch.save` writes to the path that it is given: worker 0's, or every worker's. See `runtime.saves`."""
    simulated: Scenario | None = None
    """The cluster whose times are virtual; None: time is real."""
