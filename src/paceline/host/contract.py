"""What a coordinator and a host say to each other.

Only names and plain data cross: no place, no descriptor, no object that both change. So a host may be on another
machine. Workers' messages go by way of their host, which does what they say of items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.core.facts import Fact
from paceline.core.machine import Spec
from paceline.core.orders import Order
from paceline.core.shards import Shard
from paceline.ipc import messages

STORE, SUMS, MEANS = "the parameter store", "the process that adds up", "the process that records versions"
"""Names of the process that computes for a host: it makes versions, only adds up updates, or writes means."""


def called(spec: Spec) -> str:
    """Return what the head's process is called under that protocol. Where each worker owns a replica, no store is."""
    return STORE if spec.versions == "stored" else MEANS


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
    """What the arithmetic process is doing, as a sentence that names the process. None: nothing."""
    lost: bool
    """Whether the arithmetic process has gone."""


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


class Host(Protocol):
    """What a coordinator asks of a host. Nothing is copied to the coordinator, and nothing is waited for."""

    @property
    def progress(self) -> Progress:
        """How far the host has come."""

    @property
    def shards(self) -> Sequence[Shard]:
        """Who makes which range of each version, from `prepare` on. Empty: the head makes all of it, or nobody does."""

    def updates(self, worker: int) -> Updates:
        """The worker's updates that others wait for."""

    def open(self) -> None:
        """Listen to the workers."""

    def gathers(self) -> Mapping[str, messages.worker.Offered] | None:
        """Have the script begin on hosts without workers. Return what it has brought to `prepare` there, by host.

        None: it is still to come to that on one of them. One on which it can't is lost.
        """

    def prepare(self, worker: int, resumption: Resumption | None = None) -> None:
        """Have this worker, which has come to `prepare`, fork the arithmetic process: `Prepared` is reported.

        A worker that can't do so is ended. Another one may be asked then. `resumption`: what all go on from.
        """

    def why_not(self, workers: Sequence[int]) -> str:
        """Why training can't begin with these workers, once all is prepared. Empty: it can."""

    def begin(self, workers: Sequence[int]) -> None:
        """Let these workers train, from the first version on."""

    def returns(self, worker: int) -> None:
        """A new process begins as this worker, whose process has ended."""

    def admit(self, worker: int, epoch: int, at: float) -> None:
        """Let a worker in that has come to `prepare` while others train. It shows parameters, and takes no part yet.

        Its script goes on to its first step, in that epoch. `at`: the moment, in seconds since the run's start.
        """

    def join(self, worker: int, others: Sequence[int]) -> None:
        """The worker takes part from now on. It gets what the script of the first of these others keeps that is here.

        Where workers own replicas it gets that with its replica, by an order.
        """

    def begin_anew(self, worker: int, version: int | None, file: str) -> None:
        """No worker has a replica that counts: this one's begins as that mean, which is recorded in the file.

        None: as training began, since no mean was recorded.
        """

    def carry_out(self, order: Order, at: float) -> None:
        """Carry out an order about items. It follows from a fact of that moment. Raises NotHere, in one sentence."""

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now, so what the fact says of items takes effect at this moment."""

    def adopt(self, worker: int) -> None:
        """Have the worker write what its script changed the first version to. All begin with that once it has."""

    def edit(self, number: int, file: str) -> None:
        """Write that change of the model's structure to the file, as a worker tells it: `messages.worker.Edited`."""

    def restructure(self, file: str) -> None:
        """Versions from now on have the structure that is in this file."""

    def show_recorded(self, worker: int, message: messages.worker.ToWorker, file: str | None) -> None:
        """Tell the worker this. What is recorded in that file comes along, wherever the worker is.

        Raises RunFailed if the file is there no more.
        """

    def record(
        self,
        version: int,
        workers: Sequence[int],
        file: str,
        buffers: str,
        known: messages.store.WorkersTold = messages.store.UNTOLD,
    ) -> None:
        """Have a version written to that file: `VersionWritten` is reported.

        It is a version that is made, with the buffers of these workers, and what is `known` besides. Where versions are
        means, it is the mean of these workers' replicas as they are now.
        """

    def keep(self, snapshot: int, folder: str, version: int, workers: Sequence[int]) -> Sequence[str]:
        """Have what there is now written into that folder. Return the files' names.

        `SnapshotFileWritten` is reported of each. That is the version, which may be ordered and not made yet, or these
        workers' replicas. What workers pack for the snapshot of this number is written, too.
        """

    def seal(self, state: bytes, old: Sequence[str]) -> None:
        """All files of the snapshot are there: write the last one, `state.json`, and give the folder its name.

        `SnapshotSealed` is reported. These older snapshots are removed.
        """

    def drop(self) -> None:
        """A file of the snapshot can't be made, and all others are there: have them removed."""

    def left(self, worker: int, died: bool) -> None:
        """The worker takes no part any more: what was on the way to it or from it never ends.

        What it shows stays claimed until its process ends, as its script may go on with the model.
        """

    def gone(self, worker: int) -> None:
        """The worker's process has ended, and the coordinator knows it: nothing is kept for the worker any more."""

    def next(self, until: float) -> Fact | None:
        """Return the fact of the earliest fetch that has ended by `until`."""

    def due(self) -> float | None:
        """Seconds until the next fetch ends, if one is under way."""

    def ends(self, worker: int) -> None:
        """The worker's process is told to end. Its end is not put off for what it has said and is still on its way."""

    def wake(self) -> None:
        """The run is to end: have the processes that make and record versions go on if they are stopped."""

    def close(self) -> None:
        """Tell the arithmetic process to end. Whatever is asked of the host after that has no effect."""
