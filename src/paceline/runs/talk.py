"""What two machines say to each other while their link is measured. One listens, the head; the joiner leads:

                               ◄───  Greeting, or Busy
    Greeting            ───►
    Echo, many times    ───►   ◄───  Echoed
    Send                ───►   ◄───  Block and its bytes, again and again
    Enough              ───►   ◄───  Sent
    Measure             ───►   ◄───  Send; the same the other way; then Measured
    DialBack            ───►   ◄───  Dialled
    Result              ───►

Each wait has an end, as the other machine may stop at any time.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from paceline.errors import MessageUnreadable, PeerLost
from paceline.ipc.endpoint import LENGTH, Count, too_long
from paceline.ipc.loop import Loop
from paceline.net.control import one_line
from paceline.net.numbered import Frame, written
from paceline.net.tcp import AT_ONCE, Address, Stream
from paceline.runs.link import Arrivals, Link, Side, Way

FLOWING, MOST = 3.0, 400_000_000
"""Seconds that one way is measured for, and the bytes after which a fast link's is over."""
SILENCE = 15.0
"""Seconds without a byte after which the other machine is given up."""
LONGEST = 120.0
"""Seconds that all may take. The slowest links need some, as what is under way has to arrive."""
FIRST, BLOCK = 16 << 10, 1 << 20
"""Bytes of the first block and of the longest. None is longer than all before it, so that what is left to arrive when
it is enough takes a slow link no longer than it was measured for."""
UNSENT = 64 << 10
"""Bytes that the kernel keeps of what is not on its way: what a slow link would take minutes for is not measured."""
LONGEST_FRAME = 64 << 10
UNHEARD = 8
"""Frames that may wait until they are asked for."""
MOST_WAITING = 2 << 20
GB = 1e9

F = TypeVar("F", bound=Frame)


class Greeting(Frame):
    """Who speaks."""

    side: Side


class Busy(Frame):
    """The head is measuring its link with another machine."""

    machine: str


class Echo(Frame):
    """Answer at once."""

    filling: bytes
    """As much as an order of a run has."""


class Echoed(Frame):
    """It was heard at this time of the head's clock."""

    heard: float


class Send(Frame):
    """Send bytes until I say that it is enough."""


class Block(Frame):
    """So many bytes come right after this frame."""

    length: Count


class Enough(Frame):
    """Send no more."""


class Sent(Frame):
    """There are no more. The processor has worked so many seconds for each GB."""

    work: float


class Measure(Frame):
    """Measure the way from me to you."""


class Measured(Frame):
    """That way."""

    way: Way


class DialBack(Frame):
    """Dial me, at the address that you know me by and this port."""

    port: Annotated[int, msgspec.Meta(ge=1, lt=1 << 16)]


class Dialled(Frame):
    """Where I have dialled, and why that has failed. Empty: it has not."""

    where: str
    why: str


class Result(Frame):
    """What all came to."""

    link: Link


_FRAMES = msgspec.msgpack.Decoder(
    Greeting | Busy | Echo | Echoed | Send | Block | Enough | Sent | Measure | Measured | DialBack | Dialled | Result
)


