"""The contract of fetchers: each item that is fetched is there once, and none for a worker that has gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paceline.core.facts import Fact, ParametersTaken, UpdateArrived
from paceline.core.items import Item, Update, Version
from paceline.host.claims import Owner
from paceline.records.times import TransferTimes
from paceline.scenario.group_links import GroupLinks
from paceline.scenario.network import SharedLink
from paceline.scenario.scenario import Network, Scenario
from paceline.transfer.fetcher import Fetcher, RemoteFetcher, ShapedFetcher

NETWORK = Network(bandwidth=100.0, message=100)
"""A second for what is alone on its link."""


class Fetching:
    """A fetcher, a clock, and what it has told."""

    def __init__(self, make: Callable[[Fetching], Fetcher]) -> None:
        self.at = 0.0
        self.facts: list[Fact] = []
        self.noted: list[tuple[int, str, int, float]] = []
        """Worker, what, number, end."""
        self.lost: list[tuple[int, str]] = []
        self.asked: dict[Owner, tuple[Item, Callable[[], object], Callable[[str], object]]] = {}
        """What another host was asked for, and what takes that or hears that it can't come."""
        self.shaped: ShapedFetcher | None = None
        """What ends fetches in its own time, if that does."""
        self.fetcher = make(self)

    def now(self) -> float:
        return self.at

    def note(self, worker: int, what: str, number: int, size: int, times: TransferTimes) -> None:
        self.noted.append((worker, what, number, times.ended))

    def push(self, worker: int, step: int) -> None:
        self.fetcher.fetch(worker, Update(worker, step), lambda at: UpdateArrived(worker=worker, step=step, at=at))

    def pull(self, worker: int, version: int) -> None:
        def then(at: float) -> Fact:
            return ParametersTaken(worker=worker, version=version, at=at)

        self.fetcher.fetch(worker, Version(version), then)

    def all(self) -> list[Fact]:
        """Everything that comes of what is under way, as the loop would take it."""
        while self.asked:
            _, arrived, _ = self.asked.pop(next(iter(self.asked)))
            arrived()
        while self.shaped is not None and (due := self.shaped.due()) is not None:
            self.at += due
            while (fact := self.shaped.next(self.at)) is not None:
                self.facts.append(fact)
        return self.facts

    def workers(self) -> list[int]:
        """Whose fetches have ended, of all that end now."""
        return [fact.worker for fact in self.all()]  # type: ignore[union-attr]

    def over(self) -> bool:
        """Whether nothing is under way."""
        return self.shaped is None or (self.shaped.next(1e9), self.shaped.due()) == (None, None)

    # --- stands in for what carries items between hosts

    def fetch(self, item: Item, owner: Owner, arrived: Callable[[], object], lost: Callable[[str], object]) -> None:
        self.asked[owner] = item, arrived, lost

    def cancel(self, owner: Owner) -> None:
        del self.asked[owner]


def shaped(fetching: Fetching, store: SharedLink | None, groups: GroupLinks | None) -> Fetcher:
    given = store, groups, fetching.now, fetching.now, fetching.facts.append, fetching.note
    fetching.shaped = made = ShapedFetcher(*given)
    made.size = 100
    return made


def local(fetching: Fetching) -> Fetcher:
    return shaped(fetching, None, None)


def paced(fetching: Fetching) -> Fetcher:
    return shaped(fetching, SharedLink.of(NETWORK), GroupLinks.of(Scenario(network=NETWORK), 4))


def elsewhere(fetching: Fetching) -> Fetcher:
    """Versions are on another host."""

    def lost(worker: int, why: str) -> None:
        fetching.lost.append((worker, why))

    carrier: Any = fetching
    return RemoteFetcher(carrier, fetching.now, fetching.facts.append, away=lambda item: True, lost=lost)


@pytest.fixture(params=[local, paced, elsewhere])
def fetching(request: pytest.FixtureRequest) -> Fetching:
    return Fetching(request.param)


def test_each_fetch_ends_once(fetching: Fetching) -> None:
    fetching.push(0, 3)
    fetching.pull(1, 7)
    assert fetching.workers() == [0, 1]
    assert [type(fact) for fact in fetching.facts] == [UpdateArrived, ParametersTaken]
    assert fetching.over()


def test_ends_are_told_in_the_order_of_time(fetching: Fetching) -> None:
    for worker in range(4):
        fetching.push(worker, 0)
        fetching.pull(worker, 1)
        fetching.at += 0.125
    moments = [fact.at for fact in fetching.all()]
    assert (moments, len(moments)) == (sorted(moments), 8)


def test_nothing_comes_of_what_a_worker_that_has_gone_was_fetching_and_of_nobody_elses(fetching: Fetching) -> None:
    fetching.pull(0, 7)
    fetching.pull(1, 7)
    before = list(fetching.facts)
    for worker in (0, 0, 2):
        fetching.fetcher.cancel(worker)
    assert fetching.workers() == ([0, 1] if before else [1])


def test_a_fetch_may_begin_as_another_ends(fetching: Fetching) -> None:
    def then(at: float) -> None:
        fetching.pull(1, 8)
        fetching.pull(0, 7)

    fetching.fetcher.fetch(0, Version(7), then)
    assert sorted(fetching.workers()) == [0, 1]
    assert fetching.over()


@pytest.mark.parametrize("make", [local, paced])
def test_a_group_is_gathered_once_and_nothing_need_happen_then(make: Callable[[Fetching], Fetcher]) -> None:
    fetching, ends = Fetching(make), list[float]()
    assert fetching.shaped is not None
    began = fetching.shaped.gather(5, (0, 1), ends.append)
    assert fetching.all() == []
    assert (began, len(ends)) == (0.0, 1)


def test_at_a_network_s_pace_ends_of_both_links_come_in_the_order_of_time_with_the_model_s_moments() -> None:
    """An average of two moves as much as one model here. Late as the loop may be, the moments are the links'."""
    fetching = Fetching(paced)
    assert fetching.shaped is not None
    fetching.shaped.gather(5, (0, 1), lambda at: UpdateArrived(worker=9, step=5, at=at))
    fetching.at = 0.5
    fetching.push(0, 3)
    fetching.at = 60.0
    fetching.all()
    assert fetching.facts == [UpdateArrived(worker=9, step=5, at=1.0), UpdateArrived(worker=0, step=3, at=1.5)]
    assert fetching.noted == [(0, "average", 5, 1.0), (1, "average", 5, 1.0), (0, "push", 3, 1.5)]


def test_what_no_link_paces_is_local() -> None:
    fetching = Fetching(lambda one: shaped(one, None, GroupLinks.of(Scenario(network=NETWORK), 4)))
    fetching.push(0, 3)
    assert (fetching.facts, fetching.noted) == ([UpdateArrived(worker=0, step=3, at=0.0)], [])


def test_what_another_host_can_not_give_is_told_to_its_worker_in_place_of_the_end() -> None:
    fetching = Fetching(elsewhere)
    for worker, version in ((0, 7), (1, 8)):
        fetching.pull(worker, version)
    _, _, lost = fetching.asked.pop(next(iter(fetching.asked)))
    lost("it is not here any more")
    fetching.fetcher.cancel(0)
    assert fetching.lost == [(0, f"{Version(7)} can't come: it is not here any more")]
    assert fetching.workers() == [1]
