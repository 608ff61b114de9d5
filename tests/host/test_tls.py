"""Connections with TLS, over real sockets on loopback: who is refused, and what a connection must not lose."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from paceline.net import listener, tls
from paceline.net.handshake import FRAME, Keys, Kind
from paceline.net.tcp import Stream
from support.clusters import KEYS, TOKEN, tls_keys
from support.lobby import OTHER_TOKEN, Dialler, Lobby, answer, frame, has_ended

GREETING = frame(Kind.GREETING_BEFORE_TLS)
ONE_SIDE = "--trusted-network is given on one side only"


@pytest.fixture
def lobby() -> Iterator[Lobby]:
    lobby = Lobby(tls_keys())
    yield lobby
    lobby.close()


def opened(lobby: Lobby, one: Dialler) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Both ends of a connection, the dialler's first."""
    lobby.until(lambda: one.end and lobby.came)
    lobby.ends.append(one.end)
    return one.end, lobby.came[-1][1]


def shakes_hands(lobby: Lobby, context: ssl.SSLContext) -> tuple[ssl.SSLSocket, list[ssl.SSLError]]:
    """Somebody with the token and another TLS than ours. Return their socket, and why it failed there, if it did."""
    raw = lobby.stranger(GREETING)
    raw.send(answer(lobby.heard(raw, FRAME.size)))
    end = context.wrap_socket(raw, do_handshake_on_connect=False)
    lobby.ends.append(end)
    failed: list[ssl.SSLError] = []

    def done() -> bool:
        try:
            end.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except ssl.SSLError as error:
            failed.append(error)
        return True

    lobby.until(done)
    return end, failed


