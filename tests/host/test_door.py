"""How connections are opened at a door, over real sockets on loopback: who is let in, and what strangers can't do."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline.ipc.loop import Loop
from paceline.net import listener, tcp
from paceline.net.handshake import FRAME, MAGIC, PROTOCOL, Handshake, Keys, Kind, NotOpened, dials
from paceline.net.listener import MOST_STRANGERS
from paceline.net.token import Token
from support.clusters import KEYS
from support.lobby import OTHER_KEYS, PATIENCE, Lobby, answer, frame, has_ended


@pytest.fixture
def lobby() -> Iterator[Lobby]:
    lobby = Lobby()
    yield lobby
    lobby.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection. The first one does not block."""
    with tcp.listen() as listener:
        ours = socket.create_connection(listener.getsockname())
        ours.setblocking(False)
        return ours, listener.accept()[0]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- who is let in


@pytest.mark.parametrize("purpose", ["control", "data"])
def test_who_has_the_token_is_handed_to_what_serves_the_purpose(lobby: Lobby, purpose: str) -> None:
    one = lobby.dial(purpose)
    lobby.until(lambda: one.end and lobby.came)
    ((what, end),) = lobby.came
    end.send(b"there")
    one.end.send(b"here")
    assert (what, lobby.heard(end, 4), lobby.heard(one.end, 5)) == (purpose, b"here", b"there")
    assert not lobby.lines
    one.end.close()


def test_no_frame_of_an_opening_waits_for_another_one_to_be_acknowledged(lobby: Lobby) -> None:
    one = lobby.dial()
    lobby.until(lambda: one.end and lobby.came)
    for end in (one.end, lobby.came[0][1]):
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    one.end.close()


def test_not_a_byte_is_taken_that_comes_after_the_opening(lobby: Lobby) -> None:
    end = lobby.stranger(frame(Kind.GREETING))
    end.send(answer(lobby.heard(end, FRAME.size)) + b"and more")
    lobby.until(lambda: lobby.came)
    assert lobby.heard(lobby.came[0][1], 8) == b"and more"


def test_an_opening_may_come_byte_by_byte(lobby: Lobby) -> None:
    end = lobby.stranger()

    def say(said: bytes) -> None:
        for at in range(len(said)):
            end.send(said[at : at + 1])
            lobby.loop.wait(0.001)

    say(frame(Kind.GREETING))
    say(answer(lobby.heard(end, FRAME.size)))
    lobby.until(lambda: lobby.came)


def test_another_token_is_refused_on_both_sides_and_another_try_would_not_help(lobby: Lobby) -> None:
    one = lobby.dial(keys=OTHER_KEYS)
    lobby.until(lambda: one.failed and lobby.lines)
    assert one.failed == [("it has another token", True)]
    assert lobby.lines == ["connection from 127.0.0.1 refused: it has another token"]
    assert not lobby.came


def test_a_listener_that_has_not_the_token_is_told_nothing() -> None:
    ours, theirs = pair()
    side = dials(ours, KEYS, "control")
    next(side)
    theirs.send(frame(Kind.CHALLENGE) + frame(Kind.WELCOME))
    with pytest.raises(NotOpened, match="it has another token"):
        next(side)
    assert ours.fileno() == -1
    assert len(theirs.recv(1000)) == 2 * FRAME.size, "a greeting and an answer"
    theirs.close()


def test_an_opening_that_was_overheard_opens_nothing(lobby: Lobby) -> None:
    """All that a dialler has said, its first message included, is said once more."""
    end = lobby.stranger(frame(Kind.GREETING))
    said = answer(lobby.heard(end, FRAME.size))
    end.send(said)
    lobby.until(lambda: lobby.came)
    again = lobby.stranger(frame(Kind.GREETING) + said + b"hello")
    lobby.until(lambda: has_ended(again))
    assert len(lobby.came) == 1
    assert lobby.lines == ["connection from 127.0.0.1 refused: it has another token"]


