"""What goes to other hosts and to devices while it is being made, and that nothing depends on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import ANY, Mock, patch

import msgspec
import pytest

from paceline.core import shards
from paceline.core.facts import UpdateArrived
from paceline.core.items import Update
from paceline.core.orders import Release, StartPush
from paceline.core.shards import Shard
from paceline.host import version_streaming
from paceline.host.version_streaming import VersionStreaming
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages
from paceline.protocols import registry
from paceline.records.times import FetchTimes
from support import companies
from support.companies import Elsewhere, elsewhere
from support.run_state import OFFER

SIZE, QUARTER = 64, 16
FIRST = Update(0, 0)


@pytest.fixture(autouse=True)
def small_pieces() -> Iterator[None]:
    """A model of four pieces, each of which is asked for by itself."""
    offer = msgspec.structs.replace(OFFER, cuts=[*range(0, SIZE + 1, QUARTER)])
    with patch.object(companies, "OFFER", offer), patch.object(shards, "PIECE", QUARTER):
        yield


class Case:
    """A worker on another host than the store."""

    def __init__(self, protocol: str = "bsp", **given: int) -> None:
        self.company: Elsewhere = elsewhere(1, protocol, **given)
        self.company.carry_out(Release(worker=0, step=0, version=0, parameters="held"))

    def writes(self, value: int) -> None:
        """The worker has put these bytes of its gradient into the push area."""
        self.company.agent._host.items.view(FIRST).memory[:SIZE] = bytes([value]) * SIZE

    def tells(self, begin: int, end: int) -> None:
        self.company.crew.hear(0, messages.worker.Accumulated(0, begin, end))

    def at_store(self) -> bytes:
        """What the store's host has in the update's place."""
        return bytes(self.company.head.others.items.view(FIRST).memory[:SIZE])

    def laid(self) -> bool:
        return self.company.head.shelf.has(FIRST)

    def pushes(self) -> None:
        self.company.carry_out(StartPush(worker=0, step=0))

    def arrived(self) -> list[int]:
        """Steps of which a fact says that the store has them."""
        return [fact.step for fact in self.company.facts if isinstance(fact, UpdateArrived)]


def test_an_update_has_not_arrived_before_it_is_pushed_though_all_of_it_is_here() -> None:
    case = Case()
    case.writes(7)
    case.tells(0, SIZE)
    case.company.computed(0, 0)
    assert case.at_store() == bytes([7]) * SIZE
    assert (case.arrived(), case.company.reports.of(FetchTimes)) == ([], [])
    case.pushes()
    assert case.arrived() == [0]
    (fetch,) = case.company.reports.of(FetchTimes)
    assert (fetch.kind, fetch.worker, fetch.number) == ("update", 0, 0)


def test_an_update_is_asked_for_once_its_worker_computes() -> None:
    """Not as it is released: where hundreds are, asking would keep most of them waiting."""
    case = Case()
    case.writes(7)
    company = case.company
    company.computed(0, 0)
    case.pushes()
    company.orders(1, (0, 0))
    company.carry_out(Release(worker=0, step=1, version=1, parameters="pull"))
    assert not company.head.shelf.has(Update(0, 1))
    company.make()
    assert company.told[-1] == (0, messages.worker.Compute(1, 1, ANY, ANY, []))
    assert company.head.shelf.has(Update(0, 1))


@pytest.mark.parametrize("protocol", ["hsp", "ps-plus"])
def test_nothing_comes_early_where_pushes_wait_their_turn_or_updates_are_made_at_the_step(protocol: str) -> None:
    case = Case(protocol)
    assert not case.laid()


def test_workers_tell_of_gradients_where_others_make_versions_of_them() -> None:
    early = {name for name, spec in registry().items() if spec.brings_early}
    assert early == {"asp", "balanced", "bsp", "dssp", "quorum", "rennala", "ringmaster", "ssp", "sync-switch"}
    for protocol in ("bsp", "hsp"):
        company = elsewhere(1, protocol, trains=False)
        company.crew.hear(0, OFFER)
        company.host.admit(0, 0, 0.0)
        (begin,) = [message for _, message in company.told if isinstance(message, messages.worker.Begin)]
        assert begin.tells == (protocol == "bsp")


@pytest.mark.parametrize(("protocol", "tells"), [("bsp", False), ("asp", True)])
def test_workers_whose_updates_are_added_up_on_their_host_tell_nothing(protocol: str, tells: bool) -> None:
    host = elsewhere(2, protocol).agent._host
    assert host.tells == tells
    host.versions.shards = (Shard("node-1", 0, SIZE),)
    assert not host.tells, "no other host makes versions"


def test_of_an_update_nothing_is_brought_that_lies_behind_its_buffers() -> None:
    """Places are filled up to pages, which may be large."""
    company = elsewhere(1, "asp")
    several: Any = company.host
    assert several.others.items.ranges(FIRST)[-1] == ("node-1", SIZE, SIZE + OFFER.flags_bytes + OFFER.buffers_bytes)
    assert SIZE + OFFER.flags_bytes + OFFER.buffers_bytes < OFFER.push_bytes


# --- versions that come to devices while they are being made

VERSION, PLACE = 4, 2


class Devices:
    """Workers 0 and 1 on devices, worker 2 in memory."""

    def __init__(self) -> None:
        self.seats = {worker: WorkerState(worker, trains=True, accelerator=worker < 2) for worker in range(3)}
        self.told: list[tuple[int, Any]] = []
        shelf = Mock(place=lambda item: {VERSION: PLACE}[item.version])
        self.arrivals = VersionStreaming(shelf, self.seats, lambda worker, message: self.told.append((worker, message)))

    def ranges(self, worker: int) -> list[list[tuple[int, int]]]:
        assert all(isinstance(m, messages.worker.Arrives) and m.slot == PLACE for _, m in self.told)
        return [list(message.ranges) for to, message in self.told if to == worker]


@pytest.fixture(autouse=True)
def _ten_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_streaming, "TOLD", 10)


def test_a_worker_on_a_device_is_told_of_what_is_made_some_at_a_time() -> None:
    case = Devices()
    for worker in (0, 2):
        case.arrivals.waits(worker, VERSION)
    for piece in ((0, 6), (50, 56), (6, 12), (56, 60)):
        case.arrivals.made(VERSION, *piece)
    assert case.ranges(0) == [[(0, 6), (50, 56)], [(6, 12), (56, 60)]]
    assert case.ranges(1) == case.ranges(2) == []


def test_who_begins_to_wait_later_is_told_of_the_rest() -> None:
    case = Devices()
    case.arrivals.made(VERSION, 0, 30)
    case.arrivals.waits(1, VERSION)
    case.arrivals.made(VERSION, 30, 50)
    assert case.ranges(1) == [[(30, 50)]]


def test_nobody_is_told_of_a_version_that_is_whole_or_that_it_does_not_wait_for() -> None:
    case = Devices()
    case.arrivals.waits(0, VERSION)
    case.arrivals.made(VERSION - 1, 0, 30)
    case.arrivals.made(VERSION, 0, 9)
    case.arrivals.whole(VERSION)
    case.arrivals.made(VERSION, 9, 30)
    assert case.told == []


def test_what_was_made_of_one_version_is_not_told_of_the_next() -> None:
    case = Devices()
    case.arrivals.waits(0, VERSION - 1)
    case.arrivals.made(VERSION - 1, 0, 9)
    case.arrivals.whole(VERSION - 1)
    case.arrivals.waits(0, VERSION)
    case.arrivals.made(VERSION, 0, 9)
    assert case.told == []
    case.arrivals.made(VERSION, 9, 12)
    assert case.ranges(0) == [[(0, 9), (9, 12)]]
