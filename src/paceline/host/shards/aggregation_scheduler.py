"""Updates of one host that go to the hosts that make versions together, as one sum. Each host makes its own sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from paceline.core.facts import Fact, UpdateArrived
from paceline.core.items import Sum, Update
from paceline.host import messages as host_messages
from paceline.host.shards.arrivals import Arrivals
from paceline.host.shards.host_reducer import HostReducer
from paceline.host.shards.sum_table import SumTable
from paceline.ipc import messages
from paceline.transfer.fetcher import Then

SEVERAL = 2
"""Workers of a host from which on it adds up their updates: a process of its own does that."""


@dataclass(slots=True)
class _Group:
    """Updates on their way, as one sum."""

    host: str
    updates: dict[Update, Then]


class AggregationScheduler:
    """Has the updates of a host come together, once none of its workers computes a step.

    A host's workers may all be waited for, as only machines have sums that wait for them all.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        sums: SumTable,
        reducer: HostReducer,
        head: str,
        tell: Callable[[str, messages.Message], None],
        happened: Callable[[Fact], None],
    ) -> None:
        """`arrivals` has sums and single updates come. `sums`, `reducer`: those of the head's host, called `head`.

        `tell(host, message)` reaches another host.
        """
        self._arrivals = arrivals
        self._sums = sums
        self._reducer = reducer
        self._head = head
        self._tell = tell
        self._happened = happened
        self._hosts: dict[int, str] = {}
        """By worker: its host, if that adds up updates, or has."""
        self._adding: set[str] = set()
        """Hosts that add up their workers' updates."""
        self._computing: dict[int, None] = {}
        """Workers that were released, and whose update is not ready."""
        self._ready: dict[Update, Then] = {}
        """Updates that wait for others of their host."""
        self._groups: dict[Sum, _Group] = {}
        """By sum that is on its way."""
        self._numbers = count(1)

    def begins(self, host: str, workers: Sequence[int]) -> bool:
        """That host, which has room for these workers, is about to train. Return whether it adds up their updates."""
        if len(workers) < SEVERAL or not self._reducer.places:
            return False
        self._adding.add(host)
        self._hosts |= dict.fromkeys(workers, host)
        return True

    def ends(self, host: str) -> None:
        """That host adds up nothing any more: its workers' updates come one by one."""
        self._adding.discard(host)
        for total in [total for total, group in self._groups.items() if group.host == host]:
            self._void(total)
        for worker in [worker for worker in self._computing if self._hosts[worker] == host]:
            del self._computing[worker]
        self._settle(host)

    def adding(self, host: str) -> bool:
        """Whether that host adds up its workers' updates."""
        return host in self._adding

    def adds_up(self, worker: int) -> bool:
        """Whether the worker's updates come with others of its host, as a rule."""
        return self._hosts.get(worker) in self._adding

    def released(self, worker: int) -> None:
        """The worker is to compute a step."""
        if self.adds_up(worker):
            self._computing[worker] = None

    def idles(self, worker: int) -> None:
        """The worker computes no step any more: it has no data for one, say."""
        if worker in self._computing:
            del self._computing[worker]
            self._settle(self._hosts[worker])

    def bring(self, update: Update, then: Then) -> None:
        """Have the update come. See `Arrivals`."""
        worker = update.worker
        if not self.adds_up(worker):
            self._arrivals.bring(worker, update, then)
            return
        self._computing.pop(worker, None)
        self._ready[update] = then
        self._settle(self._hosts[worker])

    def cancel(self, worker: int) -> None:
        """See `Arrivals`. A sum with an update of that worker is void: the others are added up anew."""
        self._arrivals.cancel(worker)
        if not self.adds_up(worker):
            return
        for total, group in list(self._groups.items()):
            if any(update.worker == worker for update in group.updates):
                self._void(total)
        self._ready = {update: then for update, then in self._ready.items() if update.worker != worker}
        self._computing.pop(worker, None)
        self._settle(self._hosts[worker])

    # --- inside -------------------------------------------------------------------------------------

    def _settle(self, host: str) -> None:
        """Have that host's updates come, if none of its workers computes one that is to come with them."""
        if any(self._hosts[worker] == host for worker in self._computing):
            return
        together = {update: then for update, then in self._ready.items() if self._hosts[update.worker] == host}
        for update in together:
            del self._ready[update]
        if len(together) < 2 or host not in self._adding or not self._reducer.has_room:
            for update, then in together.items():
                self._arrivals.bring(update.worker, update, then)
            return
        total, terms = Sum(next(self._numbers)), self._sums.terms_of(list(together))
        self._groups[total] = _Group(host, together)
        if host == self._head:
            self._reducer.sum_up(total, terms, look=self._sums.look)
        else:
            self._reducer.lay(total, [update for update, _ in terms])
            fields = [(update.worker, update.step, weight) for update, weight in terms]
            self._tell(host, host_messages.SumUp(total.number, fields, self._sums.look))
        self._arrivals.bring(terms[0][0].worker, total, partial(self._comes, total), host)

    def _comes(self, total: Sum, at: float) -> None:
        group = self._groups.pop(total)
        for update in sorted(group.updates):
            fact = group.updates[update](at)
            assert isinstance(fact, UpdateArrived)
            self._happened(replace(fact, sum=total.number))

    def _void(self, total: Sum) -> None:
        group = self._groups.pop(total)
        self._arrivals.void(total)
        self._reducer.drop(total)
        if group.host != self._head:
            self._tell(group.host, host_messages.DropSum(total.number))
        self._ready |= group.updates
