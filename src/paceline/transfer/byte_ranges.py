"""Which bytes of an item are there, while it is being made."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class ByteRanges:
    """Ranges of bytes, joined where they touch."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        """Ascending, and apart."""

    def add(self, begin: int, end: int) -> None:
        """These bytes are there."""
        first = bisect_left(self._ranges, begin, key=lambda one: one[1])
        last = bisect_right(self._ranges, end, key=lambda one: one[0])
        if first < last:  # it touches these
            begin, end = min(begin, self._ranges[first][0]), max(end, self._ranges[last - 1][1])
        self._ranges[first:last] = [(begin, end)]

    def has(self, begin: int, end: int) -> bool:
        """Whether all of these bytes are there."""
        place = bisect_right(self._ranges, begin, key=lambda one: one[0]) - 1
        return place >= 0 and end <= self._ranges[place][1]

    def clear(self) -> None:
        """None is there."""
        self._ranges.clear()
