"""Channels between processes of one virtual machine: real messages, in memory. What is sent is there at once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from paceline.errors import MessageUnreadable, PeerLost
from paceline.ipc.channel import attachment
from paceline.ipc.endpoint import Coding

ROOM = 200 * 1024  # bytes that may lie unread before a sender has to wait: as in a Unix socket


class Line:
    """One end of a channel, which a virtual loop can watch. See `Endpoint`."""

    def __init__(self, kinds: Any, peer: str) -> None:
        self.peer = peer
        self.changed: Callable[[], object] = lambda: None
        self.other: Line
        self.closed = False
        self._came: deque[tuple[bytes, list[int]]] = deque()
        self._unread = 0
        """Bytes of all that has come."""
        self.expects(kinds)

    def expects(self, kinds: Any) -> None:
        """It belongs to the process from now on that is sent these."""
        self._coding = Coding(kinds)

    def try_to_send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> bool:
        if self.other.closed:
            raise PeerLost(f"{self.peer} has gone")
        if not self.writable():
            return False
        body = self._coding.encode(message)
        self.other._came.append((body, [os.dup(descriptor) for descriptor in descriptors]))
        self.other._unread += len(body)
        self.other.changed()
        return True

    def receive(self) -> tuple[Any, list[int]]:
        if not self._came:
            raise PeerLost(f"{self.peer} has gone")
        body, descriptors = self._came.popleft()
        self._unread -= len(body)
        try:
            return self._coding.decode(body, descriptors), descriptors
        except MessageUnreadable:
            _close(descriptors)
            raise

    def close(self) -> None:
        self.closed = True
        while self._came:
            _close(self._came.popleft()[1])
        self.other.changed()

    def readable(self) -> bool:
        return bool(self._came) or self.other.closed

    def ready(self, seconds: float | None = 0.0) -> bool:
        return self.readable()

    def writable(self) -> bool:
        return self.other._unread < ROOM


def lines(kinds: Any, peer: str, theirs: Any = None) -> tuple[Line, Line]:
    """Return the two ends of a channel to that process. `theirs`: what that process may be sent."""
    ours, its = Line(kinds, peer), Line(theirs or Any, "the coordinator")
    ours.other, its.other = its, ours
    return ours, its


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class Theirs:
    """An end that is passed on to another process, with a real descriptor that names it."""

    def __init__(self, name: int) -> None:
        self._file = attachment(name.to_bytes(8, "little"))

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        os.close(self._file)


def named_by(descriptor: int) -> int:
    """The name of the end that was passed on."""
    return int.from_bytes(os.pread(descriptor, 8, 0), "little")
