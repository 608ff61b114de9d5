"""What the workers of a host besides the head's print: on its way to the head, which keeps and shows it."""

from __future__ import annotations

from collections.abc import Callable

from paceline.host import messages as host_messages
from paceline.ipc import messages

MOST = 8
"""Pieces that may be on their way. They go before the host's beats, and a slow link has to carry them in a second."""


class LogForwarding:
    """Takes the place of `WorkerOutput` at such a host. The head tells of each piece that it has kept it.

    While as many pieces as may be are on their way, no more is read. So what a worker prints without end stays in its
    pipe, and the worker waits, as for a slow terminal.
    """

    send: Callable[[messages.Message], None]
    """Sends the head a message of `host_messages.ToHead`."""

    def __init__(self) -> None:
        self._on_their_way = 0

    @property
    def full(self) -> bool:
        """See `Prints`."""
        return self._on_their_way >= MOST

    def printed(self, worker: int, data: bytes) -> None:
        """See `Prints`."""
        self._on_their_way += 1
        self.send(host_messages.Printed(worker, data))

    def kept(self) -> None:
        """The head has kept a piece."""
        self._on_their_way -= 1

    def say(self, line: str) -> None:
        """See `Prints`."""
        self.send(host_messages.HostRemarked(line))
