"""A door in a loop, those who dial it, and what both sides are told."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from paceline.ipc.loop import Loop
from paceline.net import tcp
from paceline.net.handshake import FRAME, MAGIC, PROTOCOL, Handshake, Keys, Kind, Opened, _proof, dial, dials
from paceline.net.listener import HostListener
from paceline.net.token import Token
from support.clusters import KEYS, InLoop, without_port

OTHER_TOKEN = Token(bytes(31) + b"1")
OTHER_KEYS = Keys.plain(OTHER_TOKEN)


def frame(kind: Kind, purpose: str = "control", value: bytes = bytes(32), version: int = PROTOCOL) -> bytes:
    """One frame of an opening."""
    return FRAME.pack(MAGIC, version, kind, purpose.encode(), value)


def answer(challenge: bytes, keys: Keys = KEYS, purpose: str = "control") -> bytes:
    """What the dialler answers whose random bytes are all zero."""
    return frame(Kind.ANSWER, purpose, _proof(keys, "dialler", purpose, bytes(32), challenge[-32:]))


class Dialler:
    """Somebody who dials, and what came of it."""

    def __init__(self) -> None:
        self.opening: Handshake[Opened]
        self.end: Any = None
        self.failed: list[tuple[str, bool]] = []

    def opened(self, end: Any) -> None:
        self.end = end

    def has_failed(self, why: str, final: bool) -> None:
        self.failed.append((why, final))


def opened(at: Any, purpose: str, said: bytes = b"", buffer: int | None = None) -> Any:
    """The end of somebody who opens a connection at a door, and says this. `buffer`: bytes that wait unread there.

    `at` has the door, its keys and the loop, in which it waits.
    """
    came: list[Any] = []
    end = at.loop.dial(at.door.address)
    if buffer is not None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    side = dials(end, at.keys, purpose)
    Handshake(side, at.loop, opened=lambda it: came.append(it.end), failed=lambda why, final: came.append(why))
    at.until(lambda: came)
    (end,) = came
    assert not isinstance(end, str), end
    end.send(said)
    return end


class Lobby(InLoop):
    """A door that serves control and data."""

    def __init__(self, keys: Keys = KEYS) -> None:
        self.loop = Loop()
        self.lines: list[str] = []
        """Without ports of diallers."""
        self.came: list[tuple[str, Any]] = []
        """Connections that were let in: what for, and the socket."""
        self.door = HostListener(tcp.listen(), self.loop, keys, lambda line: self.lines.append(without_port(line)))
        for purpose in ("control", "data"):
            self.serve(purpose)
        self.keys = keys
        self.ends: list[socket.socket] = []

    def serve(self, purpose: str) -> None:
        self.door.serves(purpose, lambda end: self.came.append((purpose, end)))

    def dial(self, purpose: str = "control", keys: Keys | None = None, buffer: int | None = None) -> Dialler:
        """Dial as another host does. `buffer`: bytes that wait there unread."""
        one = Dialler()
        if buffer is None:
            to = self.door.address, keys or self.keys, purpose, self.loop
            one.opening = dial(*to, opened=one.opened, failed=one.has_failed)
        else:
            end = self.loop.dial(self.door.address)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            side = dials(end, keys or self.keys, purpose)
            one.opening = Handshake(side, self.loop, opened=lambda it: one.opened(it.end), failed=one.has_failed)
        return one

    def stranger(self, said: bytes = b"", source: str = "") -> socket.socket:
        """Somebody who dials from there and says this, and whom nothing holds up."""
        end = socket.create_connection(self.door.address, source_address=(source, 0) if source else None)
        end.setblocking(False)
        if said:
            end.send(said)
        self.ends.append(end)
        return end

    def heard(self, end: socket.socket, size: int) -> bytes:
        """So many bytes that come to somebody."""
        data = bytearray()

        def there() -> bool:
            try:
                data.extend(end.recv(size - len(data)))
            except (BlockingIOError, ssl.SSLWantReadError):
                return False
            return len(data) >= size

        self.until(there)
        return bytes(data)

    def close(self) -> None:
        """Leave nothing."""
        self.door.close()
        for end in [*self.ends, *(end for _, end in self.came)]:
            end.close()
        self.loop.close()


def has_ended(end: socket.socket) -> bool:
    """Whether the other end has closed the connection."""
    try:
        return not end.recv(1 << 16)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except ConnectionResetError:
        return True
