"""One end of a channel between two processes: its contract, and messages as bytes.

Everything here is pure: no socket, no clock. So tests run the same frames within one process. Messages are msgpack (no
pickle).
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any, ClassVar, Protocol

import msgspec

from paceline.core.phrases import cut, printable
from paceline.errors import MessageUnreadable

MOST_BYTES = 4 << 30
"""Bytes of the longest message. Tensors travel in shared memory and in files, so a longer one can only be an error."""
LENGTH = struct.Struct("<Q")
LONG = 1 << 16
"""Bytes from which on a message may have so many lists that collecting garbage takes longer than reading it."""

# What others say is bounded by its types: a message with a value out of bounds can't be read.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Counts from 0, as far as the ledger can write it."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""A length of time. NaN is none."""
_PLAIN = r"\A[^\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]*\Z"
Word = Annotated[str, msgspec.Meta(max_length=1 << 12, pattern=_PLAIN)]
"""What stands in tables and files as it is: it has no control characters, and none that turn the direction of text."""


class Message(msgspec.Struct, tag=True, array_like=True):
    """The root of them all."""

    descriptors: ClassVar[int] = 0
    """How many descriptors may come along. With more of them the message can't be read."""


class Endpoint(Protocol):
    """One end of a channel. Messages arrive whole and in order, each with the descriptors that came along.

    A class of tests holds every kind of endpoint to this.
    """

    peer: str
    """Who is at the other end, for messages of errors."""

    def try_to_send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> bool:
        """Send the message if there is room for it now. Return whether it was sent. Raises PeerLost without a peer.

        The descriptors stay the caller's.
        """
        ...

    def receive(self) -> tuple[Any, list[int]]:
        """Return the next message with its descriptors, which are the caller's from then on.

        Raises PeerLost if the peer has gone, and MessageUnreadable, with no descriptor left open, for anything but the
        messages that may come.
        """
        ...

    def ready(self, seconds: float | None = 0.0) -> bool:
        """Whether a message, or the peer's end, is there."""
        ...

    def close(self) -> None:
        """Close this end. Closing twice does no harm."""
        ...


class Coding:
    """Messages to bytes, and bytes to messages of `kinds`: the union of types that the other end may send.

    The attribute `descriptors` of a type says how many may come along with its messages; without it, none may.
    """

    def __init__(self, kinds: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kinds, ext_hook=_refuse)
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: msgspec.Struct) -> bytes:
        """Return the message as bytes."""
        return self._encoder.encode(message)

    def decode(self, body: bytes | memoryview, descriptors: Sequence[int]) -> Any:
        """Return the message that came as these bytes, with these descriptors. Raises MessageUnreadable."""
        try:
            with _uncollected() if len(body) >= LONG else nullcontext():
                message = self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise MessageUnreadable(printable(cut(str(error), 300))) from error
        if len(descriptors) > (most := getattr(message, "descriptors", 0)):
            kind = type(message).__name__
            raise MessageUnreadable(f"{kind} came with {len(descriptors)} descriptors, and may have {most}")
        return message


def framed(body: bytes) -> bytes:
    """Return the bytes that a message is in a stream: its length, and then the message."""
    return LENGTH.pack(len(body)) + body


class Frames:
    """Cuts what comes as a stream of bytes into messages. See `framed`."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        """Bytes of the longest message that is read."""
        self._unread = bytearray()

    def receive(self, data: bytes) -> list[bytes]:
        """Return the messages that are whole with these bytes, in order.

        Raises MessageUnreadable, and again at each call, where the next one would be too long: nobody knows what
        follows it.
        """
        self._unread += data
        bodies: list[bytes] = []
        while len(self._unread) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._unread)
            if length > self.most:
                if not bodies:
                    raise MessageUnreadable(too_long(length, self.most))
                break
            end = LENGTH.size + length
            if len(self._unread) < end:
                break
            bodies.append(bytes(self._unread[LENGTH.size : end]))
            del self._unread[:end]
        return bodies


def too_long(length: int, most: int = MOST_BYTES) -> str:
    """Why a message of so many bytes isn't read."""
    return f"it would have {length:,} bytes, and may have {most:,}"


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile: it would look at all lists of a message again and again, as they become more."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _refuse(code: int, data: memoryview) -> Any:
    raise ValueError(f"it has a value of no known kind ({code})")
