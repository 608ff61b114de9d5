"""Which worker works on which batch. One epoch is one pass over the data by all workers together.

A batch is leased when a worker's loader asks for it, bound to a step when the step's gradient is ready,
and settled when that update is applied. Batches of a dropped update, or of a worker that leaves, return to
the pool. They are leased again to the next worker that asks, in whatever epoch that worker is. So every batch of
an opened epoch is settled once, or is still to be counted as missed at the end.

Three ways of dealing:

`queue`   the next batch to the next worker that asks: fast workers take more
`rounds`  by (fetch, worker): the same batch to the same worker, whatever the timing. The k-th fetches of
          all workers are neighbours in the stream of epochs, so no round is short where epochs meet
`static`  every worker its fixed share, the 1/n of each epoch that its rank gives
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from paceline.errors import ConfigError

Dealing = Literal["queue", "rounds", "static"]


@dataclass(frozen=True, slots=True, order=True)
class Batch:
    """One batch of an epoch's order; `index` counts from 0."""

    epoch: int
    index: int


@dataclass(slots=True)
class Epoch:
    """An opened epoch: how its batches are dealt, and how far that has come."""

    sizes: list[int]
    """Samples in each batch."""
    digests: list[str]
    """Of the order of samples up to each block's end, as the first worker drew it. The others must draw the same."""
    start: int
    """Where the epoch begins in the stream of epochs; 0 where dealing does not depend on that."""
    whole: bool
    """Whether the last block of its order is known."""
    shares: dict[int, deque[int]] = field(default_factory=dict)
    """Batches set aside for each worker (`rounds` and `static`)."""
    queue: deque[int] = field(default_factory=deque)
    """Batches for the next worker that asks (`queue`)."""

    def differs(self, digest: str, blocks: int) -> bool:
        """Whether this digest is of another order than the known one, after so many blocks."""
        return blocks <= len(self.digests) and digest != self.digests[blocks - 1]


