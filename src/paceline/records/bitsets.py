"""Sets of steps and versions, with a bit for each member: a run has millions."""

from __future__ import annotations

PAGE = 10
"""Members whose numbers differ in no more than this many last bits are together in one page."""


class Bitset:
    """A set of (worker, step), or of other pairs of numbers."""

    def __init__(self) -> None:
        self._pages: dict[tuple[int, int], int] = {}
        """By first number and page: a bit for each second number."""
        self._size = 0

    def add(self, first: int, second: int) -> None:
        """Add this pair."""
        if (first, second) not in self:
            page, bit = (first, second >> PAGE), 1 << (second & (1 << PAGE) - 1)
            self._pages[page] = self._pages.get(page, 0) | bit
            self._size += 1

    def remove(self, first: int, second: int) -> None:
        """Remove this pair, which is there."""
        self._pages[first, second >> PAGE] ^= 1 << (second & (1 << PAGE) - 1)
        self._size -= 1

    def __contains__(self, pair: tuple[object, object]) -> bool:
        first, second = pair
        if not isinstance(first, int) or not isinstance(second, int):
            return False
        return bool(self._pages.get((first, second >> PAGE), 0) >> (second & (1 << PAGE) - 1) & 1)

    def __len__(self) -> int:
        return self._size
