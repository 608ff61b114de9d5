"""The hosts besides the head's that make a range of each version, as the head sees them.

An update goes to all of them, and a version is made once all have made their range. The head's shelf decides how long
they keep a version, as it has all workers' claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from paceline.core.facts import Fact
from paceline.core.items import Replica, Update, Version
from paceline.core.orders import ApplyUpdate
from paceline.host import between, messages
from paceline.host.commits import HERE
from paceline.host.fetch import Fetcher, Then
from paceline.host.maker import Pushed, Scalars

WIDER = "wider range"
"""What is lacking of an update that was coming as a host took over another's range, until that host has all it lacked.
What it had said of the update was about its own range alone."""


@dataclass(slots=True)
class _Coming:
    """An update on its way to the hosts that make ranges."""

    then: Then
    lacking: set[str]
    """Those that don't have it. See `WIDER`."""


class OtherShards:
    """Keeps the contracts `Fetcher` and `OtherMakers`. Without other hosts that make ranges it only passes on."""

    def __init__(self, inner: Fetcher) -> None:
        """`inner` brings what is to come to this host."""
        self.hosts: Sequence[str] = ()
        """The other hosts, in the order of their ranges."""
        self.drops: Callable[[int, int], None] = lambda worker, step: None
        """Told of each update that no version will have, while it has its place."""
        self._inner = inner
        self._tell: Callable[[str, messages.Message], None] = lambda host, message: None
        self._coming: dict[Update, _Coming] = {}
        self._arrived: dict[Update, None] = {}
        """Updates that all have their ranges of, and of which no version is being made."""

    def begin(self, hosts: Sequence[str], tell: Callable[[str, messages.Message], None]) -> None:
        """These hosts make ranges, besides this one. `tell(host, message)`."""
        self.hosts, self._tell = hosts, tell

    def stored(self, host: str, worker: int, step: int, at: float) -> Fact | None:
        """That host has its range of the update. Return what has happened: it is the last one, say."""
        return self._comes(Update(worker, step), host, at)

    def freed(self, version: int) -> None:
        """Nobody needs that version any more."""
        self._tell_all(between.Free(version))

    def dropped(self, worker: int, step: int) -> None:
        """No version will have that update."""
        self._arrived.pop(Update(worker, step), None)
        self.drops(worker, step)
        self._tell_all(between.Drop(worker, step))

    def send_shares(self, number: int) -> None:
        """Have them send what the optimizer has for their ranges. See `Shares`."""
        self._tell_all(between.SendShare(number))

    # --- see `Moves` --------------------------------------------------------------------------------

    def leaves(self, host: str) -> list[Update]:
        """Another host takes over that one's range, so it gets nothing any more. Return what had arrived by now."""
        self.hosts = [one for one in self.hosts if one != host]
        for one in self._coming.values():
            one.lacking.discard(host)
            one.lacking.add(WIDER)
        return list(self._arrived)

    def coming(self) -> list[Update]:
        """What is on its way to some host."""
        return list(self._coming)

    def lacks_here(self, update: Update) -> bool:
        """Whether that update is on its way to this host."""
        return HERE in self._coming[update].lacking

    def taken(self, at: float) -> list[Fact]:
        """The range is taken over. Return what has happened: these updates have arrived."""
        return [fact for update in self.coming() if (fact := self._comes(update, WIDER, at)) is not None]

    # --- see `OtherMakers` --------------------------------------------------------------------------

    def make(self, order: ApplyUpdate, pushed: Pushed, scalars: Scalars | None, *, look: bool) -> Sequence[str]:
        """See `OtherMakers`."""
        contributions = [(update.worker, update.step, weight) for update, weight in pushed]
        for update, _ in pushed:
            self._arrived.pop(update, None)
        self._tell_all(between.MakeRange(order.version, contributions, scalars, look))
        return self.hosts

    # --- see `Fetcher` ------------------------------------------------------------------------------

    def fetch(self, worker: int, item: Update | Version | Replica, then: Then) -> None:
        """See `Fetcher`. An update has come once all hosts that make ranges have theirs."""
        if not self.hosts or not isinstance(item, Update):
            self._inner.fetch(worker, item, then)
            return
        self._coming[item] = _Coming(then, {HERE, *self.hosts})
        self._tell_all(between.Bring(item.worker, item.step))
        self._inner.fetch(worker, item, partial(self._comes, item, HERE))

    def gather(self, group: int, members: tuple[int, ...], then: Then) -> float:
        """See `Fetcher`."""
        return self._inner.gather(group, members, then)

    def cancel(self, worker: int) -> None:
        """See `Fetcher`."""
        for update in [update for update in self._coming if update.worker == worker]:
            del self._coming[update]
            self.dropped(*update[:2])
        self._inner.cancel(worker)

    def next(self, until: float) -> Fact | None:
        """See `Fetcher`."""
        return self._inner.next(until)

    def due(self) -> float | None:
        """See `Fetcher`."""
        return self._inner.due()

    # --- inside -------------------------------------------------------------------------------------

    def _comes(self, update: Update, host: str, at: float) -> Fact | None:
        if (one := self._coming.get(update)) is None:  # its worker has left
            return None
        one.lacking.discard(host)
        if one.lacking:
            return None
        del self._coming[update]
        self._arrived[update] = None
        return one.then(at)

    def _tell_all(self, message: messages.Message) -> None:
        for host in self.hosts:
            self._tell(host, message)
