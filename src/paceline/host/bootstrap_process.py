"""The process that stands in for a worker on a host that has none, so that such a host can make a range of versions.

The store process is forked from one that has the script's model and optimizer. On a host without workers a process
runs the script up to `prepare` for that alone. It trains on nothing, and ends once it has forked.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from paceline.host.workers import Workers
from paceline.ipc import messages

EARLY = "its script has ended before prepare()"


class BootstrapProcess:
    """Begins that process, and hears it. It comes to `prepare` once, or fails once."""

    def __init__(
        self,
        number: int,
        workers: Workers,
        *,
        came: Callable[[messages.worker.Offered], object],
        failed: Callable[[str], object],
    ) -> None:
        """`number` is no worker's. `workers` has no other process. `failed(why)`: it has ended before it could fork."""
        self.number = number
        self.workers = workers
        self.offer: messages.worker.Offered | None = None
        """What the script brought to `prepare`."""
        self._came = came
        self._failed = failed
        self._over = False
        """Whether nothing that the process says or does counts any more."""

    def begin(self) -> None:
        """Have the script begin. Raises NoProcess."""
        self.workers.start([self.number])
        self.workers.open(self._hear, self._gone)
        self.workers.send(self.number, messages.worker.Start())

    def end(self) -> None:
        """It has forked the store process, and is needed no more."""
        self._over = True
        self.workers.end(self.number)

    def end_all(self) -> None:
        """End the process, and whatever it has started."""
        self._over = True
        self.workers.end_all()

    def await_all(self) -> None:
        """Wait until the process has ended."""
        self.workers.await_all()

    def _hear(self, number: int, message: messages.Message, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        match message:
            case messages.worker.Offered():
                self.offer = message
                self._came(message)
            case messages.worker.ScriptRefused(message=why):
                self._fail(why)
            case messages.worker.StoreNotForked(error=why):
                self._fail(f"the process that makes versions can't be started: {why}")
            case messages.worker.ParserEnded() | messages.worker.ScriptEnded():
                self._fail(EARLY)

    def _gone(self, number: int, status: int) -> None:
        self._fail(EARLY if self.offer is None else "the process that was to fork its store has ended")

    def _fail(self, why: str) -> None:
        if not self._over:
            self._over = True
            self._failed(why)
