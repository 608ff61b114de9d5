"""Fetches between hosts, without a socket: what is asked for, what comes of it, and who hears of that.

The seeded world has long histories of them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock, call

import pytest

from paceline.core.items import Sum, Update, Version
from paceline.errors import MessageUnreadable
from paceline.ipc.memory import Span
from paceline.transfer import fetch_table as module
from paceline.transfer.byte_ranges import ByteRanges
from paceline.transfer.data_plane import DataPlane, Hear
from paceline.transfer.fetch_table import Ask, CancelRequest, FetchTable, Say, ServeTable, Stop
from paceline.transfer.item_names import fields_of
from paceline.transfer.manager import TransferManager
from paceline.transfer.messages import Asked, Brought, Connected, Lost, Named, Peer, Range, Refuse, Released, Settled
from support.planes import plane_of

B, B2, C = Peer("b", 1), Peer("b", 2), Peer("c", 1)
ONE, TWO, THREE = (Named(1, Version(number)) for number in (1, 2, 3))


def of(*peers: Peer, size: int = 100) -> tuple[Range, ...]:
    """The item lies in ranges of this size, one on each of these hosts, which may be named twice."""
    return tuple(Range(peer.host, peer.incarnation, size * at, size * (at + 1)) for at, peer in enumerate(peers))


def fetches(*connected: Peer) -> FetchTable:
    found = FetchTable()
    for peer in connected or (B, C):
        assert found.connected(peer) == []
    return found


@pytest.mark.parametrize("order", list(itertools.permutations([(B, 1, 0, 100), (C, 2, 100, 200), (B, 3, 200, 300)])))
def test_a_host_has_brought_an_item_once_the_last_of_its_ranges_is_here(
    order: list[tuple[Peer, int, int, int]],
) -> None:
    found = fetches()
    found.want(1, ONE, of(B, C, B))
    told = [found.arrived(*range) for range in order]
    last = {peer: at for at, (peer, *_) in enumerate(order)}
    for at, (peer, *_) in enumerate(order):
        brought = [Brought(1, peer, 200 if peer == B else 100, whole=at == 2)] if at == last[peer] else []
        assert told[at] == brought


def test_what_is_dropped_is_cancelled_and_what_comes_of_it_then_counts_for_nothing() -> None:
    found = fetches()
    found.want(1, ONE, of(B))
    assert found.drop(1) == [CancelRequest(B, 1)]
    assert found.drop(1) == []
    assert found.arrived(B, 1, 0, 100) == []
    assert found.refused(B, 1, "late") == []
    assert found.want(2, ONE, of(B)) == [Ask(B, 2, ONE, 0, 100)]


def test_after_a_reconnect_only_the_rest_is_asked_for() -> None:
    found = fetches()
    found.want(1, ONE, of(B))
    found.arrived(B, 1, 0, 60)
    found.disconnected(B)
    assert list(found.pending()) == [(1, "a connection to host b")]
    assert found.arrived(B, 1, 60, 100) == [], "it came over the connection that was lost"
    assert found.connected(B) == [Ask(B, 2, ONE, 60, 100)]
    assert found.connected(B) == [], "it is asked for already"
    assert list(found.pending()) == [(1, "bytes of host b")]
    assert found.arrived(B, 2, 60, 100) == [Brought(1, B, 100, whole=True)]


ENDS = {
    "the owner says so": (lambda found: found.refused(B, 1, "it was dropped"), "it was dropped", "b"),
    "the owner has ended": (lambda found: found.ended(B, "silent for 16.0 s"), "silent for 16.0 s", None),
    "the owner came again": (lambda found: found.connected(B2), "its host has come again", None),
    "the segment has ended": (lambda found: found.segment_began(2), "segment 1 has ended", None),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_cannot_come_any_more_is_lost(end: str) -> None:
    happen, why, refused_by = ENDS[end]
    found = fetches()
    found.want(1, ONE, of(B))
    found.want(2, Named(2, Version(1)), of(C))
    orders: list[Any] = happen(found)
    assert [one for one in orders if not isinstance(one, CancelRequest)] == [Lost(1, why, refused_by)]
    assert found.drop(1) == [], "it is not wanted any more"
    assert [number for number, _ in found.pending()] == [2]
    if end != "the owner says so":
        (lost,) = found.want(3, ONE, of(B))
        assert isinstance(lost, Lost), "it does not come later either"


def test_an_incarnation_that_has_ended_is_not_connected_again() -> None:
    found = fetches()
    found.ended(B, "gone")
    assert found.connected(B) == []
    assert found.want(1, ONE, of(B)) == [Lost(1, "incarnation 1 of host b has ended")]
    assert found.want(2, TWO, of(B2)) == []
    assert found.connected(B2) == [Ask(B2, 1, TWO, 0, 100)]
    assert found.connected(B) == []
    assert found.want(3, THREE, of(B2)) == [Ask(B2, 2, THREE, 0, 100)]


@pytest.mark.parametrize(("begin", "end"), [(0, 10), (20, 30), (10, 101), (10, 10), (10, 5)])
def test_bytes_that_are_not_the_next_ones_are_refused(begin: int, end: int) -> None:
    found = fetches()
    found.want(1, ONE, of(B))
    found.arrived(B, 1, 0, 10)
    with pytest.raises(MessageUnreadable, match="10 to 100 are missing"):
        found.arrived(B, 1, begin, end)


def test_an_answer_to_what_was_never_asked_is_refused() -> None:
    found = fetches()
    found.want(1, ONE, of(B))
    for answer in (found.missing, lambda *of: found.arrived(*of, 0, 1), lambda *of: found.refused(*of, "no")):
        with pytest.raises(MessageUnreadable, match="request 2 is answered, and there were 1"):
            answer(B, 2)


# --- serving ------------------------------------------------------------------------------------------


def serves() -> ServeTable:
    found = ServeTable()
    assert found.segment_began(1) == []
    return found


def test_what_is_asked_for_is_sent_once_it_is_here_and_released_at_its_end() -> None:
    found = serves()
    assert found.asked(B, 7, ONE, 0, 100) == [Asked(0, ONE, 0, 100)]
    assert found.asked(C, 7, ONE, 50, 100) == [Asked(1, ONE, 50, 100)]
    assert (found.send(0), found.send(1)) == ((B, 7), (C, 7))
    assert found.sent(B, 7) == [Released(0)]
    assert found.sent(B, 7) == found.cancelled(B, 7) == []
    assert found.send(0) is None


def test_what_will_not_be_here_is_said_once() -> None:
    found = serves()
    found.asked(B, 7, ONE, 0, 100)
    assert found.refuse(0, "worker 2 has died") == [Say(B, 7, "worker 2 has died")]
    assert found.refuse(0, "again") == found.cancelled(B, 7) == found.disconnected(B) == []


@pytest.mark.parametrize("end", ["cancelled", "disconnected"])
@pytest.mark.parametrize("sends", [False, True])
def test_a_request_that_ends_is_released_and_no_others(end: str, sends: bool) -> None:
    found = serves()
    found.asked(B, 7, ONE, 0, 100)
    found.asked(C, 7, ONE, 0, 100)
    if sends:
        found.send(0)
    orders = found.cancelled(B, 7) if end == "cancelled" else found.disconnected(B)
    if sends and end == "cancelled":
        assert orders == [Stop(B, 7)], "its last bytes may wait to be written"
        assert found.cancelled(B, 7) == []
        assert found.sent(B, 7) == [Released(0)]
    else:
        assert orders == [Released(0)]
    assert found.send(1) == (C, 7)


def test_a_host_asks_for_so_much_at_a_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ASKED", 2)
    found = serves()
    found.asked(B, 7, ONE, 0, 50)
    found.asked(B, 8, ONE, 50, 100)
    assert found.asked(C, 7, ONE, 0, 50)
    with pytest.raises(MessageUnreadable, match="more than 2 items"):
        found.asked(B, 9, TWO, 0, 100)
    found.cancelled(B, 7)
    assert found.asked(B, 9, TWO, 0, 100)


def test_the_next_segment_ends_requests_of_the_last_and_offers_those_that_came_early() -> None:
    found, later = serves(), Named(2, Version(1))
    assert found.asked(B, 7, later, 0, 100) == [], "that name is another item's before"
    assert found.cancelled(B, 7) == found.asked(B, 8, later, 0, 100) == []
    assert found.asked(C, 7, TWO, 0, 100) == [Asked(0, TWO, 0, 100)]
    assert found.segment_began(2) == [
        *(Released(0), Say(C, 7, "its segment has ended")),
        Asked(1, later, 0, 100),
    ]
    assert found.asked(C, 8, ONE, 0, 100) == [Say(C, 8, "segment 1 has ended")]


@pytest.mark.parametrize(("request_", "begin", "end"), [(7, 0, 100), (8, 5, 5), (8, 6, 5)])
def test_a_request_for_nothing_or_that_came_before_is_refused(request_: int, begin: int, end: int) -> None:
    found = serves()
    found.asked(B, 7, ONE, 0, 100)
    with pytest.raises(MessageUnreadable, match="is empty, or came before"):
        found.asked(B, request_, ONE, begin, end)


# --- which bytes are there


def test_bytes_are_there_once_all_of_them_were_added_in_any_order() -> None:
    lots = random.Random(0)
    for _ in range(200):
        there, coverage = set[int](), ByteRanges()
        for _ in range(8):
            begin = lots.randrange(30)
            end = begin + lots.randrange(1, 9)
            coverage.add(begin, end)
            there |= set(range(begin, end))
            for first in range(40):
                for last in range(first + 1, 40):
                    assert coverage.has(first, last) == (set(range(first, last)) <= there)
        coverage.clear()
        assert not coverage.has(0, 1)


# --- who hears of what is fetched

OTHER, ITEM, SUM, OWNER, SECOND = Peer("b", 1), Update(1, 0), Sum(0), ("step", 1), ("step", 2)


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


def test_an_item_that_no_other_host_has_a_part_of_is_there_once_its_place_is() -> None:
    case = Case()
    case.items.ranges = lambda item: []
    case.fetches()
    case.arrived.assert_called_once_with()
    assert [one[0] for one in case.items.mock_calls] == ["lay", "free", "settled"]
    case.items.free.assert_called_once_with(ITEM, True)
    assert (case.noted(), case.carrier.pending()) == ([], [])


def test_what_is_cancelled_before_its_turn_has_no_place(case: Case) -> None:
    """Who was to lay it out may know nothing of it by then."""

    def arrived() -> None:
        case.carrier.fetch(SUM, SECOND, Mock(), Mock())
        case.carrier.cancel(SECOND)

    case.carrier.fetch(ITEM, OWNER, arrived, case.lost)
    for request in (1, 2):
        case.comes(request, 2.0)
    assert [call.args[0] for call in case.items.lay.call_args_list] == [ITEM]
    assert case.carrier.pending() == []
    assert [call.args[0] for call in case.items.settled.call_args_list] == [0, 1]


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


def test_all_that_fetch_an_item_hear_that_it_is_lost_and_only_the_last_cancels(case: Case) -> None:
    lost: list[int] = []
    for number in (1, 2, 3):
        case.carrier.fetch(ITEM, ("step", number), case.arrived, lambda why, number=number: lost.append(number))  # type: ignore[misc]
    case.carrier.cancel(("step", 2))
    assert not case.items.free.called
    case.carrier.ended("b", "it is silent")
    case.items.free.assert_called_once_with(ITEM, False)
    assert (lost, case.carrier.pending()) == ([1, 3], [])


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
        self.tell, self.plane = hear, Mock()
        return self.plane


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


def test_an_item_of_another_size_than_is_asked_for_is_refused() -> None:
    case = Late()
    case.items.look.return_value, case.items.view.return_value = "here", Span(memoryview(bytearray(8)))
    case.tell(Asked(0, Named(0, fields_of(ITEM)), 0, 16))
    assert case.plane.tell.call_args == call(Refuse(0, f"{ITEM} has 8 bytes here, and 16 were asked for"))
