"""How a connection between hosts is opened, before any message goes over it.

    dialler                                            listener
    greeting    what for, random bytes       ───►
                                             ◄───      challenge   random bytes
    answer      a proof over all of that     ───►
    ─────────────── TLS 1.3, where there are certificates ───────────────
                                             ◄───      welcome     another proof over the same

The frames before TLS hold no secret. They say what the connection is for, so that another process can do the rest, and
why two sides can't go on. The answer comes before TLS, so a stranger can't cause a TLS handshake, which takes
milliseconds.

A proof takes a key that follows from the token. Both sides draw random bytes for each connection, so a recorded proof
is worthless. The two proofs differ, so neither can be sent back. A side that can't go on says why in one line. All
frames have one size, and no byte after them is read: a `Stream` goes on from there.

Each side is a generator that never blocks. It yields what it waits for, and returns the socket. `Handshake` drives it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import ssl
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from paceline.ipc.loop import Loop
from paceline.net.tcp import ENDED, Address, leave, to_itself, told
from paceline.net.token import Token

PROTOCOL = 3
"""The version of the protocols between hosts, over connections of any purpose."""
MAGIC = b"\xc1paceline"
"""The first bytes of all frames, in all versions. Text and TLS never begin with these."""
FRAME = struct.Struct("!9sHB12s32s")
"""Magic, version, kind, purpose, and random bytes or a proof. The first two never change."""
BEGINNING = struct.Struct("!9sH")
ONE_SIDE = "--trusted-network is given on one side only"
OTHER_TOKEN = "it has another token"

T = TypeVar("T")


class Kind(IntEnum):
    """The kinds of frames."""

    GREETING = 1
    """From a dialler without TLS."""
    CHALLENGE = 2
    ANSWER = 3
    WELCOME = 4
    OTHER_TOKEN = 5
    """Instead of a welcome."""
    GREETING_BEFORE_TLS = 6
    WANTS_TLS = 7
    """To a dialler without TLS."""
    SPEAKS_NO_TLS = 8
    """To a dialler with TLS."""
    NOT_SERVED = 9
    """Instead of a welcome: something else listens there."""


class Certificates(Protocol):
    """See `net.tls`."""

    def wrap(self, end: socket.socket, *, listens: bool) -> ssl.SSLSocket:
        """Return the socket with TLS over it, before TLS's own handshake."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys for opening connections, which follow from the token."""

    challenge: bytes
    certificates: Certificates | None
    """None: connections are plain."""

    @classmethod
    def plain(cls, token: Token) -> Keys:
        """Return the keys for connections without TLS: within a machine, or over a trusted network."""
        return cls(token.key("challenge"), None)

    @classmethod
    def encrypted(cls, token: Token) -> Keys:
        """Return the keys for connections with TLS."""
        from paceline.net.tls import Tls  # takes long to import, and plain connections don't need it

        return cls(token.key("challenge"), Tls(token))

    def __repr__(self) -> str:
        return "Keys(…)"


class NotOpened(Exception):
    """The two sides can't open a connection, and another try would fail as well. The text says why."""


class _OtherVersion(NotOpened):
    """The other side speaks another version."""


class SocketWait(NamedTuple):
    """What a handshake waits for: bytes to read from this socket, or room to write."""

    end: Any
    what: Literal["bytes", "room"]


class Opened(NamedTuple):
    """A connection that is open. Its socket does not block."""

    end: Any
    purpose: str


class Answered(NamedTuple):
    """A connection whose dialler has proved that it has the token. With certificates, TLS comes next."""

    end: Any
    purpose: str
    theirs: bytes
    """The dialler's random bytes."""
    ours: bytes


Side = Generator[SocketWait, None, T]


def dials(end: Any, keys: Keys, purpose: str) -> Side[Opened]:
    """The dialler's side, over a socket that is connecting."""
    assert len(purpose) <= 12, "a purpose fits into its frame"
    try:
        _send_at_once(end)
        yield SocketWait(end, "room")
        if failed := end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(failed, os.strerror(failed))
        if to_itself(end):
            raise OSError("nobody listens there")
        ours = secrets.token_bytes(32)
        yield from _say(end, Kind.GREETING if keys.certificates is None else Kind.GREETING_BEFORE_TLS, purpose, ours)
        _, _, theirs = yield from _hear(end, Kind.CHALLENGE)
        yield from _say(end, Kind.ANSWER, purpose, _proof(keys, "dialler", purpose, ours, theirs))
        if keys.certificates is not None:
            end = keys.certificates.wrap(end, listens=False)
            yield from _trying(end.do_handshake, SocketWait(end, "bytes"))
        kind, _, proof = yield from _hear(end, Kind.WELCOME, Kind.NOT_SERVED)
        if kind == Kind.NOT_SERVED:
            raise NotOpened(_not_served(purpose)[0])
        _prove(proof, _proof(keys, "listener", purpose, ours, theirs))
        return Opened(end, purpose)
    except BaseException:
        leave(end)
        raise