def anybody() -> ssl.SSLContext:
    """Somebody with the usual TLS, to whom every listener will do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


# --- who is let in


def test_both_sides_speak_tls_1_3_and_show_certificates_that_never_expire(lobby: Lobby) -> None:
    ends = opened(lobby, lobby.dial())
    assert [end.version() for end in ends] == ["TLSv1.3"] * 2
    for end in ends:
        shown = end.getpeercert()
        assert shown is not None
        assert (shown["notBefore"], shown["notAfter"]) == ("Jan  1 00:00:00 2000 GMT", "Dec 31 00:00:00 9999 GMT")


def test_nothing_of_a_connection_can_be_used_for_another_one(lobby: Lobby) -> None:
    ours, theirs = opened(lobby, lobby.dial())
    theirs.send(b"x")  # a ticket would have come before that
    assert lobby.heard(ours, 1) == b"x"
    assert ours.session is None or not ours.session.has_ticket


def test_who_has_the_certificate_but_not_the_token_is_refused(lobby: Lobby) -> None:
    """As if a certificate had been taken along from elsewhere: what is said before TLS asks for the token as well."""
    stolen = Keys(OTHER_TOKEN.key("challenge"), lobby.keys.certificates)
    one = lobby.dial(keys=stolen)
    lobby.until(lambda: one.failed and lobby.lines)
    assert one.failed == [("it has another token", True)]
    assert not lobby.came


def test_who_shows_no_certificate_is_refused(lobby: Lobby) -> None:
    end, failed = shakes_hands(lobby, anybody())
    lobby.until(lambda: lobby.lines)
    assert lobby.lines == ["connection from 127.0.0.1 refused: it shows no certificate"]
    with pytest.raises(ssl.SSLError):
        end.recv(1)
    assert (lobby.came, failed) == ([], [])


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def is_refused(lobby: Lobby, own: ec.EllipticCurvePrivateKey, shown: list[Any], trusted: Any) -> None:
    """Who has that key, shows these certificates and trusts that one is refused."""
    key = own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = tls._context(ssl.PROTOCOL_TLS_CLIENT, key + b"".join(map(tls._pem, shown)), tls._pem(trusted))
    context.verify_mode = ssl.CERT_NONE
    shakes_hands(lobby, context)
    lobby.until(lambda: lobby.lines)
    assert lobby.lines == ["connection from 127.0.0.1 refused: it has another token"]
    assert not lobby.came


@pytest.mark.parametrize("names", ["its own", "ours"])
def test_who_shows_a_certificate_of_another_authority_is_refused(
    lobby: Lobby, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    if names == "its own":
        real = tls._name
        monkeypatch.setattr(tls, "_name", lambda name: real(f"{name} of somebody"))
    authority, own = new_key(), new_key()
    trusted = tls._certificate(authority, authority, "authority")
    is_refused(lobby, own, [tls._certificate(own, authority, "host")], trusted)


def test_a_host_s_certificate_issues_no_others(lobby: Lobby) -> None:
    """A certificate that was signed by a host's own key, and shown with the host's."""
    secret = int.from_bytes(TOKEN.key("authority", 48), "big") % (tls.ORDER - 1) + 1
    authority, host, own = ec.derive_private_key(secret, ec.SECP256R1()), new_key(), new_key()
    leaf = tls._certificate(host, authority, "authority")  # in the name that issues
    is_refused(lobby, own, [tls._certificate(own, host, "host"), leaf], leaf)


def test_an_older_tls_is_refused(lobby: Lobby) -> None:
    context = anybody()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    _, failed = shakes_hands(lobby, context)
    assert failed
    lobby.until(lambda: lobby.lines)
    assert lobby.lines == ["connection from 127.0.0.1 refused: it speaks an older TLS than 1.3"]


# --- strangers

PLAIN = {
    "a greeting without TLS": (frame(Kind.GREETING), f"it does not speak TLS: {ONE_SIDE}"),
    "TLS, and no answer": (GREETING + b"\x16\x03\x01\x02\x00", "it does not speak as Paceline does"),
}


@pytest.mark.parametrize("said", PLAIN)
def test_plain_bytes_are_refused_in_one_line_and_disturb_nobody(lobby: Lobby, said: str) -> None:
    data, why = PLAIN[said]
    bad, good = lobby.stranger(data), lobby.dial()
    lobby.until(lambda: has_ended(bad) and good.end)
    (line,) = lobby.lines
    assert line.startswith(f"connection from 127.0.0.1 refused: {why}")
    assert line.isprintable()
    assert len(lobby.came) == 1
    good.end.close()


@pytest.mark.parametrize("said", [b"\x16\x03\x01\xff\xff" + b"x" * 100, b"\x16" + bytes(100), b"x" * 100])
def test_who_has_the_token_and_does_not_go_on_with_tls_is_refused(lobby: Lobby, said: bytes) -> None:
    bad = lobby.stranger(GREETING)
    bad.send(answer(lobby.heard(bad, FRAME.size)) + said)
    lobby.until(lambda: has_ended(bad))
    assert len(lobby.lines) == 1
    assert not lobby.came


def test_a_trusted_network_on_one_side_only_is_said_on_both_sides(lobby: Lobby) -> None:
    plain = lobby.dial(keys=KEYS)
    lobby.until(lambda: plain.failed and lobby.lines)
    assert plain.failed == [(f"it wants TLS: {ONE_SIDE}", True)]
    assert lobby.lines == [f"connection from 127.0.0.1 refused: it does not speak TLS: {ONE_SIDE}"]
    trusting = Lobby(KEYS)
    with_tls = trusting.dial(keys=tls_keys())
    trusting.until(lambda: with_tls.failed and trusting.lines)
    assert with_tls.failed == [(f"it does not speak TLS: {ONE_SIDE}", True)]
    assert trusting.lines == [f"connection from 127.0.0.1 refused: it speaks TLS: {ONE_SIDE}"]
    trusting.close()


def test_handshakes_that_stop_halfway_hold_up_no_other_and_end_in_time(
    lobby: Lobby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that have the token: others begin none. See `test_door.py`."""
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        anybody().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    flight = outgoing.read()
    halfway = [lobby.stranger(GREETING) for _ in range(20)]
    for number, end in enumerate(halfway):
        end.send(answer(lobby.heard(end, FRAME.size)) + flight[: 50 + 10 * number])
    good = lobby.dial()
    lobby.until(lambda: good.end)
    assert not any(has_ended(end) for end in halfway)
    monkeypatch.setattr(listener, "HANDSHAKE", 0.0)
    lobby.door._see_to_silence()
    lobby.until(lambda: all(has_ended(end) for end in halfway))
    good.end.close()


