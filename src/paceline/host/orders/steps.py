"""Replicas of this host's workers in their places, and the steps that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from paceline.core.items import Item, Mean, Replica
from paceline.host import messages as host_messages
from paceline.host.claims import Owner
from paceline.host.contract import NotHere
from paceline.host.memory_plan import MemoryPlan
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages


def replica_of(worker: int) -> Owner:
    """Who claims the worker's replica."""
    return "replica", worker


def shown(worker: int) -> Owner:
    """Who claims the replica that the worker's script sees, from one release to the next."""
    return "shown replica", worker


def mean_of(average: int) -> Owner:
    """Who claims the mean of that average until its members have it."""
    return "mean of group", average


class ReplicaSteps:
    """Steps replicas. One is stepped in place only if nothing else needs it as it was. No byte is copied to commit."""

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        seats: Mapping[int, WorkerState],
        send: Callable[[int, messages.Message], None],
    ) -> None:
        self._shelf = shelf
        self._plan = plan
        self._seats = seats
        self._send = send
        self._replicas: dict[int, Replica] = {}
        self._stepping: set[tuple[int, int]] = set()
        """(worker, step) that the worker was told to make, and has not made."""
        self._waiting: dict[int, set[int]] = {}
        """By average of gradients that is made: the members here that are still to be told to step with it."""

    @property
    def workers(self) -> list[int]:
        """Those that own a replica."""
        return list(self._replicas)

    def owned_by(self, worker: int) -> bool:
        """Whether the worker owns a replica."""
        return worker in self._replicas

    def replica(self, worker: int) -> Replica:
        """The worker's replica, as it is when the steps that were ordered are made. Raises NotHere."""
        if worker not in self._replicas:
            raise NotHere(f"worker {worker} owns no replica here")
        return self._replicas[worker]

    def room(self, worker: int, change: int) -> None:
        """Give the worker's replica, which gets that number, a place that it is about to be put into."""
        self._replicas[worker] = replica = Replica(worker, change)
        place = self._shelf.put(replica, replica_of(worker), self._plan.shared)
        assert place is not None  # `memory_plan.REPLICAS` counts this one

    def becomes(self, worker: int, change: int, there: Item) -> None:
        """The worker's replica, which gets that number, is what that item is: what all begin with, or a mean."""
        self._replicas[worker] = replica = Replica(worker, change)
        self._shelf.name(replica, there, replica_of(worker))

    def takes(self, worker: int, change: int) -> None:
        """The worker's replica is the one with that number, which has a place by its name."""
        self._replicas[worker] = replica = Replica(worker, change)
        self._shelf.claim(replica_of(worker), replica)

    def forget(self, worker: int) -> None:
        """The worker has another replica, on another host."""
        del self._replicas[worker]
        self._shelf.release(replica_of(worker))

    def carry_out(self, order: host_messages.TakeStep) -> None:
        """Have the worker's replica stepped, unless it goes without that step."""
        if order.change is not None and self._seats[order.worker].trains:
            self._step(order, Replica(order.worker, order.change))
        self._needs_no_mean(order.worker, order.mean)

    def stepped(self, worker: int, step: int) -> None:
        """The worker's replica has made that step."""
        self._stepping.discard((worker, step))
        self._shelf.release(_stepping(worker, step))

    def await_steps(self, average: int, members: Iterable[int]) -> None:
        """That average of gradients is made. It is kept until members here were told to step with it, or left."""
        self._waiting[average] = {worker for worker in members if self._seats[worker].trains}
        self._needs_no_mean(None, average)

    def left(self, worker: int) -> None:
        """The worker trains no more: it is told of no step."""
        for average in list(self._waiting):
            self._needs_no_mean(worker, average)

    def gone(self, worker: int) -> None:
        """The worker's process has ended: it makes no step any more."""
        for key in [key for key in self._stepping if key[0] == worker]:
            self.stepped(*key)

    def _step(self, order: host_messages.TakeStep, after: Replica) -> None:
        worker, step = order.worker, order.step
        before, owner = self.replica(worker), _stepping(worker, step)
        mean = None if order.mean is None else Mean(order.mean)
        with_it = (mean,) if mean else ()
        source = target = self._shelf.place(before)
        if self._shelf.others(before, (replica_of(worker), shown(worker))):
            self._shelf.claim(owner, before, *with_it)
            free = self._shelf.put(after, replica_of(worker), self._plan.shared)
            assert free is not None  # `memory_plan.REPLICAS` counts this one
            target = free
        else:
            self._shelf.rename(before, after)
            self._shelf.claim(owner, after, *with_it)
        self._replicas[worker] = after
        self._stepping.add((worker, step))
        place = None if mean is None else self._shelf.place(mean)
        self._send(worker, messages.worker.MakeStep(step, source, target, place, order.scalars))

    def _needs_no_mean(self, worker: int | None, average: int | None) -> None:
        """The worker has been told to step with that average's mean, or never will be."""
        if average in self._waiting:
            waiting = self._waiting[average]
            waiting -= {worker}
            if not waiting:
                del self._waiting[average]
                self._shelf.release(mean_of(average))


def _stepping(worker: int, step: int) -> Owner:
    """Who claims what that step is made of, and the mean that it is made with."""
    return "step of a replica", worker, step
