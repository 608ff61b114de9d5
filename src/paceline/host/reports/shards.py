"""What hosts that make ranges of versions say of that, the head's included, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.core.items import Sum, Update
from paceline.errors import MessageUnreadable
from paceline.host import messages as host_messages
from paceline.host.events import Attached, Report
from paceline.ipc import messages
from paceline.transfer.item_names import summand_of

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster


class ShardReports:
    """Hears all hosts that make ranges."""

    def __init__(self, cluster: Cluster, report: Report, now: Callable[[], float]) -> None:
        """`now()` is seconds since the run's start."""
        self._cluster = cluster
        self._report = report
        self._now = now

    def hear(self, host: str, event: host_messages.OfShard) -> None:
        """That host has said this. Raises MessageUnreadable if it was not to."""
        cluster = self._cluster
        match event:
            case host_messages.Stored(item=item):
                self.stored(host, summand_of(item))
            case host_messages.RangeNorms(norms=norms):
                if not cluster.norms_taken(host, norms):
                    raise MessageUnreadable(f"its norms for version {norms.version} were not to be taken")
            case host_messages.RangeMade(made=made):
                self.range_made(host, made)
            case host_messages.RangeTaken():
                if not cluster.others.moves.taken(host):
                    raise MessageUnreadable("it was to take over no range")
            case host_messages.StatePacked(number=number) if cluster.others.moves.awaits(host, number):
                if event.attached is not None:
                    cluster.others.attachments.require_new(event.attached, host)
                cluster.others.moves.goes_on(event.error, event.attached)
            case host_messages.StatePacked(number=number, error=error, attached=None):
                cluster.shares.came(number, error, None)
            case host_messages.StatePacked(number=number, error=error, attached=Attached() as attached):
                self._bring_share(host, attached, number, error)
            case host_messages.ShardLost(why=why):
                cluster.others.shard_lost(host, why)

    def stored(self, host: str, item: Update | Sum) -> None:
        """That host has all that its range needs of that."""
        if (fact := self._cluster.arrivals.stored(host, item, self._now())) is not None:
            self._report(fact)

    def range_made(self, host: str, made: messages.store.Committed) -> None:
        """That host has made its range of a version. Raises MessageUnreadable if it was not to."""
        if not self._cluster.range_made(host, made):
            raise MessageUnreadable(f"its range of version {made.version} was not to be made")

    def _bring_share(self, host: str, attached: Attached, number: int, error: str | None) -> None:
        """Bring that host's share of the optimizer's state, and pass its file on."""
        others, shares, fetched = (
            self._cluster.others,
            self._cluster.shares,
            host_messages.AttachmentFetched(attached.name),
        )

        def here(file: int) -> None:
            shares.came(number, error, file)
            others.tell_host(host, fetched)

        def lacks(why: str) -> None:
            shares.came(number, f"host {host}'s part of it {why}", None)

        others.attachments.require_new(attached, host)
        try:
            others.attachments.bring_file(attached, host, here, lambda why: lacks(f"can't come: {why}"))
        except OSError as full:
            lacks(f"has no room here: {full.strerror}")
            others.tell_host(host, fetched)
