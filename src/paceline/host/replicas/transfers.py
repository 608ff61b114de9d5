"""What is still needed of replicas, and which of them are brought from one host to another: as the head sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from paceline.core.items import Item, Replica
from paceline.host import messages as host_messages
from paceline.host.claims import Claims, Owner
from paceline.host.replicas.replica_table import ReplicaTable
from paceline.transfer.item_names import fields_of

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster


@dataclass(frozen=True, slots=True)
class _Carried:
    """A replica on its way from one host to another."""

    item: Replica
    source: str
    host: str
    then: Callable[[], None]
    lost: Callable[[str], None]


class ReplicaTransfers:
    """Tells hosts which replicas to keep, and moves replicas between hosts."""

    def __init__(self, cluster: Cluster, table: ReplicaTable) -> None:
        self._cluster = cluster
        self._table = table
        self._numbers = count()
        self.claims = Claims(self._freed)
        """Who needs which replicas as they are."""
        self._kept: dict[Item, str | None] = {}
        """By replica that is needed as it is: the host that keeps it. None: it is lost."""
        self._carried: dict[int, _Carried] = {}
        """By number of the request."""
        self._requests: dict[Owner, list[int]] = {}
        """By owner: the requests that were made for it."""
        self._copies: dict[int, str] = {}
        """By number of a request: the host that keeps what it has brought, or is to bring."""
        self._goes: list[tuple[str, Callable[[], object]]] = []
        """Hosts that go once nothing of theirs is on its way, and what is called then."""

    # --- what is kept, and brought ------------------------------------------------------------------

    def keep(self, owner: Owner, *replicas: Replica, of: Item | None = None) -> None:
        """The owner needs these replicas as they are, until `let_go`.

        `of`: what the replica is another name of, if it has no place by its own yet.
        """
        self.claims.claim(owner, *replicas)
        for replica in replicas:
            if replica not in self._kept:
                self._kept[replica] = host = self._table.lies_at(replica)
                self._tell(host, host_messages.KeepItem(fields_of(replica), None if of is None else fields_of(of)))

    def carry(
        self, owner: Owner, item: Replica, host: str, then: Callable[[], None], lost: Callable[[str], None]
    ) -> None:
        """Bring that replica to that host for the owner, until `let_go`. The steps that were ordered of it are made."""
        number = next(self._numbers)
        self._requests.setdefault(owner, []).append(number)
        self._carry(number, item, host, then, lost)

    def pass_on(self, item: Replica, host: str, then: Callable[[], None], lost: Callable[[str], None]) -> None:
        """Bring that replica to that host, as `carry` does. Once `then` was called, it is not kept there for that."""
        number = next(self._numbers)

        def there() -> None:
            then()
            self._drop(number)

        self._carry(number, item, host, there, lost)

    def bring(
        self,
        owner: Owner,
        replicas: Mapping[int, Replica],
        then: Callable[[], None],
        lost: Callable[[int], None],
    ) -> None:
        """Bring these replicas here for the owner, by worker, then go on. `lost(worker)`: that one's can't come."""
        left, failed = dict.fromkeys(replicas), False

        def here(worker: int) -> None:
            left.pop(worker, None)
            if not left and not failed:
                then()

        def gone(worker: int, why: str) -> None:
            nonlocal failed
            if not failed:
                failed = True
                lost(worker)

        for worker, replica in replicas.items():
            if not failed:
                self.carry(owner, replica, self._cluster.name, partial(here, worker), partial(gone, worker))
        if not replicas:
            then()

    def let_go(self, owner: Owner) -> None:
        """The owner needs nothing any more."""
        self.claims.release(owner)
        for number in self._requests.pop(owner, ()):
            self._drop(number)

    def brought(self, number: int, host: str) -> bool:
        """What that request was about is at that host. Return whether it may have been brought there."""
        if number not in self._carried:  # it is needed no more
            return True
        if self._carried[number].host != host:
            return False
        carried = self._carried.pop(number)
        self.let_go(_carries(number))
        carried.then()
        self._let_hosts_go()
        return True

    def never_comes(self, number: int, why: str) -> None:
        """That does not come here. A host that still takes part has it, and does not give it."""
        carried = self._carried.get(number)
        if carried is None:
            return
        self._lost(number, why)
        if self._cluster.others.is_there(carried.source):
            self._cluster.others.amiss(carried.source, f"it does not give a replica: {why}")

    # --- hosts that leave ---------------------------------------------------------------------------

    def bring_all(self, host: str, workers: list[int], then: Callable[[], object]) -> None:
        """Their host is about to leave in good order. Bring what these workers have come to here, then go on.

        What is kept of theirs comes, too. What is on its way from there to another host comes there before.
        """
        of_theirs = [worker for worker in workers if worker not in self._table.without]
        now = [self._table.replica(worker) for worker in of_theirs if self._table.owned_by(worker)]
        kept = [one for one in self._kept if isinstance(one, Replica) and one.worker in of_theirs]
        lacking = dict.fromkeys(one for one in [*now, *kept] if self._lies_at(one) == host)

        def go_on() -> None:
            if not lacking:
                self._goes.append((host, then))
                self._let_hosts_go()

        def here(item: Replica) -> None:
            del lacking[item]
            if item in self._kept:
                self._kept[item] = self._cluster.name
                self._tell(self._cluster.name, host_messages.KeepItem(fields_of(item)))
            if item in now:
                self._table.brought_here(item.worker)
                self._cluster.replicas_here.steps.takes(item.worker, item.change)
            go_on()

        go_on()
        for item in list(lacking):
            self.pass_on(item, self._cluster.name, partial(here, item), unawaited)

    def host_lost(self, host: str, why: str) -> None:
        """That host takes no part any more."""
        self._goes = [one for one in self._goes if one[0] != host]
        self._kept = {item: None if there == host else there for item, there in self._kept.items()}
        for number, one in list(self._carried.items()):
            if (
                host in (one.source, one.host) and self._cluster.name not in (one.source, one.host)
            ) or host == one.host:
                self._lost(number, why)
        self._copies = {number: there for number, there in self._copies.items() if there != host}

    # --- inside -------------------------------------------------------------------------------------

    def _lies_at(self, replica: Replica) -> str | None:
        """The host that has that replica. None: it is lost."""
        return self._kept[replica] if replica in self._kept else self._table.lies_at(replica)

    def _freed(self, replica: Item) -> None:
        """No owner needs that replica as it is."""
        self._tell(self._kept.pop(replica), host_messages.ReleaseItem(fields_of(replica)))

    def _drop(self, number: int) -> None:
        """What that request has brought, or was to bring, is needed there no more."""
        if (carried := self._carried.pop(number, None)) is not None:
            self._over(number, carried)
        elif (host := self._copies.pop(number, None)) is not None:
            self._tell(host, host_messages.DropCopy(number))

    def _carry(
        self, number: int, item: Replica, host: str, then: Callable[[], None], lost: Callable[[str], None]
    ) -> None:
        source = self._lies_at(item)
        if source == host:
            then()
            return
        for one in (source, host):
            if one is None or not self._cluster.others.is_there(one):  # a machine is about to hear of it
                lost("its host is lost" if one is None else f"host {one} takes no part any more")
                return
        assert source is not None
        self._carried[number] = _Carried(item, source, host, then, lost)
        self._copies[number] = host
        self.keep(_carries(number), item)
        self._tell(host, host_messages.CopyItem(number, fields_of(item), source))

    def _lost(self, number: int, why: str) -> None:
        if (carried := self._carried.pop(number, None)) is not None:
            self._over(number, carried)
            carried.lost(why)

    def _over(self, number: int, carried: _Carried) -> None:
        """It does not come any more."""
        self.let_go(_carries(number))
        del self._copies[number]
        self._tell(carried.host, host_messages.DropCopy(number))
        self._let_hosts_go()

    def _let_hosts_go(self) -> None:
        """Have those hosts go of which nothing is on its way any more."""
        busy = {one.source for one in self._carried.values()}
        ready = [one for one in self._goes if one[0] not in busy]
        self._goes = [one for one in self._goes if one[0] in busy]
        for _, then in ready:
            then()

    def _tell(self, host: str | None, message: host_messages.OfReplicas) -> None:
        if host is not None:
            self._cluster.tell_replicas(host, message)


def unawaited(why: str) -> None:
    """Nobody waits for it: a host that was to leave in good order is lost, or a joiner is, or copies another one."""


def _carries(number: int) -> Owner:
    """Who keeps a replica that is brought to another host."""
    return "carries", number
