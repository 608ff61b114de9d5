"""Where encoded values lie in a push area, and how they come there.

A parameter is encoded in parts of `CHUNK` elements, in the order of memory. So a host that makes a range of each
version needs one range of the encoded bytes. A codec may encode parameters whole, where no host makes a range. Values
that are not float32, and parts that would not become smaller, are copied as they are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.codecs import Codec
from paceline.training.layout import CHUNK, Entry, Layout, aligned


class EncodedPart(NamedTuple):
    """Elements of one parameter that are encoded together."""

    number: int
    """The parameter's."""
    entry: Entry
    """Where they lie in a version, in one dimension."""
    begin: int
    """The first of their encoded bytes. The first part's is 0."""
    end: int
    raw: bool
    """Whether they are copied as they are."""
    shape: tuple[int, ...]
    """The form in which the codec sees them."""
    stride: tuple[int, ...]

    def seen(self, values: Tensor) -> Tensor:
        """These values, which are in one dimension, in that form."""
        return values.as_strided(self.shape, self.stride)


@dataclass(frozen=True, slots=True)
class Encoding:
    """A codec, and the parts of a model's parameters, in the order of a version's bytes."""

    codec: Codec
    parts: tuple[EncodedPart, ...]

    @classmethod
    def of(cls, codec: Codec, layout: Layout) -> Encoding:
        """Lay out what is encoded of this model's parameters."""
        parts: list[EncodedPart] = []
        end = 0
        for number in sorted(range(len(layout.moving)), key=lambda number: layout.moving[number].offset):
            whole = layout.moving[number]
            most = max(1, whole.count) if codec.whole else CHUNK
            for first in range(0, whole.count, most):
                entry = whole.flat(first, min(most, whole.count - first))
                form = whole if codec.whole else entry
                encoded, as_is = codec.size(*form.shape), entry.stop - entry.offset
                raw = entry.dtype != torch.float32 or encoded >= as_is
                size = as_is if raw else encoded
                parts.append(EncodedPart(number, entry, end, end + size, raw, form.shape, form.stride))
                end = aligned(parts[-1].end)
        return cls(codec, tuple(parts))

    @property
    def size(self) -> int:
        """Bytes of all that is encoded."""
        return self.parts[-1].end if self.parts else 0

    @property
    def kept(self) -> int:
        """Bytes of all that is encoded, if the next push begins with that, and else 0."""
        return self.size if self.codec.whole else 0

    def cuts(self, cuts: Sequence[int], start: int) -> list[int]:
        """Return where encoded bytes, the first of which is at `start`, are cut as a version is at these bytes."""
        begins = [*(part.begin for part in self.parts), self.size]
        return [start + begins[bisect_left(self.parts, cut, key=_offset)] for cut in cuts]

    def encode(self, part: EncodedPart, values: Tensor, memory: memoryview, start: int) -> Tensor:
        """Encode that part's values, where all that is encoded begins at the byte `start`. Return what they decode to.

        That is in memory of its own.
        """
        into = _encoded(part, memory, start)
        if part.raw:
            into.copy_(values.view(torch.uint8))
        else:
            self.codec.encode(part.seen(values), into)
        return self._decode(part, into, torch.empty_like(values))

    def decode(
        self,
        memory: memoryview,
        start: int,
        into: memoryview,
        target: int,
        present: Sequence[int],
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        """Decode what begins at the byte `start` of the memory into the layout of a version, from the byte `target` on.

        `present`: by parameter, whether it was pushed. `begin`, `end`: the bytes of a version that are wanted.
        """
        last = None if end is None else bisect_left(self.parts, end, key=_offset)
        for part in self.parts[bisect_left(self.parts, begin, key=_offset) : last]:
            if present[part.number]:
                self._decode(part, _encoded(part, memory, start), part.entry.over(into, target))

    def _decode(self, part: EncodedPart, encoded: Tensor, into: Tensor) -> Tensor:
        if part.raw:
            into.view(torch.uint8).copy_(encoded)
        else:
            self.codec.decode(encoded, part.seen(into))
        return into


def _offset(part: EncodedPart) -> int:
    return part.entry.offset


def _encoded(part: EncodedPart, memory: memoryview, start: int) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8, count=part.end - part.begin, offset=start + part.begin)
