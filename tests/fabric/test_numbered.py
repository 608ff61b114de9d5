"""Numbered messages: each is delivered once, in order, whatever becomes of the connections."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from paceline.errors import MessageUnreadable
from paceline.ipc.endpoint import Frames
from paceline.net import numbered
from paceline.net.numbered import Acknowledged, Beat, BeatHeard, Data, Full, Line, NeverReadable


class Number(msgspec.Struct, tag=True, array_like=True):
    value: int


class Text(msgspec.Struct, tag=True, array_like=True):
    value: str


def frames(data: bytes) -> list[Any]:
    """What these bytes are."""
    decoder = msgspec.msgpack.Decoder(Data | Acknowledged | Beat | BeatHeard)
    return [decoder.decode(body) for body in Frames().receive(data)]


def sent(line: Line, *values: int) -> list[Any]:
    return [frames(line.send(Number(value)))[0] for value in values]


def taken(line: Line, data: list[Any], now: float = 0.0) -> list[int]:
    found = [line.take(one, now) for one in data]
    return [message.value for message in found if message is not None]


def test_messages_are_taken_in_order_and_a_second_time_not_at_all() -> None:
    here, there = Line(Number), Line(Number)
    data = sent(here, 7, 8, 9)
    assert [one.number for one in data] == [1, 2, 3]
    assert taken(there, [data[0], data[0], data[1], data[0], data[2], data[1]]) == [7, 8, 9]
    assert there.received == 3


def test_a_message_after_a_missing_one_is_not_taken() -> None:
    here, there = Line(Number), Line(Number)
    first, _, third = sent(here, 7, 8, 9)
    assert taken(there, [first]) == [7]
    with pytest.raises(MessageUnreadable, match=r"message 3 came after message 1"):
        there.take(third, 0.0)
    assert there.received == 1


def test_after_a_reconnect_what_was_not_received_is_sent_again() -> None:
    here = Line(Number)
    sent(here, 7, 8, 9, 10)
    here.acknowledged(1)
    assert [one.number for one in frames(here.again(2))] == [3, 4]
    assert [one.number for one in frames(here.again(2))] == [3, 4]
    assert here.again(4) == b""
    assert here.unacknowledged == 0


@pytest.mark.parametrize(("received", "why"), [(0, "forgotten"), (4, r"acknowledges 4 messages, and was sent 3")])
def test_an_end_that_has_lost_its_memory_is_not_gone_on_with(received: int, why: str) -> None:
    here = Line(Number)
    sent(here, 7, 8, 9)
    here.acknowledged(1)
    with pytest.raises(NeverReadable, match=why):
        here.again(received)


def test_every_frame_acknowledges_and_so_none_is_owed_after_it() -> None:
    for send in (lambda there: there.send(Number(0)), lambda there: there.beat(1), lambda there: there.beat_heard(1)):
        here, there = Line(Number), Line(Number)
        taken(there, sent(here, 7, 8), now=5.0)
        assert there.acknowledge_at == 5.0 + numbered.ACKNOWLEDGE_WITHIN
        (frame,) = frames(send(there))
        assert frame.received == 2
        assert there.acknowledge_at is None


def test_many_messages_are_acknowledged_at_once_and_so_are_those_that_came_again() -> None:
    here, there = Line(Number), Line(Number)
    data = sent(here, *range(numbered.ACKNOWLEDGE_AFTER - 1))
    taken(there, data, now=5.0)
    assert there.acknowledge_at == 5.0 + numbered.ACKNOWLEDGE_WITHIN
    taken(there, data[:1], now=5.01)
    assert there.acknowledge_at == 5.0
    assert frames(there.acknowledgement()) == [Acknowledged(len(data))]


def test_what_is_acknowledged_is_not_kept_and_only_what_was_sent_can_be() -> None:
    here = Line(Number)
    sent(here, 7, 8, 9)
    here.acknowledged(2)
    here.acknowledged(1)  # an older connection's
    assert here.unacknowledged == 1
    with pytest.raises(MessageUnreadable, match="acknowledges 4 messages, and was sent 3"):
        here.acknowledged(4)


def test_only_so_many_messages_and_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered, "MOST_MESSAGES", 2)
    here = Line(Text)
    here.send(Text("a"))
    here.send(Text("b"))
    with pytest.raises(Full, match=r"2 messages of .* bytes are not acknowledged"):
        here.send(Text("c"))
    here.acknowledged(1)
    monkeypatch.setattr(numbered, "MOST_KEPT", 100)
    with pytest.raises(Full):
        here.send(Text("c" * 100))
    here.send(Text("c"))
    here.acknowledged(3)
    here.send(Text("d" * 80))


def test_a_message_that_may_not_come_would_come_again_so_there_is_no_way_on() -> None:
    here, there = Line(Number), Line(Number)
    (data,) = frames(here.send(Text("a")))
    with pytest.raises(NeverReadable):
        there.take(data, 0.0)
    assert there.received == 0
