"""Updates of several own steps, as the head sees to them. A worker makes its own, unasked or as its push is ordered."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.orders import Release, StartPush
from paceline.ipc import messages


class OwnSteps:
    """Asks workers to make updates. Pure.

    A worker at its round's end makes its update unasked. It may have no time to listen, or be far away.
    """

    def __init__(
        self,
        send: Callable[[int, messages.Message], None],
        made: Callable[[StartPush], object],
        overlaps: Callable[[], bool],
    ) -> None:
        """`send(worker, message)` tells a worker. `made` is told of each push whose update is there.

        `overlaps()`: whether a worker computes on in its round as its update is pushed.
        """
        self._send = send
        self._made = made
        self._overlaps = overlaps
        self._asked: dict[int, StartPush] = {}
        """By worker that was asked: the order."""
        self._unasked: dict[int, set[int]] = {}
        """By worker: the last steps of updates that it has made without being asked, and that are not pushed."""
        self._after: dict[int, list[Callable[[], object]]] = {}
        """By worker in a round of own steps: what is to be done at the round's end."""

    def released(self, order: Release) -> None:
        """The worker begins a round of own steps, or goes on in it."""
        if order.parameters != "own":
            self.ends(order.worker)
        self._after.setdefault(order.worker, [])

    def after(self, worker: int, do: Callable[[], object]) -> None:
        """Call `do` as the worker has come to its round's end, or takes no part any more."""
        if worker in self._after:
            self._after[worker].append(do)
        else:
            do()

    def ends(self, worker: int) -> None:
        """The worker has come to its round's end."""
        for do in self._after.pop(worker, ()):
            do()

    def push(self, order: StartPush) -> None:
        """Have the worker make this update."""
        if order.step in (unasked := self._unasked.get(order.worker, set())):
            unasked.discard(order.step)
            self._made(order)
        else:
            self._asked[order.worker] = order
            self._send(order.worker, messages.worker.MakeUpdate(order.step))
        if not self._overlaps():
            self.ends(order.worker)

    def made(self, worker: int, step: int) -> None:
        """The worker's update up to that step is there."""
        if worker in self._asked and self._asked[worker].step == step:
            self._made(self._asked.pop(worker))
        else:
            self._unasked.setdefault(worker, set()).add(step)

    def awaits(self, worker: int) -> bool:
        """Whether the worker was asked for an update, and has not made it."""
        return worker in self._asked

    def left(self, worker: int) -> None:
        """The worker takes no part any more."""
        self._asked.pop(worker, None)
        self._unasked.pop(worker, None)
        self.ends(worker)
