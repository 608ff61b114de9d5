"""What a replay's book of leases comes to, whatever the moment at which a worker asks."""

from __future__ import annotations

from collections import deque

import pytest

from paceline.core.leases import Batch
from paceline.runtime.directed import PrescribedLeases


@pytest.mark.parametrize("early", [False, True])
def test_a_batch_that_a_dead_worker_held_is_not_missed_once_another_one_has_used_it(early: bool) -> None:
    """`early`: the other one asks before the death is replayed."""
    batch, never = Batch(0, 0), Batch(0, 1)
    leases = PrescribedLeases("rounds", [0, 1], prescribed={0: deque([batch, never]), 1: deque([batch])})
    leases.open(0, [4, 4, 4], "digest")
    leases.take(0, 0, "digest")
    leases.take(0, 0, "digest")
    if early:
        leases.take(1, 0, "digest")
    leases.leave(0, died=True)
    if not early:
        leases.take(1, 0, "digest")
    leases.bind(1, 0, (batch,))
    leases.settle(1, 0)
    assert leases.left_over() == 8  # the one that it was not given again, and what was set aside for it
