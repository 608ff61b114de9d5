"""Sets of steps and versions with a bit for each member, as a run has millions of them."""

from __future__ import annotations

PAGE = 10
"""Bits of a number that choose its place in a page."""


class Bitset:
    """A set of (worker, step), or of other pairs of numbers."""

    def __init__(self) -> None:
        self._pages: dict[tuple[int, int], int] = {}
        """By first number and page: a bit for each second number."""
        self._size = 0

    def add(self, first: int, second: int) -> None:
        if (first, second) not in self:
            page, bit = (first, second >> PAGE), 1 << (second & (1 << PAGE) - 1)
            self._pages[page] = self._pages.get(page, 0) | bit
            self._size += 1

    def remove(self, first: int, second: int) -> None:
        """Remove this pair, which must be in the set."""
        self._pages[first, second >> PAGE] ^= 1 << (second & (1 << PAGE) - 1)
        self._size -= 1

    def __contains__(self, pair: tuple[object, object]) -> bool:
        first, second = pair
        if not isinstance(first, int) or not isinstance(second, int):
            return False
        return bool(self._pages.get((first, second >> PAGE), 0) >> (second & (1 << PAGE) - 1) & 1)

    def __len__(self) -> int:
        return self._size
