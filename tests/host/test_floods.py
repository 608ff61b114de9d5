"""Strangers who flood a door: what they take from each other, and that they take nothing from hosts."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from paceline.net.handshake import FRAME, Kind
from paceline.net.listener import MOST_STRANGERS, goes, network
from support.clusters import tls_keys
from support.floods import KINDS, Manners, far_from, flood
from support.lobby import Dialler, Lobby, answer, frame, has_ended

# --- who has to go


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


# --- at a door, over real sockets


@pytest.fixture
def lobby() -> Iterator[Lobby]:
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


@pytest.fixture
def plain() -> Iterator[Lobby]:
    lobby = Lobby()
    yield lobby
    lobby.close()


def test_a_host_is_let_in_however_many_strangers_come_from_elsewhere(plain: Lobby) -> None:
    host = asked(plain, "127.0.0.2")
    strangers(plain, *["127.0.0.3"] * 2 * MOST_STRANGERS)
    host.answers()


def many(number: int) -> list[str]:
    """So many addresses, from which nobody has come."""
    return [f"127.1.{which // 200}.{which % 200 + 1}" for which in range(number)]


def test_a_host_that_has_been_there_has_places_that_strangers_from_anywhere_else_never_take(plain: Lobby) -> None:
    asked(plain, "127.0.0.2").answers()
    back, told = asked(plain, "127.0.0.2"), []
    plain.door.crowded = lambda: told.append("crowded")
    strangers(plain, *many(2 * MOST_STRANGERS))
    back.answers()
    assert not told


def test_that_a_known_address_is_crowded_is_told(plain: Lobby) -> None:
    asked(plain, "127.0.0.2").answers()
    told: list[str] = []
    plain.door.crowded = lambda: told.append("crowded")
    strangers(plain, *["127.0.0.2"] * MOST_STRANGERS)
    assert not told
    strangers(plain, "127.0.0.2", "127.0.0.2")
    assert len(told) == 2


def test_places_of_strangers_from_where_a_host_has_come_are_bounded_as_all_others_are(plain: Lobby) -> None:
    asked(plain, "127.0.0.2").answers()
    strangers(plain, *["127.0.0.2", "127.0.0.3"] * 2 * MOST_STRANGERS)
    assert len(plain.door._waiting) == 2 * MOST_STRANGERS


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


@pytest.mark.long
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_host_far_away_is_let_in_at_once_beside_a_flood(kind: str, source: str, lobby: Lobby) -> None:
    with far_from(lobby.door.address, source=source) as address, flood(lobby.door.address, kind, 200):
        began = lobby.loop.now()
        lobby.until(lambda: lobby.loop.now() > began + 3)
        for _ in range(5):
            one, began = lobby.dial(address=address), lobby.loop.now()
            lobby.until(lambda: one.end or one.failed)  # noqa: B023 - it is called here
            assert not one.failed
            assert lobby.loop.now() < began + 2
            one.end.close()


def test_strangers_never_come_to_another_process(lobby: Lobby) -> None:
    """What is handed over has the token."""
    handed = []
    lobby.door.hands_over("data", handed.append)
    bad = lobby.stranger(frame(Kind.GREETING_BEFORE_TLS, "data"))
    bad.send(frame(Kind.ANSWER, "data") + b"\x16")
    lobby.until(lambda: has_ended(bad))
    assert not handed
    good = lobby.dial("data")
    lobby.until(lambda: handed)
    lobby.door.takes(handed[0])
    lobby.until(lambda: good.end)
    assert lobby.came[0][0] == "data"
    good.end.close()


def test_a_refused_dialler_hears_why_though_tls_has_begun(lobby: Lobby) -> None:
    """The refusal comes in clear, in the place of TLS, many times: a connection that is reset early would lose it."""
    found: list[Dialler] = [lobby.dial(keys=replace(tls_keys(), challenge=bytes(32))) for _ in range(30)]
    lobby.until(lambda: all(one.failed for one in found))
    assert {one.failed[0] for one in found} == {("it has another token", True)}
