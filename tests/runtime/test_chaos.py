"""Seeded schedules of kills, stops, interruptions, exceptions and exits, under every protocol.

`python -m pytest -m long tests/runtime/test_chaos.py -k "[17]"` makes the schedule of seed 17 again.
"""

from __future__ import annotations

import pytest

from support.chaos import Schedule, broken_promises, carry_out
from support.launch import Launch

SCHEDULES = 300


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SCHEDULES), ids=lambda seed: str(seed))
def test_whatever_befalls_a_run_it_ends_keeps_its_books_and_leaves_nothing(seed: int, launch: Launch) -> None:
    schedule = Schedule.of(seed)
    print(schedule)
    run = carry_out(schedule, launch)
    launch.assert_nothing_left()
    broken = broken_promises(schedule, run)
    assert not broken, "\n".join([str(schedule), *broken, "--- standard error", run.err[-3000:]])
