"""Updates and sums of updates as items of a host: what versions are made of, and the buffers behind an update."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING

from paceline.core.items import Buffers, Sum, Update
from paceline.core.shards import Shard, leaves_early, meet, pieces, with_rest
from paceline.host.host_memory import HostMemory
from paceline.host.item_table import ItemKind, Placed
from paceline.host.overlap import Computing
from paceline.host.shards.host_reducer import HostReducer
from paceline.host.version_shelf import Shelf
from paceline.ipc.memory import Span

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.host.shards.server import ShardServer
    from paceline.transfer.fetch_table import Where


class Summands(Placed[Update | Sum]):
    """Workers of this host compute updates, and its store's process adds them up. Other hosts' come for its range."""

    def __init__(
        self,
        shelf: Shelf,
        memory: HostMemory,
        reducer: HostReducer,
        computing: Computing,
        own: Container[int],
        host_of: Callable[[int], str],
        changed: Callable[[int, int], Sequence[tuple[int, int]]],
    ) -> None:
        """`own`: this host's workers. `host_of(worker)`: its host. `changed`: see `Versions`."""
        super().__init__(shelf, memory)
        self.server: ShardServer | None = None
        """What makes this host's range. None: nothing is made here."""
        self._reducer = reducer
        self._computing = computing
        self._own = own
        self._host_of = host_of
        self._changed = changed

    def ranges(self, item: Update | Sum) -> list[tuple[str, int, int]]:
        """See `ItemKind`. Which parameters have a gradient comes with the range, and buffers to where they are kept.

        An update has only what the version changes that it is awaited for.
        """
        assert self.server is not None
        offer, newest = self._memory.offer, self.server.maker.newest
        changed = self._changed(newest, newest + 1)

        def of_item(shard: Shard) -> list[Shard]:
            there = meet([shard], changed)
            if not isinstance(item, Update):
                return there
            return [Shard(one.host, offer.in_update(one.begin), offer.in_update(one.end)) for one in there]

        if (moving := self.server.parts_of(item)) is not None:
            return [*of_item(moving)]
        host = self._host_of(item.worker) if isinstance(item, Update) else self.server.source_of(item)
        cuts = offer.update_cuts if isinstance(item, Update) else offer.cuts
        own = pieces(cuts, of_item(self.server.shard._replace(host=host)))
        flags_end, buffers_end = offer.buffers_at
        if not self.server.keeps_buffers:
            return [*own, (host, offer.cuts[-1], offer.cuts[-1] + offer.flags_bytes)]
        if isinstance(item, Update) and leaves_early(offer.cuts[-1]) and flags_end < buffers_end:
            return [*own, (host, offer.cuts[-1], flags_end), (host, flags_end, buffers_end)]  # flags may come first
        rest = offer.cuts[-1], buffers_end if isinstance(item, Update) else flags_end
        return [(host, *of) for of in with_rest([(begin, end) for _, begin, end in own], rest)]

    def lay(self, item: Update | Sum, number: int) -> Span:
        """See `ItemKind`. Nothing here writes where updates of other hosts come to."""
        assert self.server is not None
        self.server.place_of(item)
        return self.view(item) if isinstance(item, Update) else super().lay(item, number)

    def free(self, item: Update | Sum, whole: bool) -> None:
        """See `ItemKind`."""
        if self.server is not None:
            self.server.comes_no_more(item, whole)

    def look(self, item: Update | Sum, begin: int, end: int) -> Where:
        """See `ItemKind`. An update is here before the head hears that it is ready, and what was told of it before.

        A range that was made here may move, and what has come for that with it.
        """
        if isinstance(item, Sum):
            return self._reducer.look(item, begin, end)
        if item.worker in self._own:
            return self._computing.look(item, begin, end, laid=self._shelf.has(item))
        return "here" if self._shelf.has(item) else "gone"


class Gathered(Summands):
    """The same where groups average: what is encoded comes to each host of a group, all of it at once."""

    def ranges(self, item: Update | Sum) -> list[tuple[str, int, int]]:
        """See `ItemKind`."""
        assert isinstance(item, Update)  # nothing that is encoded is added up
        offer, host = self._memory.offer, self._host_of(item.worker)
        cuts = sorted({*offer.encoded_cuts})  # where parameters are encoded whole, some are in the same place
        return [(host, offer.cuts[-1], offer.buffers_at[1]), *pieces(cuts, [Shard(host, cuts[0], cuts[-1])])]

    def lay(self, item: Update | Sum, number: int) -> Span:
        """See `ItemKind`."""
        return Placed.lay(self, item, number)

    def free(self, item: Update | Sum, whole: bool) -> None:
        """See `ItemKind`. Its group lets it go."""


class UpdateBuffers(ItemKind[Buffers]):
    """A worker's buffers as of a step, which lie behind its update."""

    def __init__(self, shelf: Shelf, memory: HostMemory, host_of: Callable[[int], str]) -> None:
        """`host_of(worker)`: its host."""
        self._shelf = shelf
        self._memory = memory
        self._host_of = host_of

    def ranges(self, item: Buffers) -> list[tuple[str, int, int]]:
        """See `ItemKind`."""
        return [(self._host_of(item.worker), 0, self.view(item).nbytes)]

    def lay(self, item: Buffers, number: int) -> Span:
        """See `ItemKind`."""
        return self.view(item)

    def look(self, item: Buffers, begin: int, end: int) -> Where:
        """See `ItemKind`."""
        return "here" if self._shelf.has(Update(item.worker, item.step)) else "gone"

    def view(self, item: Buffers) -> Span:
        """See `ItemKind`. Raises NotHere."""
        update = self._memory.place(self._shelf.place(Update(item.worker, item.step)))
        return update.part(*self._memory.offer.buffers_at)