# --- what a stream does with TLS


class Ends:
    """Two streams over one connection with TLS."""

    def __init__(self, lobby: Lobby, heard: Callable[[Stream], object]) -> None:
        self.ended: list[str] = []
        ours, theirs = opened(lobby, lobby.dial(buffer=100_000))
        common: dict[str, Any] = {"timeout": 9.0, "most": 1 << 30}
        self.here = Stream(ours, lobby.loop, heard=lambda: heard(self.here), lost=self.ended.append, **common)
        self.there = Stream(theirs, lobby.loop, heard=lambda: self.there.receive(1), lost=lambda _: None, **common)


def test_what_is_decrypted_is_heard_though_no_socket_tells_of_it(lobby: Lobby) -> None:
    got = bytearray()
    ends = Ends(lobby, lambda stream: got.extend((stream.receive_into(memory) and memory) or b""))
    memory = memoryview(bytearray(3))
    ends.there.write(b"abcdefghi" * 1000)
    lobby.until(lambda: len(got) == 9000)
    assert bytes(got) == b"abcdefghi" * 1000
    ends.here.close()
    ends.there.close()


def test_what_waits_for_room_comes_whole_and_in_order(lobby: Lobby) -> None:
    got = bytearray()
    ends = Ends(lobby, lambda stream: got.extend(stream.receive(50_000)))
    ends.there._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
    sent = [os.urandom(size) for size in (3_000_000, 1, 0, 16_384, 16_385, 100, 2_000_000)]
    for part in sent:
        ends.there.write(part)
    assert ends.there.waits
    lobby.until(lambda: len(got) == sum(map(len, sent)))
    assert bytes(got) == b"".join(sent)
    ends.here.close()
    ends.there.close()


def test_all_that_was_sent_before_the_end_comes_before_it(lobby: Lobby) -> None:
    got = bytearray()
    ends = Ends(lobby, lambda stream: got.extend(stream.receive(1000)))
    for _ in range(100):
        ends.there.write(b"x" * 20)
    ends.there.close()
    lobby.until(lambda: ends.ended)
    assert (len(got), ends.ended) == (2000, ["the other end has closed it"])


def test_a_connection_that_is_given_up_hands_out_nothing_that_is_still_encrypted(lobby: Lobby) -> None:
    got = bytearray()
    ends = Ends(lobby, lambda stream: got.extend(stream.receive(1000)))
    ends.there.write(b"x" * 2000)
    ends.here._give_up("the test")
    lobby.until(lambda: ends.ended)
    assert set(got) <= set(b"x")
    assert ends.ended == ["the test"]
    ends.there.close()


def test_a_byte_that_is_changed_on_the_way_ends_the_connection(lobby: Lobby) -> None:
    got = bytearray()
    ends = Ends(lobby, lambda stream: got.extend(stream.receive(1000)))
    raw = socket.socket(fileno=os.dup(ends.there._end.fileno()))
    raw.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    lobby.until(lambda: ends.ended)
    assert (bytes(got), ends.ended) == (b"", ["TLS fails: decryption failed or bad record mac"])
    raw.close()
    ends.there.close()


# --- what is imported


def test_only_who_encrypts_imports_what_that_takes() -> None:
    program = (
        "import sys, paceline, paceline.cli.main, paceline.cli.token, paceline.coordinator.run, "
        "paceline.coordinator.emulated, paceline.coordinator.host_registry; assert 'cryptography' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
