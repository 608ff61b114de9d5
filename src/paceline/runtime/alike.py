"""Finds workers that compute the same, so that work is done several times over."""

from __future__ import annotations


class Alike:
    """Compares the first gradients of workers that leased no data for them."""

    def __init__(self) -> None:
        self._firsts: dict[str, int] = {}
        """The worker that had a first gradient with this checksum."""
        self._told = False

    def warning(self, worker: int, checksum: str) -> str | None:
        """A line about this worker's first gradient; None if no other's is like it, or if that was said already."""
        other = self._firsts.setdefault(checksum, worker)
        if other == worker or self._told:
            return None
        self._told = True
        one, two = sorted((other, worker))
        return (
            f"the first gradients of workers {one} and {two} are equal bit for bit: both train on the same samples; "
            "iterate over the loader that prepare() returns, or have the script take the share of paceline.worker()"
        )
