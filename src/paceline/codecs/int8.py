"""int8: whole numbers from -127 to 127, times a scale for each block of values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline.codecs import Codec
from paceline.core.choice import parameter

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8(Codec):
    """A block's scale is its largest magnitude / 127, or 1 if all are 0. No value is off by more than scale / 2.

    Encoded: the scales as float32, then the numbers. The last block may be shorter.
    """

    name: ClassVar[str] = "int8"

    block: int = parameter(256, "values that share a scale", unit="values", least=2)

    def size(self, *shape: int) -> int:
        """See `Codec`."""
        count = math.prod(shape)
        return 4 * self._blocks(count) + count

    def encode(self, values: Tensor, into: Tensor) -> None:
        """See `Codec`."""
        begin, whole = 4 * self._blocks(values.numel()), values.numel() - values.numel() % self.block
        scales, numbers = into[:begin].view(values.dtype), into[begin:].view(_int8())
        if whole:
            _encode(values[:whole].view(-1, self.block), scales[: whole // self.block], numbers[:whole])
        if whole < values.numel():
            _encode(values[whole:].view(1, -1), scales[-1:], numbers[whole:])

    def decode(self, encoded: Tensor, into: Tensor) -> None:
        """See `Codec`."""
        count, blocks = into.numel(), self._blocks(into.numel())
        scales, whole = encoded[: 4 * blocks].view(into.dtype), count - count % self.block
        into.copy_(encoded[4 * blocks :].view(_int8()))
        into[:whole].view(-1, self.block).mul_(scales[: whole // self.block, None])
        into[whole:].mul_(scales[-1])

    def _blocks(self, count: int) -> int:
        return -(-count // self.block)


def _encode(blocks: Tensor, scales: Tensor, numbers: Tensor) -> None:
    """Encode these blocks, a row for each. One with a NaN or an infinity has such a scale."""
    scales.copy_(blocks.abs().amax(dim=1).div_(127))
    scales[scales == 0] = 1
    numbers.copy_((blocks / scales[:, None]).round_().clamp_(-127, 127).view(-1))  # a denormal scale is too small


def _int8() -> torch.dtype:
    import torch

    return torch.int8


CODECS = (Int8,)
