"""Control between hosts: what both ends do, by tables."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from paceline.ipc.endpoint import LENGTH, Frames, framed
from paceline.net import control, numbered
from paceline.net.control import (
    HANDSHAKE,
    BeatAcknowledged,
    Close,
    Delivered,
    DialHead,
    HeadEnd,
    HeardFrom,
    Hello,
    HostCame,
    HostConnected,
    HostDisconnected,
    HostEnd,
    IncarnationEnded,
    Outcome,
    Refused,
    Write,
)
from paceline.net.numbered import Acknowledged, Beat, BeatHeard, Data, written


class Order(msgspec.Struct, tag=True, array_like=True):
    value: int


class Told(msgspec.Struct, tag=True, array_like=True):
    value: int
    load: bytes = b""


def host_end(nonce: bytes = b"1") -> HostEnd:
    return HostEnd("b", nonce, Order, timeout=15.0)


def head_end() -> HeadEnd:
    return HeadEnd("a", b"head", Told)


def frames(data: bytes) -> list[Any]:
    kinds = Hello | Refused | Data | Acknowledged | Beat | BeatHeard
    return [msgspec.msgpack.decode(body, type=kinds) for body in Frames().receive(data)]


def data_of(outcome: Outcome) -> bytes:
    return b"".join(one.data for one in outcome if isinstance(one, Write))


def events(outcome: Outcome) -> Outcome:
    return [one for one in outcome if not isinstance(one, Write | DialHead | HeardFrom)]


def values(outcome: Outcome) -> list[int]:
    return [one.message.value for one in outcome if isinstance(one, Delivered)]


class Two:
    """A host and the head, and one connection at a time, over which bytes pass at once."""

    def __init__(self, host: HostEnd | None = None, head: HeadEnd | None = None, before: int = 0, **given: int) -> None:
        """`before`: connections that the head has had. `given`: with which hosts are admitted."""
        self.given = given
        self.host, self.head = host or host_end(), head or head_end()
        self.before = before
        self.now = 0.0
        self.connection: int | None = None
        """Its number at the host."""
        self.incarnation = 0
        self.at_host: Outcome = []
        self.at_head: Outcome = []
        """What happened there, without writes."""

    def connect(self) -> Two:
        """Dial, and let both say hello."""
        (dial,) = self.host.tick(self.now)
        assert isinstance(dial, DialHead)
        self.connection = dial.connection
        self.on_head(self.head.connected(self.before + dial.connection, self.now))
        self.on_host(self.host.connected(dial.connection, self.now))
        return self

    def cut(self) -> Two:
        """Both ends hear that the connection is lost. The host will soon dial again."""
        assert self.connection is not None
        connection, self.connection = self.connection, None
        self.on_head(self.head.lost(self.before + connection, "reset", self.now))
        self.on_host(self.host.lost(connection, "reset", self.now))
        self.now += 1.0
        return self

    def on_host(self, outcome: Outcome) -> None:
        """See to what the host's end returned."""
        self.at_host += events(outcome)
        data = data_of(outcome)
        if data and self.connection is not None:
            self.on_head(self.head.received(self.before + self.connection, data, self.now))

    def on_head(self, outcome: Outcome) -> None:
        """See to what the head's end returned. Whoever comes is admitted."""
        self.at_head += events(outcome)
        for one in [one for one in outcome if isinstance(one, HostCame)]:
            self.incarnation += 1
            outcome = outcome + self.head.admit(one.connection, self.incarnation, self.now, **self.given)
        self.at_head += [one for one in outcome if isinstance(one, HostConnected) and one not in self.at_head]
        data = data_of(outcome)
        if data and self.connection is not None:
            self.on_host(self.host.received(self.connection, data, self.now))

    def tell(self, *numbers: int) -> None:
        for number in numbers:
            self.on_host(self.host.send(Told(number), self.now))

    def order(self, *numbers: int) -> None:
        for number in numbers:
            self.on_head(self.head.send("b", self.incarnation, Order(number), self.now))


