"""What a coordinator and a host say to each other.

Only names and plain data cross: no place, no descriptor, no object that both change. So a host may be on another
machine. Workers' messages go by way of their host, which does what they say of items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core.choice import Choice
from paceline.ipc import messages

STORE, SUMS, MEANS = "the parameter store", "the process that adds up", "the process that records versions"
"""Names of the process that computes for a host: it makes versions, only adds up updates, or writes means."""


def called(choice: Choice) -> str:
    """Return what the head's process is called under that protocol. Where workers only own replicas, no store is."""
    return STORE if choice.has_store else MEANS


class NotHere(KeyError):
    """An order is about an item or a worker that the host does not have."""

    def __str__(self) -> str:
        """Return the sentence. KeyError would quote it."""
        return str(self.args[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a host has come with its orders."""

    idle: bool
    """Whether all versions that were ordered are made, and written if they were to be."""
    settled: bool
    """Whether all steps of replicas and all shares of averages that were ordered are made."""
    averaging: bool
    """Whether a group is averaging: its mean has not taken effect, and it has not failed."""
    averages: int
    """Averages of replicas that have taken effect."""
    busy_with: str | None
    """What the store process is doing, as a sentence that names the process. None: nothing."""
    lost: bool
    """Whether the store process has gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """The updates of one worker that others wait for, by step."""

    coming: tuple[int, ...]
    """They are computed, and have neither arrived nor been dropped."""
    in_the_way: tuple[int, ...]
    """They take all places of the worker, whose next step waits for one of these."""
    full: bool
    """Whether all places of the worker are taken: a process that began as it now would wait for one of them."""
    unapplied: tuple[int, ...] = ()
    """They are computed, and the worker's own replica was neither told to make them nor to go without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What a run goes on from: a snapshot, whole and on disk."""

    folder: str
    version: int
    epoch: int
    """The epoch that scripts go on in."""
    replicas: Sequence[int]
    """Workers whose replicas it has."""
    kept: Mapping[int, int]
    """By worker: the worker whose kept objects it gets, which is itself if the snapshot has them."""


@dataclass(frozen=True, slots=True)
class SwitchVersion:
    """The version that a switch makes for the next part to begin with, and how it is written."""

    version: int
    workers: Sequence[int]
    """Whose replicas it is the mean of, or whose buffers it has."""
    file: str
    buffers: str
    known: messages.store.WorkersTold
