"""Messages to a process that may read slowly: none is lost, and the sender never waits."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from paceline.errors import PeerLost
from paceline.ipc import messages
from paceline.ipc.endpoint import Endpoint

MOST = 10_000
"""Messages that may wait for one process. A socket holds some 200 more. A run has a few for each worker."""


class Watching(Protocol):
    """What a queue needs of the loop. See `Loop`."""

    def watches(self, source: Any) -> bool: ...

    def await_room(self, source: Any, call: Callable[[], object] | None) -> None: ...


class SendQueue:
    """Sends messages in order on a channel that the loop watches. They wait until there is room.

    `overflowed` is called when so many wait that the other end must have stopped reading for good. A lost peer is no
    error here, as its end shows by itself.
    """

    def __init__(self, channel: Endpoint, loop: Watching, overflowed: Callable[[], object]) -> None:
        self._channel = channel
        self._loop = loop
        self._overflowed = overflowed
        self._waiting: deque[tuple[messages.Message, tuple[int, ...]]] = deque()

    def send(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> bool:
        """Send the message now or later. Return False if the peer has gone. The caller may close the descriptors."""
        if not self._waiting:
            try:
                if self._channel.try_to_send(message, descriptors):
                    return True
            except PeerLost:
                return False
        if not self._loop.watches(self._channel):  # the peer has ended
            return False
        if len(self._waiting) >= MOST:
            self._overflowed()
            return True
        if not self._waiting:
            self._loop.await_room(self._channel, self.go_on)
        self._waiting.append((message, tuple(os.dup(descriptor) for descriptor in descriptors)))
        return True

    def forget(self) -> None:
        """Drop the waiting messages. Call this before the channel is closed."""
        for _, descriptors in self._waiting:
            _close(descriptors)
        if self._waiting and self._loop.watches(self._channel):
            self._loop.await_room(self._channel, None)
        self._waiting.clear()

    def go_on(self) -> None:
        """Send waiting messages as long as there is room."""
        try:
            while self._waiting and self._channel.try_to_send(*self._waiting[0]):
                _close(self._waiting.popleft()[1])
        except PeerLost:
            self.forget()
            return
        if not self._waiting:
            self._loop.await_room(self._channel, None)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
