"""Averages of groups, as the head sees them: what is ordered, where it is made, and when it takes effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from paceline.core.facts import Fact, ReduceFailed, ReduceFinished
from paceline.core.items import Mean, Update
from paceline.core.orders import Reduce
from paceline.host.claims import Owner
from paceline.host.events import GroupAveraged, Report
from paceline.host.memory_plan import MemoryPlan
from paceline.host.orders.averaging import Group, GroupShare
from paceline.host.orders.steps import ReplicaSteps
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState
from paceline.transfer.fetcher import Then

if TYPE_CHECKING:
    from paceline.host.replicas.transfers import ReplicaTransfers


def mean_of(group: int) -> Owner:
    """Who claims the mean of that group until its members have it."""
    return "mean of group", group


@dataclass(slots=True)
class _Average:
    """A group at work."""

    order: Reduce
    awaited: set[str] = field(default_factory=set)
    """Hosts that have neither its mean nor given it up."""
    began: float = 0.0
    begun: bool = False
    """Whether hosts were told."""
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


class GroupAverages:
    """Carries out `Reduce`.

    A mean is made in a free place, which is every member's replica once all hosts have it. So a member that dies leaves
    nothing half-averaged, and a worker computes on while its replica is averaged.
    """

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        gather: Callable[[int, tuple[int, ...], Then], float],
        seats: Mapping[int, WorkerState],
        replicas: ReplicaTransfers,
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
        self.steps: ReplicaSteps
        """Set by the host: steps and averages need each other."""
        self.made = 0
        """Averages of replicas that have taken effect."""
        self._replicas = replicas
        self._shelf = shelf
        self._plan = plan
        self._gather = gather
        self._seats = seats
        self._report = report
        self._now = now
        self._host_of = host_of
        self._deaths_are_told = deaths_are_told
        self._averages: dict[int, _Average] = {}
        self._waiting: dict[int, set[int]] = {}
        """By group whose mean gradient is made: the members that are still to be told to step with it."""

    @property
    def averaging(self) -> bool:
        """Whether a group is averaging."""
        return bool(self._averages)

    @property
    def settled(self) -> bool:
        """Whether no share is still to be made."""
        return not any(one.awaited for one in self._averages.values())

    def carry_out(self, order: Reduce) -> None:
        """Let the group average, once its members' replicas have made the steps that were ordered."""
        if order.what == "gradients":
            sources = {worker: self._shelf.place(Update(worker, step)) for worker, step, _ in order.contributions}
            weights = {worker: weight for worker, _, weight in order.contributions}
        else:
            sources = {worker: self._shelf.place(self.steps.replica(worker)) for worker in order.members}
            weights = {}
        average = self._averages[order.group] = _Average(order)
        # the machine is about to hear of these, and they may have begun anew before the group's turn comes
        average.lost = {worker: None for worker in order.members if not self._seats[worker].here}
        places = self._plan.for_replicas(elsewhere=all(self._seats[worker].elsewhere for worker in order.members))
        target = self._shelf.put(Mean(order.group), mean_of(order.group), places)
        assert target is not None  # `memory_plan.REPLICAS` counts this one
        group = Group(order.group, target, self._parts(sources, weights))

        def go() -> None:
            if average.failed:
                return
            lost = self._lost(average)
            if len(lost) == len(order.members) or (lost and not self._deaths_are_told):
                self._fail(average)
                return
            average.moving = average.begun = True
            average.awaited = self._replicas.begin(group)
            average.began = self._gather(order.group, order.members, partial(self._moved, average))

        self.steps.after(order.members, go)

    def has_made(self, number: int, host: str) -> bool:
        """All of that group's mean is at that host, or has been given up there. Return whether that was awaited."""
        average = self._averages.get(number)
        if average is None or host not in average.awaited:
            return False
        average.awaited.discard(host)
        self._end(average)
        return True

    def host_lost(self, host: str) -> None:
        """That host takes no part any more: nothing is awaited of it. Its members' groups fail, once they are gone."""
        for average in list(self._averages.values()):
            average.awaited.discard(host)
            if average.lost:  # a member was gone before
                self._end(average)

    def finished(self, group: int) -> None:
        """The machine is told that the group has averaged: its mean takes effect now."""
        average = self._averages.get(group)
        if average is None or not average.made:  # a run that stops awaits no averages: it tells again
            return
        del self._averages[group]
        self._replicas.end(group)
        order = average.order
        if order.what == "parameters":
            self.made += 1
            for worker in order.members:
                if not average.void:
                    self.steps.becomes(worker, Mean(group))
            self._shelf.release(mean_of(group))
            return
        self._waiting[group] = set(order.members)
        for worker in order.members:
            if not self._seats[worker].trains:
                self.needs_no_mean(worker, group)

    def failed(self, group: int) -> None:
        """A replay or simulation says that the group has failed."""
        if group in self._averages:
            self._averages[group].failed = True
            self._end(self._averages[group])

    def void(self) -> None:
        """All replicas are something else from now on: averages of them that are under way mean nothing."""
        for average in self._averages.values():
            average.void = average.order.what == "parameters"

    def needs_no_mean(self, worker: int, group: int | None) -> None:
        """The worker has been told to step with that group's mean, or never will be."""
        if group in self._waiting:
            waiting = self._waiting[group]
            waiting.discard(worker)
            if not waiting:
                del self._waiting[group]
                self._shelf.release(mean_of(group))

    def left(self, worker: int) -> None:
        """The worker trains no more. Its process may still be there, and make the shares that it owes."""
        for group in list(self._waiting):
            self.needs_no_mean(worker, group)

    def gone(self, worker: int) -> None:
        """The worker's process has ended: its groups fail, unless somebody else says so."""
        for average in list(self._averages.values()):
            if worker not in average.order.members or self._deaths_are_told:
                continue
            first = not average.lost
            average.lost[worker] = None
            if not average.awaited:  # all that was still awaited was its host's
                self._end(average)
            elif first:
                self._replicas.drop(average.order.group)

    def _parts(self, sources: Mapping[int, int], weights: Mapping[int, float]) -> tuple[GroupShare, ...]:
        """What is averaged, by host."""
        hosts: dict[str, list[int]] = {}
        for worker in sources:
            hosts.setdefault(self._host_of(worker), []).append(worker)
        return tuple(
            GroupShare(
                host,
                tuple(there),
                tuple(sources[worker] for worker in there),
                tuple(weights[worker] for worker in there) if weights else None,
            )
            for host, there in hosts.items()
        )

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
        if average.made or not average.begun:
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
        if average.begun:
            self._replicas.end(average.order.group)
        self._shelf.release(mean_of(average.order.group))