class Talk:
    """What two machines say to each other over one connection. What keeps them from that is raised as PeerLost."""

    def __init__(self, end: Any, loop: Loop, peer: str) -> None:
        self.peer = peer
        """The other machine, for messages."""
        self.address = _peer(end)
        self._loop = loop
        self._until = loop.now() + LONGEST
        self._heard_at = loop.now()
        self._frames: deque[Frame] = deque()
        self._lost = ""
        """Why nothing more can be said."""
        self._head = memoryview(bytearray(LENGTH.size + LONGEST_FRAME))
        self._filled, self._wanted = 0, LENGTH.size
        self._scratch = memoryview(bytearray(BLOCK))
        self._left = 0
        """Bytes of the present block that have not come."""
        self._arrivals = Arrivals(loop.now())
        self._block = memoryview(os.urandom(BLOCK))  # nothing on the way makes these fewer
        self._flows = False
        """Whether blocks are sent."""
        self._sent = 0
        """Bytes of the blocks that were sent one after the other."""
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
        self._stream = Stream(
            end,
            loop,
            timeout=SILENCE,
            most=MOST_WAITING,
            heard=self._hear,
            lost=self._gone,
            drained=self._drained,
        )

    def close(self) -> None:
        """Say what is to be said, and no more. Closing twice does no harm."""
        self._stream.close()

    def say(self, frame: Frame) -> None:
        """Send the frame."""
        self._stream.write(written(frame))

    def hear(self, *kinds: type[F]) -> F:
        """Wait for the next frame, which must be of these kinds. Raises PeerLost."""
        self._wait(lambda: bool(self._frames))
        frame = self._frames.popleft()
        if not isinstance(frame, kinds):
            raise self._broken(f"it said {type(frame).__name__} at the wrong time")
        return frame

    def send(self) -> None:
        """Send blocks until the other machine has enough. Raises PeerLost."""
        worked = time.process_time()
        self._flows, self._sent = True, 0
        self._stream.pump()
        try:
            self.hear(Enough)
        finally:
            self._flows = False
        self.say(Sent((time.process_time() - worked) / max(self._sent, 1) * GB))

    def receive(self) -> Way:
        """Have the other machine send blocks, and measure how they come. Raises PeerLost."""
        began, worked = self._loop.now(), time.process_time()
        self._arrivals = arrivals = Arrivals(began)

        def enough() -> bool:
            now = self._loop.now()
            return arrivals.bytes >= MOST or (now >= began + FLOWING and arrivals.rate(now) > 0)

        self.say(Send())
        self._wait(enough)
        rate = arrivals.rate(self._loop.now())
        self.say(Enough())
        sent = self.hear(Sent)
        return Way(rate, sent.work, (time.process_time() - worked) / arrivals.bytes * GB)

    # --- inside -------------------------------------------------------------------------------------

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done():
            until = min(self._heard_at + SILENCE, self._until)
            left = until - self._loop.now()
            if self._lost:
                raise self._broken(self._lost)
            if left <= 0:
                silent = until < self._until
                raise self._broken(f"silent for {SILENCE:.0f} s" if silent else f"not over after {LONGEST:.0f} s")
            self._loop.wait(left)

    def _broken(self, why: str) -> PeerLost:
        return PeerLost(f"the link with {self.peer} could not be measured to the end: {why}")

    def _gone(self, why: str) -> None:
        self._lost = why

    def _drained(self) -> bool:
        if self._flows:
            length = min(BLOCK, max(FIRST, self._sent))
            self.say(Block(length))
            self._stream.write(self._block[:length])
            self._sent += length
            self._heard_at = self._loop.now()  # the other machine takes them
        return self._flows

    def _hear(self) -> None:
        room = AT_ONCE
        try:
            while room > 0 and not self._stream.closed:
                came = self._bytes() if self._left else self._frame()
                if not came:
                    return
                self._heard_at = self._loop.now()
                room -= came
        except MessageUnreadable as error:
            self._lost = one_line(str(error))
            self._stream.close()

    def _bytes(self) -> int:
        came = self._stream.receive_into(self._scratch[: self._left])
        self._left -= came
        self._arrivals.came(came, self._loop.now())
        return came

    def _frame(self) -> int:
        came = self._stream.receive_into(self._head[self._filled : self._wanted])
        self._filled += came
        if not came or self._filled < self._wanted:
            return came
        if self._wanted == LENGTH.size:
            (length,) = LENGTH.unpack_from(self._head)
            if not 0 < length <= LONGEST_FRAME:
                raise MessageUnreadable(too_long(length, LONGEST_FRAME))
            self._wanted += length
        else:
            body = self._head[LENGTH.size : self._wanted]
            self._filled, self._wanted = 0, LENGTH.size
            self._read(body)
        return came

    def _read(self, body: memoryview) -> None:
        try:
            frame: Frame = _FRAMES.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise MessageUnreadable(str(error)) from error
        if isinstance(frame, Block):
            if not 0 < frame.length <= BLOCK:
                raise MessageUnreadable(f"a block has {frame.length:,} bytes, and may have {BLOCK:,}")
            self._left = frame.length
        elif len(self._frames) >= UNHEARD:
            raise MessageUnreadable(f"it says more than it was asked: {type(frame).__name__}")
        else:
            self._frames.append(frame)


def _peer(end: Any) -> Address:
    """Where the other machine is. Of a connection that has gone already, nowhere."""
    try:
        return end.getpeername()[0], end.getpeername()[1]
    except OSError:
        return "0.0.0.0", 0
