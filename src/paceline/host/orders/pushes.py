"""Updates on their way from workers to the store, and the places in which they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.core.facts import UpdateArrived
from paceline.core.items import Sum, Update
from paceline.core.orders import ApplyUpdate, Release, StartPush
from paceline.host.contract import NotHere, Updates
from paceline.host.memory_plan import MemoryPlan
from paceline.host.version_shelf import Shelf

Pushed = Sequence[tuple[Update | Sum, float]]
"""Updates, and sums of updates, each with its weight, in the order in which they are summed."""


@dataclass(slots=True)
class _Lacking:
    """An update that may not be in the version that its worker computes on."""

    area: int
    scale: float
    version: int | None = None
    """The version that has it, once that is ordered."""


class Pushes:
    """Carries out `StartPush`, and gives each step's update one of its worker's own places."""

    def __init__(
        self,
        shelf: Shelf,
        plan: MemoryPlan,
        on_dropped: Callable[[Update], object],
        in_rounds: Callable[[], bool],
    ) -> None:
        """`on_dropped` is told of each update that is in a version by now, or will be in none.

        `in_rounds()`: whether an update may have several steps.
        """
        self._shelf = shelf
        self._plan = plan
        self._on_dropped = on_dropped
        self._on_the_way: dict[int, dict[int, None]] = {}
        """By worker: steps whose gradient is ready, and whose update has neither arrived nor been dropped."""
        self._ready: dict[int, int] = {}
        """By worker: the last step whose gradient is ready."""
        self._scales: dict[tuple[int, int], float] = {}
        """By worker and step: the factor that was ordered for its update."""
        self._lacking: dict[int, dict[int, _Lacking]] = {}
        """By worker and step: updates that are not in the version that it was last released on."""
        self._awaiting: dict[int, Callable[[], None]] = {}
        """By worker: what to do when one of its places is free."""
        self._in_rounds = in_rounds
        self._own: dict[int, set[int]] = {}
        """By worker: steps that it is to compute, and that go into the same update as the step before each."""
        self._next: dict[int, int] = {}
        """By worker: the step with which its last release begins another update, until that is computed."""

    def lay(self, worker: int, step: int) -> int | None:
        """The area for that step's update, which is kept until the update is needed no more. None: all are needed."""
        place = self._shelf.put(Update(worker, step), ("update", worker, step), self._plan.of(worker))
        return None if place is None else self._plan.area(place)

    def expect_own(self, order: Release) -> None:
        """Raise NotHere unless the worker has computed the step before, and may go on with its own parameters."""
        if self._ready.get(order.worker) != order.step - 1:
            raise NotHere(f"worker {order.worker} has not computed the step before {order.step}")

    def released(self, order: Release) -> None:
        """Note which of these steps go into the same update as the step before each."""
        worker, begins = order.worker, order.begins
        if (unused := self._next.pop(worker, None)) is not None:
            self.dropped(worker, unused)
        self._own[worker] = {*range(order.step + (not self._goes_on(order)), order.last + 1)} - {begins}
        if begins is not None:
            self._next[worker] = begins

    def areas(self, order: Release) -> tuple[int, int] | None:
        """The areas for the update of these steps, and for the one that the last of them begin, -1 if none do so.

        They are kept until the update is needed no more. None: the worker's places are all needed.
        """
        worker, begins = order.worker, order.begins
        first = self._area(worker, order.step - self._goes_on(order))
        last = -1 if begins is None else self._area(worker, begins)
        return None if first is None or last is None else (first, last)

    def _area(self, worker: int, step: int) -> int | None:
        there = self._shelf.has(Update(worker, step))
        return self._plan.area(self._shelf.place(Update(worker, step))) if there else self.lay(worker, step)

    def _goes_on(self, order: Release) -> bool:
        """Whether the first of these steps is in the same update as the step before, which was not pushed."""
        worker, before = order.worker, order.step - 1
        if not self._in_rounds() or (worker, before) in self._scales:
            return False
        return before in self._on_the_way.get(worker, ()) or self._shelf.has(Update(worker, before))

    def computed(self, worker: int, step: int) -> None:
        """The worker's step is computed. If it is in the same update as the one before, that goes by its name now."""
        if self._next.get(worker) == step:
            del self._next[worker]
        if step in (own := self._own.get(worker, set())):
            own.discard(step)
            before = Update(worker, step - 1)
            if self._shelf.has(before):
                self._shelf.name(Update(worker, step), before, ("update", worker, step))
            self.dropped(worker, step - 1)

    def when_free(self, worker: int, call: Callable[[], None]) -> None:
        """Call once, when one of the worker's places is free."""
        self._awaiting[worker] = call

    def waited_for(self, worker: int) -> Updates:
        """The worker's updates that others wait for."""
        coming = tuple(self._on_the_way.get(worker, ()))
        laid = tuple(self._laid(worker))
        full = len(laid) == len(self._plan.of(worker))
        return Updates(coming=coming, in_the_way=laid if worker in self._awaiting else (), full=full)

    def ready(self, worker: int, step: int) -> None:
        """The step's update lies in its place, and is about to be pushed."""
        self._on_the_way.setdefault(worker, {})[step] = None
        self._ready[worker] = step

    def carry_out(self, order: StartPush) -> None:
        """The worker's update is on its way to the hosts that make versions. Raises NotHere if there is none."""
        worker, step = order.worker, order.step
        area = self._plan.area(self._shelf.place(Update(worker, step)))
        self._lacking.setdefault(worker, {})[step] = _Lacking(area, order.scale)
        self._scales[worker, step] = order.scale

    def comes(self, order: StartPush) -> None:
        """The same of a worker of another host: its update has a place here, too. Raises NotHere if it is not ready."""
        worker, step = order.worker, order.step
        if step not in self._on_the_way.get(worker, {}):
            raise NotHere(f"{Update(worker, step)} is not here")
        if not self._shelf.has(Update(worker, step)):
            self.lay(worker, step)
        self._scales[worker, step] = order.scale

    def arrived(self, worker: int, step: int, at: float) -> UpdateArrived:
        """All hosts that make versions have the update, since that moment. Return the fact."""
        self._on_the_way.get(worker, {}).pop(step, None)
        return UpdateArrived(worker=worker, step=step, at=at)

    def applied(self, order: ApplyUpdate) -> Pushed:
        """That version is ordered. Return its updates, each with its weight."""
        pushed: list[tuple[Update | Sum, float]] = []
        for worker, step, weight in order.contributions:
            update = Update(worker, step)
            self._shelf.place(update)  # NotHere is told as the order comes
            pushed.append((update, weight * self._scales[worker, step]))
            self.ordered(worker, step, order.version)
        return pushed

    def ordered(self, worker: int, step: int, version: int) -> None:
        """That version will have the worker's update."""
        if step in (lacking := self._lacking.get(worker, {})):
            lacking[step].version = version

    def lacking(self, worker: int, version: int) -> list[tuple[int, float]]:
        """What the worker has pushed and that version lacks: (area, scale), in the order of the steps.

        What the version has is forgotten, as a worker is released on no older one. What it lacks is still in its area,
        even where its place is free: the worker writes into none until it has computed the next step.
        """
        pushed = self._lacking.get(worker, {})
        for step, one in list(pushed.items()):
            if one.version is not None and one.version <= version:
                del pushed[step]
        return [(one.area, one.scale) for one in pushed.values()]

    def dropped(self, worker: int, step: int) -> None:
        """The step's update is in a version by now, or will be in none: its place is free."""
        self._on_the_way.get(worker, {}).pop(step, None)
        self._shelf.release(("update", worker, step))
        self._scales.pop((worker, step), None)
        self._on_dropped(Update(worker, step))
        if (
            step in (pushed := self._lacking.get(worker, {})) and pushed[step].version is None
        ):  # no version will have it
            del pushed[step]
        if (awaiting := self._awaiting.pop(worker, None)) is not None:
            awaiting()

    def forget(self, worker: int) -> None:
        """None of the worker's updates is needed any more."""
        for step in self._laid(worker):
            self._shelf.release(("update", worker, step))

    def left(self, worker: int, unapplied: Sequence[int] = ()) -> None:
        """The worker takes no part any more. What it has computed may still be needed.

        `unapplied`: steps that a replica may yet make, or a group average. They are dropped by an order, or made.
        """
        self._awaiting.pop(worker, None)
        needed = {*unapplied, *self._on_the_way.get(worker, ())}
        for step in self._laid(worker):
            if step not in needed and (worker, step) not in self._scales:
                self.dropped(worker, step)

    def returns(self, worker: int) -> None:
        """A new process begins as this worker. It has pushed nothing, and what nobody asked for is not needed."""
        self._lacking.pop(worker, None)
        for step in self._laid(worker):
            if (worker, step) not in self._scales:
                self.dropped(worker, step)

    def gone(self, worker: int) -> None:
        """The worker's process has ended: no update of it is still to arrive."""
        self._on_the_way.pop(worker, None)

    def _laid(self, worker: int) -> list[int]:
        there = [item for place in self._plan.of(worker) for item in self._shelf.at(place)]
        return [item.step for item in there if isinstance(item, Update)]
