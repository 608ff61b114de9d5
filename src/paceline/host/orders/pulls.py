"""Versions on their way to workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.core.facts import Fact, ParametersTaken
from paceline.core.items import Version
from paceline.core.orders import StartPull
from paceline.host.claims import Owner
from paceline.host.version_items import Versions
from paceline.host.version_shelf import Shelf
from paceline.host.worker_state import WorkerState
from paceline.transfer.fetcher import Fetcher


def ahead(worker: int) -> Owner:
    """Who claims the version that was pulled for a later step of that worker."""
    return "pull ahead", worker


class Pulls:
    """Carries out `StartPull`, and the pull that a release begins with."""

    def __init__(
        self,
        shelf: Shelf,
        versions: Versions,
        fetcher: Fetcher,
        seats: Mapping[int, WorkerState],
        *,
        early: bool,
    ) -> None:
        """`early`: whether versions are brought here while other hosts make them."""
        self._early = early
        self._shelf = shelf
        self._versions = versions
        self._fetcher = fetcher
        self._seats = seats

    def carry_out(self, order: StartPull) -> None:
        """Bring the worker a version that a later step is to begin with."""
        if not self._seats[order.worker].trains:  # the machine is about to hear that the worker has left
            return
        self._shelf.claim(ahead(order.worker), Version(order.version))
        self.pull(order.worker, order.version, lambda: None)

    def pull(self, worker: int, version: int, then: Callable[[], None]) -> None:
        """Bring that version to the worker, and go on once it is made. Whoever needs it has claimed it."""
        seat = self._seats[worker]

        def waits() -> bool:
            return seat.trains and self._seats[worker] is seat  # else another process has begun as this worker

        def taken(at: float) -> Fact:
            then()
            return ParametersTaken(worker=worker, version=version, at=at)

        def here(at: float) -> Fact | None:
            if version <= self._versions.newest:
                return taken(at)
            self._versions.when_made(version, made)
            return None

        def made() -> None:
            if waits():
                self._fetcher.fetch(worker, Version(version), taken)

        def begun() -> None:
            if waits():
                self._fetcher.fetch(worker, Version(version), here)

        if self._early:
            self._versions.when_begun(version, begun)
        else:
            self._versions.when_made(version, made)

    def left(self, worker: int) -> None:
        """The worker takes no part any more."""
        self._fetcher.cancel(worker)
        self._shelf.release(ahead(worker))
