"""How often something is tried that is of no use if it fails: the more seldom, the more often it has failed in turn."""

from __future__ import annotations

LONGEST_REST = 64
"""Steps: a script that changes gradients or rates now and then is tried again soon, and one that always does costs
nothing."""


class Rests:
    """After a failure it is not tried for one step, after the next one for 2, 4, 8 … 64 steps. Pure."""

    def __init__(self) -> None:
        self._left, self._next = 0, 1
        """Steps left in which it is not tried; and the length of the next rest."""

    def __bool__(self) -> bool:
        """Whether it rests now."""
        return self._left > 0

    def begin(self) -> None:
        """It has failed in this step."""
        self._left, self._next = self._next, min(2 * self._next, LONGEST_REST)

    def pass_step(self) -> None:
        """A step of the rest is over."""
        self._left -= 1

    def end(self) -> None:
        """It has not failed in this step."""
        self._next = 1
