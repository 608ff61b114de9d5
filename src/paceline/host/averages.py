"""Averages of groups: each member makes its share, and the mean is there once the last share is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from paceline.core.facts import Fact, ReduceFailed, ReduceFinished
from paceline.core.items import Mean, Update
from paceline.core.orders import Reduce
from paceline.errors import MessageUnreadable, PeerLost
from paceline.fabric.groups import Kept
from paceline.fabric.unix import Channel, End
from paceline.host import messages
from paceline.host.contract import News
from paceline.host.fetch import Fetcher
from paceline.host.loop import Loop
from paceline.host.outbox import Outbox
from paceline.host.plan import Plan
from paceline.host.seat import Seat
from paceline.host.shelf import Owner, Shelf
from paceline.host.steps import Steps


def mean_of(group: int) -> Owner:
    """Who claims the mean of that group until its members have it."""
    return "mean of group", group


@dataclass(slots=True)
class _Average:
    """A group at work."""

    order: Reduce
    awaited: set[int] = field(default_factory=set)
    """Members whose share is not made yet."""
    began: float = 0.0
    moving: bool = False
    """Whether its bytes are on their way."""
    made: bool = False
    """Whether all shares are made and no bytes are on their way: it takes effect when the machine is told."""
    failed: bool = False
    """A replay or simulation said so while its shares were made: its place is kept until the last of them."""
    void: bool = False
    """It is of replicas as they were before a script's changes were adopted: its members keep what they have now."""


@dataclass(slots=True)
class _Averager:
    """A worker's thread that makes its shares."""

    channel: Channel
    outbox: Outbox


class Averages:
    """Carries out `Reduce`.

    A mean is made in a free place, which is every member's replica once the last of them has made its share. So a
    member that dies leaves nothing half-averaged, and a worker computes on while its replica is averaged.
    """

    def __init__(
        self,
        shelf: Shelf,
        plan: Plan,
        fetcher: Fetcher,
        seats: Mapping[int, Seat],
        loop: Loop,
        news: News,
        now: Callable[[], float],
        give_up: Callable[[int, str], None],
        *,
        deaths_are_told: bool,
    ) -> None:
        """`now()` is seconds since the run's start. `give_up(worker, why)` ends a worker that can't go on.

        `deaths_are_told`: whether a replay or simulation dictates which groups fail. Otherwise a member's death fails
        its group. Replicas outlive their workers, so the others can make its share.
        """
        self.steps: Steps
        """Set by the host: steps and averages need each other."""
        self.made = 0
        """Averages of replicas that have taken effect."""
        self._shelf = shelf
        self._plan = plan
        self._fetcher = fetcher
        self._seats = seats
        self._loop = loop
        self._news = news
        self._now = now
        self._give_up = give_up
        self._deaths_are_told = deaths_are_told
        self._averagers: dict[int, _Averager] = {}
        self._averages: dict[int, _Average] = {}
        self._waiting: dict[int, set[int]] = {}
        """By group whose mean gradient is made: the members that are still to be told to step with it."""
        self._kept = Kept()

    @property
    def averaging(self) -> bool:
        """Whether a group is averaging."""
        return bool(self._averages)

    @property
    def settled(self) -> bool:
        """Whether no share is still to be made."""
        return not any(one.awaited for one in self._averages.values())

    def connect(self, worker: int) -> End:
        """Open a channel to that worker's averaging thread. Return its other end, to be passed on and closed."""
        channel, theirs = self._loop.connect(messages.FromAverager, f"worker {worker}'s averager")
        self._loop.watch(channel, lambda: self._hear(worker, channel))
        outbox = Outbox(channel, self._loop, lambda: self._give_up(worker, "its averager does not read"))
        self._averagers[worker] = _Averager(channel, outbox)
        return theirs

    def carry_out(self, order: Reduce) -> None:
        """Let the group average, once its members' replicas have made the steps that were ordered."""
        if order.what == "gradients":
            sources = [self._shelf.place(Update(worker, step)) for worker, step, _ in order.contributions]
            weights = [weight for _, _, weight in order.contributions]
        else:
            sources, weights = [self._shelf.place(self.steps.replica(worker)) for worker in order.members], None
        average = self._averages[order.group] = _Average(order)
        target = self._shelf.put(Mean(order.group), mean_of(order.group), self._plan.shared)
        assert target is not None  # `plan.REPLICAS` counts this one

        def go() -> None:
            if average.failed:
                return
            here = [w for w in order.members if self._seats[w].here and w in self._averagers]
            if not here or (len(here) < len(order.members) and not self._deaths_are_told):
                self._fail(average)
                return
            average.awaited, average.moving = set(here), True
            average.began = self._fetcher.gather(order.group, order.members, partial(self._moved, average))
            for unused in self._kept.use(order.members):
                self._tell(unused, messages.Evict(list(unused)))
            self._tell(tuple(here), messages.Average(order.group, here, sources, target, weights))

        self.steps.after(order.members, go)

    def finished(self, group: int) -> None:
        """The machine is told that the group has averaged: its mean takes effect now."""
        average = self._averages.get(group)
        if average is None or not average.made:  # a run that stops awaits no averages: it tells again
            return
        del self._averages[group]
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
        """The worker's process has ended: groups go on without it, or fail."""
        averager = self._averagers.pop(worker, None)
        if averager is not None:
            averager.outbox.forget()
            if self._loop.watches(averager.channel):
                self._loop.unwatch(averager.channel)
            averager.channel.close()
        for average in list(self._averages.values()):
            if worker in average.awaited:
                average.awaited.discard(worker)
                self._end(average)

    def _hear(self, worker: int, channel: Channel) -> None:
        """The worker has made its share of an average, or has left."""
        try:
            message, _ = channel.receive()
        except PeerLost:
            self._loop.unwatch(channel)
            return
        except MessageUnreadable as error:
            self._loop.unwatch(channel)
            self._give_up(worker, f"its averager sent a message that can't be read ({error})")
            return
        average = self._averages.get(message.group)
        if average is not None and worker in average.awaited:  # otherwise the share was not asked for
            average.awaited.discard(worker)
            self._end(average)

    def _tell(self, workers: tuple[int, ...], message: messages.ToAverager) -> None:
        """Those of these workers that are here."""
        for worker in workers:
            if worker in self._averagers:
                self._averagers[worker].outbox.send(message)

    def _moved(self, average: _Average, at: float) -> Fact | None:
        """Its bytes have moved."""
        average.moving = False
        return self._over(average, at)

    def _end(self, average: _Average) -> None:
        """Tell that the average is made, if it is."""
        if (fact := self._over(average, self._now())) is not None:
            self._news.happened(fact)

    def _over(self, average: _Average, at: float) -> Fact | None:
        """When its place is no longer written and no bytes move: the average is made, unless a member was lost."""
        order = average.order
        if average.awaited or average.moving:
            return None
        if average.failed:
            del self._averages[order.group]
            self._shelf.release(mean_of(order.group))
            return None
        if average.made:
            return None
        if not self._deaths_are_told and not all(self._seats[worker].here for worker in order.members):
            self._fail(average)
            return None
        average.made = True
        self._news.averaged(order.members, average.began, at)
        return ReduceFinished(group=order.group, at=at)

    def _fail(self, average: _Average) -> None:
        order = average.order
        del self._averages[order.group]
        self._shelf.release(mean_of(order.group))
        self._kept.failed(order.members)
        self._tell(order.members, messages.Evict(list(order.members)))
        lost = tuple(worker for worker in order.members if not self._seats[worker].here)
        self._news.happened(ReduceFailed(group=order.group, lost=lost, at=self._now()))
