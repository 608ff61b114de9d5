"""Spans of time, (began, ended, ...) in seconds: those that a later one may still touch are kept, and no others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

KEPT = 100
"""How many spans are kept to add up the time in which any goes on."""
LEAST = 1000
"""Spans that are kept before those that no longer matter are forgotten."""


class Busy:
    """Adds up the time in which any of several spans goes on. Spans are added in the order of their ends."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        """The last spans, (began, ended), which don't touch."""
        self._earlier = 0.0

    def add(self, began: float, ended: float) -> None:
        while self._spans and self._spans[-1][1] >= began:
            before = self._spans.pop()
            began, ended = min(began, before[0]), max(ended, before[1])
        self._spans.append((began, ended))
        if len(self._spans) > KEPT:
            first = self._spans.pop(0)
            self._earlier += first[1] - first[0]

    @property
    def seconds(self) -> float:
        """The time in all, each second once."""
        total = self._earlier
        for began, ended in self._spans:
            total += ended - began
        return total


@dataclass(slots=True)
class MovedBytes:
    """Bytes that moved one way between two hosts."""

    bytes: int = 0
    busy: Busy = field(default_factory=Busy)
    """The time in which any of them moved."""

    def add(self, size: int, began: float, ended: float) -> None:
        """Count a fetch. Fetches are added in the order of their ends."""
        self.bytes += size
        self.busy.add(began, ended)


class RecentSpans:
    """By key: spans in the order of their beginnings, which hardly overlap."""

    def __init__(self) -> None:
        self._spans: dict[Hashable, list[tuple[float, ...]]] = {}
        self.kept = 0
        self._most = LEAST

    def add(self, key: Hashable, began: float, *rest: float) -> None:
        """Add a span, which began after all others of its key. Of the rest, the first is a moment in it, or its end."""
        self._spans.setdefault(key, []).append((began, *rest))
        self.kept += 1

    def join(self, key: Hashable, began: float, ended: float) -> None:
        """Add a span, or lengthen the last one of its key if they touch."""
        spans = self._spans.get(key)
        if spans and spans[-1][1] >= began:
            spans[-1] = spans[-1][0], max(spans[-1][1], ended)
        else:
            self.add(key, began, ended)

    def within(self, key: Hashable, began: float, ended: float) -> Iterator[tuple[float, ...]]:
        """Yield the spans that began within this time, and the last one before."""
        spans = self._spans.get(key, [])
        at = max(0, bisect_right(spans, (began, began)) - 1)
        while at < len(spans) and spans[at][0] < ended:
            yield spans[at]
            at += 1

    def forget(self, before: float) -> None:
        """Forget the spans that ended before `before`, if there are many."""
        if self.kept <= self._most:
            return
        for spans in self._spans.values():
            del spans[: max(0, bisect_right(spans, (before, before)) - 1)]
        self.kept = sum(map(len, self._spans.values()))
        self._most = max(LEAST, 2 * self.kept)


def overlap(began: float, ended: float, since: float, until: float) -> float:
    """Return the seconds of a span that lie between `since` and `until`."""
    return max(0.0, min(ended, until) - max(began, since))
