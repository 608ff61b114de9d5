"""What the coordinator knows of one worker."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline.fabric.channel import Channel
from paceline.records.times import exposed
from paceline.runtime import messages

Stage = Literal["starting", "offered", "training", "closing", "ended", "gone"]


@dataclass(slots=True, kw_only=True)
class Member:
    """One worker process, from its fork to its end."""

    worker: int
    process: int
    watch: int
    """A descriptor that becomes readable when the process has ended."""
    channel: Channel
    log: Path
    printed: int | None
    """The pipe with what it prints, if that is shown as it comes."""
    begun: bool = False
    """Whether its script may begin."""
    stage: Stage = "starting"
    """`offered`: has called `prepare`; `closing`: makes no more steps, its script goes on; `ended`: its
    script is through; `gone`: the process is."""
    left: Literal["finished", "died", "stopped"] | None = None
    """How it left training."""
    failed: bool = False
    """Its process ended before its script had ended, and was not stopped."""
    offer: messages.Offered | None = None
    scalars: list[dict[str, Any]] = field(default_factory=list)
    """Its optimizer's hyperparameters as of its last push."""
    heard: float = field(default_factory=time.monotonic)
    """When its last message came."""
    waits: str | None = None
    """What it waits for since `since`, as a sentence; None while it does not."""
    since: float = field(default_factory=time.monotonic)
    step: int | None = None
    """The step that it was last released for, until its gradient is ready."""
    transfers: list[tuple[str, float, float]] = field(default_factory=list)
    """(direction, began, ended) of transfers that have ended since its last step's times were told."""
    finished: messages.StepFinished | None = None
    """Its last finished step, until its times are complete: when the next release is taken."""
    finished_at: float = 0.0
    released_at: float = 0.0
    """When its last release was sent. Both are seconds since the run's start."""
    logged: dict[str, float] = field(default_factory=dict)
    """The last values that its script logged, by name."""
    finishing: bool = False
    """Whether it waits in `finish()`."""

    @property
    def here(self) -> bool:
        """Whether its process runs."""
        return self.stage != "gone"

    @property
    def trains(self) -> bool:
        """Whether the machine counts it as a member."""
        return self.stage == "training"

    @property
    def shown(self) -> bool:
        """Whether what it prints is shown as it comes."""
        return self.printed is not None

    def waited_until(self, now: float) -> float:
        """When its wait after its last finished step was over: at the release that followed; None if not yet."""
        return now if self.released_at < self.finished_at else self.released_at

    def exposed(self, now: float) -> tuple[float, float]:
        """Seconds of its pushes and pulls between its last step's end and the next release, in which it waited."""
        seconds = exposed(self.transfers, self.finished_at, self.waited_until(now))
        self.transfers.clear()
        return seconds

    def wait(self, sentence: str | None) -> None:
        """The worker waits for this from now on; None: it goes on."""
        self.waits, self.since = sentence, time.monotonic()

    def doing(self, now: float) -> str:
        """What the worker is doing, for a report, while it waits for nothing."""
        silent = now - self.heard
        what = {
            "starting": "has not called prepare()",
            "training": "has declined its step" if self.step is None else f"computes step {self.step}",
        }.get(self.stage, "has not ended its script")
        return f"worker {self.worker} {what}, last heard of {silent:.0f} s ago"
