"""Workers that begin a step: what they compute on, and where their update is to go."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.core.items import Item, Version
from paceline.core.orders import Release
from paceline.host.claims import Owner
from paceline.host.events import AwaitsPlace, AwaitsVersion, Computes, ComputesTaken, WorkerEvent
from paceline.host.orders.pulls import Pulls, ahead
from paceline.host.orders.pushes import Pushes
from paceline.host.orders.steps import ReplicaSteps, shown
from paceline.host.version_items import Versions
from paceline.host.version_shelf import Shelf
from paceline.host.version_streaming import VersionStreaming
from paceline.host.worker_state import WorkerState
from paceline.ipc import messages


def step_of(worker: int) -> Owner:
    """Who claims the version that the worker computes its step on."""
    return "step", worker


def look_of(worker: int) -> Owner:
    """Who claims the version that the worker copies for `state_dict`."""
    return "look", worker


class Releases:
    """Carries out `Release`. A worker begins once it has its version, and a place for the step's update is free."""

    def __init__(
        self,
        shelf: Shelf,
        pulls: Pulls,
        pushes: Pushes,
        versions: Versions,
        steps: ReplicaSteps | None,
        seats: Mapping[int, WorkerState],
        report: Callable[[WorkerEvent], object],
        send: Callable[[int, messages.Message], None],
        arrivals: VersionStreaming | None = None,
        *,
        owns_replicas: Callable[[], bool],
    ) -> None:
        """`steps`: None where there are never replicas. `arrivals`: None where other hosts make all versions.

        `owns_replicas()`: whether each worker owns a replica now.
        """
        self._owns_replicas = owns_replicas
        self._shelf = shelf
        self._pulls = pulls
        self._pushes = pushes
        self._versions = versions
        self._steps = steps
        self._seats = seats
        self._report = report
        self._send = send
        self._arrivals = arrivals
        self._unsent: dict[int, list[Callable[[], None]]] = {}
        """By worker that is released and was not told yet: what is to be done after that."""
        self._dropped: dict[int, list[int]] = {}
        """By worker: steps whose updates no version will have, of which it was not told yet."""

    def carry_out(self, order: Release) -> None:
        """Let the worker compute."""
        worker = order.worker
        seat = self._seats[worker]
        if not seat.trains:  # the machine is about to hear that the worker has left
            return
        seat.step, seat.last = order.step, order.last
        self._unsent.setdefault(worker, [])
        if self._steps is not None and self._owns_replicas():
            self._compute_replica(order, self._steps)
            return
        if self._steps is not None:
            self._shelf.release(shown(worker))  # it was shown its replica while each worker had one
        self._pushes.released(order)
        if order.parameters == "own":
            self._go_on(order)
            return
        version = Version(order.version)
        lacking = self._pushes.lacking(worker, order.version)
        self._shelf.claim(step_of(worker), version)
        if order.parameters == "pull":
            self._shelf.release(ahead(worker))  # the step that it was pulled for did not come
            if order.version > self._versions.newest:
                self._report(AwaitsVersion(worker, order.version))
                if self._arrivals is not None:
                    self._arrivals.waits(worker, order.version)
            self._pulls.pull(worker, order.version, lambda: self._compute(order, version, [], took=True))
            return
        if version in self._shelf.claimed(ahead(worker)):
            self._shelf.release(ahead(worker))
        self._compute(order, version, lacking if order.parameters == "eager" else [])

    def dropped(self, worker: int, step: int) -> None:
        """No version will have that step's update."""
        self._dropped.setdefault(worker, []).append(step)

    def after(self, worker: int, do: Callable[[], None]) -> None:
        """Call `do` when the worker was told of every release that was ordered until now, or takes no part any more."""
        if worker in self._unsent:
            self._unsent[worker].append(do)
        else:
            do()

    def left(self, worker: int) -> None:
        """The worker takes no part any more."""
        if self._arrivals is not None:
            self._arrivals.gone(worker)
        self._dropped.pop(worker, None)
        for do in self._unsent.pop(worker, ()):
            do()

    def computed(self, worker: int) -> None:
        """The worker's step is computed: it no longer reads its version.

        An own replica is still shown to its script, until the next release.
        """
        self._shelf.release(step_of(worker))

    def look(self, worker: int, *, hold: bool) -> None:
        """Keep the newest version for the worker, besides what it computed on until `looked`, or in its place."""
        self._shelf.claim((step_of if hold else look_of)(worker), Version(self._versions.newest))

    def looked(self, worker: int) -> None:
        """The worker has copied the version that it looked at."""
        self._shelf.release(look_of(worker))

    def gone(self, worker: int) -> None:
        """The worker's process has ended. Until then its script may go on with the model."""
        for owner in (step_of(worker), look_of(worker), shown(worker)):
            self._shelf.release(owner)

    def _compute_replica(self, order: Release, steps: ReplicaSteps) -> None:
        """Let the worker compute on its own replica."""
        own = steps.replica(order.worker)
        self._shelf.claim(shown(order.worker), own)
        self._pushes.forget(order.worker)  # its replica was stepped with them, or will never be
        self._compute(order, own, [])

    def _go_on(self, order: Release) -> None:
        """Let the worker make a further step of its own parameters."""
        areas = self._pushes.areas(order)
        if areas is None:
            self._report(AwaitsPlace(order.worker))
            self._pushes.when_free(order.worker, lambda: self._go_on(order))
            return
        self._tell(order, -1, areas, [])

    def _compute(self, order: Release, item: Item, lacking: list[tuple[int, float]], *, took: bool = False) -> None:
        """`took`: whether the worker has just taken the item, a version."""
        if not self._seats[order.worker].trains:
            return
        areas = self._pushes.areas(order)
        if areas is None:
            self._report(AwaitsPlace(order.worker))
            self._pushes.when_free(order.worker, lambda: self._compute(order, item, lacking))
            return
        self._tell(order, self._shelf.place(item), areas, lacking, took=took)

    def _tell(
        self,
        order: Release,
        place: int,
        areas: tuple[int, int],
        lacking: list[tuple[int, float]],
        *,
        took: bool = False,
    ) -> None:
        self._report((ComputesTaken if took else Computes)(order.worker))
        dropped = self._dropped.pop(order.worker, [])
        compute = messages.worker.Compute(
            order.step,
            order.version,
            place,
            areas[0],
            lacking,
            order.progress,
            order.steps,
            order.pace,
            order.cut,
            dropped,
            order.overlap,
            areas[1],
            order.batches,
        )
        self._send(order.worker, compute)
        for do in self._unsent.pop(order.worker, ()):
            do()
