"""What the head's own host has of the head, which commands it without messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline.core.items import Buffers, Sum, Update
from paceline.host.store_process import StoreOwner
from paceline.host.worker_state import WorkerStates
from paceline.ipc import messages
from paceline.transfer.fetcher import Fetcher


class Authority(Protocol):
    """See `Cluster`. It keeps what is known of the whole run, and hears what only the head's process is asked for."""

    seats: WorkerStates
    """Of all workers."""
    deaths_are_told: bool
    """See `GroupAverages`."""

    @property
    def link(self) -> Fetcher:
        """What brings versions to workers where there is no other host."""

    @property
    def store_reports(self) -> StoreOwner:
        """What hears the host's process, but for what each host's process says."""

    def loses(self, why: str) -> None:
        """A range of each version can't be made any more: no version can."""

    def buffers_of(self, total: Sum) -> Sequence[Buffers]:
        """The buffers behind the updates in that sum, which another host makes."""

    def stored(self, item: Update | Sum) -> None:
        """All that the host's range needs of that is here."""

    def own_range_made(self, made: messages.store.Committed) -> None:
        """The host's range of a version is made."""

    def copy_never_comes(self, number: int, why: str) -> None:
        """What was to be copied here by that number does not come."""

    def update_dropped(self, update: Update) -> None:
        """The update is in a version by now, or will be in none."""

    def version_freed(self, version: int) -> None:
        """Nobody needs that version any more."""

    def place_is_free(self) -> None:
        """A place is free that bytes were still to come to."""

    def not_finite(self, parameter: str, worker: int | None) -> None:
        """A gradient that was added up has a NaN or an infinity."""
