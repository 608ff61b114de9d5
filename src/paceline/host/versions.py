"""Which versions there are, for whoever computes on them. A store makes them, on this host or on another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Versions(Protocol):
    """What is known of versions where workers are. See `Commits`, where the store is, and `Elsewhere`."""

    @property
    def newest(self) -> int:
        """The newest one that is made."""

    def when_made(self, version: int, call: Callable[[], None]) -> None:
        """Call once that version is whole. Whoever needs it then claims it before."""


class Elsewhere:
    """The store is on another host, which tells what it has made."""

    def __init__(self) -> None:
        self.newest = 0
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def when_made(self, version: int, call: Callable[[], None]) -> None:
        """See `Versions`."""
        if version <= self.newest:
            call()
        else:
            self._waiting.setdefault(version, []).append(call)

    def made(self, version: int) -> None:
        """The store has made that version, the next one."""
        self.newest = version
        for call in self._waiting.pop(version, ()):
            call()
