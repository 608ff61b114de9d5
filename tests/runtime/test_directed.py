"""What is made again in a recorded order: who gets which data, and what can never come about."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.coordinator.adoption import Adoption
from paceline.coordinator.director import Director
from paceline.coordinator.member import Member
from paceline.coordinator.run_policy import Answer, Prescribed, PrescribedLeases, RunPolicy
from paceline.core.choice import choose
from paceline.core.facts import Fact, GradientReady, ReplicaCopied, StepDeclined, WorkerLeft
from paceline.core.leases import Batch, Leases
from paceline.core.orders import Order, Release
from paceline.errors import RunFailed
from paceline.host.contract import Updates
from paceline.protocols import registry


def test_a_prescribed_book_goes_on_with_what_was_used_before() -> None:
    """Else a schedule would begin anew in the replay of a resumed run."""
    goes_on = PrescribedLeases.of(Leases("rounds", [0, 1], skipped=1, missed=2, used_up=3), {})
    assert (goes_on.skipped, goes_on.missed, goes_on.used_up) == (1, 2, 3)


@pytest.mark.parametrize("early", [False, True])
def test_a_batch_that_a_dead_worker_held_is_not_missed_once_another_one_has_used_it(early: bool) -> None:
    """`early`: the other one asks before the death is replayed."""
    batch, never = Batch(0, 0), Batch(0, 1)
    prescribed: Prescribed = {0: deque([Answer(0, batch), Answer(0, never)]), 1: deque([Answer(0, batch)])}
    leases = PrescribedLeases("rounds", [0, 1], prescribed=prescribed)
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
    leases = PrescribedLeases("queue", [0, 1], prescribed={0: deque([Answer(0, batch)]), 1: deque([Answer(1, batch)])})
    leases.open(0, [4, 4, 4], "first")
    assert leases.undrawn(0, 0) == (1, 0)
    leases.open(1, [4, 4, 4], "second")
    assert leases.undrawn(0, 0) is None
    assert leases.take(0, 0, "first") == batch


class Full:
    """Stands in for a coordinator: one worker, for whose next step there is no push area."""

    def __init__(self) -> None:
        host = SimpleNamespace(updates=lambda worker: Updates(coming=(), in_the_way=(3, 4), full=True))
        settings = SimpleNamespace(choice=choose("asp", registry()), workers=1)
        adopting = SimpleNamespace(book=Adoption())
        self.run_state = SimpleNamespace(
            settings=settings, members={0: Member(worker=0)}, adopting=adopting, cluster=host, policy=RunPolicy()
        )

    def carry_out(self, order: Order) -> None:
        pass


def test_a_release_that_waits_for_an_update_which_can_not_be_applied_before_it_fails_at_once() -> None:
    coordinator: Any = Full()
    with pytest.raises(RunFailed, match="step 5 while its steps 3, 4 are not applied, and declares at most 2 at once"):
        Director(coordinator).direct(Release(worker=0, step=5, version=3, parameters="held"), 1.0)


@pytest.mark.parametrize(
    ("asks", "answered", "astray"),
    [
        ([(0, 0)], True, None),
        ([(0, 3)], False, "worker 0 asks for a batch in epoch 3, and the table leases has its next one in epoch 0"),
        ([(1, 1)], False, "worker 1 is to get a batch of epoch 7 by the table leases, and no worker opened that epoch"),
    ],
)
def test_a_worker_that_asks_for_other_data_than_it_is_to_get_waits(
    asks: list[tuple[int, int]], answered: bool, astray: str | None
) -> None:
    policy = RunPolicy(prescribed={0: deque([Answer(0, Batch(0, 0))]), 1: deque([Answer(1, Batch(7, 0))])})
    policy.leases("queue", [0, 1], None)
    for worker, epoch in asks:
        assert policy.answers(worker, epoch) == answered
        assert policy.astray.get(worker) == astray


def test_a_worker_that_asks_once_more_than_it_is_to_waits_and_where_nothing_is_prescribed_all_are_answered() -> None:
    policy = RunPolicy(prescribed={0: deque()})
    assert not policy.answers(0, 0)
    assert list(policy.asks_in_vain) == [0]
    assert RunPolicy().answers(0, 0)


@pytest.mark.parametrize(
    ("handed", "others"),
    [({(2, 1): 1}, [1]), ({(2, 1): None}, []), ({(2, 2): 1}, []), ({(1, 1): 1}, [])],
)
def test_who_handed_over_to_a_worker_does_so_again(
    handed: dict[tuple[int, int], int | None], others: list[int]
) -> None:
    """Of a worker that died before it got anything, nothing is noted: nobody does. The others may wait for data."""
    assert RunPolicy(prescribed={}, handed=handed).hand_over(2, 1, [0, 1, 3]) == others
    assert RunPolicy().hand_over(2, 1, [0, 1, 3]) == [0, 1, 3]


def test_a_worker_goes_on_in_the_epoch_in_which_it_was_let_in() -> None:
    """It may ask for its first batch in a later one. Where that is not noted, it goes on in that one."""
    leases: Prescribed = {1: deque([Answer(4, Batch(4, 0))])}
    policy = RunPolicy(prescribed=leases, admitted={(1, 1): 2})
    assert (policy.admitted_in(1, 1), policy.joins_in(1)) == (2, 4)
    assert policy.admitted_in(1, 2) == 4


def test_a_copy_that_was_made_of_a_replica_whose_worker_is_lost_is_not_the_one_that_is_told() -> None:
    """In the recorded run its source had died before. So another one's copy is awaited."""
    first, second = (ReplicaCopied(source=source, worker=1, at=0.0) for source in (0, 2))
    told: list[Fact] = []
    waits: list[Fact] = [second]
    happened: deque[Fact] = deque([first])
    members = {worker: Member(worker=worker) for worker in range(3)}
    coordinator: Any = SimpleNamespace(
        run_state=SimpleNamespace(
            policy=RunPolicy(),
            members=members,
            happened=happened,
            tell=told.append,
            cluster=SimpleNamespace(end=lambda worker: setattr(members[worker], "stage", "gone")),
            departures=SimpleNamespace(go_on=lambda: None),
            shutdown=SimpleNamespace(stopping=False),
            inbox=SimpleNamespace(hear=lambda: None, wait=lambda: happened.append(waits.pop())),
        )
    )
    director = Director(coordinator)
    director.lose(0)
    director.tell(second)
    assert waits == []
    assert told == [WorkerLeft(worker=0, reason="died", at=0.0), second]


