"""Signals that ask a launcher, or the agent of a host that has joined, for an end."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from typing import Any

from paceline.host.output import Output, Unread
from paceline.host.processes import asking_to_end


class Interrupts:
    """Signals that ask for an end, for a loop to watch. They are in force once this is made."""

    def __init__(self) -> None:
        self.pending = 0
        self.keyboard = False
        """Whether the last signal was a terminal's Ctrl-C."""
        self.output: Output | None = None
        """What may be printing when a signal comes."""
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        for number in asking_to_end():
            signal.signal(number, self._note)

    def fileno(self) -> int:
        """A descriptor that is readable when a signal has come."""
        return self._read.fileno()

    def let_go(self) -> None:
        """In a process that was forked: signals to the launcher are not its business."""
        self._read.close()
        self._write.close()

    def take(self) -> int:
        """How many signals have come since this was last asked."""
        with suppress(BlockingIOError):
            self._read.recv(64)
        taken, self.pending = self.pending, 0
        return taken

    def _note(self, number: int, _: Any) -> None:
        self.pending += 1
        self.keyboard = number == signal.SIGINT
        if self.output is not None and self.output.printing:
            raise Unread