def test_a_host_dials_says_hello_and_is_given_an_incarnation() -> None:
    two = Two().connect()
    assert two.at_head == [HostCame(1, "b"), HostConnected("b", 1)]
    assert two.at_host == [BeatAcknowledged(0.0), HostConnected("b", 1), BeatAcknowledged(0.0)]
    assert two.host.incarnation == 1


def test_messages_arrive_once_and_in_order_over_whichever_connection_is_there_next() -> None:
    two = Two()
    two.tell(1)
    two.connect()
    two.tell(2)
    two.order(3)
    two.host.send(Told(4), 0.0)  # these bytes never arrive
    two.head.send("b", 1, Order(5), 0.0)
    two.cut()
    two.tell(6)
    two.order(7)
    two.connect().cut().connect()
    two.tell(8)
    assert values(two.at_head) == [1, 2, 4, 6, 8]
    assert values(two.at_host) == [3, 5, 7]
    assert two.incarnation == 1
    assert [type(one) for one in two.at_host if not isinstance(one, Delivered | BeatAcknowledged)] == [
        *(HostConnected, HostDisconnected, HostConnected, HostDisconnected, HostConnected),
    ]


def test_a_message_may_be_as_long_as_it_says_once_hosts_have_met() -> None:
    two = Two().connect()
    about = len(msgspec.msgpack.encode(Told(0, b"x" * 100_000))) - 100_000
    two.on_host(two.host.send(Told(0, b"x" * (numbered.LONGEST_SAID - about)), 0.0))
    assert values(two.at_head) == [0]
    with pytest.raises(ValueError, match="a Told has 4,194,305 bytes, and may have 4,194,304"):
        two.host.send(Told(1, b"x" * (numbered.LONGEST_SAID - about + 1)), 0.0)
    two.tell(2)
    assert values(two.at_head) == [0, 2]


def test_a_host_that_takes_no_part_yet_may_say_little_and_more_once_it_does() -> None:
    two = Two(most=numbered.LONGEST_OF_NEWCOMERS).connect()
    long = Told(0, b"x" * 2 * numbered.LONGEST_OF_NEWCOMERS)
    two.head.takes_part("b")
    two.on_host(two.host.send(long, 0.0))
    assert values(two.at_head) == [0]
    two = Two(most=numbered.LONGEST_OF_NEWCOMERS).connect()
    two.on_host(two.host.send(long, 0.0))
    assert values(two.at_head) == []
    assert any(isinstance(one, Close) and "and may have 65,600" in one.why for one in two.at_head)


def test_acknowledgements_go_out_soon_if_nothing_else_does() -> None:
    two = Two().connect()
    two.tell(1)
    two.order(2)
    assert two.host.unacknowledged == 0, "the order acknowledges"
    assert two.head.unacknowledged("b") == 1
    due = two.host.due()
    assert due == numbered.ACKNOWLEDGE_WITHIN
    two.on_host(two.host.tick(due))
    assert two.head.unacknowledged("b") == 0
    two.tell(3)
    due = two.head.due()
    assert due == numbered.ACKNOWLEDGE_WITHIN
    two.on_head(two.head.tick(due))
    assert two.host.unacknowledged == 0


def test_a_host_beats_every_fifth_of_its_timeout_and_learns_which_beats_were_heard() -> None:
    two = Two().connect()
    for beat in range(1, 4):
        assert two.host.due() == pytest.approx(3.0 * beat)
        two.now = 3.0 * beat
        two.on_host(two.host.tick(two.now))
    assert two.at_host[2:] == [BeatAcknowledged(sent) for sent in (0.0, 3.0, 6.0, 9.0)]


def test_a_host_beats_by_the_timeout_that_the_head_tells_it_from_then_on() -> None:
    two = Two().connect()
    two.now = 0.5
    two.on_host(two.host.goes_by(1.0, two.now))
    assert two.at_host[-1] == BeatAcknowledged(0.5)
    assert two.host.due() == pytest.approx(0.7)
    assert host_end().goes_by(1.0, 0.0) == []  # nobody is there that could hear it


