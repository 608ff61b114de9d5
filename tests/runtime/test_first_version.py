"""When the first mean of replicas is recorded, if a worker dies just then."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.protocols import registry
from paceline.records.check import check
from paceline.records.reading import open_run
from support.replays import broken_replay
from support.runs import run
from support.scripts import that_draws
from support.suites import each

pytestmark = pytest.mark.real_run

DIES = """
import os, signal
from paceline.training.holders.replica import ReplicaHolder
import paceline
step, left = ReplicaHolder.step_replica, [{at}]

def dying(self, order):
    if paceline.worker() == 1:
        left[0] -= 1
        if not left[0]:
            {first}
            os.kill(os.getpid(), signal.SIGKILL)
    return step(self, order)

ReplicaHolder.step_replica = dying
"""
"""Worker 1 dies in that step of its replica, before it has made it or before it says so."""


@pytest.mark.parametrize("first", ["pass", "step(self, order)"], ids=["before", "after"])
@pytest.mark.parametrize("at", each([3, 1, 2, 4, 5], default=(3,)))
@pytest.mark.parametrize("protocol", each(["all-reduce", "ad-psgd", "ripples"], long=["ad-psgd"]))
def test_a_run_whose_worker_dies_in_its_replica_s_step_keeps_the_rules_and_is_made_again(
    protocol: str, at: int, first: str, tmp_path: Path
) -> None:
    """Under all-reduce the first mean is due as worker 1's third step is ordered: it has more than 60 samples then."""
    flags = ("-n", "3", "-p", protocol, "--threads", "1", "--shards", "static")  # so that each has steps to make
    done = run(that_draws(), *flags, tmp_path=tmp_path, first=DIES.format(at=at, first=first)).completed()
    assert done.summary["per_worker"][1]["left"]["reason"] == "died"
    if (protocol, at) == ("all-reduce", 3):  # that mean can't be made
        assert done.rows("SELECT samples FROM versions WHERE version = 1") == [(80,)]
    assert check(open_run(done.folder, registry())).wrong is None
    assert broken_replay(done) == []
