"""Updates of one host go together: as one sum, once none of its workers computes a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from paceline.core.facts import Fact, GradientReady, UpdateArrived
from paceline.core.items import Buffers, Sum, Update, Version
from paceline.host.memory_plan import MemoryPlan
from paceline.host.shards.aggregation_scheduler import AggregationScheduler
from paceline.host.shards.host_reducer import HostReducer
from paceline.host.shards.sum_table import SumTable
from paceline.host.version_shelf import Shelf
from paceline.transfer.fetcher import Fetchable, Then
from support.fetchers import NoFetcher

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
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
        shelf, plan = Shelf(), MemoryPlan(5, slots=4, areas=2, own=2, sums=places)
        self.arithmetic = _Arithmetic()
        self.summer = HostReducer(shelf, plan, self.arithmetic)  # type: ignore[arg-type]
        self.sums = SumTable(shelf, self.summer)
        self.inner = Fetches()
        self.facts: list[Fact] = []
        self.together = AggregationScheduler(self.inner, self.sums, self.summer, self.facts.append)
        self.ordered: list[tuple[str, Sum, list[tuple[Update, float]]]] = []
        self.dropped: list[tuple[str, Sum]] = []
        self.together.sum_up, self.together.drop = self._sum_up, self._drop
        for host in ("a", "b"):
            self.together.begins(host, [worker for worker, one in HOSTS.items() if one == host])

    def ready(self, worker: int, step: int, samples: int | None = 8) -> None:
        """The worker's update is ready, and its push begins."""
        self.sums.tell(GradientReady(worker=worker, step=step, version=step, samples=samples, at=0.0))

        def then(at: float) -> UpdateArrived:
            return UpdateArrived(worker=worker, step=step, at=at)

        self.together.fetch(worker, Update(worker, step), then)

    def comes(self, *items: Fetchable, at: float = 1.0) -> None:
        for item in items:
            _, then = self.inner.coming.pop(item)
            if (fact := then(at)) is not None:
                self.facts.append(fact)

    def _sum_up(self, host: str, total: Sum, terms: list[tuple[Update, float]]) -> None:
        self.summer.lay(total, [update for update, _ in terms])
        self.ordered.append((host, total, terms))

    def _drop(self, host: str, total: Sum) -> None:
        self.summer.drop(total)
        self.dropped.append((host, total))


class _Arithmetic:
    lost = False

    def send(self, message: object) -> None:
        raise AssertionError(f"nothing is summed at the head: {message}")


def arrived(worker: int, step: int, at: float, number: int | None) -> UpdateArrived:
    return UpdateArrived(worker=worker, step=step, at=at, sum=number)


def test_updates_of_a_host_wait_for_each_other_and_come_as_one_sum() -> None:
    head = Head()
    for worker in (0, 1, 2):
        head.together.released(worker)
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
    head.together.released(0)
    head.together.released(1)
    head.ready(1, 4)
    head.ready(0, 7)
    head.comes(Buffers(1, 4), Sum(1))
    assert head.facts == []
    head.comes(Buffers(0, 7), at=3.0)
    assert head.facts == [arrived(0, 7, 3.0, 1), arrived(1, 4, 3.0, 1)]


def test_an_update_whose_host_has_no_other_that_comes_now_goes_by_itself() -> None:
    head = Head()
    head.together.released(0)
    head.together.released(ALONE)
    head.ready(ALONE, 0)
    head.ready(0, 0)
    assert list(head.inner.coming) == [Update(ALONE, 0), Update(0, 0)]
    head.comes(Update(0, 0))
    assert head.facts == [arrived(0, 0, 1.0, None)]


def test_a_worker_without_data_is_waited_for_no_more() -> None:
    head = Head()
    head.together.released(0)
    head.together.released(1)
    head.ready(0, 0)
    head.together.idles(1)
    assert list(head.inner.coming) == [Update(0, 0)]


@pytest.mark.parametrize("computes", [True, False])
def test_a_worker_that_leaves_is_waited_for_no_more_and_its_update_never_arrives(computes: bool) -> None:
    head = Head()
    for worker in (0, 1):
        head.together.released(worker)
    head.together.released(2)
    head.together.released(3)
    head.ready(0, 0)
    if not computes:
        head.ready(1, 0)
    head.together.cancel(1)
    assert list(head.inner.coming) == [Update(0, 0)]
    assert head.dropped == ([] if computes else [("a", Sum(1))])
    head.comes(Update(0, 0))
    assert head.facts == [arrived(0, 0, 1.0, None)]


def test_the_others_of_a_void_sum_are_added_up_anew_under_another_number() -> None:
    head = Head()
    head.together.begins("a", [0, 1, 2])
    for worker in (0, 1, 2):
        head.together.released(worker)
        head.ready(worker, 0) if worker else None
    head.ready(0, 0)
    assert [(total, len(terms)) for _, total, terms in head.ordered] == [(Sum(1), 3)]
    head.comes(Buffers(2, 0))
    head.together.cancel(2)
    assert head.ordered[1:] == [("a", Sum(2), [(Update(0, 0), 0.5), (Update(1, 0), 0.5)])]
    head.comes(*list(head.inner.coming))
    assert head.facts == [arrived(0, 0, 1.0, 2), arrived(1, 0, 1.0, 2)]


def test_a_host_whose_workers_compute_holds_up_no_other() -> None:
    head = Head()
    for worker in HOSTS:
        head.together.released(worker)
    head.ready(2, 0)
    head.ready(3, 0)
    assert [host for host, *_ in head.ordered] == ["b"]


def test_where_there_is_no_place_for_a_sum_its_updates_come_one_by_one() -> None:
    head = Head(places=1)
    for worker in HOSTS:
        head.together.released(worker)
    for worker in HOSTS:
        head.ready(worker, 0)
    assert [item for item in head.inner.coming if not isinstance(item, Buffers)] == [Sum(1), Update(2, 0), Update(3, 0)]


def test_what_is_no_update_is_passed_on() -> None:
    head = Head()
    head.together.fetch(0, Version(3), lambda at: None)
    assert list(head.inner.coming) == [Version(3)]


def test_the_updates_of_a_host_that_adds_up_no_more_come_one_by_one() -> None:
    """Those that were added up, those that have waited for others, and all later ones."""
    head = Head()
    for worker in HOSTS:
        head.together.released(worker)
    head.ready(0, 0)
    head.ready(1, 0)
    head.ready(2, 0)
    head.together.ends("a")
    assert head.dropped == [("a", Sum(1))]
    assert [item for item in head.inner.coming if not isinstance(item, Buffers)] == [Update(0, 0), Update(1, 0)]
    head.together.ends("b")
    assert [item for item in head.inner.coming if isinstance(item, Update)] == [
        Update(0, 0),
        Update(1, 0),
        Update(2, 0),
    ]
    head.ready(3, 0)
    assert Update(3, 0) in head.inner.coming
    assert [head.together.adding(host) for host in ("a", "b")] == [False, False]


def test_a_host_that_comes_again_adds_up_again_and_a_sum_that_has_come_stays_its_sum() -> None:
    head = Head()
    head.ready(0, 0)
    head.together.released(1)
    head.together.ends("a")
    head.together.begins("a", [0, 1])
    head.together.released(0)
    head.together.released(1)
    head.ready(0, 1)
    head.ready(1, 1)
    assert [total for _, total, _ in head.ordered] == [Sum(1)]
    head.comes(Sum(1), Buffers(0, 1), Buffers(1, 1))
    head.together.ends("a")
    assert (head.dropped, head.together.host_of(Sum(1))) == ([], "a")