def challenges(end: Any, keys: Keys) -> Side[Answered]:
    """The listener's side over an accepted connection, up to the answer. Strangers get no further."""
    try:
        end.setblocking(False)
        _send_at_once(end)
        yield SocketWait(end, "bytes")
        try:
            kind, purpose, theirs = yield from _hear(end, Kind.GREETING, Kind.GREETING_BEFORE_TLS)
        except _OtherVersion:
            yield from _say(end, Kind.CHALLENGE)  # shows this side's version
            raise
        speaks_tls, wants_tls = kind == Kind.GREETING_BEFORE_TLS, keys.certificates is not None
        if speaks_tls != wants_tls:
            yield from _say(end, Kind.WANTS_TLS if wants_tls else Kind.SPEAKS_NO_TLS)
            raise NotOpened(f"it {'does not speak' if wants_tls else 'speaks'} TLS: {ONE_SIDE}")
        ours = secrets.token_bytes(32)
        yield from _say(end, Kind.CHALLENGE, "", ours)
        _, _, proof = yield from _hear(end, Kind.ANSWER)
        try:
            _prove(proof, _proof(keys, "dialler", purpose, theirs, ours))
        except NotOpened:
            if speaks_tls:
                yield SocketWait(end, "bytes")  # await TLS: a dialler that is still sending would miss the refusal
            yield from _say(end, Kind.OTHER_TOKEN)
            raise
        return Answered(end, purpose, theirs, ours)
    except BaseException:
        leave(end)
        raise


def welcomes(answered: Answered, keys: Keys, serves: Callable[[str], bool]) -> Side[Opened]:
    """The rest of the listener's side. `serves`: whether connections of that purpose are accepted."""
    end, purpose, theirs, ours = answered
    try:
        yield SocketWait(end, "room")
        if keys.certificates is not None:
            end = keys.certificates.wrap(end, listens=True)
            yield from _trying(end.do_handshake, SocketWait(end, "bytes"))
        if not serves(purpose):
            yield from _say(end, Kind.NOT_SERVED)
            raise NotOpened(_not_served(purpose)[1])
        yield from _say(end, Kind.WELCOME, purpose, _proof(keys, "listener", purpose, theirs, ours))
        return Opened(end, purpose)
    except BaseException:
        leave(end)
        raise


class Handshake(Generic[T]):
    """Drives one side in the loop. It calls `opened` or `failed` once, unless it is closed before."""

    def __init__(
        self,
        side: Side[T],
        loop: Loop,
        *,
        opened: Callable[[T], object],
        failed: Callable[[str, bool], object],
    ) -> None:
        """`failed` is called with why, and whether another try would fail as well."""
        self._side = side
        self._loop = loop
        self._opened = opened
        self._failed = failed
        self._watched: Any = None
        self._closed = False
        self._await(next(side))

    def go_on(self) -> None:
        """Go on, as the awaited bytes or room may be there."""
        if self._closed:
            return
        self._unwatch()
        try:
            wait = next(self._side)
        except StopIteration as end:
            self.close()
            self._opened(end.value)
        except NotOpened as error:
            self.close()
            self._failed(str(error), True)
        except OSError as error:
            self.close()
            self._failed(told(error), False)
        else:
            self._await(wait)

    def close(self) -> None:
        """Give the connection up, unless it is open by now. Closing twice does no harm."""
        if not self._closed:
            self._closed = True
            self._unwatch()
            self._side.close()

    def _await(self, wait: SocketWait) -> None:
        self._watched = wait.end
        self._loop.watch(wait.end, self.go_on if wait.what == "bytes" else _nothing)
        if wait.what == "room":  # a failed connection has room, too
            self._loop.await_room(wait.end, self.go_on)

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._loop.unwatch(self._watched)
            self._watched = None


def dial(
    address: Address,
    keys: Keys,
    purpose: str,
    loop: Loop,
    *,
    opened: Callable[[Any], object],
    failed: Callable[[str, bool], object],
) -> Handshake[Opened]:
    """Open a connection to that address. Raises OSError if that fails at once. See `Handshake`."""
    side = dials(loop.dial(address), keys, purpose)
    return Handshake(side, loop, opened=lambda one: opened(one.end), failed=failed)


