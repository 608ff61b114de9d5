"""The hosts that add up their workers' updates, as the head sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.core.items import Sum
from paceline.host import messages as host_messages
from paceline.host.shards.aggregation_scheduler import AggregationScheduler
from paceline.host.shards.host_reducer import HostReducer, Terms
from paceline.host.shards.remote import RemoteShards
from paceline.host.shards.sum_table import SumTable
from paceline.ipc import messages

SEVERAL = 2
"""Workers of a host from which on it adds up their updates: a process of its own does that."""


class SumsOfHosts:
    """Orders sums from the hosts that make them. A host begins with that as its workers train, whenever it comes."""

    def __init__(
        self,
        head: str,
        together: AggregationScheduler,
        sums: SumTable,
        summer: HostReducer,
        others: RemoteShards | None,
        tell: Callable[[str, messages.Message], None],
    ) -> None:
        """`head`: its name. `together`, `sums`, `summer`, `others`: those of its host. `tell(host, message)`.

        `others`: None if no other host makes versions.
        """
        self.ended: Callable[[str, str], object] = lambda host, why: None
        """Told of each host that adds up nothing any more though it trains, and why."""
        self._head = head
        self._together = together
        self._sums = sums
        self._summer = summer
        self._others = others
        self._tell = tell
        together.sum_up, together.drop = self._sum_up, self._drop

    def begins(self, host: str, workers: Sequence[int]) -> bool:
        """That host, which has room for these workers, is about to train. Return whether it adds up their updates."""
        if len(workers) < SEVERAL:
            return False
        self._together.begins(host, workers)
        return True

    def awaits(self, host: str) -> bool:
        """Whether that host adds up its workers' updates."""
        return self._together.adding(host)

    def ends(self, host: str) -> None:
        """That host takes no part any more."""
        self._together.ends(host)

    def lost(self, host: str, why: str) -> None:
        """That host has lost the process that adds up. Its workers go on, and their updates come one by one."""
        self._together.ends(host)
        self.ended(host, why)

    def _sum_up(self, host: str, total: Sum, terms: Terms) -> None:
        look = self._sums.look
        if host == self._head:
            self._summer.sum_up(total, terms, look=look)
            return
        self._summer.lay(total, [update for update, _ in terms])
        there = [(update.worker, update.step, weight) for update, weight in terms]
        self._tell(host, host_messages.SumUp(total.number, there, look))

    def _drop(self, host: str, total: Sum) -> None:
        if self._others is not None:
            self._others.void(total)
        self._summer.drop(total)
        self._tell(host, host_messages.DropSum(total.number))
