"""Fetches between hosts, by tables of what happens. The seeded world has long histories of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from paceline.core.items import Version
from paceline.errors import MessageUnreadable
from paceline.transfer import fetch_table as module
from paceline.transfer.fetch_table import Ask, CancelRequest, FetchTable, Missing, Say, ServeTable, Stop
from paceline.transfer.messages import Asked, Brought, Lost, Named, Peer, Range, Released

B, B2, C = Peer("b", 1), Peer("b", 2), Peer("c", 1)
ONE, TWO, THREE = (Named(1, Version(number)) for number in (1, 2, 3))
FIRST, SECOND = ("step", 0), ("step", 1)


def of(*peers: Peer, size: int = 100) -> tuple[Range, ...]:
    """The item lies in ranges of this size, one on each of these hosts, which may be named twice."""
    return tuple(Range(peer.host, peer.incarnation, size * at, size * (at + 1)) for at, peer in enumerate(peers))


def fetches(*connected: Peer) -> FetchTable:
    found = FetchTable()
    for peer in connected or (B, C):
        assert found.connected(peer) == []
    return found


def test_what_is_wanted_arrives_once_all_of_it_has_come_and_is_not_lost_then() -> None:
    found = fetches()
    assert found.want(1, ONE, of(B)) == [Ask(B, 1, ONE, 0, 100)]
    assert found.arrived(B, 1, 0, 60) == []
    assert found.arrived(B, 1, 60, 100) == [Brought(1, B, 100, whole=True)]
    assert found.ended(B, "gone") == found.segment_began(2) == found.drop(1) == []


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


def test_what_a_host_has_brought_is_told_again_only_if_the_item_is_asked_for_again() -> None:
    found = fetches()
    found.want(1, ONE, of(B, C))
    assert found.arrived(B, 1, 0, 100) == [Brought(1, B, 100, whole=False)]
    found.disconnected(B)
    assert found.connected(B) == []
    found.drop(1)
    assert found.want(1, ONE, of(B, C)) == [Ask(B, 3, ONE, 0, 100), Ask(C, 4, ONE, 100, 200)]
    assert found.arrived(B, 3, 0, 100) == [Brought(1, B, 100, whole=False)]


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


def test_one_range_that_is_lost_cancels_the_others() -> None:
    found = fetches()
    found.want(1, ONE, of(B, C))
    assert found.ended(B, "gone") == [
        CancelRequest(B, 1),
        CancelRequest(C, 2),
        Lost(1, "gone"),
    ]


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


def test_bytes_of_another_host_than_was_asked_count_for_nothing() -> None:
    found = fetches()
    found.want(1, ONE, of(B))
    assert found.arrived(C, 1, 0, 100) == found.arrived(B2, 1, 0, 100) == found.refused(C, 1, "no") == []
    assert found.missing(C, 1) is None


def test_what_has_not_come_is_known_until_it_has_or_nobody_wants_it() -> None:
    found = fetches()
    found.want(1, ONE, of(B))
    found.want(2, TWO, of(B))
    found.arrived(B, 1, 0, 10)
    assert found.missing(B, 1) == Missing(1, 10, 100)
    found.arrived(B, 1, 10, 100)
    found.drop(2)
    assert found.missing(B, 1) is found.missing(B, 2) is None


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


def test_what_was_stopped_is_released_as_its_connection_breaks() -> None:
    found = serves()
    found.asked(B, 7, ONE, 0, 100)
    found.send(0)
    assert found.segment_began(2) == [Stop(B, 7), Say(B, 7, "its segment has ended")]
    assert found.segment_began(3) == []
    assert found.disconnected(B) == [Released(0)]


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
