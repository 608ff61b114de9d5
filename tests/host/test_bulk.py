"""Items between two hosts over real sockets on loopback."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from paceline.core.items import Beginning, Blob, Former, Item, Mean, Replica, Update, Version
from paceline.fabric.control import LONGEST_HELLO, MOST_STRANGERS, PROTOCOL, Hello, Refused
from paceline.fabric.endpoint import LENGTH, framed
from paceline.fabric.numbered import written
from paceline.host import bulk, tcp
from paceline.host.bulk import PART, Bulk, Dialler, Fetch, Never, Part, Port
from paceline.host.loop import Loop

PATIENCE = 30.0
"""Seconds after which a test that waits has failed."""
LARGE = 5 * PART + 12_345


def hello(host: str, incarnation: int, proof: bytes = b"token") -> Hello:
    return Hello(PROTOCOL, host, b"nonce", incarnation, 0, proof)


def check(hello: Hello) -> str | None:
    return None if hello.proof == b"token" else "it does not have this run's token"


class Shelf:
    """What one host has, and what was asked of it."""

    def __init__(self) -> None:
        self.items: dict[Item, bytearray] = {}
        self.asked: list[Item] = []
        self.held: list[Item] = []
        """What is being sent."""

    def find(self, item: Item) -> memoryview | None:
        self.asked.append(item)
        if item not in self.items:
            return None
        self.held.append(item)
        return memoryview(self.items[item])

    def served(self, item: Item) -> None:
        self.held.remove(item)


class Got:
    """A fetch: its memory, and what was told of it."""

    def __init__(self, size: int) -> None:
        self.memory = bytearray(size)
        self.done = 0
        self.lost: list[str] = []

    def is_done(self) -> None:
        self.done += 1


class Two:
    """The head `a`, which listens, and host `b`, which dials it, in one loop."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.at_a, self.at_b = Shelf(), Shelf()
        self.lines: list[str] = []
        self.a = Bulk(self.loop, "b", 3, self.at_a.find, self.at_a.served)
        self.b = Bulk(self.loop, "a", 1, self.at_b.find, self.at_b.served)
        self.port = Port(tcp.listen(), self.loop, hello("a", 1), check, self.lines.append)
        self.port.expect(self.a)
        self.dialler: Dialler | None = None

    def dial(self, said: Hello | None = None, checks: Callable[[Hello], str | None] = check) -> None:
        self.dialler = Dialler(self.b, self.port.address, self.loop, said or hello("b", 3), checks, self.lines.append)

    def fetch(self, item: Item, size: int, side: Bulk | None = None) -> Got:
        got = Got(size)
        (side or self.b).fetch(item, memoryview(got.memory), got.is_done, got.lost.append)
        return got

    def until(self, there: Callable[[], object]) -> None:
        """Let the loop go round until that is so."""
        end = time.monotonic() + PATIENCE
        while not there():
            assert time.monotonic() < end, "it never came to that"
            self.loop.wait(0.02)  # what it waits for may be at a socket that the loop does not watch

    def cut(self) -> None:
        """The connection breaks, as far as both ends can tell."""
        connection = self.b._connection
        assert connection is not None
        connection.stream._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.port.close()
        if self.dialler is not None:
            self.dialler.close()
        self.a.end("over")
        self.b.end("over")
        self.loop.close()


@pytest.fixture
def two() -> Iterator[Two]:
    """Two hosts that are connected."""
    two = Two()
    two.dial()
    two.until(lambda: two.a.connected and two.b.connected)
    yield two
    two.close()
    assert not two.at_a.held
    assert not two.at_b.held


@pytest.fixture
def apart() -> Iterator[Two]:
    """Two hosts that nobody has connected."""
    two = Two()
    yield two
    two.close()


