"""Sums of this host's updates, and places for those of other hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.core.items import Sum, Update
from paceline.host import messages
from paceline.host.arithmetic import Arithmetic
from paceline.host.coverage import Coverage
from paceline.host.plan import Plan
from paceline.host.shelf import Owner, Shelf

if TYPE_CHECKING:  # which a run on one host does without
    from paceline.host.fetches import Where

Terms = Sequence[tuple[Update, float]]
"""Updates, each with its weight, in the order in which they are summed."""


def needed(total: Sum) -> Owner:
    """Who claims a sum until its updates are in a version, or the sum is void."""
    return "sum", total.number


def _being_made(total: Sum) -> Owner:
    """Who claims the place of a sum while something is written there, even if that is void by now."""
    return "being summed", total.number


class Summer:
    """Has updates that lie here added up. The store's process does one thing after another, in the order of orders."""

    def __init__(self, shelf: Shelf, plan: Plan, arithmetic: Arithmetic) -> None:
        self._shelf = shelf
        self._plan = plan
        self._arithmetic = arithmetic
        self._newest = 0
        """The last sum that was ordered. Their numbers ascend."""
        self._made: dict[Sum, Coverage] = {}
        """What there is of the sums that are being made."""
        self._sums: dict[Update, Sum] = {}
        """By update: the sum that it is in."""

    @property
    def has_room(self) -> bool:
        """Whether there is a place for one more sum."""
        return self._shelf.free(self._plan.of_sums) is not None

    def lay(self, total: Sum, updates: Sequence[Update]) -> None:
        """Lay out a place for the sum of these updates. It is kept until one of them is needed no more, as all are."""
        place = self._shelf.put(total, needed(total), self._plan.of_sums)
        assert place is not None, f"there is no place for {total}"
        self._sums |= dict.fromkeys(updates, total)

    def updates_of(self, total: Sum) -> Sequence[Update]:
        """What adds up to that sum, which is needed."""
        return [update for update, one in self._sums.items() if one == total]

    def sum_up(self, total: Sum, terms: Terms, *, look: bool) -> None:
        """Have that sum made. `look`: whether NaN and infinity are looked for.

        Updates may be gone by now. Then whoever ordered the sum is about to say that it is void.
        """
        self._newest = total.number
        if not all(self._shelf.has(update) for update, _ in terms):
            return
        self.lay(total, [update for update, _ in terms])
        self._shelf.claim(_being_made(total), total)
        self._made[total] = Coverage()
        areas = [(self._plan.area(self._shelf.place(update)), weight) for update, weight in terms]
        target = self._plan.area(self._shelf.place(total))
        self._arithmetic.send(messages.SumUp(total.number, target, areas, look))

    def summing(self, message: messages.Summing) -> bool:
        """These bytes of a sum are there. Return whether it was to be made."""
        if (made := self._made.get(Sum(message.number))) is None:
            return False
        made.add(message.begin, message.end)
        return True

    def summed(self, number: int) -> bool:
        """That sum is whole. Return whether it was to be made."""
        self._shelf.release(_being_made(Sum(number)))
        return self._made.pop(Sum(number), None) is not None

    def look(self, total: Sum, begin: int, end: int) -> Where:
        """Where these bytes of the sum are, which another host asks for. It may have been ordered faster than here."""
        if (made := self._made.get(total)) is not None:
            return "here" if made.has(begin, end) else "coming"
        if self._shelf.has(total):  # all of it, or the range that is made here, which moves to the host that asks
            return "here"
        return "coming" if total.number > self._newest else "gone"

    def dropped(self, update: Update) -> None:
        """The update is in a version by now, or will be in none: its sum is needed no more."""
        if (total := self._sums.pop(update, None)) is not None:
            self._shelf.release(needed(total))

    def drop(self, total: Sum) -> None:
        """The sum is void. Its updates may be added up anew."""
        self._sums = {update: one for update, one in self._sums.items() if one != total}
        self._shelf.release(needed(total))
