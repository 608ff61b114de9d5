"""Carries out orders for replicas: their steps, the averages of groups, and cuts through all of them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paceline.cluster.group_links import GroupLinks, ring_bytes
from paceline.core.facts import Fact, ReduceFailed, ReduceFinished, WorkerLeft
from paceline.core.leases import Leases
from paceline.core.orders import ApplyUpdate, Order, Reduce, Release, StepReplica
from paceline.errors import MessageUnreadable, PeerLost
from paceline.fabric.channel import Channel, pair
from paceline.fabric.groups import Kept
from paceline.records.journal import Journal
from paceline.records.times import TransferTimes
from paceline.runtime import messages
from paceline.runtime.loop import Loop
from paceline.runtime.member import Member
from paceline.runtime.offers import lack_of_memory_for_replicas
from paceline.runtime.outbox import Outbox
from paceline.runtime.store_client import StoreClient

AREAS = 7
"""Of each worker: its replica, what a step or an average of it is made in, what it computes on, what a mean of
gradients is made in, two for the present cut, and one for its own gradient."""


@dataclass(slots=True)
class _Average:
    """A group at work."""

    order: Reduce
    target: int
    """The area that the average is made in."""
    awaited: set[int] = field(default_factory=set)
    """Members whose share is not made yet."""
    began: float = 0.0
    moving: bool = False
    """Whether its bytes are on their way, on a scenario's network."""
    made: bool = False
    """Whether all shares are made and no bytes are on their way: it takes effect when the machine is told."""
    failed: bool = False
    """A replay or simulation said so while its shares were made: its area is kept until the last of them."""
    void: bool = False
    """It is of replicas as they were before a script's changes were adopted: its members keep what they have now."""


@dataclass(slots=True)
class _Later:
    """Something to do when these workers' steps have come so far."""

    steps: dict[int, int]
    do: Callable[[], None]


