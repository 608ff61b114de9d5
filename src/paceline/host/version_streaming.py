"""Versions that come to devices while they are being made, for workers that wait for them with nothing else to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.core.items import Version
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages

TOLD = 8 << 20
"""Bytes that a worker is told of at once. A bus of 50 GB/s takes 0.2 ms for them, and telling takes far less."""


class VersionStreaming:
    """Tells a worker whose parameters are on a device what is made of the version that it is released on."""

    def __init__(
        self, shelf: Shelf, seats: Mapping[int, WorkerState], send: Callable[[int, messages.Message], None]
    ) -> None:
        self._shelf = shelf
        self._seats = seats
        self._send = send
        self._waiting: dict[int, list[int]] = {}
        """By version that is not made: the workers that wait for it."""
        self._untold: list[tuple[int, int]] = []
        """What is made of the version that is being made, and was not told."""

    def waits(self, worker: int, version: int) -> None:
        """The worker begins a step once that version is made. It has claimed it."""
        if self._seats[worker].accelerator:
            self._waiting.setdefault(version, []).append(worker)

    def made(self, version: int, begin: int, end: int) -> None:
        """These bytes of it are made."""
        if version not in self._waiting:
            return
        self._untold.append((begin, end))
        if sum(end - begin for begin, end in self._untold) < TOLD:
            return
        place = self._shelf.place(Version(version))
        for worker in self._waiting[version]:
            if self._seats[worker].trains:
                self._send(worker, messages.worker.Arrives(place, self._untold))
        self._untold = []

    def gone(self, worker: int) -> None:
        """The worker takes no part any more: who comes in its place waits for nothing yet."""
        for workers in self._waiting.values():
            if worker in workers:
                workers.remove(worker)

    def whole(self, version: int) -> None:
        """All of that version is made: who waits for it is told to compute."""
        self._waiting.pop(version, None)
        self._untold = []
