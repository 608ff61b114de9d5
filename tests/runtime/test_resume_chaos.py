"""Seeded schedules of runs that are killed, ended, or without space on disk, and go on, under every protocol.

`python -m pytest -m "long or not long" tests/runtime/test_resume_chaos.py -k "[17]"` makes that of seed 17 again.
"""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.stops import Broken, Schedule, broken_promises, carry_out
from support.suites import each

SCHEDULES, SHORT = 200, 2


@pytest.mark.parametrize(
    "seed",
    each(range(SCHEDULES), default=range(SHORT)),
)
def test_a_run_that_is_stopped_anyhow_goes_on_from_a_whole_snapshot_to_its_end(seed: int, launch: Launch) -> None:
    schedule = Schedule.of(seed)
    try:
        runs = carry_out(schedule, launch)
    except Broken as broken:
        pytest.fail(f"{schedule}\n{broken}")
    if runs[-1].code:
        return  # it had no snapshot yet
    unstopped = launch.run(schedule.script, *schedule.flags).completed() if schedule.exact else None
    broken_ones = broken_promises(schedule, runs[-1], unstopped)
    assert not broken_ones, "\n".join([str(schedule), *broken_ones, *(run.err[-2000:] for run in runs)])