def test_whatever_a_host_sends_shows_that_it_is_heard_and_a_message_is_read_once_it_is_whole() -> None:
    two = Two().connect()
    data = data_of(two.host.send(Told(1), 0.0))
    assert two.head.received(1, data[:3], 0.0) == [HeardFrom("b", 1)]
    assert two.head.received(1, data[3:], 0.0) == [HeardFrom("b", 1), Delivered("b", 1, Told(1))]


def test_a_host_dials_again_once_the_head_is_silent_for_three_beats() -> None:
    two = Two().connect()
    two.host.tick(3.0)
    two.host.tick(6.0)
    assert two.host.due() == pytest.approx(9.0)
    assert events(two.host.tick(8.9)) == []
    assert two.host.tick(9.0) == [
        Close(1, ""),
        HostDisconnected("b", 1, "the head has been silent for 9.0 s"),
    ]
    assert two.host.tick(10.0) == [DialHead(2)]


def test_a_newer_connection_replaces_the_older_one_which_brings_nothing_any_more() -> None:
    two = Two().connect()
    late = data_of(two.host.send(Told(1), 0.0))
    two.host.lost(1, "reset", 0.0)
    two.now = 1.0
    two.connect()
    assert two.at_head[2:] == [
        *(Close(1, ""), HostDisconnected("b", 1, "a newer connection has replaced it"), HostConnected("b", 1)),
        Delivered("b", 1, Told(1)),
    ]
    assert two.head.received(1, late, 1.0) == []
    assert two.head.lost(1, "reset", 1.0) == []


def test_a_number_used_by_another_process_is_no_way_in() -> None:
    """A head that begins anew gives the same numbers as the one before."""
    two = Two().connect()
    another = Two(host_end(nonce=b"2"), two.head, before=1)
    another.host.incarnation = 1
    another.connect()
    assert isinstance(another.at_host[-1], IncarnationEnded)
    two.tell(1)
    assert values(two.at_head) == [1]


@pytest.mark.parametrize("incarnation", [2, 7])
def test_a_host_is_only_the_incarnation_that_it_was_given(incarnation: int) -> None:
    two = Two().connect()
    two.head.connected(2, 0.0)
    outcome = two.head.received(2, hello(nonce=b"1", incarnation=incarnation), 0.0)
    assert isinstance(frames(data_of(outcome))[0], Refused)
    assert two.head.end("b", incarnation, "another") == []
    two.tell(1)
    assert values(two.at_head) == [1]


@pytest.mark.parametrize("incarnation", [0, 2])
def test_a_head_that_takes_a_host_for_another_incarnation_is_left(incarnation: int) -> None:
    two = Two().connect().cut()
    two.host.tick(two.now)
    two.host.connected(2, two.now)
    found = two.host.received(2, hello(incarnation=incarnation), two.now)
    why = f"the head takes incarnation 1 of this host for {incarnation}"
    assert found == [Close(2, why), IncarnationEnded("b", 1, why)]


def test_a_host_that_is_refused_is_told_why_and_dials_no_more() -> None:
    two = Two()
    two.host.tick(0.0)
    two.head.connected(1, 0.0, "10.0.0.2:4711")
    two.head.received(1, data_of(two.host.connected(1, 0.0)), 0.0)
    outcome = two.head.refuse(1, "a host b is here already")
    assert outcome[-1] == Close(1, "connection from 10.0.0.2:4711 refused: a host b is here already")
    found = two.host.received(1, data_of(outcome), 0.0)
    assert found == [Close(1, ""), IncarnationEnded("b", 0, "a host b is here already")]


def hello(**changes: Any) -> bytes:
    fields = {"host": "b", "nonce": b"9", "incarnation": 0, "received": 0}
    fields["run"] = b"head" if changes.get("incarnation") else b""
    return written(Hello(**{**fields, **changes}))