@dataclass(slots=True)
class Leases:
    """The book of leases. Every batch of an opened epoch is in exactly one place in it."""

    dealing: Dealing
    members: list[int]
    """Live workers, ascending: later epochs are shared among these."""
    epochs: dict[int, Epoch] = field(default_factory=dict)
    pool: deque[Batch] = field(default_factory=deque)
    """Batches that returned, to be leased again."""
    held: dict[int, dict[Batch, None]] = field(default_factory=dict)
    """Leased to each worker, not yet bound to a step."""
    times: dict[Batch, int] = field(default_factory=dict)
    """How often each batch that is not used up was leased; not counting looks."""
    bound: dict[tuple[int, int], tuple[Batch, ...]] = field(default_factory=dict)
    """By (worker, step), of updates neither applied nor dropped yet."""
    skipped: int = 0
    """Samples of steps that the script skipped: consumed, not applied."""
    missed: int = 0
    """Samples of dropped updates that are not leased again."""
    dealt: int = 0
    """Batches in the epochs opened so far: where the next epoch begins in the stream of epochs."""

    def open(self, epoch: int, sizes: list[int], digest: str, last: bool = True) -> None:
        """Open an epoch with these batch sizes, in the order whose digest is given, or go on with its next block."""
        if epoch not in self.epochs:
            self.epochs[epoch] = Epoch([], [], self.dealt if self.dealing == "rounds" else 0, False)
        opened, workers = self.epochs[epoch], self.members
        first, stop = len(opened.sizes), len(opened.sizes) + len(sizes)
        opened.sizes.extend(sizes)
        opened.digests.append(digest)
        opened.whole = last
        if self.dealing == "queue" or not workers:
            opened.queue.extend(range(first, stop))
        else:
            for rank, worker in enumerate(workers):
                begin = first + (rank - opened.start - first) % len(workers)
                opened.shares.setdefault(worker, deque()).extend(range(begin, stop, len(workers)))
        self.dealt += len(sizes)

    def undrawn(self, worker: int, epoch: int) -> tuple[int, int] | None:
        """The (epoch, block) of the samples' order that must be known before this worker is dealt its next batch."""
        if epoch not in self.epochs:
            return epoch, 0
        opened = self.epochs[epoch]
        if opened.whole or opened.shares.get(worker) or opened.queue or self.pool:
            return None
        return epoch, len(opened.digests)

    def take(self, worker: int, epoch: int, digest: str, blocks: int = 1) -> Batch | None:
        """Lease the worker its next batch; None when nothing is left for it in this epoch.

        Raises ConfigError if the worker drew another order of the epoch's samples than the others, in its first blocks.
        """
        opened = self.epochs[epoch]
        if opened.differs(digest, blocks):
            raise ConfigError(
                f"worker {worker} drew another order of samples for epoch {epoch} than the worker that "
                "opened it; a sampler must depend on nothing but torch's, numpy's and Python's global seeds"
            )
        for source in (opened.shares.get(worker), opened.queue):
            if source:
                return self._lease(worker, Batch(epoch, source.popleft()))
        return self._lease(worker, self.pool.popleft()) if self.pool else None

    def size(self, batch: Batch) -> int:
        """Samples in the batch."""
        return self.epochs[batch.epoch].sizes[batch.index]

    def bind(self, worker: int, step: int, batches: tuple[Batch, ...]) -> int:
        """Note that these batches are in this step's update. Return their samples."""
        self._release(worker, batches)
        self.bound[worker, step] = batches
        return sum(map(self.size, batches))

    def skip(self, worker: int, batches: tuple[Batch, ...]) -> None:
        """The worker used them up in a step that it skipped."""
        self._release(worker, batches)
        self._use_up(batches)
        self.skipped += sum(map(self.size, batches))

    def give_back(self, worker: int, batches: tuple[Batch, ...]) -> None:
        """The worker fetched them and will not use them."""
        self._release(worker, batches)
        self.pool.extend(batches)

    def put_back(self, worker: int, epoch: int, batches: tuple[Batch, ...]) -> list[Batch]:
        """The worker only looked at them, or fetched them ahead meanwhile, and begins that epoch anew.

        Return the batches that are now as if never leased: neither leased again since, nor of another epoch. A batch
        that another worker, or an earlier loop, was leased and gave up goes back to where it came from: it stays
        returned.
        """
        undone: list[Batch] = []
        held = self.held.get(worker, {})
        for batch in reversed(batches):
            if batch in held:
                del held[batch]
            elif batch in self.pool:
                self.pool.remove(batch)
            else:
                continue
            undone.append(batch)
            if others := self.times.pop(batch, 1) - 1:
                self.times[batch] = others
            if others or batch.epoch != epoch:
                self.pool.appendleft(batch)
                continue
            opened = self.epochs[epoch]
            opened.shares.get(worker, opened.queue).appendleft(batch.index)
        return undone[::-1]

    def samples(self, worker: int, step: int) -> int:
        """Samples in the step's update, as long as it is neither settled nor dropped."""
        return sum(map(self.size, self.bound.get((worker, step), ())))

    def settle(self, worker: int, step: int) -> int:
        """The step's update is applied. Return its samples."""
        batches = self.bound.pop((worker, step), ())
        self._use_up(batches)
        return sum(map(self.size, batches))

    def drop(self, worker: int, step: int, samples: Literal["return", "missed"]) -> None:
        """The step's update is never applied."""
        batches = self.bound.pop((worker, step), ())
        if samples == "return":
            self.pool.extend(batches)
        else:
            self._use_up(batches)
            self.missed += sum(map(self.size, batches))

    def deal(self, dealing: Dealing) -> None:
        """Deal in this way from now on. A fixed share stays one.

        Batches that rounds had set aside for a worker are free for all. Those of the newest epoch are dealt in that
        epoch, in its order. The others may have left earlier epochs behind, so their batches are dealt in any epoch.
        """
        if self.dealing == "static" or dealing == self.dealing:
            return
        self.dealing = dealing
        newest = max(self.epochs, default=0)
        for number, opened in self.epochs.items():
            indices = sorted(index for share in opened.shares.values() for index in share)
            opened.shares.clear()
            if number == newest:
                opened.queue.extend(indices)
            else:
                self.pool.extend(Batch(number, index) for index in indices)

    def join(self, worker: int) -> None:
        """A worker has joined. Epochs opened from now on are shared with it, older ones through the pool."""
        if worker not in self.members:
            self.members = sorted([*self.members, worker])

    def leave_out(self, worker: int) -> None:
        """A worker takes no part for a while. Batches set aside for it are free for all. `join` brings it back."""
        if self.dealing == "static":
            return
        self.members = [member for member in self.members if member != worker]
        for opened in self.epochs.values():
            opened.queue.extend(opened.shares.pop(worker, deque()))

    def leave(self, worker: int, died: bool) -> None:
        """A worker has left. Batches that it holds return, and those set aside for it are free for all.

        If it died, the latter are leased again in any epoch, too. A worker that finished has had its chance at an
        epoch that it left early. Updates that it pushed stay bound until the machine has applied or dropped them.
        """
        self.members = [member for member in self.members if member != worker]
        self.pool.extend(self.held.pop(worker, {}))
        for number, opened in self.epochs.items():
            share = opened.shares.pop(worker, deque())
            if died:
                self.pool.extend(Batch(number, index) for index in share)
            else:
                opened.queue.extend(share)

    def left_over(self) -> int:
        """Samples that were leased and are not applied, or were set aside for a worker that died.

        At a run's end these are the missed samples: they returned when no worker was left to take them.
        """
        waiting = [*self.pool, *(batch for held in self.held.values() for batch in held)]
        waiting += [batch for batches in self.bound.values() for batch in batches]
        return self.missed + sum(map(self.size, waiting))

    def _lease(self, worker: int, batch: Batch) -> Batch:
        self.held.setdefault(worker, {})[batch] = None
        self.times[batch] = self.times.get(batch, 0) + 1
        return batch

    def _release(self, worker: int, batches: tuple[Batch, ...]) -> None:
        held = self.held.get(worker, {})
        for batch in batches:
            del held[batch]

    def _use_up(self, batches: tuple[Batch, ...]) -> None:
        for batch in batches:
            self.times.pop(batch, None)
