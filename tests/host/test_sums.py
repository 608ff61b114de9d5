"""Updates of one host go together as one sum, which takes their place in a version, in a run as in its replay."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from paceline.core.facts import Fact, GradientReady, UpdateArrived
from paceline.core.items import Sum, Update
from paceline.host import messages as host_messages
from paceline.host.memory_plan import MemoryPlan
from paceline.host.shards.aggregation_scheduler import AggregationScheduler
from paceline.host.shards.arrivals import Arrivals
from paceline.host.shards.host_reducer import HostReducer
from paceline.host.shards.server import ShardServer
from paceline.host.shards.sum_table import SumTable
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages

HOSTS = {0: "a", 1: "a", 2: "b", 3: "b"}
HEAD = "head"


class Shard(Mock):
    """The head's own range. What comes there ends when a test says so."""

    def __init__(self) -> None:
        super().__init__(spec=ShardServer)
        self.coming: dict[Update | Sum, str | None] = {}
        """What is on its way, and the host that makes it, if that is a sum."""

    def bring(self, item: Update | Sum, source: str | None) -> None:
        self.coming[item] = source

    def drop(self, item: Update | Sum) -> None:
        self.coming.pop(item, None)


class Head:
    """The head of hosts a and b with two workers each, and one with a single worker."""

    def __init__(self, places: int = 2) -> None:
        self.shelf = shelf = Shelf()
        self.plan = plan = MemoryPlan(7, slots=4, areas=2, own=2, sums=places)
        process: Any = Mock(lost=False)
        self.process = process
        self.reducer = HostReducer(shelf, plan, process, there=Mock(), not_finite=Mock())
        self.sums = SumTable(shelf, self.reducer)
        self.own = Shard()
        self.facts: list[Fact] = []
        self.told: list[tuple[str, messages.Message]] = []
        self.shards = Arrivals(HEAD, self.own, self._tell)
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

        self.aggregation.bring(Update(worker, step), then)

    def comes(self, *items: Update | Sum) -> None:
        for item in items:
            del self.own.coming[item]
            if (fact := self.shards.stored(HEAD, item, 1.0)) is not None:
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
    assert not head.own.coming
    head.ready(1, 0, samples=24)
    assert head.ordered == [("a", Sum(1), [(Update(0, 0), 0.25), (Update(1, 0), 0.75)])]
    assert head.own.coming == {Sum(1): "a"}


def test_a_worker_without_data_is_waited_for_no_more() -> None:
    head = Head()
    head.aggregation.released(0)
    head.aggregation.released(1)
    head.ready(0, 0)
    head.aggregation.idles(1)
    assert list(head.own.coming) == [Update(0, 0)]


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
    assert list(head.own.coming) == [Update(0, 0)]
    assert head.dropped == ([] if computes else [("a", Sum(1))])
    head.comes(Update(0, 0))
    assert head.facts == [arrived(0, 0, 1.0, None)]


def test_where_there_is_no_place_for_a_sum_its_updates_come_one_by_one() -> None:
    head = Head(places=1)
    for worker in HOSTS:
        head.aggregation.released(worker)
    for worker in HOSTS:
        head.ready(worker, 0)
    assert list(head.own.coming) == [Sum(1), Update(2, 0), Update(3, 0)]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_host_adds_up_updates_if_it_has_room_for_several_workers(workers: int) -> None:
    head = Head()
    assert head.aggregation.begins("c", range(8, 8 + workers)) == (workers > 1)
    assert head.aggregation.adding("c") == (workers > 1)
    assert not Head(places=0).aggregation.begins("c", range(8, 8 + workers)), "no update is added up"


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


# --- how they go into versions

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


def test_a_sum_whose_updates_are_gone_is_not_made_and_not_awaited() -> None:
    store = Store()
    store.reducer.sum_up(Sum(1), [(Update(0, 0), 0.5), (Update(1, 5), 0.5)], look=True)
    assert store.sent == []
    assert store.reducer.look(Sum(1), 0, 8) == "gone"


def test_a_sum_waits_for_the_place_of_a_void_one_until_the_process_has_come_to_that() -> None:
    store = Store()
    of = {number: [(Update(worker, 0), 0.5) for worker in workers] for number, workers in enumerate(((0, 1), (2, 3)))}
    for number in (0, 1):
        store.reducer.sum_up(Sum(number), of[number], look=True)
        store.reducer.drop(Sum(number))
    for number in (2, 3):
        store.reducer.sum_up(Sum(number), of[number % 2], look=True)
    assert [message.number for message in store.sent] == [0, 1]
    assert store.reducer.look(Sum(2), 0, 8) == "coming"
    store.reducer.drop(Sum(2))
    store.reducer.heard(messages.store.Summed(0, None))
    assert [message.number for message in store.sent] == [0, 1, 3]
    assert [store.reducer.look(Sum(number), 0, 8) for number in (2, 3)] == ["gone", "coming"]