BAD = {
    "text": (b"GET / HTTP/1.1\r\n\r\n", r"it would have [\d,]+ bytes, and may have 4,096"),
    "too long": (hello(host="b" * 5000), r"it would have 5,\d+ bytes, and may have 4,096"),
    "not msgpack": (framed(b"\xc1\xc1"), "malformed|MessagePack"),
    "nested": (framed(b"\x91" * 4000), "."),
    "line breaks": (framed(msgspec.msgpack.encode(["a\nb\x1b[2J"])), r"Invalid value 'a b \[2J'"),
    "no hello": (written(Beat(1, 0)), "a Beat may not come now"),
    "two at once": (hello() + hello(), "a Hello may not come now"),
}


@pytest.mark.parametrize("bad", BAD)
def test_who_says_no_hello_is_refused_in_one_line_and_disturbs_nobody(bad: str) -> None:
    data, why = BAD[bad]
    two = Two().connect()
    two.head.connected(9, 0.0)
    outcome = two.head.received(9, data, 0.0)
    (close,) = [one for one in outcome if isinstance(one, Close)]
    assert close.connection == 9
    assert close.why.startswith("connection from a stranger refused: ")
    assert close.why.isprintable()
    assert re.search(why, close.why), close.why
    assert {one.connection for one in outcome if isinstance(one, Write)} <= {9}
    assert two.head.received(9, hello(), 0.0) == []
    assert two.head.admit(9, 5, 0.0) == [] == two.head.refuse(9, "why")
    two.tell(1)
    two.order(2)
    assert (values(two.at_head), values(two.at_host)) == ([1], [2])


def test_what_a_stranger_says_is_shown_as_one_line_of_text() -> None:
    host = host_end()
    host.tick(0.0)
    host.connected(1, 0.0)
    (_, ended) = host.received(1, written(Refused("\x1b[2J no\nway" + "y" * 1000)), 0.0)
    assert isinstance(ended, IncarnationEnded)
    assert ended.why.startswith(" [2J no wayyy")
    assert len(ended.why) == 300


def test_a_connection_without_a_hello_is_closed_after_some_seconds() -> None:
    head = head_end()
    head.connected(1, 2.0)
    assert head.due() == 2.0 + HANDSHAKE
    assert head.tick(2.0 + HANDSHAKE - 0.1) == []
    assert head.tick(2.0 + HANDSHAKE) == [Close(1, "connection from a stranger refused: it has said nothing for 5 s")]
    assert head.due() is None


@pytest.mark.parametrize("waits", ["dialling", "greeting"])
def test_a_head_that_does_not_answer_is_dialled_again(waits: str) -> None:
    host = host_end()
    host.tick(0.0)
    if waits == "greeting":
        host.connected(1, 0.0)
    assert host.due() == HANDSHAKE
    assert host.tick(HANDSHAKE) == [Close(1, "")]
    assert host.due() == HANDSHAKE + control.SHORTEST_PAUSE
    assert host.tick(HANDSHAKE + 1.0) == [DialHead(2)]
    assert host.connected(1, HANDSHAKE + 1.0) == [], "that connection is closed"


def test_a_head_that_answers_in_drops_has_no_more_time() -> None:
    host = host_end()
    host.tick(0.0)
    host.connected(1, 0.0)
    data = hello(incarnation=1)
    for second in range(int(HANDSHAKE)):
        assert host.received(1, data[second : second + 1], float(second)) == []
    assert host.tick(HANDSHAKE) == [Close(1, "")]


def test_a_host_waits_longer_before_each_try_and_starts_over_once_it_was_heard() -> None:
    two, pauses = Two(), []
    for _ in range(7):
        (dial,) = two.host.tick(two.now)
        assert isinstance(dial, DialHead)
        two.host.lost(dial.connection, "refused", two.now)
        due = two.host.due()
        assert due is not None
        pauses.append(round(due - two.now, 6))
        two.now = due
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    two.connect().cut()
    assert two.host.due() == pytest.approx(two.now - 1.0 + control.SHORTEST_PAUSE)


