"""Versions that the store makes: one commit at a time, in the order of the orders. Whoever needs one waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.items import Beginning, Version
from paceline.core.orders import AdjustTraining, ApplyUpdate
from paceline.host import messages
from paceline.host.arithmetic import Arithmetic
from paceline.host.contract import News
from paceline.host.plan import Plan
from paceline.host.pushes import Pushes
from paceline.host.seat import Seat
from paceline.host.shelf import Shelf

MOST_THREADS = 2  # one core gets 75 % of this memory's bandwidth (docs/performance.md)
NEWEST = ("newest version",)
MAKING = ("version that is being made",)

Scalars = list[dict[str, Any]]
"""An optimizer's hyperparameters, by parameter group."""


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A commit that waits for its turn."""

    order: ApplyUpdate
    pushed: list[tuple[int, float]]
    """(area, weight)."""
    scalars: Scalars | None


class Commits:
    """Carries out `ApplyUpdate` and `AdjustTraining`.

    The machine is ahead of the store: it orders versions that are not made yet.
    """

    def __init__(
        self,
        shelf: Shelf,
        plan: Plan,
        arithmetic: Arithmetic,
        pushes: Pushes,
        news: News,
        *,
        seats: Mapping[int, Seat],
        idle_cores: Callable[[], int],
        steps_in_store: bool,
        rate_scale: float,
    ) -> None:
        """`idle_cores()` are those that the store may use in addition to its own.

        If the store does not step the optimizer, no hyperparameters are sent to it. `rate_scale` is the factor of the
        learning rates until an order says otherwise.
        """
        self.newest = 0
        self._shelf = shelf
        self._plan = plan
        self._arithmetic = arithmetic
        self._pushes = pushes
        self._news = news
        self._seats = seats
        self._idle_cores = idle_cores
        self._steps_in_store = steps_in_store
        self._rate_scale = rate_scale
        self._scales: dict[int, tuple[float, float]] = {}
        """By worker: the factors of its learning rates and its momentum, if they were ordered."""
        self._said: dict[tuple[int, int], Scalars] = {}
        """By worker and step: the hyperparameters, as the worker may have pushed another step by the commit."""
        self._look = True
        self._used: set[int] = set()
        """Places that a version has been in."""
        self._orders: deque[_Ordered] = deque()
        self._committing: ApplyUpdate | None = None
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self._known_scalars: Scalars | None = None

    def begin(self, version: int) -> None:
        """Training begins with that version, which is there or about to be."""
        self.newest = version
        place = self._shelf.put(Version(version), NEWEST, self._plan.shared)
        assert place == 0  # where all have mapped it
        self._used.add(place)

    @property
    def making(self) -> int | None:
        """The version that is being made."""
        return None if self._committing is None else self._committing.version

    @property
    def idle(self) -> bool:
        """Whether all orders are done."""
        return not (self._orders or self._committing)

    def carry_out(self, order: ApplyUpdate | AdjustTraining) -> None:
        """Have the store make that version, or have the versions ordered from now on made with these factors."""
        if isinstance(order, AdjustTraining):
            self._scales[order.worker] = order.learning_rate_scale * self._rate_scale, order.momentum_scale
            return
        pushed = self._pushes.applied(order)
        scalars = self._scaled(*self._longest(order)) if self._steps_in_store else None
        if not self._arithmetic.lost:
            self._orders.append(_Ordered(order, pushed, scalars))
            self.go_on()

    def said(self, worker: int, step: int, scalars: Scalars) -> None:
        """These were the hyperparameters of that worker's step."""
        self._said[worker, step] = scalars

    def dropped(self, worker: int, step: int) -> None:
        """The step's update is in a version by now, or will be in none."""
        self._said.pop((worker, step), None)

    def when_made(self, version: int, call: Callable[[], None]) -> None:
        """Call once that version is whole. Whoever needs it then claims it before."""
        if version <= self.newest:
            call()
        else:
            self._waiting.setdefault(version, []).append(call)

    def adopted(self, worker: int) -> None:
        """The first version is what that worker has written from now on."""
        self._used.add(self._shelf.place(Beginning(worker)))
        self._shelf.replace(Version(0), Beginning(worker))
        self._shelf.claim(NEWEST, Version(0))  # what it was is needed by those only who compute on it

    def record(self, version: int, workers: Sequence[int], file: str, buffers: str) -> None:
        """Have that version, which is made, written with the buffers of these workers."""
        place = self._shelf.place(Version(version))
        self._arithmetic.write(messages.Record(version, place, file, list(workers), buffers), Version(version))

    def committed(self, message: messages.Committed, at: float) -> bool:
        """The store has made the version, heard at that moment. Return whether it was told to."""
        order = self._committing
        if order is None or order.version != message.version:
            return False
        self.newest = order.version
        self._shelf.claim(NEWEST, Version(order.version))
        self._shelf.release(MAKING)
        self._news.committed(order.version, message.checksum, at)
        if message.not_finite is not None:
            self._look = False
            self._news.not_finite(order, *message.not_finite)
        for worker, step, _ in order.contributions:
            self.dropped(worker, step)
            self._pushes.dropped(worker, step)
        for call in self._waiting.pop(order.version, ()):
            call()
        self._committing = None  # only now: what was told may ask to go on, and the next commit comes after all that
        self.go_on()
        return True

    def lost(self) -> None:
        """The store has gone: its orders will not be done."""
        self._orders.clear()
        self._waiting.clear()
        self._shelf.release(MAKING)
        self._committing = None

    def go_on(self) -> None:
        """Begin the next commit, if none is under way."""
        if self._committing or not self._orders:
            return
        ordered = self._orders[0]
        version = ordered.order.version
        target = self._shelf.put(Version(version), MAKING, self._plan.shared)
        if target is None:
            return  # until a version is on disk: no worker's claim can be what it waits for
        self._orders.popleft()
        scalars = None if ordered.scalars == self._known_scalars else ordered.scalars
        self._committing, self._known_scalars = ordered.order, ordered.scalars
        self._arithmetic.send(
            messages.Commit(
                version=version,
                source=self._shelf.place(Version(self.newest)),
                target=target,
                pushed=ordered.pushed,
                scalars=scalars,
                threads=min(MOST_THREADS, max(1, self._idle_cores())),
                look=self._look,
                first=target not in self._used,
            )
        )
        self._used.add(target)

    def _longest(self, order: ApplyUpdate) -> tuple[int, int]:
        """The contribution of the worker that has served longest: one that has joined may have other hyperparameters.

        Of those that began together it is the lowest.
        """
        worker, step, _ = min(order.contributions, key=lambda one: (self._seats[one[0]].joined, one[0], one[1]))
        return worker, step

    def _scaled(self, worker: int, step: int) -> Scalars:
        """The worker's hyperparameters as of that step, with the learning rates and the momentum that hold now."""
        rate, momentum = self._scales.get(worker, (self._rate_scale, 1.0))
        changed = {key: scale for key, scale in (("lr", rate), ("momentum", momentum)) if scale != 1.0}
        return [
            {**group, **{key: group[key] * scale for key, scale in changed.items() if key in group}}
            for group in self._said[worker, step]
        ]
