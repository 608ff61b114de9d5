"""top-k: the values of the largest magnitudes, with their places. The others come with later pushes, by feedback."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from paceline.codecs import Codec
from paceline.core.choice import parameter

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(Codec):
    """Keeps this share of the values, one at least. Of equal magnitudes the first ones are kept.

    Encoded: their places as int32, ascending, then the values as float32.
    """

    name: ClassVar[str] = "topk"

    density: float = parameter(0.01, "the share of values that is pushed", least=0, above=True, most=1)

    def size(self, *shape: int) -> int:
        """See `Codec`."""
        return 8 * self._kept(math.prod(shape))

    def encode(self, values: Tensor, into: Tensor) -> None:
        """See `Codec`."""
        kept, magnitudes = self._kept(values.numel()), values.abs().nan_to_num_(nan=math.inf, posinf=math.inf)
        least = magnitudes.topk(kept, sorted=False).values.min()  # which of equal ones topk takes is not defined
        larger = (magnitudes > least).nonzero().view(-1)
        equal = (magnitudes == least).nonzero().view(-1)[: kept - larger.numel()]
        places = larger.new_empty(kept)
        places[: larger.numel()], places[larger.numel() :] = larger, equal
        places = places.sort().values
        into[: 4 * kept].copy_(places.int().view(into.dtype))
        into[4 * kept :].copy_(values[places].view(into.dtype))

    def decode(self, encoded: Tensor, into: Tensor) -> None:
        """See `Codec`."""
        import torch

        half = encoded.numel() // 2
        places = encoded[:half].view(torch.int32).long()
        into.zero_()
        into[places] = encoded[half:].view(into.dtype)

    def _kept(self, count: int) -> int:
        return max(1, math.ceil(Fraction(repr(self.density)) * count))  # a float's product may be a little more


CODECS = (TopK,)
