"""Where a step's time went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from paceline.core.items import Item, Mean, Partial, Replica, Sum, Update, Version

KEPT = 100
"""How many spans of time are kept apart, as one that is told later may touch them."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """In seconds. `began` counts from the run's start.

    Copies to and from a device overlap the other times, so no sum of times has them. None: parameters are in memory.
    """

    began: float
    compute: float
    push: float
    wait: float
    pull: float
    other: float
    to_device: float | None = None
    from_device: float | None = None


@dataclass(frozen=True, slots=True)
class TransferTimes:
    """Seconds since the run's start: the times of the network's model, and when the run acted on the transfer's end."""

    began: float
    ended: float
    delivered: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """An item that one host has fetched from another. The ledger's table `fetches` says what its moments are."""

    host: str
    """The host that has the item now."""
    source: str
    """The host that had it."""
    kind: str
    """`version`, `update`, `sum`, `partial`, `mean`, `replica` or `other`."""
    worker: int | None = None
    """Whose update or replica it is."""
    number: int | None = None
    """The version, the update's step, the sum's number, the group, or how often the replica had changed."""
    bytes: int
    began: float
    ended: float

    @classmethod
    def of(cls, item: Item, *, host: str, source: str, size: int, began: float, ended: float) -> Fetch:
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
        """What was fetched, if it is a part of what versions are made of."""
        if self.number is None:
            return None
        if self.kind == "sum":
            return Sum(self.number)
        return Update(self.worker, self.number) if self.kind == "update" and self.worker is not None else None

    def moved(self) -> Fetch:
        """Return the fetch of a part of an update or a sum that had arrived before, as a range of versions moves."""
        return replace(self, kind="other", worker=None, number=None)

    def ending(self, at: float) -> Fetch:
        """Return the fetch as it is by another clock, which shows `at` now that it has ended."""
        return replace(self, began=at - (self.ended - self.began), ended=at)


class Busy:
    """Adds up the time in which anything is under way. What is told ends in the order in which it is told."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        """The last ones, none of which touch: (began, ended)."""
        self._earlier = 0.0

    def add(self, began: float, ended: float) -> None:
        """Something was under way in this time."""
        while self._spans and self._spans[-1][1] >= began:
            before = self._spans.pop()
            began, ended = min(began, before[0]), max(ended, before[1])
        self._spans.append((began, ended))
        if len(self._spans) > KEPT:
            first = self._spans.pop(0)
            self._earlier += first[1] - first[0]

    @property
    def seconds(self) -> float:
        """How long that was in all."""
        total = self._earlier
        for began, ended in self._spans:
            total += ended - began
        return total


def _named(item: Item) -> tuple[str, int | None, int | None]:
    match item:
        case Version(version=version):
            return "version", None, version
        case Update(worker=worker, step=step):
            return "update", worker, step
        case Sum(number=number):
            return "sum", None, number
        case Partial(group=group):
            return "partial", None, group
        case Mean(group=group):
            return "mean", None, group
        case Replica(worker=worker, change=change):
            return "replica", worker, change
    return "other", None, None


def exposed(transfers: Iterable[tuple[str, float, float]], since: float, until: float) -> tuple[float, float]:
    """Seconds of pushes and of pulls within this time, in which a worker waited. No second counts twice.

    `transfers`: (direction, began, ended). Of two at the same time the one that began first counts.
    """
    seconds = {"push": 0.0, "pull": 0.0}
    for direction, began, ended in sorted(transfers, key=lambda transfer: transfer[1]):
        since = max(since, began)
        if min(until, ended) > since:
            seconds[direction] += min(until, ended) - since
            since = min(until, ended)
    return seconds["push"], seconds["pull"]
