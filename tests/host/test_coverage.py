"""Which bytes are there."""

from __future__ import annotations

import random

from paceline.transfer.byte_ranges import ByteRanges


def test_bytes_are_there_once_all_of_them_were_added_in_any_order() -> None:
    lots = random.Random(0)
    for _ in range(200):
        there, coverage = set[int](), ByteRanges()
        for _ in range(8):
            begin = lots.randrange(30)
            end = begin + lots.randrange(1, 9)
            coverage.add(begin, end)
            there |= set(range(begin, end))
            for first in range(40):
                for last in range(first + 1, 40):
                    assert coverage.has(first, last) == (set(range(first, last)) <= there)
        coverage.clear()
        assert not coverage.has(0, 1)
