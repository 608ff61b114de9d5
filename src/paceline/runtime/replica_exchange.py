"""Carries out what is ordered of replicas: their steps, the averages of groups, and cuts through all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from paceline.core.facts import Fact, ReduceFailed, ReduceFinished
from paceline.core.orders import Reduce, Release, StepReplica
from paceline.errors import PeerLost
from paceline.runtime import messages
from paceline.runtime.member import Member

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


@dataclass(slots=True)
class _Later:
    """Something to do when these workers' steps have come so far."""

    steps: dict[int, int]
    do: Callable[[], None]


class ReplicaExchange:
    """Keeps count of which area has whose replica, and who else needs it.

    An area that somebody reads is not written: a replica is stepped in place only where nobody else has it, and an
    average is made in a free area, which is every member's replica once the last of them has made its share. So a
    member that dies leaves nothing half-averaged, a worker computes on while its replica is averaged, and a cut
    through all replicas costs nobody anything. No byte is copied to commit.
    """

    def __init__(
        self,
        members: Mapping[int, Member],
        send: Callable[[Member, messages.Message], None],
        happened: Callable[[Fact], None],
        now: Callable[[], float],
        shared: Callable[[int], None],
    ) -> None:
        """`now()` is seconds since the run's start; `happened` takes the facts that come of an order.

        `shared(worker)` is called when what its replica has is in another one, too.
        """
        self.present: float | None = None
        """As in `Exchange`: nothing here asks for it."""
        self.replicas: dict[int, int] = {}
        """By worker: the area that has its replica, or will when the steps that were ordered are made."""
        self.averages = 0
        """Averages of replicas that have come about."""
        self._members = members
        self._send = send
        self._happened = happened
        self._now = now
        self._shared = shared
        self._claims: dict[int, int] = {}
        """By area: how many need it; no zeros."""
        self._averages: dict[int, _Average] = {}
        self._means: dict[int, tuple[int, set[int]]] = {}
        """By group: the area of its mean gradient, and who is still to be told to step with it."""
        self._stepping: dict[tuple[int, int], list[int]] = {}
        """By (worker, step): the areas that it reads for that."""
        self._ordered = dict.fromkeys(members, 0)
        self._made = dict.fromkeys(members, 0)
        """Steps of each worker's replica."""
        self._later: list[_Later] = []

    @property
    def areas(self) -> int:
        """How many replicas and means may lie in; those after them take the workers' own gradients."""
        return (AREAS - 1) * len(self._members)

    @property
    def averaging(self) -> bool:
        """Whether a group is at it."""
        return bool(self._averages)

    def begin(self, workers: list[int]) -> None:
        """Training begins: every replica is the first version, in area 0."""
        for worker in workers:
            self.replicas[worker] = 0
            self._claim(0)

    def moved(self, area: int) -> None:
        """The first version is in that area from now on; no replica has made a step."""
        for worker, before in self.replicas.items():
            self._place(worker, area)
            assert before == 0

    # --- orders -------------------------------------------------------------------------------------

    def release(self, member: Member, order: Release) -> None:
        """Let it compute on its replica as it is, which is kept so until its next release."""
        if not member.trains:
            return
        member.step = order.step
        area = self.replicas[member.worker]
        self._claim(area)
        self.let_go_of_slot(member)
        member.reading = area
        member.wait(None)
        member.released_at = self._now()
        self._send(member, messages.Compute(order.step, order.version, area, self.areas + member.worker, None))

    def step(self, member: Member, order: StepReplica) -> None:
        """Have its replica stepped: in place, if nobody else needs it as it was."""
        worker = member.worker
        gradients = self._means[order.group][0] if order.group in self._means else None
        if not member.trains:  # that it has left is the next that the machine hears of it
            return
        source = target = self.replicas[worker]
        if self._claims[source] > 1 + (member.reading == source):
            target = self.free()
        reads = [source] if gradients is None else [source, gradients]
        for area in reads:
            self._claim(area)  # until it is made
        self._place(worker, target)
        self._ordered[worker] += 1
        self._stepping[worker, order.step] = reads
        self._needs_no_mean(worker, order.group)
        self._send(member, messages.Step(order.step, source, target, gradients))

    def reduce(self, order: Reduce) -> None:
        """Have the group average, once its members' replicas have made the steps that were ordered."""
        average = self._averages[order.group] = _Average(order, self.free())
        self._claim(average.target)
        if order.what == "gradients":
            sources = [self.areas + worker for worker, _, _ in order.contributions]
            weights = [weight for _, _, weight in order.contributions]
        else:
            sources, weights = [self.replicas[worker] for worker in order.members], None

        def go() -> None:
            average.began = self._now()
            members = [self._members[worker] for worker in order.members]
            if not all(member.here and member.averager for member in members):
                self._fail(average)
                return
            average.awaited = set(order.members)
            share = messages.Average(order.group, list(order.members), sources, average.target, weights)
            for member in members:
                assert member.averager is not None
                with suppress(PeerLost):  # it has died: `gone` is told next
                    member.averager.send(share, block=False)

        self.after(order.members, go)

    # --- workers ------------------------------------------------------------------------------------

    def gradient_ready(self, member: Member, step: int) -> None:
        """It shows its script what it computed on until the next release: nothing is let go of yet."""

    def let_go_of_slot(self, member: Member) -> None:
        """It reads that area no more."""
        if member.reading is not None:
            self._unclaim(member.reading)
        member.reading = None

    def stepped(self, member: Member, step: int) -> None:
        """Its replica has made that step."""
        for area in self._stepping.pop((member.worker, step)):
            self._unclaim(area)
        self._made[member.worker] += 1
        self._go_on()

    def averaged(self, member: Member, group: int) -> None:
        """It has made its share of that average."""
        average = self._averages[group]
        average.awaited.discard(member.worker)
        self._end(average)

    def left(self, member: Member) -> None:
        """It trains no more. Its process may still be there, and make the shares that it owes."""
        for group in list(self._means):
            self._needs_no_mean(member.worker, group)

    def gone(self, member: Member) -> None:
        """Its process has ended: what waited for it goes on without."""
        worker = member.worker
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
        """Nothing is on its way that could be."""

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
        self.after(workers, lambda: ready(areas, target))

    def cut_done(self, areas: list[int], target: int) -> None:
        """They are kept no more."""
        for area in (*areas, target):
            self._unclaim(area)

    def foremost(self, workers: list[int]) -> list[int]:
        """Those of them whose replicas have made the most steps."""
        most = max((self._ordered[worker] for worker in workers), default=0)
        return [worker for worker in workers if self._ordered[worker] == most]

    # --- areas --------------------------------------------------------------------------------------

    def free(self) -> int:
        """The lowest area that nobody needs: those never needed cost nothing."""
        return next(area for area in range(self.areas) if area not in self._claims)

    def after(self, workers: tuple[int, ...] | list[int], do: Callable[[], None]) -> None:
        """Do it when the steps that these workers were ordered until now are made."""
        self._later.append(_Later({worker: self._ordered[worker] for worker in workers}, do))
        self._go_on()

    def next(self, until: float) -> Fact | None:
        """No transfer takes time by itself."""
        return None

    def due(self) -> float | None:
        """None is under way, then."""
        return None

    def _go_on(self) -> None:
        ready = [one for one in self._later if all(self._made[worker] >= n for worker, n in one.steps.items())]
        self._later = [one for one in self._later if one not in ready]
        for one in ready:
            one.do()

    def _end(self, average: _Average) -> None:
        """When nobody writes into its area any more: it is whole, unless somebody was lost."""
        if average.awaited:
            return
        if all(self._members[worker].here for worker in average.order.members):
            self._finish(average)
        else:
            self._fail(average)

    def _finish(self, average: _Average) -> None:
        order = average.order
        del self._averages[order.group]
        if order.what == "parameters":
            self.averages += 1
            for worker in order.members:
                self._place(worker, average.target)
                self._shared(worker)
            self._unclaim(average.target)
        else:
            self._means[order.group] = average.target, set(order.members)
            for worker in order.members:
                if not self._members[worker].trains:
                    self._needs_no_mean(worker, order.group)
        ended = self._now()
        for worker in order.members:
            self._members[worker].transfers.append(("pull", average.began, ended))
        self._happened(ReduceFinished(group=order.group, at=ended))

    def _fail(self, average: _Average) -> None:
        order = average.order
        del self._averages[order.group]
        self._unclaim(average.target)
        lost = tuple(worker for worker in order.members if not self._members[worker].here)
        self._happened(ReduceFailed(group=order.group, lost=lost, at=self._now()))

    def _needs_no_mean(self, worker: int, group: int | None) -> None:
        """It has been told to step with that group's mean, or never will be."""
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
