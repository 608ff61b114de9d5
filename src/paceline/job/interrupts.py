"""Signals that ask a launcher, or the agent of a host that has joined, to end."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from typing import Any

from paceline.host.worker_output import Unread, WorkerOutput
from paceline.ipc.processes import asking_to_end

OF_SCRIPTS = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a launcher passes on to scripts with a handler. Slurm sends one before it ends a job."""


def without_handler(number: int) -> str:
    """Return the line about a signal that no script has a handler for."""
    return f"{signal.Signals(number).name} has come, and no script has a handler for it: nothing is done"


class Interrupts:
    """Catches signals from now on. A loop watches this."""

    def __init__(self) -> None:
        self.pending = 0
        self.last = 0
        """The last signal that asked for an end. A terminal's Ctrl-C is SIGINT."""
        self._passed_on: list[int] = []
        """Signals for scripts that were not taken yet."""
        self.output: WorkerOutput | None = None
        """May be printing when a signal comes, and is interrupted then."""
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        for number in asking_to_end():
            signal.signal(number, self._note)
        for number in OF_SCRIPTS:
            signal.signal(number, lambda number, _: self._passed_on.append(number))

    def fileno(self) -> int:
        """Return a descriptor that is readable when a signal has come."""
        return self._read.fileno()

    def let_go(self) -> None:
        """Close these descriptors in a forked process."""
        self._read.close()
        self._write.close()

    def take(self) -> int:
        """Return how many signals that ask for an end have come since the last call."""
        self.wake()
        taken, self.pending = self.pending, 0
        return taken

    def take_passed_on(self) -> list[int]:
        """Return the signals for scripts that have come since the last call."""
        taken, self._passed_on = self._passed_on, []
        return taken

    def wake(self) -> None:
        """Clear the descriptor, so that it shows further signals."""
        with suppress(BlockingIOError):
            self._read.recv(64)

    def _note(self, number: int, _: Any) -> None:
        self.pending += 1
        self.last = number
        if self.output is not None and self.output.printing:
            raise Unread
