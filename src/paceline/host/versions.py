"""Which versions there are, for whoever computes on them. A store makes them, on this host or on another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Versions(Protocol):
    """What is known of versions where workers are. See `CommitQueue`, where the store is, and `FetchedVersions`."""

    @property
    def newest(self) -> int:
        """The newest one that is made."""

    def when_made(self, version: int, call: Callable[[], None]) -> None:
        """Call once that version is whole. Whoever needs it then claims it before."""

    def when_begun(self, version: int, call: Callable[[], None]) -> None:
        """Call once ranges of that version may be brought here: other hosts may be making them."""


class Awaited:
    """What is to be done once a version has come."""

    def __init__(self) -> None:
        self._calls: dict[int, list[Callable[[], None]]] = {}

    def add(self, version: int, call: Callable[[], None]) -> None:
        """Call once that version has come."""
        self._calls.setdefault(version, []).append(call)

    def come(self, version: int) -> None:
        """That version has come, and all before it."""
        for come in sorted(one for one in self._calls if one <= version):
            for call in self._calls.pop(come):
                call()

    def clear(self) -> None:
        """No version comes any more."""
        self._calls.clear()
