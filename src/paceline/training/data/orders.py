"""The order of an epoch's samples: drawn whole, or block by block where that would take too long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

from torch.utils.data import BatchSampler

from paceline.core.leases import Batch, JoinedBatch
from paceline.errors import ConfigError
from paceline.training.seeding import drawing_alone, order_digest, plain_ids, seed_block, seed_epoch

AT_ONCE = 10_000_000
"""Samples. A longer epoch, or one of an unknown length, is drawn block by block."""
BLOCK = 1024
"""Batches in a block."""
KEPT = 64
"""Blocks of an epoch that are kept. An earlier block is drawn again if a batch of it returns."""


@dataclass(frozen=True, slots=True)
class Block:
    """Batches of sample ids that follow one another in an epoch."""

    order: list[list[Any]]
    """As the sampler gave them. See `plain_ids`."""
    digest: str
    """Of this block and all before it."""
    last: bool
    """Whether the epoch ends with it."""


@dataclass(slots=True)
class _Epoch:
    number: int
    rest: Iterator[Any] | None = None
    """What the sampler has not given yet; None if it was never asked, or was asked for another epoch since."""
    ahead: list[Any] = field(default_factory=list)
    """The first batch of the next block, if there is one. It shows whether this block is the last."""
    drawn: int = 0
    """Blocks drawn since `rest` began."""
    digests: list[str] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)
    samples: int | None = None
    """Samples in the whole epoch, if known; from the first block on."""
    size: int = 1
    """Samples in its first batch. Where batches are cut, others have as many pieces for as many samples."""


class Orders:
    """The orders of a batch sampler under a seed. Equal for every worker that has the same sampler."""

    def __init__(self, sampler: Any, seed: int, pieces: int = 1) -> None:
        """`pieces`: into how many pieces each of its batches is cut. They are the batches here."""
        self._sampler = sampler
        self._pieces = pieces
        self._seed = seed
        self._by_block = in_blocks(sampler)
        self._epochs: dict[int, _Epoch] = {}
        """The last two epochs that were needed."""

    def known(self, epoch: int) -> tuple[int, str]:
        """Return how many blocks of that epoch are drawn, and the digest of them all. Draw the first one if needed."""
        found = self._epoch(epoch)
        if not found.digests:
            self.block(epoch, 0)
        return len(found.digests), found.digests[-1]

    def block(self, epoch: int, number: int) -> Block:
        """That block of the epoch."""
        found = self._epoch(epoch)
        if number not in found.blocks:
            if found.rest is None or number < found.drawn:
                self._begin(found)
            while found.drawn <= number:
                self._draw(found)
        return found.blocks[number]

    def ids(self, batch: Batch) -> list[Any]:
        """The samples in that batch."""
        if isinstance(batch, JoinedBatch):
            return [*self.ids(Batch(batch.epoch, batch.index)), *(one for part in batch.rest for one in self.ids(part))]
        number, place = divmod(batch.index, BLOCK) if self._by_block else (0, batch.index)
        return self.block(batch.epoch, number).order[place]

    def samples(self) -> int | None:
        """Samples in the first epoch; None if its length is not known."""
        return expected(self._sampler) if self._by_block else sum(map(len, self.block(0, 0).order))

    def expected(self, epoch: int) -> int | None:
        """Samples in that epoch; None if that is unknown."""
        self.known(epoch)
        return self._epoch(epoch).samples

    def _epoch(self, number: int) -> _Epoch:
        if number not in self._epochs:
            self._epochs = {number: _Epoch(number), **dict(list(self._epochs.items())[:1])}
        return self._epochs[number]

    def _begin(self, epoch: _Epoch) -> None:
        for other in self._epochs.values():
            other.rest = None  # the sampler's generator is another epoch's now
        epoch.drawn, epoch.ahead = 0, []
        seed_epoch(self._sampler, self._seed, epoch.number)
        epoch.rest = iter(self._sampler)

    def _at_once(self, epoch: _Epoch) -> int | None:
        """Batches that are drawn next; None: all that are left."""
        return max(0, BLOCK + 1 - len(epoch.ahead)) if self._by_block else None

    def _draw(self, epoch: _Epoch) -> None:
        assert epoch.rest is not None  # it has begun
        if epoch.drawn:
            seed_block(self._seed, epoch.number, epoch.drawn)
        with drawing_alone(self._sampler, self._seed, epoch.number):
            batches = list(map(list, islice(epoch.rest, self._at_once(epoch))))
        if self._pieces > 1:
            if batches and not epoch.drawn:
                epoch.size = self._whole(batches[0])
            batches = [piece for batch in batches for piece in cut(batch, len(batch) * self._pieces // epoch.size)]
        drawn = [*epoch.ahead, *batches]
        order, epoch.ahead = (drawn[:BLOCK], drawn[BLOCK:]) if self._by_block else (drawn, [])
        digest = order_digest(
            [plain_ids(batch) for batch in order], epoch.digests[epoch.drawn - 1] if epoch.drawn else ""
        )
        if epoch.drawn == len(epoch.digests):
            epoch.digests.append(digest)
        if not epoch.digests[1:]:
            epoch.samples = expected(self._sampler) if epoch.ahead else sum(map(len, order))
        epoch.blocks[epoch.drawn] = Block(order, digest, not epoch.ahead)
        epoch.blocks = dict(list(epoch.blocks.items())[-KEPT:])
        epoch.drawn += 1

    def _whole(self, first: list[Any]) -> int:
        """Return the length of an epoch's first batch, as long as its pieces have two samples: BatchNorm needs them."""
        if len(first) >= 2 * self._pieces:
            return len(first)
        raise ConfigError(
            f"batches are cut into {self._pieces} pieces, which are shared out by speed, and the loader's have "
            f"{len(first)} samples; give it a batch_size of {2 * self._pieces} or more, or share out whole batches "
            "(unit=batch)"
        )


def cut(batch: list[Any], pieces: int) -> list[list[Any]]:
    """Cut a batch into so many pieces of nearly the same length. Less than one is one.

    >>> cut([0, 1, 2, 3, 4], 3)
    [[0, 1], [2, 3], [4]]
    """
    pieces = max(1, pieces)
    each, longer = divmod(len(batch), pieces)
    starts = [place * each + min(place, longer) for place in range(pieces + 1)]
    return [batch[begin:end] for begin, end in pairwise(starts)]


def in_blocks(sampler: Any) -> bool:
    """Whether the sampler's epochs are drawn block by block."""
    batches = _length(sampler)
    return batches is None or max(batches, expected(sampler) or 0) > AT_ONCE


def expected(sampler: Any) -> int | None:
    """Return how many samples a batch sampler says that it has; None if it doesn't say."""
    batches = _length(sampler)
    if type(sampler) is not BatchSampler or batches is None:
        return None
    samples = _length(sampler.sampler)
    return batches * sampler.batch_size if sampler.drop_last else samples


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError, OverflowError, ValueError):  # no length, or one too large for `len`
        return None