def contents(size: int, seed: int = 0) -> bytearray:
    return bytearray((bytes(range(seed, 251)) * (size // (251 - seed) + 1))[:size])


# --- fetches


@pytest.mark.parametrize("size", [0, 1, 4096, PART - 1, PART, PART + 1, LARGE])
def test_an_item_of_any_size_arrives_in_the_memory_that_is_there_for_it(two: Two, size: int) -> None:
    two.at_a.items[Version(7)] = contents(size)
    got = two.fetch(Version(7), size)
    two.until(lambda: got.done)
    assert got.memory == contents(size)
    two.until(lambda: not two.at_a.held)
    assert two.at_a.asked == [Version(7)]
    assert got.done == 1
    assert not got.lost
    assert not two.lines


def test_both_sides_fetch_over_the_one_connection_at_once(two: Two) -> None:
    two.at_a.items = {Version(number): contents(LARGE, number) for number in range(4)}
    two.at_b.items = {Update(number, 9): contents(LARGE, 100 + number) for number in range(4)}
    versions = [two.fetch(Version(number), LARGE) for number in range(4)]
    updates = [two.fetch(Update(number, 9), LARGE, two.a) for number in range(4)]
    two.until(lambda: all(got.done for got in versions + updates))
    assert [got.memory for got in versions] == list(two.at_a.items.values())
    assert [got.memory for got in updates] == list(two.at_b.items.values())
    assert not two.lines


@pytest.mark.parametrize("item", [Version(1), Update(2, 3), Replica(4, 5), Mean(6), Beginning(7), Blob("fixed")])
def test_items_of_every_kind_are_asked_for_by_name(two: Two, item: Item) -> None:
    two.at_a.items[item] = contents(10)
    got = two.fetch(item, 10)
    two.until(lambda: got.done)
    assert two.at_a.asked == [item]
    assert type(two.at_a.asked[0]) is type(item)


def test_memory_of_another_shape_is_filled_by_its_bytes(two: Two) -> None:
    two.at_a.items[Version(1)] = contents(4000)
    memory = bytearray(4000)
    done: list[int] = []
    two.b.fetch(Version(1), memoryview(memory).cast("f"), lambda: done.append(1), done.append)
    two.until(lambda: done)
    assert memory == contents(4000)


def test_an_item_that_is_not_there_yet_arrives_once_it_is(two: Two) -> None:
    got = two.fetch(Version(8), LARGE)
    other = two.fetch(Version(9), 10)
    two.at_a.items[Version(9)] = contents(10)
    two.until(lambda: len(two.at_a.asked) == 2)
    two.a.there(Version(9))
    two.until(lambda: other.done)
    assert not got.done
    two.at_a.items[Version(8)] = contents(LARGE)
    two.a.there(Version(8))
    two.a.there(Version(8))
    two.a.there(Version(10))
    two.until(lambda: got.done)
    assert got.memory == contents(LARGE)
    assert two.at_a.asked.count(Version(8)) == 2, "it is looked for as it is asked for, and as it is there"


def test_what_is_served_stays_held_until_its_last_byte_is_sent(two: Two) -> None:
    two.at_a.items[Version(1)] = contents(LARGE)
    assert two.a._connection is not None
    two.a._connection.stream._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    got = two.fetch(Version(1), LARGE)
    two.until(lambda: two.at_a.held)
    while two.at_a.held:
        two.loop.wait(1.0)
    two.at_a.items[Version(1)][:] = bytes(LARGE)  # its place is another item's now
    two.until(lambda: got.done)
    assert got.memory == contents(LARGE)


def test_what_is_cancelled_stays_held_until_nothing_of_it_waits_for_room(two: Two) -> None:
    two.at_a.items = {Version(1): contents(LARGE), Version(2): contents(10)}
    assert two.a._connection is not None
    stream = two.a._connection.stream
    stream._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    two.fetch(Version(1), LARGE)
    two.until(lambda: stream.waits)
    two.b.cancel(Version(1))
    while two.at_a.held:
        two.loop.wait(1.0)
    assert not stream.waits
    got = two.fetch(Version(2), 10)
    two.until(lambda: got.done)


def test_one_connection_is_read_a_piece_at_a_time(apart: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 10_000)
    got = apart.fetch(Version(1), 100_000, apart.a)
    end = raw(apart, written(hello("b", 3)))
    apart.until(lambda: apart.a.connected)
    end.send(written(Part(1, 100_000)) + contents(100_000))
    turns = 0
    while not got.done:
        apart.loop.wait(1.0)
        turns += 1
    assert turns >= 10
    assert got.memory == contents(100_000)
    end.close()


def test_a_second_fetch_of_an_item_joins_the_one_under_way(two: Two) -> None:
    first = two.fetch(Version(1), 10)
    second = Got(10)
    two.b.fetch(Version(1), memoryview(first.memory), second.is_done, second.lost.append)
    two.until(lambda: two.at_a.asked)
    two.at_a.items[Version(1)] = contents(10)
    two.a.there(Version(1))
    two.until(lambda: first.done and second.done)
    assert (first.done, second.done) == (1, 1)
    two.until(lambda: not two.at_a.held)
    again = two.fetch(Version(1), 10)
    two.until(lambda: again.done)


def test_a_fetch_may_begin_where_another_is_done(two: Two) -> None:
    two.at_a.items = {Version(number): contents(100) for number in range(50)}
    done: list[int] = []

    def fetch(number: int) -> None:
        def is_done() -> None:
            done.append(number)
            if number < 49:
                fetch(number + 1)

        two.b.fetch(Version(number), memoryview(bytearray(100)), is_done, lambda why: None)

    fetch(0)
    two.until(lambda: len(done) == 50)


def test_an_item_of_another_size_is_lost_and_nothing_is_written(two: Two) -> None:
    two.at_a.items[Version(1)] = contents(12)
    got = two.fetch(Version(1), 16)
    two.until(lambda: got.lost)
    assert got.lost == ["Version(version=1, kind='version') has 12 bytes here, and 16 were asked for"]
    assert got.memory == bytes(16)
    assert two.b.connected


# --- what never comes


def test_an_item_that_can_never_come_is_lost_to_all_who_wait_for_it_once_each(two: Two) -> None:
    first = two.fetch(Update(2, 9), 10)
    second = Got(10)
    two.b.fetch(Update(2, 9), memoryview(first.memory), second.is_done, second.lost.append)
    other = two.fetch(Update(1, 9), 10)
    two.until(lambda: len(two.at_a.asked) == 2)
    two.a.never(Update(2, 9), "worker 2 has died\n")
    two.a.never(Update(2, 9), "again")
    two.until(lambda: first.lost)
    assert first.lost == second.lost == ["worker 2 has died "]
    assert not other.lost
    assert not first.done


def test_an_item_may_become_impossible_while_it_is_sent(two: Two) -> None:
    two.at_a.items[Version(1)] = contents(LARGE)
    got = two.fetch(Version(1), LARGE)
    two.until(lambda: two.at_a.held)
    two.a.never(Version(1), "its segment has ended")
    two.until(lambda: got.lost)
    assert not got.done
    two.until(lambda: not two.at_a.held)
    other = two.fetch(Version(1), LARGE)
    two.until(lambda: other.done)
    assert other.memory == contents(LARGE)


def test_a_cancelled_fetch_tells_nobody_and_writes_no_more(two: Two) -> None:
    two.at_a.items = {Version(1): contents(LARGE), Version(2): contents(LARGE, 7)}
    got = two.fetch(Version(1), LARGE)
    two.until(lambda: any(got.memory))
    two.b.cancel(Version(1))
    two.b.cancel(Version(1))
    got.memory[:] = bytes(LARGE)
    other = two.fetch(Version(2), LARGE)
    two.until(lambda: other.done)
    assert other.memory == contents(LARGE, 7)
    assert got.memory == bytes(LARGE)
    assert (got.done, got.lost) == (0, [])
    two.until(lambda: not two.at_a.held)
    assert not two.lines


def test_what_was_cancelled_can_be_fetched_again_at_once(two: Two) -> None:
    two.at_a.items[Version(1)] = contents(LARGE)
    cancelled = two.fetch(Version(1), LARGE)
    two.until(lambda: any(cancelled.memory))
    two.b.cancel(Version(1))
    got = two.fetch(Version(1), LARGE)
    two.until(lambda: got.done)
    assert got.memory == contents(LARGE)
    assert not cancelled.done
    two.until(lambda: not two.at_a.held)


def test_a_cancelled_item_that_was_not_there_is_not_sent_when_it_is(two: Two) -> None:
    two.fetch(Version(1), 10)
    two.until(lambda: two.at_a.asked)
    two.b.cancel(Version(1))
    got = two.fetch(Version(2), 10)
    two.until(lambda: len(two.at_a.asked) == 2)
    two.at_a.items[Version(1)] = contents(10)
    two.a.there(Version(1))
    assert not two.at_a.held
    assert not got.done


# --- segments and incarnations


def test_a_segment_that_ends_loses_what_is_under_way_in_it(two: Two) -> None:
    got = two.fetch(Version(1), 10)
    two.until(lambda: two.at_a.asked)
    two.a.begins(1)
    two.until(lambda: got.lost)
    assert got.lost == ["segment 1 has begun"]
    behind = two.fetch(Version(2), 10)
    two.until(lambda: behind.lost)
    assert two.at_a.asked == [Version(1)]


def test_a_host_that_is_ahead_by_a_segment_waits_for_the_other(two: Two) -> None:
    two.at_a.items[Version(1)] = contents(10)
    before = two.fetch(Version(5), 10)
    two.b.begins(1)
    assert before.lost == ["segment 1 has begun"]
    got = two.fetch(Version(1), 10)
    two.until(lambda: two.a._asked and two.a._asked_by[2].segment == 1)
    assert Version(1) not in two.at_a.asked
    two.a.there(Version(1))
    assert Version(1) not in two.at_a.asked
    two.a.begins(1)
    two.until(lambda: got.done)


def test_a_fetch_of_another_incarnation_is_lost(two: Two) -> None:
    two.at_a.items[Version(1)] = contents(10)
    two.b.incarnation = 2
    got = two.fetch(Version(1), 10)
    two.until(lambda: got.lost)
    assert got.lost == ["incarnation 2 has ended"]
    assert not two.at_a.asked


def test_a_peer_that_ends_loses_all_its_fetches_once_each(two: Two) -> None:
    two.at_a.items[Version(1)] = contents(LARGE)
    gots = [two.fetch(Version(number), LARGE) for number in range(1, 4)]
    two.until(lambda: any(gots[0].memory))
    two.b.end("silent for 15.0 s")
    two.b.end("again")
    assert [got.lost for got in gots] == [["silent for 15.0 s"]] * 3
    two.until(lambda: not two.a.connected)
    assert not two.at_a.held
    late = two.fetch(Version(9), 10)
    assert not late.lost, "nobody is told within the call"
    two.until(lambda: late.lost)
    assert late.lost == ["silent for 15.0 s"]
    assert [got.done for got in gots] == [0] * 3


# --- connections that break


def test_fetches_under_way_begin_again_after_a_reconnect(two: Two) -> None:
    two.at_a.items = {Version(1): contents(LARGE), Version(3): contents(10, 5)}
    two.at_b.items[Update(0, 1)] = contents(LARGE, 9)
    got, waits, short = two.fetch(Version(1), LARGE), two.fetch(Version(2), 10), two.fetch(Version(3), 10)
    update = two.fetch(Update(0, 1), LARGE, two.a)
    two.until(lambda: any(got.memory))
    before = two.b._connection
    two.cut()
    two.until(lambda: two.b.connected and two.b._connection is not before)
    two.until(lambda: got.done and short.done and update.done)
    assert (got.memory, short.memory, update.memory) == (contents(LARGE), contents(10, 5), contents(LARGE, 9))
    two.at_a.items[Version(2)] = contents(10)
    two.a.there(Version(2))
    two.until(lambda: waits.done)
    assert [one.done for one in (got, waits, short, update)] == [1] * 4
    two.until(lambda: not two.at_a.held and not two.at_b.held)
    assert not two.lines


def test_every_byte_may_be_the_last_before_the_connection_breaks(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(bulk, "LONGEST_PAUSE", 0.0)
    two.dialler._pause = 0.0  # type: ignore[union-attr]
    two.at_a.items[Version(1)] = contents(1000)
    for cut_after in range(60):
        got = two.fetch(Version(1), 1000)
        two.until(lambda: two.at_a.held)
        stream = two.a._connection.stream  # type: ignore[union-attr]
        all_of_it = b"".join((framed(msgspec.msgpack.encode(Part(two.b._number, 1000))), contents(1000)))
        stream._drained = None  # the item isn't sent in the usual way
        stream.write(all_of_it[:cut_after])
        stream._end.shutdown(socket.SHUT_RDWR)
        two.until(lambda: got.done)  # noqa: B023 - it is called here
        assert got.memory == contents(1000)
        assert got.done == 1
    assert not two.lines


def test_a_host_dials_until_somebody_listens(apart: Two) -> None:
    waiting = socket.socket()
    waiting.bind(tcp.LOOPBACK)
    address = waiting.getsockname()
    got = apart.fetch(Version(1), 10)
    apart.at_a.items[Version(1)] = contents(10)
    apart.dialler = Dialler(apart.b, address, apart.loop, hello("b", 3), check, apart.lines.append)
    began = time.monotonic()
    apart.until(lambda: time.monotonic() > began + 0.2)
    apart.port.close()
    apart.port = Port(waiting, apart.loop, hello("a", 1), check, apart.lines.append)
    waiting.listen()
    apart.port.expect(apart.a)
    apart.until(lambda: got.done)
    assert not apart.lines


def test_a_connection_that_a_newer_one_replaces_is_closed(two: Two) -> None:
    first = two.a._connection
    second = Dialler(two.b, two.port.address, two.loop, hello("b", 3), check, two.lines.append)
    two.until(lambda: two.a._connection is not first and two.a.connected and two.b.connected)
    assert first is not None
    assert first.stream.closed
    two.at_a.items[Version(1)] = contents(10)
    got = two.fetch(Version(1), 10)
    two.until(lambda: got.done)
    second.close()


def test_closing_leaves_no_socket() -> None:
    before = len(os.listdir("/proc/self/fd"))
    two = Two()
    two.dial()
    two.until(lambda: two.a.connected and two.b.connected)
    two.fetch(Version(1), 10)
    stranger = socket.create_connection(two.port.address)
    two.until(lambda: two.port._strangers)
    stranger.close()
    two.close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- who may dial


def raw(two: Two, said: bytes) -> socket.socket:
    """Somebody who dials the port and says this."""
    end = socket.create_connection(two.port.address)
    end.setblocking(False)
    end.send(said)
    return end


def has_ended(end: socket.socket) -> bool:
    """Whether the other end has closed the connection."""
    try:
        return not end.recv(1 << 16)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


GARBAGE = {
    "a browser": b"GET / HTTP/1.1\r\n\r\n",
    "no frame": framed(b""),
    "no message": framed(b"rubbish"),
    "line breaks": framed(msgspec.msgpack.encode(["a\nb\x1b[2J"])),
    "a fetch before hello": written(Fetch(1, 0, 1, ("version", 1), 10)),
    "a refusal": written(Refused("I don't want to")),
    "no token": written(hello("b", 3, b"guessed")),
    "another incarnation": written(hello("b", 2)),
    "another host": written(hello("c", 3)),
    "another version": written(Hello(PROTOCOL + 1, "b", b"", 3, 0, b"token")),
    "too long": LENGTH.pack(1 << 40) + b"x" * 100_000,
    "a little too long": LENGTH.pack(LONGEST_HELLO + 1),
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
def test_garbage_and_who_may_not_dial_are_closed_with_one_line(two: Two, said: bytes) -> None:
    connection = two.a._connection
    end = raw(two, said)
    two.until(lambda: has_ended(end))
    (line,) = two.lines
    assert line.startswith("connection refused: ")
    assert line.isprintable()
    two.at_a.items[Version(1)] = contents(10)
    got = two.fetch(Version(1), 10)
    two.until(lambda: got.done)
    assert two.a._connection is connection
    end.close()


PEER = {
    "garbage": framed(b"rubbish"),
    "hello again": written(hello("b", 3)),
    "no item": written(Fetch(1, 0, 1, (), 10)),
    "no kind of item": written(Fetch(1, 0, 1, (1, "nothing"), 10)),
    "a name for a number": written(Fetch(1, 0, 1, ("one", "version"), 10)),
    "a name too long": written(Fetch(1, 0, 1, ("x" * 300, "blob"), 10)),
    "a former item": written(Fetch(1, 0, 1, tuple(Former("x")), 10)),  # type: ignore[arg-type]
    "twice": written(Fetch(1, 0, 1, (1, "version"), 10)) + written(Fetch(2, 0, 1, (1, "version"), 10)),
    "one number twice": written(Fetch(1, 0, 1, (1, "version"), 10)) + written(Fetch(1, 0, 1, (2, "version"), 10)),
    "an answer to nothing": written(Part(1, 10)),
    "never to nothing": written(Never(1, "why")),
    "a part too long": written(Part(0, PART + 1)),
    "too much": b"".join(written(Fetch(number, 0, 1, (number, "version"), 10)) for number in range(11)),
}


@pytest.mark.parametrize("said", PEER.values(), ids=PEER)
def test_a_host_that_says_what_it_may_not_is_closed_with_one_line(
    apart: Two, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(bulk, "MOST_ASKED", 10)
    end = raw(apart, written(hello("b", 3)) + said)
    apart.until(lambda: has_ended(end))
    (line,) = apart.lines
    assert line.startswith("data connection to host b closed: ")
    assert not apart.a.connected
    end.close()


@pytest.mark.parametrize("length", [0, 11])
def test_a_part_must_fit_into_what_is_left_of_its_item(apart: Two, length: int) -> None:
    got = apart.fetch(Version(1), 10, apart.a)
    end = raw(apart, written(hello("b", 3)) + written(Part(1, length)) + bytes(length))
    apart.until(lambda: has_ended(end))
    assert apart.lines == [
        f"data connection to host b closed: a part has {length} bytes, "
        "and 10 are left of Version(version=1, kind='version')"
    ]
    assert not got.done
    end.close()


def test_a_silent_stranger_is_closed_with_one_line(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "HANDSHAKE", 0.05)
    silent = raw(two, b"")
    two.until(lambda: has_ended(silent))
    assert two.lines == ["connection refused: it has said nothing for 0 s"]
    assert two.a.connected
    silent.close()


def test_a_flood_of_strangers_disturbs_no_host_and_is_told_in_few_lines(two: Two) -> None:
    two.at_a.items = {Version(number): contents(1000) for number in range(100)}
    flood, gots = [], []
    for number in range(100):
        flood.append(raw(two, b""))
        gots.append(two.fetch(Version(number), 1000))
        two.loop.wait(0.0)
    two.until(lambda: all(got.done for got in gots))
    two.until(lambda: sum(has_ended(end) for end in flood) == 100 - MOST_STRANGERS)
    assert len(two.lines) == tcp.LINES + 1
    for end in flood:
        end.close()


def test_a_host_whose_hello_is_refused_shows_why_and_dials_again(apart: Two) -> None:
    apart.dial(hello("b", 2))
    apart.until(lambda: len(apart.lines) >= 4)
    assert set(apart.lines) == {
        "connection refused: incarnation 2 of host b is not expected here",
        "no data connection to host a: incarnation 2 of host b is not expected here",
    }
    apart.a.incarnation = 2
    apart.until(lambda: apart.b.connected)


def test_a_host_speaks_with_no_one_but_the_host_that_it_wants(apart: Two) -> None:
    apart.b.incarnation = 2
    apart.dial()
    apart.until(lambda: apart.lines)
    assert apart.lines == ["no data connection to host a: incarnation 1 of host a answers for 2 of a"]
    assert not apart.b.connected


def test_a_host_does_not_take_just_anybody_for_the_other(apart: Two) -> None:
    apart.dial(checks=lambda hello: "it does not have this run's token")
    apart.until(lambda: apart.lines)
    assert apart.lines == ["no data connection to host a: it does not have this run's token"]
    assert not apart.b.connected


def test_a_host_that_does_not_answer_is_dialled_again(apart: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "HANDSHAKE", 0.05)
    silent = socket.create_server(tcp.LOOPBACK)
    apart.dialler = Dialler(apart.b, silent.getsockname(), apart.loop, hello("b", 3), check, apart.lines.append)
    came: list[Any] = []
    apart.loop.watch(silent, lambda: came.append(silent.accept()))
    apart.until(lambda: len(came) >= 2)
    apart.loop.unwatch(silent)
    for end, _ in came:
        end.close()
    silent.close()


def test_a_peer_that_does_not_read_holds_up_neither_the_loop_nor_others(apart: Two) -> None:
    apart.at_a.items = {Version(number): contents(LARGE) for number in range(5)}
    apart.dial()
    end = socket.socket()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    end.connect(apart.port.address)
    deaf = Bulk(apart.loop, "deaf", 9, apart.at_a.find, apart.at_a.served)
    apart.port.expect(deaf)
    asks = [written(Fetch(number, 0, 1, (number, "version"), LARGE)) for number in range(5)]
    end.sendall(written(hello("deaf", 9)) + b"".join(asks))
    apart.until(lambda: len(apart.at_a.held) == 5)
    got = apart.fetch(Version(0), LARGE)
    apart.until(lambda: got.done)
    deaf_connection = deaf._connection
    assert deaf_connection is not None
    assert deaf_connection.stream._waiting_bytes <= PART + 100
    deaf.end("silent")
    apart.until(lambda: not apart.at_a.held)
    end.close()
