"""The coordinator's side of the store: one commit at a time, in order. Releases wait for their version."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.core.orders import ApplyUpdate
from paceline.fabric.unix import Channel
from paceline.runtime import messages
from paceline.runtime.outbox import Outbox
from paceline.runtime.slots import Slots

MOST_THREADS = 2  # one core gets 75 % of this memory's bandwidth (docs/performance.md)


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A commit that waits for its turn."""

    order: ApplyUpdate
    pushed: list[tuple[int, float]]
    scalars: list[dict[str, Any]] | None


class StoreClient:
    """Turns the machine's orders of versions into commits into slots, and counts which slots are needed.

    The machine is ahead of the store: it orders versions that are not made yet. Callbacks that need a version are
    called when it is made.
    """

    def __init__(
        self,
        channel: Channel,
        outbox: Outbox,
        slots: int,
        *,
        idle_cores: Callable[[], int],
        timed: Callable[[int, float], None],
        applied: Callable[[ApplyUpdate], None],
        made: Callable[[int, float], None],
        checked: Callable[[int, int], None],
        written: Callable[[int, str, float | None], None],
        not_finite: Callable[[ApplyUpdate, str, int | None], bool],
    ) -> None:
        """`idle_cores()` are those that the store may use in addition to its own.

        When a version is there, these are called, in this order: `timed(version, at)`,
        `checked(version, checksum)`, `applied(order)`, the callbacks that wait for it, and `made(version, at)`.
        `written(version, sha256, distance)` has None for the distance unless a mean was written.
        `not_finite(order, parameter, worker)` says whether to go on looking.
        """
        self.channel = channel
        self._outbox = outbox
        self.slots = Slots(slots)
        self._idle_cores = idle_cores
        self._timed = timed
        self._applied = applied
        self._made = made
        self._checked = checked
        self._written = written
        self._not_finite = not_finite
        self._look = True
        self._used = {0}
        """Slots that a version has been in."""
        self._orders: deque[_Ordered] = deque()
        self._committing: tuple[ApplyUpdate, int] | None = None
        self._waiting: dict[int, list[Callable[[int], None]]] = {}
        self._known_scalars: list[dict[str, Any]] | None = None
        self._writing = 0
        self.lost = False
        """Whether the store has gone."""

    @property
    def idle(self) -> bool:
        """Whether all orders are done."""
        return not (self._orders or self._committing or self._writing)

    @property
    def busy_with(self) -> str | None:
        """What the store is doing, if anything."""
        if self._committing:
            return f"making version {self._committing[0].version}"
        return "writing a version to disk" if self._writing else None

    def apply(self, order: ApplyUpdate, pushed: list[tuple[int, float]], scalars: list[dict[str, Any]] | None) -> None:
        """Make that version, after those ordered before, from these push areas, each with its weight.

        `scalars` are the optimizer's hyperparameters from then on; None: they stay as they are.
        """
        if not self.lost:
            self._orders.append(_Ordered(order, pushed, scalars))
            self._go_on()

    def when_made(self, version: int, call: Callable[[int], None]) -> None:
        """Claim that version, and call with its slot once it is whole. Every claim must be ended."""
        self.slots.claim(version)
        if version <= self.slots.newest:
            call(self.slots.where[version])
        else:
            self._waiting.setdefault(version, []).append(call)

    def unclaim(self, version: int) -> None:
        """End that claim."""
        self.slots.unclaim(version)
        self._go_on()

    def want_state(self, worker: int) -> None:
        """Have the optimizer's state sent for that worker, as of the newest version."""
        self._send(messages.SendState(worker))

    def adopt(self, slot: int, descriptors: list[int]) -> None:
        """The first version is in that slot from now on. The optimizer's state may come along."""
        self.slots.moved(0, slot)
        self._used.add(slot)
        self._send(messages.Adopt(), tuple(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)

    def record(self, order: messages.Record) -> None:
        """Write a version that is made. Its slot is kept meanwhile."""
        if not self.lost:
            self.slots.claim(order.version)
            self._writing += 1
            self._send(order)

    def record_mean(self, order: messages.RecordMean) -> None:
        """Make the mean of these replicas, whose areas are kept meanwhile, and write it."""
        if not self.lost:
            self._writing += 1
            self._send(order)

    def handle(self, message: messages.Committed | messages.Recorded | messages.MeanRecorded, at: float) -> None:
        """The store has said this, heard at that moment."""
        if isinstance(message, messages.MeanRecorded):
            self._writing -= 1
            self._written(message.version, message.sha256, message.distance)
            return
        if isinstance(message, messages.Recorded):
            self._writing -= 1
            self._written(message.version, message.sha256, None)
            self.unclaim(message.version)
            return
        assert self._committing is not None
        order, slot = self._committing
        self._committing = None
        self._timed(order.version, at)
        if message.not_finite is not None:
            self._look = self._not_finite(order, *message.not_finite)
        self.slots.committed(order.version, slot)
        self._checked(order.version, message.checksum)
        self._applied(order)
        for call in self._waiting.pop(order.version, ()):
            call(slot)
        self._made(order.version, at)
        self._go_on()

    def lose(self) -> None:
        """The store has gone: its orders will not be done."""
        self.lost = True
        self._orders.clear()
        self._waiting.clear()
        self._committing, self._writing = None, 0

    def end(self) -> None:
        """Tell the store to end, and close the channel."""
        self._send(messages.Quit())
        self._outbox.forget()  # the store also ends when it finds the channel closed
        self.channel.close()

    def _go_on(self) -> None:
        if self._committing or not self._orders:
            return
        target = self.slots.free()
        if target is None:
            return  # until the reader or writer of the oldest version is done, and calls here again
        ordered = self._orders.popleft()
        scalars = None if ordered.scalars == self._known_scalars else ordered.scalars
        self._committing = ordered.order, target
        self._send(
            messages.Commit(
                version=ordered.order.version,
                source=self.slots.where[self.slots.newest],
                target=target,
                pushed=ordered.pushed,
                scalars=scalars,
                threads=min(MOST_THREADS, max(1, self._idle_cores())),
                look=self._look,
                first=target not in self._used,
            )
        )
        self._used.add(target)
        self._known_scalars = ordered.scalars

    def _send(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        self._outbox.send(message, descriptors)
