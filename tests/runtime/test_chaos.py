"""Seeded schedules of deaths, stops, cuts, drains, full disks and signals, resumed, checked and replayed.

`python -m pytest -m "long or not long" tests/runtime/test_chaos.py -k "[shards-17]"` makes that of seed 17 again,
in which several hosts make versions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.chaos import Fault, Schedule, carry_out
from support.launch import Launch
from support.suites import each

SCHEDULES = {"any": 150, "shards": 300, "groups": 150, "alone": 300}
SHORT = {"any": (0,), "shards": (0, 1), "groups": (0,), "alone": (0, 2)}
FLAGS = ("--emulate-hosts", "2", "-n", "1", "--threads", "1", "--shards-on", "all", "-p", "bsp")
"""Of a run in which every process has something to do."""


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


PLACES = [
    ("worker 1", "begin", 1, "stop itself", 0.1),
    ("node-1", "BeginScripts", 1, "cut control", 0.0),
    ("node-1", "fetch", 1, "cut data", 0.0),
    ("head", "WorkerSaid", 1, "cut control", 0.0),
    ("worker 0", "fork", 1, "kill itself", 0.0),
    ("worker 1", "fork", 1, "kill itself", 0.0),
    ("store", "commit", 1, "stop itself", 0.1),
    ("store", "fsync", 1, "full disk", 0.0),
    ("store", "mkdir", 1, "full disk once", 0.0),
    ("head", "ledger", 9, "kill itself", 0.0),
    ("store of node-1", "commit", 1, "drain agent", 0.0),
]


@pytest.mark.parametrize("fault", each([(one,) for one in PLACES], default=[(PLACES[6],)]), ids=str)
def test_what_is_drawn_for_a_process_befalls_it(fault: Fault, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule whose faults never come to pass finds nothing, and nobody sees that."""
    monkeypatch.chdir(launch.tmp_path)
    schedule = replace(Schedule.of("shards", 2), flags=FLAGS, faults=(fault,), resumes=())
    process, place, nth, what, _ = fault
    assert carry_out(schedule, launch) == [f"{what}, in {process} at {place} {nth}"]
