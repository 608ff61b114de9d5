"""Which bytes of an item are there, while it is being made."""

from __future__ import annotations

from bisect import bisect_right


class Coverage:
    """Ranges of bytes, joined where they touch."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        """Ascending, and apart."""

    def add(self, begin: int, end: int) -> None:
        """These bytes are there."""
        apart = [one for one in self._ranges if one[1] < begin or end < one[0]]
        touched = [one for one in self._ranges if one not in apart]
        begin, end = min([begin, *(one[0] for one in touched)]), max([end, *(one[1] for one in touched)])
        self._ranges = sorted([*apart, (begin, end)])

    def has(self, begin: int, end: int) -> bool:
        """Whether all of these bytes are there."""
        place = bisect_right(self._ranges, begin, key=lambda one: one[0]) - 1
        return place >= 0 and end <= self._ranges[place][1]

    def clear(self) -> None:
        """None is there."""
        self._ranges.clear()
