"""Parameters that lie side by side in a push area, in buckets whose gradients leave together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from paceline.training.layout import Layout


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters side by side in a push area, and their bytes, up to what follows the last one."""

    begin: int
    end: int
    numbers: tuple[int, ...]


def buckets_of(layout: Layout, size: int, numbers: Collection[int] | None = None) -> list[Bucket]:
    """Group parameters into buckets of `size` bytes or somewhat more, in the order of a push area.

    `numbers`: only these; None: all. A bucket has no other parameter's bytes.
    """
    order = sorted(range(len(layout.moving)), key=lambda number: layout.moving[number].offset)
    ends = [*(layout.moving[number].offset for number in order[1:]), layout.flags_offset]
    buckets: list[Bucket] = []
    run: list[int] = []
    begin = 0
    for number, end in zip(order, ends, strict=True):
        if numbers is not None and number not in numbers:
            if run:
                buckets.append(Bucket(begin, layout.moving[number].offset, tuple(run)))
                run = []
            continue
        begin = begin if run else layout.moving[number].offset
        run.append(number)
        if end - begin >= size:
            buckets.append(Bucket(begin, end, tuple(run)))
            run = []
    if run:
        buckets.append(Bucket(begin, layout.flags_offset, tuple(run)))
    return buckets


class Filling:
    """Tells when a bucket has all of a step's gradients."""

    def __init__(self, buckets: Sequence[Bucket], counted: Collection[int] | None = None) -> None:
        """`counted`: the parameters that are waited for; None: all."""
        self._bucket_of = {number: bucket for bucket in buckets for number in bucket.numbers}
        self._counts = {
            bucket: sum(counted is None or number in counted for number in bucket.numbers) for bucket in buckets
        }
        self._lacking = dict(self._counts)

    def came(self, number: int) -> Bucket | None:
        """Count this parameter's gradient. Return its bucket if that is full now."""
        bucket = self._bucket_of[number]
        self._lacking[bucket] -= 1
        return None if self._lacking[bucket] else bucket

    def full(self, bucket: Bucket) -> bool:
        """Return whether the bucket has all of its gradients."""
        return not self._lacking[bucket]

    def awaits_none(self, bucket: Bucket) -> bool:
        """Return whether the bucket is full from a step's beginning, as none of its parameters is waited for."""
        return not self._counts[bucket]

    def empty(self) -> None:
        """Begin a step."""
        self._lacking = dict(self._counts)
