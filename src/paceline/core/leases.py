"""Which worker works on which batch. One epoch is one pass over the data by all workers together.

A batch is leased when a worker's loader asks for it, bound to a step when the step's gradient is ready, and settled
when that update is applied. Batches of a dropped update, or of a worker that leaves, return to the pool. They are
leased again to the next worker that asks, in their own epoch or a later one. So every batch of an opened epoch is
settled once, or counted as missed at the end.

A worker whose loader has processes asks for batches ahead of use. Under `queue`, an idle worker may be given the last
of these. So the first worker asks again when it begins with a batch.

Three ways of dealing:

`queue`   the next batch goes to the next worker that asks, so fast workers take more
`rounds`  by (fetch, worker): the same batch goes to the same worker, whatever the timing. The k-th fetches of all
          workers are neighbours in the stream of epochs, so no round is short where epochs meet
`static`  every worker has a fixed share, 1/n of each epoch, by its rank

A resumed run has a new book, made from what the snapshot kept of the old one. All outstanding batches are dealt again,
each in its own epoch and in order. If nothing else has changed, a worker gets the batches that it would have got.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Any, Literal

from paceline.errors import ConfigError

Dealing = Literal["queue", "rounds", "static"]


@dataclass(frozen=True, slots=True, order=True)
class Batch:
    """One batch of an epoch's order; `index` counts from 0."""

    epoch: int
    index: int


@dataclass(frozen=True, slots=True, order=True)
class JoinedBatch(Batch):
    """Several leased batches that a worker's loader hands out as one. It goes by the first of them."""

    rest: tuple[Batch, ...] = ()


def pairs(batches: Iterable[Batch]) -> list[tuple[int, int]]:
    """Return (epoch, index) of each of these, and of all that is joined in them."""
    found: list[tuple[int, int]] = []
    for batch in batches:
        found.append((batch.epoch, batch.index))
        if isinstance(batch, JoinedBatch):
            found += pairs(batch.rest)
    return found


@dataclass(slots=True)
class Epoch:
    """An opened epoch, and which of its batches are still to be dealt."""

    sizes: list[int]
    """Samples in each batch."""
    digests: list[str]
    """Digests of the order of samples up to each block's end, as the first worker drew it. All must draw the same."""
    start: int
    """Where the epoch begins in the stream of epochs; 0 where dealing does not depend on that."""
    whole: bool
    """Whether its order is known to the last block."""
    shares: dict[int, deque[int]] = field(default_factory=dict)
    """Batches set aside for each worker (`rounds` and `static`)."""
    queue: deque[int] = field(default_factory=deque)
    """Batches for the next worker that asks (`queue`)."""

    def differs(self, digest: str, blocks: int) -> bool:
        """Return whether this digest, after so many blocks, is of another order than the known one."""
        return blocks <= len(self.digests) and digest != self.digests[blocks - 1]


