"""Steps of replicas, and which item each worker's replica is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from paceline.core.items import Item, Mean, Replica
from paceline.core.leases import Leases
from paceline.core.orders import StepReplica
from paceline.host import messages
from paceline.host.member import Member
from paceline.host.plan import Plan
from paceline.host.shelf import Owner, Shelf
from paceline.records.journal import Journal


def replica_of(worker: int) -> Owner:
    """Who claims the worker's replica."""
    return "replica", worker


def shown(worker: int) -> Owner:
    """Who claims the replica that the worker's script sees, from one release to the next."""
    return "shown replica", worker


@dataclass(slots=True)
class _Later:
    """Something to do when these workers' steps have come so far."""

    steps: dict[int, int]
    do: Callable[[], None]


class Steps:
    """Carries out `StepReplica`.

    A replica is stepped in place only if no other worker needs it as it was. No byte is copied to commit.
    """

    def __init__(
        self,
        shelf: Shelf,
        plan: Plan,
        members: Mapping[int, Member],
        journal: Journal,
        send: Callable[[Member, messages.Message], None],
        needs_no_mean: Callable[[int, int | None], None],
    ) -> None:
        """`needs_no_mean(worker, group)`: the worker has its step with that group's mean, or never will have."""
        self.leases = Leases("queue", [])
        """Set when training begins."""
        self.steps = 0
        """Steps of all replicas."""
        self.samples = 0
        """Samples in all these steps."""
        self.undone: frozenset[tuple[int, int]] = frozenset()
        """(worker, step) that replicas will be ordered and must not make, as if their workers had left."""
        self._shelf = shelf
        self._plan = plan
        self._members = members
        self._journal = journal
        self._send = send
        self._needs_no_mean = needs_no_mean
        self._replicas: dict[int, Replica] = {}
        self._unshared: dict[int, list[int]] = {}
        """By worker: steps in its replica that are in no other one yet."""
        self._ordered: dict[int, int] = {}
        self._made: dict[int, int] = {}
        """Steps that each worker's replica has made."""
        self._stepping: dict[tuple[int, int], None] = {}
        """(worker, step) that are ordered and not made."""
        self._later: list[_Later] = []

    @property
    def workers(self) -> list[int]:
        """Workers that own a replica, those that have died too."""
        return list(self._replicas)

    def owned_by(self, worker: int) -> bool:
        """Whether the worker owns a replica."""
        return worker in self._replicas

    @property
    def settled(self) -> bool:
        """Whether all steps that were ordered are made, and what waited for them is done."""
        return not (self._later or self._stepping)

    def replica(self, worker: int) -> Replica:
        """The worker's replica, as it is when the steps that were ordered are made."""
        return self._replicas[worker]

    def begin(self, workers: Iterable[int], there: Item) -> None:
        """These workers' replicas begin as that item."""
        for worker in workers:
            self._replicas[worker] = Replica(worker, 0)
            self._ordered[worker] = self._made[worker] = 0
            self._shelf.name(Replica(worker, 0), there, replica_of(worker))

    def becomes(self, worker: int, there: Item) -> None:
        """The worker's replica is what that item is: the average of a group, or what all begin with."""
        self._shelf.name(self._next(worker), there, replica_of(worker))

    def carry_out(self, order: StepReplica) -> None:
        """Have the worker's replica stepped."""
        worker, step, member = order.worker, order.step, self._members[order.worker]
        trains = member.trains and (worker, step) not in self.undone
        if not trains:
            self._journal.undone(worker, step)
        if order.group is None and not trains:
            return  # it will not be made: the machine is about to hear that its worker has left
        self.steps += 1
        if order.group is None:
            self._unshared.setdefault(worker, []).append(step)
            self.samples += self.leases.samples(worker, step)
        else:  # the mean gradient is in every replica
            self.samples += self.leases.settle(worker, step)
        if trains:
            self._step(member, order)
        self._needs_no_mean(worker, order.group)

    def stepped(self, worker: int, step: int) -> None:
        """The worker's replica has made that step."""
        del self._stepping[worker, step]
        self._shelf.release(("step of a replica", worker, step))
        self._made[worker] += 1
        self._go_on()

    def after(self, workers: Iterable[int], do: Callable[[], None]) -> None:
        """Call `do` when the steps that these workers were ordered until now are made."""
        self._later.append(_Later({worker: self._ordered[worker] for worker in workers}, do))
        self._go_on()

    def foremost(self, workers: list[int]) -> list[int]:
        """Those of these workers whose replicas have made the most steps."""
        most = max((self._ordered[worker] for worker in workers), default=0)
        return [worker for worker in workers if self._ordered[worker] == most]

    def share(self, worker: int) -> None:
        """What this worker's replica has is in another one, too, or counts for the last mean."""
        for step in self._unshared.pop(worker, ()):
            self.leases.settle(worker, step)

    def dropped(self, worker: int, step: int) -> None:
        """The step is in no replica, or its replica is gone."""
        if step in (unshared := self._unshared.get(worker, [])):
            unshared.remove(step)
            self.samples -= self.leases.samples(worker, step)

    def gone(self, worker: int) -> None:
        """The worker's process has ended: what waited for its steps goes on without them."""
        if worker not in self._replicas:
            return
        for key in [key for key in self._stepping if key[0] == worker]:
            del self._stepping[key]
            self._shelf.release(("step of a replica", *key))
        self._made[worker] = self._ordered[worker]
        self._go_on()

    def _step(self, member: Member, order: StepReplica) -> None:
        worker, step = order.worker, order.step
        before, after = self._replicas[worker], self._next(worker)
        source = target = self._shelf.place(before)
        mean = None if order.group is None else Mean(order.group)
        if self._shelf.others(before, (replica_of(worker), shown(worker))):
            reads: tuple[Item, ...] = (before,)
            self._shelf.claim(("step of a replica", worker, step), *reads, *((mean,) if mean else ()))
            free = self._shelf.put(after, replica_of(worker), self._plan.shared)
            assert free is not None  # `plan.REPLICAS` counts this one
            target = free
        else:
            self._shelf.rename(before, after)
            self._shelf.claim(("step of a replica", worker, step), after, *((mean,) if mean else ()))
        self._ordered[worker] += 1
        self._stepping[worker, step] = None
        self._send(member, messages.Step(step, source, target, None if mean is None else self._shelf.place(mean)))

    def _next(self, worker: int) -> Replica:
        self._replicas[worker] = Replica(worker, self._replicas[worker].change + 1)
        return self._replicas[worker]

    def _go_on(self) -> None:
        ready = [one for one in self._later if all(self._made[worker] >= n for worker, n in one.steps.items())]
        self._later = [one for one in self._later if one not in ready]
        for one in ready:
            one.do()
