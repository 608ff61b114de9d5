"""The hosts besides the head's that make a range of each version, as the head sees them.

An update goes to all of them, and a version is made once all have made their range. The head's shelf decides how long
they keep a version, as it has all workers' claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from paceline.core.facts import Fact
from paceline.core.items import Sum, Update
from paceline.host import messages as host_messages
from paceline.host.orders.pushes import Pushed
from paceline.ipc import messages
from paceline.transfer.fetcher import Fetchable, Fetcher, Then
from paceline.transfer.item_names import fields_of

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


class RemoteShards:
    """Keeps the contract `Fetcher`. Without other hosts that make ranges it only passes on."""

    def __init__(
        self,
        inner: Fetcher,
        head: str,
        *,
        host_of: Callable[[Sum], str],
        drops: Callable[[Update | Sum], None],
        tell: Callable[[str, messages.Message], None],
    ) -> None:
        """`inner` brings what is to come to the head's host, which is called `head`. `host_of(total)` makes that sum.

        `drops(item)` is told of what no version will have, while it has its place. `tell(host, message)`.
        """
        self.hosts: Sequence[str] = ()
        """The other hosts, in the order of their ranges."""
        self._inner = inner
        self._head = head
        self._host_of = host_of
        self._drops = drops
        self._tell = tell
        self._coming: dict[Update | Sum, _Coming] = {}
        self._arrived: dict[Update | Sum, None] = {}
        """What all have their ranges of, and of which no version is being made."""
        self._expected: set[Update] = set()
        """Updates that the hosts were told to expect, and that are not on their way."""

    def begin(self, hosts: Sequence[str]) -> None:
        """These hosts make ranges, besides this one."""
        self.hosts = hosts

    def stored(self, host: str, item: Update | Sum, at: float) -> Fact | None:
        """That host has its range of the update, or of the sum. Return what has happened: it is the last one, say."""
        return self._comes(item, host, at)

    def freed(self, version: int) -> None:
        """Nobody needs that version any more."""
        self._tell_all(host_messages.FreeVersion(version))

    def expect(self, update: Update) -> None:
        """That update is being computed: the hosts may fetch what there is of it."""
        self._expected.add(update)
        self._tell_all(host_messages.ExpectUpdate(update.worker, update.step))

    def expected(self) -> list[Update]:
        """What the hosts were told to expect, and is not on its way."""
        return sorted(self._expected)

    def forget(self, update: Update) -> None:
        """What the hosts have of an update that is being computed does not count."""
        if update in self._expected:
            self.dropped(update)

    def dropped(self, item: Update | Sum) -> None:
        """No version will have what the hosts have of that."""
        if isinstance(item, Update):
            self._expected.discard(item)
        self._arrived.pop(item, None)
        self._drops(item)
        self._tell_all(host_messages.Drop(fields_of(item)))

    def void(self, total: Sum) -> None:
        """The sum is void. All may have it by now, and what else its updates need was still to come."""
        if total in self._arrived:
            self.dropped(total)

    def send_shares(self, number: int) -> None:
        """Have them send what the optimizer has for their ranges. See `Shares`."""
        self._tell_all(host_messages.PackState(number))

    # --- see `Moves` --------------------------------------------------------------------------------

    def leaves(self, host: str) -> list[Update | Sum]:
        """Another host takes over that one's range, so it gets nothing any more. Return what had arrived by now."""
        self.hosts = [one for one in self.hosts if one != host]
        for one in self._coming.values():
            one.lacking.discard(host)
            one.lacking.add(WIDER)
        return list(self._arrived)

    def coming(self) -> list[Update | Sum]:
        """What is on its way to some host."""
        return list(self._coming)

    def lacks_here(self, item: Update | Sum) -> bool:
        """Whether that is on its way to this host."""
        return self._head in self._coming[item].lacking

    def taken(self, at: float) -> list[Fact]:
        """The range is taken over. Return what has happened: these updates have arrived."""
        return [fact for item in self.coming() if (fact := self._comes(item, WIDER, at)) is not None]

    # --- versions -----------------------------------------------------------------------------------

    def make(self, order: host_messages.MakeRange, pushed: Pushed) -> None:
        """Have them make their ranges of this version. `pushed`: the order's terms, as items."""
        for item, _ in pushed:
            self._arrived.pop(item, None)
        self._tell_all(order)

    def make_with(self, norms: messages.store.Norms) -> None:
        """Tell them these norms, which the ranges that are being made wait for."""
        self._tell_all(host_messages.AllNorms(norms))

    # --- see `Fetcher` ------------------------------------------------------------------------------

    def fetch(self, worker: int, item: Fetchable, then: Then) -> None:
        """See `Fetcher`. An update has come once all hosts that make ranges have theirs."""
        if not self.hosts or not isinstance(item, Update | Sum):
            self._inner.fetch(worker, item, then)
            return
        if isinstance(item, Update):
            self._expected.discard(item)
        self._coming[item] = _Coming(worker, then, {self._head, *self.hosts})
        self._tell_all(host_messages.Bring(fields_of(item), self._host_of(item) if isinstance(item, Sum) else None))
        self._inner.fetch(worker, item, partial(self._comes, item, self._head))

    def cancel(self, worker: int) -> None:
        """See `Fetcher`."""
        for item in [item for item, one in self._coming.items() if one.worker == worker]:
            del self._coming[item]
            self.dropped(item)
        for update in [update for update in self.expected() if update.worker == worker]:
            self.forget(update)
        self._inner.cancel(worker)

    # --- inside -------------------------------------------------------------------------------------

    def _comes(self, item: Update | Sum, host: str, at: float) -> Fact | None:
        if (one := self._coming.get(item)) is None:  # its worker has left
            return None
        one.lacking.discard(host)
        if one.lacking:
            return None
        del self._coming[item]
        self._arrived[item] = None
        return one.then(at)

    def _tell_all(self, message: messages.Message) -> None:
        for host in self.hosts:
            self._tell(host, message)
