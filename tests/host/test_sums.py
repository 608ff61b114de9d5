"""Sums stand in the place of their updates as a version is made, as the facts say, in a run as in its replay."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from paceline.core.facts import GradientReady, UpdateArrived
from paceline.core.items import Sum, Update
from paceline.host.memory_plan import MemoryPlan
from paceline.host.shards.host_reducer import HostReducer
from paceline.host.shards.sum_table import SumTable
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages

PLAN = MemoryPlan(4, slots=4, areas=1, own=1, sums=2)


class Store:
    """A host with its store's process, and updates of four workers."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.sent: list[Any] = []
        self.process = Mock(send=self.sent.append, lost=False)
        self.reducer = HostReducer(self.shelf, PLAN, self.process, there=Mock(), not_finite=Mock())
        self.sums = SumTable(self.shelf, self.reducer)
        for worker in range(4):
            self.shelf.put(Update(worker, 0), ("update", worker, 0), PLAN.of(worker))
            self.sums.tell(GradientReady(worker=worker, step=0, version=0, samples=worker + 1, at=0.0))

    def arrive(self, *workers: int, number: int | None) -> None:
        for worker in workers:
            self.sums.tell(UpdateArrived(worker=worker, step=0, at=1.0, sum=number))

    def applied(self) -> Any:
        return self.sums.applied([(Update(worker, 0), 0.1 * (worker + 1)) for worker in range(4)])


def test_a_sum_takes_the_place_of_its_first_update_and_weighs_as_much_as_all() -> None:
    store = Store()
    store.arrive(1, 3, number=7)
    store.arrive(0, 2, number=None)
    pushed, summed = store.applied()
    assert [item for item, _ in pushed] == [Update(0, 0), Sum(7), Update(2, 0)]
    assert [weight for _, weight in pushed] == pytest.approx([0.1, 0.6, 0.3])
    assert summed == [Update(1, 0), Update(3, 0)]


def test_a_sum_that_is_not_here_is_made_of_the_mean_of_its_updates_before_the_version() -> None:
    store = Store()
    store.arrive(1, 3, number=7)
    store.applied()
    assert store.sent == [messages.store.MakeSum(7, 4, [(1, 2 / 6), (3, 4 / 6)], look=True)]
    assert store.shelf.has(Sum(7))


def test_a_sum_that_has_come_is_not_made_again() -> None:
    store = Store()
    store.reducer.lay(Sum(7), [Update(1, 0), Update(3, 0)])
    store.arrive(1, 3, number=7)
    pushed, _ = store.applied()
    assert Sum(7) in dict(pushed)
    assert store.sent == []


def test_a_sum_whose_updates_are_gone_is_not_made_and_not_awaited() -> None:
    store = Store()
    store.reducer.sum_up(Sum(1), [(Update(0, 0), 0.5), (Update(1, 5), 0.5)], look=True)
    assert store.sent == []
    assert store.reducer.look(Sum(1), 0, 8) == "gone"


def test_a_void_sum_does_not_go_with_updates_that_are_added_up_anew() -> None:
    store = Store()
    store.reducer.lay(Sum(1), [Update(0, 0), Update(1, 0), Update(2, 0)])
    store.reducer.drop(Sum(1))
    store.reducer.lay(Sum(2), [Update(0, 0), Update(1, 0)])
    store.reducer.dropped(Update(2, 0))
    assert (store.shelf.has(Sum(1)), store.shelf.has(Sum(2))) == (False, True)


def test_what_a_process_was_adding_up_as_it_went_is_awaited_until_it_is_void() -> None:
    """Another host may have asked for it, and is told by the head that it will not come."""
    store = Store()
    for number, workers in ((1, (0, 1)), (2, (2, 3))):
        store.reducer.sum_up(Sum(number), [(Update(worker, 0), 0.5) for worker in workers], look=True)
    store.reducer.drop(Sum(1))
    store.process.lost = True
    store.reducer.lost()
    assert [store.shelf.has(Sum(number)) for number in (1, 2)] == [False, True]
    assert store.reducer.look(Sum(2), 0, 8) == "coming"
    store.reducer.drop(Sum(2))
    assert not store.shelf.has(Sum(2))
