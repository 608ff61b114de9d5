"""The average of a group: the contract that shared memory (`training.averages`) and a network (`fabric.gloo`) keep.

The issuer of groups numbers them, and tells every member to `average`. When all have answered, it says that the area
they wrote into is each member's value from now on. Until then no value has changed, so a failure needs no undoing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Check = Callable[[], None]
"""Called while a member waits for others. Raises PeerLost if the wait is in vain."""


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
        """Buffers by name."""


class GroupAverage(Protocol):
    """One member's end. Groups have unique numbers, members ascend, and a process is in one group at a time."""

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
        and buffers, and all flags are set. With weights it is, for each parameter, the weighted sum over the sources
        whose flag for it is 1. If none has it, the target's flag is 0 and its value untouched. Buffers are
        averaged either way: of whole numbers the largest is taken, of truth values the first one's.

        Raises PeerLost when a member is found to be lost. It may also return though one is: the issuer knows.
        """

    def evict(self, members: Sequence[int]) -> None:
        """Give up what is kept for these members: after a failure of theirs, or to save room.

        Tell this to all of them that are left, between the same two of their groups.
        """


@dataclass(slots=True)
class Kept:
    """For the issuer of groups: which sets of members may keep what they have made for the next time.

    Members can't decide that for themselves: one would keep what another has given up, and wait for it for ever.
    """

    most: int = 60
    """How many sets are kept. NCCL took 64 at most.

    Each set takes a connection for each two members, and as much memory as a model in each member.
    """
    sets: dict[tuple[int, ...], None] = field(default_factory=dict)
    """The sets, the last used one last."""

    def use(self, members: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """These members are to average next. Return those that must be told to `evict` before that."""
        self.sets.pop(members, None)
        self.sets[members] = None
        if len(self.sets) <= self.most:
            return ()
        oldest = next(iter(self.sets))
        del self.sets[oldest]
        return (oldest,)

    def failed(self, members: tuple[int, ...]) -> None:
        """A group of these members has failed. Return those that are left, which must be told to `evict`."""
        self.sets.pop(members, None)
