"""Step counters: the least is always at hand."""

from __future__ import annotations

import random

import pytest

from paceline.core.counts import NAMED_UP_TO, Counts


def test_the_lead_is_the_distance_to_the_slowest() -> None:
    counts = Counts()
    for worker in (0, 1, 2):
        counts.enter(worker)
    for worker in (0, 0, 1):
        counts.advance(worker)
    assert [counts.lead(worker) for worker in (0, 1, 2)] == [2, 1, 0]
    counts.advance(2)
    assert [counts.lead(worker) for worker in (0, 1, 2)] == [1, 0, 0]


def test_a_newcomer_counts_from_the_slowest() -> None:
    counts = Counts()
    counts.enter(0)
    counts.advance(0)
    counts.enter(1)
    assert counts.finished == {0: 1, 1: 1}


def test_when_the_slowest_leaves_the_next_one_is() -> None:
    counts = Counts()
    counts.enter(0)
    counts.enter(1)
    for _ in range(5):
        counts.advance(1)
    counts.leave(0)
    assert (counts.least, counts.lead(1)) == (5, 0)


def test_the_slowest_are_named_in_a_small_company_and_numbered_in_a_large_one() -> None:
    counts = Counts()
    for worker in range(NAMED_UP_TO):
        counts.enter(worker)
    for worker in range(NAMED_UP_TO):
        if worker not in (3, 7):
            counts.advance(worker)
    assert counts.slowest() == "worker 3, 7"
    counts.enter(NAMED_UP_TO)
    assert counts.slowest() == f"the slowest of {NAMED_UP_TO + 1} workers (3 of them)"


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_counting_everything_anew(seed: int) -> None:
    chance, counts, obvious = random.Random(seed), Counts(), {}
    for number in range(200):
        what = chance.choice("eaaaaal")
        if what == "e":
            counts.enter(number)
            obvious[number] = min(obvious.values(), default=counts.least)
        elif obvious:
            worker = chance.choice(list(obvious))
            if what == "a":
                counts.advance(worker)
                obvious[worker] += 1
            else:
                counts.leave(worker)
                del obvious[worker]
        assert counts.finished == obvious
        if obvious:
            assert counts.least == min(obvious.values())
