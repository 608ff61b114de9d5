"""What a host fetches from others: who hears of it, also as what its plane tells crosses with what the host says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from paceline.core.items import Update
from paceline.ipc.memory import Span
from paceline.transfer.data_plane import DataPlane, Hear
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Brought, Connected, Lost, Peer, Settled
from support.planes import plane_of

OTHER, ITEM, OWNER, SECOND = Peer("b", 1), Update(1, 0), ("step", 1), ("step", 2)


class Case:
    """Host a, which fetches an item of eight bytes from host b. The test brings them."""

    def __init__(self, plane: Callable[[Hear], Any] = DataPlane) -> None:
        self.at = 1.0
        self.items: Any = Mock(ranges=lambda item: [("b", 0, 5), ("b", 5, 8)])
        self.items.lay.side_effect = lambda item, number: Span(memoryview(bytearray(8)))
        self.carrier = TransferManager("a", lambda: self.at, plane)
        self.carrier.meet(*OTHER)
        self.carrier.begins(0, self.items)
        self.arrived, self.lost = Mock(), Mock()

    def fetches(self, owner: tuple[str, int] = OWNER) -> None:
        self.carrier.fetch(ITEM, owner, self.arrived, self.lost)

    def comes(self, request: int, at: float) -> None:
        self.at = at
        there = plane_of(self.carrier).memory(OTHER, request)
        assert there is not None, "nobody wants it"
        plane_of(self.carrier).came(OTHER, request, there.nbytes)

    def noted(self) -> list[tuple[float, float, int]]:
        """When each fetch that was told of began and ended, and its bytes."""
        calls = [call.args[0] for call in self.items.fetched.call_args_list]
        return [(fetch.began, fetch.ended, fetch.bytes) for fetch in calls]


@pytest.fixture
def case() -> Case:
    """The two hosts are connected."""
    case = Case()
    plane_of(case.carrier).connected(OTHER)
    return case


def test_nobody_hears_of_what_is_expected_before_it_is_fetched(case: Case) -> None:
    case.carrier.expect(ITEM, OWNER)
    case.comes(1, 2.0)
    case.comes(2, 3.0)
    assert not case.items.fetched.called
    assert not case.items.free.called
    case.fetches()
    case.arrived.assert_called_once_with()
    case.items.free.assert_called_once_with(ITEM, True)
    assert case.noted() == [(2.0, 3.0, 8)], "it has begun with the first bytes"


def test_what_is_fetched_before_it_is_all_here_arrives_with_its_last_bytes(case: Case) -> None:
    case.carrier.expect(ITEM, OWNER)
    case.comes(1, 2.0)
    case.fetches()
    assert not case.arrived.called
    case.comes(2, 4.0)
    case.arrived.assert_called_once_with()
    assert case.noted() == [(2.0, 4.0, 8)]


@pytest.mark.parametrize("came", [0, 1, 2])
def test_what_is_cancelled_leaves_its_place_and_is_asked_for_once_more(case: Case, came: int) -> None:
    case.carrier.expect(ITEM, OWNER)
    for request in range(1, came + 1):
        case.comes(request, 2.0)
    case.carrier.cancel(OWNER)
    case.items.free.assert_called_once_with(ITEM, came == 2)
    case.fetches()
    for request in (3, 4):
        case.comes(request, 5.0)
    case.arrived.assert_called_once_with()
    assert case.noted() == [(2.0 if came else 1.0, 5.0, 8)], "it has begun as it was fetched"


@pytest.mark.parametrize("fetched_first", [True, False])
def test_only_who_fetches_an_item_hears_that_it_is_lost(case: Case, fetched_first: bool) -> None:
    case.carrier.expect(ITEM, OWNER)
    if fetched_first:
        case.fetches()
    case.carrier.ended("b", "it is silent")
    assert case.lost.called == fetched_first
    if not fetched_first:
        case.fetches()
    assert case.lost.call_count == 1


def test_an_item_is_asked_for_once_however_many_fetch_it_and_each_is_told_once(case: Case) -> None:
    told: list[int] = []

    def arrives(number: int) -> None:
        told.append(number)
        if number == 1:  # the item is here, and stays while others hear of it
            case.carrier.fetch(ITEM, ("late", 3), lambda: told.append(3), None)

    for number in (1, 2):
        case.carrier.fetch(ITEM, ("step", number), lambda number=number: arrives(number), None)  # type: ignore[misc]
    case.items.lay.assert_called_once()
    case.comes(1, 2.0)
    case.comes(2, 3.0)
    assert told == [1, 2, 3]
    case.items.free.assert_called_once_with(ITEM, True)
    assert case.carrier.pending() == []


def test_who_hears_that_an_item_is_here_may_cancel_for_those_that_are_not_told_yet(case: Case) -> None:
    case.arrived.side_effect = lambda: case.carrier.cancel(SECOND)
    second = Mock()
    case.fetches()
    case.carrier.fetch(ITEM, SECOND, second, second)
    case.comes(1, 2.0)
    case.comes(2, 3.0)
    assert (case.arrived.call_count, second.called) == (1, False)


def test_all_that_fetch_an_item_hear_that_it_is_lost_and_only_the_last_cancels(case: Case) -> None:
    lost: list[int] = []
    for number in (1, 2, 3):
        case.carrier.fetch(ITEM, ("step", number), case.arrived, lambda why, number=number: lost.append(number))  # type: ignore[misc]
    case.carrier.cancel(("step", 2))
    assert not case.items.free.called
    case.carrier.ended("b", "it is silent")
    case.items.free.assert_called_once_with(ITEM, False)
    assert (lost, case.carrier.pending()) == ([1, 3], [])


def test_whoever_hears_that_an_item_is_lost_may_cancel_another_that_is_lost_with_it(case: Case) -> None:
    case.lost.side_effect = lambda why: case.carrier.cancel(SECOND)
    second = Mock()
    case.fetches()
    case.carrier.fetch(Update(1, 1), SECOND, second, second)
    case.carrier.ended("b", "it is gone")
    case.lost.assert_called_once_with("it is gone")
    assert not second.called


def test_a_carrier_closes_though_an_error_has_left_orders_undone(case: Case) -> None:
    case.items.fetched.side_effect = OSError("no space left on device")
    case.fetches()
    case.comes(1, 2.0)
    with pytest.raises(OSError, match="no space"):
        case.comes(2, 3.0)
    case.carrier.close()
    plane_of(case.carrier).disconnected(OTHER)


# --- what a plane tells late, as one in a process does


class Late(Case):
    """Its plane does nothing, and the test says what it would tell."""

    def __init__(self) -> None:
        super().__init__(self._plane)
        self.tell(Connected(OTHER))

    def _plane(self, hear: Hear) -> Mock:
        self.tell = hear
        return Mock()


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_host_is_not_reached_that_refuses_what_somebody_waits_for_who_is_to_hear_of_no_loss(cancelled: bool) -> None:
    case = Late()
    case.fetches()
    if cancelled:
        case.carrier.cancel(OWNER)
    else:
        case.carrier.fetch(ITEM, SECOND, case.arrived, None)
    case.tell(Lost(0, "gone", "b"))
    assert case.carrier.reaches("b") == cancelled


def test_the_end_of_a_host_is_told_to_who_waits_before_the_plane_has_heard_of_it() -> None:
    case = Late()
    case.fetches()
    case.carrier.ended("b", "silent")
    case.lost.assert_called_once_with("silent")
    case.items.free.assert_called_once_with(ITEM, False)
    assert not case.items.settled.called, "late bytes may still come"
    case.tell(Brought(0, OTHER, 8, True))
    case.tell(Settled(0))
    case.items.settled.assert_called_once_with(0)
    assert not case.arrived.called


def test_an_item_of_a_host_that_has_ended_may_be_fetched_from_another_one_at_once() -> None:
    case = Late()
    case.fetches()
    case.carrier.ended("b", "silent")
    other = case.carrier.meet("c", 1)
    case.items.ranges = lambda item: [("c", 0, 8)]
    case.fetches(SECOND)
    for told in (Lost(0, "silent"), Settled(0), Brought(1, other, 8, True)):
        case.tell(told)
    case.arrived.assert_called_once_with()
