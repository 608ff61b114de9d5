"""What the coordinator keeps of each worker, and how workers are told something."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.core.membership import Membership, Standing
from paceline.core.reasons import Why
from paceline.host.cluster import Cluster
from paceline.ipc import messages

WAITS = {
    "begins-after": "the start waits until worker {0} calls prepare()",
    "others-start": "its start waits for the other workers",
    "hosts-prepare": "the script has yet to call prepare() on the hosts without workers",
    "set-up": "{0} is being set up",
    "host-begins": "host {0} has yet to get what training begins with",
    "version": "its version is being made",
    "push-area": "the store still needs its last updates",
    "agree": "agree() waits for {0:workers}",
    "drain": "host {0} leaves once its range of each version has moved",
    "last-update": "the last update is on its way",
    "finish": "finish() waits until the other workers end",
    "script-ended": "the script has ended, and the run goes on",
    "evaluated": "version {0} is being evaluated",
}
"""The sentence of each code of a wait that no protocol orders. See `core.reasons`."""


@dataclass(slots=True, kw_only=True)
class Member(Standing):
    """One worker: where it stands, what it is doing, and what is kept for it."""

    now: Callable[[], float] = lambda: 0.0
    """The clock that waits are measured by."""
    scalars: list[dict[str, Any]] = field(default_factory=list)
    """Its optimizer's hyperparameters as of its last push."""
    heard: float = field(init=False)
    """When its last message came."""
    waits: Why | None = None
    """Why it waits since `since`: a reason of the protocol, or one of `WAITS`. None while it does not."""
    since: float = field(init=False)
    step: int | None = None
    """The step that it was released for, until its gradient is ready."""
    last: int = -1
    """The last step that it was released for."""
    ordered_at: float = 0.0
    """When it was released for that, in seconds since the run's start."""
    transfers: list[tuple[str, float, float]] = field(default_factory=list)
    """(direction, began, ended) of transfers that have ended since its last step's times were told."""
    handles: frozenset[int] = frozenset()
    """Signals that its script has handlers of its own for."""
    logged: dict[str, float] = field(default_factory=dict)
    """The last values that its script logged, by name."""
    restarts: int = 0
    """How often it has begun again by `--restart`."""
    released_at: float = 0.0
    """When its last release was sent, in seconds since the run's start."""

    def __post_init__(self) -> None:
        """The worker is heard of as it begins."""
        self.heard = self.since = self.now()

    def begins_anew(self) -> None:
        """A new process begins as this worker."""
        self.scalars, self.step, self.waits, self.released_at = [], None, None, 0.0
        self.handles = frozenset()
        self.transfers.clear()
        self.heard = self.since = self.now()

    def wait(self, why: Why | None) -> None:
        """The worker waits for this from now on; None: it goes on."""
        self.waits, self.since = why, self.now()

    def doing(self, now: float) -> str:
        """What the worker is doing, for a report, while it waits for nothing."""
        silent = now - self.heard
        what = {
            "starting": "has not called prepare()",
            "training": "has declined its step" if self.step is None else f"computes step {self.step}",
        }.get(self.stage, "has not ended its script")
        return f"worker {self.worker} {what}, last heard of {silent:.0f} s ago"


class Members(Membership[Member]):
    """The workers of the run: how far each has come, and how each is told something."""

    def __init__(self, cluster: Cluster, hosts: Mapping[int, str], now: Callable[[], float]) -> None:
        super().__init__({worker: Member(worker=worker, now=now) for worker in cluster.numbers})
        self.hosts = hosts
        """By worker: its host, or node. In a run on several hosts it is added to as hosts come."""
        self._cluster = cluster
        self._now = now

    def add(self, workers: Iterable[int]) -> None:
        """These workers' host takes part from now on."""
        self._members.update((worker, Member(worker=worker, now=self._now)) for worker in workers)

    def send(self, member: Member, message: messages.Message) -> None:
        """Tell the worker."""
        self._cluster.send(member.worker, message)

    def give_up(self, member: Member, why: str) -> None:
        """End a worker that can't go on, through no fault of the others."""
        self._cluster.give_up(member.worker, why)

    def kill(self, member: Member) -> None:
        """End the worker's process, whatever it has said and is still on its way."""
        self._cluster.kill(member.worker)
