"""The average of a group: the contract that shared memory (`training.averages`) and a network (`fabric.gloo`) keep.

Whoever issues groups numbers them, tells every member to `average`, and when all have answered says that the area they
wrote into is everybody's value from now on. Until then nobody's value has changed: a group that fails needs no undoing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

Check = Callable[[], None]
"""Called while a member waits for others. Raises PeerLost if that is in vain."""


class Area(Protocol):
    """A replica, or one worker's gradients."""

    @property
    def gradients(self) -> list[Tensor]:
        """Values of parameters, or gradients of them."""

    @property
    def present(self) -> Tensor:
        """uint8[parameters]: 1 where there is a gradient."""

    @property
    def buffers(self) -> dict[str, Tensor]:
        """By name."""


class GroupAverage(Protocol):
    """One member's end. Groups are numbered uniquely, members ascend, and a process is in one group at a time."""

    def average(
        self,
        group: int,
        members: Sequence[int],
        sources: Sequence[int],
        target: int,
        weights: Sequence[float] | None,
        check: Check = lambda: None,
    ) -> None:
        """Do this member's part of writing the average of the areas `sources`, one of each member, into area `target`.

        When it has returned at every member, the average is in `target`. Without weights it is the mean of parameters
        and buffers, and all flags are set. With weights it is of each parameter the weighted sum over the sources
        whose flag for it is 1; where nobody has one, the target's flag is 0 and its value untouched. Buffers are
        averaged either way: of whole numbers the largest, of truth values the first one's.

        Raises PeerLost when a member is found to be lost. It may return though one is: whoever issued the group knows.
        """

    def evict(self, members: Sequence[int]) -> None:
        """Give up what is kept for these members: after a failure of theirs, or to save room.

        To be told to all of them that are left, between the same two of their groups.
        """


@dataclass(slots=True)
class Kept:
    """For whoever issues groups: which sets of members may keep what they have made for the next time.

    Members can't decide that for themselves: one would keep what another has given up, and wait for it for ever.
    """

    most: int = 60
    """Sets. Each is a connection for each two members, and as much memory as a model in each; NCCL took 64 at most."""
    sets: dict[tuple[int, ...], None] = field(default_factory=dict)
    """Those that were used last are last."""

    def use(self, members: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """These are to average next. Returns those who are to be told to `evict`, before that."""
        self.sets.pop(members, None)
        self.sets[members] = None
        if len(self.sets) <= self.most:
            return ()
        oldest = next(iter(self.sets))
        del self.sets[oldest]
        return (oldest,)

    def failed(self, members: tuple[int, ...]) -> None:
        """A group of theirs has failed: those who are left are told to `evict`."""
        self.sets.pop(members, None)
