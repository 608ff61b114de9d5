"""What waits for a version."""

from __future__ import annotations

from collections.abc import Callable


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
