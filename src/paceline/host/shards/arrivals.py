"""Which hosts lack what of the updates that are on their way to versions. Pure: no bytes and no places.

Each host that makes a range of versions needs its part of every update. The head's host is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from paceline.core.facts import Fact
from paceline.core.items import Sum, Update
from paceline.host import messages as host_messages
from paceline.host.orders.pushes import Pushed
from paceline.host.shards.remote import RemoteShard
from paceline.host.shards.server import ShardHost, ShardServer
from paceline.ipc import messages
from paceline.transfer.fetcher import Then

WIDER = "wider range"
"""What is lacking of an update that was coming as a host took over another's range, until that host has all it lacked.
What it had said of the update was about its own range alone."""


@dataclass(slots=True)
class _Coming:
    """An update, or a sum of some, on its way to the hosts that make ranges."""

    worker: int
    then: Then
    lacking: set[str]
    """Those that don't have it. See `WIDER`."""


class Arrivals:
    """Has updates and sums brought to all hosts that make ranges. One has arrived once they all have it."""

    def __init__(self, head: str, own: ShardServer, tell: Callable[[str, messages.Message], None]) -> None:
        """`own` makes the range of the head's host, which is called `head`. `tell(host, message)` reaches another."""
        self._head = head
        self._own = own
        self._tell = tell
        self._others: dict[str, ShardHost] = {}
        """The other hosts that make ranges, in the order of these."""
        self._coming: dict[Update | Sum, _Coming] = {}
        self._arrived: dict[Update | Sum, None] = {}
        """What all have their ranges of, and of which no version is being made."""
        self._expected: dict[Update, None] = {}
        """Updates that the hosts were told to expect, and that are not on their way."""

    def begin(self, hosts: Sequence[str]) -> None:
        """These hosts make ranges, besides the head's."""
        self._others = {host: RemoteShard(partial(self._tell, host)) for host in hosts}

    @property
    def hosts(self) -> Sequence[str]:
        """All hosts that make ranges, the head's first."""
        return [self._head, *self._others]

    @property
    def others(self) -> Sequence[str]:
        """The other hosts that make ranges, in the order of these."""
        return list(self._others)

    def bring(self, worker: int, item: Update | Sum, then: Then, source: str | None = None) -> None:
        """Have all hosts bring that update of the worker, or the sum with one, which `source` makes.

        It ends in one call of `then`, unless the worker leaves before, or the item can't come.
        """
        if isinstance(item, Update):
            self._expected.pop(item, None)
        self._coming[item] = _Coming(worker, then, {*self._others, self._head})
        for shard in self._all():
            shard.bring(item, source)

    def stored(self, host: str, item: Update | Sum, at: float) -> Fact | None:
        """That host has its range of the update, or of the sum. Return what has happened: it is the last one, say."""
        return self._comes(item, host, at)

    def cancel(self, worker: int) -> None:
        """The worker takes no part any more: what is on the way from it never arrives."""
        for item in [item for item, one in self._coming.items() if one.worker == worker]:
            del self._coming[item]
            self.dropped(item)
        for update in [update for update in self.expected() if update.worker == worker]:
            self.forget(update)

    def expect(self, update: Update) -> None:
        """That update is being computed: the hosts may fetch what there is of it."""
        self._expected[update] = None
        for shard in self._all():
            shard.expect(update)

    def expected(self) -> list[Update]:
        """What the hosts were told to expect, and is not on its way."""
        return list(self._expected)

    def forget(self, update: Update) -> None:
        """What the hosts have of an update that is being computed does not count."""
        if update in self._expected:
            self.dropped(update)

    def dropped(self, item: Update | Sum) -> None:
        """No version will have what the hosts have of that. Call this while it has its place."""
        if isinstance(item, Update):
            self._expected.pop(item, None)
        self._arrived.pop(item, None)
        for shard in self._all():
            shard.drop(item)

    def void(self, total: Sum) -> None:
        """The sum is void, if it is on its way."""
        if self._coming.pop(total, None) is not None:
            self.dropped(total)

    # --- versions -----------------------------------------------------------------------------------

    def make(self, order: host_messages.MakeRange, pushed: Pushed, summed: Sequence[Update]) -> None:
        """Have all hosts make their ranges of this version. See `ShardHost`."""
        for item in (*(item for item, _ in pushed), *summed):
            self._arrived.pop(item, None)
        for shard in self._all():
            shard.make(order, pushed, summed)

    def make_with(self, norms: messages.store.Norms) -> None:
        """Tell them these norms, which the ranges that are being made wait for."""
        for shard in self._all():
            shard.make_with(norms)

    def freed(self, version: int) -> None:
        """Nobody needs that version any more. The head's host has let go of it by now."""
        for shard in self._others.values():
            shard.free(version)

    def pack_states(self, number: int) -> None:
        """Have the other hosts send what the optimizer has for their ranges. See `Shares`."""
        for shard in self._others.values():
            shard.pack_state(number)

    # --- see `Moves` --------------------------------------------------------------------------------

    def leaves(self, host: str) -> list[Update | Sum]:
        """Another host takes over that one's range, so it gets nothing any more. Return what had arrived by now."""
        del self._others[host]
        for one in self._coming.values():
            one.lacking.discard(host)
            one.lacking.add(WIDER)
        return list(self._arrived)

    def taken(self, at: float) -> list[Fact]:
        """The range is taken over. Return what has happened: these updates have arrived."""
        return [fact for item in list(self._coming) if (fact := self._comes(item, WIDER, at)) is not None]

    def at(self, host: str) -> ShardHost:
        """Return what is commanded there."""
        return self._own if host == self._head else self._others[host]

    # --- inside -------------------------------------------------------------------------------------

    def _all(self) -> Iterator[ShardHost]:
        """All that make ranges. The head's host, which needs no message, is last."""
        yield from self._others.values()
        yield self._own

    def _comes(self, item: Update | Sum, host: str, at: float) -> Fact | None:
        if (one := self._coming.get(item)) is None:  # its worker has left
            return None
        one.lacking.discard(host)
        if one.lacking:
            return None
        del self._coming[item]
        self._arrived[item] = None
        return one.then(at)
