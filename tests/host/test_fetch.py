"""Fetchers: each item that is fetched is there once, at its own moment, and none for a worker that has gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline.cluster.group_links import GroupLinks
from paceline.cluster.network import SharedLink
from paceline.cluster.scenario import Network, Scenario
from paceline.core.facts import Fact, ParametersTaken, UpdateArrived
from paceline.core.items import Update, Version
from paceline.host.fetch import Fetcher, Local
from paceline.host.paced import Paced
from paceline.records.times import TransferTimes

NETWORK = Network(bandwidth=100.0, message=100)
"""A second for what is alone on its link."""


class Fetching:
    """A fetcher, a clock, and what it has told."""

    def __init__(self, make: Callable[[Fetching], Fetcher]) -> None:
        self.at = 0.0
        self.facts: list[Fact] = []
        self.noted: list[tuple[int, str, int, float]] = []
        """Worker, what, number, end."""
        self.fetcher = make(self)

    def note(self, worker: int, what: str, number: int, size: int, times: TransferTimes) -> None:
        self.noted.append((worker, what, number, times.ended))

    def push(self, worker: int, step: int) -> None:
        def then(at: float) -> Fact:
            return UpdateArrived(worker=worker, step=step, at=at)

        self.fetcher.fetch(worker, Update(worker, step), then)

    def pull(self, worker: int, version: int) -> None:
        def then(at: float) -> Fact:
            return ParametersTaken(worker=worker, version=version, at=at)

        self.fetcher.fetch(worker, Version(version), then)

    def all(self) -> list[Fact]:
        """Everything that comes of what is under way, as the loop would take it."""
        while (due := self.fetcher.due()) is not None:
            self.at += due
            while (fact := self.fetcher.next(self.at)) is not None:
                self.facts.append(fact)
        return self.facts


def local(fetching: Fetching) -> Fetcher:
    return Local(lambda: fetching.at, fetching.facts.append)


def paced(fetching: Fetching) -> Fetcher:
    def now() -> float:
        return fetching.at

    store, groups = SharedLink.of(NETWORK), GroupLinks.of(Scenario(network=NETWORK), 4)
    made = Paced(store, groups, Local(now, fetching.facts.append), now, now, fetching.note)
    made.size = 100
    return made


@pytest.fixture(params=[local, paced])
def fetching(request: pytest.FixtureRequest) -> Fetching:
    return Fetching(request.param)


def test_each_fetch_ends_once(fetching: Fetching) -> None:
    fetching.push(0, 3)
    fetching.pull(1, 7)
    facts = fetching.all()
    assert [(type(fact), fact.worker) for fact in facts] == [(UpdateArrived, 0), (ParametersTaken, 1)]  # type: ignore[union-attr]
    assert (fetching.fetcher.next(1e9), fetching.fetcher.due()) == (None, None)


def test_ends_are_told_in_the_order_of_time(fetching: Fetching) -> None:
    for worker in range(4):
        fetching.push(worker, 0)
        fetching.pull(worker, 1)
        fetching.at += 0.125
    moments = [fact.at for fact in fetching.all()]
    assert (moments, len(moments)) == (sorted(moments), 8)


def test_a_group_is_gathered_once_and_nothing_need_happen_then(fetching: Fetching) -> None:
    ends: list[float] = []
    began = fetching.fetcher.gather(5, (0, 1), ends.append)
    assert fetching.all() == []
    assert (began, len(ends)) == (0.0, 1)


def test_nothing_comes_of_what_a_worker_that_has_gone_was_fetching(fetching: Fetching) -> None:
    fetching.push(0, 3)
    fetching.pull(1, 7)
    before = list(fetching.facts)
    fetching.fetcher.cancel(0)
    fetching.fetcher.cancel(0)
    assert [fact for fact in fetching.all() if fact not in before] == (
        [] if before else [ParametersTaken(worker=1, version=7, at=1.0)]
    )


def test_cancelling_what_is_not_there_disturbs_nothing(fetching: Fetching) -> None:
    fetching.fetcher.cancel(2)
    fetching.push(0, 3)
    assert len(fetching.all()) == 1


def test_at_a_network_s_pace_ends_of_both_links_come_in_the_order_of_time_with_the_model_s_moments() -> None:
    """An average of two moves as much as one model here. Late as the loop may be, the moments are the links'."""
    fetching = Fetching(paced)
    fetching.fetcher.gather(5, (0, 1), lambda at: UpdateArrived(worker=9, step=5, at=at))
    fetching.at = 0.5
    fetching.push(0, 3)
    fetching.at = 60.0
    fetching.all()
    assert fetching.facts == [UpdateArrived(worker=9, step=5, at=1.0), UpdateArrived(worker=0, step=3, at=1.5)]
    assert fetching.noted == [(0, "average", 5, 1.0), (1, "average", 5, 1.0), (0, "push", 3, 1.5)]


def test_what_no_link_paces_is_local() -> None:
    def only_averages(fetching: Fetching) -> Fetcher:
        groups = GroupLinks.of(Scenario(network=NETWORK), 4)
        return Paced(None, groups, Local(lambda: 0.0, fetching.facts.append), lambda: 0.0, lambda: 0.0, fetching.note)

    fetching = Fetching(only_averages)
    fetching.push(0, 3)
    assert (fetching.facts, fetching.noted) == ([UpdateArrived(worker=0, step=3, at=0.0)], [])
