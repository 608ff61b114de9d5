"""Averages of groups, as the head sees them: what is ordered, where it is made, and when it takes effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, cast

from paceline.core.facts import Fact, ReduceFailed, ReduceFinished
from paceline.core.items import Update
from paceline.core.orders import Reduce
from paceline.host import messages as host_messages
from paceline.host.events import GroupAveraged, Report
from paceline.host.orders.expected_round import ExpectedRound, Gradients
from paceline.host.replicas.replica_table import ReplicaTable
from paceline.host.worker_state import WorkerState
from paceline.records.times import FetchTimes
from paceline.transfer.fetcher import Then

if TYPE_CHECKING:
    from paceline.host.cluster import Cluster


@dataclass(slots=True)
class _Work:
    """What hosts were told to average. Its number is in the names of all that moves between them for it."""

    number: int
    parts: tuple[host_messages.GroupPart, ...]
    hosts: tuple[str, ...]
    """Those that average."""
    awaited: set[str]
    """Hosts that have neither its mean nor given it up."""
    average: _Average | None
    """The group that it is for. None: it was begun early, or counts for nothing."""
    fetched: list[FetchTimes] = field(default_factory=list)
    """What has moved for it before its group was ordered."""


@dataclass(slots=True)
class _Average:
    """A group at work."""

    order: Reduce
    parts: tuple[host_messages.GroupPart, ...]
    work: _Work | None = None
    """None: hosts are still to be told."""
    began: float = 0.0
    moving: bool = False
    """Whether its bytes are on their way, by a model of links."""
    made: bool = False
    """Whether the mean is there and no bytes are on their way: it takes effect when the machine is told."""
    failed: bool = False
    """A replay or simulation said so while it was made: its place is kept until nothing is written there."""
    lost: dict[int, None] = field(default_factory=dict)
    """Members that have died, so that it can only fail. Some may have begun anew by its end."""
    void: bool = False
    """It is of replicas as they were before a script's changes were adopted: its members keep what they have now."""

    @property
    def awaited(self) -> bool:
        """Whether a host is still to say that it has the mean, or has given it up."""
        return self.work is not None and bool(self.work.awaited)


