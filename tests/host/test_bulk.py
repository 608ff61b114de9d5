"""Items between two hosts over real sockets on loopback: connections, and who may dial.

What becomes of fetches is in `test_fetches.py`. The seeded world has long histories of them.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from paceline.core.items import Former, Update, Version
from paceline.ipc.endpoint import LENGTH, Frames, framed
from paceline.net.control import Hello, Refused
from paceline.net.handshake import Keys
from paceline.net.numbered import written
from paceline.transfer import data_connection, fetch_table
from paceline.transfer.data_connection import PART, PURPOSE, BytesFrame, Fetch, Never
from paceline.transfer.item_names import fields_of
from paceline.transfer.messages import Asked, EndPeer, Meet, Peer
from support.carriers import Two, contents, hello
from support.clusters import EACH_KEYS
from support.lobby import has_ended, opened
from support.processes import descriptors

LARGE = 5 * PART + 12_345


@pytest.fixture(params=EACH_KEYS)
def keys(request: pytest.FixtureRequest) -> Keys:
    return EACH_KEYS[request.param]()


@pytest.fixture
def two(keys: Keys) -> Iterator[Two]:
    """Two hosts that are connected."""
    two = Two(keys)
    two.connect()
    yield two
    two.close()
    assert not two.a.held
    assert not two.b.held


@pytest.fixture
def apart(keys: Keys) -> Iterator[Two]:
    """Two hosts that nobody has connected."""
    two = Two(keys)
    yield two
    two.close()
    assert not two.a.held


# --- fetches


@pytest.mark.parametrize("size", [1, PART, PART + 1, LARGE])
def test_an_item_of_any_size_arrives_in_the_memory_that_is_there_for_it(two: Two, size: int) -> None:
    two.a.has[Version(7)] = contents(size)
    got = two.b.fetch(Version(7), size)
    two.until(lambda: got.done)
    assert got.memory == contents(size)
    two.until(lambda: not two.a.held)
    assert [one.named.item for one in two.a.heard(Asked)] == [fields_of(Version(7))]
    assert got.done == 1
    assert not got.lost
    assert not two.lines


def test_what_is_served_stays_held_until_its_last_byte_is_sent(two: Two) -> None:
    two.a.has[Version(1)] = contents(LARGE)
    two.a.connection.stream._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    got = two.b.fetch(Version(1), LARGE)
    two.until(lambda: two.a.held)
    while two.a.held:
        two.loop.wait(1.0)
    two.a.has[Version(1)][:] = bytes(LARGE)  # its place is another item's now
    two.until(lambda: got.done)
    assert got.memory == contents(LARGE)


def test_one_connection_is_read_a_piece_at_a_time(apart: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_connection, "AT_ONCE", 10_000)
    got = apart.a.fetch(Version(1), 100_000)
    end = raw(apart, written(hello("b", 3)))
    apart.until(lambda: apart.a.connection)
    end.send(written(BytesFrame(1, 100_000)) + contents(100_000))
    turns = 0
    while not got.done:
        apart.loop.wait(1.0)
        turns += 1
    assert turns >= 5  # one piece of what has come, and one of what is decrypted already
    assert got.memory == contents(100_000)
    end.close()


def test_a_fetch_of_another_incarnation_is_refused(apart: Two) -> None:
    apart.a.has[Version(1)] = contents(10)
    end = raw(apart, written(hello("b", 3)) + written(Fetch(1, 0, 2, tuple(Version(1)), 0, 10)))
    assert answers(apart, end, 2)[1:] == [Never(1, "incarnation 2 has ended")]
    assert not apart.a.heard(Asked)
    end.close()


# --- connections that break


def test_fetches_under_way_go_on_after_a_reconnect(two: Two) -> None:
    two.a.has = {Version(1): contents(LARGE), Version(3): contents(10, 5)}
    two.b.has[Update(0, 1)] = contents(LARGE, 9)
    got, waits, short = two.b.fetch(Version(1), LARGE), two.b.fetch(Version(2), 10), two.b.fetch(Version(3), 10)
    update = two.a.fetch(Update(0, 1), LARGE)
    two.until(lambda: any(got.memory))
    before = two.b.connection
    two.cut()
    two.until(lambda: two.b.connection and two.b.connection is not before)
    two.until(lambda: got.done and short.done and update.done)
    assert (got.memory, short.memory, update.memory) == (contents(LARGE), contents(10, 5), contents(LARGE, 9))
    two.a.make(Version(2), contents(10))
    two.until(lambda: waits.done)
    assert [one.done for one in (got, waits, short, update)] == [1] * 4
    two.until(lambda: not two.a.held and not two.b.held)
    assert not two.lines


def test_a_connection_that_has_sent_as_much_as_a_key_is_good_for_is_renewed(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_connection, "MOST_SENT", 2 * PART)
    first = two.a.connection
    two.a.has[Version(1)] = contents(LARGE)
    got = two.b.fetch(Version(1), LARGE)
    two.until(lambda: got.done)
    assert got.memory == contents(LARGE)
    assert got.done == 1
    assert two.a.connection is not first
    assert not two.lines


def test_a_connection_that_a_newer_one_replaces_is_closed(two: Two) -> None:
    first = two.a.connection
    two.dial()
    two.until(lambda: two.a.connection is not first and two.a.connection and two.b.connection)
    assert first is not None
    assert first.stream.closed
    two.a.has[Version(1)] = contents(10)
    got = two.b.fetch(Version(1), 10)
    two.until(lambda: got.done)


def test_closing_leaves_no_socket() -> None:
    before = descriptors()
    two = Two()
    two.connect()
    got = two.b.fetch(Version(1), 10)
    stranger = socket.create_connection(two.door.address)
    two.until(lambda: two.door._waiting)
    known = raw(two, b"")
    two.until(lambda: two.a.mover._port._strangers)
    stranger.close()
    known.close()
    two.close()
    assert descriptors() == before
    assert (got.done, got.lost) == (0, []), "nobody is told as all is over"


# --- who may dial


def raw(two: Two, said: bytes, buffer: int | None = None) -> Any:
    """Somebody who opens a connection and says this. `buffer`: bytes that wait unread there."""
    return opened(two, PURPOSE, said, buffer)


def answers(two: Two, end: socket.socket, wanted: int) -> list[Any]:
    """The next frames that somebody hears who has opened a connection: hello first."""
    coding, heard, found = Frames(), data_connection._FRAMES, []

    def there() -> bool:
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            found.extend(heard.decode(body) for body in coding.receive(end.recv(1 << 16)))
        return len(found) >= wanted

    two.until(there)
    return found


GARBAGE = {
    "a browser": b"GET / HTTP/1.1\r\n\r\n",
    "line breaks": framed(msgspec.msgpack.encode(["a\nb\x1b[2J"])),
    "a fetch before hello": written(Fetch(1, 0, 1, ("version", 1), 0, 10)),
    "a refusal": written(Refused("I don't want to")),
    "another incarnation": written(hello("b", 2)),
    "another host": written(hello("c", 3)),
    "too long": LENGTH.pack(1 << 40) + b"x" * 100_000,
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
def test_garbage_and_who_may_not_dial_are_closed_with_one_line(two: Two, said: bytes) -> None:
    connection = two.a.connection
    end = raw(two, said)
    two.until(lambda: has_ended(end))
    (line,) = two.lines
    assert line.startswith("connection refused: ")
    assert line.isprintable()
    two.a.has[Version(1)] = contents(10)
    got = two.b.fetch(Version(1), 10)
    two.until(lambda: got.done)
    assert two.a.connection is connection
    end.close()


ONE, TWO = (1, "version"), (2, "version")
PEER = {
    "garbage": framed(b"rubbish"),
    "hello again": written(hello("b", 3)),
    "no item": written(Fetch(1, 0, 1, (), 0, 10)),
    "a name for a number": written(Fetch(1, 0, 1, ("one", "version"), 0, 10)),
    "a former item": written(Fetch(1, 0, 1, tuple(Former("x")), 0, 10)),  # type: ignore[arg-type]
    "one number twice": written(Fetch(1, 0, 1, ONE, 0, 10)) + written(Fetch(1, 0, 1, TWO, 0, 10)),
    "no bytes": written(Fetch(1, 0, 1, ONE, 10, 10)),
    "bytes before the first": framed(msgspec.msgpack.encode(("Fetch", 1, 0, 1, ONE, -1, 10))),
    "an answer to nothing": written(BytesFrame(1, 10)),
    "a part too long": written(BytesFrame(0, PART + 1)),
    "too much": b"".join(written(Fetch(number, 0, 1, (number, "version"), 0, 10)) for number in range(11)),
}


@pytest.mark.parametrize("said", PEER.values(), ids=PEER)
def test_a_host_that_says_what_it_may_not_is_closed_with_one_line(
    apart: Two, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(fetch_table, "MOST_ASKED", 10)
    end = raw(apart, written(hello("b", 3)) + said)
    apart.until(lambda: has_ended(end))
    (line,) = apart.lines
    assert line.startswith("data connection to host b closed: ")
    assert not apart.a.connection
    end.close()


@pytest.mark.parametrize("length", [0, 11])
def test_a_part_must_fit_into_what_is_missing_of_its_item(apart: Two, length: int) -> None:
    got = apart.a.fetch(Version(1), 10)
    end = raw(apart, written(hello("b", 3)) + written(BytesFrame(1, length)) + bytes(length))
    apart.until(lambda: has_ended(end))
    assert apart.lines == [f"data connection to host b closed: a part has {length} bytes, and 10 are missing"]
    assert not got.done
    end.close()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (hello("b", 2), "incarnation 2 of host b is not expected here"),
        (hello("b", 3, run=b"another"), "host b has another run than this one"),
    ],
)
def test_a_host_whose_hello_is_refused_shows_why_and_dials_again(apart: Two, said: Hello, why: str) -> None:
    apart.dial(said)
    apart.until(lambda: len(apart.lines) >= 4)
    assert set(apart.lines) == {f"connection refused: {why}", f"no data connection to host a: {why}"}
    if said.run == b"run":
        apart.a.meets("b", 2)
        apart.until(lambda: apart.b.connection)


def test_a_host_speaks_with_no_one_but_the_host_that_it_wants(apart: Two) -> None:
    apart.b.plane.tell(Meet(Peer("a", 2)))
    apart.dial(to=Peer("a", 2))
    apart.until(lambda: apart.lines)
    assert apart.lines == ["no data connection to host a: incarnation 1 of host a answers for 2 of a"]
    assert not apart.b.connection


def test_a_peer_that_does_not_read_holds_up_neither_the_loop_nor_others(apart: Two) -> None:
    apart.a.has = {Version(number): contents(LARGE) for number in range(5)}
    apart.dial()
    deaf = apart.a.meets("deaf", 9)
    asks = [written(Fetch(number, 0, 1, (number, "version"), 0, LARGE)) for number in range(5)]
    end = raw(apart, written(hello("deaf", 9)) + b"".join(asks), buffer=4096)
    apart.until(lambda: len(apart.a.held) == 5)
    got = apart.b.fetch(Version(0), LARGE)
    apart.until(lambda: got.done)
    assert apart.a.plane.exchanges[deaf]._connection.stream._waiting_bytes <= PART + 100
    apart.a.plane.tell(EndPeer(deaf, "silent"))
    apart.until(lambda: not apart.a.held)
    end.close()