def test_what_the_listener_has_shown_can_not_be_thrown_back(lobby: Lobby) -> None:
    """It is asked in turn what it has asked, over two connections at once, and both of its questions are answers."""
    first = lobby.stranger(frame(Kind.GREETING))
    challenge = lobby.heard(first, FRAME.size)[-32:]
    second = lobby.stranger(frame(Kind.GREETING, value=challenge))
    for end, value in ((second, challenge), (first, lobby.heard(second, FRAME.size)[-32:])):
        end.send(frame(Kind.ANSWER, value=value))
    lobby.until(lambda: has_ended(first) and has_ended(second))
    assert not lobby.came


def test_a_listener_that_throws_back_what_the_dialler_has_shown_is_refused() -> None:
    ours, theirs = pair()
    side = dials(ours, KEYS, "control")
    next(side)
    next(side)
    theirs.send(frame(Kind.CHALLENGE, value=theirs.recv(FRAME.size)[-32:]))
    next(side)
    theirs.send(frame(Kind.WELCOME, value=theirs.recv(FRAME.size)[-32:]))
    with pytest.raises(NotOpened, match="it has another token"):
        next(side)
    theirs.close()


def test_a_proof_is_for_one_purpose(lobby: Lobby) -> None:
    end = lobby.stranger(frame(Kind.GREETING, "data"))
    end.send(answer(lobby.heard(end, FRAME.size), purpose="control"))
    lobby.until(lambda: has_ended(end))
    assert not lobby.came


def test_what_nobody_serves_is_refused(lobby: Lobby) -> None:
    one = lobby.dial("tea")
    lobby.until(lambda: one.failed)
    assert one.failed == [("nothing is served there for 'tea'", True)]
    assert lobby.lines == ["connection from 127.0.0.1 refused: nothing is served here for 'tea'"]


def test_what_nobody_serves_is_told_nobody_who_has_another_token(lobby: Lobby) -> None:
    one = lobby.dial("tea", OTHER_KEYS)
    lobby.until(lambda: one.failed)
    assert one.failed == [("it has another token", True)]


def test_keys_never_show_themselves() -> None:
    token = Token.drawn()
    assert token.key("challenge").hex() not in repr(Keys.plain(token))
    assert "Token(…)" == repr(token) == str(token)


# --- strangers


OTHER_VERSION = f"it speaks version 9 of what hosts say to each other, and this one speaks {PROTOCOL}; install the same"
GARBAGE = {
    "a browser": (b"GET / HTTP/1.1\r\n\r\n", "it does not speak as Paceline does"),
    "noise": (b"\xff" * 1_000_000, "it does not speak as Paceline does"),
    "another version": (frame(Kind.GREETING, version=9)[:11], OTHER_VERSION),
    "no greeting": (frame(Kind.ANSWER), "it does not open a connection as Paceline does"),
    "no answer": (frame(Kind.GREETING) * 2, "it does not open a connection as Paceline does"),
    "no purpose": (frame(Kind.GREETING)[:12] + b"\xff" * 12 + bytes(32) + frame(Kind.ANSWER), "it has another token"),
    "a guess": (frame(Kind.GREETING) + frame(Kind.ANSWER), "it has another token"),
}


@pytest.mark.parametrize("said", GARBAGE)
def test_garbage_is_refused_in_one_line_and_disturbs_nobody(lobby: Lobby, said: str) -> None:
    data, why = GARBAGE[said]
    bad, good = lobby.stranger(data), lobby.dial()
    lobby.until(lambda: has_ended(bad) and good.end)
    (line,) = lobby.lines
    assert line.startswith(f"connection from 127.0.0.1 refused: {why}")
    assert line.isprintable()
    assert len(lobby.came) == 1
    good.end.close()


def test_a_dialler_says_in_one_line_what_listens_there_instead() -> None:
    def found(said: bytes) -> str:
        ours, theirs = pair()
        side = dials(ours, KEYS, "control")
        next(side)
        theirs.send(said)
        with pytest.raises(NotOpened) as caught:
            next(side)
        theirs.close()
        return str(caught.value)

    assert found(b"SSH-2.0-OpenSSH") == "it does not speak as Paceline does"
    assert found(frame(Kind.WANTS_TLS)) == "it wants TLS: --trusted-network is given on one side only"
    assert found(frame(Kind.SPEAKS_NO_TLS)) == "it does not speak TLS: --trusted-network is given on one side only"
    assert found(frame(Kind.CHALLENGE, version=9)).startswith(OTHER_VERSION)


