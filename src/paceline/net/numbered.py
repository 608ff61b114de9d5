"""Numbered messages, for connections that break: each is delivered once, in order.

A `Line` is one end's state for one incarnation of a host, over all of that incarnation's connections. It numbers each
message, and keeps it until the other end has acknowledged it. After a reconnect it resends what the other end has not
received. A message that comes twice is dropped. Pure: no socket, no clock.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from paceline.errors import MessageUnreadable
from paceline.ipc.endpoint import Coding, Count, framed

MOST_MESSAGES = 10_000
"""The most unacknowledged messages that are kept. A run has a few for each worker."""
MOST_KEPT = 64 << 20
"""The bytes of all these together."""
LONGEST = 16 << 20
"""Bytes of one message. A long one delays the beats behind it, so large data should have a connection of its own."""
LONGEST_SAID = 4 << 20
"""Bytes of one message to the head. It takes up to 70 times as much memory, and a tenth of a second for each MiB."""
LONGEST_OF_NEWCOMERS = 64 << 10
"""The same for a host that takes no part yet."""
ACKNOWLEDGE_AFTER = 64
"""Messages after which an acknowledgement goes out at once. Before, it waits for a frame, or `ACKNOWLEDGE_WITHIN`."""
ACKNOWLEDGE_WITHIN = 0.05
"""Seconds that an acknowledgement waits for a frame that carries it."""


class Frame(msgspec.Struct, tag=True, array_like=True):
    """The base of all frames over a connection between hosts."""


class Data(Frame):
    """The message with this number. The first has number 1."""

    number: Count
    received: Count
    """The number of the last message that this frame's sender has received."""
    body: bytes


class Acknowledged(Frame):
    """All messages up to this number have come."""

    received: Count


class Beat(Frame):
    """A host is alive. The head answers each beat with `BeatHeard`."""

    beat: Count
    received: Count


class BeatHeard(Frame):
    """The head has heard that beat."""

    beat: Count
    received: Count


class NeverReadable(MessageUnreadable):
    """The two ends can't go on, not even over another connection."""


class Full(Exception):
    """Too many messages are unacknowledged. The text says how many."""


_FRAMES = msgspec.msgpack.Encoder()


def written(frame: Frame) -> bytes:
    """Return the frame as bytes in a stream."""
    return framed(_FRAMES.encode(frame))


class Line:
    """One end's numbers, and its unacknowledged messages. Every frame that it makes also acknowledges."""

    def __init__(self, kinds: Any, longest: int | None = None) -> None:
        """`kinds`: the union of types that the other end may send. `longest`: bytes of the longest message to it."""
        self._coding = Coding(kinds)
        self._longest = LONGEST if longest is None else longest
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._sent = 0
        self._received = 0
        self._owed = 0
        self._owed_since: float | None = None

    @property
    def received(self) -> int:
        """The number of the last message that has come."""
        return self._received

    @property
    def unacknowledged(self) -> int:
        """How many messages the other end has not acknowledged."""
        return len(self._kept)

    @property
    def acknowledge_at(self) -> float | None:
        """When an acknowledgement goes out by itself if no frame has carried it. None: none is owed."""
        if self._owed_since is None or self._owed >= ACKNOWLEDGE_AFTER:
            return self._owed_since
        return self._owed_since + ACKNOWLEDGE_WITHIN

    # --- what goes out ------------------------------------------------------------------------------

    def send(self, message: msgspec.Struct) -> bytes:
        """Number and keep the message. Return its frame. Raises Full, and ValueError if the message is too long."""
        body = self._coding.encode(message)
        if len(body) > self._longest:
            raise ValueError(f"a {type(message).__name__} has {len(body):,} bytes, and may have {self._longest:,}")
        if len(self._kept) >= MOST_MESSAGES or self._kept_bytes + len(body) > MOST_KEPT:
            raise Full(f"{len(self._kept):,} messages of {self._kept_bytes:,} bytes are not acknowledged")
        self._sent += 1
        self._kept.append((self._sent, body))
        self._kept_bytes += len(body)
        return self._data(self._sent, body)

    def again(self, received: int) -> bytes:
        """Return the messages that come after the last one that the other end received. Raises NeverReadable."""
        if received < self._sent - len(self._kept):
            raise NeverReadable(f"it has forgotten messages that it had acknowledged, and has only {received:,}")
        try:
            self.acknowledged(received)
        except MessageUnreadable as error:
            raise NeverReadable(str(error)) from error
        return b"".join(self._data(number, body) for number, body in self._kept)

    def acknowledgement(self) -> bytes:
        """Return a frame that only acknowledges."""
        return written(Acknowledged(self._carried()))

    def beat(self, number: int) -> bytes:
        """Return a beat."""
        return written(Beat(number, self._carried()))

    def beat_heard(self, number: int) -> bytes:
        """Return the answer to a beat."""
        return written(BeatHeard(number, self._carried()))

    # --- what comes in ------------------------------------------------------------------------------

    def acknowledged(self, received: int) -> None:
        """Drop the messages that the other end has received. Raises MessageUnreadable if so many were never sent."""
        if received > self._sent:
            raise MessageUnreadable(f"it acknowledges {received:,} messages, and was sent {self._sent:,}")
        while self._kept and self._kept[0][0] <= received:
            self._kept_bytes -= len(self._kept.popleft()[1])

    def take(self, data: Data, now: float) -> Any | None:
        """Return the message, or None if it came before.

        Raises MessageUnreadable if an earlier message is missing, and NeverReadable if this one may not come.
        """
        if data.number > self._received + 1:
            raise MessageUnreadable(f"message {data.number:,} came after message {self._received:,}")
        self._owed += 1
        if self._owed_since is None:
            self._owed_since = now
        if data.number <= self._received:
            return None
        try:
            message = self._coding.decode(data.body, ())
        except MessageUnreadable as error:
            raise NeverReadable(str(error)) from error
        self._received = data.number
        return message

    def _data(self, number: int, body: bytes) -> bytes:
        return written(Data(number, self._carried(), body))

    def _carried(self) -> int:
        self._owed, self._owed_since = 0, None
        return self._received
