"""TCP between hosts, in the loop: nothing here blocks, and nothing grows without bound.

A `Stream` goes over a connection that `net.handshake` has opened, plain or with TLS.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from paceline.ipc.loop import BACKLOG, Loop, family

T = TypeVar("T")

Address = tuple[str, int]
"""A numeric address and a port. Looking a name up would block the loop."""

ANY = "0.0.0.0", "::"
"""Addresses that mean all of a machine's own."""
LOOPBACK: Address = ("127.0.0.1", 0)
"""Where hosts listen by default. The kernel chooses the port."""
AT_ONCE = 1 << 20
"""Bytes that one connection may write or read before others have their turn."""
RECORD = 1 << 14
"""Bytes of the largest TLS record. One write comes in records of this size, but for the last one."""
ACCEPTS = 16
"""Connections that are accepted in one turn of the loop."""
URGENT = 6
"""The priority (`TC_PRIO_INTERACTIVE`) of packets that go first where a link's queue has bands."""
NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
ENDED = "the other end has closed it"
LINES, LINES_WITHIN = 10, 60.0
"""How many lines about strangers are shown, in how many seconds."""


def shown(address: Address) -> str:
    """Return the address as it is typed."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer_of(end: socket.socket) -> str:
    """Say where the other end of that connection is."""
    try:
        return shown(end.getpeername()[:2])
    except OSError:
        return "an address that has gone"


def listen(address: Address = LOOPBACK) -> socket.socket:
    """Return a socket that listens there."""
    return socket.create_server(address, family=family(address), backlog=BACKLOG)


class Stream:
    """One connection. Bytes that can't be written now wait for room, while the loop goes on.

    `heard` is called when there is something to receive. `lost` is called once with the reason, after all that came was
    received, unless the stream is closed before.
    """

    def __init__(
        self,
        end: socket.socket,
        loop: Loop,
        *,
        timeout: float,
        most: int,
        heard: Callable[[], object],
        lost: Callable[[str], object],
        drained: Callable[[], bool] | None = None,
        urgent: bool = False,
    ) -> None:
        """`timeout`: seconds in which the other machine has to answer. `most`: bytes that may wait for room.

        `urgent`: what is written goes before what other streams write.

        After `pump`, `drained` is called when there is room and nothing waits. It may write. It returns whether to call
        it again.
        """
        self._end = end
        self._loop = loop
        self._most = most
        self._heard = heard
        self._lost = lost
        self._drained = drained
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._awaits_room = False
        self._why = ""
        """Why this end has given the connection up."""
        self._rest_is_due = self._reads_with_room = False
        """Whether to receive more in this turn of the loop, or once there is room."""
        self.closed = False
        end.setblocking(False)
        _set_options(end, timeout)
        if urgent:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, URGENT)
        loop.watch(end, self._readable)
        self._hear_rest_soon()

    def write(self, data: bytes | memoryview) -> None:
        """Send these bytes, now or when there is room. Until then they must not change."""
        if self.closed or self._why or not len(data):
            return
        self._waiting.append(memoryview(data))
        self._waiting_bytes += len(data)
        if len(self._waiting) == 1:
            self._flush(AT_ONCE)
        if self._waiting_bytes > self._most:
            self._give_up(f"the other end does not read: {self._waiting_bytes:,} bytes wait for it")
        if self._waiting:
            self._await_room()

    def pump(self) -> None:
        """Call `drained` soon."""
        if not self.closed:
            self._await_room()

    def receive(self, most: int) -> bytes:
        """Return up to `most` bytes that have come. If none have, `closed` says whether the connection was lost."""
        data = last = self._received(partial(self._end.recv, most), b"")
        while len(last) == RECORD and len(data) < most:
            last = self._rest(partial(self._end.recv, most - len(data)), b"")
            data += last
        return data

    def receive_into(self, memory: memoryview) -> int:
        """Receive into this memory, and return how many bytes have come. For 0 see `receive`."""
        came = self._received(partial(self._end.recv_into, memory), 0)
        while 0 < came < memory.nbytes and (more := self._rest(partial(self._end.recv_into, memory[came:]), 0)):
            came += more
        return came

    @property
    def waits(self) -> bool:
        """Whether bytes wait for room."""
        return bool(self._waiting)

    def close(self) -> None:
        """Write what there is room for, and close the connection. Closing twice does no harm."""
        if self.closed:
            return
        self.closed = True
        if not self._why:
            self._flush(self._most)
        self._waiting.clear()
        self._loop.unwatch(self._end)
        leave(self._end)

    def _received(self, receive: Callable[[], T], nothing: T) -> T:
        try:
            came = receive()
        except (BlockingIOError, ssl.SSLWantReadError):
            return nothing
        except ssl.SSLWantWriteError:  # TLS has to answer before it goes on
            self._reads_with_room = True
            self._await_room()
            return nothing
        except OSError as error:
            self._has_gone(told(error))
            return nothing
        if not came:
            self._has_gone(ENDED)
        return came

    def _rest(self, receive: Callable[[], T], nothing: T) -> T:
        """Receive what the first call would have returned as well without TLS, which returns one record at a time."""
        if isinstance(self._end, ssl.SSLSocket):
            with contextlib.suppress(OSError):  # the next call raises it again
                return receive()
        return nothing

    def _readable(self) -> None:
        self._heard()
        self._hear_rest_soon()

    def _hear_rest_soon(self) -> None:
        """Have bytes received that TLS has decrypted already: the loop watches sockets, and does not see these."""
        if not self.closed and not self._rest_is_due and isinstance(self._end, ssl.SSLSocket) and self._end.pending():
            self._rest_is_due = True
            self._loop.after(0.0, self._hear_rest)

    def _hear_rest(self) -> None:
        self._rest_is_due = False
        if not self.closed:
            self._readable()

    def _room(self) -> None:
        if self._reads_with_room:
            self._reads_with_room = False
            self._readable()
        if not self.closed and not self._why:
            self._flush(AT_ONCE)
        more = False
        if not self.closed and not self._waiting and self._drained is not None and not self._why:
            more = self._drained()
        if not self.closed and not self._waiting and not more:
            self._awaits_room = False
            self._loop.await_room(self._end, None)

    def _await_room(self) -> None:
        if not self._awaits_room:
            self._awaits_room = True
            self._loop.await_room(self._end, self._room)

    def _flush(self, most: int) -> None:
        try:
            while self._waiting and most > 0:
                first = self._waiting[0]
                sent = self._end.send(first[:most])
                most -= sent
                self._waiting_bytes -= sent
                if sent == len(first):
                    self._waiting.popleft()
                else:
                    self._waiting[0] = first[sent:]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._give_up(told(error))

    def _give_up(self, why: str) -> None:
        """Shut the connection down, so that the loop finds its end. `lost` is never called within a write."""
        self._why = why
        self._waiting.clear()
        self._waiting_bytes = 0
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def _has_gone(self, why: str) -> None:
        if not self.closed:
            why = self._why or why  # why this end gave up, rather than why reading failed then
            self.close()
            self._lost(why)


class Listener:
    """Accepts connections in the loop."""

    def __init__(
        self,
        end: socket.socket,
        loop: Loop,
        came: Callable[[socket.socket, Address], object],
        show: Callable[[str], object],
    ) -> None:
        self.address: Address = end.getsockname()[:2]
        self._end = end
        self._loop = loop
        self._came = came
        self._show = show
        self._closed = False
        end.setblocking(False)
        loop.watch(end, self._accept)

    def close(self) -> None:
        """Stop listening. Closing twice does no harm."""
        if not self._closed:
            self._closed = True
            if self._loop.watches(self._end):
                self._loop.unwatch(self._end)
            self._end.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                end, address = self._end.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_DESCRIPTOR:
                    self._show(f"no connection can be accepted for a second: {told(error)}")
                    self._loop.unwatch(self._end)
                    self._loop.after(1.0, self._again)
                    return
                continue  # the dialler went before it was accepted
            self._came(end, address[:2])
            if self._closed:
                return

    def _again(self) -> None:
        if not self._closed:
            self._loop.watch(self._end, self._accept)


class Lines:
    """Shows the first lines about strangers in each minute, so a flooded port doesn't flood the terminal."""

    def __init__(self, show: Callable[[str], object], now: Callable[[], float]) -> None:
        self._show = show
        self._now = now
        self._since = float("-inf")
        self._shown = 0

    def show(self, line: str) -> None:
        """Show the line, or once that there are too many."""
        if (now := self._now()) >= self._since + LINES_WITHIN:
            self._since, self._shown = now, 0
        self._shown += 1
        if self._shown <= LINES:
            self._show(line)
        elif self._shown == LINES + 1:
            self._show(f"more connections are closed; no more lines about that for {LINES_WITHIN:.0f} s")


def _set_options(end: socket.socket, timeout: float) -> None:
    """Send at once, and notice within the timeout that the other machine is unreachable or does not read."""
    beat = max(1, round(timeout / 5))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, beat),
        (socket.TCP_KEEPINTVL, beat),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, round(timeout * 1000)),
    ):
        end.setsockopt(socket.IPPROTO_TCP, option, value)


def leave(end: socket.socket) -> None:
    """Close the socket. Read what has come first, as unread bytes would make the kernel drop what was written."""
    left = AT_ONCE
    with contextlib.suppress(OSError):
        while left > 0:
            left -= len(end.recv(64 << 10)) or left
    end.close()


def to_itself(end: socket.socket) -> bool:
    """Whether the kernel has connected the socket to itself, as it may on loopback where nobody listens."""
    try:
        return bool(end.getsockname() == end.getpeername())
    except OSError:  # the connection has gone, as the next call finds
        return False


def told(error: OSError) -> str:
    """Return the error's text, without its number."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ENDED
    if isinstance(error, ssl.SSLError):
        return f"TLS fails: {(error.reason or 'no reason given').lower().replace('_', ' ')}"
    return os.strerror(error.errno) if error.errno else str(error)
