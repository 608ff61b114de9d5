"""What a carrier brings of an item that is only expected: nobody hears of it before it is fetched."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from paceline.core.items import Update
from paceline.ipc.memory import Span
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Peer
from support.planes import plane_of

OTHER, ITEM, OWNER = Peer("b", 1), Update(1, 0), ("for the store", 1)


class Case:
    """Host a, which has asked host b for an item of eight bytes. The test brings them."""

    def __init__(self) -> None:
        self.at = 1.0
        self.items: Any = Mock(ranges=lambda item: [("b", 0, 5), ("b", 5, 8)])
        self.items.lay.side_effect = lambda item, number: Span(memoryview(bytearray(8)))
        self.carrier = TransferManager("a", lambda: self.at)
        self.carrier.meet(*OTHER)
        self.carrier.begins(0, self.items)
        plane_of(self.carrier).connected(OTHER)
        self.arrived, self.lost = Mock(), Mock()

    def comes(self, request: int, at: float) -> None:
        self.at = at
        there = plane_of(self.carrier).memory(OTHER, request)
        assert there is not None, "nobody wants it"
        plane_of(self.carrier).came(OTHER, request, there.nbytes)

    def fetches(self) -> None:
        self.carrier.fetch(ITEM, OWNER, self.arrived, self.lost)

    def noted(self) -> list[tuple[float, float, int]]:
        """When each fetch that was told of began and ended, and its bytes."""
        calls = [call.args[0] for call in self.items.fetched.call_args_list]
        return [(fetch.began, fetch.ended, fetch.bytes) for fetch in calls]


def test_nobody_hears_of_what_is_expected_before_it_is_fetched() -> None:
    case = Case()
    case.carrier.expect(ITEM, OWNER)
    case.comes(1, 2.0)
    case.comes(2, 3.0)
    assert not case.items.fetched.called
    assert not case.items.free.called
    case.fetches()
    case.arrived.assert_called_once_with()
    case.items.free.assert_called_once_with(ITEM, True)
    assert case.noted() == [(2.0, 3.0, 8)], "it has begun with the first bytes"


def test_what_is_fetched_before_it_is_all_here_arrives_with_its_last_bytes() -> None:
    case = Case()
    case.carrier.expect(ITEM, OWNER)
    case.comes(1, 2.0)
    case.fetches()
    assert not case.arrived.called
    case.comes(2, 4.0)
    case.arrived.assert_called_once_with()
    assert case.noted() == [(2.0, 4.0, 8)]


@pytest.mark.parametrize("came", [0, 1, 2])
def test_what_is_cancelled_leaves_its_place_and_is_asked_for_once_more(came: int) -> None:
    case = Case()
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


def test_only_who_fetches_an_item_hears_that_it_is_lost() -> None:
    case = Case()
    case.carrier.expect(ITEM, OWNER)
    case.carrier.ended("b", "it is silent")
    case.fetches()
    assert case.lost.call_count == 1
    other = Case()
    other.carrier.expect(ITEM, OWNER)
    other.fetches()
    other.carrier.ended("b", "it is silent")
    other.lost.assert_called_once_with("it is silent")


def test_an_item_is_asked_for_once_however_many_fetch_it_and_each_is_told_once() -> None:
    case = Case()
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


def test_all_that_fetch_an_item_hear_that_it_is_lost_and_only_the_last_cancels() -> None:
    case = Case()
    lost: list[int] = []
    for number in (1, 2, 3):
        case.carrier.fetch(ITEM, ("step", number), case.arrived, lambda why, number=number: lost.append(number))  # type: ignore[misc]
    case.carrier.cancel(("step", 2))
    assert not case.items.free.called
    case.carrier.ended("b", "it is silent")
    case.items.free.assert_called_once_with(ITEM, False)
    assert (lost, case.carrier.pending()) == ([1, 3], [])


def test_whoever_hears_that_an_item_is_lost_may_cancel_another_that_is_lost_with_it() -> None:
    case = Case()
    case.lost.side_effect = lambda why: case.carrier.cancel(("second", 1))
    second = Mock()
    case.fetches()
    case.carrier.fetch(Update(1, 1), ("second", 1), second, second)
    case.carrier.ended("b", "it is gone")
    case.lost.assert_called_once_with("it is gone")
    assert not second.called


def test_a_carrier_closes_though_an_error_has_left_orders_undone() -> None:
    case = Case()
    case.items.fetched.side_effect = OSError("no space left on device")
    case.fetches()
    case.comes(1, 2.0)
    with pytest.raises(OSError, match="no space"):
        case.comes(2, 3.0)
    case.carrier.close()
    plane_of(case.carrier).disconnected(OTHER)
