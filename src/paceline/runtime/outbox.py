"""Messages to a process that may be slow to read: none is lost, and no process waits for it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from paceline.errors import PeerLost
from paceline.fabric.channel import Channel
from paceline.runtime import messages
from paceline.runtime.loop import Loop

MOST = 10_000
"""Messages that may wait for one process. A socket holds some two hundred more, and a run has a few for each worker."""


class Outbox:
    """Sends on a channel that the loop watches, in order. Messages wait until the socket has room for them.

    `overflowed` is called when so many wait that the other end must have stopped reading, and is not coming back. A
    lost peer is no error here: its end shows by itself.
    """

    def __init__(self, channel: Channel, loop: Loop, overflowed: Callable[[], None]) -> None:
        self._channel = channel
        self._loop = loop
        self._overflowed = overflowed
        self._waiting: deque[tuple[messages.Message, tuple[int, ...]]] = deque()

    def send(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        """Send the message now or later. The descriptors may be closed at once."""
        if not self._waiting and self._sent(message, descriptors):
            return
        if len(self._waiting) >= MOST:
            self._overflowed()
            return
        if not self._waiting:
            if not self._loop.watches(self._channel):  # its end was heard
                return
            self._loop.await_room(self._channel, self._go_on)
        self._waiting.append((message, tuple(os.dup(descriptor) for descriptor in descriptors)))

    def forget(self) -> None:
        """Drop what waits. Call this before the channel is closed."""
        for _, descriptors in self._waiting:
            _close(descriptors)
        if self._waiting and self._loop.watches(self._channel):
            self._loop.await_room(self._channel, None)
        self._waiting.clear()

    def _go_on(self) -> None:
        while self._waiting and self._sent(*self._waiting[0]):
            _close(self._waiting.popleft()[1])
        if not self._waiting:
            self._loop.await_room(self._channel, None)

    def _sent(self, message: messages.Message, descriptors: tuple[int, ...]) -> bool:
        """Whether it is sent, or need not be."""
        try:
            return self._channel.try_to_send(message, descriptors)
        except PeerLost:
            return True


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
