"""What the coordinator knows of one worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline.fabric.unix import Channel
from paceline.records.times import exposed
from paceline.runtime import messages
from paceline.runtime.outbox import Outbox

Stage = Literal["starting", "offered", "training", "closing", "ended", "gone"]


@dataclass(slots=True)
class Pushed:
    """An update that a worker has pushed."""

    area: int
    scale: float
    version: int | None = None
    """The version that has the update, once that is ordered."""


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
    scalars_of: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """The same by step, of updates neither applied nor dropped, as it may have pushed another one by then."""
    heard: float = field(default_factory=time.monotonic)
    """When its last message came."""
    waits: str | None = None
    """What it waits for since `since`, as a sentence; None while it does not."""
    since: float = field(default_factory=time.monotonic)
    step: int | None = None
    """The step that it was last released for, until its gradient is ready."""
    averager: Channel | None = None
    """The channel to its thread that averages, where replicas are averaged."""
    averaged_by: Outbox | None = None
    """What is sent on that channel."""
    reading: int | None = None
    """The version whose slot is kept for it; if it owns a replica, the area that it computes on."""
    ahead: int | None = None
    """The version that was pulled for a later step, and whose slot is kept for that."""
    areas: dict[int, int] = field(default_factory=dict)
    """By step: the push area of its update, until that is applied."""
    scales: dict[int, float] = field(default_factory=dict)
    """By step: the factor that was ordered for its update."""
    pushed: dict[int, Pushed] = field(default_factory=dict)
    """By step: its updates that are not in the version that it was last released on."""
    rate_scale: float = 1.0
    """The factor of its learning rates."""
    momentum_scale: float = 1.0
    """The factor of its `momentum`."""
    queued: Callable[[], None] | None = None
    """Called to release it once a push area is free."""
    transfers: list[tuple[str, float, float]] = field(default_factory=list)
    """(direction, began, ended) of transfers that have ended since its last step's times were told."""
    on_the_way: set[int] = field(default_factory=set)
    """Steps whose gradient is ready, and whose update has neither arrived nor been dropped."""
    looks_at: int | None = None
    """The version whose slot is kept for it in addition, while it copies that for `state_dict`."""
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
