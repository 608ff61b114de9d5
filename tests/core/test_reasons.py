"""Reasons: how they are written out, and which workers they say are awaited."""

from __future__ import annotations

import pytest

from paceline.core.reasons import NAMED_AT_MOST, Why, awaited, awaited_of, sentence

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
