"""Updates of one host go together: as one sum, once none of its workers computes a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest

from paceline.core.facts import Fact, GradientReady, UpdateArrived
from paceline.core.items import Buffers, Sum, Update, Version
from paceline.host import messages as host_messages
from paceline.host.memory_plan import MemoryPlan
from paceline.host.shards.aggregation_scheduler import AggregationScheduler
from paceline.host.shards.host_reducer import HostReducer
from paceline.host.shards.remote import RemoteShards
from paceline.host.shards.sum_table import SumTable
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.transfer.fetcher import Fetchable, Then
from paceline.transfer.item_names import fields_of
from support.fetchers import NoFetcher

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
HEAD = "head"
ALONE = 4
"""A worker whose host has no other."""


@dataclass
class Fetches(NoFetcher):
    """What is on its way, and ends when a test says so."""

    coming: dict[Fetchable, tuple[int, Then]] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        self.coming[item] = worker, then

    def cancel(self, worker: int) -> None:
        self.cancelled.append(worker)
        self.coming = {item: one for item, one in self.coming.items() if one[0] != worker}


class Head:
    """The head of hosts a and b with two workers each, and one with a single worker."""

    def __init__(self, places: int = 2) -> None:
        self.shelf = shelf = Shelf()
        self.plan = plan = MemoryPlan(7, slots=4, areas=2, own=2, sums=places)
        process: Any = Mock(lost=False)
        self.process = process
        self.reducer = HostReducer(shelf, plan, process, there=Mock(), not_finite=Mock())
        self.sums = SumTable(shelf, self.reducer)
        self.inner = Fetches()
        self.facts: list[Fact] = []
        self.told: list[tuple[str, messages.Message]] = []
        self.shards = RemoteShards(
            self.inner, HEAD, host_of=lambda total: self.aggregation.host_of(total), drops=Mock(), tell=self._tell
        )
        self.aggregation = AggregationScheduler(
            self.shards,
            self.sums,
            self.reducer,
            HEAD,
            self._tell,
            self.facts.append,
        )
        for host in ("a", "b"):
            self.aggregation.begins(host, [worker for worker, one in HOSTS.items() if one == host])

    def ready(self, worker: int, step: int, samples: int | None = 8) -> None:
        """The worker's update is ready, and its push begins."""
        self.sums.tell(GradientReady(worker=worker, step=step, version=step, samples=samples, at=0.0))

        def then(at: float) -> UpdateArrived:
            return UpdateArrived(worker=worker, step=step, at=at)

        self.aggregation.fetch(worker, Update(worker, step), then)

    def comes(self, *items: Fetchable, at: float = 1.0) -> None:
        for item in items:
            _, then = self.inner.coming.pop(item)
            if (fact := then(at)) is not None:
                self.facts.append(fact)

    @property
    def ordered(self) -> list[tuple[str, Sum, list[tuple[Update, float]]]]:
        """The sums that other hosts were to make: (host, sum, terms)."""
        return [
            (host, Sum(said.number), [(Update(worker, step), weight) for worker, step, weight in said.terms])
            for host, said in self.told
            if isinstance(said, host_messages.SumUp)
        ]

    @property
    def dropped(self) -> list[tuple[str, Sum]]:
        """What other hosts were told is void."""
        return [(host, Sum(said.number)) for host, said in self.told if isinstance(said, host_messages.DropSum)]

    def _tell(self, host: str, message: messages.Message) -> None:
        self.told.append((host, message))


def arrived(worker: int, step: int, at: float, number: int | None) -> UpdateArrived:
    return UpdateArrived(worker=worker, step=step, at=at, sum=number)


def test_updates_of_a_host_wait_for_each_other_and_come_as_one_sum() -> None:
    head = Head()
    for worker in (0, 1, 2):
        head.aggregation.released(worker)
    head.ready(0, 0)
    assert not head.inner.coming
    head.ready(1, 0, samples=24)
    assert head.ordered == [("a", Sum(1), [(Update(0, 0), 0.25), (Update(1, 0), 0.75)])]
    assert {item: worker for item, (worker, _) in head.inner.coming.items()} == {
        Sum(1): 0,
        Buffers(0, 0): 0,
        Buffers(1, 0): 1,
    }


def test_they_arrive_at_one_moment_once_the_sum_and_all_buffers_are_there_each_named_with_its_sum() -> None:
    head = Head()
    head.aggregation.released(0)
    head.aggregation.released(1)
    head.ready(1, 4)
    head.ready(0, 7)
    head.comes(Buffers(1, 4), Sum(1))
    assert head.facts == []
    head.comes(Buffers(0, 7), at=3.0)
    assert head.facts == [arrived(0, 7, 3.0, 1), arrived(1, 4, 3.0, 1)]


def test_an_update_whose_host_has_no_other_that_comes_now_goes_by_itself() -> None:
    head = Head()
    head.aggregation.released(0)
    head.aggregation.released(ALONE)
    head.ready(ALONE, 0)
    head.ready(0, 0)
    assert list(head.inner.coming) == [Update(ALONE, 0), Update(0, 0)]
    head.comes(Update(0, 0))
    assert head.facts == [arrived(0, 0, 1.0, None)]


def test_a_worker_without_data_is_waited_for_no_more() -> None:
    head = Head()
    head.aggregation.released(0)
    head.aggregation.released(1)
    head.ready(0, 0)
    head.aggregation.idles(1)
    assert list(head.inner.coming) == [Update(0, 0)]


