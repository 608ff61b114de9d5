"""Fetches at the pace of links between hosts: an item has come once its bytes have, and the links' model says so."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock, call

import pytest

from paceline.core.facts import Fact, ParametersTaken, UpdateArrived
from paceline.core.items import Replica, Update, Version
from paceline.records.times import Fetch
from paceline.scenario.host_traffic import HostTraffic
from paceline.scenario.scenario import HostTable, Scenario
from paceline.transfer.fetcher import Fetcher, Local, Then
from paceline.transfer.linked_fetcher import Linked, Told

SCENARIO = Scenario(
    nodes=2,
    workers=4,
    host_tables=(
        HostTable(name="head", workers=range(2), bandwidth=100.0),
        HostTable(name="far", workers=range(2, 4), bandwidth=100.0),
    ),
)
M = 100
"""Bytes of a model: a second, alone."""


class Slow:
    """A fetcher whose bytes come when the test says so."""

    def __init__(self) -> None:
        self.under_way: dict[object, Then] = {}
        self.gone: list[int] = []

    def fetch(self, worker: int, item: Update | Version | Replica, then: Then) -> None:
        self.under_way[item] = then

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        raise AssertionError("no groups are here")

    def cancel(self, worker: int) -> None:
        self.gone.append(worker)

    def next(self, until: float) -> Fact | None:
        return None

    def due(self) -> float | None:
        return None


class Head:
    """The head's fetcher, with a clock that the test turns."""

    def __init__(self, inner: Callable[[Head], Fetcher] | None = None) -> None:
        self.now, self.news, self.happened = 0.0, Mock(), list[Fact]()
        self.slow = Slow()
        traffic = HostTraffic.of(SCENARIO, 4)
        assert traffic is not None
        within = self.slow if inner is None else inner(self)
        self.linked = Linked(traffic, within, self.news, lambda: self.now, lambda: self.now)
        self.linked.size = M

    def push(self, worker: int, step: int) -> None:
        def arrived(at: float) -> UpdateArrived:
            return UpdateArrived(worker=worker, step=step, at=at)

        self.linked.fetch(worker, Update(worker, step), arrived)

    def pull(self, worker: int, version: int, let: list[tuple[int, float]]) -> None:
        self.linked.fetch(worker, Version(version), lambda at: let.append((worker, at)))


def local(head: Head) -> Local:
    return Local(lambda: head.now, head.happened.append)


def test_an_update_has_arrived_at_the_models_time_if_its_bytes_were_there_before() -> None:
    head = Head()
    head.push(2, 7)
    head.now = 0.25
    assert head.slow.under_way[Update(2, 7)](0.25) is None
    assert head.linked.due() == 0.75
    assert head.linked.next(0.99) is None
    head.now = 1.125
    assert head.linked.next(1.125) == UpdateArrived(worker=2, step=7, at=1.0)
    fetch = Fetch(host="head", source="far", kind="update", worker=2, number=7, bytes=M, began=0.0, ended=1.0)
    assert head.news.mock_calls == [call.fetched(fetch)]


def test_an_update_whose_bytes_are_late_has_arrived_with_them() -> None:
    head = Head()
    head.push(2, 7)
    assert head.linked.next(1.5) is None
    assert head.slow.under_way[Update(2, 7)](1.5) == UpdateArrived(worker=2, step=7, at=1.5)
    assert head.news.fetched.call_args.args[0].ended == 1.5


def test_workers_of_one_host_may_have_a_version_at_the_same_moment_which_moves_once() -> None:
    head, let = Head(), list[tuple[int, float]]()
    head.pull(2, 1, let)
    head.now = 0.5
    head.pull(3, 1, let)
    assert head.linked.next(2.0) is None
    assert let == [(2, 1.0), (3, 1.0)]
    assert [one.args[0].number for one in head.news.fetched.call_args_list] == [1]
    assert head.news.brought.call_args_list == [call(2, 0.0, 1.0), call(3, 0.5, 1.0)]


def test_a_version_begins_to_move_once_it_is_made_though_the_fact_that_asks_for_it_came_before() -> None:
    head, let = Head(), list[tuple[int, float]]()
    for version, at in ((1, 0.5), (2, 20.0), (3, 20.5)):
        head.linked.made(version, at)
    head.now = 20.25
    head.pull(2, 3, let)
    assert head.linked.next(30.0) is None
    assert let == [(2, 21.5)]


@pytest.mark.parametrize(("worker", "version"), [(0, 5), (2, 0)], ids=["at the head", "the first version"])
def test_what_is_there_takes_no_time(worker: int, version: int) -> None:
    head, let = Head(local), list[tuple[int, float]]()
    head.now = 3.0
    head.pull(worker, version, let)
    assert let == [(worker, 3.0)]
    assert not head.news.mock_calls


def test_nothing_comes_of_what_a_worker_leaves() -> None:
    head, let = Head(), list[tuple[int, float]]()
    head.push(2, 7)
    head.pull(2, 1, let)
    head.pull(3, 1, let)
    head.linked.cancel(2)
    assert head.linked.next(9.0) is None
    assert let == [(3, 1.0)]
    assert head.slow.gone == [2]


class Elsewhere:
    """The fetcher of a host that is not the head."""

    def __init__(self) -> None:
        self.slow, self.happened = Slow(), list[Fact]()
        self.told = Told(self.slow, lambda: 5.0, self.happened.append)

    def pull(self, worker: int, version: int) -> Then:
        def taken(at: float) -> ParametersTaken:
            return ParametersTaken(worker=worker, version=version, at=at)

        self.told.fetch(worker, Version(version), taken)
        return self.slow.under_way[Version(version)]


def test_a_version_that_is_here_is_a_workers_once_the_head_says_so() -> None:
    here = Elsewhere()
    bytes_came = here.pull(2, 1)
    assert bytes_came(4.0) is None
    here.told.let(3, 1)
    assert here.happened == []
    here.told.let(2, 1)
    assert here.happened == [ParametersTaken(worker=2, version=1, at=5.0)]
    here.told.let(2, 1)
    assert len(here.happened) == 1


def test_a_version_that_comes_after_the_heads_word_is_a_workers_at_once() -> None:
    here = Elsewhere()
    bytes_came = here.pull(2, 1)
    here.told.let(2, 1)
    assert bytes_came(4.0) == ParametersTaken(worker=2, version=1, at=4.0)
    later = here.pull(2, 2)
    assert later(6.0) is None, "the head has said nothing of that one"


def test_a_worker_that_leaves_takes_no_version() -> None:
    here = Elsewhere()
    bytes_came = here.pull(2, 1)
    bytes_came(4.0)
    here.told.cancel(2)
    here.told.let(2, 1)
    assert here.happened == []
    assert here.slow.gone == [2]
