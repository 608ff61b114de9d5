"""What is made again in a recorded order: who gets which data, and what can never come about."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.core.leases import Batch
from paceline.core.orders import Order, Release
from paceline.errors import RunFailed
from paceline.protocols import registry
from paceline.runtime.adoption import Adoption
from paceline.runtime.directed import Directed, PrescribedLeases
from paceline.runtime.member import Member


@pytest.mark.parametrize("early", [False, True])
def test_a_batch_that_a_dead_worker_held_is_not_missed_once_another_one_has_used_it(early: bool) -> None:
    """`early`: the other one asks before the death is replayed."""
    batch, never = Batch(0, 0), Batch(0, 1)
    leases = PrescribedLeases("rounds", [0, 1], prescribed={0: deque([(0, batch), (0, never)]), 1: deque([(0, batch)])})
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


def test_a_worker_that_is_to_get_a_batch_of_an_epoch_which_no_worker_has_opened_yet_draws_its_order() -> None:
    """In the recorded run another worker was there first, left its loop early, and gave the batch back."""
    batch = Batch(1, 2)
    leases = PrescribedLeases("queue", [0, 1], prescribed={0: deque([(0, batch)]), 1: deque([(1, batch)])})
    leases.open(0, [4, 4, 4], "first")
    assert leases.undrawn(0, 0) == (1, 0)
    leases.open(1, [4, 4, 4], "second")
    assert leases.undrawn(0, 0) is None
    assert leases.take(0, 0, "first") == batch


class Full(Directed):
    """One worker, for whose next step there is no push area."""

    def __init__(self) -> None:
        choice: Any = choose("asp", registry())
        self._spec, self.settings = choice.spec, SimpleNamespace(choice=choice)  # type: ignore[assignment]
        one = Member(worker=0, process=0, watch=0, channel=None, log=Path("log"), printed=None)  # type: ignore[arg-type]
        self.members = {0: one}
        self._host = SimpleNamespace(pushes=SimpleNamespace(awaited=lambda worker: [3, 4]))  # type: ignore[assignment]
        self._adoption = Adoption()

    def carry_out(self, order: Order) -> None:
        pass


def test_a_release_that_waits_for_an_update_which_can_not_be_applied_before_it_fails_at_once() -> None:
    with pytest.raises(RunFailed, match="step 5 while its steps 3, 4 are not applied, and declares at most 2 at once"):
        Full().direct(Release(worker=0, step=5, version=3, parameters="held"), 1.0)
