"""Seeded schedules of all that befalls runs whose versions several hosts make, resumed, checked and replayed.

`python -m pytest -m "long or not long" tests/runtime/test_shards_chaos.py -k "[17]"` makes that of seed 17 again.
"""

from __future__ import annotations

import pytest

from support.host_faults import Schedule, carry_out
from support.launch import Launch

SCHEDULES, SHORT = 150, (5,)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[] if seed in SHORT else pytest.mark.long, id=str(seed)) for seed in range(SCHEDULES)],
)
def test_whatever_befalls_hosts_that_make_ranges_a_run_ends_is_checked_replayed_and_leaves_nothing(
    seed: int, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(launch.tmp_path)  # where workers of other hosts save
    schedule = Schedule.with_shards(seed)
    print(schedule)
    said = carry_out(schedule, launch)
    assert not any(line.startswith("BROKEN") for line in said), "\n".join([str(schedule), *said])
