"""What a plane says that crosses with what its host says, as the messages of a process do."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, call

from paceline.core.items import Version
from paceline.transfer.data_plane import Hear
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Brought, Connected, Lost, Settled

ITEM, OWNER, OTHER = Version(1), ("step", 1), ("step", 2)


class Case:
    """Host a, which fetches an item of host b. Its plane does nothing, and the test says what it would."""

    def __init__(self) -> None:
        self.plane, self.items = Mock(), Mock()
        self.items.ranges.return_value = [("b", 0, 8)]
        self.carrier = TransferManager("a", lambda: 1.0, self._plane)
        self.peer = self.carrier.meet("b", 1)
        self.carrier.begins(0, self.items)
        self.tell(Connected(self.peer))
        self.arrived, self.lost = Mock(), Mock()

    def _plane(self, hear: Hear) -> Mock:
        self.tell = hear
        return self.plane

    def fetch(self, owner: Any = OWNER, lost: Any = None) -> None:
        self.carrier.fetch(ITEM, owner, self.arrived, lost)


def test_a_host_is_reached_that_refuses_what_nobody_waits_for_any_more() -> None:
    case = Case()
    case.fetch()
    case.carrier.cancel(OWNER)
    case.tell(Lost(0, "gone", "b"))
    assert case.carrier.reaches("b")


def test_a_host_is_not_reached_that_refuses_what_somebody_has_joined_meanwhile() -> None:
    case = Case()
    case.fetch(lost=case.lost)
    case.fetch(OTHER)
    case.tell(Lost(0, "gone", "b"))
    assert not case.carrier.reaches("b")


def test_the_end_of_a_host_is_told_to_who_waits_before_the_plane_has_heard_of_it() -> None:
    case = Case()
    case.fetch(lost=case.lost)
    case.carrier.ended("b", "silent")
    case.lost.assert_called_once_with("silent")
    assert case.items.mock_calls[-1] == call.free(ITEM, False), "late bytes may still come"
    case.tell(Brought(0, case.peer, 8, True))
    case.tell(Settled(0))
    assert case.items.mock_calls[-1] == call.settled(0)
    assert not case.arrived.called


def test_an_item_of_a_host_that_has_ended_may_be_fetched_from_another_one_at_once() -> None:
    case = Case()
    case.fetch(lost=case.lost)
    case.carrier.ended("b", "silent")
    case.carrier.meet("c", 1)
    case.items.ranges.return_value = [("c", 0, 8)]
    case.fetch(OTHER)
    case.tell(Lost(0, "silent"))
    case.tell(Settled(0))
    case.tell(Brought(1, case.carrier.meet("c", 1), 8, True))
    case.arrived.assert_called_once_with()
