"""Sets of pairs with a bit for each."""

from __future__ import annotations

import random

from paceline.records.bitsets import PAGE, Bitset


def test_it_has_what_a_set_of_the_same_pairs_has() -> None:
    rng, marks, pairs = random.Random(0), Bitset(), set[tuple[int, int]]()
    for _ in range(5000):
        pair = rng.randrange(3), rng.choice((rng.randrange(3 << PAGE), 1 << 60, -5))
        if rng.random() < 0.7:
            marks.add(*pair)
            pairs.add(pair)
        elif pair in pairs:
            marks.remove(*pair)
            pairs.remove(pair)
        assert (pair in marks) == (pair in pairs)
    assert len(marks) == len(pairs)
    assert all(pair in marks for pair in pairs)
