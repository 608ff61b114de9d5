"""What moves between the hosts of a run with a store, and when it has come, as the links' model has it.

The first host is the head, where the store is. A version goes from there to each other host once, however many of its
workers want it, and an update goes from its host to the head once. What is on the same host moves at no cost. What
training begins with is on all hosts from the beginning. How fast things move is up to `host_links`. Orders and other
small messages take no time.

That this is what moves is ours, as `transfer.fetcher` does it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.core.items import Update, Version
from paceline.scenario.host_links import Carried, HostLinks
from paceline.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCame:
    """An item has come from one host to another. Bytes and seconds."""

    item: Update | Version
    source: str
    target: str
    size: int
    began: float
    ended: float
    waiting: tuple[tuple[int, float], ...]
    """The workers that it has come for, or the one whose update it is, and since when each has waited for it."""


@dataclass(slots=True)
class _Coming:
    item: Update | Version
    target: str
    waiting: list[tuple[int, float]]


@dataclass(slots=True)
class HostTraffic:
    """All that is under way. A caller keeps the rules of `HostLinks`."""

    links: HostLinks
    hosts: tuple[str, ...]
    """By worker. Worker 0 is at the head."""
    begins: int
    """The version that training begins with."""
    newest: dict[str, int] = field(default_factory=dict)
    """By host: the newest version that has come there. No worker goes back to an older one."""
    coming: dict[int, _Coming] = field(default_factory=dict)
    """By number of the transfer."""
    numbers: dict[tuple[Update | Version, str], int] = field(default_factory=dict)
    """By item and target: that number."""

    @classmethod
    def of(cls, scenario: Scenario, workers: int, begins: int = 0) -> HostTraffic | None:
        """What a scenario asks for; None if what moves between its hosts takes no time."""
        if not scenario.links_hosts:
            return None
        return cls(HostLinks.of(scenario), tuple(scenario.hosts(workers)), begins)

    def begin(self, worker: int, item: Update | Version, size: int, at: float) -> bool:
        """Bring the worker's update to the store, or that version to the worker, from second `at` on.

        Return whether it has to come from another host; otherwise it is there.
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
        """The worker takes no part any more. What nobody else waits for does not come."""
        for number, one in list(self.coming.items()):
            one.waiting = [waiting for waiting in one.waiting if waiting[0] != worker]
            if not one.waiting:
                self.links.cancel(number, at)
                self._forget(number)

    def next_change(self) -> float | None:
        """See `HostLinks`."""
        return self.links.next_change()

    def finish(self, until: float) -> ItemCame | None:
        """Return what has come by `until`, the earliest, and was not reported yet; None if there is nothing."""
        while (carried := self.links.finish(until)) is not None:
            if carried.number in self.coming:  # otherwise all who waited left at that very moment
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