class ReplicaExchange:
    """Keeps count of which area has whose replica, and who else needs it.

    An area that is read is not written. A replica is stepped in place only if no other worker needs its area. An
    average is made in a free area, which is every member's replica once the last of them has made its share. So a
    member that dies leaves nothing half-averaged, a worker computes on while its replica is averaged, and a cut
    through all replicas is free. No byte is copied to commit.
    """

    slots = 0
    """Slots of a store: there are none, as no store makes versions here."""
    areas = AREAS
    """Areas of each worker."""

    def __init__(
        self,
        members: Mapping[int, Member],
        loop: Loop,
        journal: Journal,
        send: Callable[[Member, messages.Message], None],
        happened: Callable[[Fact], None],
        now: Callable[[], float],
        give_up: Callable[[Member, str], None],
        links: GroupLinks | None = None,
        message: int | None = None,
    ) -> None:
        """`now()` is seconds since the run's start. `happened` takes the facts that an order causes.

        `give_up(member, why)` ends a worker that can't go on. `links` pace averages; None: each takes what it takes.
        `message`: bytes of a replica, if the scenario's network says it.
        """
        self.present: float | None = None
        """As in `Exchange`."""
        self.replicas: dict[int, int] = {}
        """By worker: the area that has its replica, or will when the steps that were ordered are made."""
        self.averages = 0
        """Averages of replicas that have taken effect."""
        self.steps = 0
        self.samples = 0
        """Samples in all steps of all replicas."""
        self._members = members
        self._loop = loop
        self._journal = journal
        self._send = send
        self._happened = happened
        self._now = now
        self._give_up = give_up
        self._store: StoreClient | None = None
        self._leases = Leases("queue", [])
        self._unshared: dict[int, list[int]] = {}
        """By worker: steps in its replica that are in no other one yet."""
        self._pool = (AREAS - 1) * len(members)
        """How many areas replicas and means may lie in. The areas after them take the workers' own gradients."""
        self._claims: dict[int, int] = {}
        """By area: how many need it. No zeros."""
        self._averages: dict[int, _Average] = {}
        self._means: dict[int, tuple[int, set[int]]] = {}
        """By group: the area of its mean gradient, and the members that are still to be told to step with it."""
        self._stepping: dict[tuple[int, int], list[int]] = {}
        """By (worker, step): the areas that it reads for that step."""
        self._ordered = dict.fromkeys(members, 0)
        self._made = dict.fromkeys(members, 0)
        """Steps that each worker's replica has made."""
        self._later: list[_Later] = []
        self._kept = Kept()
        self._links = links
        self._message = message
        self.deaths_are_told = False
        """True if a replay or simulation dictates which groups fail. Otherwise a member's death fails its group.
        Replicas outlive their workers, so the others can make its share."""
        self.undone: frozenset[tuple[int, int]] = frozenset()
        """(worker, step) that replicas will be ordered and must not make, as if their workers had left."""
        self.lost: dict[int, None] = {}
        """Workers that the machine was told have died: their replicas count no more."""

    @property
    def averaging(self) -> bool:
        """Whether a group is averaging."""
        return bool(self._averages)

    @property
    def settled(self) -> bool:
        """Whether all orders for replicas are done."""
        return not (self._later or self._stepping or any(one.awaited for one in self._averages.values()))

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now, so what the fact says of replicas takes effect at this moment.

        So what is read of replicas, for a mean say, depends only on the order of the facts.
        """
        match fact:
            case ReduceFinished(group=group):
                self._come_about(group)
            case ReduceFailed(group=group) if group in self._averages:  # a replay or simulation says so
                self._averages[group].failed = True
                self._end(self._averages[group])
            case WorkerLeft(worker=worker, reason="died"):
                self.lost[worker] = None

    def conclude(self) -> None:
        """No more facts will come: averages that are made take effect."""
        for group, average in list(self._averages.items()):
            if average.made:
                self._come_about(group)

    def lack_of_memory(self, offer: messages.Offered, available: int) -> str:
        """As in `Exchange`."""
        return lack_of_memory_for_replicas(offer, len(self._members), available)

    def connect(self, member: Member) -> list[socket.socket]:
        """Open a channel to that worker's averaging thread. Return its other end, to be passed on and closed."""
        ours, theirs = pair()
        averager = member.averager = Channel(ours, messages.FromAverager, f"worker {member.worker}'s averager")
        self._loop.watch(averager, lambda: self._hear(member, averager))
        member.averaged_by = Outbox(averager, self._loop, lambda: self._give_up(member, "its averager does not read"))
        return [theirs]

    def begin(self, store: StoreClient, leases: Leases, model_bytes: int) -> None:
        """Training begins: the replica of every worker that trains is the first version, in area 0."""
        self._store, self._leases = store, leases
        if self._message is None:
            self._message = model_bytes
        for worker, member in self._members.items():
            if member.trains:
                self.replicas[worker] = 0
                self._claim(0)

    def reserve(self) -> int:
        """Reserve a free area for what a script begins with, until `adopt` or `unreserve`."""
        area = self.free()
        self._claim(area)
        return area

    def unreserve(self, area: int) -> None:
        """That area is no longer written, and no worker adopts it."""
        self._unclaim(area)

    def adopt(self, area: int, descriptors: list[int]) -> None:
        """The first version is in that reserved area from now on. No replica has made a step.

        Replicas may have been averaged before. All were alike, and they are so now. So the averages under way are void.
        """
        assert self._store is not None  # training has begun
        self._store.adopt(area, descriptors)
        for worker in self.replicas:
            self._place(worker, area)
        self._unclaim(area)
        for average in self._averages.values():
            average.void = average.order.what == "parameters"

    # --- orders -------------------------------------------------------------------------------------

    def carry_out(self, order: Order) -> None:
        """Carry out an order for replicas."""
        match order:
            case Release():
                self._release(order)
            case StepReplica():
                self._step(order)
            case Reduce():
                self._reduce(order)

    def _release(self, order: Release) -> None:
        """Let the worker compute on its replica as it is, which is kept until its next release."""
        member = self._members[order.worker]
        if not member.trains:
            return
        member.step = order.step
        area = self.replicas[member.worker]
        self._claim(area)
        self.let_go_of_slot(member)
        member.reading = area
        member.wait(None)
        member.released_at = self._now()
        self._send(member, messages.Compute(order.step, order.version, area, self._pool + member.worker, []))

    def _step(self, order: StepReplica) -> None:
        """Have the worker's replica stepped: in place, if no other worker needs it as it was."""
        worker, step, member = order.worker, order.step, self._members[order.worker]
        trains = member.trains and (worker, step) not in self.undone
        if not trains:
            self._journal.undone(worker, step)
        if order.group is None and not trains:
            return  # it will not be made: the machine is about to hear that its worker has left
        self.steps += 1
        if order.group is None:
            self._unshared.setdefault(worker, []).append(step)
            self.samples += self._leases.samples(worker, step)
        else:  # the mean gradient is in every replica
            self.samples += self._leases.settle(worker, step)
        if not trains:
            self._needs_no_mean(worker, order.group)
            return
        gradients = self._means[order.group][0] if order.group in self._means else None
        source = target = self.replicas[worker]
        if self._claims[source] > 1 + (member.reading == source):
            target = self.free()
        reads = [source] if gradients is None else [source, gradients]
        for area in reads:
            self._claim(area)  # until the step is made
        self._place(worker, target)
        self._ordered[worker] += 1
        self._stepping[worker, step] = reads
        self._needs_no_mean(worker, order.group)
        self._send(member, messages.Step(step, source, target, gradients))

    def _reduce(self, order: Reduce) -> None:
        """Let the group average, once its members' replicas have made the steps that were ordered."""
        average = self._averages[order.group] = _Average(order, self.free())
        self._claim(average.target)
        if order.what == "gradients":
            sources = [self._pool + worker for worker, _, _ in order.contributions]
            weights = [weight for _, _, weight in order.contributions]
        else:
            sources, weights = [self.replicas[worker] for worker in order.members], None

        def go() -> None:
            if average.failed:
                return
            average.began = self._now()
            here = [w for w in order.members if self._members[w].here and self._members[w].averager]
            if not here or (len(here) < len(order.members) and not self.deaths_are_told):
                self._fail(average)
                return
            average.awaited = set(here)
            self._move(average)
            for unused in self._kept.use(order.members):
                self._tell(unused, messages.Evict(list(unused)))
            share = messages.Average(order.group, here, sources, average.target, weights)
            self._tell(tuple(here), share)

        self._after(order.members, go)

    def _tell(self, workers: tuple[int, ...], message: messages.ToAverager) -> None:
        """Those of these workers that are here."""
        for worker in workers:
            averaged_by = self._members[worker].averaged_by
            if averaged_by is not None:
                averaged_by.send(message)

    # --- workers ------------------------------------------------------------------------------------

    def gradient_ready(self, member: Member, step: int) -> None:
        """The worker shows its script what it computed on until the next release: release nothing yet."""

    def let_go_of_slot(self, member: Member) -> None:
        """The worker no longer reads that area."""
        if member.reading is not None:
            self._unclaim(member.reading)
        member.reading = None

    def stepped(self, member: Member, step: int) -> None:
        """The worker's replica has made that step."""
        for area in self._stepping.pop((member.worker, step)):
            self._unclaim(area)
        self._made[member.worker] += 1
        self._go_on()

    def _hear(self, member: Member, averager: Channel) -> None:
        """The worker has made its share of an average, or has left."""
        try:
            message, _ = averager.receive()
        except PeerLost:
            self._loop.unwatch(averager)
            return
        except MessageUnreadable as error:
            self._give_up(member, f"its averager sent a message that can't be read ({error})")
            return
        average = self._averages.get(message.group)
        if average is not None:  # otherwise the group was over before: a run that stops awaits no averages
            average.awaited.discard(member.worker)
            self._end(average)

    def left(self, member: Member) -> None:
        """The worker trains no more. Its process may still be there, and make the shares that it owes."""
        if member.left != "died":  # the replica of any other counts in the means from now on
            self._share(member.worker)
        for group in list(self._means):
            self._needs_no_mean(member.worker, group)

    def gone(self, member: Member) -> None:
        """The worker's process has ended: what waited for it goes on without it."""
        worker, averager = member.worker, member.averager
        if averager is not None and member.averaged_by is not None:
            member.averaged_by.forget()
            if self._loop.watches(averager):
                self._loop.unwatch(averager)
            averager.close()
            member.averager = member.averaged_by = None
        self.let_go_of_slot(member)
        for key in [key for key in self._stepping if key[0] == worker]:
            for area in self._stepping.pop(key):
                self._unclaim(area)
        self._made[worker] = self._ordered[worker]
        for average in list(self._averages.values()):
            if worker in average.awaited:
                average.awaited.discard(worker)
                self._end(average)
        self._go_on()

    def dropped(self, member: Member, step: int) -> None:
        """The step is in no replica, or its replica is gone."""
        if step in (unshared := self._unshared.get(member.worker, [])):
            unshared.remove(step)
            self.samples -= self._leases.samples(member.worker, step)

    def applied(self, order: ApplyUpdate) -> None:
        """As in `Exchange`: no store applies anything here."""

    # --- cuts ---------------------------------------------------------------------------------------

    def cut(self, workers: list[int], ready: Callable[[list[int], int], None]) -> None:
        """Keep these workers' replicas as they are at this moment.

        `ready` is called with their areas and a free one when the steps ordered so far are made; `cut_done` ends it.
        """
        areas = [self.replicas[worker] for worker in workers]
        for area in areas:
            self._claim(area)
        target = self.free()
        self._claim(target)
        self._after(workers, lambda: ready(areas, target))

    def cut_done(self, areas: list[int], target: int) -> None:
        """These replicas are kept no more."""
        for area in (*areas, target):
            self._unclaim(area)

    def foremost(self, workers: list[int]) -> list[int]:
        """Those of these workers whose replicas have made the most steps."""
        most = max((self._ordered[worker] for worker in workers), default=0)
        return [worker for worker in workers if self._ordered[worker] == most]

    # --- areas --------------------------------------------------------------------------------------

    def free(self) -> int:
        """The lowest area that is not needed: areas that are never needed cost nothing."""
        return next(area for area in range(self._pool) if area not in self._claims)

    def _after(self, workers: tuple[int, ...] | list[int], do: Callable[[], None]) -> None:
        """Call `then` when the steps that these workers were ordered until now are made."""
        self._later.append(_Later({worker: self._ordered[worker] for worker in workers}, do))
        self._go_on()

    def _move(self, average: _Average) -> None:
        """Its bytes begin to move, if a network paces that."""
        if self._links is None:
            return
        assert self._message is not None  # training has begun
        members = average.order.members
        average.moving = True
        if self.present is not None:
            average.began = self.present
        self._links.begin(average.order.group, members, ring_bytes(len(members), self._message), average.began)

    def next(self, until: float) -> Fact | None:
        """Return the fact of the earliest average whose bytes had moved by `until`, if its shares are made by now.

        Its time is the model's, however late the loop comes to it. An average whose shares are made later ends then.
        """
        while self._links is not None and (moved := self._links.finish(until)) is not None:
            times = TransferTimes(moved.began, moved.ended, self._now())
            for worker in moved.members:
                self._journal.ledger.transferred(worker, "average", moved.group, moved.size, times)
            average = self._averages[moved.group]
            average.moving = False
            if (fact := self._over(average, moved.ended)) is not None:
                return fact
        return None

    def due(self) -> float | None:
        """Seconds until an average's bytes may next have moved, if any are on their way."""
        change = self._links.next_change() if self._links is not None else None
        return None if change is None else max(0.0, change - self._now())

    def _go_on(self) -> None:
        ready = [one for one in self._later if all(self._made[worker] >= n for worker, n in one.steps.items())]
        self._later = [one for one in self._later if one not in ready]
        for one in ready:
            one.do()

    def _end(self, average: _Average) -> None:
        """Tell that the average is made, if it is."""
        if (fact := self._over(average, self._now())) is not None:
            self._happened(fact)

    def _over(self, average: _Average, at: float) -> Fact | None:
        """When its area is no longer written and no bytes move: the average is made, unless a member was lost."""
        order = average.order
        if average.awaited or average.moving:
            return None
        if average.failed:
            del self._averages[order.group]
            self._unclaim(average.target)
            return None
        if average.made:
            return None
        if not self.deaths_are_told and not all(self._members[worker].here for worker in order.members):
            self._fail(average)
            return None
        average.made = True
        for worker in order.members:
            self._members[worker].transfers.append(("pull", average.began, at))
        return ReduceFinished(group=order.group, at=at)

    def _come_about(self, group: int) -> None:
        average = self._averages.get(group)
        if average is None or not average.made:  # a run that stops awaits no averages: see `conclude`
            return
        del self._averages[group]
        order = average.order
        if order.what == "parameters":
            self.averages += 1
            for worker in order.members:
                if not average.void:
                    self._place(worker, average.target)
                self._share(worker)
            self._unclaim(average.target)
            return
        self._means[group] = average.target, set(order.members)
        for worker in order.members:
            if not self._members[worker].trains:
                self._needs_no_mean(worker, group)

    def _share(self, worker: int) -> None:
        """What this worker's replica has is in another one, too, or counts for the last mean."""
        for step in self._unshared.pop(worker, ()):
            self._leases.settle(worker, step)

    def _fail(self, average: _Average) -> None:
        order = average.order
        del self._averages[order.group]
        self._unclaim(average.target)
        self._kept.failed(order.members)
        self._tell(order.members, messages.Evict(list(order.members)))
        lost = tuple(worker for worker in order.members if not self._members[worker].here)
        self._happened(ReduceFailed(group=order.group, lost=lost, at=self._now()))

    def _needs_no_mean(self, worker: int, group: int | None) -> None:
        """The worker has been told to step with that group's mean, or never will be."""
        if group in self._means:
            area, waiting = self._means[group]
            waiting.discard(worker)
            if not waiting:
                del self._means[group]
                self._unclaim(area)

    def _place(self, worker: int, area: int) -> None:
        self._claim(area)
        self._unclaim(self.replicas[worker])
        self.replicas[worker] = area

    def _claim(self, area: int) -> None:
        self._claims[area] = self._claims.get(area, 0) + 1

    def _unclaim(self, area: int) -> None:
        self._claims[area] -= 1
        if not self._claims[area]:
            del self._claims[area]
