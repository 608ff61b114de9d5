"""What the arithmetic process is told to make a version with: of all of it, or of this host's range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from paceline.core.items import Sum, Update, Version
from paceline.core.state_edits import StateEdit
from paceline.host.memory_plan import MemoryPlan
from paceline.host.store_process import StoreProcess
from paceline.host.version_shelf import Owner, Shelf
from paceline.ipc import messages
from paceline.transfer.byte_ranges import ByteRanges

MOST_THREADS = 8
"""A commit is bound by memory, so a few cores are all that it can use.

Two take all that the memory of a small machine gives. On a server of 16 cores eight made a version of 124 million
parameters in 0.1 s; other numbers were not tried there (docs/performance.md).
"""

Scalars = list[dict[str, Any]]
"""An optimizer's hyperparameters, by parameter group."""
Pushed = Sequence[tuple[Update | Sum, float]]
"""Updates, and sums of updates, each with its weight, in the order in which they are summed."""


class CommitDispatch:
    """Has versions made, each from the one before."""

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        arithmetic: StoreProcess,
        idle_cores: Callable[[], int],
        *,
        tells: bool = False,
    ) -> None:
        """`idle_cores()` are those that the process may use in addition to its own.

        `tells`: see the attribute. What was told is asked for by `has`.
        """
        self.tells = tells
        """Whether it is asked what is made of a version while the rest is being made."""
        self._making = -1
        """The version that was to be made last."""
        self._made = ByteRanges()
        """What there is of it, as far as that was told."""
        self._shelf = shelf
        self._plan = plan
        self._arithmetic = arithmetic
        self._idle_cores = idle_cores
        self._awaits_norms: messages.store.Commit | None = None
        """What makes the version once the norms of all hosts' ranges are known."""
        self._used: set[int] = set()
        """Places that a version has been in."""

    def uses(self, place: int) -> None:
        """A version is in that place, or is about to be."""
        self._used.add(place)

    def make(
        self,
        version: int,
        source: int,
        pushed: Pushed,
        owner: Owner,
        *,
        scalars: Scalars | None,
        look: bool,
        edits: Sequence[StateEdit] = (),
        summed: Sequence[Update] = (),
        exchanges: bool = False,
    ) -> bool:
        """Have the version made, claimed by that owner. Return whether there is a place for it.

        `exchanges`: have the norms of its mean gradients told first. It is made by `make_with`.

        `source`: the version that it is made from. `scalars`: the hyperparameters, if they are not those of the last
        one. `look`: whether NaN and infinity are looked for. `edits`: what is edited before in the optimizer's state.
        `summed`: updates in sums, whose buffers are here.
        """
        target = self._shelf.put(Version(version), owner, self._plan.shared)
        if target is None:
            return False
        areas = [(self._plan.area(self._shelf.place(item)), weight) for item, weight in pushed]
        order = messages.store.Commit(
            version=version,
            source=self._shelf.place(Version(source)),
            target=target,
            pushed=areas,
            scalars=scalars,
            threads=min(MOST_THREADS, max(1, self._idle_cores())),
            look=look,
            first=target not in self._used,
            tells=self.tells,
            edits=list(edits),
            summed=[self._plan.area(self._shelf.place(update)) for update in summed],
        )
        self._awaits_norms = order if exchanges else None
        taken = messages.store.TakeNorms(version, target, areas, order.threads, order.first)
        self._arithmetic.send(taken if exchanges else order)
        self._used.add(target)
        self._making = version
        self._made.clear()
        return True

    def make_with(self, message: messages.store.Norms) -> bool:
        """Make the version that waits for these norms. Return whether one does."""
        order = self._awaits_norms
        if order is None or order.version != message.version:
            return False
        self._awaits_norms = None
        self._arithmetic.send(msgspec.structs.replace(order, norms=message.norms))
        return True

    def made(self, message: messages.store.Making) -> bool:
        """These bytes are made. Return whether they were to be."""
        if message.version == self._making:
            self._made.add(message.begin, message.end)
        return message.version == self._making

    def has(self, version: int, begin: int, end: int) -> bool:
        """Whether these bytes are made of a version that is being made."""
        return version == self._making and self._made.has(begin, end)
