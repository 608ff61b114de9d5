"""What moves between the hosts of a run with a store, and when it has come.

The first host is the head, where the store is. A version goes from the head to each other host once, however many of
its workers want it. An update goes from its host to the head once. Moving data within a host takes no time. All hosts
have the first version. `host_links` says how fast things move. Orders and other small messages take no time.

The choice of what moves is ours, as in `transfer.fetcher`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.items import Update, Version
from paceline.scenario.host_links import Carried, HostLinks
from paceline.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCame:
    """An item that has come from one host to another. Times are in seconds."""

    item: Update | Version
    source: str
    target: str
    size: int
    began: float
    ended: float
    waiting: tuple[tuple[int, float], ...]
    """(worker, since when it has waited) of each worker that wanted the version, or whose update it is."""


@dataclass(slots=True)
class _Coming:
    item: Update | Version
    target: str
    waiting: list[tuple[int, float]]


@dataclass(slots=True)
class HostTraffic:
    """All items under way. `SharedLink` has the rules for callers."""

    links: HostLinks
    hosts: tuple[str, ...]
    """By worker. Worker 0 is at the head."""
    begins: int
    """The version that training begins with."""
    newest: dict[str, int] = field(default_factory=dict)
    """By host: the newest version that has come there. No worker wants an older one."""
    coming: dict[int, _Coming] = field(default_factory=dict)
    """By number of the transfer."""
    numbers: dict[tuple[Update | Version, str], int] = field(default_factory=dict)
    """By item and target: the number of its transfer."""

    @classmethod
    def of(cls, scenario: Scenario, workers: int, begins: int = 0) -> HostTraffic | None:
        """Return the scenario's traffic; None if moving data between its hosts takes no time."""
        if not scenario.links_hosts:
            return None
        return cls(HostLinks.of(scenario), tuple(scenario.hosts(workers)), begins)

    def begin(self, worker: int, item: Update | Version, size: int, at: float) -> bool:
        """Bring the worker's update to the store, or that version to the worker, from second `at` on.

        Return False if the item is on the same host already.
        """
        head, host = self.hosts[0], self.hosts[worker]
        if host == head or (isinstance(item, Version) and item.version <= self.newest.get(host, self.begins)):
            return False
        source, target = (host, head) if isinstance(item, Update) else (head, host)
        if (item, target) not in self.numbers:
            number = self.numbers[item, target] = self.links.begin(source, target, size, at)
            self.coming[number] = _Coming(item, target, [])
        self.coming[self.numbers[item, target]].waiting.append((worker, at))
        return True

    def leaves(self, worker: int, at: float) -> None:
        """The worker has left. Cancel the transfers that only it waited for."""
        for number, one in list(self.coming.items()):
            one.waiting = [waiting for waiting in one.waiting if waiting[0] != worker]
            if not one.waiting:
                self.links.cancel(number, at)
                self._forget(number)

    def finish(self, until: float) -> ItemCame | None:
        """Return the next item that has come by `until`, or None."""
        while (carried := self.links.finish(until)) is not None:
            if carried.number in self.coming:  # otherwise all workers that waited left at that very moment
                return self._came(self._forget(carried.number), carried)
        return None

    def _forget(self, number: int) -> _Coming:
        one = self.coming.pop(number)
        del self.numbers[one.item, one.target]
        return one

    def _came(self, one: _Coming, carried: Carried) -> ItemCame:
        if isinstance(one.item, Version):
            self.newest[carried.target] = max(one.item.version, self.newest.get(carried.target, self.begins))
        return ItemCame(
            item=one.item,
            source=carried.source,
            target=carried.target,
            size=carried.size,
            began=carried.began,
            ended=carried.ended,
            waiting=tuple(one.waiting),
        )