def test_a_message_that_may_not_come_ends_the_incarnation() -> None:
    two = Two().connect()
    two.on_host(two.host.send(Order(1), 0.0))
    assert [type(one) for one in two.at_head[2:]] == [Close, IncarnationEnded]
    assert all(one.why.startswith("host b has sent what can't be read: ") for one in two.at_head[2:])
    assert isinstance(two.at_host[-1], IncarnationEnded), "the host is told"
    assert two.head.send("b", 1, Order(1), 0.0) == []
    two = Two().connect()
    two.on_head(two.head.send("b", 1, Told(1), 0.0))
    assert [type(one) for one in two.at_host[3:]] == [Close, IncarnationEnded]
    assert all(one.why.startswith("the head has sent what can't be read: ") for one in two.at_host[3:])


def test_a_beat_of_an_earlier_connection_is_not_answered_over_the_next() -> None:
    two = Two().connect()
    two.host.tick(3.0)  # it is lost on its way
    two.cut()
    two.host.tick(two.now)
    two.host.connected(2, two.now)
    two.host.received(2, hello(incarnation=1), two.now)
    assert [type(one) for one in two.host.received(2, written(BeatHeard(2, 0)), two.now)] == [Close, HostDisconnected]


@pytest.mark.parametrize("bad", [framed(b"\xc1"), LENGTH.pack(1 << 40)], ids=["garbled", "too long"])
def test_bad_bytes_close_the_connection_after_what_came_before_them_and_what_is_lost_comes_over_the_next(
    bad: bytes,
) -> None:
    two = Two().connect()
    found = two.head.received(1, data_of(two.host.send(Told(1), 0.0)) + bad, 0.0)
    assert [type(one) for one in found] == [HeardFrom, Delivered, Close, HostDisconnected]
    assert found[2].why.startswith("connection to host b closed: ")
    two.host.lost(1, "reset", 0.0)
    two.tell(2)
    two.now = 1.0
    two.connect()
    assert values(two.at_head) == [2]
    found = two.host.received(2, data_of(two.head.send("b", 1, Order(1), 2.0)) + bad, 2.0)
    assert [type(one) for one in found] == [Delivered, Close, HostDisconnected]
    assert events(two.host.received(2, bad, 2.0)) == []


@pytest.mark.parametrize("frame", [Acknowledged(5), BeatHeard(9, 0), BeatHeard(1, 5), Beat(1, 0), Data(1, 5, b"")])
def test_a_head_that_acknowledges_what_was_not_sent_is_disconnected(frame: Any) -> None:
    two = Two().connect()
    assert [type(one) for one in two.host.received(1, written(frame), 0.0)] == [Close, HostDisconnected]


def test_an_end_that_has_forgotten_what_it_received_ends_the_incarnation() -> None:
    two = Two().connect()
    two.order(1)
    two.on_host(two.host.tick(1.0))
    two.cut()
    two.head.connected(2, 0.0)
    outcome = two.head.received(2, hello(nonce=b"1", incarnation=1), 0.0)
    assert [type(one) for one in outcome] == [Write, Close, IncarnationEnded]
    two.host.tick(1.0)
    assert isinstance(frames(data_of(outcome))[0], Refused)


def test_a_host_that_takes_nothing_is_given_up_once_too_much_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered, "MOST_MESSAGES", 3)
    two = Two().connect().cut()
    two.order(1, 2, 3)
    two.tell(1, 2, 3)
    assert [type(one) for one in two.at_head + two.at_host if isinstance(one, IncarnationEnded)] == []
    two.order(4)
    two.tell(4)
    assert two.at_head[-1] == IncarnationEnded(
        "b", 1, "host b does not take what it is sent: 3 messages of 24 bytes are not acknowledged"
    )
    assert isinstance(two.at_host[-1], IncarnationEnded)
