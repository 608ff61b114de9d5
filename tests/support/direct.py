"""A channel within one process: bytes in memory, framed as in any stream. It needs no kernel and takes no time.

What is sent is encoded and cut into frames all the same, so code that runs over it is tested with real bytes.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from paceline.errors import MessageUnreadable, PeerLost
from paceline.ipc.endpoint import Coding, Frames, framed

ROOM = 200 * 1024  # bytes that may lie unread before a sender has to wait: as in a Unix socket
AT_ONCE = 4096  # bytes that are taken out at once: longer messages arrive in parts


@dataclass(slots=True)
class Way:
    """One direction: bytes on their way, and the descriptors that go along with each message."""

    unread: bytearray = field(default_factory=bytearray)
    passed: deque[list[int]] = field(default_factory=deque)
    writer_open: bool = True
    """Whether the end that writes is open."""
    reader_open: bool = True
    """Whether the end that reads is open."""


def pair() -> tuple[tuple[Way, Way], tuple[Way, Way]]:
    """Return the ways of two connected ends, for each end the one that it writes and the one that it reads."""
    there, back = Way(), Way()
    return (there, back), (back, there)


class Direct:
    """One end of a channel. See `Endpoint`. All calls are made by one thread, which waits for nothing."""

    def __init__(self, ways: tuple[Way, Way], kinds: Any, peer: str) -> None:
        self.peer = peer
        self._out, self._in = ways
        self._coding = Coding(kinds)
        self._frames = Frames()
        self._bodies: deque[bytes] = deque()
        self._broken: MessageUnreadable | None = None
        """Why nothing more can be read."""

    def try_to_send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> bool:
        """See `Endpoint`."""
        if not self._out.reader_open:
            raise PeerLost(f"{self.peer} has gone")
        if len(self._out.unread) >= ROOM:
            return False
        self._out.unread += framed(self._coding.encode(message))
        self._out.passed.append([os.dup(descriptor) for descriptor in descriptors])
        return True

    def receive(self) -> tuple[Any, list[int]]:
        """See `Endpoint`. Call this only if something is `ready`."""
        if not self.ready():
            raise BlockingIOError(f"{self.peer} has said nothing")
        if not self._bodies:  # what came along with a message that has not come whole is dropped
            self._drop()
            raise self._broken or PeerLost(f"{self.peer} has gone")
        descriptors = self._in.passed.popleft()
        try:
            return self._coding.decode(self._bodies.popleft(), descriptors), descriptors
        except MessageUnreadable:
            _close(descriptors)
            raise

    def ready(self, seconds: float | None = 0.0) -> bool:
        """See `Endpoint`. Nothing can come while this is waited for, so it returns at once."""
        data = b" "
        while data and not self._bodies and self._broken is None:
            data = bytes(self._in.unread[:AT_ONCE])
            del self._in.unread[:AT_ONCE]
            try:
                self._bodies.extend(self._frames.receive(data))
            except MessageUnreadable as error:
                self._broken = error
        return bool(self._bodies) or self._broken is not None or not self._in.writer_open

    def close(self) -> None:
        """See `Endpoint`."""
        self._out.writer_open = self._in.reader_open = False
        self._drop()

    def _drop(self) -> None:
        """Close the descriptors of messages that are not received."""
        while self._in.passed:
            _close(self._in.passed.popleft())


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
