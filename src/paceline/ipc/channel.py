"""Messages between two processes of one host, over a socket pair that keeps message boundaries.

A Unix `SOCK_SEQPACKET` pair costs about 50 µs a round trip, and the peer's death shows as an end of file. A message
that is too long for a packet travels in an anonymous file, whose descriptor is passed along.
"""

from __future__ import annotations

import os
import select
import socket
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from paceline.errors import MessageUnreadable, PeerLost
from paceline.ipc.endpoint import MOST_BYTES, Coding, too_long

PACKET = 64 * 1024  # bytes; Linux allows 208 KiB for all unread packets together
INLINE, ATTACHED = b"\0", b"\1"
MOST_DESCRIPTORS = 4
ROOM_FOR_RIGHTS = socket.CMSG_LEN(MOST_DESCRIPTORS * array("i").itemsize)
LONGEST = 86_400.0  # seconds that one call waits at most: the kernel accepts only some weeks


End = socket.socket
"""One end of a channel, to be passed on."""


def pair() -> tuple[End, End]:
    """Return two connected ends, which executed programs don't inherit."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def attachment(data: bytes | Sequence[bytes | memoryview]) -> int:
    """Return a descriptor of an anonymous file with these bytes. Pass it along with a message, and then close it."""
    descriptor = os.memfd_create("paceline-message", os.MFD_CLOEXEC)
    for piece in [data] if isinstance(data, bytes) else data:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    return descriptor


def attached(descriptor: int) -> bytes:
    """Read what `attachment` has written, and close the descriptor.

    Other processes may read it meanwhile, by descriptors that share one place to read from. So that does not move.
    """
    try:
        size, data = os.fstat(descriptor).st_size, b""
        while len(data) < size and (more := os.pread(descriptor, size - len(data), len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


@contextmanager
def path_of(descriptor: int) -> Iterator[Path]:
    """Yield a path of the file that came along with a message. At the end the file is closed."""
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class Channel:
    """One end of a channel. See `Endpoint`. `kinds`: the union of types that the other end may send."""

    def __init__(self, end: socket.socket, kinds: Any, peer: str) -> None:
        self.end = end
        self.peer = peer
        self._coding = Coding(kinds)
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def fileno(self) -> int:
        """For selectors."""
        return self.end.fileno()

    def send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
        """Send the message and these descriptors once there is room. Raises PeerLost if the peer has gone."""
        self._send(message, descriptors, 0)

    def try_to_send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> bool:
        """See `Endpoint`."""
        return self._send(message, descriptors, socket.MSG_DONTWAIT)

    def receive(self) -> tuple[Any, list[int]]:
        """See `Endpoint`. Waits until there is a message."""
        received = self._receive(0)
        assert received is not None
        return received

    def receive_now(self) -> tuple[Any, list[int]] | None:
        """Return the next message without waiting, or None if there is none."""
        return self._receive(socket.MSG_DONTWAIT)

    def _receive(self, flags: int) -> tuple[Any, list[int]] | None:
        try:
            packet, beside, _, _ = self.end.recvmsg(PACKET + 1, ROOM_FOR_RIGHTS, flags)  # `recv_fds` ignores its flags
        except ConnectionResetError:
            packet, beside = b"", []
        except BlockingIOError:
            return None
        descriptors = _descriptors(beside)
        if not packet:
            raise PeerLost(f"{self.peer} has gone")
        try:
            body = packet[1:] if packet[:1] == INLINE else _long(descriptors)
            return self._coding.decode(body, descriptors), descriptors
        except MessageUnreadable:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def ready(self, seconds: float | None = 0.0) -> bool:
        """See `Endpoint`. Wait so many seconds for it, a day at most. None: without end."""
        return bool(self._poll.poll(None if seconds is None else min(max(0.0, seconds), LONGEST) * 1000))

    def close(self) -> None:
        """See `Endpoint`."""
        self.end.close()

    def _send(self, message: msgspec.Struct, descriptors: tuple[int, ...], flags: int) -> bool:
        body = self._coding.encode(message)
        if len(body) < PACKET:
            return self._put(INLINE + body, descriptors, flags)
        long = attachment(body)
        try:
            return self._put(ATTACHED, (long, *descriptors), flags)
        finally:
            os.close(long)

    def _put(self, packet: bytes, descriptors: tuple[int, ...], flags: int) -> bool:
        """Send the packet. Return whether there was room for it."""
        try:
            if descriptors:
                rights = array("i", descriptors)  # `socket.send_fds` ignores its flags
                self.end.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], flags)
            else:
                self.end.send(packet, flags)
        except (BrokenPipeError, ConnectionResetError):
            raise PeerLost(f"{self.peer} has gone") from None
        except BlockingIOError:
            return False
        return True


def _descriptors(beside: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came along with a packet."""
    found = array("i")
    for level, kind, rights in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(rights[: len(rights) - len(rights) % found.itemsize])
    return list(found)


def _long(descriptors: list[int]) -> bytes:
    """Read a long message from the first of these descriptors, and close that one."""
    try:
        if (length := os.fstat(descriptors[0]).st_size) > MOST_BYTES:
            raise MessageUnreadable(too_long(length))
        with open(descriptors[0], "rb", closefd=False) as file:
            file.seek(0)
            body = file.read()
    except (IndexError, OSError, ValueError) as error:
        raise MessageUnreadable(str(error)) from error
    os.close(descriptors.pop(0))
    return body
