"""Sentences: reasons written out, which workers they name, and lists, short ones at length, long ones in short."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from paceline.core.phrases import cut, listed, numbers, workers_named
from paceline.core.reasons import NAMED_AT_MOST, Why, awaited, awaited_of, sentence


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ([3], "worker 3"),
        ([2, 1], "workers 1, 2"),
        (range(8), "workers 0, 1, 2, 3, 4, 5, 6, 7"),
        (range(200), "workers 0-199"),
        ([*range(100), *range(101, 200)], "workers 0-99, 101-199"),
        ([0, 1, *range(3, 10)], "workers 0, 1, 3-9"),
        (range(0, 50, 2), "workers 0, 2, 4, 6, 8, 10, 12, 14 and 17 others"),
        (range(0, 18, 2), "workers 0, 2, 4, 6, 8, 10, 12, 14 and 1 other"),
    ],
)
def test_workers_are_named_in_order_and_neighbours_among_many_as_ranges(workers: Iterable[int], said: str) -> None:
    assert workers_named(workers) == said


def test_a_sentence_about_any_workers_of_a_thousand_is_short() -> None:
    assert max(len(numbers(range(0, 1000, step))) for step in range(1, 100)) < 80


def test_of_many_names_the_first_are_given_and_the_others_counted() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([]) == ""
    assert listed(list("abcdefghij")) == "a, b, c, d, e, f, g, h and 2 others"


def test_a_long_text_is_cut_to_its_length_and_shows_it() -> None:
    assert cut("a" * 8, 8) == "a" * 8
    assert cut("a" * 9, 8) == "a" * 7 + "…"


TABLE = {"open": "version {0} waits for {1:workers}", "switch": "{0:,} samples done"}


@pytest.mark.parametrize(
    ("why", "written", "workers"),
    [
        (("open", 3, (2,)), "version 3 waits for worker 2", (2,)),
        (("open", 3, (2, 0)), "version 3 waits for workers 0, 2", (2, 0)),
        (("open", 3, 9), "version 3 waits for 9 workers", 9),
        (("switch", 2176), "2,176 samples done", None),
        (("unsaid", 1), "unsaid 1", None),
    ],
)
def test_a_reason_is_written_out_and_names_the_workers_that_are_awaited(
    why: Why, written: str, workers: tuple[int, ...] | int | None
) -> None:
    assert (sentence(why, TABLE), awaited(why, TABLE)) == (written, workers)


def test_of_many_workers_a_reason_has_only_the_number() -> None:
    assert awaited_of(range(NAMED_AT_MOST)) == tuple(range(NAMED_AT_MOST))
    assert awaited_of(range(NAMED_AT_MOST + 1)) == NAMED_AT_MOST + 1
