"""Which updates go into a version as one sum: the ledger's facts say so, in a run as in its replay."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.facts import Fact, GradientReady, UpdateArrived
from paceline.core.items import Sum, Update
from paceline.core.roster import mean_of
from paceline.host.orders.pushes import Pushed
from paceline.host.shards.host_reducer import HostReducer, Terms
from paceline.host.version_shelf import Shelf

Found = tuple[str, int | None]
"""A parameter with a NaN or an infinity, and the worker whose gradient has it."""


class SumTable:
    """Knows sums by their numbers, and puts them in the place of their updates."""

    def __init__(self, shelf: Shelf, reducer: HostReducer) -> None:
        self.look = True
        """Whether NaN and infinity are looked for."""
        self.found: Found | None = None
        """The first one that was found."""
        self._shelf = shelf
        self._reducer = reducer
        self._weights: dict[Update, float | None] = {}
        """By update that is in no version: what it weighs, if that is known."""
        self._arrived: dict[Update, Sum] = {}
        """By update that has arrived, and is in no version: its sum, if it came in one."""

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now."""
        match fact:
            case GradientReady(worker=worker, step=step):
                self._weights[Update(worker, step)] = fact.weighs
            case UpdateArrived(worker=worker, step=step, sum=int(number)):
                self._arrived[Update(worker, step)] = Sum(number)

    def terms_of(self, updates: Sequence[Update]) -> Terms:
        """What adds up to the mean of these: they ascend, and are weighed as a machine does it."""
        weights = {(one.worker, one.step): self._weights[one] for one in updates}
        return [(Update(worker, step), weight) for worker, step, weight in mean_of(weights)]

    def applied(self, pushed: Pushed) -> tuple[Pushed, list[Update]]:
        """Return what a version is made of, with sums in the place of their updates, and the updates in these.

        A sum weighs as much as its updates do together. One that is not here is made, as in a replay on one host.
        """
        weights: dict[Update | Sum, float] = {}
        members: dict[Sum, list[Update]] = {}
        for item, weight in pushed:
            assert isinstance(item, Update)
            term: Update | Sum = self._arrived.get(item, item)
            weights[term] = weights.get(term, 0.0) + weight
            if isinstance(term, Sum):
                members.setdefault(term, []).append(item)
        for total, updates in members.items():
            if not self._shelf.has(total):
                self._reducer.sum_up(total, self.terms_of(updates), look=self.look)
        return list(weights.items()), [update for updates in members.values() for update in updates]

    def dropped(self, update: Update) -> None:
        """The update is in a version by now, or will be in none."""
        self._weights.pop(update, None)
        self._arrived.pop(update, None)
        self._reducer.dropped(update)
