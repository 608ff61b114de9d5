"""Steps of replicas, and which item each worker's replica is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.items import Item, Mean, Replica
from paceline.core.orders import StepReplica
from paceline.host.claims import Owner
from paceline.host.contract import NotHere
from paceline.host.memory_plan import MemoryPlan
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages


def replica_of(worker: int) -> Owner:
    """Who claims the worker's replica."""
    return "replica", worker


BEGUN_AS = ("what training began with",)


def shown(worker: int) -> Owner:
    """Who claims the replica that the worker's script sees, from one release to the next."""
    return "shown replica", worker


@dataclass(slots=True)
class _Later:
    """Something to do when these workers' steps have come so far."""

    steps: dict[int, int]
    do: Callable[[], None]
    never: Callable[[list[int]], None] | None
    """Called in its place with the workers, if any, whose processes ended before that."""
    lost: list[int]


class ReplicaSteps:
    """Carries out `StepReplica`.

    A replica is stepped in place only if no other worker needs it as it was. No byte is copied to commit.
    """

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        seats: Mapping[int, WorkerState],
        send: Callable[[int, messages.Message], None],
        needs_no_mean: Callable[[int, int | None], None],
        leaves_undone: Callable[[int, int], bool],
    ) -> None:
        """`needs_no_mean(worker, group)`: the worker has its step with that group's mean, or never will have.

        `leaves_undone(worker, step)`: the replica must not make that step, as if its worker had left.
        """
        self._shelf = shelf
        self._plan = plan
        self._seats = seats
        self._send = send
        self._needs_no_mean = needs_no_mean
        self._leaves_undone = leaves_undone
        self._replicas: dict[int, Replica] = {}
        self._ordered: dict[int, int] = {}
        self._made: dict[int, int] = {}
        """Steps that each worker's replica has made."""
        self._stepping: dict[tuple[int, int], None] = {}
        """(worker, step) that are ordered and not made."""
        self._unapplied: dict[int, int] = {}
        """By worker: the step that it has computed, until that is in its replica."""
        self._broken: dict[int, None] = {}
        """Workers whose replicas' places have none: their processes ended in a step, or have yet to put one there."""
        self._of_mean: tuple[int, list[dict[str, Any]]] | None = None
        """The group whose mean replicas are stepped with, and the hyperparameters for it: its lowest worker's."""
        self._later: list[_Later] = []
        self.begun_as: Item | None = None
        """What training began with, as long as a worker may have to begin with it once more."""

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
        """The worker's replica, as it is when the steps that were ordered are made. Raises NotHere."""
        if worker not in self._replicas:
            raise NotHere(f"worker {worker} owns no replica here")
        return self._replicas[worker]

    def begin(self, workers: Iterable[int], there: Item) -> None:
        """These workers' replicas begin as that item."""
        for worker in workers:
            self._replicas[worker] = Replica(worker, 0)
            self._ordered[worker] = self._made[worker] = 0
            self._shelf.name(Replica(worker, 0), there, replica_of(worker))

    def place(self, workers: Iterable[int]) -> None:
        """Give each of these workers' replicas a place. What it begins as is about to be put there."""
        for worker in workers:
            self._replicas[worker] = Replica(worker, 0)
            self._ordered[worker] = self._made[worker] = 0
            place = self._shelf.put(Replica(worker, 0), replica_of(worker), self._places_for(worker))
            assert place is not None  # nothing else is there

    def becomes(self, worker: int, there: Item) -> None:
        """The worker's replica is what that item is: the average of a group, or what all begin with."""
        self._shelf.name(self._next(worker), there, replica_of(worker))
        self._broken.pop(worker, None)

    def keep_beginning(self, item: Item) -> None:
        """Training begins with that. It is kept until something is recorded, as nobody's replica may be left."""
        self.begun_as = item
        self._shelf.claim(BEGUN_AS, item)

    def forget_beginning(self) -> None:
        """A mean of replicas is recorded: a worker that comes when nobody is left begins with that."""
        self.begun_as = None
        self._shelf.release(BEGUN_AS)

    def whole(self, worker: int) -> Replica | None:
        """The worker's replica, if its place has one."""
        return None if worker in self._broken else self._replicas.get(worker)

    def copies(self, worker: int, there: Item) -> Replica:
        """The worker, which joins or has resumed, owns a replica that is that item from now on."""
        if worker not in self._replicas:
            self._replicas[worker] = Replica(worker, -1)
            self._ordered[worker] = self._made[worker] = 0
        replica = self._next(worker)
        self._shelf.name(replica, there, replica_of(worker))
        self._broken.pop(worker, None)
        return replica

    def room(self, worker: int) -> Replica:
        """The worker, which joins, owns a replica that it is about to put into the place that it gets now."""
        replica = Replica(worker, self._replicas[worker].change + 1 if worker in self._replicas else 0)
        place = self._shelf.put(replica, replica_of(worker), self._places_for(worker))
        assert place is not None  # its last replica is forgotten
        self._replicas[worker] = replica
        self._broken[worker] = None
        self._ordered.setdefault(worker, 0)
        self._made.setdefault(worker, 0)
        return replica

    def computed(self, worker: int, step: int) -> None:
        """The worker has computed that step on its replica, so that is there."""
        self._broken.pop(worker, None)
        if worker in self._replicas:
            self._unapplied[worker] = step

    def unapplied(self, worker: int) -> tuple[int, ...]:
        """See `contract.Updates`."""
        return (self._unapplied[worker],) if worker in self._unapplied else ()

    def dropped(self, worker: int, step: int) -> None:
        """The worker's replica goes without that step."""
        if self._unapplied.get(worker) == step:
            del self._unapplied[worker]

    def carry_out(self, order: StepReplica) -> None:
        """Have the worker's replica stepped."""
        worker = order.worker
        self.dropped(worker, order.step)  # it is applied
        if self._seats[worker].trains and not self._leaves_undone(worker, order.step):
            self._step(order)  # otherwise the machine is about to hear that the worker has left
        self._needs_no_mean(worker, order.group)

    def stepped(self, worker: int, step: int) -> None:
        """The worker's replica has made that step."""
        del self._stepping[worker, step]
        self._shelf.release(("step of a replica", worker, step))
        self._made[worker] += 1
        self._go_on()

    def after(
        self, workers: Iterable[int], do: Callable[[], None], never: Callable[[list[int]], None] | None = None
    ) -> None:
        """Call `do` when the steps that these workers were ordered until now are made.

        A worker whose process has ended makes none. `never`, if given, is called in the place of `do` then.
        """
        steps = {worker: self._ordered[worker] for worker in workers}
        self._later.append(_Later(steps, do, never, [worker for worker in steps if worker in self._broken]))
        self._go_on()

    def gone(self, worker: int) -> None:
        """The worker's process has ended: what waited for its steps goes on without them."""
        if worker not in self._replicas:
            return
        self._unapplied.pop(worker, None)
        for key in [key for key in self._stepping if key[0] == worker]:
            del self._stepping[key]
            self._shelf.release(("step of a replica", *key))
            self._broken[worker] = None
        for one in self._later:
            if one.steps.get(worker, 0) > self._made[worker]:
                one.lost.append(worker)
        self._made[worker] = self._ordered[worker]
        self._go_on()

    def _step(self, order: StepReplica) -> None:
        worker, step = order.worker, order.step
        before, after = self.replica(worker), self._next(worker)
        source = target = self._shelf.place(before)
        mean = None if order.group is None else Mean(order.group)
        if self._shelf.others(before, (replica_of(worker), shown(worker))):
            reads: tuple[Item, ...] = (before,)
            self._shelf.claim(("step of a replica", worker, step), *reads, *((mean,) if mean else ()))
            free = self._shelf.put(after, replica_of(worker), self._places_for(worker))
            assert free is not None  # `memory_plan.REPLICAS` counts this one
            target = free
        else:
            self._shelf.rename(before, after)
            self._shelf.claim(("step of a replica", worker, step), after, *((mean,) if mean else ()))
        self._ordered[worker] += 1
        self._stepping[worker, step] = None
        place = None if mean is None else self._shelf.place(mean)
        self._send(worker, messages.worker.MakeStep(step, source, target, place, self._scalars(order)))

    def _scalars(self, order: StepReplica) -> list[dict[str, Any]] | None:
        """The hyperparameters to step with a mean, if they are not the worker's own: else replicas would drift apart.

        A script may have another rate in each worker, by a schedule that counts its own steps, say.
        """
        if order.group is None:
            return None
        own = self._seats[order.worker].scalars
        if self._of_mean is None or self._of_mean[0] != order.group:  # the lowest one is ordered first
            self._of_mean = order.group, own
        return None if own == self._of_mean[1] else self._of_mean[1]

    def _places_for(self, worker: int) -> Sequence[int]:
        return self._plan.for_replicas(elsewhere=self._seats[worker].elsewhere)

    def _next(self, worker: int) -> Replica:
        self._replicas[worker] = Replica(worker, self._replicas[worker].change + 1)
        return self._replicas[worker]

    def _go_on(self) -> None:
        ready = [one for one in self._later if all(self._made[worker] >= n for worker, n in one.steps.items())]
        self._later = [one for one in self._later if one not in ready]
        for one in ready:
            if one.lost and one.never is not None:
                one.never(one.lost)
            else:
                one.do()
