"""Messages between two processes of one host: a socket pair that keeps message boundaries.

A Unix `SOCK_SEQPACKET` pair costs about 50 µs a round trip, and the death of the peer shows as an end of
file. Messages are msgpack (no pickle); one too long for a packet travels in an anonymous file that is passed
along, and file descriptors can be passed the same way.
"""

from __future__ import annotations

import os
import select
import socket
from typing import Any

import msgspec

from paceline.errors import PeerLost

PACKET = 64 * 1024  # bytes; Linux lets a packet have 208 KiB, shared with those still unread
INLINE, ATTACHED = b"\0", b"\1"
MOST_DESCRIPTORS = 4
LONGEST = 86_400.0  # seconds that one call waits: the kernel takes some weeks at most


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends; neither is inherited by a program that is executed."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def attachment(data: bytes) -> int:
    """A descriptor of an anonymous file with these bytes, to be passed along with a message and then closed."""
    descriptor = os.memfd_create("paceline-message", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    return descriptor


def attached(descriptor: int) -> bytes:
    """What `attachment` put there; closes the descriptor."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


class Channel:
    """One end. `kinds` is the union of message types that the other end may send."""

    def __init__(self, end: socket.socket, kinds: Any, peer: str) -> None:
        self.end = end
        self.peer = peer
        self._decoder = msgspec.msgpack.Decoder(kinds)
        self._encoder = msgspec.msgpack.Encoder()

    def fileno(self) -> int:
        """For selectors."""
        return self.end.fileno()

    def send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = (), block: bool = True) -> None:
        """Send a message, and descriptors with it.

        Raises PeerLost if the peer has gone or, where `block` is false, if it has stopped reading.
        """
        body = self._encoder.encode(message)
        flags = 0 if block else socket.MSG_DONTWAIT
        if len(body) < PACKET:
            self._put(INLINE + body, descriptors, flags)
            return
        long = attachment(body)
        try:
            self._put(ATTACHED, (long, *descriptors), flags)
        finally:
            os.close(long)

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for the next message; returns it with the descriptors that came along. Raises PeerLost."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self.end, PACKET + 1, MOST_DESCRIPTORS)
        except ConnectionResetError:
            packet, descriptors = b"", []
        if not packet:
            raise PeerLost(f"{self.peer} has gone")
        if packet[:1] == INLINE:
            return self._decoder.decode(packet[1:]), descriptors
        return self._decoder.decode(attached(descriptors.pop(0))), descriptors

    def ready(self, seconds: float | None = 0.0) -> bool:
        """Whether a message, or the peer's end, is there; waits so long for it, a day at most (None: without end)."""
        poll = select.poll()
        poll.register(self.end, select.POLLIN)
        return bool(poll.poll(None if seconds is None else min(max(0.0, seconds), LONGEST) * 1000))

    def close(self) -> None:
        """Close this end; twice is no harm."""
        self.end.close()

    def _put(self, packet: bytes, descriptors: tuple[int, ...], flags: int) -> None:
        try:
            if descriptors:
                socket.send_fds(self.end, [packet], list(descriptors), flags)
            else:
                self.end.send(packet, flags)
        except (BrokenPipeError, ConnectionResetError):
            raise PeerLost(f"{self.peer} has gone") from None
        except BlockingIOError:
            raise PeerLost(f"{self.peer} does not read what is sent to it") from None