@pytest.mark.parametrize("computes", [True, False])
def test_a_worker_that_leaves_is_waited_for_no_more_and_its_update_never_arrives(computes: bool) -> None:
    head = Head()
    for worker in (0, 1):
        head.aggregation.released(worker)
    head.aggregation.released(2)
    head.aggregation.released(3)
    head.ready(0, 0)
    if not computes:
        head.ready(1, 0)
    head.aggregation.cancel(1)
    assert list(head.inner.coming) == [Update(0, 0)]
    assert head.dropped == ([] if computes else [("a", Sum(1))])
    head.comes(Update(0, 0))
    assert head.facts == [arrived(0, 0, 1.0, None)]


def test_the_others_of_a_void_sum_are_added_up_anew_under_another_number() -> None:
    head = Head()
    head.aggregation.begins("a", [0, 1, 2])
    for worker in (0, 1, 2):
        head.aggregation.released(worker)
        head.ready(worker, 0) if worker else None
    head.ready(0, 0)
    assert [(total, len(terms)) for _, total, terms in head.ordered] == [(Sum(1), 3)]
    head.comes(Buffers(2, 0))
    head.aggregation.cancel(2)
    assert head.ordered[1:] == [("a", Sum(2), [(Update(0, 0), 0.5), (Update(1, 0), 0.5)])]
    head.comes(*list(head.inner.coming))
    assert head.facts == [arrived(0, 0, 1.0, 2), arrived(1, 0, 1.0, 2)]


def test_a_host_whose_workers_compute_holds_up_no_other() -> None:
    head = Head()
    for worker in HOSTS:
        head.aggregation.released(worker)
    head.ready(2, 0)
    head.ready(3, 0)
    assert [host for host, *_ in head.ordered] == ["b"]


def test_where_there_is_no_place_for_a_sum_its_updates_come_one_by_one() -> None:
    head = Head(places=1)
    for worker in HOSTS:
        head.aggregation.released(worker)
    for worker in HOSTS:
        head.ready(worker, 0)
    assert [item for item in head.inner.coming if not isinstance(item, Buffers)] == [Sum(1), Update(2, 0), Update(3, 0)]


def test_what_is_no_update_is_passed_on() -> None:
    head = Head()
    head.aggregation.fetch(0, Version(3), lambda at: None)
    assert list(head.inner.coming) == [Version(3)]


def test_the_updates_of_a_host_that_adds_up_no_more_come_one_by_one() -> None:
    """Those that were added up, those that have waited for others, and all later ones."""
    head = Head()
    for worker in HOSTS:
        head.aggregation.released(worker)
    head.ready(0, 0)
    head.ready(1, 0)
    head.ready(2, 0)
    head.aggregation.ends("a")
    assert head.dropped == [("a", Sum(1))]
    assert [item for item in head.inner.coming if not isinstance(item, Buffers)] == [Update(0, 0), Update(1, 0)]
    head.aggregation.ends("b")
    assert [item for item in head.inner.coming if isinstance(item, Update)] == [
        Update(0, 0),
        Update(1, 0),
        Update(2, 0),
    ]
    head.ready(3, 0)
    assert Update(3, 0) in head.inner.coming
    assert [head.aggregation.adding(host) for host in ("a", "b")] == [False, False]


def test_a_host_that_comes_again_adds_up_again_and_a_sum_that_has_come_stays_its_sum() -> None:
    head = Head()
    head.ready(0, 0)
    head.aggregation.released(1)
    head.aggregation.ends("a")
    head.aggregation.begins("a", [0, 1])
    head.aggregation.released(0)
    head.aggregation.released(1)
    head.ready(0, 1)
    head.ready(1, 1)
    assert [total for _, total, _ in head.ordered] == [Sum(1)]
    head.comes(Sum(1), Buffers(0, 1), Buffers(1, 1))
    head.aggregation.ends("a")
    assert (head.dropped, head.aggregation.host_of(Sum(1))) == ([], "a")


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_host_adds_up_updates_if_it_has_room_for_several_workers(workers: int) -> None:
    head = Head()
    assert head.aggregation.begins("c", range(8, 8 + workers)) == (workers > 1)
    assert head.aggregation.adding("c") == (workers > 1)


def test_where_no_update_is_added_up_no_host_begins_with_that() -> None:
    head = Head(places=0)
    assert not head.aggregation.begins("a", range(4))


def test_another_host_is_told_what_adds_up_and_the_head_has_a_place_for_the_sum() -> None:
    head = Head()
    for worker in (2, 3):
        head.aggregation.released(worker)
    for worker in (2, 3):
        head.ready(worker, 5)
    assert head.told == [("b", host_messages.SumUp(1, [(2, 5, 0.5), (3, 5, 0.5)], look=True))]
    assert list(head.reducer.updates_of(Sum(1))) == [Update(2, 5), Update(3, 5)]
    assert not head.process.send.called


def test_the_head_makes_its_own_sums() -> None:
    head = Head()
    assert head.aggregation.begins(HEAD, [5, 6])
    for worker in (5, 6):
        head.aggregation.released(worker)
    for worker in (5, 6):
        head.shelf.put(Update(worker, 0), ("update", worker, 0), head.plan.of(worker))
        head.ready(worker, 0)
    (order,) = [call.args[0] for call in head.process.send.call_args_list]
    assert (type(order), order.number, order.look) == (messages.store.MakeSum, 1, True)
    head.aggregation.ends(HEAD)
    assert head.told == []


def test_a_void_sum_that_all_hosts_have_is_kept_nowhere() -> None:
    head = Head()
    head.shards.begin(["c"])
    for worker in (2, 3):
        head.aggregation.released(worker)
    for worker in (2, 3):
        head.ready(worker, 5)
    head.comes(Sum(1))
    head.shards.stored("c", Sum(1), 1.0)
    head.told.clear()
    head.aggregation.ends("b")
    assert head.told[:2] == [("c", host_messages.Drop(fields_of(Sum(1)))), ("b", host_messages.DropSum(1))]
