"""What moves between hosts: each version once to each host, each update once to the head."""

from __future__ import annotations

import math

import pytest

from paceline.core.items import Update, Version
from paceline.scenario.host_traffic import HostTraffic, ItemCame
from paceline.scenario.scenario import HostTable, Scenario

SCENARIO = Scenario(
    nodes=3,
    workers=6,
    host_tables=(
        HostTable(name="h", workers=range(2), bandwidth=100.0),
        HostTable(name="a", workers=range(2, 4), bandwidth=100.0, latency=0.5),
        HostTable(name="b", workers=range(4, 6), bandwidth=100.0),
    ),
)


def traffic(begins: int = 0) -> HostTraffic:
    found = HostTraffic.of(SCENARIO, 6, begins)
    assert found is not None
    return found


def drain(of: HostTraffic) -> list[ItemCame]:
    came = []
    while (one := of.finish(math.inf)) is not None:
        came.append(one)
    return came


def test_without_links_nothing_takes_any_time() -> None:
    assert HostTraffic.of(Scenario(nodes=2), 4) is None
    assert HostTraffic.of(SCENARIO.only_dealt(), 6) is None


def test_a_version_goes_once_to_each_host_however_many_of_its_workers_want_it() -> None:
    of = traffic()
    assert [of.begin(worker, Version(1), 100, 0.0) for worker in range(2, 6)] == [True] * 4
    assert [(one.target, one.began, one.ended, one.waiting) for one in drain(of)] == [
        ("b", 0.0, 2.0, ((4, 0.0), (5, 0.0))),
        ("a", 0.0, 2.5, ((2, 0.0), (3, 0.0))),
    ]


def test_a_worker_that_wants_a_version_on_its_way_gets_it_as_it_comes() -> None:
    of = traffic()
    of.begin(4, Version(1), 100, 0.0)
    of.begin(5, Version(1), 100, 0.75)
    (came,) = drain(of)
    assert (came.ended, came.waiting) == (1.0, ((4, 0.0), (5, 0.75)))


def test_what_has_come_is_there_for_the_others_of_that_host_and_for_no_other_host() -> None:
    of = traffic()
    of.begin(4, Version(1), 100, 0.0)
    drain(of)
    assert not of.begin(5, Version(1), 100, 5.0)
    assert of.begin(2, Version(1), 100, 5.0)


@pytest.mark.parametrize("item", [Version(3), Update(1, 7)])
def test_at_the_head_everything_is_there(item: Version | Update) -> None:
    assert not traffic().begin(1, item, 100, 0.0)


def test_what_training_begins_with_is_on_all_hosts() -> None:
    of = traffic(begins=7)
    assert not of.begin(2, Version(7), 100, 0.0)
    assert of.begin(2, Version(8), 100, 0.0)


def test_each_update_goes_to_the_head() -> None:
    of = traffic()
    for worker in (2, 3):
        assert of.begin(worker, Update(worker, 7), 100, 0.0)
    first, second = drain(of)
    assert (first.item, first.source, first.target, first.size, first.ended) == (Update(2, 7), "a", "h", 100, 2.5)
    assert (second.item, second.waiting) == (Update(3, 7), ((3, 0.0),))


def test_what_the_last_to_wait_leaves_does_not_come_and_takes_nothing_from_the_others() -> None:
    of = traffic()
    for worker in (2, 3, 4):
        of.begin(worker, Version(1), 100, 0.0)
    of.leaves(2, 0.5)
    of.leaves(3, 1.0)
    (came,) = drain(of)
    assert (came.target, came.ended) == ("b", 1.5)
    assert of.begin(2, Version(1), 100, 5.0), "it has not come to that host"


def test_nobody_is_told_of_what_ended_as_its_last_worker_left() -> None:
    of = traffic()
    of.begin(4, Version(1), 100, 0.0)
    of.leaves(4, 1.0)
    assert drain(of) == []
