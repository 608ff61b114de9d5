"""Seeded schedules of workers that die and come back, under every protocol, checked and replayed.

`python -m pytest -m "long or not long" tests/runtime/test_rejoin_chaos.py -k "[17]"` makes that of seed 17 again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.launch import Launch
from support.returns import Broken, Schedule, broken_promises, carry_out
from support.suites import each

SCHEDULES, SHORT = 100, (27,)


@pytest.mark.parametrize(
    "seed",
    each(range(SCHEDULES), default=SHORT),
)
def test_a_run_whose_workers_come_back_is_checked_and_replayed_to_the_same_bits(
    seed: int, launch: Launch, tmp_path: Path
) -> None:
    schedule, lives = Schedule.of(seed), tmp_path / "lives"
    try:
        run = carry_out(schedule, launch, lives)
    except Broken as broken:
        pytest.fail(f"{schedule}\n{broken}")
    said = broken_promises(schedule, run, lives)
    assert not said, "\n".join([str(schedule), *said, run.err[-2000:]])
