"""How connections are opened at a door, over real sockets on loopback: who is let in, and what strangers can't do."""

from __future__ import annotations

import errno
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from paceline.ipc.loop import Loop
from paceline.net import listener, tcp
from paceline.net.handshake import FRAME, PROTOCOL, Handshake, Kind, NotOpened, dials
from paceline.net.listener import MOST_STRANGERS, goes, network
from support.clusters import KEYS, PATIENCE, tls_keys
from support.floods import KINDS, Manners
from support.lobby import OTHER_KEYS, Dialler, Lobby, answer, frame, has_ended
from support.processes import descriptors


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


def test_a_silent_stranger_is_closed_with_one_line(lobby: Lobby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE", 0.05)
    silent, slow = lobby.stranger(), lobby.stranger(frame(Kind.GREETING))
    lobby.until(lambda: has_ended(silent) and has_ended(slow))
    assert lobby.lines == ["connection from 127.0.0.1 refused: it has said nothing for 0 s"] * 2
    assert not lobby.door._waiting


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


# --- strangers who flood a door


def test_addresses_of_one_ipv6_network_are_one() -> None:
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("fe80::1%eth0") == network("fe80::2")
    assert network("10.0.0.1") != network("10.0.0.2")


@pytest.mark.parametrize("seed", range(20))
def test_whoever_goes_is_the_oldest_of_those_that_have_the_most(seed: int) -> None:
    lots = random.Random(seed)
    there: dict[int, str | bytes] = {number: lots.choice("abcdefgh"[: 1 + seed % 8]) for number in range(30)}
    while there:
        one, counts = goes(there), Counter(there.values())
        assert one == min(other for other, where in there.items() if counts[where] == max(counts.values()))
        del there[one]


@pytest.fixture
def encrypted() -> Iterator[Lobby]:
    lobby = Lobby(tls_keys())
    yield lobby
    lobby.close()


@dataclass
class Asked:
    """A dialler that was asked for the token, and is slow to answer."""

    lobby: Lobby
    end: socket.socket
    challenge: bytes

    def answers(self) -> None:
        """It is let in."""
        before = len(self.lobby.came)
        self.end.send(answer(self.challenge, self.lobby.keys))
        self.lobby.until(lambda: len(self.lobby.came) > before)


def asked(lobby: Lobby, source: str) -> Asked:
    end = lobby.stranger(frame(Kind.GREETING), source)
    return Asked(lobby, end, lobby.heard(end, FRAME.size))


def strangers(lobby: Lobby, *sources: str) -> list[socket.socket]:
    """So many strangers, who were asked for the token, or turned away, one after the other."""
    ends = []
    for source in sources:
        ends.append(lobby.stranger(frame(Kind.GREETING), source))
        lobby.heard(ends[-1], FRAME.size)
    return ends


def test_a_host_is_let_in_however_many_strangers_come_from_elsewhere(lobby: Lobby) -> None:
    host = asked(lobby, "127.0.0.2")
    strangers(lobby, *["127.0.0.3"] * 2 * MOST_STRANGERS)
    host.answers()


def many(number: int) -> list[str]:
    """So many addresses, from which nobody has come."""
    return [f"127.1.{which // 200}.{which % 200 + 1}" for which in range(number)]


def test_a_host_that_has_been_there_has_places_that_strangers_from_anywhere_else_never_take(lobby: Lobby) -> None:
    asked(lobby, "127.0.0.2").answers()
    back, told = asked(lobby, "127.0.0.2"), []
    lobby.door.crowded = lambda: told.append("crowded")
    strangers(lobby, *many(2 * MOST_STRANGERS))
    back.answers()
    assert not told


def test_that_a_known_address_is_crowded_is_told(lobby: Lobby) -> None:
    asked(lobby, "127.0.0.2").answers()
    told: list[str] = []
    lobby.door.crowded = lambda: told.append("crowded")
    strangers(lobby, *["127.0.0.2"] * MOST_STRANGERS)
    assert not told
    strangers(lobby, "127.0.0.2", "127.0.0.2")
    assert len(told) == 2


def test_places_of_strangers_from_where_a_host_has_come_are_bounded_as_all_others_are(lobby: Lobby) -> None:
    asked(lobby, "127.0.0.2").answers()
    strangers(lobby, *["127.0.0.2", "127.0.0.3"] * 2 * MOST_STRANGERS)
    assert len(lobby.door._waiting) == 2 * MOST_STRANGERS


class Counted:
    """Certificates, and how often a handshake of TLS began here."""

    def __init__(self, real: Any) -> None:
        self.real, self.begun = real, 0

    def wrap(self, end: socket.socket, *, listens: bool) -> Any:
        self.begun += listens
        return self.real.wrap(end, listens=listens)


def says(lobby: Lobby, manners: Manners) -> socket.socket:
    """A stranger who says that."""
    end = lobby.stranger(manners.first)
    if manners.answers:
        lobby.heard(end, FRAME.size)
        end.send(manners.answers)
    if manners.leaves:
        end.close()
    return end


@pytest.mark.parametrize("kind", KINDS)
def test_no_stranger_begins_a_handshake_of_tls(kind: str) -> None:
    certificates = Counted(tls_keys().certificates)
    lobby = Lobby(replace(tls_keys(), certificates=certificates))
    ends = [says(lobby, KINDS[kind]) for _ in range(5)]
    one = lobby.dial()
    lobby.until(lambda: one.end)
    assert certificates.begun == 1
    if kind in ("part of a handshake", "whole ClientHello", "wrong answer"):
        lobby.until(lambda: all(has_ended(end) for end in ends))
    one.end.close()
    lobby.close()


def test_strangers_never_come_to_another_process(encrypted: Lobby) -> None:
    """What is handed over has the token."""
    handed = []
    encrypted.door.hands_over("data", handed.append)
    bad = encrypted.stranger(frame(Kind.GREETING_BEFORE_TLS, "data"))
    bad.send(frame(Kind.ANSWER, "data") + b"\x16")
    encrypted.until(lambda: has_ended(bad))
    assert not handed
    good = encrypted.dial("data")
    encrypted.until(lambda: handed)
    encrypted.door.takes(handed[0])
    encrypted.until(lambda: good.end)
    assert encrypted.came[0][0] == "data"
    good.end.close()


def test_a_refused_dialler_hears_why_though_tls_has_begun(encrypted: Lobby) -> None:
    """The refusal comes in clear, in the place of TLS, many times: a connection that is reset early would lose it."""
    found: list[Dialler] = [encrypted.dial(keys=replace(tls_keys(), challenge=bytes(32))) for _ in range(30)]
    encrypted.until(lambda: all(one.failed for one in found))
    assert {one.failed[0] for one in found} == {("it has another token", True)}
