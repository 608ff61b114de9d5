"""What the head's host keeps for workers of other hosts: versions that they fetch, and places for their updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.core.items import Version
from paceline.core.orders import Release, StartPull, StartPush
from paceline.host.events import AwaitsVersion
from paceline.host.orders.pulls import ahead
from paceline.host.orders.pushes import Pushes
from paceline.host.orders.releases import step_of
from paceline.host.version_items import Versions
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState


class ForOthers:
    """Claims what a worker of another host needs, as that host claims it there."""

    def __init__(
        self,
        shelf: Shelf,
        pushes: Pushes,
        versions: Versions,
        seats: Mapping[int, WorkerState],
        report: Callable[[AwaitsVersion], object],
        *,
        stored: Callable[[], bool],
    ) -> None:
        """`stored()`: whether versions are with a store now."""
        self._shelf = shelf
        self._pushes = pushes
        self._versions = versions
        self._seats = seats
        self._report = report
        self._stored = stored

    def carry_out(self, order: Release | StartPull | StartPush) -> None:
        """Keep what the order is about. Raises NotHere if an update is not ready."""
        match order:
            case Release(parameters="own") if self._stored():
                self._pushes.released(order)
            case Release(parameters="own"):  # its host has all that it computes on
                self._seats[order.worker].released = order.step
                self._pushes.forget(order.worker)
                self._pushes.lay(order.worker, order.step)
            case Release():
                self._released(order)
            case StartPull(worker=worker, version=number):
                self._shelf.claim(ahead(worker), Version(number))
            case StartPush():
                self._pushes.comes(order)

    def _released(self, order: Release) -> None:
        worker, version = order.worker, Version(order.version)
        self._pushes.released(order)
        self._shelf.claim(step_of(worker), version)
        if order.parameters == "pull" or version in self._shelf.claimed(ahead(worker)):
            self._shelf.release(ahead(worker))
        if order.parameters == "pull" and order.version > self._versions.newest:
            self._report(AwaitsVersion(worker, order.version))
