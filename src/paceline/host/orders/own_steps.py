"""Updates of several own steps, as the head sees to them. A worker makes its own, unasked or as its push is ordered."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.orders import StartPush
from paceline.ipc import messages


class OwnSteps:
    """Asks workers to make updates. Pure.

    A worker at its round's end makes its update unasked. It may have no time to listen, or be far away.
    """

    def __init__(self, send: Callable[[int, messages.Message], None], made: Callable[[StartPush], object]) -> None:
        """`send(worker, message)` tells a worker. `made` is told of each push whose update is there."""
        self._send = send
        self._made = made
        self._asked: dict[int, StartPush] = {}
        """By worker that was asked: the order."""
        self._unasked: dict[int, int] = {}
        """By worker: the last step of the update that it has made without being asked."""
        self._after: dict[int, list[Callable[[], object]]] = {}
        """By worker in a round of own steps: what is to be done at the round's end."""

    def released(self, worker: int) -> None:
        """The worker begins a round of own steps, or goes on in it."""
        self._after.setdefault(worker, [])

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
        if self._unasked.pop(order.worker, None) == order.step:
            self._made(order)
        else:
            self._asked[order.worker] = order
            self._send(order.worker, messages.worker.MakeUpdate())
        self.ends(order.worker)

    def made(self, worker: int, step: int) -> None:
        """The worker's update up to that step is there."""
        if worker in self._asked:
            self._made(self._asked.pop(worker))
        else:
            self._unasked[worker] = step

    def awaits(self, worker: int) -> bool:
        """Whether the worker was asked for an update, and has not made it."""
        return worker in self._asked

    def left(self, worker: int) -> None:
        """The worker takes no part any more."""
        self._asked.pop(worker, None)
        self._unasked.pop(worker, None)
        self.ends(worker)