def test_a_dialler_of_another_version_is_told_which_one_listens(lobby: Lobby) -> None:
    end = lobby.stranger(frame(Kind.GREETING, version=9))
    said = lobby.heard(end, FRAME.size)
    assert FRAME.unpack(said)[:2] == (MAGIC, PROTOCOL)
    lobby.until(lambda: has_ended(end))


def test_a_silent_stranger_is_closed_with_one_line(lobby: Lobby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE", 0.05)
    silent, slow = lobby.stranger(), lobby.stranger(frame(Kind.GREETING))
    lobby.until(lambda: has_ended(silent) and has_ended(slow))
    assert lobby.lines == ["connection from 127.0.0.1 refused: it has said nothing for 0 s"] * 2
    assert not lobby.door._waiting


def test_a_stranger_who_leaves_is_not_worth_a_line(lobby: Lobby) -> None:
    end = lobby.stranger()
    lobby.until(lambda: lobby.door._waiting)
    end.close()
    lobby.until(lambda: not lobby.door._waiting)
    assert not lobby.lines


def test_a_flood_of_strangers_closes_the_oldest_of_them_and_is_told_in_few_lines(lobby: Lobby) -> None:
    one = lobby.dial()
    lobby.until(lambda: one.end and lobby.came)
    flood = []
    for _ in range(200):
        flood.append(lobby.stranger())
        lobby.loop.wait(0.0)
    lobby.until(lambda: sum(has_ended(end) for end in flood) == 200 - MOST_STRANGERS)
    assert len(lobby.door._waiting) == MOST_STRANGERS
    assert len(lobby.lines) == tcp.LINES + 1
    lobby.came[0][1].send(b"still here")
    assert lobby.heard(one.end, 10) == b"still here"
    one.end.close()


def test_a_door_without_free_descriptors_accepts_later(lobby: Lobby, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = lobby.door._listener
    real, failures = listener._end, [errno.EMFILE, errno.ECONNABORTED]

    class Full:
        def accept(self) -> tuple[socket.socket, Any]:
            if failures:
                raise OSError(failures.pop(), "no")
            return real.accept()

        def fileno(self) -> int:
            return real.fileno()

    lobby.loop.unwatch(real)
    listener._end = Full()  # type: ignore[assignment]
    lobby.loop.watch(listener._end, listener._accept)
    after: list[Callable[[], None]] = []
    with monkeypatch.context() as patch:
        patch.setattr(lobby.loop, "after", lambda seconds, call: after.append(call))
        lobby.stranger()
        lobby.loop.wait(PATIENCE)
    assert lobby.lines == ["no connection can be accepted for a second: Too many open files"]
    assert not lobby.loop.watches(listener._end)
    after[-1]()
    lobby.until(lambda: lobby.door._waiting)
    listener._end = real  # with the same descriptor, to be closed


# --- sockets


def test_nobody_is_reached_where_nobody_listens_and_another_try_may_help() -> None:
    lobby = Lobby()
    lobby.door.close()
    one = lobby.dial()
    lobby.until(lambda: one.failed)
    assert one.failed == [("Connection refused", False)]
    lobby.close()


def test_a_socket_that_is_connected_to_itself_has_reached_nobody() -> None:
    loop = Loop()
    end = socket.socket()
    end.bind(tcp.LOOPBACK)
    end.connect(end.getsockname())
    end.setblocking(False)
    failed: list[str] = []
    Handshake(dials(end, KEYS, "control"), loop, opened=lambda one: None, failed=lambda why, final: failed.append(why))
    loop.wait(PATIENCE)
    assert failed == ["nobody listens there"]
    loop.close()


def test_nothing_is_left_of_openings_that_are_closed() -> None:
    before = descriptors()
    lobby = Lobby()
    diallers = [lobby.dial() for _ in range(3)]
    lobby.until(lambda: len(lobby.door._waiting) == 3)
    for one in diallers:
        one.opening.close()
        one.opening.close()
    stranger = lobby.stranger()
    lobby.until(lambda: len(lobby.door._waiting) == 1)
    lobby.close()
    lobby.door.close()
    stranger.close()
    assert descriptors() == before
    assert not [one for one in diallers if one.failed or one.end]
