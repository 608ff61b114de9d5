"""Seeded schedules of deaths, stops, cuts, drains, full disks and signals, resumed, checked and replayed.

`python -m pytest -m "long or not long" tests/runtime/test_chaos.py -k "[shards-17]"` makes that of seed 17 again,
in which several hosts make versions.
"""

from __future__ import annotations

import pytest

from support.chaos import Schedule, carry_out
from support.launch import Launch
from support.suites import each

SCHEDULES = {"any": 150, "shards": 300, "groups": 150, "alone": 300}
SHORT = {"any": (0,), "shards": (0, 1), "groups": (0,), "alone": (0, 2)}


@pytest.mark.parametrize(
    ("kind", "seed"),
    each(
        [(kind, seed) for kind, schedules in SCHEDULES.items() for seed in range(schedules)],
        default=[(kind, seed) for kind, seeds in SHORT.items() for seed in seeds],
    ),
)
def test_whatever_befalls_a_run_it_ends_is_checked_replayed_and_leaves_nothing(
    kind: str, seed: int, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(launch.tmp_path)  # where workers of other hosts save
    schedule = Schedule.of(kind, seed)
    print(schedule)
    said = carry_out(schedule, launch)
    assert not any(line.startswith("BROKEN") for line in said), "\n".join([str(schedule), *said])
