"""Versions on a host: which there are, and where they lie.

A worker's script may change the first version before its first step. What it has written is an item of its own, a
`Beginning`, until all hosts have it as their first version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.core.items import Beginning, EarlyVersion, Former, Item, Version
from paceline.core.machine import Fragments
from paceline.core.shards import Shard, fragments, meet, pieces
from paceline.host.awaited import Awaited
from paceline.host.claims import Owner
from paceline.host.host_memory import HostMemory
from paceline.host.item_table import Placed
from paceline.host.memory_plan import MemoryPlan
from paceline.host.version_shelf import Shelf
from paceline.ipc.memory import Span

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.host.shards.early_versions import EarlyVersions
    from paceline.host.shards.range_maker import RangeMaker
    from paceline.transfer.fetch_table import Where


def _arriving(version: Version) -> Owner:
    """Who claims the place that a version is brought to."""
    return "arriving", version.version


def _begins_with(version: Version) -> Owner:
    """Who claims the version that another one is brought on top of, as far as the two are the same."""
    return "changed since", version.version


NEWEST_WHOLE = ("newest whole version",)
"""Who claims it, if versions change by fragments."""


def written_by(worker: int) -> Owner:
    """Who claims what that worker has written for all to begin with, until it is the first version here."""
    return "written by", worker


Named = Version | EarlyVersion | Beginning


class Versions(Placed[Named]):
    """Versions on a host, each in a place of its own. Some of one may be here before the rest.

    Ranges that other hosts make come to the place where this host makes its own.
    """

    def __init__(
        self,
        shelf: Shelf,
        memory: HostMemory,
        plan: MemoryPlan,
        *,
        name: str,
        head: str,
        host_of: Callable[[int], str],
        of_replicas: Callable[[], bool],
        begins: Callable[[], bool] = lambda: False,
    ) -> None:
        """`name`: this host's. `host_of(worker)`: its host. `of_replicas()`: whether replicas begin as versions.

        `begins()`: whether what training begins with is still to come from the head.
        """
        super().__init__(shelf, memory)
        self.newest = 0
        """The newest version that is made, by all hosts that make ranges."""
        self.shards: Sequence[Shard] = ()
        """Who makes which range of each version. Empty: the head makes them all."""
        self.maker: RangeMaker | None = None
        """What makes this host's range. None: nothing is made here."""
        self.early: EarlyVersions | None = None
        """What begins versions before they are ordered. None: as above."""
        self._plan = plan
        self._name = name
        self._head = head
        self._host_of = host_of
        self._of_replicas = of_replicas
        self._begins = begins
        self._waiting = Awaited()
        self._whole: set[Item] = set()
        """Versions of which all ranges are here, if hosts make some."""
        self._fragments, self._since = Fragments(), 0
        """How versions change, and the last one before they did."""
        self._cut: list[list[tuple[int, int]]] | None = None
        """The ranges of bytes of each fragment, once they are asked for."""
        self._lent: set[str] = set()
        """Other hosts that fetch what training begins with."""

    # --- which there are ----------------------------------------------------------------------------

    def change_by(self, fragments: Fragments) -> None:
        """Versions from now on change by these fragments."""
        self._fragments, self._since, self._cut = fragments, self.newest, None
        if fragments.total == 1:
            self._shelf.release(NEWEST_WHOLE)

    def made_anew(self, version: int) -> None:
        """That version is made, and all of it differs from the one before."""
        self._since = version
        self.made(version)

    def changed(self, since: int, version: int) -> list[tuple[int, int]]:
        """Return the ranges of bytes that may differ between those versions."""
        return self._by_fragments(since, version)[0]

    def _by_fragments(self, since: int, version: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return the ranges of bytes that may differ between those versions, and the others."""
        offer, total = self._memory.offer, self._fragments.total
        if total == 1 or since < self._since:
            return [(0, offer.cuts[-1])], []
        changed = self._fragments.between(since, version)
        differ, same = list[tuple[int, int]](), list[tuple[int, int]]()
        if self._cut is None:  # it takes milliseconds with a thousand parameters
            self._cut = fragments(offer.starts, offer.cuts[-1], total)
        for number, ranges in enumerate(self._cut):
            (differ if number in changed else same).extend(ranges)
        return differ, same

    def when_begun(self, version: int, call: Callable[[], None]) -> None:
        """Call once ranges of that version may be brought here: other hosts may be making them."""
        if self.maker is None:
            call()
        else:
            self.maker.when_begun(version, call)

    def when_made(self, version: int, call: Callable[[], None]) -> None:
        """Call once that version is made. Whoever needs it then claims it before."""
        if version <= self.newest:
            call()
        else:
            self._waiting.add(version, call)

    def made(self, version: int) -> None:
        """That version is made, and all before it."""
        self.newest = version
        self._waiting.come(version)

    def never(self) -> None:
        """No version is made any more."""
        self._waiting.clear()

    @property
    def makes_all(self) -> bool:
        """Whether this host makes all of each version."""
        return self._head == self._name if not self.shards else all(one.host == self._name for one in self.shards)

    def is_whole(self, version: Version) -> None:
        """All ranges of that version are here."""
        if self.maker is not None:
            self._whole.add(version)
        if self._fragments.total > 1 and not self.makes_all:
            self._shelf.claim(NEWEST_WHOLE, version)

    def freed(self, item: Item) -> None:
        """Nobody claims that item any more."""
        self._whole.discard(item)

    def away(self, item: Item) -> bool:
        """Whether the item is a version of which some has to be brought here, or is on its way."""
        if not isinstance(item, Version):
            return False
        if self.maker is not None:
            return item not in self._whole and not self.makes_all
        return not self._shelf.has(item) or item in self._shelf.claimed(_arriving(item))

    # --- what training begins with ------------------------------------------------------------------

    def lend(self, host: str, *items: Item) -> None:
        """That host fetches these, which training begins with. Keep them as they are until it has them."""
        self._lent.add(host)
        self._shelf.claim(("lent", host), *items)

    def begun(self, host: str) -> None:
        """That host has what training begins with."""
        self._lent.discard(host)
        self._shelf.release(("lent", host))

    @property
    def lends(self) -> bool:
        """Whether a host is still to begin."""
        return bool(self._lent)

    # --- items: see `ItemKind` ----------------------------------------------------------------------

    def place(self, item: Named) -> int:
        """See `Placed`."""
        return self._shelf.place(self._meant(item))

    def ranges(self, item: Named) -> list[tuple[str, int, int]]:
        """See `ItemKind`. Also of a version whose host is lost: then it never comes."""
        offer = self._memory.offer
        if isinstance(item, EarlyVersion):
            return pieces(offer.cuts, self._others)
        if isinstance(item, Beginning) and self._name == self._head:
            return [(self._host_of(item.worker), 0, self.view(item).nbytes)]
        if self._of_replicas():  # they have flags and buffers, too
            return [(self._head, 0, offer.replica_bytes)]
        if isinstance(item, Beginning) or self._begins():
            return [(self._head, 0, offer.cuts[-1])]
        before = self._shelf.claimed(NEWEST_WHOLE)[:1]
        if before < (item,) and self._before(item) is None:
            self._shelf.claim(_begins_with(item), *before)
        return pieces(offer.cuts, meet(self._others, self._parts(item)[0]))

    def lay(self, item: Named, number: int) -> Span:
        """See `ItemKind`. There is a place for a version that was claimed, as there is for all that workers claim."""
        if isinstance(item, EarlyVersion):
            return super().lay(item, number)
        if not self._shelf.has(item):  # else a range of it is made here
            owner = _arriving(item) if isinstance(item, Version) else written_by(item.worker)
            place = self._shelf.put(item, owner, self._plan.shared, comes=True)
            assert place is not None
        there = super().lay(item, number)
        if isinstance(item, Version) and (before := self._before(item)) is not None:
            for _, begin, end in meet(self._others, self._parts(item)[1]):
                there.memory[begin:end] = self.view(before).memory[begin:end]
        return there

    def free(self, item: Named, whole: bool) -> None:
        """See `ItemKind`. A worker that has left may claim a version that did not come, until its process ends."""
        if isinstance(item, EarlyVersion):
            if whole and isinstance(meant := self._meant(item), Version):
                self.is_whole(meant)
            return
        if isinstance(item, Beginning):
            if not whole:
                self._shelf.release(written_by(item.worker))
            return
        if whole:
            self.is_whole(item)
        self._shelf.release(_begins_with(item))
        if not whole and item in self._shelf.claimed(_arriving(item)):
            self._shelf.withdraw(item)
        self._shelf.release(_arriving(item))

    def look(self, item: Named, begin: int, end: int) -> Where:
        """See `ItemKind`."""
        if isinstance(item, EarlyVersion):
            if self.early is None:
                return "gone"
            meant = self.early.meant(item)
            return self.early.look(item, begin, end) if meant == item else self.look(meant, begin, end)
        if isinstance(item, Version):
            if self.maker is None:
                return "gone"
            if item.version > self.maker.newest:  # its place is free if it can't be made
                return "here" if self.maker.has(item.version, begin, end) else "coming"
        return "here" if self._shelf.has(self._meant(item)) else "gone"

    def claim(self, item: Named, owner: Owner) -> None:
        """See `ItemKind`."""
        self._shelf.claim(owner, self._meant(item))

    @property
    def _others(self) -> list[Shard]:
        """The ranges that other hosts make."""
        shards = self.shards or [Shard(self._head, 0, self._memory.offer.cuts[-1])]
        return [one for one in shards if one.host != self._name]

    def _parts(self, version: Version) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return the ranges of bytes that are brought of that version, and those that are in one that is here."""
        before = self._before(version)
        return self._by_fragments(-1 if before is None else before.version, version.version)

    def _before(self, version: Version) -> Version | None:
        """Return the version on top of which that one is brought; None: all of it is brought."""
        there = self._shelf.claimed(_begins_with(version))
        return next((one for one in there if isinstance(one, Version)), None)

    def comes_as(self, version: Version) -> Version | EarlyVersion:
        """The name by which other hosts' ranges of that version come here."""
        return version if self.early is None else self.early.comes_as(version)

    def _meant(self, item: Named) -> Item:
        """What lies here by that name.

        What a worker has written for all to begin with is the first version by now. While a host is still to begin,
        the first version is as it was: that host's workers change it, too.
        """
        if isinstance(item, EarlyVersion):
            return item if self.early is None else self.early.meant(item)
        if isinstance(item, Beginning) and not self._shelf.has(item):
            return Version(0)
        former = Former(item)
        return former if self._lent and self._shelf.has(former) else item
