"""Where a step's time went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import itemgetter

from paceline.core.items import EarlyVersion, Item, Mean, Partial, Replica, Sum, Update, Version
from paceline.core.values import value


@value(frozen=True, slots=True)
class StepTimes:
    """The parts of one step, in seconds. `began` counts from the run's start.

    Copies to and from a device overlap the other parts, so no sum includes them. None: parameters are in memory.
    """

    began: float
    compute: float
    push: float
    wait: float
    pull: float
    other: float
    to_device: float | None = None
    from_device: float | None = None


@dataclass(slots=True)
class StepTotals:
    """Sums over one worker's steps, in seconds."""

    steps: int = 0
    """How many have been computed, whatever became of their gradients."""
    first: float = 0.0
    """What the first one took to compute, which is often much longer than the others."""
    compute: float = 0.0
    wait: float = 0.0
    transfer: float = 0.0
    """Pushes and pulls."""
    to_device: float | None = None
    """Seconds of copies to the device, which overlap the parts above. None: there were none."""
    from_device: float | None = None

    def add(self, times: StepTimes) -> None:
        """Add a finished step."""
        self.first = self.first if self.steps else times.compute
        self.steps += 1
        self.compute += times.compute
        self.wait += times.wait
        self.transfer += times.push + times.pull
        if times.to_device is not None or times.from_device is not None:
            self.add_copies(times)

    def add_copies(self, times: StepTimes | StepTotals) -> None:
        if times.to_device is not None:
            self.to_device = (self.to_device or 0.0) + times.to_device
        if times.from_device is not None:
            self.from_device = (self.from_device or 0.0) + times.from_device

    @property
    def gradient(self) -> float | None:
        """Seconds of computing a gradient: the mean without the first one. None if there is no other."""
        return (self.compute - self.first) / (self.steps - 1) if self.steps > 1 else None

    @property
    def copied(self) -> bool:
        """Whether any copies were measured."""
        return (self.to_device, self.from_device) != (None, None)


@value(frozen=True, slots=True)
class TransferTimes:
    """A transfer in the network's model, and when the run acted on its end, in seconds since the run's start."""

    began: float
    ended: float
    delivered: float


@value(frozen=True, slots=True, kw_only=True)
class FetchTimes:
    """An item that one host has fetched from another. The ledger's table `fetches` explains its moments."""

    host: str
    """The host that fetched it."""
    source: str
    """The host that it was fetched from."""
    kind: str
    """`version`, `update`, `sum`, `partial`, `mean`, `replica` or `other`."""
    worker: int | None = None
    """The worker of an update or a replica."""
    number: int | None = None
    """The version, the update's step, the sum's number, the group, or how often the replica had changed."""
    bytes: int
    began: float
    ended: float

    @classmethod
    def of(cls, item: Item, *, host: str, source: str, size: int, began: float, ended: float) -> FetchTimes:
        """Return the fetch of that item."""
        kind, worker, number = _named(item)
        return cls(
            host=host,
            source=source,
            kind=kind,
            worker=worker,
            number=number,
            bytes=size,
            began=began,
            ended=ended,
        )

    @property
    def summand(self) -> Update | Sum | None:
        """The update or the sum that was fetched; None for any other item."""
        if self.number is None:
            return None
        if self.kind == "sum":
            return Sum(self.number)
        return Update(self.worker, self.number) if self.kind == "update" and self.worker is not None else None

    def moved(self) -> FetchTimes:
        """Return the fetch as `other`: a range has moved, and brought a part of an update or a sum that had arrived."""
        return replace(self, kind="other", worker=None, number=None)

    def ending(self, at: float) -> FetchTimes:
        """Return the fetch in the times of another clock, which showed `at` at its end."""
        return replace(self, began=at - (self.ended - self.began), ended=at)


def _named(item: Item) -> tuple[str, int | None, int | None]:
    match item:
        case Version(version=version) | EarlyVersion(version=version):
            return "version", None, version
        case Update(worker=worker, step=step):
            return "update", worker, step
        case Sum(number=number):
            return "sum", None, number
        case Partial(number=number):
            return "partial", None, number
        case Mean(number=number):
            return "mean", None, number
        case Replica(worker=worker, change=change):
            return "replica", worker, change
    return "other", None, None


_began = itemgetter(1)


def exposed(transfers: Iterable[tuple[str, float, float]], since: float, until: float) -> tuple[float, float]:
    """Return the seconds of pushes and of pulls between `since` and `until`, while a worker waited.

    `transfers`: (direction, began, ended). Where two overlap, only the one that began first counts.
    """
    seconds = {"push": 0.0, "pull": 0.0}
    for direction, began, ended in sorted(transfers, key=_began):
        since = max(since, began)
        end = min(until, ended)
        if end > since:
            seconds[direction] += end - since
            since = end
    return seconds["push"], seconds["pull"]
