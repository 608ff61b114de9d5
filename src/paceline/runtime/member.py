"""What the coordinator and the host keep of one worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.core.membership import Standing
from paceline.fabric.channel import Channel
from paceline.runtime.outbox import Outbox


@dataclass(slots=True)
class Pushed:
    """An update that a worker has pushed."""

    area: int
    scale: float
    version: int | None = None
    """The version that has the update, once that is ordered."""


@dataclass(slots=True, kw_only=True)
class Member(Standing):
    """One worker: where it stands, what it is doing, and what is kept for it."""

    now: Callable[[], float] = lambda: 0.0
    """The clock that waits are measured by."""
    scalars: list[dict[str, Any]] = field(default_factory=list)
    """Its optimizer's hyperparameters as of its last push."""
    scalars_of: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """The same by step, of updates neither applied nor dropped, as it may have pushed another one by then."""
    heard: float = field(init=False)
    """When its last message came."""
    waits: str | None = None
    """What it waits for since `since`, as a sentence; None while it does not."""
    since: float = field(init=False)
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
    released_at: float = 0.0
    """When its last release was sent, in seconds since the run's start."""

    def __post_init__(self) -> None:
        """The worker is heard of as it begins."""
        self.heard = self.since = self.now()

    def wait(self, sentence: str | None) -> None:
        """The worker waits for this from now on; None: it goes on."""
        self.waits, self.since = sentence, self.now()

    def doing(self, now: float) -> str:
        """What the worker is doing, for a report, while it waits for nothing."""
        silent = now - self.heard
        what = {
            "starting": "has not called prepare()",
            "training": "has declined its step" if self.step is None else f"computes step {self.step}",
        }.get(self.stage, "has not ended its script")
        return f"worker {self.worker} {what}, last heard of {silent:.0f} s ago"
