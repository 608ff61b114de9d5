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
"""Bytes of a message with so many lists that collecting garbage may take longer than reading it."""

# Types bound what others may say: a message with a value out of bounds can't be read.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Counts from 0, as far as the ledger can write it."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""A length of time. NaN is refused."""
_PLAIN = r"\A[^\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]*\Z"
Word = Annotated[str, msgspec.Meta(max_length=1 << 12, pattern=_PLAIN)]
"""Text for tables and files: without control characters, and without those that change the direction of text."""


class Message(msgspec.Struct, tag=True, array_like=True):
    """The base of all messages between processes of one host."""

    descriptors: ClassVar[int] = 0
    """The most descriptors that may come along. A message with more can't be read."""


class Endpoint(Protocol):
    """One end of a channel. Messages arrive whole and in order, each with the descriptors that came along."""

    peer: str
    """Who is at the other end, for error messages."""

    def try_to_send(self, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> bool:
        """Send the message if there is room now. Return whether it was sent. Raises PeerLost if the peer has gone.

        The caller keeps its descriptors.
        """
        ...

    def receive(self) -> tuple[Any, list[int]]:
        """Return the next message and its descriptors, which the caller has to close.

        Raises PeerLost if the peer has gone. Raises MessageUnreadable for a message that may not come, and closes its
        descriptors.
        """
        ...

    def ready(self, seconds: float | None = 0.0) -> bool:
        """Return whether there is a message, or the peer has gone."""
        ...

    def close(self) -> None:
        """Close this end. Closing twice does no harm."""
        ...


class Coding:
    """Encodes messages, and decodes those of `kinds`: the union of types that the other end may send."""

    def __init__(self, kinds: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(kinds, ext_hook=_refuse)
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, message: msgspec.Struct) -> bytes:
        """Return the message as bytes."""
        return self._encoder.encode(message)

    def decode(self, body: bytes | memoryview, descriptors: Sequence[int]) -> Any:
        """Return the message in these bytes, which came with these descriptors. Raises MessageUnreadable."""
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
    """Return the message as it goes over a stream: its length, then its bytes."""
    return LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into messages. See `framed`."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        """Bytes of the longest message that is read. It may change after any message."""
        self._unread = bytearray()

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield each message that is whole with these bytes, in order.

        Raises MessageUnreadable at a message that is too long, and at each later call, as what follows is unknown.
        """
        self._unread += data
        while len(self._unread) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._unread)
            if length > self.most:
                raise MessageUnreadable(too_long(length, self.most))
            end = LENGTH.size + length
            if len(self._unread) < end:
                break
            body = bytes(self._unread[LENGTH.size : end])
            del self._unread[:end]
            yield body


def too_long(length: int, most: int = MOST_BYTES) -> str:
    """Say why a message of so many bytes isn't read."""
    return f"it would have {length:,} bytes, and may have {most:,}"


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile: each collection would go through all lists that the message has so far."""
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
