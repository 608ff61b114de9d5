"""Sums of this host's updates, and places for those of other hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.core.items import Sum, Update
from paceline.host.claims import Owner
from paceline.host.memory_plan import MemoryPlan
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.transfer.byte_ranges import ByteRanges

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.fetch_table import Where

Terms = Sequence[tuple[Update, float]]
"""Updates, each with its weight, in the order in which they are summed."""


def needed(total: Sum) -> Owner:
    """Who claims a sum until its updates are in a version, or the sum is void."""
    return "sum", total.number


def _being_made(total: Sum) -> Owner:
    """Who claims the place of a sum while something is written there, even if that is void by now."""
    return "being summed", total.number


class HostReducer:
    """Has updates that lie here added up. The store's process does one thing after another, in the order of orders."""

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        store: StoreProcess,
        *,
        there: Callable[[Sum], object],
        not_finite: Callable[[str, int | None], object],
    ) -> None:
        """`there(total)` is told of each sum of which more is there, which other hosts may have asked for.

        `not_finite(parameter, worker)`: a gradient of that worker, which was added up here, has a NaN or an infinity.
        """
        self._there = there
        self._not_finite = not_finite
        self._shelf = shelf
        self._plan = plan
        self._store = store
        self._newest = 0
        """The last sum that was ordered. Their numbers ascend."""
        self._ordered: dict[Sum, tuple[Terms, bool]] = {}
        """Sums that wait for a place, in order: their terms, and whether NaN and infinity are looked for."""
        self._made: dict[Sum, ByteRanges] = {}
        """What there is of the sums that are being made."""
        self._sums: dict[Update, Sum] = {}
        """By update: the sum that it is in."""

    @property
    def places(self) -> int:
        """How many sums there may be at once. None: no updates are added up."""
        return self._plan.sums

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

        Updates may be gone by now. Then whoever ordered the sum is about to say that it is void. What is void has its
        place until the process has come to it, so a sum may have to wait for one.
        """
        self._newest = total.number
        self._ordered[total] = terms, look
        self.go_on()

    def heard(self, message: messages.store.Summing | messages.store.Summed) -> bool:
        """The process has come so far with a sum. Return whether it was to."""
        total = Sum(message.number)
        if (made := self._made.get(total)) is None:
            return False
        if isinstance(message, messages.store.Summing):
            made.add(message.begin, message.end)
        else:
            if message.not_finite is not None:
                self._not_finite(*message.not_finite)
            self._let_go(total)
        self._there(total)
        return True

    def lost(self) -> None:
        """The process has gone. What it was adding up stays until it is void, as other hosts may have asked for it."""
        for total in [total for total in self._made if total not in self._sums.values()]:
            self._let_go(total)

    def look(self, total: Sum, begin: int, end: int) -> Where:
        """Where these bytes of the sum are, which another host asks for. It may have been ordered faster than here."""
        if (made := self._made.get(total)) is not None:
            return "here" if made.has(begin, end) else "coming"
        if total in self._ordered:
            return "coming"
        if self._shelf.has(total):  # all of it, or the range that is made here, which moves to the host that asks
            return "here"
        return "coming" if total.number > self._newest else "gone"

    def dropped(self, update: Update) -> None:
        """The update is in a version by now, or will be in none: its sum is needed no more."""
        if (total := self._sums.pop(update, None)) is not None:
            self._shelf.release(needed(total))
            self.go_on()

    def drop(self, total: Sum) -> None:
        """The sum is void. Its updates may be added up anew."""
        self._ordered.pop(total, None)
        self._sums = {update: one for update, one in self._sums.items() if one != total}
        self._shelf.release(needed(total))
        if self._store.lost:
            self._let_go(total)
        self.go_on()

    def _let_go(self, total: Sum) -> None:
        """Nothing is written in the sum's place any more."""
        self._made.pop(total, None)
        self._shelf.release(_being_made(total))
        self.go_on()

    def go_on(self) -> None:
        """Have sums made that wait for a place, as far as there are any."""
        while self._ordered and self.has_room:
            total = next(iter(self._ordered))
            terms, look = self._ordered.pop(total)
            if not all(self._shelf.has(update) for update, _ in terms):
                continue
            self.lay(total, [update for update, _ in terms])
            self._shelf.claim(_being_made(total), total)
            self._made[total] = ByteRanges()
            areas = [(self._plan.area(self._shelf.place(update)), weight) for update, weight in terms]
            target = self._plan.area(self._shelf.place(total))
            self._store.send(messages.store.MakeSum(total.number, target, areas, look))