class GroupAverages:
    """Carries out `Reduce`.

    A mean is made in a free place, which is every member's replica once all hosts have it. So a member that dies leaves
    nothing half-averaged, and a worker computes on while its replica is averaged.

    Hosts begin an average of gradients that is likely to be ordered while its members compute. If another one is
    ordered, or a member changes what it has told of its gradient, that is dropped. An average has a number of its own,
    so no host takes bytes of one that was dropped for those of another, whatever it has heard of by then.
    """

    def __init__(
        self,
        cluster: Cluster,
        table: ReplicaTable,
        gather: Callable[[int, tuple[int, ...], Then], float],
        seats: Mapping[int, WorkerState],
        report: Report,
        now: Callable[[], float],
        host_of: Callable[[int], str],
        *,
        deaths_are_told: bool,
    ) -> None:
        """For `gather` see `ShapedFetcher`.

        `now()` is seconds since the run's start. `host_of(worker)`: its host. Those of one host are summed first.

        `deaths_are_told`: whether a replay or simulation dictates which groups fail. Otherwise a member's death fails
        its group. Replicas outlive their workers there, so the others can make its share.
        """
        self.made = 0
        """Averages of replicas that have taken effect."""
        self._cluster = cluster
        self._table = table
        self._gather = gather
        self._seats = seats
        self._report = report
        self._now = now
        self._host_of = host_of
        self._deaths_are_told = deaths_are_told
        self._averages: dict[int, _Average] = {}
        """By group."""
        self._works: dict[int, _Work] = {}
        """By number: what hosts have something of."""
        self._numbers = count()
        self._last = -1, -1
        """The last group whose mean has taken effect, and the number of that."""
        self.early = ExpectedRound(self._begin_early, self._drop)

    @property
    def averaging(self) -> bool:
        """Whether a group is averaging."""
        return bool(self._averages)

    @property
    def settled(self) -> bool:
        """Whether no share is still to be made of a group, or of what was begun early and has been dropped."""
        return not any(one.awaited for one in self._works.values() if one is not self.early.begun)

    def carry_out(self, order: Reduce) -> None:
        """Let the group average, once its members' replicas have made the steps that were ordered."""
        average = self._averages[order.group] = _Average(order, self._parts(order))
        begun = self.early.begun_of(order.contributions) if order.what == "gradients" else None
        if begun is not None:  # what it is of is there, and no step of a replica changes that
            begun.average = average
        # the machine is about to hear of these, and they may have begun anew before the group's turn comes
        average.lost = {worker: None for worker in order.members if not self._seats[worker].here}

        def go() -> None:
            if average.failed:
                return
            lost = self._lost(average)
            if len(lost) == len(order.members) or (lost and not self._deaths_are_told):
                if begun is not None:
                    self._drop(begun)
                self._fail(average)
                return
            average.moving = True
            if begun is None:
                self._begin(average)
            else:
                self._counts(average, begun)
            average.began = self._gather(order.group, order.members, partial(self._moved, average))

        self._table.after(order.members, go)

    def has_made(self, number: int, host: str) -> bool:
        """All of that average's mean is at that host, or has been given up there. Return whether that was awaited."""
        work = self._works.get(number)
        if work is None or host not in work.awaited:
            return False
        work.awaited.discard(host)
        self._goes_on(work)
        return True

    def fetched(self, fetch: FetchTimes) -> None:
        """A host has fetched that. What moves for an average is told of its group, if that is ordered by then."""
        if fetch.kind not in ("partial", "mean"):
            self._report(fetch)
        elif (work := self._works.get(cast(int, fetch.number))) is not None:
            if work.average is None:
                work.fetched.append(fetch)
            else:
                self._report(replace(fetch, number=work.average.order.group))

    def number(self, group: int) -> int:
        """The number of that group's mean, which has just taken effect."""
        last, number = self._last
        assert last == group, f"group {last} has averaged last, and not group {group}"
        return number

    def host_lost(self, host: str) -> None:
        """That host takes no part any more: nothing is awaited of it. Its members' groups fail, once they are gone."""
        for work in list(self._works.values()):
            work.awaited.discard(host)
            work.hosts = tuple(one for one in work.hosts if one != host)  # if it comes again, it knows nothing
            if work.average is None or work.average.lost:  # a member was gone before
                self._goes_on(work)

    def finished(self, group: int) -> None:
        """The machine is told that the group has averaged: its mean takes effect now."""
        average = self._averages.get(group)
        if average is None or not average.made:  # a run that stops awaits no averages: it tells again
            return
        del self._averages[group]
        assert average.work is not None
        self._last = group, average.work.number
        changes: dict[int, int] = {}
        if average.order.what == "parameters":
            self.made += 1
            if not average.void:
                changes = {worker: self._table.becomes(worker) for worker in average.order.members}
        self._end_at_hosts(average.work, made=True, changes=changes)

    def failed(self, group: int) -> None:
        """A replay or simulation says that the group has failed."""
        if group in self._averages:
            self._averages[group].failed = True
            self._end(self._averages[group])

    def void(self) -> None:
        """All replicas are something else from now on: averages of them that are under way mean nothing."""
        for average in self._averages.values():
            average.void = average.order.what == "parameters"

    def gone(self, worker: int) -> None:
        """The worker's process has ended: its groups fail, unless somebody else says so."""
        for average in list(self._averages.values()):
            if worker not in average.order.members or self._deaths_are_told:
                continue
            first = not average.lost
            average.lost[worker] = None
            if not average.awaited:  # all that was still awaited was its host's
                self._end(average)
            elif first and average.work is not None:
                self._drop_at_hosts(average.work)

    def _parts(self, order: Reduce) -> tuple[host_messages.GroupPart, ...]:
        """What is averaged, by host. Raises NotHere."""
        weights = {worker: weight for worker, _, weight in order.contributions}
        if order.what == "gradients":
            numbers = {worker: step for worker, step, _ in order.contributions}
            for worker, step in numbers.items():
                self._cluster.shelf.place(Update(worker, step))  # those of other hosts' workers have one here, too
        else:
            numbers = {worker: self._table.replica(worker).change for worker in order.members}
        return self._parts_of(numbers, weights)

    def _parts_of(
        self, numbers: Mapping[int, int], weights: Mapping[int, float]
    ) -> tuple[host_messages.GroupPart, ...]:
        """See `GroupPart`."""
        hosts: dict[str, list[int]] = {}
        for worker in numbers:
            hosts.setdefault(self._host_of(worker), []).append(worker)
        return tuple(
            host_messages.GroupPart(
                host,
                tuple(there),
                tuple(numbers[worker] for worker in there),
                tuple(weights[worker] for worker in there) if weights else None,
            )
            for host, there in hosts.items()
        )

    def _begin(self, average: _Average) -> None:
        """Have its members' hosts average. A replay has the groups of several hosts, and makes all of each here."""
        if average.void:  # the replicas that it was ordered of are no more
            average.parts = self._parts(average.order)
        average.work = self._tell(average.parts, average)

    def _tell(self, parts: tuple[host_messages.GroupPart, ...], average: _Average | None) -> _Work:
        """Have hosts average these parts."""
        hosts = tuple(dict.fromkeys(self._cluster.averages_at(part.host) for part in parts))
        work = _Work(next(self._numbers), parts, hosts, set(hosts), average)
        self._works[work.number] = work
        for host in hosts:
            self._cluster.tell_replicas(host, host_messages.AverageGroup(work.number, parts, average is None))
        return work

    # --- what is begun early ------------------------------------------------------------------------

    def _begin_early(self, gradients: Gradients) -> _Work | None:
        """Have hosts begin to average these, while their workers compute them."""
        parts = self._parts_of(
            {worker: step for worker, (step, _) in gradients.items()},
            {worker: weight for worker, (_, weight) in gradients.items()},
        )
        return self._tell(parts, None) if len(parts) > 1 and self._cluster.averages_early else None

    def _counts(self, average: _Average, work: _Work) -> None:
        """What was begun early is this group's average."""
        average.work = work
        for fetch in work.fetched:
            self.fetched(fetch)
        work.fetched.clear()

    def _drop(self, work: _Work) -> None:
        """What was begun early counts for nothing."""
        work.average = None
        self._drop_at_hosts(work)
        self._goes_on(work)

    def _drop_at_hosts(self, work: _Work) -> None:
        for host in work.hosts:
            self._cluster.tell_replicas(host, host_messages.DropAverage(work.number))

    def _goes_on(self, work: _Work) -> None:
        """A host has done with it, or is lost, or it was dropped."""
        if work.average is not None:
            self._end(work.average)
        elif not work.awaited and work is not self.early.begun:
            self._end_at_hosts(work, made=False, changes={})

    # --- how it ends --------------------------------------------------------------------------------

    def _end_at_hosts(self, work: _Work, *, made: bool, changes: Mapping[int, int]) -> None:
        """Tell the hosts how it has ended. `changes`: see `EndAverage`."""
        del self._works[work.number]
        for host in work.hosts:
            members = [worker for part in work.parts for worker in part.members if self._is_at(part, host)]
            there = {worker: changes[worker] for worker in members if worker in changes}
            self._cluster.tell_replicas(host, host_messages.EndAverage(work.number, made, there))

    def _is_at(self, part: host_messages.GroupPart, host: str) -> bool:
        return self._cluster.averages_at(part.host) == host

    def _moved(self, average: _Average, at: float) -> Fact | None:
        """Its bytes have moved."""
        average.moving = False
        return self._over(average, at)

    def _end(self, average: _Average) -> None:
        """Tell that the average is made, if it is."""
        if (fact := self._over(average, self._now())) is not None:
            self._report(fact)

    def _over(self, average: _Average, at: float) -> Fact | None:
        """When its place is no longer written and no bytes move: the average is made, unless a member was lost."""
        order = average.order
        if average.awaited or average.moving:
            return None
        if average.failed:
            del self._averages[order.group]
            self._ends(average)
            return None
        if average.made or average.work is None:
            return None
        if not self._deaths_are_told and self._lost(average):
            self._fail(average)
            return None
        average.made = True
        self._report(GroupAveraged(order.members, average.began, at))
        return ReduceFinished(group=order.group, at=at)

    def _fail(self, average: _Average) -> None:
        order = average.order
        del self._averages[order.group]
        self._ends(average)
        self._report(ReduceFailed(group=order.group, lost=self._lost(average), at=self._now()))

    def _lost(self, average: _Average) -> tuple[int, ...]:
        """Members whose processes have ended, or had, before they began anew."""
        members = average.order.members
        return tuple(worker for worker in members if worker in average.lost or not self._seats[worker].here)

    def _ends(self, average: _Average) -> None:
        """Its mean is of no use."""
        if average.work is not None:
            self._end_at_hosts(average.work, made=False, changes={})