def directed(*happened: Fact) -> Director:
    """Its only worker has done that, and is heard of all at once: the launcher was late."""
    coordinator: Any = Full()
    run_state = coordinator.run_state
    run_state.happened, run_state.tell = deque(happened), lambda fact: None
    run_state.inbox = SimpleNamespace(hear=lambda: None)
    run_state.departures = SimpleNamespace(go_on=lambda: None, awaits=lambda member: False)
    run_state.shutdown = SimpleNamespace(stopping=False)
    run_state.cluster = SimpleNamespace(updates=lambda worker: Updates(coming=(), in_the_way=(), full=False))
    return Director(coordinator)


DIED = WorkerLeft(worker=0, reason="died", at=1.0)


@pytest.mark.parametrize(
    "made",
    [
        GradientReady(worker=0, step=5, version=3, samples=4, at=1.0),
        StepDeclined(worker=0, step=5, at=1.0),
    ],
)
def test_a_step_that_came_to_its_end_before_its_worker_died_has_its_result(made: GradientReady | StepDeclined) -> None:
    director = directed(made, DIED)
    director.direct(Release(worker=0, step=5, version=3, parameters="held"), 1.0)
    assert director.result(0, 5) == made


def test_a_step_in_which_its_worker_died_fails_the_replay() -> None:
    director = directed(GradientReady(worker=0, step=5, version=3, samples=4, at=1.0), DIED)
    for step in 5, 6:
        director.direct(Release(worker=0, step=step, version=3, parameters="held"), 1.0)
    director.result(0, 5)
    with pytest.raises(RunFailed, match="worker 0 died in step 6: its script failed"):
        director.result(0, 6)