@dataclass(slots=True)
class Leases:
    """The book of leases. Every batch of an opened epoch is in exactly one place in it."""

    dealing: Dealing
    members: list[int]
    """Live workers, ascending: later epochs are shared among these."""
    epochs: dict[int, Epoch] = field(default_factory=dict)
    pool: deque[Batch] = field(default_factory=deque)
    """Batches that have returned, to be leased again."""
    held: dict[int, dict[Batch, None]] = field(default_factory=dict)
    """By worker: batches that it was leased and that are not bound to a step yet."""
    times: dict[Batch, int] = field(default_factory=dict)
    """How often each batch that is not used up was leased, not counting looks."""
    ahead: dict[int, dict[Batch, None]] = field(default_factory=dict)
    """By worker: those of `held` that were leased ahead of use, and that another worker may be given."""
    taken: dict[int, Counter[Batch]] = field(default_factory=dict)
    """By worker: batches that another worker was given since, which this one does not know yet."""
    bound: dict[tuple[int, int], tuple[Batch, ...]] = field(default_factory=dict)
    """By (worker, step), of updates neither applied nor dropped yet."""
    again: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (worker, step), of the same updates: samples of batches that an earlier step of that worker has used up."""
    skipped: int = 0
    """Samples of steps that the script skipped."""
    missed: int = 0
    """Samples of dropped updates that are not leased again."""
    used_up: int = 0
    """Batches of all epochs that were applied, skipped or missed."""
    dealt: int = 0
    """Batches in the epochs opened so far: where the next epoch begins in the stream of epochs."""
    company: list[int] = field(init=False)
    """The workers that the book began with."""
    scattered: bool = False
    """Whether batches may be set aside other than by the rule, as workers have died, joined, or been left out."""
    asked: dict[int, int] = field(default_factory=dict)
    """By worker: the epoch in which it asked last. Not of workers that died."""
    used: set[int] = field(default_factory=set)
    """Epochs of which a batch was in a step, or was skipped."""
    begun_before: set[int] = field(default_factory=set)
    """Epochs that were opened before the run was resumed."""
    unused: set[int] = field(default_factory=set)
    """Epochs in `begun_before` of which no batch was used then, and none was leased since."""
    earlier: dict[Batch, None] = field(default_factory=dict)
    """Batches that were leased before the run was resumed, and are not used up."""

    def __post_init__(self) -> None:
        """Note which workers there are at the beginning."""
        self.company = list(self.members)

    @classmethod
    def resumed(cls, plain: Mapping[str, Any], dealing: Dealing, workers: Sequence[int]) -> Leases:
        """Return the book of a run that is resumed with these workers, from what `plain` returned.

        With the same dealing and workers as before, batches are set aside as before. Otherwise rounds go through all
        outstanding batches as one stream, so none is short where epochs meet.
        """
        leases = Leases(dealing, sorted(workers))
        leases.skipped, leases.missed = plain["skipped"], plain["missed"]
        leases.used_up = plain.get("used_up", 0)
        leases.unused = {*plain.get("unused", ())}
        leases.earlier = {Batch(*pair): None for pair in plain["leased"]}
        leases.epochs = {number: Epoch([], [], 0, True) for number in plain["over"]}
        as_before = not plain["scattered"] and (plain["dealing"], plain["company"]) == (dealing, leases.company)
        leases.dealt = plain["dealt"] if as_before else 0
        for one in plain["epochs"]:
            sizes = [size for size, times in one["sizes"] for _ in range(times)]
            indices = [index for first, stop in one["outstanding"] for index in range(first, stop)]
            start = one["start"] if as_before else 0
            places: Iterable[int] = (start + index for index in indices)
            if dealing == "rounds" and not as_before:
                places, leases.dealt = count(leases.dealt), leases.dealt + len(indices)
                start, leases.scattered = leases.dealt - len(sizes), True
            leases.begun_before.add(one["epoch"])
            opened = leases.epochs[one["epoch"]] = Epoch(sizes, list(one["digests"]), start, one["whole"])
            if dealing == "queue" or not leases.members:
                opened.queue.extend(indices)
                continue
            for place, index in zip(places, indices, strict=False):
                worker = leases.members[place % len(leases.members)]
                opened.shares.setdefault(worker, deque()).append(index)
        return leases

    def plain(self, in_replicas: Collection[tuple[int, int]] = (), unskipped: Collection[Batch] = ()) -> dict[str, Any]:
        """Return what a resumed run needs of this book, as plain data that JSON can hold.

        `in_replicas`: (worker, step) of updates that are bound as they are in one replica only. The snapshot has a copy
        of that replica, so they count as settled. `unskipped`: batches that were skipped before steps that are not in
        the snapshot, so they are dealt again.
        """
        kept = self._bound_for(in_replicas)
        outstanding = self._undone(kept, unskipped)
        over = [number for number in sorted(self.epochs) if self._is_over(number, outstanding)]
        return {
            "dealing": self.dealing,
            "company": list(self.company),
            "scattered": self.scattered,
            "skipped": self.skipped - sum(map(self.size, unskipped)),
            "missed": self.missed,
            "used_up": self.used_up + len(kept) - len(unskipped),
            "dealt": self.dealt,
            "over": over,
            "epochs": [
                {
                    "epoch": number,
                    "sizes": [[size, len(list(same))] for size, same in groupby(opened.sizes)],
                    "digests": list(opened.digests),
                    "start": opened.start,
                    "whole": opened.whole or number < self._left_behind(),
                    "outstanding": _ranges(outstanding[number]),
                }
                for number, opened in sorted(self.epochs.items())
                if number not in over
            ],
            "unused": self._unused(over),
            "leased": [[batch.epoch, batch.index] for batch in self._leased() if batch not in kept],
        }

    def epoch(self, in_replicas: Collection[tuple[int, int]] = (), unskipped: Collection[Batch] = ()) -> int:
        """Return the epoch in which a resumed run goes on: the lowest one that is not used up. See `plain`."""
        outstanding = self._undone(self._bound_for(in_replicas), unskipped)
        return next(number for number in count() if not self._is_over(number, outstanding))

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

    def opens_anew(self, epoch: int, digest: str, blocks: int = 1) -> bool:
        """Return whether the resumed run has another order of that epoch, and forget the old one if so.

        The data or the batch size may have changed. This is allowed as long as no batch of the epoch was used.
        """
        if epoch not in self.unused or not self.epochs[epoch].differs(digest, blocks):
            return False
        for number in [number for number in self.unused if number >= epoch]:
            self.unused.remove(number)
            self.begun_before.remove(number)
            self.dealt -= len(self.epochs.pop(number).sizes)
        self.earlier = {batch: None for batch in self.earlier if batch.epoch in self.epochs}
        return True

    def undrawn(self, worker: int, epoch: int) -> tuple[int, int] | None:
        """Return the (epoch, block) of the order that must be drawn before this worker's next batch, or None."""
        if epoch not in self.epochs:
            return epoch, 0
        opened = self.epochs[epoch]
        if opened.whole or opened.shares.get(worker) or opened.queue or self._returned(epoch):
            return None
        return epoch, len(opened.digests)

    def take(self, worker: int, epoch: int, digest: str, blocks: int = 1, ahead: int = 0) -> Batch | None:
        """Lease the worker its next batch; None when nothing is left for it in this epoch.

        `ahead`: batches that it was leased before and has not begun with.

        A worker that has joined or resumed may begin with epochs that are used up. So it is never given a batch of a
        later epoch than the one in which it asks.

        Raises ConfigError if the worker drew another order of the epoch's first blocks than the others.
        """
        opened = self.epochs[epoch]
        if opened.differs(digest, blocks):
            raise ConfigError(self._differs(worker, epoch))
        self.asked[worker] = epoch
        if share := opened.shares.get(worker):
            return self._lease(worker, Batch(epoch, share.popleft()))
        if opened.queue:
            return self._lease(worker, Batch(epoch, opened.queue.popleft()), ahead)
        if (batch := self._returned(epoch)) is None:
            return None
        self.pool.remove(batch)
        return self._lease(worker, batch, ahead)

    def take_along(self, worker: int, epoch: int, most: int, *, joins: bool = False) -> list[Batch]:
        """Lease the worker up to so many further batches which are set aside for it in this epoch, and known.

        `joins`: the next ones will do as well that are set aside for nobody.
        """
        opened = self.epochs[epoch]
        share = opened.queue if joins and self.dealing == "queue" else opened.shares.get(worker, deque())
        return [self._lease(worker, Batch(epoch, share.popleft())) for _ in range(min(most, len(share)))]

    def take_over(self, worker: int, epoch: int, ahead: int = 0) -> tuple[int, Batch] | None:
        """Give the worker a batch that another worker was leased ahead of use. Return that worker and the batch.

        It is the last batch of the worker that is furthest ahead. A worker that still has batches of its own (see
        `take`) gets none that would leave the other one with fewer. This happens only under `queue`.
        """
        if self.dealing != "queue":
            return None
        most, found = ahead + 1 if ahead else 0, None
        for other, batches in sorted(self.ahead.items()):
            if other != worker and len(batches) > most:
                last = next((batch for batch in reversed(batches) if batch.epoch <= epoch), None)
                most, found = (most, found) if last is None else (len(batches), (other, last))
        if found is None:
            return None
        other, batch = found
        del self.held[other][batch], self.ahead[other][batch]
        self.taken.setdefault(other, Counter())[batch] += 1
        self.held.setdefault(worker, {})[batch] = None
        if ahead:
            self.ahead.setdefault(worker, {})[batch] = None
        return found

    def may_get_more(self, ahead: int) -> bool:
        """Return whether a worker that was given no batch may get one once it has begun with those that it has."""
        return ahead > 0 and self.dealing == "queue"

    def begin(self, worker: int, batch: Batch) -> bool:
        """The worker begins with a batch. Return whether the batch is still its own."""
        if self._was_taken(worker, batch):
            return False
        self.ahead.get(worker, {}).pop(batch, None)
        return True

    def still_with(self, worker: int, batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
        """Return the batches among these that no other worker was given. The worker won't ask about the rest again."""
        return tuple(batch for batch in batches if not self._was_taken(worker, batch))

    def offers(self, worker: int, epoch: int) -> bool:
        """Return whether there may be a batch for this worker in that epoch. It need not be a member yet."""
        opened = self.epochs.get(epoch)
        if opened is None or not opened.whole:
            return True
        return bool(opened.shares.get(worker) or opened.queue or self._returned(epoch))

    def size(self, batch: Batch) -> int:
        """Samples in the batch."""
        return self.epochs[batch.epoch].sizes[batch.index]

    def bind(self, worker: int, step: int, batches: tuple[Batch, ...], again: tuple[Batch, ...] = ()) -> int:
        """Note that these batches are in this step's update. Return their samples.

        `again`: batches in it that the worker has kept and used before. Their samples count again. They are no longer
        leased, so if the update is dropped they neither return nor count as missed.
        """
        self._release(worker, batches)
        self.used.update(batch.epoch for batch in batches)
        self.bound[worker, step] = batches
        if again:
            self.again[worker, step] = sum(map(self.size, again))
        return self.samples(worker, step)

    def knows(self, batch: Batch) -> bool:
        """Return whether this is a batch of an opened epoch."""
        opened = self.epochs.get(batch.epoch)
        return opened is not None and 0 <= batch.index < len(opened.sizes)

    def skip(self, worker: int, batches: tuple[Batch, ...]) -> None:
        """The worker used these batches up in a step that it skipped."""
        self._release(worker, batches)
        self.used.update(batch.epoch for batch in batches)
        self._use_up(batches)
        self.skipped += sum(map(self.size, batches))

    def give_back(self, worker: int, batches: tuple[Batch, ...]) -> None:
        """The worker has fetched these batches, and will not use them."""
        self._release(worker, batches)
        self.pool.extend(batches)

    def put_back(self, worker: int, epoch: int, batches: tuple[Batch, ...]) -> list[Batch]:
        """The worker only looked at these batches, or fetched them ahead, and begins that epoch anew.

        Return those that are undone, as they were not leased again since. They are as if never leased. A batch of
        another epoch, or one that was leased and returned before, goes back to the pool.
        """
        undone: list[Batch] = []
        held = self.held.get(worker, {})
        for batch in reversed(batches):
            if batch in held:
                del held[batch]
                self.ahead.get(worker, {}).pop(batch, None)
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
        """Return the samples in the step's update, while it is neither settled nor dropped."""
        return sum(map(self.size, self.bound.get((worker, step), ()))) + self.again.get((worker, step), 0)

    def join_steps(self, worker: int, steps: range) -> None:
        """These steps are in one update, which has the last one's name."""
        keys, last = [(worker, step) for step in steps], (worker, steps[-1])
        if batches := [batch for key in keys for batch in self.bound.pop(key, ())]:
            self.bound[last] = tuple(batches)
        if samples := sum(self.again.pop(key, 0) for key in keys):
            self.again[last] = samples

    def settle(self, worker: int, step: int) -> int:
        """The step's update is applied. Return its samples."""
        samples = self.samples(worker, step)
        self._use_up(self.bound.pop((worker, step), ()))
        self.again.pop((worker, step), None)
        return samples

    def drop(self, worker: int, step: int, samples: Literal["return", "missed"]) -> None:
        """The step's update is never applied."""
        batches = self.bound.pop((worker, step), ())
        self.again.pop((worker, step), None)
        if samples == "return":
            self.pool.extend(batches)
        else:
            self._use_up(batches)
            self.missed += sum(map(self.size, batches))

    def deal(self, dealing: Dealing) -> None:
        """Deal in this way from now on, unless shares are static.

        Batches that rounds had set aside for a worker are free for all. Those of the newest epoch are dealt in that
        epoch, in its order. Workers may have left earlier epochs behind, so those epochs' batches are dealt in any.
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
        """A worker has joined. It shares in epochs opened from now on, and in older ones through the pool."""
        if worker not in self.members:
            self.scattered = True
            self.members = sorted([*self.members, worker])

    def leave_out(self, worker: int) -> None:
        """A worker takes no part until `join`. Batches set aside for it are free for all."""
        if self.dealing == "static":
            return
        self.scattered = True
        self.members = [member for member in self.members if member != worker]
        for opened in self.epochs.values():
            opened.queue.extend(opened.shares.pop(worker, deque()))

    def leave(self, worker: int, died: bool) -> None:
        """A worker has left. Batches that it holds return, and those set aside for it are free for all.

        If it died, the latter may be leased in later epochs, too. A worker that finished may have left an epoch early
        on purpose. Updates that it pushed stay bound until the machine has applied or dropped them.
        """
        self.members = [member for member in self.members if member != worker]
        if died:
            self.scattered = True
            self.asked.pop(worker, None)
        self.pool.extend(self.held.pop(worker, {}))
        self.ahead.pop(worker, None)
        self.taken.pop(worker, None)
        for number, opened in self.epochs.items():
            share = opened.shares.pop(worker, deque())
            if died:
                self.pool.extend(Batch(number, index) for index in share)
            else:
                opened.queue.extend(share)

    def left_over(self) -> int:
        """Return the samples that were leased and not applied, or were set aside for a worker that died.

        At a run's end these are the missed samples, as no worker was left to take them.
        """
        return self.missed + sum(map(self.size, {**dict.fromkeys(self._returning()), **self.earlier}))

    def _returning(self) -> list[Batch]:
        """Return the batches that have returned, or will return if their steps are dropped."""
        waiting = [*self.pool, *(batch for held in self.held.values() for batch in held)]
        return waiting + [batch for batches in self.bound.values() for batch in batches]

    def _leased(self) -> list[Batch]:
        """Return the batches that were leased, also before the run was resumed, and are not used up."""
        return [*self.times, *(batch for batch in self.earlier if batch not in self.times)]

    def _bound_for(self, updates: Collection[tuple[int, int]]) -> dict[Batch, None]:
        return {batch: None for key in updates for batch in self.bound.get(key, ())}

    def _undone(self, kept: Collection[Batch], unskipped: Collection[Batch]) -> dict[int, list[int]]:
        """Return, by opened epoch, the batches that are not in a snapshot, ascending. See `plain`."""
        outstanding = self._outstanding(without=kept)
        for batch in unskipped:
            outstanding[batch.epoch] = sorted([*outstanding[batch.epoch], batch.index])
        return outstanding

    def _outstanding(self, without: Collection[Batch] = ()) -> dict[int, list[int]]:
        """Return, by opened epoch, its batches that are still to be used, ascending.

        Batches that were never leased don't count once all workers have gone on to later epochs.
        """
        found: dict[int, list[int]] = {number: [] for number in self.epochs}
        for number, opened in self.epochs.items():
            if number >= self._left_behind():
                found[number] += opened.queue
                for share in opened.shares.values():
                    found[number] += share
        for batch in {*self._returning()}.difference(without):
            found[batch.epoch].append(batch.index)
        return {number: sorted(indices) for number, indices in found.items()}

    def _unused(self, over: Collection[int]) -> list[int]:
        """Return the newest opened epochs, back to the first of which a batch was used."""
        unused: list[int] = []
        for number in sorted(self.epochs, reverse=True):
            if number in self.used or number in over or number in self.begun_before:
                break
            unused.append(number)
        return unused

    def _is_over(self, number: int, outstanding: Mapping[int, list[int]]) -> bool:
        """Return whether that epoch is used up."""
        opened = self.epochs.get(number)
        return opened is not None and not outstanding[number] and (opened.whole or number < self._left_behind())

    def _left_behind(self) -> int:
        """Return the first epoch in which a worker may still ask. One that is left out may come back to its own."""
        return min((dict.fromkeys(self.members, 0) | self.asked).values(), default=0)

    def _returned(self, epoch: int) -> Batch | None:
        """Return the first batch in the pool that can be leased in this epoch."""
        return next((batch for batch in self.pool if batch.epoch <= epoch), None)

    def _differs(self, worker: int, epoch: int) -> str:
        """Say how the worker's order of that epoch differs from the known one."""
        if epoch in self.begun_before:
            sizes = self.epochs[epoch].sizes
            return (
                f"the run goes on within epoch {epoch}, which began with {sum(sizes)} samples in batches of "
                f"{sizes[0]}, and worker {worker} drew another order of it: the data, the batch size or the sampler "
                "has changed; go on with those of before, or from a run that has come to an epoch's end"
            )
        return (
            f"worker {worker} drew another order of samples for epoch {epoch} than the worker that opened it; a "
            "sampler must depend on nothing but torch's, numpy's and Python's global seeds"
        )

    def _was_taken(self, worker: int, batch: Batch) -> bool:
        taken = self.taken.get(worker)
        if not taken or not taken[batch]:
            return False
        taken[batch] -= 1
        return True

    def _lease(self, worker: int, batch: Batch, ahead: int = 0) -> Batch:
        self.held.setdefault(worker, {})[batch] = None
        if ahead and self.dealing == "queue":
            self.ahead.setdefault(worker, {})[batch] = None
        self.times[batch] = self.times.get(batch, 0) + 1
        self.unused.discard(batch.epoch)
        return batch

    def _release(self, worker: int, batches: tuple[Batch, ...]) -> None:
        held = self.held.get(worker, {})
        ahead = self.ahead.get(worker, {})
        for batch in batches:
            del held[batch]
            ahead.pop(batch, None)

    def _use_up(self, batches: tuple[Batch, ...]) -> None:
        self.used_up += len(batches)
        for batch in batches:
            self.times.pop(batch, None)
            self.earlier.pop(batch, None)


def _ranges(indices: Iterable[int]) -> list[list[int]]:
    """Write ascending whole numbers as ranges: the first of each, and the one after its last."""
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1][1] += 1
        else:
            ranges.append([index, index + 1])
    return ranges
