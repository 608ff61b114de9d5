"""What is known of all replicas of a run: which one each worker has, what it was ordered, and where it lies.

Hosts place them: see `host.replicas.host_replicas`. Nothing here has a place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.items import Replica
from paceline.core.orders import StepReplica
from paceline.host.contract import NotHere
from paceline.host.worker_state import WorkerState


@dataclass(slots=True)
class _Later:
    """Something to do when these workers' steps have come so far."""

    steps: dict[int, int]
    do: Callable[[], None]
    never: Callable[[list[int]], None] | None
    """Called in its place with the workers, if any, whose processes ended before that."""
    lost: list[int]


class ReplicaTable:
    """Names replicas, and knows how many of the ordered steps each has made."""

    def __init__(self, seats: Mapping[int, WorkerState], head: str, host_of: Callable[[int], str]) -> None:
        """`head`: the head's host. `host_of(worker)`: the worker's."""
        self._seats = seats
        self._head = head
        self._host_of = host_of
        self._replicas: dict[int, Replica] = {}
        self._changes: dict[int, int] = {}
        """By worker: the last number that a replica of it got. It may be of one that never came."""
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
        self._copies: dict[int, tuple[Replica, str | None]] = {}
        """By worker that gets a copy: its name there, and the host that has the bytes by that name."""
        self._at_head: set[int] = set()
        """Workers of other hosts that have left with their hosts, in good order: their replicas were brought here."""
        self._lost: set[int] = set()
        """Workers whose replicas are lost with their hosts."""
        self.without: set[int] = set()
        """Workers that came while others trained, and have not got their replicas."""

    # --- which replica a worker has ----------------------------------------------------------------

    @property
    def workers(self) -> list[int]:
        """Workers that own a replica, those that have died too."""
        return list(dict.fromkeys([*self._replicas, *self._copies]))

    def owned_by(self, worker: int) -> bool:
        """Whether the worker owns a replica, or is about to."""
        return worker in self._replicas or worker in self._copies

    def replica(self, worker: int) -> Replica:
        """The worker's replica, as it is when the steps that were ordered are made. Raises NotHere.

        While a copy is on its way, it is that one.
        """
        if worker in self._copies:
            return self._copies[worker][0]
        if worker not in self._replicas:
            raise NotHere(f"worker {worker} owns no replica here")
        return self._replicas[worker]

    def lies_at(self, replica: Replica) -> str | None:
        """The host that has that replica. None: it is lost with its host."""
        copy, source = self._copies.get(replica.worker, (None, None))
        if copy == replica:
            return source
        return None if replica.worker in self._lost else self.home(replica.worker)

    def home(self, worker: int) -> str:
        """The host that steps the worker's replica, or keeps what has become of it."""
        return self._head if worker in self._at_head else self._host_of(worker)

    def begin(self, workers: Collection[int]) -> dict[int, int]:
        """These workers' replicas begin. Return each one's number."""
        for worker in workers:
            self._replicas[worker] = Replica(worker, self._next(worker))
            self._ordered[worker] = self._made[worker] = 0
        self.without.difference_update(workers)
        self._lost.difference_update(workers)
        return {worker: self._replicas[worker].change for worker in workers}

    def end(self) -> None:
        """No worker owns a replica any more. What was ordered of replicas is done."""
        self._replicas.clear()
        self._unapplied.clear()
        self._broken.clear()
        self._at_head.clear()
        self._lost.clear()

    def put(self, worker: int, step: int) -> int:
        """The worker is to put its replica where that is stepped, as if that were a step. Return its number then."""
        self._replicas[worker] = Replica(worker, self._next(worker))
        self._ordered[worker] += 1
        self._stepping[worker, step] = None
        return self._replicas[worker].change

    def becomes(self, worker: int) -> int:
        """The worker's replica is another one from now on: the mean of a group, say. Return its number."""
        self._replicas[worker] = replica = Replica(worker, self._next(worker))
        self._broken.pop(worker, None)
        return replica.change

    def comes(self, worker: int, host: str | None) -> Replica:
        """A copy of another replica is about to come to the worker from that host. Return its name."""
        replica = Replica(worker, self._next(worker))
        self._copies[worker] = replica, host
        self._ordered.setdefault(worker, 0)
        self._made.setdefault(worker, 0)
        return replica

    def taken(self, worker: int) -> int:
        """The copy is the worker's replica from now on. Return its number."""
        self._replicas[worker], _ = self._copies.pop(worker)
        self._has(worker)
        self._broken.pop(worker, None)
        return self._replicas[worker].change

    def never_comes(self, worker: int) -> None:
        """The copy is not the worker's after all. It goes on with the replica that it has had."""
        self._copies.pop(worker, None)

    def room(self, worker: int) -> int:
        """The worker, which joins, puts its replica into the place that it gets. Return its number."""
        self._replicas[worker] = Replica(worker, self._next(worker))
        self._ordered.setdefault(worker, 0)
        self._made.setdefault(worker, 0)
        self._broken[worker] = None
        self._has(worker)
        return self._replicas[worker].change

    # --- where replicas lie -------------------------------------------------------------------------

    def brought_here(self, worker: int) -> None:
        """What the worker, whose host leaves in good order, has come to lies at the head from now on."""
        self._at_head.add(worker)

    def host_lost(self, host: str) -> None:
        """That host takes no part any more. What lay there is lost."""
        self._lost.update(worker for worker in self._replicas if self.home(worker) == host)

    def lacks(self, workers: Iterable[int]) -> list[int]:
        """Those of these workers of a host that is lost whose replicas are gone with it."""
        return [worker for worker in workers if worker not in self._at_head | self.without]

    def back(self, worker: int) -> None:
        """A new process is about to begin as this worker."""
        self.without.add(worker)

    # --- steps --------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether all steps that were ordered are made, and what waited for them is done."""
        return not (self._later or self._stepping)

    def step(self, order: StepReplica) -> tuple[int, list[dict[str, Any]] | None]:
        """The worker's replica is to make that step. Return its number then, and hyperparameters: see `TakeStep`.

        Raises NotHere.
        """
        worker = self.replica(order.worker).worker
        return self.put(worker, order.step), self._scalars(order)

    def stepped(self, worker: int, step: int) -> None:
        """The worker's replica has made that step."""
        del self._stepping[worker, step]
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
            self._broken[worker] = None
        for one in self._later:
            if one.steps.get(worker, 0) > self._made[worker]:
                one.lost.append(worker)
        self._made[worker] = self._ordered[worker]
        self._go_on()

    def computed(self, worker: int, step: int) -> None:
        """The worker has computed that step on its replica, so that is there."""
        self._broken.pop(worker, None)
        if worker in self._replicas:
            self._unapplied[worker] = step

    def unapplied(self, worker: int) -> tuple[int, ...]:
        """See `contract.Updates`."""
        return (self._unapplied[worker],) if worker in self._unapplied else ()

    def dropped(self, worker: int, step: int) -> None:
        """The worker's replica has that step, or goes without it."""
        if self._unapplied.get(worker) == step:
            del self._unapplied[worker]

    # --- inside -------------------------------------------------------------------------------------

    def _next(self, worker: int) -> int:
        self._changes[worker] = self._changes.get(worker, -1) + 1
        return self._changes[worker]

    def _has(self, worker: int) -> None:
        """The worker has a replica at its own host, or is about to put one there."""
        for those in (self._at_head, self._lost, self.without):
            those.discard(worker)

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

    def _go_on(self) -> None:
        ready = [one for one in self._later if all(self._made[worker] >= n for worker, n in one.steps.items())]
        self._later = [one for one in self._later if one not in ready]
        for one in ready:
            if one.lost and one.never is not None:
                one.never(one.lost)
            else:
                one.do()
