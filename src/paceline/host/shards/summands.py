"""Updates and sums of updates as items of a host: what versions are made of, and the buffers behind an update."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING

from paceline.core.items import Buffers, Sum, Update
from paceline.core.shards import pieces
from paceline.host.host_memory import HostMemory
from paceline.host.item_table import ItemKind, Placed
from paceline.host.overlap import Computing
from paceline.host.shards.host_reducer import HostReducer
from paceline.host.version_shelf import Shelf
from paceline.ipc.memory import Span

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.host.cluster import Cluster
    from paceline.host.shards.migration import Moves
    from paceline.host.shards.server import ShardServer
    from paceline.transfer.fetch_table import Where


class Summands(Placed[Update | Sum]):
    """Workers of this host compute updates, and its store's process adds them up. Other hosts' come here."""

    def __init__(
        self, shelf: Shelf, memory: HostMemory, reducer: HostReducer, computing: Computing, own: Callable[[int], bool]
    ) -> None:
        """`own(worker)`: whether it is of this host."""
        super().__init__(shelf, memory)
        self._reducer = reducer
        self._computing = computing
        self._own = own

    def lay(self, item: Update | Sum, number: int) -> Span:
        """See `ItemKind`. Nothing here writes where updates of other hosts come to."""
        return self.view(item) if isinstance(item, Update) else super().lay(item, number)

    def look(self, item: Update | Sum, begin: int, end: int) -> Where:
        """See `ItemKind`. An update is here before the head hears that it is ready, and what was told of it before."""
        if isinstance(item, Sum):
            return self._reducer.look(item, begin, end)
        if self._own(item.worker):
            return self._computing.look(item, begin, end, laid=self._shelf.has(item))
        return "gone"


class HeadSummands(Summands):
    """Where the store is: all but other hosts' ranges of an update comes here."""

    def __init__(self, cluster: Cluster, moves: Moves, host_of: Callable[[int], str]) -> None:
        """`host_of(worker)`: its host."""
        super().__init__(
            cluster.shelf, cluster.memory, cluster.reducer, cluster.computing, lambda worker: worker in cluster.workers
        )
        self._cluster = cluster
        self._moves = moves
        self._host_of = host_of

    def ranges(self, item: Update | Sum) -> list[tuple[str, int, int]]:
        """See `ItemKind`."""
        if (moving := self._moves.ranges(item)) is not None:
            return moving
        host = self._host_of(item.worker) if isinstance(item, Update) else self._cluster.aggregation.host_of(item)
        return [(host, *of) for of in self._cluster.ranges_of(item)]


class ShardSummands(Summands):
    """On a host beside the head's: its range of an update comes here, if it makes one."""

    def __init__(
        self,
        shelf: Shelf,
        memory: HostMemory,
        reducer: HostReducer,
        computing: Computing,
        own: Container[int],
        hosts: Mapping[int, str],
    ) -> None:
        """`own`: this host's workers. `hosts`: by worker."""
        super().__init__(shelf, memory, reducer, computing, own.__contains__)
        self.server: ShardServer | None = None
        """What makes this host's range. None: nothing is made here."""
        self._hosts = hosts

    def ranges(self, item: Update | Sum) -> list[tuple[str, int, int]]:
        """See `ItemKind`. Which parameters have a gradient comes with the range."""
        assert self.server is not None
        if (moving := self.server.parts_of(item)) is not None:
            return [moving]
        host = self._hosts[item.worker] if isinstance(item, Update) else self.server.source_of(item)
        cuts, flags = self._memory.offer.cuts, self._memory.offer.flags_bytes
        return [*pieces(cuts, [self.server.shard._replace(host=host)]), (host, cuts[-1], cuts[-1] + flags)]

    def lay(self, item: Update | Sum, number: int) -> Span:
        """See `ItemKind`."""
        assert self.server is not None
        self.server.place_of(item)
        return super().lay(item, number)

    def free(self, item: Update | Sum, whole: bool) -> None:
        """See `ItemKind`."""
        if self.server is not None:
            self.server.comes_no_more(item, whole)

    def look(self, item: Update | Sum, begin: int, end: int) -> Where:
        """See `ItemKind`. A range that was made here may move, and what has come for that with it."""
        if isinstance(item, Update) and not self._own(item.worker):
            return "here" if self._shelf.has(item) else "gone"
        return super().look(item, begin, end)


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
