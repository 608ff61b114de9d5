"""Which steps are in the model, and when their batches can't come back any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.coordinator.data import TrainingData
from paceline.coordinator.member import Member
from paceline.coordinator.run_policy import RunPolicy
from paceline.core.facts import ReduceFailed, ReduceFinished, ReplicaCopied
from paceline.core.leases import Batch, Leases
from paceline.core.orders import ApplyUpdate, CopyReplica, DropUpdate, Reduce, StepReplica


class Books:
    """Three workers, of which each has a batch of four samples bound to its step 0. `undone`: as the ledger has it."""

    def __init__(self, *leaves_undone: tuple[int, int]) -> None:
        self.members = {worker: Member(worker=worker, stage="training") for worker in range(3)}
        self.undone: list[tuple[int, int]] = []
        members: Any = self.members
        journal: Any = SimpleNamespace(undone=lambda worker, step: self.undone.append((worker, step)))
        self.applied = TrainingData(members, journal, RunPolicy(undone=frozenset(leaves_undone)), owned=True)
        self.leases = self.applied.leases = Leases("queue", [0, 1, 2])
        self.leases.open(0, [4, 4, 4], "digest")
        for worker in range(3):
            batch = self.leases.take(worker, 0, "digest")
            assert batch is not None
            self.leases.bind(worker, 0, (batch,))

    def steps(self, *workers: int, group: int | None = None) -> None:
        for worker in workers:
            self.applied.ordered(StepReplica(worker=worker, step=0, version=1, group=group))

    @property
    def counts(self) -> tuple[int, int]:
        return self.applied.steps, self.applied.samples

    @property
    def settled(self) -> list[int]:
        """Workers whose step's batches can't come back."""
        return [worker for worker in range(3) if not self.leases.bound.get((worker, 0))]


def test_the_updates_of_a_version_count_and_are_settled_as_it_is_ordered() -> None:
    books = Books()
    books.applied.ordered(ApplyUpdate(version=1, contributions=((0, 0, 0.5), (2, 0, 0.5))))
    assert (books.counts, books.settled) == ((2, 8), [0, 2])


def test_a_replica_s_step_is_settled_once_its_group_has_averaged() -> None:
    books = Books()
    books.steps(0, 1)
    assert (books.counts, books.settled) == ((2, 8), [])
    books.applied.ordered(Reduce(group=0, members=(0, 1), what="parameters"))
    books.applied.ordered(Reduce(group=1, members=(1, 2), what="parameters"))
    books.applied.tell(ReduceFailed(group=1, lost=(2,), at=0.0))
    books.applied.tell(ReduceFinished(group=1, at=0.0))
    assert books.settled == []
    books.applied.tell(ReduceFinished(group=0, at=0.0))
    assert books.settled == [0, 1]


def test_a_step_with_a_mean_of_gradients_is_settled_at_once() -> None:
    books = Books()
    books.applied.ordered(Reduce(group=0, members=(0, 1, 2), what="gradients"))
    books.steps(0, 1, 2, group=0)
    assert (books.counts, books.settled) == ((3, 12), [0, 1, 2])


@pytest.mark.parametrize(("left", "settled"), [("finished", [0]), ("stopped", [0]), ("died", [])])
def test_a_replica_counts_for_the_last_mean_unless_its_worker_died(left: Any, settled: list[int]) -> None:
    books = Books()
    books.steps(0)
    books.members[0].left = left
    books.applied.left(0, left)
    assert (books.counts, books.settled) == ((1, 4), settled)


def test_a_step_that_only_a_lost_replica_had_counts_no_more() -> None:
    books = Books()
    books.steps(0, 1)
    books.applied.dropped(DropUpdate(worker=0, step=0, samples="return"))
    books.applied.dropped(DropUpdate(worker=2, step=0, samples="return"))
    assert books.counts == (1, 4)


@pytest.mark.parametrize("replayed", [True, False])
def test_a_step_whose_worker_has_left_is_undone_and_counts_only_if_the_others_have_its_gradient(replayed: bool) -> None:
    books = Books((0, 0)) if replayed else Books()
    books.members[0].stage = "training" if replayed else "closing"
    books.steps(0)
    assert (books.counts, books.undone) == ((0, 0), [(0, 0)])
    books.steps(0, 1, group=3)
    assert (books.counts, books.undone) == ((2, 8), [(0, 0), (0, 0)])
    assert books.applied.foremost([0, 1]) == [1]


def test_the_foremost_replicas_are_all_of_those_that_make_the_most_steps() -> None:
    books = Books()
    assert books.applied.foremost([0, 1, 2]) == [0, 1, 2]
    books.steps(0, 2)
    assert books.applied.foremost([0, 1, 2]) == [0, 2]
    assert books.applied.foremost([]) == []
    assert Batch(0, 0) in books.leases.bound[0, 0]


def test_a_copied_replica_settles_the_steps_that_were_in_it_as_the_copy_was_ordered() -> None:
    books = Books()
    books.steps(0)
    books.applied.ordered(CopyReplica(source=0, worker=2))
    books.steps(1)
    assert (books.settled, 2 in books.applied.replicas) == ([], False)
    books.applied.tell(ReplicaCopied(source=0, worker=2, at=0.0))
    assert (books.settled, 2 in books.applied.replicas) == ([0], True)
    assert books.applied.foremost([0, 2]) == [0, 2]


def test_a_replica_that_is_behind_is_not_foremost_before_its_copy_is_there() -> None:
    """A worker that has resumed keeps its own until then: a mean that is recorded meanwhile is to be without it."""
    books = Books()
    books.steps(0)
    books.applied.ordered(CopyReplica(source=0, worker=2))
    assert books.applied.foremost([0, 2]) == [0]
    books.applied.tell(ReplicaCopied(source=0, worker=2, at=0.0))
    assert books.applied.foremost([0, 2]) == [0, 2]


def test_a_step_after_the_copy_was_ordered_is_not_in_the_copy() -> None:
    books = Books()
    books.applied.ordered(CopyReplica(source=0, worker=2))
    books.steps(0)
    books.applied.tell(ReplicaCopied(source=0, worker=2, at=0.0))
    assert books.settled == []
    assert books.applied.foremost([0, 2]) == [0]
