"""What leads from a run to the process that serves its live page, and back: whether anybody looks.

The run never waits for that process. It tells it something while somebody looks, and drops what does not go out.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

VIEW, END = b"v", b"e"
"""What a line begins with: the run as it goes, or its end."""
LOOKS, LOOKS_NOT = b"1", b"0"
"""What the process says as the first looks, and as the last has gone."""
PATIENCE = 1.0
"""Seconds that the last line has to go out, once the run has ended."""


class PageFeed:
    """The run's end. It is watched by the run's loop."""

    def __init__(self, end: socket.socket) -> None:
        self.is_looked_at = False
        self.closed = False
        """Whether the process that serves the page has gone."""
        self._end = end
        self._end.setblocking(False)
        self._rest = self._next = b""
        """Of the line that is under way, what has not gone out yet; and the newest line after it."""

    def fileno(self) -> int:
        return self._end.fileno()

    def hear(self) -> None:
        """Read what the process has said."""
        try:
            said = self._end.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        self.closed = not said
        self.is_looked_at = said[-1:] == LOOKS

    def tell(self, told: Mapping[str, Any]) -> None:
        """Tell how the run goes, in place of whatever waits to go out."""
        self._next = VIEW + msgspec.json.encode(told) + b"\n"
        try:
            while self._rest or self._next:
                if not self._rest:
                    self._rest, self._next = self._next, b""
                self._rest = self._rest[self._end.send(self._rest) :]
        except BlockingIOError:
            pass  # the process has not read yet what came before
        except OSError:
            self._rest = self._next = b""  # it has gone, which the loop is about to hear

    def ended(self, told: Mapping[str, Any]) -> None:
        """Tell how the run has ended. Nothing is told after that."""
        with suppress(OSError):  # the process has gone, or does not read
            self._end.settimeout(PATIENCE)
            self._end.sendall(self._rest + self._next + END + msgspec.json.encode(told) + b"\n")
        self.let_go()

    def let_go(self) -> None:
        """Close it, in a forked process or at the end."""
        self._end.close()
