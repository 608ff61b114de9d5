"""One thread that waits for everything at once: descriptors and timers."""

from __future__ import annotations

import errno
import heapq
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from paceline.ipc.channel import LONGEST, Channel, pair

BACKLOG = 1024
"""Connections that the kernel holds until they are accepted."""


def family(address: tuple[str, int]) -> socket.AddressFamily:
    """Return the family of a numeric address."""
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


class Loop:
    """Calls functions when there is something to read, or when a time has come."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, selectors.SelectorKey] = {}
        """By descriptor. Looking a source up in the selector's own map takes longer."""
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._soon: deque[Callable[[], None]] = deque()
        self._ends: set[int] = set()
        """Descriptors of processes whose end is awaited."""

    def now(self) -> float:
        """Return the time in seconds by the clock of timers and of the workers' steps."""
        return time.monotonic()

    def since_boot(self) -> float:
        """Return the time in seconds by a clock that runs while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def watch(self, source: Any, call: Callable[[], object]) -> None:
        """Call this whenever there is something to read, or the source has ended."""
        key = self._selector.register(source, selectors.EVENT_READ, (call, None))
        self._watched[key.fd] = key

    def await_room(self, source: Any, call: Callable[[], object] | None) -> None:
        """Call this whenever there is room to write to a watched source. None: call nothing any more."""
        key = self._selector.get_key(source)
        events = selectors.EVENT_READ | (0 if call is None else selectors.EVENT_WRITE)
        self._watched[key.fd] = self._selector.modify(source, events, (key.data[0], call))

    def unwatch(self, source: Any) -> None:
        """Stop watching the source, before it is closed."""
        del self._watched[self._selector.unregister(source).fd]

    def watches(self, source: Any) -> bool:
        """Whether the source is watched."""
        return source in self._selector.get_map()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call this once, after so many seconds."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), call))

    def soon(self, call: Callable[[], None]) -> None:
        """Call this once, before the loop waits for anything."""
        self._soon.append(call)

    def wait(self, most: float | None = None) -> None:
        """Wait for the next event or time, up to so many seconds, and handle all events that are there."""
        while self._soon:
            self._soon.popleft()()
        timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        if timeout is not None:
            timeout = min(timeout, LONGEST)
        if most is not None:
            timeout = most if timeout is None else min(most, timeout)
        for key, events in self._selector.select(timeout):
            heard, room = key.data
            # an earlier call may have stopped watching the source, or changed what is awaited
            if events & selectors.EVENT_READ and self._watched.get(key.fd) is key:
                heard()
            if events & selectors.EVENT_WRITE and room is not None and self._watched.get(key.fd) is key:
                room()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def connect(self, kinds: Any, peer: str) -> tuple[Channel, socket.socket]:
        """Return a channel to a process that is about to be forked, and its end. `kinds`: see `Channel`."""
        ours, theirs = pair()
        return Channel(ours, kinds, peer), theirs

    def dial(self, address: tuple[str, int]) -> socket.socket:
        """Return a socket that is connecting to that address. Raises OSError if that fails at once."""
        end = socket.socket(family(address), socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        failed = end.connect_ex(address)
        if failed not in (0, errno.EINPROGRESS):
            end.close()
            raise OSError(failed, os.strerror(failed))
        return end

    def listen(self, towards: tuple[str, int]) -> socket.socket:
        """Return a socket that listens at this machine's own address towards that one. Nothing is sent for that.

        Raises OSError if there is no route.
        """
        kind = family(towards)
        with socket.socket(kind, socket.SOCK_DGRAM) as end:
            end.connect(towards)
            own = end.getsockname()[0]
        return socket.create_server((own, 0), family=kind, backlog=BACKLOG)

    def await_end(self, process: int, call: Callable[[], object]) -> None:
        """Call this once, when that process has ended."""
        watch = os.pidfd_open(process)

        def ended() -> None:
            self.unwatch(watch)
            self._ends.discard(watch)
            os.close(watch)
            call()

        self.watch(watch, ended)
        self._ends.add(watch)

    def close(self) -> None:
        """Stop watching everything."""
        self._selector.close()
        while self._ends:
            os.close(self._ends.pop())


class Alarm:
    """A timer whose time often moves. It rings early if the time was moved to later, so the callee has to check.

    The loop's timers can't be cancelled, and one for each move would be many.
    """

    def __init__(self, loop: Loop, call: Callable[[], object]) -> None:
        self._loop = loop
        self._call = call
        self._rings_at: list[float] = []
        """The latest first: a timer is added only if it is earlier than those that run."""
        self._off = False

    def set(self, at: float | None) -> None:
        """Ring at that time of the loop, or earlier. None: don't."""
        if at is not None and not self._off and not (self._rings_at and self._rings_at[-1] <= at):
            self._rings_at.append(at)
            self._loop.after(max(0.0, at - self._loop.now()), self._rings)

    def turn_off(self) -> None:
        """Never ring again."""
        self._off = True

    def _rings(self) -> None:
        self._rings_at.pop()
        if not self._off:
            self._call()
