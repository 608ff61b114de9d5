"""The contract of fetchers: each item that is fetched is there once, and none for a worker that has gone.

Each kind is held to it. What breaks between hosts breaks in the tests of `Wire`, by a script.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from paceline.core.facts import Fact, ParametersTaken, UpdateArrived
from paceline.core.items import Item, Update, Version
from paceline.host.attachments import empty_file
from paceline.host.claims import Owner
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Span
from paceline.net.listener import HostListener
from paceline.net.tcp import listen
from paceline.records.times import FetchTimes, TransferTimes
from paceline.scenario.group_links import GroupLinks
from paceline.scenario.network import SharedLink
from paceline.scenario.scenario import Network, Scenario
from paceline.transfer.data_connection import Port
from paceline.transfer.data_plane import DataPlane, Hear, Plane
from paceline.transfer.fetch_table import Where
from paceline.transfer.fetcher import Fetcher, RemoteFetcher, ShapedFetcher
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Peer
from paceline.transfer.movers import InLoop, InProcess, Mover, forked_mover
from support.carriers import hello
from support.clusters import PATIENCE, tls_keys
from support.planes import meet, plane_of

NETWORK = Network(bandwidth=100.0, message=100)
"""A second for what is alone on its link."""


class Fetching:
    """A fetcher, a clock, and what it has told."""

    def __init__(self, make: Callable[[Fetching], Fetcher]) -> None:
        self.at = 0.0
        self.facts: list[Fact] = []
        self.noted: list[tuple[int, str, int, float]] = []
        """Worker, what, number, end."""
        self.brings: Callable[[], None] = lambda: None
        """Has everything come that another host was asked for."""
        self.close: Callable[[], None] = lambda: None
        self.shaped: ShapedFetcher | None = None
        """What ends fetches in its own time, if that does."""
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
        self.brings()
        while self.shaped is not None and (due := self.shaped.due()) is not None:
            self.at += due
            while (fact := self.shaped.next(self.at)) is not None:
                self.facts.append(fact)
        return self.facts

    def over(self) -> bool:
        """Whether nothing is under way."""
        return self.shaped is None or (self.shaped.next(1e9), self.shaped.due()) == (None, None)


def shaped(fetching: Fetching, store: SharedLink | None, groups: GroupLinks | None) -> Fetcher:
    def now() -> float:
        return fetching.at

    fetching.shaped = made = ShapedFetcher(store, groups, now, now, fetching.facts.append, fetching.note)
    made.size = 100
    return made


def local(fetching: Fetching) -> Fetcher:
    return shaped(fetching, None, None)


def paced(fetching: Fetching) -> Fetcher:
    return shaped(fetching, SharedLink.of(NETWORK), GroupLinks.of(Scenario(network=NETWORK), 4))


SIZE = 10
OTHER = Peer("node-1", 1)


class Elsewhere:
    """All updates and versions are on another host, whose bytes the test brings."""

    def __init__(self, fetching: Fetching, plane: Callable[[Hear], Plane] = DataPlane) -> None:
        self.places: dict[Item, memoryview] = {}
        self.lost: list[tuple[int, str]] = []
        self.carrier = TransferManager("node-0", lambda: fetching.at, plane)
        self.carrier.meet(*OTHER)
        self.carrier.begins(0, self)
        self.wire = RemoteFetcher(
            self.carrier,
            lambda: fetching.at,
            fetching.facts.append,
            away=lambda item: True,
            lost=lambda worker, why: self.lost.append((worker, why)),
        )

    def comes(self, request: int, most: int = SIZE) -> bool:
        """So many bytes of the request come. Return whether somebody wants them."""
        there = plane_of(self.carrier).memory(OTHER, request)
        if there is None:
            return False
        count = min(most, there.nbytes)
        there.memory[:count] = b"x" * count
        plane_of(self.carrier).came(OTHER, request, count)
        return True

    def brings(self) -> None:
        request = 1
        while request <= plane_of(self.carrier)._fetches._asked:
            self.comes(request)
            request += 1

    def ranges(self, item: Item) -> list[tuple[str, int, int]]:
        return [(OTHER.host, 0, SIZE)]

    def lay(self, item: Item, number: int) -> Span:
        assert item not in self.places
        file, span = empty_file(SIZE)
        os.close(file)
        self.places[item] = span.memory
        return span

    def settled(self, number: int) -> None:
        pass

    def free(self, item: Item, whole: bool) -> None:
        assert whole == (self.places.pop(item) == b"x" * SIZE)

    def fetched(self, fetch: FetchTimes) -> None:
        pass

    def look(self, item: Item, begin: int, end: int) -> Where:
        return "gone"

    def claim(self, item: Item, owner: Owner) -> None:
        raise AssertionError("nothing is here")

    def release(self, item: Item, owner: Owner) -> None:
        raise AssertionError("nothing is here")

    def view(self, item: Item) -> Span:
        raise AssertionError("nothing is here")


def wire(fetching: Fetching) -> Fetcher:
    elsewhere = Elsewhere(fetching)
    plane_of(elsewhere.carrier).connected(OTHER)
    fetching.brings = elsewhere.brings
    return elsewhere.wire


class There:
    """The other host, for real: it has all items, and no place for any."""

    def look(self, item: Item, begin: int, end: int) -> Where:
        return "here"

    def claim(self, item: Item, owner: Owner) -> None:
        pass

    def release(self, item: Item, owner: Owner) -> None:
        pass

    def view(self, item: Item) -> Span:
        return Span(memoryview(b"x" * SIZE))


class Encrypted(Elsewhere):
    """The bytes come over TLS, on loopback."""

    def __init__(self, fetching: Fetching, makes: Callable[[Loop, list[str]], Mover]) -> None:
        self.loop = Loop()
        self.lines: list[str] = []
        self.mover = makes(self.loop, self.lines)
        super().__init__(fetching, self.mover.plane)
        there: Any = There()
        self.other = TransferManager(OTHER.host, lambda: fetching.at)
        self.other.begins(0, there)
        self.door = HostListener(listen(), self.loop, tls_keys(), self.lines.append)
        self.port = Port(self.door, self.loop, hello(*OTHER), self.lines.append)
        self.port.expect(meet(self.other, "node-0", 1))
        self.mover.dial(OTHER, self.door.address, hello("node-0", 1), 15.0)

    def brings(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.wire._under_way:
            assert time.monotonic() < deadline, "it never came"
            self.loop.wait(1.0)

    def close(self) -> None:
        self.door.close()
        self.port.close()
        self.carrier.close()
        self.mover.close(lambda: None)
        self.other.close()
        self.loop.close()
        assert not self.lines


def encrypted(fetching: Fetching) -> Fetcher:
    elsewhere = Encrypted(fetching, lambda loop, lines: InLoop(loop, tls_keys(), lines.append))
    fetching.brings, fetching.close = elsewhere.brings, elsewhere.close
    return elsewhere.wire


def moved_by_a_process(fetching: Fetching) -> Fetcher:
    stack = ExitStack()
    forked = stack.enter_context(forked_mover(tls_keys(), lambda: None))
    elsewhere = stack.enter_context(
        closing(Encrypted(fetching, lambda loop, lines: InProcess(forked, loop, lines.append)))
    )
    fetching.brings, fetching.close = elsewhere.brings, stack.close
    return elsewhere.wire


@pytest.fixture(params=[local, paced, wire, encrypted, moved_by_a_process])
def fetching(request: pytest.FixtureRequest) -> Iterator[Fetching]:
    fetching = Fetching(request.param)
    yield fetching
    fetching.close()


def test_each_fetch_ends_once(fetching: Fetching) -> None:
    fetching.push(0, 3)
    fetching.pull(1, 7)
    facts = fetching.all()
    assert [(type(fact), fact.worker) for fact in facts] == [(UpdateArrived, 0), (ParametersTaken, 1)]  # type: ignore[union-attr]
    assert fetching.over()


def test_ends_are_told_in_the_order_of_time(fetching: Fetching) -> None:
    for worker in range(4):
        fetching.push(worker, 0)
        fetching.pull(worker, 1)
        fetching.at += 0.125
    moments = [fact.at for fact in fetching.all()]
    assert (moments, len(moments)) == (sorted(moments), 8)


@pytest.mark.parametrize("make", [local, paced])
def test_a_group_is_gathered_once_and_nothing_need_happen_then(make: Callable[[Fetching], Fetcher]) -> None:
    fetching, ends = Fetching(make), list[float]()
    assert fetching.shaped is not None
    began = fetching.shaped.gather(5, (0, 1), ends.append)
    assert fetching.all() == []
    assert (began, len(ends)) == (0.0, 1)


def test_nothing_comes_of_what_a_worker_that_has_gone_was_fetching_and_of_nobody_elses(fetching: Fetching) -> None:
    fetching.pull(0, 7)
    fetching.pull(1, 7)
    before = list(fetching.facts)
    fetching.fetcher.cancel(0)
    fetching.fetcher.cancel(0)
    came = [(type(fact), fact.worker) for fact in fetching.all() if fact not in before]  # type: ignore[union-attr]
    assert came == ([] if before else [(ParametersTaken, 1)])


def test_a_fetch_may_begin_as_another_ends(fetching: Fetching) -> None:
    def then(at: float) -> None:
        fetching.pull(1, 8)
        fetching.pull(0, 7)

    fetching.fetcher.fetch(0, Version(7), then)
    assert sorted(fact.worker for fact in fetching.all()) == [0, 1]  # type: ignore[union-attr]
    assert fetching.over()


def test_cancelling_what_is_not_there_disturbs_nothing(fetching: Fetching) -> None:
    fetching.fetcher.cancel(2)
    fetching.push(0, 3)
    assert len(fetching.all()) == 1


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


# --- scripted faults: what lies on another host may not come


class Faulty(Fetching):
    """Workers 0 and 1 pull version 7, and worker 2 version 8: requests 1 and 2."""

    def __init__(self) -> None:
        super().__init__(local)
        self.there = Elsewhere(self)
        plane_of(self.there.carrier).connected(OTHER)
        self.fetcher = self.there.wire
        for worker, version in ((0, 7), (1, 7), (2, 8)):
            self.pull(worker, version)

    def taken(self) -> list[int]:
        """Who has what it has fetched."""
        return [fact.worker for fact in self.facts if isinstance(fact, ParametersTaken)]


@pytest.mark.parametrize("came", range(SIZE))
def test_a_connection_that_breaks_after_any_byte_and_comes_back_ends_each_fetch_once(came: int) -> None:
    faulty = Faulty()
    if came:
        faulty.there.comes(1, came)
    plane_of(faulty.there.carrier).disconnected(OTHER)
    assert not faulty.there.comes(1), "it came over the connection that is lost"
    plane_of(faulty.there.carrier).connected(OTHER)
    faulty.there.brings()
    assert faulty.taken() == [0, 1, 2]
    assert (faulty.there.lost, faulty.there.places) == ([], {})


def test_what_another_host_does_not_have_is_told_to_each_that_waits_and_to_nobody_else() -> None:
    faulty = Faulty()
    plane_of(faulty.there.carrier).refused(OTHER, 1, "it is not here any more")
    faulty.there.brings()
    assert faulty.there.lost == [(worker, f"{Version(7)} can't come: it is not here any more") for worker in (0, 1)]
    assert faulty.taken() == [2]
    faulty.fetcher.cancel(0)


def test_the_end_of_another_host_is_told_to_all_that_wait_and_to_those_that_come_later() -> None:
    faulty = Faulty()
    faulty.there.comes(1, 4)
    faulty.there.carrier.ended(OTHER.host, "silent for 15.0 s")
    faulty.pull(3, 9)
    assert [worker for worker, _ in faulty.there.lost] == [0, 1, 2, 3]
    assert (faulty.taken(), faulty.there.places) == ([], {})


def test_the_last_worker_to_leave_cancels_and_nothing_is_written_then() -> None:
    faulty = Faulty()
    faulty.there.comes(1, 4)
    faulty.fetcher.cancel(0)
    assert plane_of(faulty.there.carrier).memory(OTHER, 1) is not None
    faulty.fetcher.cancel(1)
    assert plane_of(faulty.there.carrier).memory(OTHER, 1) is None
    assert list(faulty.there.places) == [Version(8)]
    faulty.pull(1, 7)
    faulty.there.brings()
    assert (faulty.taken(), faulty.there.lost) == ([2, 1], [])
    assert faulty.there.carrier.pending() == []