# --- frames -------------------------------------------------------------------------------------


def _say(end: Any, kind: Kind, purpose: str = "", value: bytes = b"") -> Generator[SocketWait, None, None]:
    left = FRAME.pack(MAGIC, PROTOCOL, kind, purpose.encode(), value)
    while left:
        sent = yield from _trying(partial(end.send, left), SocketWait(end, "room"))
        left = left[sent:]


def _hear(end: Any, *wanted: Kind) -> Generator[SocketWait, None, tuple[Kind, str, bytes]]:
    """Read the next frame, of one of these kinds. A stranger is found out by its first bytes."""
    data = b""
    while len(data) < FRAME.size:
        more = yield from _trying(partial(end.recv, FRAME.size - len(data)), SocketWait(end, "bytes"))
        if not more:
            raise OSError(ENDED)
        data += more
        if not data.startswith(MAGIC[: len(data)]):
            raise NotOpened("it does not speak as Paceline does")
        if len(data) >= BEGINNING.size and (version := BEGINNING.unpack_from(data)[1]) != PROTOCOL:
            raise _OtherVersion(
                f"it speaks version {version} of what hosts say to each other, and this one speaks {PROTOCOL}; "
                "install the same version of Paceline on all hosts"
            )
    _, _, kind, purpose, value = FRAME.unpack(data)
    if kind in _REFUSALS:
        raise NotOpened(_REFUSALS[kind])
    if kind not in wanted:
        raise NotOpened("it does not open a connection as Paceline does")
    return Kind(kind), purpose.rstrip(b"\0").decode("ascii", "replace"), value


def _proof(keys: Keys, side: Literal["dialler", "listener"], purpose: str, dialler: bytes, listener: bytes) -> bytes:
    said = f"{side} {purpose}\0".encode() + dialler + listener
    return hmac.new(keys.challenge, said, hashlib.sha256).digest()


def _prove(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise NotOpened(OTHER_TOKEN)


def _trying(call: Callable[[], T], blocked: SocketWait) -> Generator[SocketWait, None, T]:
    """Call until the call doesn't block."""
    while True:
        try:
            return call()
        except BlockingIOError:
            yield blocked
        except ssl.SSLWantReadError:
            yield SocketWait(blocked.end, "bytes")
        except ssl.SSLWantWriteError:
            yield SocketWait(blocked.end, "room")
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise
        except ssl.SSLError as error:
            raise NotOpened(_REASONS.get(error.reason or "", told(error))) from error


_REFUSALS: dict[int, str] = {
    Kind.OTHER_TOKEN: OTHER_TOKEN,
    Kind.WANTS_TLS: f"it wants TLS: {ONE_SIDE}",
    Kind.SPEAKS_NO_TLS: f"it does not speak TLS: {ONE_SIDE}",
}
"""What a dialler makes of a listener's refusal."""
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    "CERTIFICATE_VERIFY_FAILED": OTHER_TOKEN,
    "TLSV1_ALERT_UNKNOWN_CA": OTHER_TOKEN,
    "TLSV1_ALERT_DECRYPT_ERROR": OTHER_TOKEN,
    "WRONG_VERSION_NUMBER": OTHER_TOKEN,  # a listener says so in clear, in the place of TLS
    "UNSUPPORTED_PROTOCOL": "it speaks an older TLS than 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks an older TLS than 1.3",
}
"""By OpenSSL's name of an error: what it means here."""


_BEGUN_OTHERWISE = (
    "paceline doctor listens there, which only measures a link; begin the run there with paceline run --listen",
    "it is paceline join, and paceline doctor listens here, which only measures a link",
)
_NOT_SERVED = {
    "control": _BEGUN_OTHERWISE,
    "hash-seed": _BEGUN_OTHERWISE,  # which `paceline join` asks for before
    "measure": (
        "a run listens there, which measures no link; begin with paceline doctor --listen there, at another port",
        "it is paceline doctor, and a run listens here, which measures no link",
    ),
}
"""By purpose: what the dialler is told, and what the listener shows. It tells apart the two commands that listen."""


def _not_served(purpose: str) -> tuple[str, str]:
    nothing = f"nothing is served there for {purpose!r}", f"nothing is served here for {purpose!r}"
    return _NOT_SERVED.get(purpose, nothing)


def _send_at_once(end: Any) -> None:
    """Send small frames at once. Otherwise each waits for the one before to be acknowledged, for up to 40 ms."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _nothing() -> None:
    """Read nothing while a handshake waits for room."""
