"""One iteration over the prepared loader."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from paceline.core.leases import Batch


@dataclass(slots=True)
class EpochLoop:
    """The batches that a loop was leased, and what became of them."""

    epoch: int
    steps: int = 0
    """Steps that the worker had made before it."""
    within: EpochLoop | None = None
    """The loop that it began inside of: one which may go on after it."""
    counted: bool = False
    """Whether its batches count as torch's iterator hands them out."""
    over: bool = False
    """Whether it was left, or has come to its end."""
    ended: bool = False
    """Whether it has come to its end."""
    ran_out: bool = False
    """Whether it was left nothing when it asked for a batch, as it came to its end or fetched ahead."""
    leased: deque[Batch] = field(default_factory=deque)
    """Leased, and neither handed out nor given back yet."""
    ahead: Counter[Batch] = field(default_factory=Counter)
    """Batches leased ahead of use: another worker may have been given them."""
    begins: Batch | None = None
    """The one of these that the script begins with while torch's iterator asks for more."""
    begun: bool | None = None
    """Whether the worker still had that; None as long as it is not known."""
    handed_out: list[Batch] = field(default_factory=list)
    given_back: list[Batch] = field(default_factory=list)
    """Fetched ahead, and not used when the loop was left."""

    @property
    def batches(self) -> tuple[Batch, ...]:
        """All that it was leased, in that order."""
        return (*self.handed_out, *self.given_back, *self.leased)
