"""Which slot of the store holds which version, and which versions are still needed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Slots:
    """A slot is free if its version is not claimed and not the newest.

    A version may be claimed before it is made. With n workers, 3n + 3 slots always leave one to commit into. A worker
    has at most three claims: for its present step, for a version that was pulled ahead for a later step, and for a
    look at the newest version. There are also one recording and the newest version. A commit takes the lowest free
    slot, so slots that are never needed cost nothing.
    """

    count: int
    newest: int = 0
    where: dict[int, int] = field(default_factory=dict)
    claims: dict[int, int] = field(default_factory=dict)
    aside: dict[int, int] = field(default_factory=dict)
    """The slot where a version was before it was moved, until it is no longer claimed."""
    reserved: set[int] = field(default_factory=set)
    """Slots that a worker writes its beginning into."""

    def __post_init__(self) -> None:
        self.where.setdefault(self.newest, 0)

    def free(self) -> int | None:
        """A slot to commit into; None while every one is needed."""
        used = {*self.where.values(), *self.aside.values(), *self.reserved}
        return next((slot for slot in range(self.count) if slot not in used), None)

    def committed(self, version: int, slot: int) -> None:
        """That version is whole, in that slot."""
        before, self.newest = self.newest, version
        self.where[version] = slot
        self._forget(before)

    def moved(self, version: int, slot: int) -> None:
        """That version is in another slot from now on. Workers that have claimed it may still read the former one."""
        self.aside[version], self.where[version] = self.where[version], slot

    def claim(self, version: int) -> None:
        """Claim that version."""
        self.claims[version] = self.claims.get(version, 0) + 1

    def unclaim(self, version: int) -> None:
        """End one claim of that version."""
        self.claims[version] -= 1
        self._forget(version)

    def _forget(self, version: int) -> None:
        if not self.claims.get(version):
            self.claims.pop(version, None)
            self.aside.pop(version, None)
            if version < self.newest:
                self.where.pop(version, None)
