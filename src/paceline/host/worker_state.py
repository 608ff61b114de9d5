"""What a host keeps of one of its workers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from paceline.host.contract import NotHere


@dataclass(slots=True)
class WorkerState:
    """A worker's seat at its host."""

    worker: int
    elsewhere: bool = False
    """Whether its process is on another host."""
    running: bool = True
    """Whether its process runs, as its host knows."""
    here: bool = True
    """The same, as the head knows."""
    died: bool = False
    """Whether its process has ended before its script had, while it took part."""
    joined: int = 0
    """How many workers had joined before it, and itself; 0: it was there as training began."""
    begun: bool = False
    """Whether its host has told it to go on after `prepare`."""
    trains: bool = False
    """Whether it takes part."""
    trained: bool = False
    """Whether it takes part, or did: its script has something to hand over."""
    step: int | None = None
    """The step that its host has told it to compute last, until that is computed."""
    last: int = -1
    """The last step that it may compute by that."""
    released: int | None = None
    """The step that it was last released for, until the head hears what has become of it."""
    scalars: list[dict[str, Any]] = field(default_factory=list)
    """Its optimizer's hyperparameters as of its last update."""
    accelerator: bool = False
    """Whether it computes on a GPU, so that one core is what it keeps busy."""


class WorkerStates(dict[int, WorkerState]):
    """By worker."""

    def __missing__(self, worker: int) -> WorkerState:
        """Say that the host has no such worker."""
        raise NotHere(f"there is no worker {worker} here")


def idle_cores(seats: Iterable[WorkerState], threads: int) -> int:
    """Return how many cores no worker of this host computes on now. `seats` are its own, with so many threads each."""
    busy = sum(1 if seat.accelerator else threads for seat in seats if seat.step is not None)
    return len(os.sched_getaffinity(0)) - busy
