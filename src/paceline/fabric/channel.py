"""Messages between two processes of one host: a socket pair that keeps message boundaries.

A Unix `SOCK_SEQPACKET` pair costs about 50 µs a round trip, and the death of the peer shows as an end of
file. Messages are msgpack (no pickle); one too long for a packet travels in an anonymous file that is passed
along, and file descriptors can be passed the same way.
"""

from __future__ import annotations

import os
import select
import socket
from array import array
from typing import Any

import msgspec

from paceline.errors import MessageUnreadable, PeerLost

PACKET = 64 * 1024  # bytes; Linux lets a packet have 208 KiB, shared with those still unread
INLINE, ATTACHED = b"\0", b"\1"
MOST_DESCRIPTORS = 4
LONGEST = 86_400.0  # seconds that one call waits at most: the kernel accepts no more than some weeks


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends; neither is inherited by a program that is executed."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def attachment(data: bytes) -> int:
    """Return a descriptor of an anonymous file with these bytes, to be passed along with a message and then closed."""
    descriptor = os.memfd_create("paceline-message", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    return descriptor


def attached(descriptor: int) -> bytes:
    """Read what `attachment` has written, and close the descriptor."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


class Channel:
    """One end of a channel. `kinds` is the union of message types that the other end may send."""

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
        if not self._send(message, descriptors, 0 if block else socket.MSG_DONTWAIT):
            raise PeerLost(f"{self.peer} does not read what is sent to it")

    def try_to_send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> bool:
        """Send the message if there is room for it now. Return whether it was sent. Raises PeerLost without a peer."""
        return self._send(message, descriptors, socket.MSG_DONTWAIT)

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for the next message. Return it with the descriptors that came along.

        Raises PeerLost if the peer has gone, and MessageUnreadable, with no descriptor left open, for anything but the
        messages that may come.
        """
        try:
            packet, descriptors, _, _ = socket.recv_fds(self.end, PACKET + 1, MOST_DESCRIPTORS)
        except ConnectionResetError:
            packet, descriptors = b"", []
        if not packet:
            raise PeerLost(f"{self.peer} has gone")
        try:
            body = packet[1:] if packet[:1] == INLINE else attached(descriptors.pop(0))
            return self._decoder.decode(body), descriptors
        except (msgspec.MsgspecError, ValueError, IndexError, OSError) as error:
            for descriptor in descriptors:
                os.close(descriptor)
            raise MessageUnreadable(str(error)) from error

    def ready(self, seconds: float | None = 0.0) -> bool:
        """Whether a message, or the peer's end, is there. Waits so long for it, a day at most (None: without end)."""
        poll = select.poll()
        poll.register(self.end, select.POLLIN)
        return bool(poll.poll(None if seconds is None else min(max(0.0, seconds), LONGEST) * 1000))

    def close(self) -> None:
        """Close this end. Closing twice does no harm."""
        self.end.close()

    def _send(self, message: msgspec.Struct, descriptors: tuple[int, ...], flags: int) -> bool:
        body = self._encoder.encode(message)
        if len(body) < PACKET:
            return self._put(INLINE + body, descriptors, flags)
        long = attachment(body)
        try:
            return self._put(ATTACHED, (long, *descriptors), flags)
        finally:
            os.close(long)

    def _put(self, packet: bytes, descriptors: tuple[int, ...], flags: int) -> bool:
        """Whether there was room for the message."""
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
